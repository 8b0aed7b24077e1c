//! Configurations with anything in them: each is described or refused in one line, and nothing overflows.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use candlepower_checkpoint::{
    Checkpoint, CheckpointFiles, Counted, DeviceKind, DeviceMemory, MemoryPlan, MemoryRequest,
};
use serde_json::{Value, json};

/// Changed configurations per golden one.
const ROUNDS: usize = 500;

/// Random numbers. Source: SplitMix64 (Steele, Lea, Flood, 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// Values that stand where others are expected.
fn strange(random: &mut Random) -> Value {
    let values = [
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(3),
        json!(1 << 20),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e300),
        json!(-1e-300),
        json!(0.5),
        json!(""),
        json!("fp8"),
        json!("x".repeat(5_000)),
        json!([]),
        json!([0, 0]),
        json!(["re:("]),
        json!([1e308, {"a": []}]),
        json!({}),
        json!({"rope_type": "yarn", "factor": 1e300}),
        json!({"quant_method": "gptq", "bits": 4, "group_size": 2}),
        json!({"quant_method": "fp8", "weight_block_size": [4_000_000_000_u64, 2]}),
    ];
    values[random.below(values.len())].clone()
}

/// Changes one value somewhere inside.
fn change(value: &mut Value, random: &mut Random) {
    let inside = match value {
        Value::Object(entries) if !entries.is_empty() => {
            let at = random.below(entries.len());
            if random.below(8) == 0 {
                let key = entries.keys().nth(at).unwrap().clone();
                entries.remove(&key);
                return;
            }
            entries.values_mut().nth(at)
        }
        Value::Array(values) if !values.is_empty() => {
            let at = random.below(values.len());
            values.get_mut(at)
        }
        _ => None,
    };
    match inside {
        Some(inside) if inside.is_object() && random.below(4) != 0 => change(inside, random),
        Some(inside) => *inside = strange(random),
        None => *value = strange(random),
    }
}

/// Opens a configuration and, where it can be, does all the arithmetic about it.
fn open(test: &str, config: String) -> Result<(), String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hostile-{test}"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), config).unwrap();
    let one_line = |error: candlepower_checkpoint::Error| error.to_string();
    let checkpoint = Checkpoint::open(CheckpointFiles::Folder(folder)).map_err(one_line)?;
    let spec = checkpoint.spec();
    spec.num_parameters();
    checkpoint.weight_bytes(None);
    for device in [DeviceKind::Cpu, DeviceKind::Gpu { utilization: 0.9 }] {
        let request = MemoryRequest {
            weights: checkpoint.weights_dtype(None),
            kv: checkpoint.weights_dtype(None).into(),
            max_model_len: spec.max_model_len(None).map_err(one_line)?,
            block_size: 16,
            max_num_seqs: 256,
            max_num_batched_tokens: 512,
            kv_cache_bytes: None,
            tensor_parallel_size: 1,
            memory: DeviceMemory {
                device,
                available_bytes: Some(16 << 30),
                counted: Counted::BeforeLoading,
            },
        };
        MemoryPlan::new(spec, request).check(spec).map_err(one_line)?;
    }
    Ok(())
}

#[test]
fn changed_configurations_are_described_or_refused_in_one_line() {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let mut random = Random(7);
    let (mut opened, mut refused) = (0, 0);
    for golden in std::fs::read_dir(goldens).unwrap() {
        // Those of encoders lie in a folder of their own.
        let config = golden.unwrap().path().join("config.json");
        let Ok(text) = std::fs::read_to_string(config) else { continue };
        let original: Value = serde_json::from_str(&text).unwrap();
        for _ in 0..ROUNDS {
            let mut config = original.clone();
            (0..=random.below(3)).for_each(|_| change(&mut config, &mut random));
            match open("changed", config.to_string()) {
                Ok(()) => opened += 1,
                Err(line) => {
                    refused += 1;
                    assert!(!line.contains('\n') && line.len() < 2_000, "{line:.300}\n{config}");
                }
            }
        }
    }
    assert!(opened > 1_000 && refused > 1_000, "{opened} opened, {refused} refused");
}

#[test]
fn numbers_beyond_any_model_are_refused_by_name() {
    let llama = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/llama/config.json");
    let text = std::fs::read_to_string(llama).unwrap();
    for key in ["hidden_size", "num_hidden_layers", "vocab_size", "head_dim", "num_attention_heads"]
    {
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config[key] = 4_000_000_000_u64.into();
        let error = open("numbers", config.to_string()).unwrap_err();
        let expected = format!("config.json: `{key}` = 4000000000 is not supported; at most ");
        assert!(error.starts_with(&expected), "{error}");
        config.as_object_mut().unwrap().remove(key);
        if key != "head_dim" {
            let error = open("numbers", config.to_string()).unwrap_err();
            assert!(error.starts_with(&format!("config.json: `{key}` is missing; ")), "{error}");
        }
    }
}

#[test]
fn what_is_no_json_object_is_refused() {
    for text in ["", "[]", "null", "{", "\u{0}", &"[".repeat(100_000), &"{\"a\":".repeat(100_000)] {
        let error = open("text", text.to_owned()).unwrap_err();
        assert!(error.starts_with("config.json is damaged, it is not a JSON object: "), "{error}");
        assert!(!error.contains('\n'));
    }
}
