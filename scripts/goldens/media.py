"""Makes pictures and what Pillow and transformers read from them, as the truth for crates/media's tests.

Encoded pictures are small files of every kind, with the digest of the RGB pixels that `load_image` gives. JPEG files come
with those pixels as a PNG, since a decoder may differ from libjpeg-turbo by a few of 255. Resized pictures and pixel
tensors are given by digests and samples; their sources are a formula, which crates/media/tests/all/support.rs repeats.

Needs: pip install -r scripts/goldens/requirements.txt
Run: python scripts/goldens/media.py
"""

import hashlib
import io
import json
import pathlib
import struct
import zlib

import numpy
from media_files import animated_png, gif, png, webp_animation, webp_file, xmp
from PIL import Image
from transformers.image_utils import load_image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

OUT = pathlib.Path(__file__).parents[2] / "crates/media/tests/data"
SAMPLES = 64
FILTERS = {"lanczos": 1, "bilinear": 2, "bicubic": 3}


def formula(width, height):
    """A picture with gradients, edges and single bright pixels, in integers that any language computes alike."""
    x, y = numpy.arange(width)[None, :, None], numpy.arange(height)[:, None, None]
    channel = numpy.arange(3)[None, None, :]
    return ((x * (3 + 2 * channel) + y * (5 - channel)) ^ (x * y >> 4) & 255).astype(numpy.uint8)


def scene(width, height):
    """A picture with the smooth shades and soft edges of a photo, for JPEG."""
    x, y = numpy.meshgrid(numpy.linspace(0, 1, width), numpy.linspace(0, 1, height))
    disc = 1 / (1 + numpy.exp(40 * (numpy.hypot(x - 0.4, y - 0.5) - 0.25)))
    stripes = 0.5 + 0.5 * numpy.sin(20 * x + 9 * y * y)
    red = 0.2 + 0.7 * disc + 0.1 * stripes
    green = 0.8 * y + 0.2 * stripes * (1 - disc)
    blue = 0.9 - 0.5 * x * y - 0.3 * disc
    noise = numpy.random.default_rng(7).normal(0, 0.02, (height, width, 3))
    values = numpy.stack([red, green, blue], axis=-1) + noise
    return Image.fromarray((values.clip(0, 1) * 255).astype(numpy.uint8))


def digest(array):
    return hashlib.sha256(numpy.ascontiguousarray(array).tobytes()).hexdigest()


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def exif(orientation, big=False):
    order, mark = (">", b"MM") if big else ("<", b"II")
    entry = struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0)
    return mark + struct.pack(order + "HIH", 42, 8, 1) + entry + bytes(4)


