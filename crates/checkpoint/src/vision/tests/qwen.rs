//! Qwen's towers: published configurations, names of tensors, and what is refused.

use super::*;

/// The tower of Qwen3-VL, as published in the dense models of 8B and 32B but for the decoder's width, which is the golden's.
fn tower() -> Value {
    json!({
        "deepstack_visual_indexes": [8, 16, 24], "depth": 27, "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 1152, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 4304,
        "model_type": "qwen3_vl", "num_heads": 16, "num_position_embeddings": 2304,
        "out_hidden_size": 64, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
    })
}

/// The golden's decoder with that tower.
fn published(test: &str) -> Checkpoint {
    opened("vision_qwen3_vl", test, |config| config["vision_config"] = tower())
}

#[test]
fn published_towers_are_read_in_full() {
    let checkpoint = published("qwen");
    let spec = checkpoint.vision().unwrap();
    assert_eq!((spec.layers, spec.width, spec.layer.head_dim), (27, 1152, 72));
    assert_eq!((spec.layer.inner, spec.layer.act), (4304, Activation::GeluTanh));
    assert_eq!(spec.patches.positions, PatchPositions::TableAndRope { side: 48, theta: 1e4 });
    assert_eq!(spec.patches.order, PatchOrder::Cells { frames: 2 });
    assert_eq!((spec.patches.values(), spec.merged_width()), (3 * 2 * 16 * 16, 4608));
    assert_eq!(spec.projector.between, Some(Between { inner: 4608, act: Activation::Gelu }));
    assert_eq!(spec.deepstack, [8, 16, 24]);
    assert!(spec.grid_positions && !spec.both_ways);
    checkpoint.check_keys(&[]).unwrap();
    assert!(checkpoint.remarks().is_empty());
    // By hand: patches, positions, layers, and four mergers, of which one norms patches.
    let layer = 4 * 1152 * 1152 + 4 * 1152 + 2 * 1152 * 4304 + 4304 + 1152 + 4 * 1152;
    let merger = 4608 * 4608 + 4608 + 4608 * 64 + 64;
    let count = 1536 * 1152 + 1152 + 2304 * 1152 + 27 * layer + 4 * merger;
    assert_eq!(spec.num_parameters(), count + 2 * 1152 + 3 * 2 * 4608);
}

#[test]
fn absent_keys_have_the_defaults_of_transformers() {
    let absent = |config: &mut Value| {
        config["vision_config"] = json!({"out_hidden_size": 64});
        config["text_config"]["vocab_size"] = 250_000.into();
        drop(config.as_object_mut().unwrap().remove("image_token_id"));
    };
    let checkpoint = opened("vision_qwen3_vl", "qwen-defaults", absent);
    let mut spec = checkpoint.vision().unwrap().clone();
    assert_eq!(spec.tokens.placeholder, 151_655);
    let mut expected = published("qwen-written").vision().unwrap().clone();
    expected.tokens.placeholder = 151_655;
    assert_eq!(spec, expected);
    let checkpoint = opened("vision_qwen3_5", "qwen3_5-defaults", absent);
    assert_eq!(checkpoint.vision().unwrap().tokens.placeholder, 248_056);
    // Nothing else differs.
    spec.deepstack.clear();
    spec.tokens.placeholder = 248_056;
    assert_eq!(checkpoint.vision().unwrap(), &spec);
}

/// The classes with experts have the same towers under other names of their kinds.
#[test]
fn towers_of_models_with_experts_are_those_of_dense_ones() {
    let dense = published("qwen-dense");
    for kind in ["qwen3_vl_moe", "qwen3_vl_moe_vision"] {
        let change = |config: &mut Value| {
            config["vision_config"] = tower();
            config["vision_config"]["model_type"] = kind.into();
        };
        let experts = opened("vision_qwen3_vl_moe", &format!("qwen-{kind}"), change);
        assert_eq!(experts.vision(), dense.vision());
    }
    let dense = opened("vision_qwen3_5", "qwen3_5-dense", |_| {});
    let experts = opened("vision_qwen3_5", "qwen3_5-experts", |config| {
        config["architectures"] = json!(["Qwen3_5MoeForConditionalGeneration"]);
        config["vision_config"]["model_type"] = "qwen3_5_moe".into();
        config["vision_config"]["deepstack_visual_indexes"] = json!([]);
        let text = config["text_config"].as_object_mut().unwrap();
        let sizes = ["moe_intermediate_size", "shared_expert_intermediate_size"];
        sizes.iter().for_each(|key| drop(text.insert((*key).to_owned(), 32.into())));
        text.insert("num_experts".to_owned(), 4.into());
        text.insert("num_experts_per_tok".to_owned(), 2.into());
    });
    assert_eq!(experts.vision(), dense.vision());
    experts.check_keys(&[]).unwrap();
}

