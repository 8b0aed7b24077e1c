//! Encoded pictures and data URLs, changed somewhere. A picture that is decoded is resized for a model, and its values are made.

use std::path::Path;

use candlepower_media::{Deadline, Detail, Encoded, Family, Limits, Processor, decode};
use fastrand::Rng;

use super::repository;
use crate::{Round, Verdict, change};

/// Fewer pixels than the server reads, so that a round ends in time.
const LIMITS: Limits = Limits { max_encoded_bytes: 1 << 20, max_pixels: 2_000_000 };

const PIECES: [&str; 16] = [
    ",",
    ";",
    ":",
    ";base64",
    "base64,",
    "data:",
    "image/png",
    "image/jpeg",
    "text/html",
    "=",
    "==",
    "-",
    "\n",
    "%3D",
    "\u{0}",
    "é",
];

pub(super) fn open() -> Round {
    let folder = repository("crates/media/tests/data");
    let originals: Vec<Vec<u8>> =
        ["png", "gif", "webp", "jpg"].iter().flat_map(|kind| files(&folder.join(kind))).collect();
    let processors = [
        (Family::Gemma3, r#"{"size": 56}"#),
        (Family::Pixtral, r#"{"size": {"longest_edge": 64}}"#),
        (Family::Qwen2Vl, r#"{"max_pixels": 9000}"#),
    ];
    let processors = processors
        .map(|(family, config)| Processor::read(family, Some(config.as_bytes()), None).unwrap());
    Box::new(move |random| {
        let mut file = random.choice(&originals).unwrap().clone();
        for _ in 0..random.usize(..3) {
            // Most of what a decoder parses is in the first bytes. In the compressed data nearly all changes mean
            // the same.
            let header = if random.bool() { file.len().min(64) } else { file.len() };
            if header > 8 {
                change::file(&mut file, 0..header, random);
            }
        }
        if random.bool() {
            mend(&mut file);
        }
        if random.usize(..8) == 0 {
            match from_data_url(&file, random) {
                Ok(bytes) => file = bytes,
                Err(error) => return Verdict::Refused(error.to_string()),
            }
        }
        let picture = match decode(&file, &LIMITS, &Deadline::default()) {
            Ok(picture) => picture,
            Err(error) => return Verdict::Refused(error.to_string()),
        };
        let processor = random.choice(&processors).unwrap();
        let detail = if random.bool() { Detail::Full } else { Detail::Low };
        match processor.process(&picture, detail, &LIMITS) {
            Ok(processed) => {
                assert_eq!(processed.values().len() * 4, processed.value_bytes());
                Verdict::Accepted
            }
            Err(error) => Verdict::Refused(error.to_string()),
        }
    })
}

/// The contents of all files in a folder, in the order of their names.
fn files(folder: &Path) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = entries.collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// The bytes behind a data URL of the file, of which the first or the last characters are changed.
fn from_data_url(file: &[u8], random: &mut Rng) -> Result<Vec<u8>, candlepower_media::Error> {
    let url = format!("data:image/png;base64,{}", base64(file));
    let cut = if random.bool() { url.len().min(30) } else { url.len().saturating_sub(20) };
    let (first, last) = url.split_at(cut);
    let url = match random.usize(..4) {
        0 => format!("{}{last}", change::text(first, &PIECES, random)),
        1 => format!("{first}{}", change::text(last, &PIECES, random)),
        _ => url,
    };
    Encoded::from_data_url(&url, &LIMITS).map(|image| image.bytes().to_vec())
}

/// Base64 by its definition, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let number = three.iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
        let number = number << (8 * (3 - three.len()));
        for index in 0..4 {
            let digit = DIGITS[(number >> (18 - 6 * index) & 63) as usize];
            text.push(if index <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// Corrects the checksums of a PNG's chunks, behind which no change would be seen otherwise.
fn mend(file: &mut [u8]) {
    let mut at = 8;
    while file.starts_with(b"\x89PNG") && at + 12 <= file.len() {
        let len = u32::from_be_bytes(file[at..at + 4].try_into().unwrap()) as usize;
        let Some(end) = (at + 8).checked_add(len).filter(|end| end + 4 <= file.len()) else {
            return;
        };
        let sum = crc(&file[at + 4..end]);
        file[end..end + 4].copy_from_slice(&sum.to_be_bytes());
        at = end + 4;
    }
}

/// CRC-32, bit by bit.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ (0xedb8_8320 * (crc & 1)))
    })
}
