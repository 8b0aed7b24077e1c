//! Pixel tensors against those of transformers' processors with `backend="pil"`.

use std::collections::HashSet;

use candlepower_media::{
    Detail, Error, ErrorKind, Family, ImageDigest, Layout, Limits, Picture, Processor,
};
use serde_json::{Value, json as object};

use crate::support::{bytes, decoded, digest, formula, json, pair};

fn family(name: &str) -> Family {
    match name {
        "gemma3" => Family::Gemma3,
        "pixtral" => Family::Pixtral,
        "qwen2-vl" => Family::Qwen2Vl,
        other => panic!("{other} is no family"),
    }
}

fn picture(source: &Value) -> Picture {
    match source.as_str() {
        Some(file) => decoded(&bytes(file)).unwrap(),
        None => {
            let (width, height) = pair(source);
            formula(width, height)
        }
    }
}

/// Compares one tensor with `[source, detail, shape, digest, samples]`.
fn check(name: &str, processor: &Processor, case: &Value) {
    let what = format!("{name}: {} in detail {}", case[0], case[1]);
    let detail: Detail = case[1].as_str().unwrap().parse().unwrap();
    let processed = processor.process(&picture(&case[0]), detail, &Limits::default());
    let Some(shape) = case[2].as_array() else {
        let refused = processed.map(|_| ()).map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::Invalid), "{what}");
        return;
    };
    let processed = processed.unwrap_or_else(|error| panic!("{what}: {error}"));
    let values = processed.values();
    let (height, width) = (processed.pixels().height(), processed.pixels().width());
    let found = match processed.layout() {
        Layout::Channels => vec![3, height, width],
        Layout::Patches { patch, temporal, .. } => {
            let (rows, columns) = processed.grid().unwrap();
            vec![rows * columns, 3 * temporal * patch * patch]
        }
    };
    assert_eq!(object!(found), object!(shape), "{what}");
    assert_eq!(values.len() * 4, processed.value_bytes(), "{what}");
    assert!(processed.bytes() < processed.value_bytes() / 4 + 1024, "{what}");
    // Samples first: they say more than a digest.
    let samples: String = (0..64)
        .map(|index| values[index * values.len() / 64].to_le_bytes())
        .flat_map(|bytes| bytes.map(|byte| format!("{byte:02x}")))
        .collect();
    assert_eq!(samples, case[4], "{what}");
    let all: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(digest(&all), case[3], "{what}");
}

fn check_family(name: &str) {
    let cases = json("processed.json");
    let of_family = cases.as_array().unwrap().iter().filter(|case| case["family"] == name);
    let mut count = 0;
    for case in of_family {
        let [config, processor] =
            [0, 1].map(|index| case["files"][index].as_str().unwrap().as_bytes());
        let processor = Processor::read(family(name), Some(config), Some(processor)).unwrap();
        for tensor in case["tensors"].as_array().unwrap() {
            check(case["name"].as_str().unwrap(), &processor, tensor);
            count += 1;
        }
    }
    assert!(count >= 38, "{count} tensors");
}

#[test]
fn gemma3_equals_transformers() {
    check_family("gemma3");
}

#[test]
fn pixtral_equals_transformers() {
    check_family("pixtral");
}

#[test]
fn qwen2_vl_equals_transformers() {
    check_family("qwen2-vl");
}

fn read(family: Family, config: Value) -> Result<Processor, Error> {
    Processor::read(family, Some(config.to_string().as_bytes()), None)
}

