//! The device memory that steps take.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use candlepower_checkpoint::{Checkpoint, CheckpointFiles};
use candlepower_comm::Comm;
use candlepower_kernels::sampling::{Penalties, SamplingRow};
use candlepower_models::{
    LoadDtype, LoadFormat, LoadOptions, load_on_device, load_shard_on_device,
};
use candlepower_scheduler::{BlockId, LogitsFor, SeqId, StateSlot, StepRow, TokenSource};

use super::*;
use crate::step_io::{KnownTokens, OutputPosition, Sample};

const SEQS: u32 = 3;
const PROMPT: u32 = 5;

/// With a graph for each number of sequences; in a group of ranks of which it is the only one, or in none.
fn runner(device: &Device, dtype: LoadDtype, in_group: bool) -> DeviceRunner {
    let folder = candlepower_testing::goldens::folder("llama");
    let checkpoint = Checkpoint::open(CheckpointFiles::Folder(folder)).unwrap();
    let load_format = LoadFormat::Auto;
    let options =
        LoadOptions { device: device.clone(), dtype, load_format, max_model_len: Some(128) };
    let model = match in_group {
        true => {
            let group = Comm::local(1, Duration::from_secs(60)).unwrap().remove(0);
            load_shard_on_device(&checkpoint, &options, Arc::new(group), &mut |_| {})
        }
        false => load_on_device(&checkpoint, &options, &mut |_| {}),
    };
    let model = model.unwrap();
    let size = WorkspaceSize {
        num_states: 8,
        max_tokens: 16,
        max_seqs: 4,
        max_rows: 4,
        num_blocks: 8,
        block_size: 16,
        fp8_cache: false,
        deterministic: false,
    };
    let mut runner = DeviceRunner::new(model, size, Graphs::of(&size, true).unwrap(), 0).unwrap();
    runner.capture_graphs(&mut |_, _| {}).unwrap();
    runner
}

/// A step of all sequences from `first_position` on, each with samples of the kind `kind`.
fn step(runner: &mut DeviceRunner, first_position: u32, tokens: u32, kind: u32) {
    let source = |token| match first_position {
        0 => TokenSource::Id(7 + token),
        _ => TokenSource::PreviousRow(token % SEQS),
    };
    let row = |seq: u32| StepRow {
        seq: SeqId(u64::from(seq)),
        tokens: (0..tokens).map(|token| source(token + seq)).collect(),
        first_position,
        rope_positions: Vec::new(),
        whole: Vec::new(),
        state_slot: Some(StateSlot(seq)),
        block_table: vec![BlockId(2 * seq), BlockId(2 * seq + 1)],
        logits: LogitsFor::Last,
        samples: vec![SeqId(u64::from(seq))],
    };
    let seen = HashMap::from([(5, 1), (9, 2)]);
    let mask = vec![u32::MAX; runner.model.spec().vocab_size.div_ceil(32)];
    let params = SamplingRow {
        temperature: if kind == 0 { 0.0 } else { 0.9 },
        top_k: (kind == 1).then_some(20),
        top_p: if kind == 1 { 0.9 } else { 1.0 },
        penalties: (kind == 2).then_some(Penalties {
            repetition: 1.2,
            presence: 0.1,
            frequency: 0.1,
            seen: &seen,
        }),
        logit_bias: if kind == 2 { &[(3, 1.0), (4, -1.0)] } else { &[] },
        mask: (kind == 3).then_some(&mask),
        logprobs: (kind == 1).then_some(5),
        ..SamplingRow::greedy()
    };
    let output = vec![5; first_position as usize];
    let sample = |seq: u32| Sample {
        params: params.clone(),
        position: OutputPosition { seed: u64::from(seq), index: first_position },
        tokens: KnownTokens { prompt: &[5, 9], output: &output },
        ..Sample::greedy(SeqId(u64::from(seq)))
    };
    let batch = SamplingBatch { samples: (0..SEQS).map(sample).collect(), prompts: Cow::default() };
    let step = Step { rows: (0..SEQS).map(row).collect(), ..Step::default() };
    runner.launch(&step, &batch).unwrap();
    let output = runner.wait().unwrap();
    assert!(output.samples.iter().all(|sample| sample.token_id.is_some()), "kind {kind}");
}

/// Runs four kinds of samples in turn, after one round of them. Returns the memory taken before and after.
fn decode<T>(runner: &mut DeviceRunner, taken: impl Fn(&DeviceRunner) -> T) -> (T, T) {
    step(runner, 0, PROMPT, 0);
    let mut position = PROMPT;
    let mut rounds = |runner: &mut DeviceRunner, count: u32| {
        for kind in 0..4 * count {
            step(runner, position, 1, kind % 4);
            position += 1;
        }
    };
    rounds(runner, 1);
    let before = taken(runner);
    rounds(runner, 4);
    (before, taken(runner))
}

/// Only memory that the runner itself takes: the CPU shows no more. The next test reads a GPU's pool, which operations use, too.
#[test]
fn decodes_take_no_memory_once_each_kind_of_sample_was_there() {
    let mut runner = runner(&Device::Cpu, LoadDtype::F32, false);
    let (before, after) = decode(&mut runner, |runner| runner.grown());
    assert_eq!(before, after);
    // The first readback and the first counts; all else was reserved.
    assert_eq!(before, 2);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh and, with an emulated one, `cargo xtask emulated` run it"]
fn a_gpu_takes_no_memory_in_decodes() {
    use candlepower_gpu::cuda::{open, pool_use, watch_pool};

    let gpu = open(0).unwrap();
    let mut runner = runner(&gpu, LoadDtype::Bf16, false);
    let (before, after) = decode(&mut runner, |_| {
        let taken = pool_use(&gpu).unwrap();
        watch_pool(&gpu).unwrap();
        taken
    });
    let most = after.most - before.now;
    println!("= {most} bytes taken in 16 decode steps beside {} reserved ones", before.now);
    assert_eq!((most, after.now), (0, before.now));
}

/// NCCL would wait for ever for a graph that outlives its group.
#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh and, with an emulated one, `cargo xtask emulated` run it"]
fn graphs_end_before_the_group_of_their_sums() {
    let gpu = candlepower_gpu::cuda::open(0).unwrap();
    let mut runner = runner(&gpu, LoadDtype::Bf16, true);
    step(&mut runner, 0, PROMPT, 0);
    step(&mut runner, PROMPT, 1, 0);
    drop(runner);
}
