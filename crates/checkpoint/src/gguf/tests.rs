//! Names and splits, and what the metadata becomes; whole files are tested with the goldens.

mod headers;
mod names;

use std::sync::Arc;

use candlepower_testing::goldens::folder as golden;
use serde_json::{Map, json};

use super::*;
use crate::{
    Checkpoint, CheckpointFiles, FfnSpec, RopeScaling, Slot, UpdateRuleSpec, config::UnreadKey,
};

fn checkpoint(name: &str) -> Checkpoint {
    Checkpoint::open(CheckpointFiles::find(&golden(name)).unwrap().unwrap()).unwrap()
}

#[test]
fn parts_of_a_split_model_are_found_from_any_of_them() {
    let split = Split::of("a-b-00002-of-00003.gguf").unwrap();
    assert_eq!(
        split.all(),
        ["a-b-00001-of-00003.gguf", "a-b-00002-of-00003.gguf", "a-b-00003-of-00003.gguf"]
    );
    for name in ["a.gguf", "a-2-of-3.gguf", "a-00004-of-00003.gguf", "a-00001-of-00003.bin"] {
        assert!(Split::of(name).is_none(), "{name}");
    }
    // Any part of a split model may be named on a command line.
    let last = golden("gguf-llama").join("model-00003-of-00003.gguf");
    let gguf = Gguf::open(&last).unwrap();
    assert_eq!((gguf.files().len(), gguf.files()[0].as_str()), (3, "model-00001-of-00003.gguf"));
    assert!(gguf.tensors().values().any(|tensor| tensor.file == 2));
}

#[test]
fn the_metadata_is_the_configuration() {
    let llama = checkpoint("gguf-llama");
    assert_eq!(llama.architecture(), "LlamaForCausalLM");
    let layer = &llama.spec().layers[0];
    let attention = layer.attention().unwrap();
    assert!(
        attention.qkv_bias
            && attention.out_bias
            && matches!(&layer.ffn, FfnSpec::Dense(mlp) if mlp.bias)
    );
    assert!(attention.rope.as_ref().unwrap().interleaved && !llama.spec().head.tied);
    assert_eq!(llama.quantization().unwrap().method, "gguf");
    assert_eq!(llama.generation().eos_token_ids, [2]);
    assert_eq!((layer.norm.eps, llama.spec().max_model_len), (1e-5, 256));

    let mixtral = checkpoint("gguf-mixtral");
    assert_eq!(mixtral.architecture(), "MixtralForCausalLM");
    let layer = &mixtral.spec().layers[0];
    let experts = layer.ffn.experts().unwrap();
    assert_eq!((experts.count, experts.top_k, experts.gating.renormalize), (3, 2, true));
    assert!(layer.attention().unwrap().rope.as_ref().unwrap().interleaved);
    let plan = mixtral.tensor_plan();
    // Three experts of 256 outputs lie one below the other, and each fills a slot.
    let down = plan.iter().find(|tensor| tensor.name == "blk.0.ffn_down_exps.weight").unwrap();
    assert_eq!((down.slots.len(), &down.shape), (3, &vec![3 * 256, 256]));

    let phi3 = checkpoint("gguf-phi3");
    assert_eq!(phi3.spec().layers[0].attention().unwrap().rope.as_ref().unwrap().dim, 12);
    assert!(phi3.quantization().is_none());
    // LongRoPE's long factors begin behind the original context of 32 positions.
    assert_eq!((phi3.spec().max_model_len, phi3.spec().max_positions), (32, 256));

    let gemma3 = checkpoint("gguf-gemma3");
    let windows = gemma3.spec().layers.iter().map(|layer| layer.attention().unwrap().window);
    assert_eq!(windows.collect::<Vec<_>>(), [Some(10), None, Some(10)]);
    assert_eq!(gemma3.spec().final_norm.kind, NormKind::Rms);
    // It ends with a token that the file does not name as an end.
    let end = gemma3.generation().eos_token_ids.last().copied().unwrap();
    let metadata = &gemma3.files().gguf().unwrap().metadata;
    let tokens = metadata.texts_opt("tokenizer.ggml.tokens").unwrap().unwrap();
    assert_eq!(tokens[end as usize], "<|end|>");
}

