//! Configurations as they are on the hub, cut to what is read, and what is refused.

use super::*;
use crate::Description;

fn files(list: &[(&str, &str)]) -> CheckpointFiles {
    let list: Vec<(&'static str, &'static [u8])> = list
        .iter()
        .map(|(name, text)| {
            let name: &'static str = Box::leak((*name).to_owned().into_boxed_str());
            let text: &'static str = Box::leak((*text).to_owned().into_boxed_str());
            (name, text.as_bytes())
        })
        .collect();
    CheckpointFiles::Embedded(Box::leak(list.into_boxed_slice()))
}

fn open(list: &[(&str, &str)]) -> Result<EncoderCheckpoint> {
    match Description::open(files(list))? {
        Description::Encoder(checkpoint) => Ok(checkpoint),
        Description::Decoder(_) => panic!("not an encoder"),
    }
}

fn error(list: &[(&str, &str)]) -> String {
    open(list).unwrap_err().to_string()
}

/// sentence-transformers/all-MiniLM-L6-v2.
const MINI_LM: &str = r#"{
    "architectures": ["BertModel"], "hidden_act": "gelu", "hidden_size": 384,
    "intermediate_size": 1536, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
    "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 6, "pad_token_id": 0,
    "position_embedding_type": "absolute", "type_vocab_size": 2, "vocab_size": 30522}"#;
const MODULES: &str = r#"[
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#;
const MEAN: &str = r#"{"word_embedding_dimension": 384, "pooling_mode_cls_token": false,
    "pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": false}"#;

/// BAAI/bge-reranker-base.
const RERANKER: &str = r#"{
    "architectures": ["XLMRobertaForSequenceClassification"], "hidden_act": "gelu",
    "hidden_size": 768, "id2label": {"0": "LABEL_0"}, "intermediate_size": 3072,
    "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "num_attention_heads": 12,
    "num_hidden_layers": 12, "pad_token_id": 1, "position_embedding_type": "absolute",
    "type_vocab_size": 1, "vocab_size": 250002}"#;

/// answerdotai/ModernBERT-base, as transformers 4 writes it.
const MODERN: &str = r#"{
    "architectures": ["ModernBertModel"], "attention_bias": false, "classifier_activation": "gelu",
    "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "hidden_activation": "gelu",
    "hidden_size": 768, "intermediate_size": 1152, "local_attention": 128,
    "local_rope_theta": 10000.0, "max_position_embeddings": 8192, "mlp_bias": false,
    "norm_bias": false, "norm_eps": 1e-05, "num_attention_heads": 12, "num_hidden_layers": 22,
    "vocab_size": 50368}"#;

/// nomic-ai/nomic-embed-text-v1.5.
const NOMIC: &str = r#"{
    "activation_function": "swiglu", "architectures": ["NomicBertModel"], "causal": false,
    "layer_norm_epsilon": 1e-12, "max_trained_positions": 2048, "mlp_fc1_bias": false,
    "mlp_fc2_bias": false, "n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 12,
    "n_positions": 8192, "parallel_block": false, "prenorm": false, "qkv_proj_bias": false,
    "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": false,
    "rotary_emb_scale_base": null, "rotary_scaling_factor": null, "type_vocab_size": 2,
    "use_rms_norm": false, "vocab_size": 30528}"#;

