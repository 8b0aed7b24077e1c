//! Models split over ranks, which are threads: the same logits and tokens as whole ones, and the traffic that arithmetic says.

use std::{sync::Arc, thread, time::Duration};

use candle_core::DType;
use candlepower_checkpoint::{Checkpoint, CheckpointFiles, Dtype, FfnSpec, LayerSpec, ModelSpec};
use candlepower_comm::{Comm, Traffic};
use candlepower_models::{Decoder, LoadDtype, LoadFormat, LoadOptions, load, load_shard};

use crate::golden::{
    BLOCK_SIZE, CACHE, Golden, NUM_BLOCKS, ON_LOAD, Rounding, TOLERANCE, checkpoint, greedy,
    max_difference, options, prefill,
};
use candlepower_testing::goldens::{DECODERS, folder};

/// Tokens that are compared.
const NEW_TOKENS: usize = 64;

/// The split between two ranks, or four, cuts this model's blocks of scales.
const K_QUANTS: &str = "gguf-qwen2";

/// Runs `work` on each of so many ranks, in threads of their own; the results in the order of the ranks.
pub(crate) fn on_ranks<T: Send>(ranks: usize, work: impl Fn(Arc<Comm>) -> T + Sync) -> Vec<T> {
    let comms = Comm::local(ranks, Duration::from_secs(120)).unwrap();
    thread::scope(|scope| {
        let work = &work;
        let rank = |comm| scope.spawn(move || work(Arc::new(comm)));
        let ranks: Vec<_> = comms.into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Loads a checkpoint on so many ranks and runs `work` on each of them.
pub(crate) fn on_shards<T: Send>(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    ranks: usize,
    work: impl Fn(&Decoder) -> T + Sync,
) -> Vec<T> {
    on_ranks(ranks, |comm| work(&load_shard(checkpoint, options, comm, &mut |_| {}).unwrap()))
}

/// At the context for which golden values were made.
fn at_full_length(checkpoint: &Checkpoint) -> LoadOptions {
    LoadOptions { max_model_len: Some(checkpoint.spec().max_positions), ..options() }
}

#[test]
fn two_ranks_and_four_give_what_one_gives() {
    let quantized = [
        "gptq-8bit",
        "fp8",
        "fp8-channel",
        "squeezellm",
        "squeezellm-sparse",
        "awq-experts",
        "awq-delta",
        K_QUANTS,
    ];
    let on_load = ON_LOAD.iter().map(|(name, ..)| *name);
    for name in DECODERS.iter().copied().chain(quantized).chain(on_load) {
        let (checkpoint, golden) = (checkpoint(name), Golden::read(name));
        let options = at_full_length(&checkpoint);
        let room = checkpoint.spec().max_positions - golden.prompt.len();
        let answer = |model: &Decoder| {
            let logits = prefill(model, &golden.prompt, golden.prompt.len(), 0..8);
            (logits, greedy(model, &golden.prompt, NEW_TOKENS.min(room)))
        };
        let (logits, tokens) = answer(&load(&checkpoint, &options, &mut |_| {}).unwrap());
        let rounding = Rounding::of(&checkpoint);
        rounding.check(&logits, &golden.logits, TOLERANCE, 1, &format!("{name}: one rank"));
        for ranks in numbers_of_ranks(&checkpoint) {
            for (rank, found) in
                on_shards(&checkpoint, &options, ranks, answer).into_iter().enumerate()
            {
                let what = format!("{name}, rank {rank} of {ranks}");
                if !rounding.check(&found.0, &logits, TOLERANCE, ranks, &what) {
                    continue;
                }
                assert_eq!(found.1, tokens, "{name}, rank {rank} of {ranks}");
            }
        }
    }
}

/// A rank does not load for minutes after another rank has reported that it cannot.
#[test]
fn loading_ends_when_another_rank_fails() {
    let mut comms = Comm::local(2, Duration::from_secs(120)).unwrap();
    comms.pop().unwrap().fail("its disk is gone");
    let root = Arc::new(comms.pop().unwrap());
    let loaded = load_shard(&checkpoint("llama"), &options(), root, &mut |_| {});
    assert_eq!(loaded.err().unwrap().to_string(), "rank 1 failed: its disk is gone");
}

/// Over how many ranks a model is split here; over none where it cannot be.
pub(crate) fn numbers_of_ranks(checkpoint: &Checkpoint) -> Vec<usize> {
    let sizes = checkpoint.spec().tensor_parallel_sizes();
    [2, 4].into_iter().filter(|ranks| sizes.contains(ranks)).collect()
}

/// The memory of a rank is known from the configuration alone, to the byte, and so are its messages to the others. These are sums of
/// hidden states for each mixer and each feed-forward, one for the embedding, and its shard of the logits. Where a norm goes over all
/// heads, two sums of squares for each token are added.
#[test]
fn memory_and_traffic_of_a_rank_are_computed_before_loading() {
    for name in DECODERS.iter().chain([&K_QUANTS]) {
        let checkpoint = checkpoint(name);
        let spec = checkpoint.spec();
        let (layers, hidden) = (spec.layers.len() as u64, spec.hidden_size as u64);
        for ranks in numbers_of_ranks(&checkpoint) {
            let part = spec.vocab_size as u64 / ranks as u64;
            let prompt: Vec<u32> = (10..23).collect();
            let as_stored = LoadOptions { dtype: LoadDtype::Auto, ..options() };
            let found = on_shards(&checkpoint, &as_stored, ranks, |model| {
                let cache = model.new_cache(CACHE, DType::F32).unwrap();
                prefill(model, &prompt, 13, 0..8);
                (model.weight_bytes() as u64, cache.kv_bytes() as u64, model.comm().traffic())
            });
            for (rank, (weights, cache, traffic)) in found.into_iter().enumerate() {
                let planned = spec.rank_weight_bytes(checkpoint.weights_dtype(None), ranks);
                let weights = weights + bytes_of_rank_0_alone(spec, rank);
                assert_eq!(weights, planned, "{name}, rank {rank} of {ranks}");
                let tokens = (NUM_BLOCKS * BLOCK_SIZE) as u64;
                assert_eq!(cache, tokens * spec.rank_kv_bytes_per_token(Dtype::F32, ranks));
                let norms = spec.attentions().filter(|a| a.norms_all_heads());
                let norms = norms.count() as u64;
                // A post-norm needs the sum over the ranks before it.
                let has_own = |layer: &&LayerSpec| {
                    layer.ffn.experts().is_some_and(|experts| experts.separate_norms)
                };
                let ffns = spec.layers.iter().filter(|layer| layer.ffn != FfnSpec::Nothing);
                let own = spec.layers.iter().filter(has_own).count() as u64;
                let sums = layers + ffns.count() as u64 + 1 + own;
                let expected = Traffic {
                    all_reduces: sums + norms,
                    all_reduce_bytes: 13 * (sums * hidden + 2 * norms) * 4,
                    all_gathers: 1,
                    all_gather_bytes: 13 * part * 4,
                    ..Traffic::default()
                };
                assert_eq!(traffic, expected, "{name}, rank {rank} of {ranks}");
            }
        }
    }
}

/// Bytes that other ranks do not have: biases that are added to sums of all ranks, in f32.
pub(crate) fn bytes_of_rank_0_alone(spec: &ModelSpec, rank: usize) -> u64 {
    let biases = |layer: &LayerSpec| {
        let of_each = layer.ffn.experts().map_or(1, |experts| experts.count);
        let of_attention = layer.attention().is_some_and(|attention| attention.out_bias);
        usize::from(of_attention)
            + of_each * usize::from(layer.ffn.mlp().is_some_and(|mlp| mlp.bias))
    };
    let biases: usize = spec.layers.iter().map(biases).sum();
    if rank == 0 { 0 } else { (4 * spec.hidden_size * biases) as u64 }
}

/// Dummy values depend on the tensor and the position in it, not on the rank that has them.
#[test]
fn ranks_make_the_dummy_weights_of_the_whole() {
    // Groups of 32 inputs, of which each rank has a whole number.
    let awq = std::fs::read_to_string(folder("awq").join("config.json")).unwrap();
    let awq = awq.replace("\"intermediate_size\": 96", "\"intermediate_size\": 128");
    let llama = std::fs::read_to_string(folder("llama").join("config.json")).unwrap();
    // Rows that lie head by head.
    let qwen3_next = std::fs::read_to_string(folder("qwen3-next").join("config.json")).unwrap();
    for config in [llama, awq, qwen3_next] {
        let config: &'static [u8] = config.into_bytes().leak();
        let files = CheckpointFiles::Embedded(Box::leak(Box::new([("config.json", config)])));
        let checkpoint = Checkpoint::open(files).unwrap();
        let options = LoadOptions { load_format: LoadFormat::Dummy, ..options() };
        let prompt: Vec<u32> = (10..34).collect();
        let answer = |model: &Decoder| prefill(model, &prompt, 24, 0..8);
        let whole = answer(&load(&checkpoint, &options, &mut |_| {}).unwrap());
        for part in on_shards(&checkpoint, &options, 2, answer) {
            let difference = max_difference(&part, &whole);
            assert!(difference < TOLERANCE, "{}: {difference}", checkpoint.architecture());
        }
    }
}

#[test]
fn sizes_that_do_not_divide_are_refused_with_those_that_would() {
    let refused = |name: &str, ranks| {
        let found = checkpoint(name).spec().check_tensor_parallel(ranks).map_err(|e| e.to_string());
        found.unwrap_err()
    };
    assert_eq!(
        refused("llama", 3),
        "tensor_parallel_size 3 does not divide the model's 4 attention heads; choose one of 1, 2, 4"
    );
    assert_eq!(
        refused("awq", 2),
        "tensor_parallel_size 2 does not divide the model's 3 groups of quantized inputs; choose 1"
    );
    assert_eq!(
        refused("gptq", 2),
        "tensor_parallel_size 2 does not divide the model's quantized inputs, whose groups are in act-order (desc_act); choose 1"
    );
    let comm = Comm::local(3, Duration::from_secs(1)).unwrap().remove(0);
    let loaded = load_shard(&checkpoint("llama"), &options(), Arc::new(comm), &mut |_| {});
    assert_eq!(loaded.err().unwrap().to_string(), refused("llama", 3));
}