#[test]
fn layers_that_predict_further_tokens_are_left_out() {
    let edited = edited("gguf-glm4-moe", &|m| {
        drop(m.insert("glm4moe.nextn_predict_layers".into(), json!(1)));
    });
    let gguf = edited.unwrap();
    assert_eq!(gguf.config().unwrap().0["num_hidden_layers"], 1);
    // The tensor need not be in the file: its name alone says that it is of a layer behind the first.
    assert!(gguf.is_ignored("blk.1.nextn.eh_proj.weight", 1));
    assert!(!gguf.is_ignored("blk.0.attn_q.weight", 1));
    let all = |m: &mut Map<String, Value>| {
        drop(m.insert("glm4moe.nextn_predict_layers".into(), json!(2)));
    };
    let line = refused("gguf-glm4-moe", &all).unwrap_err();
    assert!(line.contains("`glm4moe.nextn_predict_layers` = 2") && line.contains("less than"));
}

/// Files of models with linear attention differ from others, and some models cannot be split.
#[test]
fn linear_attentions() {
    let net = |name: &str| checkpoint(name).spec().linear_attentions().next().copied().unwrap();
    let next = net("gguf-qwen3-next");
    assert!(!next.log_rates && !next.tiled);
    let tiled = net("gguf-qwen3_5");
    assert!(!tiled.log_rates && tiled.tiled);
    let spec = checkpoint("gguf-qwen3_5");
    let line = spec.spec().check_tensor_parallel(2).unwrap_err().to_string();
    assert!(line.contains("6 heads of values in the order of GGUF files"), "{line}");
    let mamba = net("gguf-granite-hybrid");
    assert_eq!(mamba.rule, UpdateRuleSpec::Mamba2 { conv_bias: true });
    let hybrid = checkpoint("gguf-granite-hybrid");
    assert!(hybrid.spec().attentions().all(|attention| attention.rope.is_none()));
    for (name, key, value, message) in [
        (
            "gguf-qwen3_5",
            "qwen35.ssm.inner_size",
            json!(191),
            "a multiple of ssm.time_step_rank is",
        ),
        (
            "gguf-qwen3_5",
            "qwen35.attention.recurrent_layers",
            json!([true]),
            "true or false for each layer is needed",
        ),
        ("gguf-lfm2-moe", "lfm2moe.expert_gating_func", json!(1), "2, sigmoids, is"),
        ("gguf-lfm2", "lfm2.attention.head_count_kv", json!([0, 2, 4, 0]), "the same number"),
        ("gguf-lfm2", "lfm2.attention.head_count_kv", json!(2), "a number for each layer is"),
        ("gguf-nemotron-h", "nemotron_h.feed_forward_length", json!(96), "a number for each layer"),
    ] {
        let line = refused(name, &|m| drop(m.insert(key.to_owned(), value.clone()))).unwrap_err();
        assert!(line.contains(&format!("`{key}`")) && line.contains(message), "{line}");
    }
}

