"""Writers for encoded pictures of kinds that Pillow does not write: for media.py."""

import struct
import zlib

# First column and row of each pass of Adam7, and the steps between columns and rows.
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def chunk(name, payload):
    return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", zlib.crc32(name + payload))


def png_rows(pixels, bits):
    """Rows of packed samples, each behind its filter: 0 and 1 in turn, where 1 is the difference to the left pixel."""
    height, width, channels = pixels.shape
    step = max(1, channels * bits // 8)
    data = b""
    for index in range(height if width else 0):
        samples = [int(sample) for sample in pixels[index].reshape(-1)]
        number = sum(sample << bits * (len(samples) - 1 - at) for at, sample in enumerate(samples))
        padding = -len(samples) * bits % 8
        row = (number << padding).to_bytes((len(samples) * bits + padding) // 8, "big")
        if index % 2:
            left = bytes(step) + row
            row = bytes((byte - left[at]) % 256 for at, byte in enumerate(row))
        data += bytes([index % 2]) + row
    return data


def png_data(pixels, bits, interlaced=False):
    if not interlaced:
        return zlib.compress(png_rows(pixels, bits), 9)
    passes = [pixels[y::down, x::across] for x, y, across, down in ADAM7]
    return zlib.compress(b"".join(png_rows(part, bits) for part in passes), 9)


def png_file(pixels, header, chunks):
    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, *header)
    chunks = [(b"IHDR", header), *chunks, (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*entry) for entry in chunks)


def png(pixels, bits, colour, chunks=(), behind=(), interlaced=False, data=None):
    """A PNG of `[height, width, channels]` integers, with other chunks before and behind its data."""
    data = data or png_data(pixels, bits, interlaced)
    return png_file(pixels, (bits, colour, 0, 0, int(interlaced)), [*chunks, (b"IDAT", data), *behind])


def animated_png(frames, default=None):
    """An animation of RGB frames; `default` is a picture that does not belong to it."""
    height, width = frames[0].shape[:2]
    chunks = [(b"acTL", struct.pack(">II", len(frames), 0))]
    if default is not None:
        chunks.append((b"IDAT", png_data(default, 8)))
    number = 0
    for index, frame in enumerate(frames):
        control = struct.pack(">IIIIIHHBB", number, width, height, 0, 0, 1, 10, 0, 1)
        chunks.append((b"fcTL", control))
        number += 1
        if index == 0 and default is None:
            chunks.append((b"IDAT", png_data(frame, 8)))
        else:
            chunks.append((b"fdAT", struct.pack(">I", number) + png_data(frame, 8)))
            number += 1
    return png_file(frames[0], (8, 2, 0, 0, 0), chunks)


def xmp(orientation):
    return f'<x:xmpmeta><rdf:Description tiff:Orientation="{orientation}"/></x:xmpmeta>'.encode()


def gif_data(indices, bits):
    """LZW without any compression: the table is cleared before entries become longer."""
    codes, clear = [], 1 << bits
    for at, index in enumerate(indices):
        if at % (clear - 2) == 0:
            codes.append(clear)
        codes.append(int(index))
    codes.append(clear + 1)
    number = sum(code << at * (bits + 1) for at, code in enumerate(codes))
    data = number.to_bytes((len(codes) * (bits + 1) + 7) // 8, "little")
    blocks = [data[at : at + 255] for at in range(0, len(data), 255)]
    return bytes([bits]) + b"".join(bytes([len(block)]) + block for block in blocks) + b"\0"


def gif_palette(colours):
    """The bits for a palette's size, and its bytes."""
    if colours is None:
        return 0, b""
    colours = bytes(int(value) for value in colours.reshape(-1))
    return 0x80 | (len(colours) // 3).bit_length() - 2, colours


def gif(pixels, screen, palette, local=None, at=(0, 0), transparent=None, interlaced=False, bits=None):
    """A GIF of one frame of indices; palettes have a power of two of colours."""
    height, width = pixels.shape
    flags, colours = gif_palette(palette)
    local_flags, local_colours = gif_palette(local)
    bits = bits or max(2, ((local_flags if local is not None else flags) & 7) + 1)
    file = b"GIF89a" + struct.pack("<HHBBB", *screen, flags, 1, 0) + colours
    if transparent is not None:
        file += b"!\xf9\4" + struct.pack("<BHB", 1, 0, transparent) + b"\0"
    if interlaced:
        rows = [row for start, step in [(0, 8), (4, 8), (2, 4), (1, 2)] for row in range(start, height, step)]
        pixels = pixels[rows]
        local_flags |= 0x40
    file += b"," + struct.pack("<HHHHB", *at, width, height, local_flags) + local_colours
    return file + gif_data(pixels.reshape(-1), bits) + b";"


def webp_chunk(name, payload):
    return name + struct.pack("<I", len(payload)) + payload + bytes(len(payload) % 2)


def webp_file(chunks, written=b""):
    """A WebP of chunks as names and payloads, and of those that are written already."""
    written += b"".join(webp_chunk(*entry) for entry in chunks)
    return b"RIFF" + struct.pack("<I", 4 + len(written)) + b"WEBP" + written


def webp_animation(still, canvas, at):
    """An animation with a still of one chunk as its first frame, away from the corner, and again at the corner."""
    name, payload = still[12:16], still[20 : 20 + struct.unpack_from("<I", still, 16)[0]]
    if name == b"VP8L":
        size = struct.unpack_from("<I", payload, 1)[0]
        width, height = size & 0x3FFF, size >> 14 & 0x3FFF  # both less one
    else:
        width, height = (side - 1 for side in struct.unpack_from("<HH", payload, 6))

    def u24(*numbers):
        return b"".join(number.to_bytes(3, "little") for number in numbers)

    def frame(x, y):
        header = u24(x // 2, y // 2, width, height, 100) + b"\0"
        return webp_chunk(b"ANMF", header + webp_chunk(name, payload))

    extended = b"\x12\0\0\0" + u24(canvas[0] - 1, canvas[1] - 1)
    chunks = webp_chunk(b"VP8X", extended) + webp_chunk(b"ANIM", b"\x40\x80\xc0\xff\0\0") + frame(*at) + frame(0, 0)
    return webp_file([], chunks)
