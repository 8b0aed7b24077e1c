//! Long prompts of models with linear attention, whose whole chunks a GPU computes in another form than shorter pieces.

use candle_core::Device;
use candlepower_checkpoint::{Checkpoint, CheckpointFiles};
use candlepower_models::{LoadDtype, LoadFormat, LoadOptions, WorkspaceSize, load_on_device};
use candlepower_testing::goldens::folder;

use super::{Runner, size};
use crate::golden::{largest, max_difference};

/// Goldens with the size of their keys or states, and the size that they get, for which the chunkwise form is compiled.
const HYBRIDS: [(&str, &str, &str); 5] = [
    ("qwen3_5-text", "\"linear_key_head_dim\": 32", "\"linear_key_head_dim\": 64"),
    ("qwen3_5-text", "\"linear_key_head_dim\": 32", "\"linear_key_head_dim\": 128"),
    ("bamba", "\"mamba_d_state\": 32", "\"mamba_d_state\": 64"),
    ("granite-hybrid-dense", "\"mamba_d_state\": 256", "\"mamba_d_state\": 128"),
    ("nemotron-h", "\"ssm_state_size\": 32", "\"ssm_state_size\": 128"),
];

const TOKENS: usize = 300;

fn runner(name: &str, (stored, own): (&str, &str), device: &Device, dtype: LoadDtype) -> Runner {
    let config = std::fs::read_to_string(folder(name).join("config.json")).unwrap();
    let positions = ("\"max_position_embeddings\": 256", "\"max_position_embeddings\": 512");
    assert!(config.contains(stored) && config.contains(positions.0), "{name}: other dimensions");
    let config = config.replace(stored, own).replace(positions.0, positions.1);
    let config: &'static [u8] = config.into_bytes().leak();
    let files = CheckpointFiles::Embedded(Box::leak(Box::new([("config.json", config)])));
    let options = LoadOptions {
        device: device.clone(),
        dtype,
        load_format: LoadFormat::Dummy,
        max_model_len: Some(320),
    };
    let checkpoint = Checkpoint::open(files).unwrap();
    let model = load_on_device(&checkpoint, &options, &mut |_| {}).unwrap();
    Runner::sized(model, WorkspaceSize { max_tokens: 320, max_rows: 320, ..size(false) })
}

/// Errors of a prompt's logits at once and in pieces of 50 tokens, of the largest logit: compared with f32 on the CPU, and with
/// each other.
fn errors(name: &str, change: (&str, &str), device: &Device) -> [f32; 3] {
    let prompt: Vec<u32> = (0..TOKENS as u32).map(|i| 3 + i * i % 89).collect();
    let blocks: Vec<u32> = (0..20).collect();
    let want = runner(name, change, &Device::Cpu, LoadDtype::F32).prefill(&prompt, TOKENS, &blocks);
    let mut own = runner(name, change, device, LoadDtype::Bf16);
    let whole = own.prefill(&prompt, TOKENS, &blocks);
    let others: Vec<u32> = (4..24).rev().collect();
    let pieces = own.prefill(&prompt, 50, &others);
    let largest = largest(&want);
    [(&whole, &want), (&pieces, &want), (&whole, &pieces)]
        .map(|(found, want)| max_difference(found, want) / largest)
}

fn compare(device: &Device) {
    for (name, stored, own) in HYBRIDS {
        let [whole, pieces, apart] = errors(name, (stored, own), device);
        println!("= {name}, {own}: {whole:.4} at once, {pieces:.4} in pieces, {apart:.4} apart");
        assert!(whole < 0.1 && pieces < 0.1 && apart < 0.1, "{name}, {own}: other logits");
    }
}

#[test]
fn long_prompts_of_hybrids() {
    compare(&Device::Cpu);
}

/// The kernels themselves.
#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh and, with an emulated one, `cargo xtask emulated` run it"]
fn a_gpu_computes_long_prompts_of_hybrids() {
    compare(&candlepower_gpu::cuda::open(0).unwrap());
}