#[test]
fn all_mini_lm_is_described_with_its_pooling() {
    let checkpoint = open(&[
        ("config.json", MINI_LM),
        ("modules.json", MODULES),
        ("1_Pooling/config.json", MEAN),
        ("sentence_bert_config.json", r#"{"max_seq_length": 256, "do_lower_case": false}"#),
    ])
    .unwrap();
    assert_eq!(checkpoint.architecture(), "BertModel");
    let sentence = checkpoint.sentence();
    assert_eq!((sentence.pooling, sentence.normalize), (Some(Pooling::Mean), true));
    assert_eq!(checkpoint.max_model_len(None).unwrap(), 256);
    assert_eq!(checkpoint.max_model_len(Some(512)).unwrap(), 512);
    assert!(matches!(
        checkpoint.max_model_len(Some(513)),
        Err(Error::MaxModelLen { asked: 513, limit: 512 })
    ));
    // The published file has 22,713,216 weights with the pooler, which no vector depends on.
    assert_eq!(checkpoint.num_parameters(), 22_713_216 - 384 * 384 - 384);
    assert!(checkpoint.may_skip_tensor("pooler.dense.weight"));
    assert!(checkpoint.may_skip_tensor("embeddings.position_ids"));
    assert!(!checkpoint.may_skip_tensor("encoder.layer.6.output.dense.bias"));
}

#[test]
fn positions_of_roberta_begin_behind_the_padding() {
    let checkpoint = open(&[("config.json", RERANKER)]).unwrap();
    let spec = checkpoint.spec();
    assert_eq!(spec.kind, EncoderKind::Bert { first_position: 2, distance_classes: 0 });
    assert_eq!(spec.max_positions, 512);
    assert_eq!(spec.head.unwrap().act, HeadAct::Tanh);
    let tensors = checkpoint.tensors();
    let positions = tensors.iter().find(|t| t.slot == "embeddings.position_embeddings.weight");
    assert_eq!(positions.unwrap().shape, [514, 768]);
    assert_eq!(
        positions.unwrap().names,
        ["embeddings.position_embeddings.weight", "roberta.embeddings.position_embeddings.weight"]
    );
    // transformers knows nothing of a sigmoid. sentence-transformers
    // applies it unless the configuration says otherwise.
    assert!(spec.head.unwrap().sigmoid);
    let raw = RERANKER.replacen(
        '{',
        r#"{"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},"#,
        1,
    );
    assert!(!open(&[("config.json", &raw)]).unwrap().spec().head.unwrap().sigmoid);
    let other = raw.replace("linear.Identity", "activation.Tanh");
    assert!(error(&[("config.json", &other)]).contains("`sentence_transformers.activation_fn`"));
    let out = tensors.iter().find(|t| t.slot == "score.out.weight").unwrap();
    assert_eq!(out.names, ["classifier.out_proj.weight"]);
}

/// sentence-transformers/all-mpnet-base-v2, whose class names the head that it was trained with.
const MPNET: &str = r#"{
    "architectures": ["MPNetForMaskedLM"], "hidden_act": "gelu", "hidden_size": 768,
    "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 514,
    "model_type": "mpnet", "num_attention_heads": 12, "num_hidden_layers": 12,
    "pad_token_id": 1, "relative_attention_num_buckets": 32, "vocab_size": 30527}"#;

