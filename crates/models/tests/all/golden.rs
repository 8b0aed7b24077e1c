//! Every architecture against what transformers computed from the same files, and the promises of
//! the paged cache: however a prompt is cut, placed and batched, its logits are the same.

use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use candlepower_checkpoint::{
    ActivationScales, Checkpoint, CheckpointFiles, Dtype as Planned, FfnSpec, LayerSpec, OnLoad,
};
use candlepower_kernels::AttentionMetadata;
use candlepower_models::{
    Cache, CacheSize, Decoder, ForwardInput, LoadDtype, LoadFormat, LoadOptions, LoadProgress, load,
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use candlepower_testing::goldens::{DECODERS, folder};

/// Folders of what transformers computed with matrices as they are after loading, whose models are, and what they become.
pub(crate) const ON_LOAD: &[(&str, &str, OnLoad)] = &[
    ("on-load/llama-int8", "llama", OnLoad::Int8),
    ("on-load/llama-int4", "llama", OnLoad::Int4),
    ("on-load/gpt2-int8", "gpt2", OnLoad::Int8),
    ("on-load/experts-int4", "qwen3-moe", OnLoad::Int4),
    ("on-load/llama-fp8", "llama", OnLoad::Fp8),
];
pub(crate) const TOLERANCE: f32 = 1e-4;
pub(crate) const BLOCK_SIZE: usize = 16;
pub(crate) const NUM_BLOCKS: usize = 24;

pub(crate) fn checkpoint(name: &str) -> Checkpoint {
    let on_load = ON_LOAD.iter().find(|(golden, ..)| *golden == name);
    let folder = folder(on_load.map_or(name, |(_, source, _)| source));
    let mut checkpoint =
        Checkpoint::open(CheckpointFiles::find(&folder).unwrap().unwrap()).unwrap();
    if let Some((.., kind)) = on_load {
        checkpoint.quantize_on_load(*kind).unwrap();
    }
    checkpoint
}

/// In f32, as the golden values were computed: the goldens are stored in bf16, with which activations are rounded.
pub(crate) fn options() -> LoadOptions {
    LoadOptions {
        device: Device::Cpu,
        dtype: LoadDtype::F32,
        load_format: LoadFormat::Auto,
        max_model_len: None,
    }
}

/// The model at the context its golden values were made for: beyond LongRoPE's original one.
pub(crate) fn model(name: &str) -> Decoder {
    model_as(name, options().dtype)
}

fn model_as(name: &str, dtype: LoadDtype) -> Decoder {
    let checkpoint = checkpoint(name);
    let max_model_len = Some(checkpoint.spec().max_positions);
    load(&checkpoint, &LoadOptions { dtype, max_model_len, ..options() }, &mut |_| {}).unwrap()
}

/// The results of transformers.
pub(crate) struct Golden {
    pub(crate) prompt: Vec<u32>,
    /// A row for each position.
    pub(crate) logits: Vec<Vec<f32>>,
    pub(crate) greedy: Vec<u32>,
    short_logits: Vec<Vec<f32>>,
}

impl Golden {
    pub(crate) fn read(name: &str) -> Self {
        let bytes = std::fs::read(folder(name).join("golden.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let words = |name: &str| -> Vec<[u8; 4]> {
            let Ok(tensor) = file.tensor(name) else { return Vec::new() };
            tensor.data().chunks_exact(4).map(|b| b.try_into().unwrap()).collect()
        };
        let ids = |name| words(name).into_iter().map(u32::from_le_bytes).collect::<Vec<_>>();
        let vocab = file.tensor("logits").unwrap().shape()[1];
        let rows = |name| {
            let all: Vec<f32> = words(name).into_iter().map(f32::from_le_bytes).collect();
            all.chunks(vocab).map(<[f32]>::to_vec).collect::<Vec<_>>()
        };
        Self {
            prompt: ids("prompt"),
            logits: rows("logits"),
            greedy: ids("greedy"),
            short_logits: rows("short_logits"),
        }
    }
}

/// A sequence whose keys and values lie in the blocks of its table.
struct Sequence {
    block_table: Vec<u32>,
    num_computed: usize,
}

impl Sequence {
    fn new(block_table: impl IntoIterator<Item = u32>) -> Self {
        Self { block_table: block_table.into_iter().collect(), num_computed: 0 }
    }

    /// A place that no sequence with other blocks has.
    fn state_slot(&self) -> u32 {
        self.block_table[0]
    }
}

/// Runs one step: the next tokens of each sequence. Returns a row of logits for each token.
fn step(model: &Decoder, cache: &Cache, work: &mut [(&mut Sequence, &[u32])]) -> Vec<Vec<f32>> {
    run(model, cache, input_of(work))
}

pub(crate) fn run(model: &Decoder, cache: &Cache, input: ForwardInput) -> Vec<Vec<f32>> {
    let hidden = model.forward(&input, cache).unwrap();
    model.logits(&hidden).unwrap().to_vec2().unwrap()
}

/// The input of one step over a whole prompt, in a cache of its own.
pub(crate) fn whole(prompt: &[u32]) -> ForwardInput {
    input_of(&mut [(&mut Sequence::new(0..NUM_BLOCKS as u32), prompt)])
}

fn input_of(work: &mut [(&mut Sequence, &[u32])]) -> ForwardInput {
    let max_blocks = work.iter().map(|(s, _)| s.block_table.len()).max().unwrap();
    let (mut token_ids, mut positions, mut slots) = (vec![], vec![], vec![]);
    let mut attention = AttentionMetadata {
        query_start: vec![0],
        context_len: vec![],
        block_tables: vec![],
        max_blocks,
        mutual: Vec::new(),
    };
    for (sequence, tokens) in work.iter_mut() {
        for (i, &token) in tokens.iter().enumerate() {
            let position = sequence.num_computed + i;
            token_ids.push(token);
            positions.push(position as u32);
            let block = sequence.block_table[position / BLOCK_SIZE] as usize;
            slots.push((block * BLOCK_SIZE + position % BLOCK_SIZE) as u32);
        }
        sequence.num_computed += tokens.len();
        attention.query_start.push(token_ids.len() as u32);
        attention.context_len.push(sequence.num_computed as u32);
        let mut table = sequence.block_table.clone();
        table.resize(max_blocks, 0);
        attention.block_tables.extend(table);
    }
    let tensor = |v: Vec<u32>| Tensor::new(v, &Device::Cpu).unwrap();
    ForwardInput {
        token_ids: tensor(token_ids),
        positions: tensor(positions),
        slot_mapping: tensor(slots),
        state_slots: work.iter().map(|(sequence, _)| sequence.state_slot()).collect(),
        attention,
        output: None,
        given: Vec::new(),
        rope_positions: None,
    }
}

/// Enough for the goldens.
pub(crate) const CACHE: CacheSize =
    CacheSize { num_blocks: NUM_BLOCKS, block_size: BLOCK_SIZE, num_states: NUM_BLOCKS };

pub(crate) fn cache(model: &Decoder) -> Cache {
    model.new_cache(CACHE, DType::F32).unwrap()
}

/// Logits of a whole prompt, computed in chunks of so many tokens, in the given blocks.
pub(crate) fn prefill(
    model: &Decoder,
    prompt: &[u32],
    chunk: usize,
    blocks: impl IntoIterator<Item = u32>,
) -> Vec<Vec<f32>> {
    prefill_in(model, &cache(model), prompt, chunk, blocks)
}

/// Runs [`prefill`] in an existing cache.
pub(crate) fn prefill_in(
    model: &Decoder,
    cache: &Cache,
    prompt: &[u32],
    chunk: usize,
    blocks: impl IntoIterator<Item = u32>,
) -> Vec<Vec<f32>> {
    let mut sequence = Sequence::new(blocks);
    let chunks = prompt.chunks(chunk);
    chunks.flat_map(|tokens| step(model, cache, &mut [(&mut sequence, tokens)])).collect()
}

pub(crate) fn greedy(model: &Decoder, prompt: &[u32], new_tokens: usize) -> Vec<u32> {
    let (cache, mut sequence) = (cache(model), Sequence::new(0..NUM_BLOCKS as u32));
    let mut next = argmax(step(model, &cache, &mut [(&mut sequence, prompt)]).last().unwrap());
    let mut generated = vec![next];
    while generated.len() < new_tokens {
        next = argmax(&step(model, &cache, &mut [(&mut sequence, &[next])])[0]);
        generated.push(next);
    }
    generated
}

pub(crate) fn argmax(row: &[f32]) -> u32 {
    let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.unwrap().0 as u32
}

pub(crate) fn max_difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// How the logits of a checkpoint may differ from the golden ones.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// By the order of sums alone.
    None,
    /// Activations are rounded to FP8. A sum in another order moves some of them over the middle between two values of e4m3, and then
    /// by a sixteenth, with all later tokens.
    Fp8,
    /// The same, with a scale for each row, of which each rank has a part.
    Fp8Rows,
}

impl Rounding {
    pub(crate) fn of(checkpoint: &Checkpoint) -> Self {
        match checkpoint.spec().rounds_to_fp8() {
            None => Self::None,
            Some((_, ActivationScales::Row)) => Self::Fp8Rows,
            Some(_) => Self::Fp8,
        }
    }

    /// Fails unless logits differ from those of golden values by less than `tolerance`, where activations are not rounded. Otherwise
    /// the first token's do, unless `ranks` have parts of its rows, and all by a tenth of their size: the rounding itself moves them
    /// by more. Returns whether greedy tokens must be equal, too.
    pub(crate) fn check(
        self,
        found: &[Vec<f32>],
        golden: &[Vec<f32>],
        tolerance: f32,
        ranks: usize,
        what: &str,
    ) -> bool {
        let difference = max_difference(found, golden);
        if self == Self::None {
            assert!(difference < tolerance, "{what}: logits differ by {difference}");
            return true;
        }
        let parts_of_rows = self == Self::Fp8Rows && ranks > 1;
        let first = max_difference(&found[..1], &golden[..1]);
        assert!(
            parts_of_rows || first < tolerance,
            "{what}: the first token's logits differ by {first}"
        );
        let squares =
            |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>();
        let pairs = found.iter().flatten().zip(golden.iter().flatten());
        let moved = squares(&mut pairs.map(|(a, b)| a - b));
        let relative = (moved / squares(&mut golden.iter().flatten().copied())).sqrt();
        let limit = if parts_of_rows { 0.3 } else { 0.1 };
        assert!(relative < limit, "{what}: logits differ by {relative} of their size");
        false
    }
}

pub(crate) fn largest(logits: &[Vec<f32>]) -> f32 {
    logits.iter().flatten().fold(0f32, |max, logit| max.max(logit.abs()))
}

/// Whether a model has experts: a little rounding sends a token to others, and its logits are other ones.
pub(crate) fn has_experts(name: &str) -> bool {
    let routed = |layer: &LayerSpec| matches!(layer.ffn, FfnSpec::Experts(_));
    checkpoint(name).spec().layers.iter().any(routed)
}

#[test]
fn logits_and_greedy_tokens_are_those_of_transformers() {
    for name in DECODERS {
        let (model, golden) = (model(name), Golden::read(name));
        let logits = prefill(&model, &golden.prompt, golden.prompt.len(), 0..8);
        let difference = max_difference(&logits, &golden.logits);
        assert!(difference < TOLERANCE, "{name}: logits differ by {difference}");
        assert_eq!(greedy(&model, &golden.prompt, 32), golden.greedy, "{name}: greedy tokens");
    }
}

/// With a cache in bf16, as the CPU keeps it beside such weights, and all else in f32.
#[test]
fn a_cache_in_bf16_moves_the_logits_but_little() {
    for name in DECODERS.iter().filter(|name| !has_experts(name)) {
        let (model, golden) = (model(name), Golden::read(name));
        let cache = model.new_cache(CACHE, DType::BF16).unwrap();
        let prompt = &golden.prompt[..];
        let logits = prefill_in(&model, &cache, prompt, prompt.len(), [3, 1, 2, 0]);
        let moved = max_difference(&logits, &golden.logits);
        let error = moved / largest(&golden.logits);
        assert!(moved > TOLERANCE && error < 0.03, "{name}: logits moved by {moved}, {error}");
        for chunk in [7, 1] {
            let cut = prefill_in(&model, &cache, prompt, chunk, [9, 4, 20, 11]);
            assert_eq!(max_difference(&logits, &cut), 0.0, "{name} in chunks of {chunk}");
        }
    }
}

/// With weights as stored, in bf16, activations are rounded before each product. Logits change a little, and do not depend on the
/// chunks of the prompt.
#[test]
fn products_in_bf16_stay_near_transformers() {
    let mut worst = 0f32;
    for name in DECODERS.iter().filter(|name| !has_experts(name)) {
        let (model, golden) = (model_as(name, LoadDtype::Auto), Golden::read(name));
        let logits = prefill(&model, &golden.prompt, golden.prompt.len(), 0..8);
        let error = max_difference(&logits, &golden.logits) / largest(&golden.logits);
        assert!(error < 0.1, "{name}: logits differ by {error} of the largest");
        for chunk in [7, 1] {
            let cut = prefill(&model, &golden.prompt, chunk, 0..8);
            assert_eq!(max_difference(&logits, &cut), 0.0, "{name} in chunks of {chunk}");
        }
        worst = worst.max(error);
    }
    assert!(worst > 1e-3, "some goldens are in bf16");
}

/// The goldens would show a flag that is misread: each edit of a configuration moves the logits.
#[test]
fn every_flag_is_seen_in_the_logits() {
    let edits = [
        ("llama", "\"factor\": 8.0", "\"factor\": 7.0"),
        ("llama", "embeddings\": 32", "embeddings\": 33"),
        ("llama", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-03"),
        ("llama-linear", "\"factor\": 4.0", "\"factor\": 3.9"),
        ("llama-yarn", "\"factor\": 4.0", "\"factor\": 3.9"),
        ("llama-yarn", "\"beta_fast\": 2.0", "\"beta_fast\": 1.0"),
        ("llama-yarn", "\"beta_slow\": 0.5", "\"beta_slow\": 1.0"),
        ("llama-yarn", "\"rope_type\"", "\"attention_factor\": 1.0, \"rope_type\""),
        ("mistral", "\"sliding_window\": 11", "\"sliding_window\": 12"),
        ("qwen2", "\"sliding_window\": 9", "\"sliding_window\": 8"),
        ("qwen2", "\"max_window_layers\": 1", "\"max_window_layers\": 2"),
        ("qwen3", "\"sliding_window\": 13", "\"sliding_window\": 14"),
        ("qwen3", "\"full_attention\"", "\"sliding_attention\""),
        ("gemma2", "\"sliding_window\": 10", "\"sliding_window\": 11"),
        ("gemma2", "_softcapping\": 5.0", "_softcapping\": 5.5"),
        ("gemma2", "_softcapping\": 0.7", "_softcapping\": 0.8"),
        ("gemma2", "\"query_pre_attn_scalar\": 24", "\"query_pre_attn_scalar\": 25"),
        ("gemma2", "\"gelu_pytorch_tanh\"", "\"silu\""),
        ("phi3", "\"sliding_window\": 15", "\"sliding_window\": 16"),
        ("phi3", "_factor\": 0.5", "_factor\": 0.75"),
        ("gemma3", "\"sliding_window\": 10", "\"sliding_window\": 11"),
        ("gemma3", "\"sliding_window_pattern\": 3", "\"sliding_window_pattern\": 4"),
        ("gemma3", "\"rope_theta\": 50000.0", "\"rope_theta\": 40000.0"),
        ("gemma3", "_freq\": 500.0", "_freq\": 510.0"),
        ("gemma3", "\"factor\": 4.0", "\"factor\": 3.9"),
        ("gemma3-nested", "\"rope_theta\": 20000.0", "\"rope_theta\": 15000.0"),
        ("gemma3-nested", "\"rope_theta\": 300.0", "\"rope_theta\": 310.0"),
        ("glm4", "\"rope_theta\"", "\"partial_rotary_factor\": 0.25, \"rope_theta\""),
        ("granite", "\"embedding_multiplier\": 12.0", "\"embedding_multiplier\": 11.0"),
        ("granite", "\"attention_multiplier\": 0.0625", "\"attention_multiplier\": 0.07"),
        ("granite", "\"residual_multiplier\": 0.22", "\"residual_multiplier\": 0.23"),
        ("granite", "\"logits_scaling\": 6.0", "\"logits_scaling\": 5.9"),
        ("starcoder2", "\"norm_epsilon\": 0.0001", "\"norm_epsilon\": 0.01"),
        ("starcoder2", "\"sliding_window\": 12", "\"sliding_window\": 13"),
        ("starcoder2", "\"gelu_pytorch_tanh\"", "\"silu\""),
        ("gpt2", "\"scale_attn_by_inverse_layer_idx\": true", "\"use_cache\": true"),
        ("gpt2-outer", "\"scale_attn_weights\": false", "\"scale_attn_weights\": true"),
        ("gpt2-outer", "\"gelu\"", "\"silu\""),
        ("cohere", "\"layer_norm_eps\": 0.0001", "\"layer_norm_eps\": 0.01"),
        ("cohere", "\"logit_scale\": 0.25", "\"logit_scale\": 0.26"),
        ("cohere2", "\"sliding_window\": 10", "\"sliding_window\": 11"),
        ("cohere2", "\"sliding_window_pattern\": 3", "\"sliding_window_pattern\": 4"),
        ("mixtral", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 3"),
        ("mixtral", "\"sliding_window\": 14", "\"sliding_window\": 15"),
        ("qwen3-moe", "\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 2"),
        ("qwen3-moe", "\"norm_topk_prob\": false", "\"norm_topk_prob\": true"),
        ("qwen3-moe-renormalized", "\"norm_topk_prob\": true", "\"norm_topk_prob\": false"),
        ("qwen3-moe-renormalized", "\"sliding_window\": 11", "\"sliding_window\": 12"),
        ("olmoe", "\"norm_topk_prob\": true", "\"norm_topk_prob\": false"),
        ("ministral3", "_beta\": 0.5", "_beta\": 0.4"),
        ("glm4-moe", "\"norm_topk_prob\": true", "\"norm_topk_prob\": false"),
        ("glm4-moe", "\"routed_scaling_factor\": 1.5", "\"routed_scaling_factor\": 1.4"),
        ("minimax-m2", "\"rotary_dim\": 12", "\"rotary_dim\": 10"),
        ("gpt-oss", "\"sliding_window\": 8", "\"sliding_window\": 9"),
        ("gpt-oss", "\"truncate\": false", "\"truncate\": true"),
        ("gemma3-images", "\"factor\": 8.0", "\"factor\": 7.5"),
        ("gemma3-images", "\"sliding_window\": 8", "\"sliding_window\": 9"),
        ("olmo3", "\"factor\": 4.0", "\"factor\": 3.5"),
        ("olmo3-nested", "\"rope_theta\": 300.0", "\"rope_theta\": 310.0"),
        ("olmo3-nested", "\"rope_theta\": 700.0", "\"rope_theta\": 710.0"),
        ("smollm3", "\"sliding_window\": 13", "\"sliding_window\": 14"),
        ("smollm3", "    0,\n", "    1,\n"),
        ("exaone4", "\"sliding_window\": 12", "\"sliding_window\": 13"),
        ("exaone4", "\"full_attention\"", "\"sliding_attention\""),
        ("gpt-neo", "\"window_size\": 10", "\"window_size\": 9"),
        ("gpt-neo", "\"layer_norm_epsilon\": 0.0001", "\"layer_norm_epsilon\": 0.01"),
        ("gpt-neox", "\"rotary_pct\": 0.5", "\"rotary_pct\": 0.25"),
        ("gpt-neox", "\"use_parallel_residual\": true", "\"use_parallel_residual\": false"),
        ("gpt-j", "\"rotary_dim\": 8", "\"rotary_dim\": 6"),
        ("opt", "\"relu\"", "\"gelu\""),
        ("nemotron", "\"norm_eps\": 0.0001", "\"norm_eps\": 0.01"),
        ("arcee", "\"relu2\"", "\"relu\""),
        ("dots1", "\"sliding_window\": 9", "\"sliding_window\": 10"),
        ("afmoe", "\"mup_enabled\": true", "\"mup_enabled\": false"),
        ("afmoe", "\"route_scale\": 1.7", "\"route_scale\": 1.6"),
        ("granite-hybrid-dense", "\"rope\"", "\"nope\""),
        ("lfm2", "\"norm_eps\": 0.0001", "\"norm_eps\": 0.01"),
        ("lfm2-moe", "\"routed_scaling_factor\": 1.5", "\"routed_scaling_factor\": 1.6"),
        ("bamba", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0.01"),
        ("granite-hybrid", "\"residual_multiplier\": 0.22", "\"residual_multiplier\": 0.23"),
        ("nemotron-h", "\"layer_norm_epsilon\": 0.0001", "\"layer_norm_epsilon\": 0.01"),
        ("nemotron-h-moe", "\"routed_scaling_factor\": 2.5", "\"routed_scaling_factor\": 2.6"),
        ("stablelm", "_factor\": 0.25", "_factor\": 0.5"),
        ("stablelm", "\"layer_norm_eps\": 0.0001", "\"layer_norm_eps\": 0.01"),
    ];
    for (name, from, to) in edits {
        let config = std::fs::read_to_string(folder(name).join("config.json")).unwrap();
        assert!(config.contains(from), "{name}: {from}");
        let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("flag-{name}"));
        std::fs::create_dir_all(&target).unwrap();
        for entry in std::fs::read_dir(folder(name)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), target.join(entry.file_name())).unwrap();
        }
        std::fs::write(target.join("config.json"), config.replacen(from, to, 1)).unwrap();
        let checkpoint = Checkpoint::open(CheckpointFiles::Folder(target.clone())).unwrap();
        let model = load(&checkpoint, &options(), &mut |_| {}).unwrap();
        std::fs::remove_dir_all(target).unwrap();
        let golden = Golden::read(name);
        let logits = prefill(&model, &golden.prompt, golden.prompt.len(), 0..8);
        let difference = max_difference(&logits, &golden.logits);
        assert!(difference > 10.0 * TOLERANCE, "{name}: {to} moves the logits by {difference}");
    }
}

/// Up to its original context, LongRoPE has other frequencies than beyond it.
#[test]
fn longrope_at_its_original_context_takes_the_short_factors() {
    let (checkpoint, golden) = (checkpoint("phi3-longrope"), Golden::read("phi3-longrope"));
    let model = load(&checkpoint, &options(), &mut |_| {}).unwrap();
    assert_eq!(model.max_model_len(), 32);
    let prompt = &golden.prompt[..golden.short_logits.len()];
    let difference =
        max_difference(&prefill(&model, prompt, prompt.len(), 0..8), &golden.short_logits);
    assert!(difference < TOLERANCE, "logits differ by {difference}");
    let long = max_difference(&golden.short_logits, &golden.logits[..prompt.len()]);
    assert!(long > 100.0 * TOLERANCE, "the golden does not tell short from long: {long}");
}

#[test]
fn whole_chunked_and_token_by_token_prefill_agree_to_the_bit() {
    for name in DECODERS {
        let (model, golden) = (model(name), Golden::read(name));
        let whole = prefill(&model, &golden.prompt, golden.prompt.len(), 0..8);
        for chunk in [7, 1] {
            let cut = prefill(&model, &golden.prompt, chunk, 0..8);
            assert_eq!(max_difference(&whole, &cut), 0.0, "{name} in chunks of {chunk}");
        }
    }
}

#[test]
fn scattered_blocks_equal_contiguous_ones_to_the_bit() {
    for name in DECODERS {
        let (model, golden) = (model(name), Golden::read(name));
        let contiguous = prefill(&model, &golden.prompt, 13, 0..8);
        let scattered = prefill(&model, &golden.prompt, 13, [19, 2, 23, 7]);
        assert_eq!(max_difference(&contiguous, &scattered), 0.0, "{name}");
    }
}

/// One sequence is being decoded while the other's prompt comes in chunks: each gets what it gets
/// alone.
#[test]
fn sequences_in_one_batch_equal_each_alone_to_the_bit() {
    for name in DECODERS {
        let (model, golden) = (model(name), Golden::read(name));
        let (a, b) = (&golden.prompt[..], &golden.prompt[5..39]);
        let alone = [prefill(&model, a, a.len(), 0..8), prefill(&model, b, b.len(), 0..8)];
        let cache = cache(&model);
        let (mut first, mut second) = (Sequence::new([9, 1, 14]), Sequence::new([3, 20, 11]));
        let mut together =
            [step(&model, &cache, &mut [(&mut first, &a[..20])]), Vec::<Vec<f32>>::new()];
        for (i, chunk) in b.chunks(9).enumerate() {
            let mut logits =
                step(&model, &cache, &mut [(&mut first, &a[20 + i..21 + i]), (&mut second, chunk)]);
            together[1].extend(logits.split_off(1));
            together[0].extend(logits);
        }
        let decoded = together[0].len();
        assert_eq!(max_difference(&alone[0][..decoded], &together[0]), 0.0, "{name}: decoding");
        assert_eq!(max_difference(&alone[1], &together[1]), 0.0, "{name}: prompt");
    }
}

/// Layers that read the keys of others are computed for the tokens that are looked at alone, to the same bits.
#[test]
fn tokens_that_nobody_looks_at_change_nothing() {
    for name in ["gemma4", "gguf-gemma4", "gemma4-moe"] {
        let (model, golden) = (model(name), Golden::read(name));
        let reads_others = model.spec().first_reader() < model.spec().layers.len();
        let prompts = [&golden.prompt[..30], &golden.prompt[5..23], &golden.prompt[8..32]];
        let run = |counts: &[usize]| {
            let cache = cache(&model);
            let sequences = [[9, 1, 14], [3, 20, 11], [4, 5, 6]].map(Sequence::new);
            let [mut a, mut b, mut c] = sequences;
            let work = &mut [(&mut a, prompts[0]), (&mut b, prompts[1]), (&mut c, prompts[2])];
            let input = input_of(work).with_output_tokens(counts).unwrap();
            let logits = run(&model, &cache, input);
            let next = &mut [(&mut a, &[7][..]), (&mut b, &[8]), (&mut c, &[9])];
            (logits, step(&model, &cache, next))
        };
        let whole = run(&[30, 18, 24]);
        for counts in [[1, 0, 24], [0, 2, 1], [0, 0, 0]] {
            let (logits, next) = run(&counts);
            assert_eq!(max_difference(&next, &whole.1), 0.0, "{name}: what comes next");
            for (end, count) in [30, 48, 72].into_iter().zip(counts) {
                let outputs = end - count..end;
                let (found, expected) = (&logits[outputs.clone()], &whole.0[outputs]);
                assert_eq!(max_difference(found, expected), 0.0, "{name}: {counts:?}");
            }
            // The others' were not computed, where they need not be.
            let others = counts[0] == 0 && logits[29].iter().all(|logit| *logit == 0.0);
            assert_eq!(others, reads_others && counts[0] == 0, "{name}: {counts:?}");
        }
        let mut sequence = Sequence::new([0, 1]);
        let input = input_of(&mut [(&mut sequence, &golden.prompt[..5])]);
        assert!(input.with_output_tokens(&[6]).is_err());
    }
}

#[test]
fn embedded_files_load_like_a_folder() {
    let names = ["config.json", "generation_config.json", "model.safetensors"];
    let files = names.map(|name| {
        let bytes: &'static [u8] = std::fs::read(folder("qwen2").join(name)).unwrap().leak();
        (name, bytes)
    });
    let embedded = Checkpoint::open(CheckpointFiles::Embedded(Box::leak(Box::new(files)))).unwrap();
    let golden = Golden::read("qwen2");
    let model = load(&embedded, &options(), &mut |_| {}).unwrap();
    assert_eq!(greedy(&model, &golden.prompt, 32), golden.greedy);
}

/// A narrower dtype rounds the weights and nothing else: logits move, but not far.
#[test]
fn weights_are_converted_when_asked() {
    let golden = Golden::read("llama");
    let mut sizes = vec![];
    for (dtype, limit) in
        [(LoadDtype::F32, TOLERANCE), (LoadDtype::F16, 0.05), (LoadDtype::Bf16, 0.4)]
    {
        let model =
            load(&checkpoint("llama"), &LoadOptions { dtype, ..options() }, &mut |_| {}).unwrap();
        let logits = prefill(&model, &golden.prompt, golden.prompt.len(), 0..8);
        let difference = max_difference(&logits, &golden.logits);
        assert!(difference < limit, "{dtype:?}: logits differ by {difference}");
        assert!((dtype == LoadDtype::F32) == (difference < TOLERANCE), "{dtype:?}: not converted");
        sizes.push(model.weight_bytes());
    }
    assert_eq!(sizes[1], sizes[2]);
    assert!(sizes[1] < sizes[0] * 6 / 10, "{sizes:?}");
}

/// The memory that a model needs is known from its configuration alone, to the byte.
#[test]
fn memory_is_computed_before_loading() {
    for name in DECODERS {
        let checkpoint = checkpoint(name);
        for (dtype, planned) in [
            (LoadDtype::Auto, None),
            (LoadDtype::F32, Some(Planned::F32)),
            (LoadDtype::F16, Some(Planned::F16)),
            (LoadDtype::Bf16, Some(Planned::Bf16)),
        ] {
            let model =
                load(&checkpoint, &LoadOptions { dtype, ..options() }, &mut |_| {}).unwrap();
            let planned = checkpoint.weight_bytes(planned);
            assert_eq!(model.weight_bytes() as u64, planned, "{name} as {dtype:?}");
            for (dtype, kv) in [(DType::F32, Planned::F32), (DType::BF16, Planned::Bf16)] {
                let cache = model.new_cache(CACHE, dtype).unwrap();
                let planned = checkpoint.spec().kv_bytes_per_token(kv);
                let tokens = (NUM_BLOCKS * BLOCK_SIZE) as u64;
                assert_eq!(cache.kv_bytes() as u64, planned * tokens, "{name}");
                let planned = checkpoint.spec().state_bytes(Planned::F32, 1);
                assert_eq!(cache.state_bytes() as u64, planned * CACHE.num_states as u64, "{name}");
            }
        }
    }
}

/// A golden checkpoint whose tensors are stored in another dtype where `change` says so.
pub(crate) fn stored_otherwise(
    name: &str,
    change: impl Fn(&str, &TensorView<'_>) -> Option<(Dtype, Vec<u8>)>,
) -> Checkpoint {
    let stored = std::fs::read(folder(name).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&stored).unwrap();
    let tensors = file.tensors().into_iter().map(|(name, view)| {
        let (dtype, data) =
            change(&name, &view).unwrap_or_else(|| (view.dtype(), view.data().to_vec()));
        (name, (dtype, view.shape().to_vec(), data))
    });
    let tensors: Vec<_> = tensors.collect();
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    let changed: &'static [u8] = safetensors::serialize(views, None).unwrap().leak();
    let config: &'static [u8] = std::fs::read(folder(name).join("config.json")).unwrap().leak();
    let files = Box::leak(Box::new([("config.json", config), ("model.safetensors", changed)]));
    Checkpoint::open(CheckpointFiles::Embedded(files)).unwrap()
}

/// The bytes of bf16 as those of f32.
pub(crate) fn widened(bf16: &[u8]) -> Vec<u8> {
    bf16.chunks_exact(2).flat_map(|b| [0, 0, b[0], b[1]]).collect()
}

/// k and v in bf16 beside q, and all else, in f32: the one weight made of the three keeps every bit.
#[test]
fn mixed_dtypes_lose_nothing() {
    let checkpoint = stored_otherwise("llama-yarn", |name, view| {
        let kept = name.contains("k_proj") || name.contains("v_proj");
        (!kept).then(|| (Dtype::F32, widened(view.data())))
    });
    let as_stored = LoadOptions { dtype: LoadDtype::Auto, ..options() };
    let model = load(&checkpoint, &as_stored, &mut |_| {}).unwrap();
    let golden = Golden::read("llama-yarn");
    let logits = prefill(&model, &golden.prompt, golden.prompt.len(), 0..8);
    let difference = max_difference(&logits, &golden.logits);
    assert!(difference < TOLERANCE, "logits differ by {difference}");
}

#[test]
fn progress_ends_at_all_bytes() {
    let mut seen: Vec<LoadProgress> = vec![];
    load(&checkpoint("llama-linear"), &options(), &mut |p| seen.push(p)).unwrap();
    let total = checkpoint("llama-linear").spec().num_parameters() * 4;
    assert!(seen.iter().all(|p| p.bytes_total == total));
    assert!(seen.windows(2).all(|p| p[0].bytes_done < p[1].bytes_done));
    assert_eq!(seen.first().unwrap().bytes_done, 0);
    assert_eq!(seen.last().unwrap().bytes_done, total);
}

/// Dummy weights need no weight files, are the same each time, and give logits of about one.
#[test]
fn dummy_weights_run_every_architecture() {
    // GGUF files have no configuration apart.
    for name in DECODERS.iter().filter(|name| !name.starts_with("gguf-")) {
        let config: &'static [u8] = std::fs::read(folder(name).join("config.json")).unwrap().leak();
        let files = CheckpointFiles::Embedded(Box::leak(Box::new([("config.json", config)])));
        let checkpoint = Checkpoint::open(files).unwrap();
        let options = LoadOptions { load_format: LoadFormat::Dummy, ..options() };
        let prompt: Vec<u32> = (10..34).collect();
        let run = || {
            let model = load(&checkpoint, &options, &mut |_| {}).unwrap();
            prefill(&model, &prompt, prompt.len(), 0..8)
        };
        let logits = run();
        assert_eq!(max_difference(&logits, &run()), 0.0, "{name}: not the same again");
        let all: Vec<f32> = logits.into_iter().flatten().collect();
        let deviation = (all.iter().map(|v| v * v).sum::<f32>() / all.len() as f32).sqrt();
        assert!((0.2..5.0).contains(&deviation), "{name}: logits spread by {deviation}");
    }
}
