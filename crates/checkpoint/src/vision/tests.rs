//! Tests of the descriptions of towers, with the configurations of published models and with changes to them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;
use crate::{Checkpoint, Dtype, spec::NormKind};

mod qwen;

/// The configuration of a golden with one change.
fn changed(golden: &str, change: impl FnOnce(&mut Value)) -> Value {
    let folder = candlepower_testing::goldens::folder(golden);
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let mut config = serde_json::from_str(&config).unwrap();
    change(&mut config);
    config
}

/// A folder with a configuration and the processor's files of a golden.
fn folder(golden: &str, test: &str, config: &Value) -> PathBuf {
    let to = std::env::temp_dir().join(format!("candlepower-vision-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&to).unwrap();
    for name in PROCESSOR_FILES {
        let from = candlepower_testing::goldens::folder(golden).join(name);
        if from.is_file() {
            std::fs::copy(from, to.join(name)).unwrap();
        }
    }
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    to
}

fn open(folder: &Path) -> Checkpoint {
    Checkpoint::open(CheckpointFiles::Folder(folder.to_owned())).unwrap()
}

fn opened(golden: &str, test: &str, change: impl FnOnce(&mut Value)) -> Checkpoint {
    let folder = folder(golden, test, &changed(golden, change));
    let checkpoint = open(&folder);
    std::fs::remove_dir_all(folder).unwrap();
    checkpoint
}

/// The part of Mistral Small 3.1 for images.
fn mistral_small() -> Checkpoint {
    opened("vision_mistral3", "mistral-small", |config| {
        config["vision_config"] = json!({
            "attention_dropout": 0.0, "head_dim": 64, "hidden_act": "silu", "hidden_size": 1024,
            "image_size": 1540, "initializer_range": 0.02, "intermediate_size": 4096,
            "model_type": "pixtral", "num_attention_heads": 16, "num_channels": 3,
            "num_hidden_layers": 24, "patch_size": 14, "rope_theta": 10000.0,
        });
    })
}

/// The part of Gemma 3 for images, as published in the smallest of the models with one.
fn gemma() -> Checkpoint {
    opened("vision_gemma3", "gemma", |config| {
        config["mm_tokens_per_image"] = 256.into();
        config["vision_config"] = json!({
            "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
            "model_type": "siglip_vision_model", "num_attention_heads": 16,
            "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": false,
        });
    })
}

#[test]
fn published_towers_are_read_in_full() {
    let checkpoint = mistral_small();
    let spec = checkpoint.vision().unwrap();
    assert_eq!((spec.layers, spec.width, spec.num_pieces(28, 28)), (24, 1024, 50));
    assert_eq!(
        (spec.layer.head_dim, spec.layer.inner, spec.layer.act),
        (64, 4096, Activation::Silu)
    );
    assert_eq!(spec.patches.positions, PatchPositions::Rope { theta: 1e4 });
    assert_eq!((spec.patches.size, spec.merger.side), (14, 2));
    assert_eq!(spec.patches.limit, PatchLimit::PerSide(110));
    let between = Between { inner: spec.projector.hidden_size, act: Activation::Gelu };
    assert_eq!(spec.projector.between, Some(between));
    assert_eq!(spec.last_norm.unwrap().eps, 1e-5);
    checkpoint.check_keys(&[]).unwrap();
    assert!(checkpoint.remarks().is_empty());
    let checkpoint = gemma();
    let spec = checkpoint.vision().unwrap();
    assert_eq!((spec.layers, spec.width, spec.layer.head_dim), (27, 1152, 72));
    assert_eq!((spec.patches.limit, spec.merger.side), (PatchLimit::PerSide(64), 4));
    assert_eq!(spec.layer.act, Activation::GeluTanh);
    assert_eq!(spec.layer.norm, NormSpec { kind: NormKind::Layer { bias: true }, eps: 1e-6 });
    assert!(spec.both_ways && spec.layer.attention_bias && !spec.layer.gated);
    checkpoint.check_keys(&[]).unwrap();
    // SigLIP so400m with 384 x 384 pixels has 428,225,600 parameters in transformers, of which a pooling head that is not used has
    // 15,238,352. It has as many positions as patches.
    let projector = 1152 * 64 + 1152;
    let positions = (64 * 64 - 27 * 27) * 1152;
    assert_eq!(spec.num_parameters(), 428_225_600 - 15_238_352 + positions + projector);
}

#[test]
fn absent_keys_have_the_defaults_of_transformers() {
    let absent = |config: &mut Value| {
        config["vision_config"] = json!({});
        for key in ["image_token_index", "spatial_merge_size", "projector_hidden_act"] {
            config.as_object_mut().unwrap().remove(key);
        }
        for key in ["vision_feature_layer", "multimodal_projector_bias"] {
            config.as_object_mut().unwrap().remove(key);
        }
    };
    let checkpoint = opened("vision_mistral3", "defaults", absent);
    let spec = checkpoint.vision().unwrap();
    assert_eq!(
        (spec.layers, spec.stored_layers, spec.width, spec.layer.inner),
        (24, 24, 1024, 4096)
    );
    assert_eq!((spec.layer.heads, spec.layer.act), (16, Activation::Gelu));
    assert_eq!((spec.patches.size, spec.most_patches(), spec.merger.side), (16, 64 * 64, 2));
    assert_eq!(spec.patches.positions, PatchPositions::Rope { theta: 1e4 });
    assert_eq!(spec.tokens.placeholder, 10);
    assert!(!spec.projector.bias);
    let absent = |config: &mut Value| {
        config["vision_config"] = json!({"image_size": 256});
        config["text_config"]["vocab_size"] = 262_208.into();
        let config = config.as_object_mut().unwrap();
        let keys =
            ["image_token_index", "boi_token_index", "eoi_token_index", "mm_tokens_per_image"];
        keys.iter().for_each(|key| drop(config.remove(*key)));
    };
    let checkpoint = opened("vision_gemma3", "gemma-defaults", absent);
    let spec = checkpoint.vision().unwrap();
    assert_eq!((spec.layers, spec.width, spec.layer.inner, spec.layer.heads), (12, 768, 3072, 12));
    assert_eq!((spec.patches.size, spec.most_patches(), spec.merger.side), (16, 16 * 16, 1));
    let written = WrittenImage::Begin { begin: 255_999, end: 256_000 };
    let grid = ImageGrid::Fixed(256);
    assert_eq!(spec.tokens, ImageTokens { placeholder: 262_144, written, grid });
}

#[test]
fn both_spellings_of_ids_are_read() {
    let checkpoint = opened("vision_gemma3", "ids", |config| {
        let config = config.as_object_mut().unwrap();
        for (old, new) in [
            ("image_token_index", "image_token_id"),
            ("boi_token_index", "boi_token_id"),
            ("eoi_token_index", "eoi_token_id"),
        ] {
            let id = config.remove(old).unwrap();
            config.insert(new.to_owned(), id);
        }
    });
    let tokens = &checkpoint.vision().unwrap().tokens;
    let written = WrittenImage::Begin { begin: 397, end: 398 };
    assert_eq!((tokens.placeholder, tokens.written), (399, written));
}

#[test]
fn unknown_keys_of_a_tower_are_refused_by_name_unless_it_is_left_out() {
    for golden in ["vision_mistral3", "vision_gemma3", "vision_qwen3_vl", "vision_qwen3_5"] {
        let mut checkpoint = opened(golden, &format!("unknown-{golden}"), |config| {
            config["vision_config"]["warp"] = 2.into();
            // Harmless for texts.
            config["vision_config"]["window_size"] = 7.into();
        });
        let ignored = ["window_size".to_owned()];
        let error = checkpoint.check_keys(&ignored).unwrap_err().to_string();
        assert!(error.contains("`vision_config.warp` = 2 is not known"), "{error}");
        assert!(checkpoint.check_keys(&["warp".to_owned()]).is_err(), "the window counts, too");
        checkpoint.without_vision();
        checkpoint.check_keys(&[]).unwrap();
        assert!(checkpoint.vision().is_none());
    }
}

#[test]
fn unsupported_towers_leave_a_text_model_with_a_remark() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change, &str); 12] = [
        (
            "vision_mistral3",
            |c| c["vision_config"]["model_type"] = "warp".into(),
            "`vision_config.model_type` = \"warp\"",
        ),
        (
            "vision_mistral3",
            |c| c["vision_config"]["hidden_act"] = "warp".into(),
            "`vision_config.hidden_act` = \"warp\"",
        ),
        (
            "vision_mistral3",
            |c| c["vision_config"]["num_channels"] = 4.into(),
            "`vision_config.num_channels` = 4",
        ),
        (
            "vision_mistral3",
            |c| c["vision_config"]["head_dim"] = 99.into(),
            "`vision_config.head_dim` = 99",
        ),
        (
            "vision_mistral3",
            |c| c["vision_config"]["num_attention_heads"] = 5.into(),
            "`vision_config.num_attention_heads` = 5",
        ),
        (
            "vision_mistral3",
            |c| c["vision_config"]["patch_size"] = 4_000_000.into(),
            "`vision_config.patch_size` = 4000000",
        ),
        (
            "vision_mistral3",
            |c| c["vision_config"]["rope_parameters"]["rope_type"] = "yarn".into(),
            "`vision_config.rope_parameters.rope_type` = \"yarn\"",
        ),
        (
            "vision_mistral3",
            |c| c["vision_feature_layer"] = json!([-1, -2]),
            "`vision_feature_layer` = [-1,-2]",
        ),
        (
            "vision_mistral3",
            |c| c["vision_feature_layer"] = (-4).into(),
            "`vision_feature_layer` = -4",
        ),
        ("vision_mistral3", |c| c["image_token_index"] = 340.into(), "`image_token_index` = 340"),
        ("vision_gemma3", |c| c["mm_tokens_per_image"] = 15.into(), "`mm_tokens_per_image` = 15"),
        (
            "vision_gemma3",
            |c| drop(c.as_object_mut().unwrap().remove("vision_config")),
            "`vision_config` is missing",
        ),
    ];
    for (i, (golden, change, expected)) in cases.into_iter().enumerate() {
        let checkpoint = opened(golden, &format!("unsupported-{i}"), change);
        assert!(checkpoint.vision().is_none(), "{expected}");
        let remarks = checkpoint.remarks().join("\n");
        let begins = remarks.starts_with("images are refused: config.json: ");
        assert!(begins && remarks.contains(expected), "{remarks}");
        assert!(checkpoint.may_skip_tensor("vision_tower.any.weight"));
        assert!(checkpoint.image_processor().unwrap().is_none());
    }
}