#[test]
fn mpnet_has_numbers_for_distances_and_no_types() {
    let beside = [("modules.json", MODULES), ("1_Pooling/config.json", MEAN)];
    let checkpoint = open(&[&[("config.json", MPNET)], &beside[..]].concat()).unwrap();
    assert_eq!(checkpoint.architecture(), "MPNetModel");
    let spec = checkpoint.spec();
    assert_eq!(spec.kind, EncoderKind::Bert { first_position: 2, distance_classes: 32 });
    assert_eq!((spec.max_positions, spec.token_types), (512, 0));
    // The published file has as many, and the pooler.
    assert_eq!(checkpoint.num_parameters(), 109_486_464 - 768 * 768 - 768);
    let few = MPNET.replace(r#"buckets": 32"#, r#"buckets": 16"#);
    let few = few.replace("ForMaskedLM", "Model");
    assert!(error(&[("config.json", &few)]).contains("`relative_attention_num_buckets` = 16"));
    let alone = error(&[("config.json", MPNET)]);
    assert!(alone.contains("`MPNetForMaskedLM` is not supported"), "{alone}");
}

#[test]
fn a_classifier_with_many_labels_is_refused() {
    let many = RERANKER.replace(r#"{"0": "LABEL_0"}"#, r#"{"0": "A", "1": "B", "2": "C"}"#);
    assert_eq!(
        error(&[("config.json", &many)]),
        "config.json: `id2label` = \"3 labels\" is not supported; a classifier with one label (a cross-encoder) is"
    );
}

#[test]
fn modern_bert_reads_both_spellings() {
    let four = open(&[("config.json", MODERN)]).unwrap();
    let expected = EncoderKind::ModernBert {
        global_every: 3,
        window: 128,
        global_theta: 160_000.0,
        local_theta: 10_000.0,
    };
    assert_eq!(four.spec().kind, expected);
    let types: Vec<&str> =
        (0..22).map(|i| if i % 3 == 0 { "full_attention" } else { "sliding_attention" }).collect();
    let five = MODERN
        .replace(
            r#""global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,"#,
            &format!(
                r#""layer_types": {}, "rope_parameters": {{
                "full_attention": {{"rope_type": "default", "rope_theta": 160000.0}},
                "sliding_attention": {{"rope_type": "default", "rope_theta": 10000.0}}}},"#,
                serde_json::to_string(&types).unwrap()
            ),
        )
        .replace(r#""local_rope_theta": 10000.0,"#, "");
    assert_eq!(open(&[("config.json", &five)]).unwrap().spec().kind, expected);
    // A second global layer at the distance of one makes the list irregular.
    let uneven = five.replacen("sliding_attention", "full_attention", 1);
    assert!(error(&[("config.json", &uneven)]).contains("layer_types"));
}

#[test]
fn what_would_change_the_vectors_is_refused_by_name() {
    for (text, key) in [
        (MODERN.replace(r#""norm_bias": false"#, r#""norm_bias": true"#), "norm_bias"),
        (NOMIC.replace("swiglu", "gelu"), "activation_function"),
        (NOMIC.replace(r#""prenorm": false"#, r#""prenorm": true"#), "prenorm"),
        (NOMIC.replace(r#"fraction": 1.0"#, r#"fraction": 0.5"#), "rotary_emb_fraction"),
        (MINI_LM.replace("absolute", "relative_key"), "position_embedding_type"),
        (MINI_LM.replace(r#"heads": 12"#, r#"heads": 7"#), "num_attention_heads"),
        // By the names that the files have.
        (DISTIL_BERT.replace(r#"heads": 12"#, r#"heads": 7"#), "n_heads"),
        (NOMIC.replace(r#"head": 12"#, r#"head": 7"#), "n_head"),
        (MINI_LM.replace(r#""gelu""#, r#""mish""#), "hidden_act"),
        (MINI_LM.replace(r#""type_vocab_size": 2,"#, ""), "type_vocab_size"),
        (
            MODERN.replace(
                r#"Model"],"#,
                r#"ForSequenceClassification"], "id2label": {"0": "a"}, "classifier_pooling": "max","#,
            ),
            "classifier_pooling",
        ),
    ] {
        let error = error(&[("config.json", &text)]);
        assert!(error.contains(&format!("`{key}`")), "{error}");
    }
}

const DISTIL_BERT: &str = r#"{
    "architectures": ["DistilBertModel"], "activation": "gelu", "dim": 768, "hidden_dim": 3072,
    "max_position_embeddings": 512, "n_heads": 12, "n_layers": 6, "vocab_size": 30522}"#;

/// Keys of sizes, and values that no model comes near to.
const SIZES: [(&str, u64); 18] = [
    ("vocab_size", 1 << 24),
    ("max_position_embeddings", 1 << 24),
    ("n_positions", 1 << 24),
    ("max_trained_positions", 1 << 24),
    ("type_vocab_size", 1 << 24),
    ("hidden_size", 1 << 20),
    ("dim", 1 << 20),
    ("n_embd", 1 << 20),
    ("intermediate_size", 1 << 20),
    ("hidden_dim", 1 << 20),
    ("n_inner", 1 << 20),
    ("num_attention_heads", 1 << 12),
    ("n_heads", 1 << 12),
    ("n_head", 1 << 12),
    ("num_hidden_layers", 1 << 12),
    ("n_layers", 1 << 12),
    ("n_layer", 1 << 12),
    ("pad_token_id", 1 << 23),
];

#[test]
fn sizes_are_bounded() {
    let mut num_refused = 0;
    for text in [MINI_LM, RERANKER, MODERN, NOMIC, DISTIL_BERT] {
        open(&[("config.json", text)]).unwrap();
        let keys: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).unwrap();
        let with = |changed: &[(&str, u64)]| {
            let mut keys = keys.clone();
            keys.extend(changed.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())));
            serde_json::Value::Object(keys).to_string()
        };
        let sizes = SIZES.into_iter().filter(|(key, _)| keys.contains_key(*key));
        let sizes = sizes.collect::<Vec<_>>();
        // BERT itself does not use this key.
        for (key, most) in sizes.iter().filter(|(key, _)| *key != "pad_token_id") {
            let mut changed = vec![(*key, most + 1)];
            if *key == "max_trained_positions" {
                changed.push(("rotary_scaling_factor", 2));
            }
            let line = error(&[("config.json", &with(&changed))]);
            assert!(line.contains(&format!("`{key}` = {}", most + 1)), "{line}");
            assert!(line.contains(&format!("at most {most} is")), "{line}");
            num_refused += 1;
        }
        // Nothing overflows for the largest sizes together.
        let largest = open(&[("config.json", &with(&sizes))]).unwrap();
        assert!(largest.num_parameters() > 1 << 50);
        let memory = largest.memory(EncoderMemoryRequest {
            max_model_len: largest.max_model_len(None).unwrap(),
            max_num_batched_tokens: 1 << 32,
            num_threads: 1 << 10,
            available_bytes: Some(1 << 40),
        });
        assert!(!memory.fits && memory.needed_bytes >= memory.weights_bytes);
    }
    assert!(num_refused >= 5 * 5);
    let far = RERANKER.replace(r#""pad_token_id": 1"#, r#""pad_token_id": 18446744073709551615"#);
    assert!(error(&[("config.json", &far)]).contains("`max_position_embeddings` = 514"));
}

#[test]
fn nomic_bert_with_a_scaled_rope_stops_where_it_was_trained() {
    let plain = open(&[("config.json", NOMIC)]).unwrap();
    assert_eq!(plain.spec().max_positions, 8192);
    assert!(plain.tensors().iter().all(|t| !t.slot.ends_with("Wqkv.bias")));
    let scaled = NOMIC.replace(r#"factor": null"#, r#"factor": 2"#);
    assert_eq!(open(&[("config.json", &scaled)]).unwrap().spec().max_positions, 2048);
}

#[test]
fn sentence_files_that_are_not_supported_are_named() {
    let with = |modules: &str, pooling: &str| {
        let list = [
            ("config.json", MINI_LM),
            ("modules.json", modules),
            ("1_Pooling/config.json", pooling),
        ];
        open(&list).map(|c| c.sentence().clone())
    };
    let other = MODULES.replace("models.Normalize", "models.LSTM");
    assert_eq!(
        with(&other, MEAN).unwrap_err().to_string(),
        "modules.json: `[2].type` = LSTM is not supported; Transformer, Pooling, then Dense, then Normalize are"
    );
    let two = MEAN.replace(r#"cls_token": false"#, r#"cls_token": true"#);
    assert!(with(MODULES, &two).unwrap_err().to_string().contains("one mode alone is"));
    let sqrt = r#"{"pooling_mode_mean_sqrt_len_tokens": true}"#;
    assert!(with(MODULES, sqrt).unwrap_err().to_string().contains("lasttoken is"));
    let named = with(MODULES, r#"{"pooling_mode": "lasttoken"}"#).unwrap();
    assert_eq!(named.pooling, Some(Pooling::Last));
    for (pooling, words) in [
        (r#"{"pooling_mode": "first"}"#, "`pooling_mode` = \"first\" is not supported"),
        (r#"{"pooling_mode": ["cls"]}"#, "`pooling_mode` = [\"cls\"] is not supported"),
        (r#"{"pooling_mode": "mean", "include_prompt": false}"#, "`include_prompt` = false"),
        ("{}", "`pooling_mode` is missing"),
    ] {
        let error = with(MODULES, pooling).unwrap_err().to_string();
        assert!(error.starts_with("1_Pooling/config.json") && error.contains(words), "{error}");
    }
    // A path with more than a folder's name could read a file outside of the model.
    let away = MODULES.replace("1_Pooling\"", "../1_Pooling\"");
    assert!(
        with(&away, MEAN).unwrap_err().to_string().contains("1_Pooling/config.json is missing")
    );
    assert!(with("{}", MEAN).unwrap_err().to_string().contains("modules.json is damaged"));
}

#[test]
fn dense_layers_are_described_and_what_they_cannot_be_is_named() {
    let with = |dense: &str| {
        // The third module becomes a dense layer, so nothing normalizes vectors here.
        let modules = MODULES.replace("2_Normalize\"", "2_Dense\"").replace("Normalize", "Dense");
        let list = [
            ("config.json", MINI_LM),
            ("modules.json", modules.as_str()),
            ("1_Pooling/config.json", MEAN),
            ("2_Dense/config.json", dense),
        ];
        open(&list).map(|c| c.sentence().dense.clone())
    };
    let found = with(
        r#"{"in_features": 384, "out_features": 64, "bias": false, "activation_function": "torch.nn.modules.linear.Identity"}"#,
    );
    let file = "2_Dense/model.safetensors".to_owned();
    let linear = DenseSpec { file, inputs: 384, outputs: 64, bias: false, act: None };
    assert_eq!(linear.num_bytes(), 384 * 64 * 4);
    assert_eq!(found.unwrap(), [linear]);
    let sizes = r#""in_features": 384, "out_features": 64"#;
    let usual = with(&format!("{{{sizes}}}")).unwrap();
    assert_eq!((usual[0].bias, usual[0].act), (true, Some(HeadAct::Tanh)));
    for (more, words) in [
        (r#""activation_function": "torch.nn.SiLU""#, "Identity, Tanh, ReLU and GELU are"),
        (r#""use_residual": true"#, "`use_residual` = true is not supported"),
        (r#""module_input_name": "token_embeddings""#, "sentence_embedding is"),
    ] {
        let error = with(&format!("{{{sizes}, {more}}}")).unwrap_err().to_string();
        assert!(error.starts_with("2_Dense/config.json") && error.contains(words), "{error}");
    }
    assert!(with(r#"{"in_features": 384}"#).unwrap_err().to_string().contains("out_features"));
}

#[test]
fn prompts_have_names() {
    let with = |prompts: &str| {
        let list = [("config.json", MINI_LM), ("config_sentence_transformers.json", prompts)];
        open(&list).map(|c| c.sentence().clone())
    };
    let settings =
        with(r#"{"prompts": {"query": "query: "}, "default_prompt_name": "query"}"#).unwrap();
    assert_eq!(settings.prompts["query"], "query: ");
    assert_eq!(settings.default_prompt.as_deref(), Some("query"));
    let error = with(r#"{"prompts": {}, "default_prompt_name": "query"}"#).unwrap_err();
    assert!(error.to_string().contains("default_prompt_name"), "{error}");
}

#[test]
fn memory_is_weights_and_activations() {
    let checkpoint = open(&[("config.json", MINI_LM)]).unwrap();
    let request = |available_bytes| EncoderMemoryRequest {
        max_model_len: 256,
        max_num_batched_tokens: 512,
        num_threads: 2,
        available_bytes,
    };
    let memory = checkpoint.memory(request(Some(8 << 30)));
    assert_eq!(memory.weights_bytes, checkpoint.num_parameters() * 4);
    assert!(memory.fits && memory.check().is_ok());
    let error = checkpoint.memory(request(Some(1 << 20))).check().unwrap_err();
    assert!(error.to_string().starts_with("out of memory: "), "{error}");
}
