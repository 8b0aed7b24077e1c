//! Decoded files against the pixels of Pillow's `load_image`.

use candlepower_media::{Error, Picture};

use crate::support::{bytes, decoded, digest, json};

/// Largest difference of one value of a JPEG, out of 255.
const MAX_JPEG_DIFFERENCE: u8 = 4;
/// Largest mean of the differences over all values of a JPEG.
const MAX_JPEG_MEAN: f64 = 0.5;

/// Names and contents of all goldens of a format.
fn files(format: &str) -> Vec<(String, Vec<u8>)> {
    let expected = json("decoded.json");
    let names = expected.as_object().unwrap().keys();
    let names = names.filter(|name| name.starts_with(&format!("{format}/")));
    names.map(|name| (name.clone(), bytes(name))).collect()
}

/// Compares all files of a format that is stored without a loss, or decoded by rules that leave no choice.
fn check_equal(format: &str, at_least: usize) {
    let expected = json("decoded.json");
    let files = files(format);
    assert!(files.len() >= at_least, "{} files", files.len());
    let mut differing = Vec::new();
    for (name, encoded) in files {
        let expected = &expected[&name];
        match decoded(&encoded) {
            Ok(found) => {
                let size = (found.width().into(), found.height().into());
                let is_equal = (expected[0].as_u64(), expected[1].as_u64())
                    == (Some(size.0), Some(size.1))
                    && expected[2] == digest(found.rgb());
                if !is_equal {
                    differing.push(format!("{name} ({} x {})", size.0, size.1));
                }
            }
            Err(error) => differing.push(format!("{name}: {error}")),
        }
    }
    assert!(differing.is_empty(), "{differing:#?}");
}

#[test]
fn png_equals_pillow() {
    check_equal("png", 40);
}

#[test]
fn webp_equals_pillow() {
    check_equal("webp", 12);
}

#[test]
fn gif_equals_pillow() {
    check_equal("gif", 12);
}

/// The differences of all values: the largest, the mean, and the share that is not zero.
fn differences(found: &Picture, expected: &Picture) -> (u8, f64, f64) {
    let values = found.rgb().iter().zip(expected.rgb());
    let differences: Vec<u8> = values.map(|(a, b)| a.abs_diff(*b)).collect();
    let count = differences.len() as f64;
    let sum: f64 = differences.iter().copied().map(f64::from).sum();
    let unequal = differences.iter().filter(|difference| **difference != 0).count() as f64;
    (differences.iter().copied().max().unwrap_or(0), sum / count, unequal / count)
}

#[test]
fn jpeg_is_close_to_pillow() {
    let files = files("jpg");
    assert!(files.len() >= 12, "{} files", files.len());
    let mut failed = Vec::new();
    for (name, encoded) in files {
        let expected = name.replace(".jpg", ".expected.png");
        let expected = decoded(&bytes(&expected)).unwrap();
        let found = decoded(&encoded).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            (found.width(), found.height()),
            (expected.width(), expected.height()),
            "{name}"
        );
        let (largest, mean, share) = differences(&found, &expected);
        println!("{name}: largest {largest}, mean {mean:.3}, {:.1} % differ", share * 100.0);
        if largest > MAX_JPEG_DIFFERENCE || mean > MAX_JPEG_MEAN {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn cut_files_are_refused_or_whole() {
    for name in ["png/rgb8.png", "jpg/420.jpg", "gif/plain.gif", "webp/lossy.webp"] {
        let encoded = bytes(name);
        let whole = decoded(&encoded).unwrap();
        for len in (0..encoded.len()).step_by(encoded.len() / 60 + 1) {
            match decoded(&encoded[..len]) {
                // Only what follows the pixels is missing.
                Ok(picture) => assert_eq!(picture, whole, "{name} cut to {len} bytes"),
                Err(Error::Damaged | Error::UnknownFormat) => {}
                Err(error) => panic!("{name} cut to {len} bytes: {error}"),
            }
        }
    }
}

#[test]
fn a_decoders_words_stay_inside() {
    let words = [
        "the image is damaged or incomplete: encode it again",
        "the image is none of PNG, JPEG, GIF and WebP: convert it to one of them",
    ];
    for name in
        ["png/palette4.png", "jpg/progressive-420.jpg", "gif/local.gif", "webp/lossless.webp"]
    {
        let original = bytes(name);
        for at in 0..original.len().min(200) {
            let mut changed = original.clone();
            changed[at] ^= 0x55;
            if let Err(error) = decoded(&changed) {
                let text = error.to_string();
                let is_ours = words.contains(&text.as_str())
                    || matches!(error, Error::UnsupportedFeature(_))
                    || text.starts_with("the picture is ");
                assert!(is_ours, "{name}, byte {at}: {text}");
            }
        }
    }
}
