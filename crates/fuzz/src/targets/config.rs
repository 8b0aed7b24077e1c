//! Mutates configurations of the golden checkpoints. All sizes are computed for those that are accepted: nothing may
//! overflow.

use candlepower_checkpoint::{
    Checkpoint, CheckpointFiles, Counted, DeviceKind, DeviceMemory, ImageMemory, MemoryPlan,
    MemoryRequest, Result,
};
use serde_json::{Value, json};

use super::Folder;
use crate::{Round, Verdict, change};

pub(super) fn open() -> Round {
    let mut folders: Vec<_> = std::fs::read_dir(candlepower_testing::goldens::root())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    folders.sort();
    // Encoders are in a folder of their own, and GGUF files have no separate configuration.
    let configs = folders.iter().filter_map(|folder| {
        serde_json::from_slice(&std::fs::read(folder.join("config.json")).ok()?).ok()
    });
    let configs: Vec<Value> = configs.collect();
    let (folder, strange) = (Folder::new(), strange());
    Box::new(move |random| {
        let mut config = random.choice(&configs).unwrap().clone();
        (0..=random.usize(..3)).for_each(|_| change::json(&mut config, &strange, random));
        folder.write("config.json", config.to_string().as_bytes());
        Verdict::of(arithmetic(CheckpointFiles::Folder(folder.0.clone())))
    })
}

/// Opens a configuration and computes all sizes that depend on it.
fn arithmetic(files: CheckpointFiles) -> Result<()> {
    let checkpoint = Checkpoint::open(files)?;
    // Sizes must not overflow even for a model that the plan then refuses.
    let spec = checkpoint.spec();
    spec.num_parameters();
    checkpoint.weight_bytes(None);
    for device in [DeviceKind::Cpu, DeviceKind::Gpu { utilization: 0.9 }] {
        let request = MemoryRequest {
            weights: checkpoint.weights_dtype(None),
            kv: checkpoint.weights_dtype(None).into(),
            max_model_len: spec.max_model_len(None)?,
            block_size: 16,
            max_num_seqs: 256,
            max_num_batched_tokens: None,
            kv_cache_bytes: None,
            tensor_parallel_size: 1,
            images: ImageMemory::default(),
            memory: DeviceMemory {
                device,
                available_bytes: Some(16 << 30),
                counted: Counted::BeforeLoading,
            },
        };
        MemoryPlan::new(spec, request).check(spec)?;
    }
    Ok(())
}

fn strange() -> Vec<Value> {
    vec![
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
        // Lists of excluded modules take regular expressions with this prefix, and this one is invalid.
        json!(["re:("]),
        json!([1e308, {"a": []}]),
        json!({}),
        json!({"rope_type": "yarn", "factor": 1e300}),
        json!({"quant_method": "gptq", "bits": 4, "group_size": 2}),
        json!({"quant_method": "fp8", "weight_block_size": [4_000_000_000_u64, 2]}),
    ]
}
