//! Small files that ask for much: memory, time, or nothing at all.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use candlepower_media::{Deadline, Error, ErrorKind, Format, Limits, decode};

use crate::support::{bytes, decoded, digest, json};

/// Longest time for a file that is refused or read at once. Decoding all that it asks for takes minutes; a busy machine is slow.
const PROMPT: Duration = Duration::from_secs(10);

fn write(file: &mut [u8], at: usize, bytes: &[u8]) {
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

/// CRC-32 of PNG's chunks, bit by bit.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ (0xedb8_8320 * (crc & 1)))
    })
}

fn png_of(width: u32, height: u32) -> Vec<u8> {
    let mut file = bytes("png/rgb8.png");
    write(&mut file, 16, &width.to_be_bytes());
    write(&mut file, 20, &height.to_be_bytes());
    let crc = crc(&file[12..29]);
    write(&mut file, 29, &crc.to_be_bytes());
    file
}

fn jpeg_of(width: u16, height: u16) -> Vec<u8> {
    let mut file = bytes("jpg/420.jpg");
    let sof = file.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
    write(&mut file, sof + 5, &height.to_be_bytes());
    write(&mut file, sof + 7, &width.to_be_bytes());
    file
}

/// A GIF with another screen and another frame.
fn gif_of(screen: u16, frame: u16) -> Vec<u8> {
    let mut file = bytes("gif/plain.gif");
    write(&mut file, 6, &[screen.to_le_bytes(), screen.to_le_bytes()].concat());
    let descriptor = 13 + 3 * 256 + 1;
    write(&mut file, descriptor + 4, &[frame.to_le_bytes(), frame.to_le_bytes()].concat());
    file
}

/// A lossless WebP with 14 bits a side, less one.
fn webp_of(side_less_one: u32) -> Vec<u8> {
    let mut file = bytes("webp/lossless.webp");
    write(&mut file, 21, &(side_less_one | side_less_one << 14).to_le_bytes());
    file
}

/// A lossy WebP with 14 bits a side.
fn lossy_webp_of(side: u16) -> Vec<u8> {
    let mut file = bytes("webp/lossy.webp");
    write(&mut file, 26, &[side.to_le_bytes(), side.to_le_bytes()].concat());
    file
}

/// An animated WebP with 24 bits a side of its canvas, less one.
fn canvas_of(side_less_one: u32) -> Vec<u8> {
    let mut file = bytes("webp/animated-offset.webp");
    let side = &side_less_one.to_le_bytes()[..3];
    write(&mut file, 24, &[side, side].concat());
    file
}

#[test]
fn too_many_pixels_are_refused_by_the_header() {
    // The very files that are changed are read as they are.
    for (name, file) in [
        ("png/rgb8.png", png_of(29, 23)),
        ("jpg/420.jpg", jpeg_of(121, 87)),
        ("gif/plain.gif", bytes("gif/plain.gif")),
        ("webp/lossless.webp", webp_of_size(61, 47)),
    ] {
        assert_eq!(file, bytes(name), "{name}");
        assert!(decoded(&file).is_ok(), "{name}");
    }
    for (what, file) in [
        ("png", png_of(70_000, 70_000)),
        ("png with the largest sides", png_of(i32::MAX as u32, i32::MAX as u32)),
        ("png just above", png_of(8_001, 8_000)),
        ("jpeg", jpeg_of(65_500, 65_500)),
        ("gif's screen", gif_of(65_535, 23)),
        ("gif's frame", gif_of(23, 65_535)),
        ("lossless webp", webp_of(16_383)),
        ("lossy webp", lossy_webp_of(16_383)),
        ("webp's canvas", canvas_of(0xff_ffff)),
    ] {
        let start = Instant::now();
        let error = decoded(&file).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{what}: {error}");
        assert!(error.to_string().ends_with("at most 64 megapixels are read"), "{what}: {error}");
        assert!(start.elapsed() < PROMPT, "{what}: {:?}", start.elapsed());
    }
}

fn webp_of_size(width: u32, height: u32) -> Vec<u8> {
    let mut file = bytes("webp/lossless.webp");
    let alpha = file[24] & 0xf0;
    write(&mut file, 21, &((width - 1) | (height - 1) << 14).to_le_bytes());
    file[24] |= alpha;
    file
}

#[test]
fn pictures_without_pixels_are_refused() {
    for (what, file) in [
        ("png", png_of(0, 5)),
        ("jpeg without width", jpeg_of(0, 9)),
        ("jpeg without height", jpeg_of(9, 0)),
        ("gif", gif_of(9, 0)),
        ("lossy webp", lossy_webp_of(0)),
        ("no bytes", Vec::new()),
    ] {
        let error = decoded(&file).unwrap_err();
        let is_expected =
            matches!(error, Error::NoPixels { .. } | Error::Damaged | Error::UnknownFormat);
        assert!(is_expected, "{what}: {error}");
    }
    for name in
        ["png/one-pixel.png", "jpg/one-pixel.jpg", "gif/one-pixel.gif", "webp/one-pixel.webp"]
    {
        let picture = decoded(&bytes(name)).unwrap();
        assert_eq!((picture.width(), picture.height()), (1, 1), "{name}");
    }
}