def png_files():
    pixels = formula(29, 23).astype(int)
    wide = pixels * 257 + 90  # 16 bits, with a lower byte of its own
    grey, alpha = pixels[..., :1], pixels[..., 1:2]
    dark = numpy.arange(29 * 23).reshape(23, 29, 1) * 3 % 700  # 16-bit grey on both sides of 255
    colours = formula(256, 1)[0]
    yield "rgb8", png(pixels, 8, 2)
    yield "rgb8-interlaced", png(pixels, 8, 2, interlaced=True)
    yield "rgb16", png(wide, 16, 2)
    yield "rgb16-interlaced", png(wide, 16, 2, interlaced=True)
    yield "rgba8", png(numpy.concatenate([pixels, alpha], 2), 8, 6)
    yield "rgba16", png(numpy.concatenate([wide, wide[..., :1]], 2), 16, 6)
    yield "grey-alpha8", png(numpy.concatenate([grey, alpha], 2), 8, 4)
    yield "grey-alpha16", png(numpy.concatenate([grey, alpha], 2) * 200 + 33, 16, 4)
    yield "grey16", png(dark, 16, 0)
    yield "grey16-interlaced", png(dark, 16, 0, interlaced=True)
    yield "grey8-transparent", png(grey, 8, 0, chunks=[(b"tRNS", b"\0\x07")])
    yield "rgb8-transparent", png(pixels, 8, 2, chunks=[(b"tRNS", bytes(6))])
    for bits in (1, 2, 4, 8):
        few = grey % (1 << bits)
        palette = (b"PLTE", colours[: 1 << bits].tobytes())
        yield f"grey{bits}", png(few, bits, 0)
        yield f"grey{bits}-interlaced", png(few, bits, 0, interlaced=True)
        yield f"palette{bits}", png(few, bits, 3, chunks=[palette])
        yield f"palette{bits}-interlaced", png(few, bits, 3, chunks=[palette], interlaced=True)
    shades = (b"PLTE", colours.tobytes())
    yield "palette-alpha", png(grey, 8, 3, chunks=[shades, (b"tRNS", bytes(range(256)))])
    yield "palette-transparent", png(grey, 8, 3, chunks=[shades, (b"tRNS", b"\xff\xff\0")])
    yield "one-pixel", png(formula(1, 1) + 77, 8, 2)
    yield "one-pixel-interlaced", png(formula(1, 1) + 77, 8, 2, interlaced=True)
    yield "one-column", png(formula(1, 301), 8, 2)
    yield "one-row", png(formula(301, 1), 8, 2)
    small = formula(7, 5).astype(int)
    for orientation in range(1, 10):
        chunk = (b"eXIf", exif(orientation, big=orientation % 2 == 0))
        yield f"exif{orientation}", png(small, 8, 2, chunks=[chunk])
    yield "exif-behind", png(small, 8, 2, behind=[(b"eXIf", exif(6))])
    yield "xmp", png(small, 8, 2, chunks=[(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp(8))])
    digits = exif(5).hex()
    profile = f"\nexif\n{len(digits) // 2:8}\n{digits[:72]}\n{digits[72:]}\n".encode()
    yield "exif-as-text", png(small, 8, 2, chunks=[(b"tEXt", b"Raw profile type exif\0" + profile)])
    frames = [small, 255 - small]
    yield "animated", animated_png(frames)
    yield "animated-default", animated_png(frames, default=formula(7, 5)[::-1].astype(int))


def webp_files():
    image, with_alpha = scene(61, 47), scene(61, 47)
    with_alpha.putalpha(Image.fromarray(formula(61, 47)[..., 0]))
    lossy = saved(image, "WEBP", quality=70)
    lossless = saved(scene(20, 14), "WEBP", lossless=True, exact=True)
    yield "lossy", lossy
    yield "lossy-best", saved(image, "WEBP", quality=100)
    yield "lossy-alpha", saved(with_alpha, "WEBP", quality=40)
    yield "lossless", saved(image, "WEBP", lossless=True)
    yield "lossless-alpha", saved(with_alpha.crop((0, 0, 33, 21)), "WEBP", lossless=True, exact=True)
    yield "lossless-palette", saved(image.quantize(9).convert("RGB"), "WEBP", lossless=True)
    yield "one-pixel", saved(scene(1, 1), "WEBP", quality=80)
    yield "one-row", saved(scene(50, 1), "WEBP", lossless=True)
    yield "exif6", saved(image, "WEBP", quality=70, exif=b"Exif\0\0" + exif(6))
    yield "xmp8", saved(scene(20, 14), "WEBP", quality=70, xmp=xmp(8))
    frames = [with_alpha, image.convert("RGBA").rotate(9)]
    yield "animated", saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], quality=60)
    yield "animated-offset", webp_animation(lossy, (80, 60), (6, 4))
    yield "animated-lossless", webp_animation(lossless, (25, 20), (2, 6))


