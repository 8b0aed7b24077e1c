//! The default configurations of transformers, whose keys are all known. `scripts/default_configs.py` writes them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::{CheckpointFiles, Description};

/// Defaults that are no whole model, by the key that is refused: published models have other values.
const INCOMPLETE: [(&str, &str); 12] = [
    // Without attention in any layer.
    ("BambaForCausalLM", "`attn_layer_indices`"),
    ("GraniteMoeHybridForCausalLM", "`layer_types`"),
    // Classifiers of two classes. Those with one are cross-encoders.
    ("BertForSequenceClassification", "`id2label`"),
    ("DistilBertForSequenceClassification", "`id2label`"),
    ("ModernBertForSequenceClassification", "`id2label`"),
    ("MPNetForSequenceClassification", "`id2label`"),
    ("RobertaForSequenceClassification", "`id2label`"),
    ("XLMRobertaForSequenceClassification", "`id2label`"),
    // Sizes that are missing or do not fit.
    ("DeepseekV2ForCausalLM", "`num_experts_per_tok`"),
    ("Dots1ForCausalLM", "`n_routed_experts`"),
    ("Glm4MoeForCausalLM", "`head_dim`"),
    // The published models have the names of their own code.
    ("NomicBertModel", "`rotary_emb_base`"),
];

const CONFIGS: &str = include_str!("default_configs.json");

/// A configuration, which is a list of places among the pairs of keys and values. With parts it is such a list and the parts.
fn unpacked(packed: &Value, pairs: &[(String, Value)]) -> Map<String, Value> {
    let all = packed.as_array().unwrap();
    let (own, parts) = match all.as_slice() {
        [Value::Array(own), Value::Object(parts)] => (own, Some(parts)),
        _ => (all, None),
    };
    let own = own.iter().map(|place| pairs[place.as_u64().unwrap() as usize].clone());
    let parts = parts.into_iter().flatten();
    own.chain(parts.map(|(key, part)| (key.clone(), unpacked(part, pairs).into()))).collect()
}

#[test]
fn no_key_of_a_default_configuration_is_refused_without_need() {
    let configs: Value = serde_json::from_str(CONFIGS).unwrap();
    let pairs: Vec<(String, Value)> = serde_json::from_value(configs["pairs"].clone()).unwrap();
    let (mut num_read, mut refused) = (0, BTreeMap::<&str, String>::new());
    for (name, packed) in configs["architectures"].as_object().unwrap() {
        let mut config = unpacked(packed, &pairs);
        config.insert("architectures".to_owned(), vec![name.as_str()].into());
        let config = Value::Object(config).to_string().leak();
        let files: Vec<(&'static str, &'static [u8])> = vec![("config.json", config.as_bytes())];
        let description = Description::open(CheckpointFiles::Embedded(files.leak()));
        let checked = description.and_then(|description| description.check_keys(&[]));
        match checked {
            Ok(()) => num_read += 1,
            Err(error) => drop(refused.insert(name.as_str(), error.to_string())),
        }
    }
    for (name, key) in INCOMPLETE {
        let error = refused.remove(name).unwrap_or_else(|| panic!("{name} is read"));
        assert!(error.contains(key) && !error.contains("is not known"), "{name}: {error}");
    }
    assert!(refused.is_empty(), "{refused:#?}");
    assert!(num_read > 70, "{num_read}");
}