/// Tensors that some files join, or used to join.
#[test]
fn tensors_of_other_files_fill_the_same_slots() {
    let plan = |golden: &str, edit: &dyn Fn(&mut HashMap<String, GgufTensor>)| {
        let mut gguf = Gguf::open(&self::golden(golden).join("model.gguf")).unwrap();
        edit(&mut gguf.tensors);
        Checkpoint::open(CheckpointFiles::Gguf(Arc::new(gguf))).unwrap().tensor_plan()
    };
    let fuse = |tensors: &mut HashMap<String, GgufTensor>, parts: &[&str], whole: &str| {
        let parts: Vec<GgufTensor> =
            parts.iter().map(|part| tensors.remove(&format!("blk.0.{part}")).unwrap()).collect();
        // Rows are counted for experts, the first dimension for others.
        let rows = parts.iter().map(|part| part.shape[0]).sum();
        let shape = [&[rows][..], &parts[0].shape[1..]].concat();
        tensors.insert(format!("blk.0.{whole}"), GgufTensor { shape, ..parts[0].clone() });
    };
    let slots = |plan: &[TensorPlan], name: &str| {
        let tensor = plan.iter().find(|tensor| tensor.name == format!("blk.0.{name}")).unwrap();
        tensor.slots.iter().map(|slot| (slot.slot, slot.rows.start)).collect::<Vec<_>>()
    };
    let qkv = plan("gguf-seed-oss", &|tensors| {
        fuse(tensors, &["attn_q.weight", "attn_k.weight", "attn_v.weight"], "attn_qkv.weight");
        fuse(tensors, &["attn_q.bias", "attn_k.bias", "attn_v.bias"], "attn_qkv.bias");
    });
    let expected = [(Slot::Q, 0), (Slot::K, 96), (Slot::V, 144)];
    assert_eq!(slots(&qkv, "attn_qkv.weight"), expected);
    let expected = [(Slot::QBias, 0), (Slot::KBias, 96), (Slot::VBias, 144)];
    assert_eq!(slots(&qkv, "attn_qkv.bias"), expected);
    let experts = plan("gguf-qwen2-moe", &|tensors| {
        fuse(tensors, &["ffn_gate_exps.weight", "ffn_up_exps.weight"], "ffn_gate_up_exps.weight");
    });
    let expected = [(Slot::ExpertGate(0), 0), (Slot::ExpertUp(0), 40), (Slot::ExpertGate(1), 80)];
    assert_eq!(slots(&experts, "ffn_gate_up_exps.weight")[..3], expected);
    let by_heads = plan("gguf-qwen3-next", &|tensors| {
        fuse(tensors, &["attn_qkv.weight", "attn_gate.weight"], "ssm_in.weight");
    });
    // Two heads of keys, each with its query, key, two values and their gates.
    let of_head = [
        (Slot::LinearAttnQ, 0),
        (Slot::LinearAttnK, 32),
        (Slot::LinearAttnV, 64),
        (Slot::LinearAttnGate, 128),
    ];
    let expected = [0, 192].map(|first| of_head.map(|(slot, row)| (slot, first + row)));
    assert_eq!(slots(&by_heads, "ssm_in.weight"), expected.concat());
}

#[test]
fn gemma4() {
    let gemma4 = checkpoint("gguf-gemma4");
    let (spec, metadata) = (gemma4.spec(), &gemma4.files().gguf().unwrap().metadata);
    let attention = |layer: usize| spec.layers[layer].attention().unwrap();
    assert_eq!([0, 1, 2, 3].map(|i| attention(i).keys_of), [None, None, Some(0), Some(1)]);
    assert_eq!([0, 1].map(|i| attention(i).head_dim), [32, 64]);
    assert_eq!([1, 2].map(|i| spec.layers[i].ffn.mlp().unwrap().inner), [96, 192]);
    let rotated = RopeScaling::Proportional { rotated: 8, factor: 1.0 };
    assert_eq!(attention(1).rope.as_ref().unwrap().scaling, rotated);
    assert_eq!(spec.per_layer.unwrap().width, 32);
    assert!(!attention(1).values_are_keys);
    // A file may have this for layers that read the keys of others.
    assert!(gemma4.may_skip_tensor("blk.2.attn_k.weight"));
    assert!(!gemma4.may_skip_tensor("blk.1.attn_k.weight"));
    let tokens = metadata.texts_opt("tokenizer.ggml.tokens").unwrap().unwrap();
    let ends = gemma4.generation().eos_token_ids.iter().map(|id| tokens[*id as usize]);
    assert_eq!(ends.collect::<Vec<_>>(), ["</s>", "<turn|>", "<|tool_response>"]);

    let experts = checkpoint("gguf-gemma4-moe");
    let global = experts.spec().layers[1].attention().unwrap();
    assert_eq!((global.kv_heads, global.values_are_keys), (1, true));
    let plan = experts.tensor_plan();
    let both = plan.iter().find(|tensor| tensor.name == "blk.0.ffn_gate_up_exps.weight").unwrap();
    let first = both.slots[..3].iter().map(|slot| (slot.slot, slot.rows.start));
    let expected = [(Slot::ExpertGate(0), 0), (Slot::ExpertUp(0), 32), (Slot::ExpertGate(1), 64)];
    assert_eq!(first.collect::<Vec<_>>(), expected);

    for (key, value, message) in [
        (
            "gemma4.attention.sliding_window_pattern",
            json!([true, false]),
            "true or false for each layer is needed",
        ),
        ("gemma4.attention.head_count_kv", json!([2, 2]), "a number for each layer is needed"),
        (
            "gemma4.attention.head_count_kv",
            json!([2, 2, 0, 2]),
            "the same number for all layers is",
        ),
        (
            "gemma4.feed_forward_length",
            json!([96, 96, 96, 192]),
            "layers that share keys and values twice as wide are",
        ),
        ("gemma4.rope.dimension_count_swa", json!(16), "the width of keys is"),
        ("gemma4.attention.value_length_swa", json!(16), "the width of keys is"),
        ("gemma4.attention.temperature_scale", json!(2), "by this architecture in GGUF files"),
    ] {
        let line = refused("gguf-gemma4", &|m| drop(m.insert(key.to_owned(), value.clone())));
        let line = line.unwrap_err();
        assert!(line.contains(&format!("`{key}`")) && line.contains(message), "{line}");
    }
}