def gif_files():
    pixels = formula(29, 23)[..., 0]
    colours = formula(256, 1)[0]
    yield "plain", gif(pixels, (29, 23), palette=colours)
    yield "interlaced", gif(pixels, (29, 23), palette=colours, interlaced=True)
    yield "few-colours", gif(pixels % 4, (29, 23), palette=colours[9:13])
    yield "index-beyond", gif(pixels % 9, (29, 23), palette=colours[9:13], bits=8)
    yield "grey", gif(pixels, (29, 23), palette=numpy.arange(256).repeat(3))
    yield "grey-beyond", gif(pixels, (29, 23), palette=numpy.arange(4).repeat(3), bits=8)
    yield "local", gif(pixels, (29, 23), palette=colours[::-1], local=colours)
    yield "local-only", gif(pixels, (29, 23), palette=None, local=colours)
    yield "transparent", gif(pixels, (29, 23), palette=colours, transparent=5)
    yield "offset", gif(pixels, (40, 31), palette=colours, at=(7, 3))
    yield "offset-transparent", gif(pixels, (40, 31), palette=colours, at=(7, 3), transparent=9)
    yield "beyond-screen", gif(pixels, (20, 20), palette=colours, at=(3, 1))
    yield "one-pixel", gif(pixels[:1, 9:10], (1, 1), palette=colours)
    image = scene(31, 22)
    others = [image.rotate(50), image.rotate(90)]
    yield "animated", saved(image, "GIF", save_all=True, append_images=others)


def jpeg_files():
    image = scene(121, 87)
    cmyk = saved(image.convert("CMYK"), "JPEG", quality=85)
    yield "best-444", saved(image, "JPEG", quality=98, subsampling="4:4:4")
    yield "444", saved(image, "JPEG", quality=80, subsampling="4:4:4")
    yield "422", saved(image, "JPEG", quality=80, subsampling="4:2:2")
    encoded_420 = saved(image, "JPEG", quality=80, subsampling="4:2:0")
    yield "420", encoded_420
    yield "420-low", saved(image, "JPEG", quality=20, subsampling="4:2:0")
    yield "420-even", saved(scene(64, 48), "JPEG", quality=90, subsampling="4:2:0")
    # Even sides that are no multiples of a block, where the last samples of chroma have no neighbour.
    harsh = Image.fromarray(formula(122, 90))
    yield "420-padded", saved(scene(122, 90), "JPEG", quality=90, subsampling="4:2:0")
    yield "420-harsh", saved(harsh, "JPEG", quality=70, subsampling="4:2:0")
    yield "422-harsh", saved(harsh, "JPEG", quality=70, subsampling="4:2:2")
    yield "progressive-420-harsh", saved(harsh, "JPEG", quality=50, progressive=True, subsampling="4:2:0")
    yield "420-restarts", saved(image, "JPEG", subsampling="4:2:0", restart_marker_blocks=3)
    yield "420-narrow", saved(scene(9, 70), "JPEG", quality=90, subsampling="4:2:0")
    yield "progressive-444", saved(image, "JPEG", progressive=True, subsampling="4:4:4")
    yield "progressive-422", saved(image, "JPEG", progressive=True, subsampling="4:2:2")
    yield "progressive-420", saved(image, "JPEG", progressive=True, subsampling="4:2:0")
    yield "rgb", saved(image, "JPEG", quality=85, keep_rgb=True)
    yield "grey", saved(image.convert("L"), "JPEG", quality=80)
    yield "progressive-grey", saved(image.convert("L"), "JPEG", quality=80, progressive=True)
    yield "cmyk", cmyk
    yield "progressive-cmyk", saved(image.convert("CMYK"), "JPEG", quality=85, progressive=True)
    table = encoded_420.index(b"\xff\xdb")
    yield "bytes-between", encoded_420[:table] + bytes(9) + encoded_420[table:]
    # The last byte of Adobe's segment says which transform the four channels have.
    at = cmyk.index(b"Adobe") + 11
    yield "ycck", cmyk[:at] + b"\2" + cmyk[at + 1 :]
    yield "one-pixel", saved(scene(1, 1), "JPEG", quality=80)
    for orientation in range(1, 9):
        options = {"exif": b"Exif\0\0" + exif(orientation), "quality": 85}
        yield f"exif{orientation}", saved(scene(24, 17), "JPEG", **options)
    yield "xmp3", saved(scene(24, 17), "JPEG", quality=85, xmp=xmp(3))