#[test]
fn settings_that_change_pixels_are_refused_by_name() {
    let size = object!({"height": 56, "width": 56});
    for (family, config, key) in [
        (Family::Gemma3, object!({"size": size, "do_pan_and_scan": true}), "do_pan_and_scan"),
        (Family::Gemma3, object!({"size": size, "do_blur": 3}), "do_blur"),
        (Family::Gemma3, object!({"size": size, "do_center_crop": true}), "do_center_crop"),
        (Family::Gemma3, object!({"size": size, "do_rescale": false}), "do_rescale"),
        (Family::Gemma3, object!({"size": size, "resample": 0}), "resample"),
        (Family::Gemma3, object!({"size": {"shortest_edge": 56}}), "size.shortest_edge"),
        (Family::Gemma3, object!({"size": {"height": 0, "width": 5}}), "size.height"),
        (Family::Gemma3, object!({"size": {"height": 9, "width": 1e9}}), "size.width"),
        (Family::Gemma3, object!({"image_std": [0.5, 0, 0.5]}), "image_std"),
        (Family::Gemma3, object!({"image_mean": [0.5, 0.5]}), "image_mean"),
        (
            Family::Gemma3,
            object!({"image_processor_type": "SiglipImageProcessor"}),
            "image_processor_type",
        ),
        (Family::Gemma3, object!({"auto_map": {"AutoImageProcessor": "x.Y"}}), "auto_map"),
        (Family::Pixtral, object!({"size": {"longest_edge": 9, "height": 3}}), "size.height"),
        (Family::Pixtral, object!({"merge_size": 2}), "merge_size"),
        (Family::Qwen2Vl, object!({"patch_size": -1}), "patch_size"),
        (Family::Qwen2Vl, object!({"max_pixels": 1_u64 << 60}), "max_pixels"),
        (Family::Qwen2Vl, object!({"size": {"height": 9, "width": 9}}), "size.height"),
    ] {
        match read(family, config.clone()) {
            Err(Error::Setting { key: found, .. }) => assert_eq!(found, key, "{config}"),
            other => panic!("{config}: {other:?}"),
        }
    }
    let nulls =
        object!({"do_blur": null, "do_pan_and_scan": null, "crop_size": 7, "device": "cpu"});
    assert!(read(Family::Gemma3, nulls).is_ok());
    assert_eq!(Processor::read(Family::Gemma3, None, None), Err(Error::NoSettings));
    let broken = Processor::read(Family::Gemma3, Some(b"[]"), None);
    assert_eq!(broken, Err(Error::BadSettings("preprocessor_config.json")));
}

#[test]
fn nested_settings_go_first() {
    let nested = object!({"image_processor": {"size": {"height": 28, "width": 42}}}).to_string();
    let plain = object!({"size": 9}).to_string();
    let (nested, plain) = (Some(nested.as_bytes()), Some(plain.as_bytes()));
    for (config, processor, size) in
        [(plain, nested, (42, 28)), (None, nested, (42, 28)), (plain, Some(&b"{}"[..]), (9, 9))]
    {
        let processor = Processor::read(Family::Gemma3, config, processor).unwrap();
        assert_eq!(processor.size(100, 7, Detail::Full), Ok(size));
    }
}

#[test]
fn digests_cover_pixels_sizes_settings_and_detail() {
    let limits = Limits::default();
    let rgb = |value: u8| vec![value; 600 * 40 * 3];
    let pictures = [
        Picture::new(600, 40, rgb(1)).unwrap(),
        Picture::new(40, 600, rgb(1)).unwrap(),
        Picture::new(600, 40, rgb(2)).unwrap(),
    ];
    let settings = [
        object!({"size": 56}),
        object!({"size": 64}),
        object!({"size": 56, "resample": 3}),
        object!({"size": 56, "image_mean": 0.4}),
        object!({"size": 56, "image_std": 0.4}),
        object!({"size": 56, "rescale_factor": 0.5}),
    ];
    let mut processors: Vec<Processor> =
        settings.into_iter().map(|config| read(Family::Gemma3, config).unwrap()).collect();
    let within = object!({"size": {"longest_edge": 56}});
    processors.push(read(Family::Pixtral, within).unwrap());
    for config in [object!({}), object!({"merge_size": 3}), object!({"temporal_patch_size": 1})] {
        processors.push(read(Family::Qwen2Vl, config).unwrap());
    }
    let mut digests: HashSet<ImageDigest> = HashSet::new();
    for picture in &pictures {
        for processor in &processors {
            for detail in [Detail::Full, Detail::Low] {
                let processed = processor.process(picture, detail, &limits).unwrap();
                assert!(digests.insert(processed.digest()), "{processor:?} {detail:?}");
                let again = processor.process(&picture.clone(), detail, &limits).unwrap();
                assert_eq!(again.digest(), processed.digest());
            }
        }
    }
    assert_eq!(digests.len(), pictures.len() * processors.len() * 2);
}