/// The error for a golden's file with edited metadata.
fn refused(name: &str, edit: &dyn Fn(&mut Map<String, Value>)) -> std::result::Result<(), String> {
    let gguf = edited(name, edit).map_err(|error| error.to_string())?;
    let keys = gguf.unread_keys().and_then(|keys| keys.iter().try_for_each(UnreadKey::check));
    let both = keys.and_then(|()| gguf.tokenizer());
    both.map(drop).map_err(|error| error.to_string())
}

/// A golden with other metadata.
fn edited(name: &str, edit: &dyn Fn(&mut Map<String, Value>)) -> Result<Gguf> {
    let gguf = Gguf::open(&golden(name).join("model.gguf")).unwrap();
    let mut entries: Map<String, Value> =
        gguf.metadata.entries().map(|(key, value)| (key.to_owned(), value.clone())).collect();
    edit(&mut entries);
    let metadata = HfConfig::from_entries("model.gguf", entries);
    let arch = arch::find(&metadata)?;
    Ok(Gguf { metadata, arch, ..gguf })
}

#[test]
fn rules_of_splitting_are_applied_in_a_row() {
    for (name, first, last, count) in [
        ("qwen2", "(?i:'s|", r"|\s+", 1),
        ("deepseek-llm", r"[\r\n]", r"\p{N}", 6),
        ("deepseek-coder", r"[\r\n]", r"\p{N}", 5),
        ("deepseek-v3", r"\p{N}{1,3}", r"|\s+", 3),
        ("glm4", "(?i:'s|", r"|\s+", 1),
        ("dbrx", "(?i:'s|", r"|\s+", 1),
        ("qwen35", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"|\s+", 1),
        ("seed-coder", "(?i:'s|", r"|\s+", 1),
        ("afmoe", r"\p{N}{1,3}", r"|\s+", 3),
        ("tiny_aya", r"\d{1,3}", r"|\s+", 2),
        ("youtu", "[가", r"|\s+", 2),
        ("viking", " ?[^", r"\p{N}", 2),
        ("superbpe", r"\p{N}+", r"(?!\d))", 2),
        ("midm-2.0", "(?i:'s|", r"|\s+", 1),
        ("joyai-llm", r"\p{N}{1,3}", r"|\s+", 3),
        ("minimax-m2", r"[^\r\n\p{L}\p{N}]?[\p{Lu}", r"|\s+", 1),
        ("kimi-k2", r"[\p{Han}]+", r"|\s+", 1),
    ] {
        let gguf =
            edited("gguf-qwen2", &|m| drop(m.insert("tokenizer.ggml.pre".into(), name.into())));
        let tokenizer = gguf.unwrap().tokenizer().unwrap();
        let steps = tokenizer["pre_tokenizer"]["pretokenizers"].as_array().unwrap();
        let (bytes, splits) = steps.split_last().unwrap();
        assert_eq!((&bytes["type"], &bytes["use_regex"]), (&json!("ByteLevel"), &json!(false)));
        let rules: Vec<_> =
            splits.iter().map(|split| split["pattern"]["Regex"].as_str().unwrap()).collect();
        assert_eq!(rules.len(), count, "{name}");
        assert!(rules[0].starts_with(first) && rules[count - 1].ends_with(last), "{rules:?}");
    }
}

