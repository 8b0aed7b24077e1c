//! Resized pictures against Pillow's.

use candlepower_media::{Filter, Limits, resize};

use crate::support::{digest, formula, json, pair};

fn filter(name: &str) -> Filter {
    match name {
        "lanczos" => Filter::Lanczos,
        "bilinear" => Filter::Bilinear,
        "bicubic" => Filter::Bicubic,
        other => panic!("{other} is no filter"),
    }
}

#[test]
fn resizing_equals_pillow() {
    let expected = json("resized.json");
    let expected = expected.as_array().unwrap();
    assert!(expected.len() >= 50, "{} pictures", expected.len());
    for case in expected {
        let ((width, height), size) = (pair(&case[0]), pair(&case[1]));
        let name = case[2].as_str().unwrap();
        let picture = formula(width, height);
        let found = resize(&picture, size, filter(name), &Limits::default()).unwrap();
        assert_eq!((found.width(), found.height()), size);
        assert_eq!(digest(found.rgb()), case[3], "{width} x {height} to {size:?}, {name}");
    }
}
