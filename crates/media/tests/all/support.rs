//! Goldens of scripts/goldens/media.py, and what the tests need to compare with them.

use std::path::{Path, PathBuf};

use candlepower_media::{Deadline, Limits, Picture, Result, decode};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The path of a golden.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

pub(crate) fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(data(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub(crate) fn json(name: &str) -> Value {
    serde_json::from_slice(&bytes(name)).unwrap()
}

/// Decodes with the usual limits.
pub(crate) fn decoded(encoded: &[u8]) -> Result<Picture> {
    decode(encoded, &Limits::default(), &Deadline::default())
}

/// SHA-256 in hexadecimal digits.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The picture that the script computes by the same formula.
pub(crate) fn formula(width: u32, height: u32) -> Picture {
    let mut rgb = Vec::with_capacity(width as usize * height as usize * 3);
    for y in 0..height {
        for x in 0..width {
            rgb.extend((0..3).map(|c| ((x * (3 + 2 * c) + y * (5 - c)) ^ ((x * y) >> 4)) as u8));
        }
    }
    Picture::new(width, height, rgb).unwrap()
}

/// A pair of integers in a golden.
pub(crate) fn pair(value: &Value) -> (u32, u32) {
    let side = |index: usize| value[index].as_u64().unwrap() as u32;
    (side(0), side(1))
}