#[test]
fn what_is_not_supported_is_named() {
    assert_eq!(GgufType::of(16).unwrap_err(), "IQ2_XXS");
    assert_eq!(GgufType::of(77).unwrap_err(), "type 77");
    assert_eq!(refused("gguf-yarn", &|_| {}), Ok(()));
    let set = |key: &'static str, value: Value| {
        refused("gguf-yarn", &move |m| drop(m.insert(key.to_owned(), value.clone()))).unwrap_err()
    };
    let line = set("general.architecture", "mamba".into());
    let expected =
        "model.gguf: `general.architecture` = \"mamba\" is not supported; llama, qwen2, ";
    assert!(line.starts_with(expected), "{line}");
    for vocabulary in ["bert", "t5"] {
        let expected = format!(
            "model.gguf: `tokenizer.ggml.model` = \"{vocabulary}\" is not supported; gpt2, llama and gemma4 are, or name a folder with the model's own tokenizer.json by --tokenizer"
        );
        assert_eq!(set("tokenizer.ggml.model", vocabulary.into()), expected);
    }
    let line = set("llama.attention.clamp_kqv", 8.into());
    assert_eq!(
        line,
        "model.gguf: `llama.attention.clamp_kqv` = 8 is not supported by this architecture in GGUF files"
    );
    let line = set("llama.expert_count", 8.into());
    assert!(line.contains("`llama.expert_used_count` is missing"), "{line}");
    let line = set("llama.block_count", "two".into());
    assert_eq!(
        line,
        "model.gguf: `llama.block_count` is \"two\", but a whole number of at least 1 is needed"
    );
    let line = set("tokenizer.ggml.pre", "unheard-of".into());
    assert!(
        line.starts_with(
            "model.gguf: `tokenizer.ggml.pre` = \"unheard-of\" is not supported; gpt-2, "
        ),
        "{line}"
    );
    assert!(
        line.ends_with(", or name a folder with the model's own tokenizer.json by --tokenizer"),
        "{line}"
    );
    let line = set("tokenizer.ggml.token_type", json!([1, 2]));
    assert!(line.contains("`tokenizer.ggml.token_type` has 2 entries for 608 tokens"), "{line}");
    assert!(line.ends_with("; take another version of the model"), "{line}");
    let line = set("tokenizer.ggml.merges", json!(["ab"]));
    assert!(
        line.contains("`tokenizer.ggml.merges` is \"ab\", but two tokens with a space between"),
        "{line}"
    );
    for (key, value, hint) in [
        ("llama.attention.value_length", json!(7), "; the width of keys is"),
        ("llama.rope.scaling.type", json!("dynamic"), "; none, linear and yarn are"),
        ("llama.rope.scaling.attn_factor", json!(2.0), "; 1 is"),
    ] {
        let line = set(key, value.clone());
        assert!(line.contains(&format!("`{key}` = {value} is not supported{hint}")), "{line}");
    }
    let line = set("llama.new_thing", 8.into());
    assert_eq!(
        line,
        "model.gguf: `llama.new_thing` = 8 is not known, and may change what the model answers; start with --ignore-config-key llama.new_thing if it does not"
    );
}

/// A model of pieces has no step that removes white space between words.
#[test]
fn white_space_stays_in_models_of_pieces() {
    const KEY: &str = "tokenizer.ggml.remove_extra_whitespaces";
    assert_eq!(refused("gguf-gemma2", &|m| drop(m.insert(KEY.into(), false.into()))), Ok(()));
    let line = refused("gguf-gemma2", &|m| drop(m.insert(KEY.into(), true.into()))).unwrap_err();
    assert!(line.contains(&format!("`{KEY}` = true is not supported; name a folder")), "{line}");
}

