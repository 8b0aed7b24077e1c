//! Configurations as the hub has them, what each means, and what is refused.

use candlepower_layout::{ActivationScales, MatrixForm};

use super::*;
use crate::{Checkpoint, CheckpointFiles, DeviceKind, Take, TensorPlan};

fn parse(text: &str) -> Result<Quantization> {
    // The section has a name, so that errors must name the whole path of a key.
    let config = HfConfig::parse("config.json", format!("{{\"q\": {text}}}").as_bytes()).unwrap();
    Quantization::parse(&config.section("q").unwrap().unwrap(), None)
}

fn scheme(text: &str) -> Scheme {
    parse(text).unwrap().scheme.unwrap()
}

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

fn names_and_shapes(scheme: Scheme, n: usize, k: usize) -> Vec<(String, Vec<Vec<usize>>)> {
    let tensors = scheme.tensors("a.b.weight", n, k).unwrap();
    tensors.into_iter().map(|tensor| (tensor.name, tensor.shapes)).collect()
}

const AWQ: &str = r#"{"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm",
    "zero_point": true, "modules_to_not_convert": null}"#;
const GPTQ: &str = r#"{"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true,
    "sym": true, "damp_percent": 0.01, "true_sequential": true}"#;
const COMPRESSED: &str = r#"{"quant_method": "compressed-tensors", "format": "float-quantized",
    "quantization_status": "compressed", "ignore": ["lm_head", "re:.*\\.o_proj$"], "config_groups": {"group_0": {
        "targets": ["Linear"], "input_activations": {"dynamic": true, "num_bits": 8, "strategy": "token", "type": "float"},
        "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true}}}}"#;

/// The configuration of google/gemma-4-12B-it-qat-w4a16-ct.
const INTS: &str = r#"{"quant_method": "compressed-tensors", "format": "pack-quantized",
    "quantization_status": "compressed", "ignore": ["lm_head"], "kv_cache_scheme": null, "config_groups": {"group_0": {
        "targets": ["Linear"], "input_activations": null, "output_activations": null,
        "weights": {"actorder": null, "block_structure": null, "dynamic": false, "group_size": 32, "num_bits": 4,
            "observer": "minmax", "strategy": "group", "symmetric": true, "type": "int"}}}}"#;

#[test]
fn compressed_tensors_packs_inputs() {
    let ints = scheme(INTS);
    let expected = [
        ("a.b.weight_packed".to_owned(), vec![vec![64, 32]]),
        ("a.b.weight_scale".to_owned(), vec![vec![64, 8]]),
    ];
    assert_eq!(names_and_shapes(ints, 64, 256), expected);
    let scales = ScaleForm { dtype: Dtype::Bf16, offsets: OffsetForm::ZeroPoint(8), blocks: None };
    assert_eq!(ints.packed(256), Packed { scales, ..Packed::by_group(QuantFormat::U4, 32) });
    let whole = parse(INTS).unwrap();
    assert!(whole.may_skip("a.b.weight_shape") && whole.may_skip("a.b.weight_zero_point"));

    // With zero points, of inputs that are spread over groups.
    let spread = INTS.replace("\"symmetric\": true", "\"symmetric\": false");
    let spread = spread.replace("\"actorder\": null", "\"actorder\": \"group\"");
    let expected = [
        ("a.b.weight_zero_point".to_owned(), vec![vec![8, 8]]),
        ("a.b.weight_g_idx".to_owned(), vec![vec![256]]),
    ];
    // Zero-points of eight outputs share a word, and each group has its own: 64 / 8 by 256 / 32.
    assert_eq!(names_and_shapes(scheme(&spread), 64, 256)[2..], expected);
    let packed = scheme(&spread).packed(256);
    assert_eq!((packed.scales.offsets, packed.reordered), (OffsetForm::ZeroPoints, true));
    assert!(!parse(&spread).unwrap().may_skip("a.b.weight_zero_point"));
    let error = scheme(&spread).tensors("a.b.weight", 60, 256).unwrap_err().to_string();
    assert!(error.contains("a.b has 60 outputs, which the quantization packs in units of 8"));
    // The order in which columns were quantized changes nothing.
    let weighed = INTS.replace("\"actorder\": null", "\"actorder\": \"weight\"");
    assert_eq!(scheme(&weighed), ints);
    assert_eq!(scheme(&INTS.replace("\"actorder\": null", "\"actorder\": false")), ints);
    for beside in ["a.self_attn.k_scale", "a.b.input_zero_point", "a.b.input_scale"] {
        assert!(whole.may_skip(beside), "{beside}");
    }
    assert!(!whole.may_skip("a.b.weight_scale"));

    // A byte each, whose activations others round, too.
    let bytes = INTS
        .replace("pack-quantized", "int-quantized")
        .replace("\"num_bits\": 4", "\"num_bits\": 8");
    let bytes = bytes.replace("\"strategy\": \"group\"", "\"strategy\": \"channel\"");
    let expected = [
        ("a.b.weight".to_owned(), vec![vec![60, 250]]),
        ("a.b.weight_scale".to_owned(), vec![vec![60, 1]]),
    ];
    assert_eq!(names_and_shapes(scheme(&bytes), 60, 250), expected);
    let scales =
        ScaleForm { dtype: Dtype::Bf16, offsets: OffsetForm::ZeroPoint(128), blocks: None };
    let packed = Packed { scales, ..Packed::by_group(QuantFormat::U8, 250) };
    assert_eq!(scheme(&bytes).packed(250), packed);
    assert!(parse(&bytes).unwrap().may_skip("a.b.input_scale"));
}

#[test]
fn awq_packs_outputs() {
    let awq = scheme(AWQ);
    let expected = [
        ("a.b.qweight".to_owned(), vec![vec![256, 8]]),
        // Two groups of 128 inputs; eight outputs share a word.
        ("a.b.qzeros".to_owned(), vec![vec![2, 8]]),
        ("a.b.scales".to_owned(), vec![vec![2, 64]]),
    ];
    assert_eq!(names_and_shapes(awq, 64, 256), expected);
    let packed = |dtype| Packed {
        scales: ScaleForm { dtype, offsets: OffsetForm::ZeroPoints, blocks: None },
        ..Packed::by_group(QuantFormat::U4, 128)
    };
    assert_eq!(awq.packed(256), packed(Dtype::F16));
    let mut as_stored = awq;
    let (scales, name) = as_stored.scales_mut("a.b.weight").unwrap();
    assert_eq!(name, "a.b.scales");
    *scales = Dtype::Bf16;
    assert_eq!(as_stored.packed(256), packed(Dtype::Bf16));
    // AutoAWQ's older spelling.
    let old = r#"{"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "version": "GEMM"}"#;
    assert_eq!(scheme(old), awq);
    assert_eq!(
        awq.tensors("a.b.weight", 60, 256).unwrap_err().to_string(),
        "config.json: a.b has 60 outputs, which the quantization packs in units of 8; \
         list it in modules_to_not_convert if it is stored unquantized"
    );
}

#[test]
fn gptq_packs_inputs_and_orders_them() {
    let gptq = scheme(GPTQ);
    let expected = [
        ("a.b.qweight".to_owned(), vec![vec![32, 64]]),
        ("a.b.qzeros".to_owned(), vec![vec![2, 8]]),
        ("a.b.scales".to_owned(), vec![vec![2, 64]]),
        ("a.b.g_idx".to_owned(), vec![vec![256]]),
    ];
    assert_eq!(names_and_shapes(gptq, 64, 256), expected);
    let scales = ScaleForm { dtype: Dtype::F16, offsets: OffsetForm::ZeroPoints, blocks: None };
    let packed = |format, group| Packed { scales, ..Packed::by_group(format, group) };
    assert_eq!(gptq.packed(256), Packed { reordered: true, ..packed(QuantFormat::U4, 128) });
    // One group has no order.
    assert_eq!(gptq.packed(64), packed(QuantFormat::U4, 64));
    let whole = scheme(
        &GPTQ
            .replace("128", "-1")
            .replace("\"bits\": 4", "\"bits\": 8, \"checkpoint_format\": \"gptq_v2\""),
    );
    assert_eq!(whole.packed(256), packed(QuantFormat::U8, 256));
    let Scheme::Gptq(whole) = whole else { panic!("{whole:?}") };
    assert_eq!(whole.zero_offset, 0);
}

#[test]
fn fp8_has_scales_per_tensor_output_or_block() {
    let any = scheme(r#"{"quant_method": "fp8", "activation_scheme": "static"}"#);
    let shapes = vec![vec![], vec![1], vec![64], vec![64, 1]];
    assert_eq!(names_and_shapes(any, 64, 96)[1], ("a.b.weight_scale".to_owned(), shapes));
    let block = scheme(
        r#"{"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}"#,
    );
    // Ministral 3 has it.
    let of_transformers = scheme(
        r#"{"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": null}"#,
    );
    assert_eq!(names_and_shapes(of_transformers, 64, 96)[1].0, "a.b.weight_scale_inv");
    let expected = ("a.b.weight_scale_inv".to_owned(), vec![vec![2, 3]]);
    assert_eq!(names_and_shapes(block, 200, 300)[1], expected);
    assert_eq!(block.packed(300).group, 128);
    let compressed = parse(COMPRESSED).unwrap();
    assert_eq!(compressed.method, "fp8");
    assert_eq!(
        names_and_shapes(compressed.scheme.unwrap(), 64, 96),
        names_and_shapes(any, 64, 96)[..2]
    );
}

#[test]
fn activations_are_rounded_as_the_checkpoint_says() {
    let of = |text: &str| scheme(text).packed(256).activations;
    let fp8 = |rest: &str| of(&format!(r#"{{"quant_method": "fp8"{rest}}}"#));
    let blocks = r#", "weight_block_size": [128, 64]"#;
    assert_eq!(fp8(r#", "activation_scheme": "static""#), Some(ActivationScales::Fixed));
    assert_eq!(fp8(r#", "activation_scheme": "dynamic""#), Some(ActivationScales::Row));
    // transformers' own default.
    assert_eq!(fp8(blocks), Some(ActivationScales::Group(64)));
    let error = parse(r#"{"quant_method": "fp8", "activation_scheme": "none"}"#).unwrap_err();
    assert!(error.to_string().contains("activation_scheme"), "{error}");

    let compressed = |activations: &str| {
        let written = r#"{"dynamic": true, "num_bits": 8, "strategy": "token", "type": "float"}"#;
        parse(&COMPRESSED.replace(written, activations))
    };
    let scales = |activations: &str| {
        compressed(activations).unwrap().scheme.unwrap().packed(256).activations
    };
    assert_eq!(of(COMPRESSED), Some(ActivationScales::Row));
    assert_eq!(scales("null"), None);
    for (rest, expected) in [
        (r#""dynamic": true, "strategy": "tensor""#, ActivationScales::Row),
        (
            r#""dynamic": true, "strategy": "group", "group_size": 128"#,
            ActivationScales::Group(128),
        ),
        (r#""dynamic": false, "strategy": "tensor", "symmetric": true"#, ActivationScales::Fixed),
        (r#""strategy": "tensor""#, ActivationScales::Fixed),
    ] {
        let text = format!(r#"{{"num_bits": 8, "type": "float", {rest}}}"#);
        assert_eq!(scales(&text), Some(expected), "{rest}");
    }
    for (rest, key) in [
        (r#""num_bits": 4, "type": "float""#, "num_bits"),
        (r#""num_bits": 8, "type": "int""#, "type"),
        (r#""num_bits": 8"#, "type"),
        (r#""num_bits": 8, "type": "float", "strategy": "channel""#, "strategy"),
        (r#""num_bits": 8, "type": "float", "symmetric": false"#, "symmetric"),
        (
            r#""num_bits": 8, "type": "float", "dynamic": true, "strategy": "group", "group_size": 0"#,
            "group_size",
        ),
    ] {
        let error = compressed(&format!("{{{rest}}}")).unwrap_err().to_string();
        assert!(error.contains(&format!("input_activations.{key}")), "{rest}: {error}");
    }
    // Fixed scales have a tensor for each matrix, and no other tensor may have their name.
    let fixed = scheme(r#"{"quant_method": "fp8", "activation_scheme": "static"}"#);
    let names: Vec<_> = names_and_shapes(fixed, 64, 96).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[2..], ["a.b.input_scale", "a.b.activation_scale"]);
    assert!(!parse(COMPRESSED).unwrap().may_skip("a.b.input_scale"));
    assert!(parse(INTS).unwrap().may_skip("a.b.input_scale"));
}

/// A configuration that compressed-tensors writes.
const NVFP4: &str = r#"{"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
    "quantization_status": "compressed", "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"],
        "input_activations": {"dynamic": "local", "group_size": 16, "num_bits": 4, "strategy": "tensor_group", "type": "float"},
        "weights": {"dynamic": false, "group_size": 16, "num_bits": 4, "strategy": "tensor_group", "symmetric": true,
            "type": "float"}}}}"#;

#[test]
fn nvfp4_has_scales_of_sixteen_and_a_number_for_all() {
    let tensors = |[quants, of_all]: [&str; 2]| {
        [
            (format!("a.b.{quants}"), vec![vec![64, 128]]),
            ("a.b.weight_scale".to_owned(), vec![vec![64, 16]]),
            (format!("a.b.{of_all}"), vec![vec![], vec![1]]),
        ]
    };
    // compressed-tensors divides by the scale of the matrix and ModelOpt multiplies, so the tensors differ by name.
    let compressed = scheme(NVFP4);
    let expected = tensors(["weight_packed", "weight_global_scale"]);
    assert_eq!(names_and_shapes(compressed, 64, 256), expected);
    assert_eq!(compressed.packed(256), Packed::without_offsets(QuantFormat::E2m1, 16));
    let uneven = compressed.tensors("a.b.weight", 64, 264).unwrap_err().to_string();
    assert!(uneven.contains("264") && uneven.contains("16"), "{uneven}");
    let wider = NVFP4.replace("\"group_size\": 16", "\"group_size\": 32");
    let error = parse(&wider).unwrap_err().to_string();
    assert!(error.contains("group_size"), "{error}");

    let modelopt = r#"{"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
        "ignore": ["lm_head", "model.layers.0.self_attn*", "model.layers.*.mtp", "*.gate"]}"#;
    let read = parse(modelopt).unwrap();
    assert_eq!(read.method, "nvfp4");
    let expected = tensors(["weight", "weight_scale_2"]);
    assert_eq!(names_and_shapes(read.scheme.unwrap(), 64, 256), expected);
    for name in [
        "lm_head",
        "model.layers.0.self_attn.q_proj",
        "model.layers.5.mtp.up",
        "model.layers.3.mlp.gate",
    ] {
        assert!(read.skipped.contain(name), "{name}");
    }
    // The pattern for layer 0 must not reach layer 10, nor the router's name the gate's.
    for name in ["model.layers.10.self_attn.q_proj", "model.layers.3.mlp.gate_proj"] {
        assert!(!read.skipped.contain(name), "{name}");
    }
    assert!(read.may_skip("a.b.input_scale") && read.may_skip("a.k_proj.k_scale"));

    let fp8 = parse(&modelopt.replace("NVFP4", "FP8")).unwrap();
    assert_eq!(fp8.method, "fp8");
    let names = names_and_shapes(fp8.scheme.unwrap(), 64, 256);
    assert_eq!((names[0].0.as_str(), names[1].0.as_str()), ("a.b.weight", "a.b.weight_scale"));
    assert_eq!(fp8.scheme.unwrap().packed(256).activations, Some(ActivationScales::Fixed));
    let by_name = parse(&modelopt.replace("\"modelopt\"", "\"modelopt_fp4\"")).unwrap();
    assert_eq!(by_name.scheme, read.scheme);
    let other = parse(&modelopt.replace("NVFP4", "W4A8_AWQ")).unwrap();
    assert_eq!((other.method.as_str(), other.scheme), ("modelopt (W4A8_AWQ)", None));
}

#[test]
fn what_is_left_alone_is_found_by_name_and_pattern() {
    let plan = |name: &str, slot| TensorPlan {
        name: name.to_owned(),
        shape: vec![64, 64],
        stored_shape: vec![64, 64],
        take: Take::Whole,
        slots: vec![crate::SlotRows { slot, layer: Some(0), rows: 0..64, first: 0 }],
        columns: None,
        scheme: None,
        on_load: None,
    };
    let quantized = |quantization: &Quantization, name: &str, slot| {
        plan(name, slot).scheme_of(quantization).is_some()
    };
    let awq = parse(AWQ).unwrap();
    assert!(quantized(&awq, "experts.1.w1.weight", Slot::ExpertGate(1)));
    assert!(!quantized(&awq, "gate.weight", Slot::Router));
    let down = "model.layers.10.mlp.down_proj.weight";
    for (skipped, is_quantized) in [
        ("mlp.down_proj", false),
        ("model.layers.10", false),
        ("down_proj", false),
        // Layer 1 is no beginning of layer 10, and a pattern is anchored at the start of the name.
        ("model.layers.1", true),
        ("own_proj", true),
        ("re:.*down.*", false),
        ("re:down.*", true),
        ("model.language_model.layers.10.mlp.down_proj", false),
        ("language_model.model.layers.10.mlp", false),
        ("re:model\\.language_model\\.layers\\.10\\..*", false),
        ("model.language_model.layers.1", true),
    ] {
        let text = AWQ.replace("null", &format!("[{skipped:?}]"));
        let found = parse(&text).unwrap();
        assert_eq!(quantized(&found, down, Slot::Down), is_quantized, "{skipped}");
    }
    let compressed = parse(COMPRESSED).unwrap();
    assert!(!quantized(&compressed, "model.layers.0.self_attn.o_proj.weight", Slot::O));
    assert!(!quantized(&compressed, "lm_head.weight", Slot::Head));
    assert!(quantized(&compressed, down, Slot::Down));
    assert!(!quantized(&compressed, "model.embed_tokens.weight", Slot::Embed));
    let gptq = |text: &str| quantized(&parse(text).unwrap(), "lm_head.weight", Slot::Head);
    assert!(!gptq(GPTQ) && gptq(&GPTQ.replace("\"bits\"", "\"lm_head\": true, \"bits\"")));
    assert!(!parse(AWQ).unwrap().may_skip("a.input_scale"));

    // AutoRound lists layers beside the others with the bits that it gave them.
    let own = |settings: &str| {
        let layers =
            format!(r#""extra_config": {{"model.layers.10.mlp.down_proj": {settings}}}, "bits""#);
        let text =
            GPTQ.replace("\"bits\"", &layers).replace("\"desc_act\": true", "\"desc_act\": false");
        text.replace("\"gptq\"", "\"auto-round\", \"packing_format\": \"auto_round:auto_gptq\"")
    };
    for (settings, is_quantized) in
        [(r#"{"bits": 16, "data_type": "float"}"#, false), (r#"{"bits": 4}"#, true), ("{}", true)]
    {
        let found = parse(&own(settings)).unwrap();
        assert_eq!(quantized(&found, down, Slot::Down), is_quantized, "{settings}");
        assert!(quantized(&found, "model.layers.1.mlp.down_proj.weight", Slot::Down));
    }
    let refused = error(&own(r#"{"bits": 8}"#));
    assert!(
        refused.contains(
            "mlp.down_proj.bits` = 8 is not supported; the bits of all layers, or 16, are"
        ),
        "{refused}"
    );
}

#[test]
fn what_is_not_computed_with_has_no_scheme() {
    for (text, method) in [
        (r#"{"quant_method": "bitsandbytes", "load_in_4bit": true}"#, "bitsandbytes"),
        (
            r#"{"quant_method": "compressed-tensors", "format": "mixed-precision"}"#,
            "compressed-tensors (mixed-precision)",
        ),
        (
            r#"{"quant_method": "auto-round", "packing_format": "auto_round:marlin", "bits": 4}"#,
            "auto-round (marlin)",
        ),
    ] {
        let found = parse(text).unwrap();
        assert_eq!((found.method.as_str(), found.scheme), (method, None));
    }
}

#[test]
fn refusals_name_the_key() {
    for (text, message) in [
        (
            INTS.replace("\"num_bits\": 4", "\"num_bits\": 3"),
            "`q.config_groups.group_0.weights.num_bits` = 3 is not supported, but integers of 4 or 8 bits per group or channel",
        ),
        (
            INTS.replace("\"strategy\": \"group\"", "\"strategy\": \"tensor\""),
            "`q.config_groups.group_0.weights.strategy` = \"tensor\" is not supported, but integers of 4 or 8 bits per group or channel",
        ),
        (
            INTS.replace("\"group_size\": 32", "\"group_size\": 33"),
            "`q.config_groups.group_0.weights.group_size` is 33, but an even number of weights is needed",
        ),
        (
            INTS.replace("\"actorder\": null", "\"actorder\": \"other\""),
            "`q.config_groups.group_0.weights.actorder` = \"other\" is not supported; group, weight and none are",
        ),
        (
            INTS.replace("pack-quantized", "int-quantized"),
            "`q.config_groups.group_0.weights.num_bits` = 4 is not supported, but integers of 4 or 8 bits per group or channel",
        ),
        (
            INTS.replace("[\"Linear\"]", "[\"Linear\", \"Embedding\"]"),
            "`q.config_groups.group_0.targets` = [\"Linear\",\"Embedding\"] is not supported; [\"Linear\"] is",
        ),
        ("{}".to_owned(), "`q.quant_method` is missing; the name of the quantization is needed"),
        (AWQ.replace("\"gemm\"", "\"gemv\""), "`q.version` = \"gemv\" is not supported; gemm is"),
        (AWQ.replace("4", "3"), "`q.bits` = 3 is not supported; awq has 4"),
        (
            AWQ.replace("t\": true", "t\": false"),
            "`q.zero_point` = false is not supported; true is",
        ),
        (
            AWQ.replace("128", "0"),
            "`q.group_size` is 0, but -1 or an even number of weights is needed",
        ),
        (
            AWQ.replace("128", "1e30"),
            "`q.group_size` is 1e+30, but -1 or an even number of weights is needed",
        ),
        (GPTQ.replace("4", "2"), "`q.bits` = 2 is not supported by gptq; 4 and 8 are"),
        (
            GPTQ.replace("\"group_size\": 128,", ""),
            "`q.group_size` is missing; -1 or an even number of weights is needed",
        ),
        (
            GPTQ.replace("\"sym\"", "\"dynamic\": {\"-:x\": {}}, \"sym\""),
            "`q.dynamic` = {\"-:x\":{}} is not supported; the same bits for all layers are",
        ),
        (
            GPTQ.replace("\"sym\"", "\"checkpoint_format\": \"marlin\", \"sym\""),
            "`q.checkpoint_format` = \"marlin\" is not supported; gptq and gptq_v2 are",
        ),
        (
            COMPRESSED.replace("\"float\"", "\"int\""),
            "`q.config_groups.group_0.weights.type` = \"int\" is not supported, but 8 bits of float per tensor, channel or block",
        ),
        (
            COMPRESSED.replace("re:.*", "re:("),
            "`q.ignore` = \"re:(\\\\.o_proj$\" is not supported; a list of names and regular expressions is",
        ),
        (
            r#"{"quant_method": "fp8", "weight_block_size": [128]}"#.to_owned(),
            "`q.weight_block_size` is [128], but a list of two numbers, the second of them even is needed",
        ),
        (
            r#"{"quant_method": "squeezellm", "wbits": 3}"#.to_owned(),
            "`q.wbits` = 3 is not supported by squeezellm; 4 is",
        ),
    ] {
        assert_eq!(error(&text), format!("config.json: {message}"), "{text}");
    }
}

/// GGUF's types: bits of a number in memory, alone and together.
#[test]
fn scales_stay_as_stored_where_all_parts_have_them_so() {
    use GgufType::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    let form = |kind| MatrixForm::Quantized(Scheme::Gguf(kind).packed(512));
    let bits = |kinds: &[GgufType], k: usize| {
        let join = |all: MatrixForm, kind: &GgufType| all.join(form(*kind), k);
        let joined = kinds.iter().fold(form(kinds[0]), join);
        (joined.bytes(64, k, Dtype::F32) * 8) as f64 / (64 * k) as f64
    };
    // A type alone takes what it takes in its file: Q2_K has 84 bytes for 256 values, which are 2.625 bits.
    for (kinds, expected) in [
        (&[Q2K][..], 2.625),
        (&[Q3K], 3.4375),
        (&[Q4K], 4.5),
        (&[Q5K], 5.5),
        (&[Q6K], 6.5625),
        (&[Q3K, Q6K], 7.0625),
        (&[Q4K, Q4K, Q6K], 7.25),
        (&[Q2K, Q4K], 5.125),
        (&[Q4_0], 4.5),
        (&[Q4_1], 5.0),
        (&[Q5_0], 5.5),
        (&[Q5_1], 6.0),
        (&[Q4_0, Q5_0], 5.75),
        (&[Q4_1, Q5_1], 6.0),
        (&[Q4_0, Q4_1], 6.0),
        (&[Q4K, Q5_0], 7.0),
        (&[Q8_0], 8.5),
        (&[Q8_0, Q8_0], 8.5),
        (&[Q4K, Q8_0], 10.0),
        (&[Q8_0, Q6K], 10.5),
    ] {
        assert_eq!(bits(kinds, 512), expected, "{kinds:?}");
    }
    // Columns of a rank: half a super-block, an eighth, and a group, for which a scale of its own is less.
    for (kind, k, expected) in
        [(Q4K, 128, 4.625), (Q6K, 128, 6.625), (Q4K, 32, 6.0), (Q6K, 32, 7.0), (Q6K, 16, 8.0)]
    {
        assert_eq!(bits(&[kind], k), expected, "{kind:?}, {k} columns");
    }
}

/// The same of other formats: of AWQ by 128, and FP8 with a scale per output.
#[test]
fn other_formats_take_little_more_than_their_files() {
    let bits = |packed: Packed| {
        (MatrixForm::Quantized(packed).bytes(64, 512, Dtype::F32) * 8) as f64 / (64.0 * 512.0)
        // A group of 128 has a scale of 16 bits and a zero-point of 8.
    };
    assert_eq!(bits(scheme(AWQ).packed(512)), 4.0 + 24.0 / 128.0);
    let gptq = scheme(&GPTQ.replace("\"desc_act\": true", "\"desc_act\": false"));
    assert_eq!(bits(gptq.packed(512)), 4.0 + 24.0 / 128.0);
    let fp8 = scheme(r#"{"quant_method": "fp8", "activation_scheme": "static"}"#);
    assert_eq!(bits(fp8.packed(512)), 8.0 + 32.0 / 512.0);
}

/// SmolLM2-135M, Gemma 3 270M and Llama 3.1 8B, whose heads are a fifth, three fifths and a fifteenth of all weights, and a
/// model of experts.
const ON_LOAD: [&str; 4] = [
    r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true}"#,
    r#"{"architectures": ["Qwen3ForCausalLM"], "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": true}"#,
    r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}"#,
    r#"{"architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 4,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "num_experts": 16,
        "num_experts_per_tok": 4, "moe_intermediate_size": 768, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6,
        "norm_topk_prob": true, "hidden_act": "silu", "tie_word_embeddings": false}"#,
];

/// Bits of a quantized weight on average, as it is kept in memory, and the kind of each part.
fn on_load(config: &str, kind: OnLoad) -> (f64, Vec<(Slot, Option<usize>, QuantFormat)>) {
    let config = config.to_owned().leak().as_bytes();
    // Embedded files are static, as those of the demo, so the text is leaked.
    let files = CheckpointFiles::Embedded(vec![("config.json", config)].leak());
    let mut checkpoint = Checkpoint::open(files).unwrap();
    checkpoint.quantize_on_load(kind).unwrap();
    let (mut bytes, mut numbers, mut parts) = (0, 0, Vec::new());
    for tensor in checkpoint.tensor_plan() {
        let MatrixForm::Quantized(packed) = tensor.form() else { continue };
        let &[rows, columns] = tensor.shape.as_slice() else { panic!("{tensor:?}") };
        bytes += tensor.form().bytes(rows, columns, Dtype::F32);
        numbers += rows * columns;
        parts.extend(tensor.slots.iter().map(|slot| (slot.slot, slot.layer, packed.format)));
    }
    (8.0 * bytes as f64 / numbers as f64, parts)
}

#[test]
fn four_bits_on_load_are_five_where_they_help_and_at_most_five_on_average() {
    for config in ON_LOAD {
        // Eight bits, and a scale of 16 bits for each 32 weights.
        assert_eq!(on_load(config, OnLoad::Int8).0, 8.5, "{config}");
        // A scale of 32 bits for each output, and the head and the embedding in their dtype.
        let (bits, parts) = on_load(config, OnLoad::Fp8);
        assert!((8.0..8.2).contains(&bits), "{bits}: {config}");
        assert!(
            parts.iter().all(|(slot, ..)| ![Slot::Embed, Slot::Head, Slot::Router].contains(slot))
        );
        let (bits, parts) = on_load(config, OnLoad::Int4);
        // The rest would not be enough for another matrix.
        assert!((4.85..=5.0).contains(&bits), "{bits}: {config}");
        assert!(
            parts.iter().all(|(.., format)| [QuantFormat::U4, QuantFormat::U5].contains(format))
        );
        let of = |slot: Slot| parts.iter().filter(move |part| part.0 == slot).map(|part| part.2);
        for slot in [Slot::Q, Slot::K, Slot::V, Slot::O] {
            assert!(of(slot).all(|format| format == QuantFormat::U5), "{slot:?}: {config}");
        }
        assert!(of(Slot::Down).all(|format| format == QuantFormat::U5), "{config}");
        assert_eq!(on_load(config, OnLoad::Int4).1, parts);
    }
    // The first and the last layers before those between.
    let (_, parts) = on_load(ON_LOAD[0], OnLoad::Int4);
    let gates = parts.iter().filter(|part| part.0 == Slot::Gate && part.2 == QuantFormat::U5);
    let layers: Vec<usize> = gates.filter_map(|part| part.1).collect();
    assert!(!layers.is_empty() && layers.iter().all(|i| !(4..=25).contains(i)), "{layers:?}");
}

#[test]
fn columns_that_are_no_whole_blocks_have_scales_of_their_own() {
    let config = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 40, "intermediate_size": 96,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true}"#;
    let files = CheckpointFiles::Embedded(vec![("config.json", config.as_bytes())].leak());
    let mut checkpoint = Checkpoint::open(files).unwrap();
    checkpoint.quantize_on_load(OnLoad::Int4).unwrap();
    let blocks = |slot: Slot| {
        let plan = checkpoint.tensor_plan();
        let tensor = plan.iter().find(|tensor| tensor.slots[0].slot == slot).unwrap();
        let MatrixForm::Quantized(packed) = tensor.form() else { panic!("{tensor:?}") };
        packed.scales.blocks.map(|blocks| blocks.columns)
    };
    // 40 inputs have no multiple of 32 columns as a divisor, and 96 do.
    assert_eq!((blocks(Slot::Q), blocks(Slot::Down)), (None, Some(96)));
}

/// AutoAWQ's first releases, AutoGPTQ and AutoRound say the same elsewhere or by other names; the weights are read alike.
#[test]
fn other_tools_say_the_same_in_other_files_and_by_other_names() {
    let read = |golden: &str, edit: &dyn Fn(&mut Value) -> Vec<(&'static str, String)>| {
        let folder = candlepower_testing::goldens::folder(golden);
        let config = std::fs::read(folder.join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        let mut files = edit(&mut config);
        files.push(("config.json", config.to_string()));
        // Only the description is opened, so no tensor is needed.
        let leaked = files.into_iter().map(|(name, text)| (name, text.leak().as_bytes()));
        let files = CheckpointFiles::Embedded(leaked.collect::<Vec<_>>().leak());
        let checkpoint = Checkpoint::open(files).unwrap();
        checkpoint.check_keys(&[]).unwrap();
        let plan = checkpoint.tensor_plan().into_iter();
        let schemes = plan.map(|tensor| (tensor.name, tensor.scheme)).collect::<Vec<_>>();
        (checkpoint.quantization().unwrap().method.clone(), schemes)
    };
    let taken = |config: &mut Value| config["quantization_config"].take();
    let moved = |file: &'static str| {
        move |config: &mut Value| {
            let mut own = taken(config);
            let own = own.as_object_mut().unwrap();
            own.remove("quant_method");
            if file == "quant_config.json" {
                for (new, old) in [("bits", "w_bit"), ("group_size", "q_group_size")] {
                    let value = own.remove(new).unwrap();
                    own.insert(old.to_owned(), value);
                }
                own.insert("version".to_owned(), "GEMM".into());
            }
            vec![(file, Value::Object(own.clone()).to_string())]
        }
    };
    let by_auto_round = |name: &'static str, packing: &'static str| {
        move |config: &mut Value| {
            let own = &mut config["quantization_config"];
            own["quant_method"] = name.into();
            own["packing_format"] = packing.into();
            own["autoround_version"] = "0.4.6".into();
            own["iters"] = 200.into();
            own["data_type"] = "int".into();
            Vec::new()
        }
    };
    let plain = |golden| read(golden, &|_| Vec::new());
    let (awq, gptq) = (plain("awq"), plain("gptq"));
    assert!(awq.1.iter().any(|(_, scheme)| scheme.is_some()));
    assert_eq!(read("awq", &moved("quant_config.json")), awq);
    assert_eq!(read("gptq", &moved("quantize_config.json")), gptq);
    let sym = plain("gptq-sym");
    for (name, packing) in [
        ("auto-round", "auto_round:auto_gptq"),
        ("intel/auto-round", "auto_round:gptq"),
        ("auto-round", "auto_round:exllamav2"),
    ] {
        assert_eq!(read("gptq-sym", &by_auto_round(name, packing)), sym, "{name} {packing}");
    }
    assert_eq!(read("awq", &by_auto_round("auto-round", "auto_round:auto_awq")), awq);
    // Published by MiniMax and NVIDIA.
    let spelled = |config: &mut Value| {
        config["quantization_config"]["fmt"] = "float8_e4m3fn".into();
        Vec::new()
    };
    assert_eq!(read("fp8", &spelled), plain("fp8"));
    let by_algorithm = |config: &mut Value| {
        config["quantization_config"] = serde_json::json!({"quant_algo": "FP8", "ignore": ["lm_head"],
            "producer": {"name": "modelopt", "version": "0.31.0"}});
        Vec::new()
    };
    assert_eq!(read("llama", &by_algorithm).0, "fp8");
}

#[test]
fn keys_and_values_are_rounded_beside_quantized_weights_as_activations_are() {
    let kept = |name: &str, dtype: Option<Dtype>| {
        let files =
            CheckpointFiles::find(&candlepower_testing::goldens::folder(name)).unwrap().unwrap();
        let checkpoint = Checkpoint::open(files).unwrap();
        let weights = dtype.unwrap_or(Dtype::F32);
        checkpoint.kv_dtype(DeviceKind::Cpu, None, dtype, weights).unwrap()
    };
    for (name, dtype, expected) in [
        ("awq", None, Dtype::Bf16),
        ("awq", Some(Dtype::F32), Dtype::F32),
        ("awq", Some(Dtype::F16), Dtype::F32),
        ("gguf-qwen2", None, Dtype::Bf16),
        ("squeezellm", None, Dtype::F32),
        ("squeezellm", Some(Dtype::Bf16), Dtype::Bf16),
        ("llama", None, Dtype::F32),
    ] {
        assert_eq!(kept(name, dtype), expected.into(), "{name} {dtype:?}");
    }
}