def make_large():
    """Files of a few kilobytes that take much memory or time to decode."""
    side = 2000
    image = Image.new("RGB", (side, side), (90, 200, 30))
    still = saved(image, "WEBP", lossless=True)
    name, payload = still[12:16], still[20:]
    files = {
        "large.png": saved(image.convert("RGBA"), "PNG"),
        "large.gif": saved(image, "GIF"),
        "large.jpg": saved(image, "JPEG", progressive=True, subsampling="4:4:4"),
        "large-cmyk.jpg": saved(image.convert("CMYK"), "JPEG", progressive=True),
        "large-lossy.webp": saved(image, "WEBP", quality=50),
        "large-lossless.webp": saved(image, "WEBP", lossless=True),
        "large-alpha.webp": webp_file([(name, payload[:4] + bytes([payload[4] | 0x10]) + payload[5:])]),
        # Sixteen megabytes of zeros, as pixels of a picture that has 13 of them, and as a text.
        "data-bomb.png": png(formula(13, 1), 8, 2, data=zlib.compress(bytes(16 << 20), 9)),
        "text-bomb.png": png(
            formula(13, 1), 8, 2, chunks=[(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(bytes(16 << 20), 9))]
        ),
    }
    (OUT / "large").mkdir(parents=True, exist_ok=True)
    for name, encoded in files.items():
        (OUT / "large" / name).write_bytes(encoded)


def make_decoded():
    """Files, and of each the pixels that `load_image` gives."""
    expected = {}
    for kind, files in [("png", png_files()), ("webp", webp_files()), ("gif", gif_files()), ("jpg", jpeg_files())]:
        for name, encoded in files:
            path = OUT / kind / f"{name}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded)
            image = load_image(str(path))
            expected[f"{kind}/{name}.{kind}"] = [image.width, image.height, digest(numpy.array(image))]
            if kind == "jpg":
                image.save(path.with_suffix(".expected.png"), optimize=True)
    (OUT / "decoded.json").write_text(lines(expected))


def make_resized():
    """The formula's picture in one size, resized to another."""
    sizes = [
        ((64, 64), (32, 32)),
        ((64, 64), (100, 91)),
        ((61, 47), (28, 28)),
        ((61, 47), (60, 47)),
        ((61, 47), (61, 46)),
        ((61, 47), (61, 47)),
        ((1, 1), (8, 5)),
        ((1, 97), (3, 11)),
        ((97, 1), (11, 3)),
        ((2, 2), (7, 9)),
        ((3, 800), (8, 8)),
        ((800, 3), (8, 8)),
        ((40, 500), (30, 50)),  # the columns first
        ((100, 300), (1, 103)),  # the rows first, by one pixel
        ((100, 301), (1, 102)),  # the columns first, by one pixel
        ((500, 40), (50, 30)),
        ((50, 200), (200, 40)),
        ((640, 427), (224, 224)),
        ((333, 777), (448, 448)),
    ]
    expected = []
    for (width, height), size in sizes:
        source = Image.fromarray(formula(width, height))
        for name, resample in FILTERS.items():
            resized = numpy.array(source.resize(size, resample))
            expected.append([[width, height], list(size), name, digest(resized)])
    (OUT / "resized.json").write_text(lines(expected))


GEMMA3 = {
    "do_convert_rgb": None,
    "do_normalize": True,
    "do_pan_and_scan": None,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "Gemma3ImageProcessor",
    "image_seq_length": 256,
    "image_std": [0.5, 0.5, 0.5],
    "pan_and_scan_max_num_crops": None,
    "pan_and_scan_min_crop_size": None,
    "pan_and_scan_min_ratio_to_activate": None,
    "processor_class": "Gemma3Processor",
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": 896, "width": 896},
}
MISTRAL3 = {
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "PixtralImageProcessorFast",
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "patch_size": {"height": 14, "width": 14},
    "processor_class": "PixtralProcessor",
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"longest_edge": 1540},
}
QWEN2_5_VL = {
    "min_pixels": 3136,
    "max_pixels": 1003520,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
}
QWEN3_VL = {
    "size": {"longest_edge": 1048576, "shortest_edge": 65536},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "processor_class": "Qwen3VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessorFast",
}