#[test]
fn models_without_a_processor_refuse_images() {
    let files = candlepower_testing::goldens::folder("mistral3");
    let checkpoint = open(&files);
    assert!(checkpoint.vision().is_none());
    let remarks = checkpoint.remarks().join("\n");
    assert!(
        remarks.starts_with("images are refused: the model has no preprocessor_config.json"),
        "{remarks}"
    );
    let checkpoint = open(&candlepower_testing::goldens::folder("gemma4"));
    let remarks = checkpoint.remarks().join("\n");
    assert!(
        remarks.contains("images are refused: config.json: `vision_config.model_type`"),
        "{remarks}"
    );
}

#[test]
fn processors_that_make_other_pictures_are_refused() {
    type Change = fn(&mut Value);
    let cases: [(&str, &str, Change, &str); 4] = [
        (
            "vision_mistral3",
            PROCESSOR_FILES[1],
            |c| c["patch_size"] = 5.into(),
            "takes multiples of 8",
        ),
        (
            "vision_mistral3",
            PROCESSOR_FILES[0],
            |c| c["size"]["longest_edge"] = 56.into(),
            "takes up to 48",
        ),
        (
            "vision_gemma3",
            PROCESSOR_FILES[0],
            |c| c["size"] = json!({"height": 32, "width": 36}),
            "takes 32 x 32 alone",
        ),
        (
            "vision_gemma3",
            PROCESSOR_FILES[0],
            |c| c["do_pan_and_scan"] = true.into(),
            "preprocessor_config.json: `do_pan_and_scan`",
        ),
    ];
    for (i, (golden, file, change, expected)) in cases.into_iter().enumerate() {
        let folder = folder(golden, &format!("processor-{i}"), &changed(golden, |_| {}));
        let path = folder.join(file);
        let mut settings = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut settings);
        std::fs::write(&path, settings.to_string()).unwrap();
        let checkpoint = open(&folder);
        let error = checkpoint.image_processor().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn ids_between_embeddings_come_from_the_tokenizer() {
    let mut checkpoint = opened("vision_mistral3", "tokens", |_| {});
    let ids = |text: &str| match text {
        "[IMG]" => Some(10),
        "[IMG_BREAK]" => Some(12),
        "[IMG_END]" => Some(13),
        _ => None,
    };
    checkpoint.set_image_tokens(&ids).unwrap();
    let found = checkpoint.vision().unwrap().tokens.ids(24, 16);
    assert_eq!(found, [10, 10, 10, 12, 10, 10, 10, 13]);
    let error = checkpoint.set_image_tokens(&|text| ids(text).filter(|id| *id != 12));
    assert!(error.unwrap_err().to_string().contains("no token \"[IMG_BREAK]\""));
    let error = checkpoint.set_image_tokens(&|text| ids(text).map(|id| id + 1));
    assert!(error.unwrap_err().to_string().contains("has the id 11 in the tokenizer and 10"));
}

#[test]
fn a_piece_costs_as_many_tokens_as_its_work() {
    let checkpoint = gemma();
    let spec = checkpoint.vision().unwrap();
    // A decoder with about as many weights as one layer of the tower, so that a token costs about as much as a patch.
    let mut decoder = checkpoint.spec().clone();
    let layer = 4.0 * 1152.0 * 1152.0 + 2.0 * 1152.0 * 4304.0;
    let width = decoder.hidden_size;
    let cost = spec.tokens_per_piece(896, 896, &decoder) as f64;
    // 4,096 patches in groups of 512, to be embedded, and twice in each layer; 16 rows of cells in pairs.
    let pieces = spec.num_pieces(896, 896);
    assert_eq!(pieces, 8 + 27 * 16 + 8);
    let of_decoder: usize = decoder
        .slots()
        .filter(|(layer, _, shape)| layer.is_some() && shape.len() == 2)
        .map(|(.., shape)| shape.iter().product::<usize>())
        .sum();
    let work = 27.0 * 4096.0 * (layer + 2.0 * 4096.0 * 1152.0)
        + (4096.0 * 3.0 * 14.0 * 14.0 * 1152.0 + 256.0 * (1152 * width) as f64);
    assert_eq!(cost, (work / f64::from(pieces) / of_decoder as f64).ceil());
    decoder.layers.truncate(2);
    assert!(spec.tokens_per_piece(896, 896, &decoder) as f64 > 1.9 * cost);
    let small = mistral_small();
    let spec = small.vision().unwrap();
    let costs = [(28, 28), (1540, 28), (1540, 1540)]
        .map(|(width, height)| spec.tokens_per_piece(width, height, small.spec()));
    assert!(costs[0] >= 1 && costs[1] > 25 * costs[0] && costs[2] > costs[1], "{costs:?}");
}

#[test]
fn pieces_cover_each_part_in_order() {
    for (spec, sizes) in [
        (mistral_small().vision().unwrap().clone(), vec![(28, 28), (1540, 28), (1540, 1540)]),
        (gemma().vision().unwrap().clone(), vec![(896, 896)]),
    ] {
        for (width, height) in sizes {
            let (rows, columns) = spec.patch_grid(width, height);
            let pieces: Vec<TowerPiece> = spec.pieces(rows, columns).collect();
            assert_eq!(pieces.len() as u32, spec.num_pieces(width, height));
            let mut parts = Vec::new();
            let mut next = 0;
            for piece in pieces {
                assert!(piece.first == next && (1..=512).contains(&piece.rows), "{piece:?}");
                next = piece.first + piece.rows;
                assert_eq!(piece.ends_part, next == rows * columns, "{piece:?}");
                if piece.part == TowerPart::Merge {
                    assert!(next.is_multiple_of(spec.merger.side * columns), "{piece:?}");
                }
                if piece.ends_part {
                    parts.push(piece.part);
                    next = 0;
                }
            }
            let of_layer = |layer| [TowerPart::Project { layer }, TowerPart::Attend { layer }];
            let layers = (0..spec.layers).flat_map(of_layer);
            assert!(
                [TowerPart::Embed]
                    .into_iter()
                    .chain(layers)
                    .eq(parts[..parts.len() - 1].iter().copied())
            );
            assert_eq!(parts.last(), Some(&TowerPart::Merge));
        }
    }
}

#[test]
fn the_memory_plan_counts_the_tower() {
    let mut checkpoint = mistral_small();
    let spec = checkpoint.vision().unwrap().clone();
    // 16 bits for each weight, but for norms.
    let bytes = spec.weight_bytes(Dtype::Bf16);
    let matrices = 2 * spec.num_parameters();
    assert!((matrices..matrices + (1 << 20)).contains(&bytes), "{bytes}");
    let with = checkpoint.weight_bytes(Some(Dtype::Bf16));
    let run = spec.activation_bytes(spec.most_patches(), Dtype::Bf16);
    assert!(run > 110 * 110 * 1024 * 4 * 4, "queries, keys, values and hidden states");
    let images = crate::ImageMemory { waiting_bytes: 100 << 20, encoder_cache_bytes: 200 << 20 };
    let request = crate::MemoryRequest {
        weights: Dtype::Bf16,
        kv: crate::KvDtype::Plain(Dtype::Bf16),
        max_model_len: 4096,
        block_size: 16,
        max_num_seqs: 1,
        max_num_batched_tokens: None,
        kv_cache_bytes: None,
        tensor_parallel_size: 1,
        images,
        memory: crate::DeviceMemory {
            device: crate::DeviceKind::Cpu,
            available_bytes: None,
            counted: crate::Counted::BeforeLoading,
        },
    };
    let plan = crate::MemoryPlan::new(checkpoint.spec(), request);
    // Embeddings of 256 KiB are the largest picture then.
    let images = crate::ImageMemory { encoder_cache_bytes: 1 << 18, ..images };
    let small =
        crate::MemoryPlan::new(checkpoint.spec(), crate::MemoryRequest { images, ..request });
    let cells = (1 << 18) / (4 * spec.projector.hidden_size);
    let patches = cells * spec.merger.side * spec.merger.side;
    assert!(patches < spec.most_patches());
    let saved = run - spec.activation_bytes(patches, Dtype::Bf16);
    assert_eq!(plan.activation_bytes - small.activation_bytes, saved);
    checkpoint.without_vision();
    let without = crate::MemoryPlan::new(checkpoint.spec(), request);
    assert_eq!(plan.weights_bytes - without.weights_bytes, bytes);
    assert_eq!(plan.activation_bytes - without.activation_bytes, run);
    assert_eq!((plan.image_bytes, without.image_bytes), (300 << 20, 0));
    assert_eq!(plan.needed_bytes - without.needed_bytes, bytes + run + (300 << 20));
    assert_eq!(with - checkpoint.weight_bytes(Some(Dtype::Bf16)), bytes);
}