#[test]
fn unsupported_towers_leave_a_text_model_with_a_remark() {
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 10] = [
        (|c| c["vision_config"]["model_type"] = "warp".into(), "`vision_config.model_type`"),
        (|c| c["vision_config"]["num_heads"] = 3.into(), "`vision_config.num_heads` = 3"),
        (|c| c["vision_config"]["num_heads"] = 8.into(), "`vision_config.num_heads` = 8"),
        (|c| c["vision_config"]["in_channels"] = 4.into(), "`vision_config.in_channels` = 4"),
        (
            |c| c["vision_config"]["num_position_embeddings"] = 80.into(),
            "`vision_config.num_position_embeddings` = 80",
        ),
        (
            |c| c["vision_config"]["out_hidden_size"] = 32.into(),
            "`vision_config.out_hidden_size` = 32",
        ),
        (
            |c| c["vision_config"]["deepstack_visual_indexes"] = json!([2, 0]),
            "`vision_config.deepstack_visual_indexes` = [2,0]",
        ),
        (
            |c| c["vision_config"]["deepstack_visual_indexes"] = json!([0, 3]),
            "`vision_config.deepstack_visual_indexes` = [0,3]",
        ),
        (
            |c| {
                c["vision_config"].as_object_mut().unwrap().remove("deepstack_visual_indexes");
            },
            "`vision_config.deepstack_visual_indexes` = [8,16,24]",
        ),
        (
            |c| c["text_config"]["rope_scaling"]["mrope_interleaved"] = false.into(),
            "`text_config.rope_scaling.mrope_interleaved` = false",
        ),
    ];
    for (i, (change, expected)) in cases.into_iter().enumerate() {
        let checkpoint = opened("vision_qwen3_vl", &format!("qwen-unsupported-{i}"), change);
        assert!(checkpoint.vision().is_none(), "{expected}");
        let remarks = checkpoint.remarks().join("\n");
        assert!(remarks.contains(expected), "{remarks}");
        assert!(checkpoint.may_skip_tensor("visual.any.weight"));
    }
}

#[test]
fn processors_that_make_other_patches_are_refused() {
    for (key, value) in [("patch_size", 5), ("merge_size", 1), ("temporal_patch_size", 1)] {
        let test = format!("qwen-processor-{key}");
        let folder = folder("vision_qwen3_vl", &test, &changed("vision_qwen3_vl", |_| {}));
        let path = folder.join(PROCESSOR_FILES[0]);
        let mut settings: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        settings[key] = value.into();
        std::fs::write(&path, settings.to_string()).unwrap();
        let error = open(&folder).image_processor().unwrap_err().to_string();
        let taken = "the model takes patches of 4 x 4 pixels and 2 frames in cells of 2 x 2";
        assert!(error.contains(taken), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

/// The largest picture is bounded by the processor's area, and by the context.
#[test]
fn pictures_are_bounded_by_their_area() {
    let golden = candlepower_testing::goldens::folder("vision_qwen3_vl");
    let checkpoint = open(&golden);
    let spec = checkpoint.vision().unwrap();
    let processor = checkpoint.image_processor().unwrap().unwrap();
    let mut largest = 0;
    for (width, height) in [(1, 1), (1, 200), (4000, 20), (999, 999), (52, 54), (1, 190)] {
        let (width, height) =
            processor.size(width, height, Detail::Full).expect("the sides differ by at most 200");
        let (rows, columns) = spec.patch_grid(width, height);
        largest = largest.max(rows * columns);
        assert!(rows * columns <= spec.most_patches(), "{rows} x {columns}");
        let (cell_rows, cell_columns) = spec.cell_grid(width, height);
        assert_eq!((2 * cell_rows, 2 * cell_columns), (rows, columns));
    }
    // Not much less than the bound.
    assert!(4 * largest > spec.most_patches(), "{largest}, {}", spec.most_patches());
    assert_eq!(spec.most_patches_within(10), 40);
    assert_eq!(spec.most_patches_within(usize::MAX), spec.most_patches());
}