# Family in the tests, class, preprocessor_config.json, processor_config.json.
PROCESSORS = {
    "gemma3": ("gemma3", Gemma3ImageProcessorPil, GEMMA3, {}),
    "gemma3-small": ("gemma3", Gemma3ImageProcessorPil, {**GEMMA3, "size": 56, "resample": 1}, {}),
    "mistral3": ("pixtral", PixtralImageProcessorPil, MISTRAL3, {"patch_size": 14, "spatial_merge_size": 2}),
    "pixtral": ("pixtral", PixtralImageProcessorPil, {"size": {"longest_edge": 96}}, {"patch_size": 16}),
    "qwen2.5-vl": ("qwen2-vl", Qwen2VLImageProcessorPil, QWEN2_5_VL, {}),
    "qwen3-vl": ("qwen2-vl", Qwen2VLImageProcessorPil, QWEN3_VL, {}),
    "qwen-merge-3": (
        "qwen2-vl",
        Qwen2VLImageProcessorPil,
        {"patch_size": 4, "merge_size": 3, "temporal_patch_size": 3, "min_pixels": 576, "max_pixels": 20000},
        {},
    ),
}

SHAPES = [(64, 64), (96, 300), (300, 96), (1, 1), (9, 5), (10, 1999), (1999, 10), (333, 251), (1700, 1100)]
FILES = [
    "png/palette-alpha.png",
    "png/rgba16.png",
    "png/grey16.png",
    "png/grey1.png",
    "png/exif6.png",
    "gif/offset.gif",
    "webp/lossy-alpha.webp",
]


def make_processed():
    """Pixel tensors of every processor, for the formula's picture and for files."""
    cases = []
    for name, (family, kind, config, processor) in PROCESSORS.items():
        options = {key: value for key, value in config.items() if not key.endswith(("_type", "_class"))}
        pil = kind(**options)
        call = {}
        if family == "pixtral":
            # PixtralProcessor passes this.
            call["patch_size"] = processor.get("patch_size", 16) * processor.get("spatial_merge_size", 1)
        sources = [(list(shape), Image.fromarray(formula(*shape))) for shape in SHAPES]
        sources += [(file, load_image(str(OUT / file))) for file in FILES]
        tensors = []
        for source, image in sources:
            for detail in ("auto", "low"):
                if detail == "low" and max(image.size) <= 512:
                    continue
                tensors.append([source, detail, *tensor(pil, image, detail, call)])
        files = [json.dumps(config), json.dumps(processor)]
        cases.append({"name": name, "family": family, "files": files, "tensors": tensors})
    (OUT / "processed.json").write_text(json.dumps(cases, separators=(",", ":")).replace("[[", "[\n[").replace("],[", "],\n[") + "\n")


def tensor(processor, image, detail, call):
    """Shape, digest and samples of one picture's values, or the kind of the refusal."""
    if detail == "low":
        longest = max(image.size)
        bound = [max(1, (side * 512 + longest // 2) // longest) for side in image.size]
        image = image.resize(bound, processor.resample)
    try:
        values = processor(images=image, return_tensors="np", **call)["pixel_values"]
    except ValueError:
        return [None, None, None]
    # Other processors than Qwen's have a dimension for the images of a request.
    values = numpy.asarray(values, dtype=numpy.float32)
    values = values[0] if values.ndim == 4 else values
    flat = values.reshape(-1)
    samples = flat[numpy.arange(SAMPLES) * len(flat) // SAMPLES].view(numpy.uint32)
    return [list(values.shape), digest(values), samples.tobytes().hex()]


def lines(value):
    """JSON with one entry a line."""
    if isinstance(value, dict):
        entries = [f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items()]
        return "{\n" + ",\n".join(entries) + "\n}\n"
    return "[\n" + ",\n".join(json.dumps(entry) for entry in value) + "\n]\n"


if __name__ == "__main__":
    make_decoded()
    make_large()
    make_resized()
    make_processed()