#[test]
fn templates_beside_the_usual_one_have_names() {
    let gguf = edited("gguf-yarn", &|m| {
        m.insert("tokenizer.chat_template".into(), "usual".into());
        m.insert("tokenizer.chat_templates".into(), json!(["rag", "missing"]));
        m.insert("tokenizer.chat_template.rag".into(), "cited".into());
    });
    let config = gguf.unwrap().tokenizer_config().unwrap();
    let template = |name: &str, template: &str| json!({"name": name, "template": template});
    let expected = json!([template("default", "usual"), template("rag", "cited")]);
    assert_eq!(config["chat_template"], expected);
}

/// Values that say what happens anyway, as converters of other times write them.
#[test]
fn neutral_values_change_nothing() {
    let plain = edited("gguf-qwen3", &|_| {}).unwrap().config().unwrap();
    // Converters write the scale in single precision, which differs from the exact one in the last digits.
    let scale = 1.0 / (plain.0["head_dim"].as_f64().unwrap() as f32).sqrt();
    for (key, value) in [
        ("attention.causal", json!(true)),
        ("attention.scale", json!(scale)),
        ("attention.clamp_kqv", json!(0.0)),
        ("attention.sliding_window", json!(1_000_000)),
        ("logit_scale", json!(1.0)),
        ("rope.scale_linear", json!(1.0)),
        ("tensor_data_layout", json!("Meta AI original pth")),
        ("rope.scaling.finetuned", json!(true)),
    ] {
        let gguf = edited("gguf-qwen3", &|m| drop(m.insert(format!("qwen3.{key}"), value.clone())));
        let found = gguf.unwrap().config().unwrap();
        assert_eq!(found.0, plain.0, "{key}");
        assert!(found.1.iter().all(|key| key.check().is_ok()), "{key}");
    }
    for (key, value) in [
        ("attention.causal", json!(false)),
        ("attention.scale", json!(scale * 2.0)),
        ("attention.sliding_window", json!(8)),
        ("logit_scale", json!(0.5)),
        ("pooling_type", json!(4)),
    ] {
        let edit =
            |m: &mut Map<String, Value>| drop(m.insert(format!("qwen3.{key}"), value.clone()));
        let gguf = edited("gguf-qwen3", &edit).unwrap();
        assert!(gguf.config().is_err() || gguf.pooling().is_err(), "{key}");
    }
    let stretched =
        edited("gguf-qwen3", &|m| drop(m.insert("qwen3.rope.scale_linear".into(), json!(4.0))));
    let rope = stretched.unwrap().config().unwrap().0["rope_parameters"].clone();
    assert_eq!((&rope["rope_type"], &rope["factor"]), (&json!("linear"), &json!(4.0)));
}