#[test]
fn data_beyond_the_picture_is_not_decompressed() {
    let plain = bytes("png/rgb8.png");
    assert!(decoded(&plain).is_ok());
    for name in ["large/data-bomb.png", "large/text-bomb.png"] {
        let start = Instant::now();
        if let Ok(picture) = decoded(&bytes(name)) {
            assert_eq!((picture.width(), picture.height()), (13, 1), "{name}");
        }
        assert!(start.elapsed() < PROMPT, "{name}: {:?}", start.elapsed());
    }
}

#[test]
fn frames_behind_the_first_are_not_decoded() {
    let file = bytes("webp/animated-offset.webp");
    let expected = &json("decoded.json")["webp/animated-offset.webp"][2];
    let frames = file.windows(4).rposition(|name| name == b"ANMF").unwrap();
    // Thirty thousand frames; some are no frames at all.
    let mut long = file.clone();
    while long.len() < 20 << 20 {
        long.extend_from_slice(&file[frames..]);
        long.extend_from_slice(b"ANMF\x04\0\0\0oops");
    }
    let start = Instant::now();
    let picture = decoded(&long).unwrap();
    assert_eq!(digest(picture.rgb()), *expected);
    assert!(start.elapsed() < PROMPT, "{:?}", start.elapsed());
}

#[test]
fn a_jpeg_of_many_scans_is_refused() {
    let file = bytes("jpg/progressive-444.jpg");
    let second_scan =
        file.windows(2).enumerate().filter(|(_, marker)| *marker == [0xff, 0xda]).nth(1);
    let (start, _) = second_scan.unwrap();
    let third = file[start + 2..].windows(2).position(|marker| marker == [0xff, 0xda]).unwrap();
    let scan = file[start..start + 2 + third].to_vec();
    let mut long = file[..start].to_vec();
    (0..400).for_each(|_| long.extend_from_slice(&scan));
    long.extend_from_slice(&[0xff, 0xd9]);
    assert_eq!(decoded(&long).unwrap_err(), Error::Damaged);
}

#[test]
fn bytes_and_time_are_bounded() {
    let file = bytes("png/rgb8.png");
    let limits = Limits { max_encoded_bytes: file.len(), max_pixels: 29 * 23 };
    assert!(decode(&file, &limits, &Deadline::default()).is_ok());
    let fewer_bytes = Limits { max_encoded_bytes: file.len() - 1, ..limits };
    let error = decode(&file, &fewer_bytes, &Deadline::default()).unwrap_err();
    assert_eq!(error, Error::TooManyBytes { limit: file.len() - 1 });
    let fewer_pixels = Limits { max_pixels: 29 * 23 - 1, ..limits };
    let error = decode(&file, &fewer_pixels, &Deadline::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    let late = Deadline::after(Duration::ZERO);
    let error = decode(&file, &limits, &late).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the image took longer than 0 seconds to read: send a smaller one"
    );
    let cancelled = Deadline::with_cancel(Duration::from_secs(9), Arc::new(AtomicBool::new(true)));
    assert_eq!(decode(&file, &limits, &cancelled), Err(Error::Cancelled));
}

#[test]
fn the_deadline_ends_a_decoder_at_work() {
    for name in ["large/large.png", "large/large.jpg", "large/large-lossy.webp"] {
        let file = bytes(name);
        assert!(decoded(&file).is_ok(), "{name}");
        // Four megapixels take far longer.
        let short = Deadline::after(Duration::from_millis(5));
        let error = decode(&file, &Limits::default(), &short).unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{name}: {error}");
    }
}

/// The variable that makes the test binary decode one file and print the memory that it took.
const CHILD: &str = "CANDLEPOWER_MEDIA_TEST_FILE";

/// Most bytes of memory that this process has used.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

#[test]
fn child_decodes_one_file() {
    let Ok(name) = std::env::var(CHILD) else { return };
    let file = bytes(&name);
    // One small picture first, so that code and tables are in memory.
    let format = Format::of(&file).unwrap();
    let small = match format {
        Format::Png => "png/one-pixel.png",
        Format::Jpeg => "jpg/one-pixel.jpg",
        Format::Gif => "gif/one-pixel.gif",
        Format::WebP => "webp/one-pixel.webp",
    };
    decoded(&bytes(small)).unwrap();
    let before = peak_bytes();
    let picture = decoded(&file).unwrap();
    let pixels = u64::from(picture.width()) * u64::from(picture.height());
    println!("peak {} of {pixels}", peak_bytes() - before);
}

#[test]
fn memory_is_bounded_by_the_number_of_pixels() {
    // Four times three bytes a pixel are the bound for all kinds.
    for (name, most) in [
        ("large/large.png", 3.5),
        ("large/large.gif", 4.5),
        ("large/large.jpg", 9.5),
        ("large/large-cmyk.jpg", 12.5),
        ("large/large-lossy.webp", 5.0),
        ("large/large-lossless.webp", 7.5),
        ("large/large-alpha.webp", 4.5),
    ] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "bombs::child_decodes_one_file", "--nocapture"])
            .env(CHILD, name)
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout).into_owned();
        let line = output.lines().find_map(|line| line.split_once("peak ")).map(|(_, rest)| rest);
        let numbers =
            line.and_then(|line| line.split_once(" of ")).unwrap_or_else(|| panic!("{output}"));
        let [peak, pixels] =
            [numbers.0, numbers.1].map(|number| number.trim().parse::<f64>().unwrap());
        println!("{name}: {:.1} bytes a pixel", peak / pixels);
        assert!(peak / pixels <= most, "{name}: {:.1} bytes a pixel", peak / pixels);
    }
}