/// Ends that a file names, and those that it has by their names, of whatever kind.
#[test]
fn ends_are_known_by_name() {
    let ends = |edit: &dyn Fn(&mut Map<String, Value>)| {
        let gguf = edited("gguf-gpt-oss", edit).unwrap();
        let config = gguf.config().unwrap().0;
        let tokens = gguf.metadata.texts_opt("tokenizer.ggml.tokens").unwrap().unwrap();
        let ends = config["eos_token_id"].as_array().unwrap().iter();
        ends.map(|id| tokens[id.as_u64().unwrap() as usize].to_string()).collect::<Vec<_>>()
    };
    let rename = |m: &mut Map<String, Value>, id: usize, name: &str, kind: u32| {
        // Kinds of tokens in GGUF are 1 normal, 3 control and 4 user defined.
        m["tokenizer.ggml.tokens"][id] = name.into();
        m["tokenizer.ggml.token_type"][id] = kind.into();
    };
    let eos = |m: &mut Map<String, Value>, id: u64| {
        drop(m.insert("tokenizer.ggml.eos_token_id".into(), id.into()))
    };
    let harmony = |m: &mut Map<String, Value>| {
        rename(m, 604, "<|return|>", 3);
        rename(m, 605, "<|end|>", 3);
        rename(m, 606, "<|call|>", 3);
    };
    assert_eq!(
        ends(&|m| {
            harmony(m);
            eos(m, 604)
        }),
        ["<|return|>", "<|call|>"]
    );
    // The end of a message that a file names by mistake.
    assert_eq!(
        ends(&|m| {
            harmony(m);
            eos(m, 605)
        }),
        ["<|return|>", "<|call|>"]
    );
    for kind in [1, 3, 4] {
        let found = ends(&|m| {
            rename(m, 604, "<|endoftext|>", 3);
            rename(m, 605, "<|im_end|>", kind);
            rename(m, 606, "[e~[", kind);
            eos(m, 604);
        });
        assert_eq!(found, ["<|endoftext|>", "<|im_end|>", "[e~["], "{kind}");
    }
    // Ids that are none. llama.cpp's `LLAMA_TOKEN_NULL` is -1, and writers store it as the largest u32.
    for none in [u64::from(u32::MAX), 100_000] {
        let found = ends(&|m| {
            rename(m, 605, "<|im_end|>", 4);
            eos(m, none)
        });
        assert_eq!(found.last().unwrap(), "<|im_end|>", "{none} {found:?}");
    }
    let gguf = edited("gguf-gpt-oss", &|m| {
        rename(m, 605, "<|im_end|>", 1);
        m.insert("tokenizer.ggml.padding_token_id".into(), u32::MAX.into());
    });
    let gguf = gguf.unwrap();
    let added = gguf.tokenizer().unwrap()["added_tokens"].clone();
    let end = added.as_array().unwrap().iter().find(|token| token["id"] == 605).unwrap().clone();
    assert_eq!((&end["content"], &end["special"]), (&json!("<|im_end|>"), &json!(true)));
    assert!(gguf.tokenizer_config().unwrap().get("pad_token").is_none());
}

#[test]
fn files_without_a_rule_of_splitting_are_taken_as_llama_cpp_takes_them() {
    for edit in [None, Some(json!("default")), Some(json!(""))] {
        let gguf = edited("gguf-qwen2", &|m| {
            m.remove("tokenizer.ggml.pre");
            if let Some(name) = &edit {
                m.insert("tokenizer.ggml.pre".into(), name.clone());
            }
        });
        let gguf = gguf.unwrap();
        let steps = gguf.tokenizer().unwrap()["pre_tokenizer"]["pretokenizers"].clone();
        // Without a name llama.cpp applies four patterns, and the bytes are a step of their own.
        assert_eq!(steps.as_array().unwrap().len(), 5);
        let remarks = gguf.remarks();
        assert!(remarks.len() == 1 && remarks[0].contains("--tokenizer"), "{remarks:?}");
    }
    assert!(edited("gguf-qwen2", &|_| {}).unwrap().remarks().is_empty());
}

#[test]
fn a_pooling_is_as_if_files_of_sentence_transformers_said_it() {
    use crate::Pooling;
    for (number, pooling) in
        [(0, None), (1, Some(Pooling::Mean)), (2, Some(Pooling::Cls)), (3, Some(Pooling::Last))]
    {
        let edit =
            |m: &mut Map<String, Value>| drop(m.insert("qwen3.pooling_type".into(), number.into()));
        let gguf = edited("gguf-qwen3", &edit).unwrap();
        let checkpoint = Checkpoint::open(CheckpointFiles::Gguf(Arc::new(gguf))).unwrap();
        let sentence = checkpoint.sentence();
        assert_eq!((sentence.pooling, sentence.normalize), (pooling, pooling.is_some()));
        checkpoint.check_keys(&[]).unwrap();
    }
}

#[test]
fn unknown_keys_may_be_ignored_by_name() {
    let edit = |m: &mut Map<String, Value>| drop(m.insert("qwen3.new".into(), json!(2)));
    let gguf = edited("gguf-qwen3", &edit).unwrap();
    let checkpoint = Checkpoint::open(CheckpointFiles::Gguf(Arc::new(gguf))).unwrap();
    assert!(
        checkpoint
            .check_keys(&[])
            .unwrap_err()
            .to_string()
            .contains("--ignore-config-key qwen3.new")
    );
    checkpoint.check_keys(&["qwen3.new".to_owned()]).unwrap();
}

#[test]
fn projectors_are_no_models_and_endings_have_any_case() {
    for name in [
        "mmproj-a.gguf",
        "a.mmproj-f16.gguf",
        "a-mmproj-f16.gguf",
        "a-00002-of-00002.gguf",
        "a.bin",
    ] {
        assert_eq!(Gguf::model_name(name), None, "{name}");
    }
    for (name, model) in [("a.GGUF", "a"), ("mmprojection.gguf", "mmprojection")] {
        assert_eq!(Gguf::model_name(name), Some(model));
    }
}

/// A vocabulary in sentencepiece's own format is the same tokenizer.
#[test]
fn a_model_of_sentencepiece_is_the_tokenizer_of_its_gguf_file() {
    // The messages are written by hand, so the test needs neither protoc nor sentencepiece.
    let varint = |mut n: u64| {
        let mut bytes = Vec::new();
        while n > 0x7f {
            bytes.push(n as u8 | 0x80);
            n >>= 7;
        }
        bytes.push(n as u8);
        bytes
    };
    let number = |field: u64, n: u64| [varint(field << 3), varint(n)].concat();
    let message = |field: u64, bytes: &[u8]| {
        [varint(field << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
    };
    let gguf = edited("gguf-gemma2", &|_| {}).unwrap();
    let m = &gguf.metadata;
    let tokens = m.texts_opt("tokenizer.ggml.tokens").unwrap().unwrap();
    let scores = m.floats("tokenizer.ggml.scores").unwrap();
    let kinds = m.indices("tokenizer.ggml.token_type").unwrap();
    let mut file = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        // Wire type 5 is a fixed word of 32 bits. Fields of a piece are 1 its text, 2 its score, 3 its kind.
        let score = [vec![2 << 3 | 5], (scores[i] as f32).to_le_bytes().to_vec()].concat();
        let piece = [message(1, token.as_bytes()), score, number(3, kinds[i].into())].concat();
        file.extend(message(1, &piece));
    }
    let space = m.flag_or("tokenizer.ggml.add_space_prefix", true).unwrap();
    // Field 2 is the trainer's specification, whose field 3 has 2 for byte pairs.
    file.extend(message(2, &number(3, 2)));
    // Field 3 is the normalizer's specification: 3 puts a space
    // before texts, 4 removes repeated white space, 5 escapes it.
    file.extend(message(3, &[number(3, space.into()), number(4, 0)].concat()));
    let read = |file: Vec<u8>| {
        let read = move |name: &str| Ok((name == "tokenizer.model").then(|| file.clone()));
        crate::vocabulary::tokenizer(&read)
    };
    assert_eq!(read(file.clone()).unwrap().unwrap(), gguf.tokenizer().unwrap());
    file.extend(message(3, &number(4, 1)));
    for (file, part) in [
        (
            file[..file.len() - 1].to_vec(),
            "tokenizer.model cannot be read as a tokenizer: it is no model",
        ),
        (
            // Protobuf takes the last of two fields with one number, so each case appends its fault.
            [file.clone(), message(2, &number(3, 4))].concat(),
            "its model type is 4; 1, unigram, and 2, byte pairs, are read",
        ),
        (
            [file.clone(), message(2, &number(24, 1))].concat(),
            "it has spaces behind words, which is not supported",
        ),
        ([file.clone(), message(3, &number(5, 0))].concat(), "it keeps spaces as they are"),
        (
            [file, message(5, &message(2, b"x"))].concat(),
            "it has rules by which texts are changed back",
        ),
    ] {
        let line = read(file).unwrap_err().to_string();
        assert!(line.contains(part) && line.ends_with("by --tokenizer"), "{line}");
    }
}
