//! The device's decoder on the CPU, by the reference implementations of its kernels: the same layers, buffers, tables and views
//! as on a GPU, compared with transformers.

#![expect(clippy::print_stdout, reason = "on a GPU machine the agreement is a result")]

mod chunks;
#[cfg(feature = "cuda")]
mod fp8_cache;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use candlepower_checkpoint::{Dtype as Planned, KvDtype};
use candlepower_comm::Comm;
use candlepower_gpu::{AttentionStep, Fusions, LaunchShape, NO_SLOT, StateTables};
use candlepower_kernels::AttentionMetadata;
use candlepower_models::{
    DeviceDecoder, DeviceInput, DeviceOutputTokens, LoadDtype, LoadOptions, OutputTokens,
    Workspace, WorkspaceSize, load_on_device, load_shard_on_device,
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::quantized::{self, SPARSE};
use crate::{
    golden::{
        BLOCK_SIZE, CACHE, Golden, NUM_BLOCKS, Rounding, TOLERANCE, argmax, checkpoint,
        has_experts, largest, max_difference, options, prefill_in,
    },
    ranks::{bytes_of_rank_0_alone, numbers_of_ranks, on_ranks},
};
use candlepower_testing::goldens::DECODERS;

/// A model with the memory of its steps.
pub(crate) struct Runner {
    model: DeviceDecoder,
    workspace: Workspace,
}

/// Tokens of one sequence in a step: where it has come to, the new tokens, its blocks.
type Work<'a> = (usize, &'a [u32], &'a [u32]);

impl Runner {
    /// The reference implementations, on the CPU.
    fn new(name: &str, dtype: LoadDtype) -> Self {
        Self::on(&Device::Cpu, name, dtype)
    }

    pub(crate) fn on(device: &Device, name: &str, dtype: LoadDtype) -> Self {
        Self::with_cache(device, name, dtype, false)
    }

    fn with_cache(device: &Device, name: &str, dtype: LoadDtype, fp8_cache: bool) -> Self {
        let (checkpoint, options) = (checkpoint(name), options_for(name, device, dtype));
        Self::of(load_on_device(&checkpoint, &options, &mut |_| {}).unwrap(), fp8_cache)
    }

    /// A rank's shard of a model.
    fn of_rank(device: &Device, name: &str, dtype: LoadDtype, comm: Arc<Comm>) -> Self {
        let (checkpoint, options) = (checkpoint(name), options_for(name, device, dtype));
        Self::of(load_shard_on_device(&checkpoint, &options, comm, &mut |_| {}).unwrap(), false)
    }

    pub(crate) fn of(model: DeviceDecoder, fp8_cache: bool) -> Self {
        Self::sized(model, size(fp8_cache))
    }

    fn sized(model: DeviceDecoder, size: WorkspaceSize) -> Self {
        let workspace = model.workspace(size).unwrap();
        Self { model, workspace }
    }

    fn cache_bytes(&self) -> u64 {
        self.workspace.caches().iter().map(|cache| cache.num_bytes() as u64).sum()
    }

    /// Runs a step, padded with idle sequences of one token to `padded` sequences. A row of logits per token.
    fn step(&mut self, work: &[Work<'_>], padded: usize, launch: LaunchShape) -> Vec<Vec<f32>> {
        self.step_of(work, padded, launch, None)
    }

    /// Runs [`Self::step`], and returns the logits of the last tokens of each sequence, `counts` of them.
    fn step_of(
        &mut self,
        work: &[Work<'_>],
        padded: usize,
        launch: LaunchShape,
        counts: Option<&[usize]>,
    ) -> Vec<Vec<f32>> {
        let max_blocks = work.iter().map(|work| work.2.len()).max().unwrap();
        let (mut token_ids, mut positions, mut slots) = (vec![], vec![], vec![]);
        let mut meta = AttentionMetadata {
            query_start: vec![0],
            context_len: vec![],
            block_tables: vec![],
            max_blocks,
            mutual: Vec::new(),
        };
        for &(computed, tokens, blocks) in work {
            for (position, &token) in (computed..).zip(tokens) {
                token_ids.push(token);
                positions.push(position as u32);
                let block = blocks[position / BLOCK_SIZE] as usize;
                slots.push((block * BLOCK_SIZE + position % BLOCK_SIZE) as u32);
            }
            meta.query_start.push(token_ids.len() as u32);
            meta.context_len.push((computed + tokens.len()) as u32);
            meta.block_tables.extend(blocks);
            meta.block_tables.resize(meta.context_len.len() * max_blocks, 0);
        }
        let real = token_ids.len();
        for _ in work.len()..padded {
            token_ids.push(0);
            positions.push(0);
            slots.push(NO_SLOT);
            meta.query_start.push(token_ids.len() as u32);
            meta.context_len.push(1);
            meta.block_tables.extend(vec![0; max_blocks]);
        }
        let tokens = token_ids.len();
        // A place that no sequence with other blocks has.
        let own = work.iter().map(|work| work.2[0]);
        let state_slots = own.chain(vec![NO_SLOT; padded.saturating_sub(work.len())]).collect();
        self.workspace.prepare(&AttentionStep { meta: &meta, tokens, launch }).unwrap();
        let tensor = |numbers: Vec<u32>| Tensor::new(numbers, self.model.device()).unwrap();
        let output = counts.and_then(|counts| OutputTokens::of(&meta, &positions, counts).unwrap());
        let output = output.map(|of| {
            let tables = (!of.rows.is_empty())
                .then(|| (tensor(of.rows.clone()), tensor(of.positions.clone())));
            (of, tables)
        });
        let positions = &tensor(positions);
        let (query_start, slots_of_states) = (&tensor(meta.query_start), &tensor(state_slots));
        let input = DeviceInput {
            token_ids: &tensor(token_ids),
            positions,
            slot_mapping: &tensor(slots),
            states: Some(StateTables { query_start, slots: slots_of_states, positions }),
            output: output.as_ref().map(|(of, tables)| DeviceOutputTokens {
                tables: tables.as_ref().map(|(rows, positions)| (rows, positions)),
                attention: &of.attention,
            }),
        };
        let hidden = self.model.forward(&input, &self.workspace).unwrap();
        let real = output.as_ref().map_or(real, |(of, _)| of.rows.len());
        if real == 0 {
            return Vec::new();
        }
        let rows = tensor((0..real as u32).collect());
        let logits = self.model.logits(&hidden, &rows, &self.workspace).unwrap();
        let logits = logits.to_device(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
        logits.to_vec2().unwrap()
    }

    pub(crate) fn prefill(
        &mut self,
        prompt: &[u32],
        chunk: usize,
        blocks: &[u32],
    ) -> Vec<Vec<f32>> {
        let mut logits = Vec::new();
        for (i, tokens) in prompt.chunks(chunk).enumerate() {
            logits.extend(self.step(&[(i * chunk, tokens, blocks)], 1, LaunchShape::Fitted));
        }
        logits
    }

    fn greedy(&mut self, prompt: &[u32], new_tokens: usize) -> Vec<u32> {
        let blocks: Vec<u32> = (0..8).collect();
        let mut next = argmax(self.prefill(prompt, prompt.len(), &blocks).last().unwrap());
        let mut generated = vec![next];
        while generated.len() < new_tokens {
            let computed = prompt.len() + generated.len() - 1;
            // A bucket of three: two of its sequences are padding.
            let logits = self.step(&[(computed, &[next], &blocks)], 3, LaunchShape::Fixed);
            next = argmax(&logits[0]);
            generated.push(next);
        }
        generated
    }
}

/// Enough for the goldens.
pub(crate) fn size(fp8_cache: bool) -> WorkspaceSize {
    WorkspaceSize {
        max_tokens: 64,
        max_seqs: 4,
        num_states: NUM_BLOCKS,
        max_rows: 64,
        num_blocks: NUM_BLOCKS,
        block_size: BLOCK_SIZE,
        fp8_cache,
        deterministic: false,
    }
}

#[test]
fn steps_that_attention_over_latents_has_no_room_for_are_refused_before() {
    let options = options_for("deepseek-v3", &Device::Cpu, LoadDtype::F32);
    let model = load_on_device(&checkpoint("deepseek-v3"), &options, &mut |_| {}).unwrap();
    let many = WorkspaceSize { max_tokens: 1 << 20, ..size(false) };
    let error = model.workspace(many).map(drop).unwrap_err().to_string();
    let most = (16_384 - 512 - 4) * (128 / 4);
    assert!(error.ends_with(&format!("set --max-num-batched-tokens to at most {most}")), "{error}");
}

/// At the context for which golden values were made.
fn options_for(name: &str, device: &Device, dtype: LoadDtype) -> LoadOptions {
    let max_model_len = Some(checkpoint(name).spec().max_positions);
    LoadOptions { device: device.clone(), dtype, max_model_len, ..options() }
}

/// In single precision nothing is rounded, so the wiring alone decides.
#[test]
fn every_architecture_and_format_computes_what_transformers_does() {
    for name in goldens() {
        let (mut runner, golden) = (Runner::new(name, LoadDtype::F32), Golden::read(name));
        let (prompt, tolerance) = (&golden.prompt, tolerance(name));
        let rounding = Rounding::of(&checkpoint(name));
        let logits = runner.prefill(prompt, prompt.len(), &[0, 1, 2, 3]);
        rounding.check(&logits, &golden.logits, tolerance, 1, name);
        let cut = runner.prefill(prompt, 13, &[19, 2, 23, 7]);
        if rounding.check(&cut, &golden.logits, tolerance, 1, &format!("{name} in chunks")) {
            assert_eq!(runner.greedy(prompt, 32), golden.greedy, "{name}: greedy tokens");
        }
    }
}

/// Dequantized weights are larger than other weights, and so is the rounding of sums in another order.
fn tolerance(name: &str) -> f32 {
    let is_quantized = checkpoint(name).quantization().is_some();
    if is_quantized { 3.0 * TOLERANCE } else { TOLERANCE }
}

/// All goldens, quantized or not.
fn goldens() -> impl Iterator<Item = &'static str> {
    DECODERS.iter().copied().chain(quantized::all())
}

/// Parts of matrices and of the vocabulary, sums and gathers, heads that two ranks share; graphs of a GPU record the same walk.
#[test]
fn two_ranks_and_four_compute_what_transformers_does() {
    for name in goldens() {
        let (golden, counts) = (Golden::read(name), numbers_of_ranks(&checkpoint(name)));
        let (tolerance, rounding) = (tolerance(name), Rounding::of(&checkpoint(name)));
        for ranks in counts {
            let found = on_ranks(ranks, |comm| {
                let mut runner = Runner::of_rank(&Device::Cpu, name, LoadDtype::F32, comm);
                let logits = runner.prefill(&golden.prompt, 13, &[19, 2, 23, 7]);
                (logits, runner.greedy(&golden.prompt, 8), runner.model.weight_bytes() as u64)
            });
            let spec = checkpoint(name).spec().clone();
            let planned = spec.device_weight_bytes(Planned::F32, ranks);
            for (rank, (logits, greedy, bytes)) in found.into_iter().enumerate() {
                if name != SPARSE {
                    let bytes = bytes + bytes_of_rank_0_alone(&spec, rank);
                    assert_eq!(bytes, planned, "{name}, rank {rank} of {ranks}");
                }
                let what = format!("{name}, rank {rank} of {ranks}");
                if !rounding.check(&logits, &golden.logits, tolerance, ranks, &what) {
                    continue;
                }
                assert_eq!(greedy, golden.greedy[..8], "{name}, rank {rank} of {ranks}");
            }
        }
    }
}

/// CANDLEPOWER_TEST_GPUS is the number of GPUs. Each has a thread, and all give the result of one GPU without NCCL. With one GPU, NCCL
/// has a group of one.
#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs GPUs: scripts/gpu-check.sh and, with emulated ones, `cargo xtask emulated` run it"]
fn gpus_compute_what_one_does() {
    let gpus = std::env::var("CANDLEPOWER_TEST_GPUS").unwrap().parse().unwrap();
    let first = candlepower_gpu::cuda::open(0).unwrap();
    let (mut worst, mut models) = (0f32, 0);
    let splits = |name: &&str| checkpoint(name).spec().check_tensor_parallel(gpus).is_ok();
    // How each model and format is split among ranks is tested on the CPU; here are some that are.
    let some = DECODERS.iter().copied().step_by(2).chain(quantized::all().step_by(3));
    for name in some.filter(splits) {
        let golden = Golden::read(name);
        // Two blocks are enough: sums among ranks are the same work for every token, and emulated GPUs are slow.
        let prompt = &golden.prompt[..BLOCK_SIZE + 1];
        let answer = |mut runner: Runner| {
            let logits = runner.prefill(prompt, prompt.len(), &[3, 1, 2, 0]);
            (logits, runner.greedy(&prompt[..5], 2))
        };
        let one = answer(Runner::on(&first, name, LoadDtype::Bf16));
        let found = on_ranks(gpus, |comm| {
            let gpu = candlepower_gpu::cuda::open(comm.rank()).unwrap();
            answer(Runner::of_rank(&gpu, name, LoadDtype::Bf16, comm))
        });
        for (rank, found) in found.into_iter().enumerate() {
            // One rank adds nothing up, so nothing is rounded differently.
            if gpus == 1 {
                assert_eq!(found, one, "{name}, rank {rank}");
            }
            let of_rows = found.0.chunks(1).zip(one.0.chunks(1));
            let errors = of_rows.map(|(a, b)| max_difference(a, b) / largest(&one.0));
            let (close, apart): (Vec<f32>, Vec<f32>) = errors.partition(|error| *error < 0.05);
            // A rounded score may send a token to another expert.
            let may_differ = if has_experts(name) { found.0.len() / 4 } else { 0 };
            assert!(apart.len() <= may_differ, "{name}, rank {rank}: logits differ by {apart:?}");
            worst = close.into_iter().fold(worst, f32::max);
        }
        models += 1;
    }
    println!("= {models} models over {gpus} GPUs, logits within {worst:.3} of one GPU's");
}

/// In 16 bits the device's own dtypes are seen: every buffer, weight and cache has the model's.
#[test]
fn sixteen_bits_move_the_logits_but_little() {
    compare_sixteen_bits(&Device::Cpu, |_, _, _, _| {});
}

/// Compares the logits of steps with few tokens with and without fused kernels.
fn compare_fusions(device: &Device, dtype: LoadDtype, names: impl Iterator<Item = &'static str>) {
    let all = Fusions { gate: true, norm: true, prefetch: true, wave: true };
    let mut models = 0;
    for name in names {
        let (mut runner, prompt) = (Runner::on(device, name, dtype), Golden::read(name).prompt);
        let mut run = |fusions| {
            runner.workspace.set_fusions(fusions);
            let blocks = [5, 2];
            let mut logits = runner.prefill(&prompt[..5], 5, &blocks);
            // Decodes in buckets of one, two and three.
            for (i, padded) in [(5, 1), (6, 2), (7, 3), (8, 1)] {
                let work: [Work<'_>; 1] = [(i, &prompt[i..=i], &blocks)];
                logits.extend(runner.step(&work, padded, LaunchShape::Fixed));
            }
            logits.extend(runner.step(&[(9, &prompt[9..11], &blocks)], 1, LaunchShape::Fitted));
            logits
        };
        let want = run(Fusions::OFF);
        assert!(run(all) == want, "{name}: fused kernels have other bits");
        models += 1;
    }
    println!("= {models} models have the same bits with fused kernels");
}

/// The walk defers norms, which the reference implementations of products compute.
#[test]
fn deferred_norms_change_no_bit() {
    compare_fusions(&Device::Cpu, LoadDtype::F32, DECODERS.iter().copied().step_by(3));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh and, with an emulated one, `cargo xtask emulated` run it"]
fn fused_kernels_change_no_bit() {
    let gpu = candlepower_gpu::cuda::open(0).unwrap();
    compare_fusions(&gpu, LoadDtype::Bf16, goldens());
}

/// The kernels themselves.
#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh and, with an emulated one, `cargo xtask emulated` run it"]
fn a_gpu_computes_every_architecture() {
    let gpu = candlepower_gpu::cuda::open(0).unwrap();
    compare_sixteen_bits(&gpu, |name, runner, prompt, whole| {
        // A decode in a bucket of three gives what a prefill of the same tokens gives, up to rounding. From one block into the next.
        let whole_blocks = prompt.len() / BLOCK_SIZE * BLOCK_SIZE;
        let (start, blocks) = (whole_blocks.min(2 * BLOCK_SIZE) - 3, [5, 2, 9, 0]);
        runner.prefill(&prompt[..start], start, &blocks);
        let mut errors = [0f32; 4];
        for (i, error) in (start..).zip(&mut errors) {
            let logits = runner.step(&[(i, &prompt[i..=i], &blocks)], 3, LaunchShape::Fixed);
            *error = max_difference(&logits, &whole[i..=i]) / largest(whole);
        }
        // A rounded score may send a token to another expert.
        let may_differ = usize::from(has_experts(name));
        // And a rounded activation to another value of e4m3.
        let limit = if Rounding::of(&checkpoint(name)) == Rounding::None { 0.1 } else { 0.4 };
        let apart = errors.iter().filter(|error| **error >= limit).count();
        assert!(
            apart <= may_differ,
            "{name}: from position {start} on decoded differ by {errors:?}"
        );
        let spec = runner.model.spec();
        if spec.first_reader() < spec.layers.len() {
            let (work, last) = ([(0, &prompt[..start], &blocks[..])], start - 3..start);
            let logits = runner.step_of(&work, 1, LaunchShape::Fitted, Some(&[3]));
            let error = max_difference(&logits, &whole[last]) / largest(whole);
            assert!(error < 0.1, "{name}: the last tokens alone differ by {error}");
        }
    });
}

/// The bits of a token's logits in steps of every kind, for each golden that may be served with `--deterministic`.
#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh and, with an emulated one, `cargo xtask emulated` run it"]
fn a_gpu_gives_a_token_the_same_bits_in_every_step() {
    let gpu = candlepower_gpu::cuda::open(0).unwrap();
    let kv = KvDtype::Plain(Planned::Bf16);
    let is_kept = |name: &&str| checkpoint(name).spec().check_deterministic(kv, 1).is_ok();
    let mut models = 0;
    for name in goldens().filter(is_kept) {
        let (checkpoint, options) = (checkpoint(name), options_for(name, &gpu, LoadDtype::Bf16));
        let model = load_on_device(&checkpoint, &options, &mut |_| {}).unwrap();
        let mut runner = Runner::sized(model, WorkspaceSize { deterministic: true, ..size(false) });
        let golden = Golden::read(name);
        let prompt = &golden.prompt[..golden.prompt.len().min(BLOCK_SIZE + 5)];
        let (blocks, others, end) = ([5, 2, 9, 0], [4, 1, 3, 7], prompt.len() - 2);
        let whole = runner.prefill(prompt, prompt.len(), &blocks);
        let cut = runner.prefill(prompt, 7, &others);
        assert!(cut == whole, "{name}: chunks have other bits");
        // The last two tokens as decodes: in a bucket of three, then beside a prompt.
        let decoded = runner.step(&[(end, &prompt[end..=end], &others)], 3, LaunchShape::Fixed);
        assert!(decoded[..] == whole[end..=end], "{name}: a decode has other bits");
        let work: [Work<'_>; 2] = [(end + 1, &prompt[end + 1..], &others), (0, prompt, &blocks)];
        let mixed = runner.step(&work, 2, LaunchShape::Fitted);
        assert!(mixed[..1] == whole[end + 1..], "{name}: a decode beside a prompt has other bits");
        assert!(mixed[1..] == whole[..], "{name}: a prompt behind a decode has other bits");
        models += 1;
    }
    assert!(models > 20);
    println!("= {models} models give each token the same bits in every step");
}

/// Beside transformers on the same GPU: what scripts/goldens/gpu_logits.py has put into CANDLEPOWER_TRANSFORMERS.
#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs a GPU and what transformers computed on it: scripts/gpu-check.sh runs it"]
fn a_gpu_rounds_as_transformers_does() {
    let folder = std::path::PathBuf::from(std::env::var_os("CANDLEPOWER_TRANSFORMERS").unwrap());
    let gpu = candlepower_gpu::cuda::open(0).unwrap();
    let mut found = Vec::new();
    for name in DECODERS {
        if let Ok(file) = std::fs::read(folder.join(format!("{name}.safetensors"))) {
            found.push(Beside::compute(&gpu, name, &file));
        }
    }
    let of_all = |same: fn(&Beside) -> usize| {
        let positions: usize = found.iter().map(|of| of.positions).sum();
        100.0 * found.iter().map(same).sum::<usize>() as f32 / positions as f32
    };
    println!(
        "= {} models: the best token is that of f32 at {:.2} % of their positions, of transformers in bf16 at {:.2} %",
        found.len(),
        of_all(|of| of.our_same),
        of_all(|of| of.their_same)
    );
    let further: Vec<_> = found.iter().filter(|of| !of.is_close()).map(|of| of.name).collect();
    assert!(
        !found.is_empty() && further.is_empty(),
        "further from f32 than transformers: {further:?}"
    );
}

/// The comparison that a GPU machine makes, of a file that has the golden's logits.
#[test]
fn a_file_of_transformers_logits_is_compared() {
    let golden = Golden::read("llama");
    let rounded = |logits: &[Vec<f32>]| -> Vec<Vec<f32>> {
        let bf16 = |number: &f32| half::bf16::from_f32(*number).to_f32();
        logits.iter().map(|row| row.iter().map(bf16).collect()).collect()
    };
    let beside = |exact: &[Vec<f32>]| {
        Beside::compute(&Device::Cpu, "llama", &file_of(&golden.prompt, exact, &rounded(exact)))
    };
    let found = beside(&golden.logits);
    assert!(found.is_close() && found.positions == golden.prompt.len());
    // Those of other positions.
    let mut other = golden.logits;
    other.rotate_left(1);
    assert!(!beside(&other).is_close());
}

/// Result of one prompt, in the format of scripts/goldens/gpu_logits.py.
fn file_of(prompt: &[u32], exact: &[Vec<f32>], rounded: &[Vec<f32>]) -> Vec<u8> {
    let bytes = |rows: &[Vec<f32>]| -> Vec<u8> {
        rows.iter().flatten().flat_map(|number| number.to_le_bytes()).collect()
    };
    let logits = [("exact", bytes(exact)), ("rounded", bytes(rounded))];
    let tokens: Vec<u8> = prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
    let view = |dtype, shape, bytes| TensorView::new(dtype, shape, bytes).unwrap();
    let shape = vec![1, prompt.len(), exact[0].len()];
    let logits = logits.iter().map(|(name, bytes)| (*name, view(Dtype::F32, shape.clone(), bytes)));
    let prompts = ("prompts", view(Dtype::I32, vec![1, prompt.len()], &tokens));
    safetensors::serialize(logits.chain([prompts]), None).unwrap()
}

/// A model in bf16 and transformers in bf16, each beside transformers in f32.
struct Beside {
    name: &'static str,
    positions: usize,
    /// Positions whose best token is that of f32.
    our_same: usize,
    their_same: usize,
    /// The largest difference, of the largest logit.
    our_error: f32,
    their_error: f32,
}

impl Beside {
    /// `file` has prompts `[prompts, tokens]` and their logits.
    fn compute(device: &Device, name: &'static str, file: &[u8]) -> Self {
        let file = SafeTensors::deserialize(file).unwrap();
        let words = |name| file.tensor(name).unwrap().data().chunks_exact(4);
        let vocab = file.tensor("exact").unwrap().shape()[2];
        let rows = |name| {
            let numbers = words(name).map(|word| f32::from_le_bytes(word.try_into().unwrap()));
            numbers.collect::<Vec<_>>().chunks(vocab).map(<[f32]>::to_vec).collect::<Vec<_>>()
        };
        let tokens = words("prompts").map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        let tokens: Vec<u32> = tokens.collect();
        let mut runner = Runner::on(device, name, LoadDtype::Bf16);
        let prompts = tokens.chunks(file.tensor("prompts").unwrap().shape()[1]);
        let ours = prompts.flat_map(|prompt| runner.prefill(prompt, prompt.len(), &[3, 1, 2, 0]));
        let (ours, exact, theirs): (Vec<_>, _, _) =
            (ours.collect(), rows("exact"), rows("rounded"));
        let beside = |other: &[Vec<f32>]| {
            let same = other.iter().zip(&exact).filter(|(a, b)| argmax(a) == argmax(b)).count();
            (same, max_difference(other, &exact) / largest(&exact))
        };
        let ((our_same, our_error), (their_same, their_error)) = (beside(&ours), beside(&theirs));
        let positions = exact.len();
        println!(
            "{name}: of {positions} positions the best token is that of f32 at {our_same} (transformers in bf16: {their_same}), logits within {our_error:.4} ({their_error:.4})"
        );
        Self { name, positions, our_same, their_same, our_error, their_error }
    }

    /// Both round; neither is right where the best two are close. A rounded score may send a token to another expert.
    fn is_close(&self) -> bool {
        let may_go_elsewhere = has_experts(self.name);
        self.our_same + self.positions / 20 >= self.their_same
            && (may_go_elsewhere || self.our_error < (3.0 * self.their_error).max(0.05))
    }
}

/// More rows than the kernels for quantized weights of any layout take. Dequantized weights multiply them.
const UNPACKED_TOKENS: usize = 40;

/// Compares a device's logits with single precision's, and calls `also` with each runner in bf16, its prompt and its logits.
fn compare_sixteen_bits(
    device: &Device,
    mut also: impl FnMut(&str, &mut Runner, &[u32], &[Vec<f32>]),
) {
    let (mut same, mut all, mut worst) = (0, 0, 0f32);
    // Emulated GPUs take their time for each token.
    let most = std::env::var("CANDLEPOWER_TEST_TOKENS").map_or(usize::MAX, |n| n.parse().unwrap());
    // And for each dtype, which may be one alone.
    let only = std::env::var("CANDLEPOWER_TEST_DTYPE").ok();
    let both = [(LoadDtype::Bf16, DType::BF16, 0.12), (LoadDtype::F16, DType::F16, 0.02)];
    let asked = |found: DType| only.as_ref().is_none_or(|only| only == found.as_str());
    let dtypes: Vec<_> = both.into_iter().filter(|(_, found, _)| asked(*found)).collect();
    assert!(!dtypes.is_empty(), "CANDLEPOWER_TEST_DTYPE is bf16 or f16, not {only:?}");
    // Some goldens alone are quick to try.
    let part = std::env::var("CANDLEPOWER_TEST_GOLDENS").unwrap_or_default();
    for name in goldens().filter(|name| name.contains(&part)) {
        let golden = Golden::read(name);
        for &(dtype, found, limit) in &dtypes {
            let mut runner = Runner::on(device, name, dtype);
            assert_eq!(runner.model.dtype(), found);
            // The rounding alone differs from bf16, which some tokens suffice to show.
            let tokens = if dtype == LoadDtype::F16 { BLOCK_SIZE } else { golden.prompt.len() };
            let is_quantized = !checkpoint(name).spec().quantized.is_empty();
            let tokens = tokens.min(if is_quantized { most.max(UNPACKED_TOKENS) } else { most });
            let (prompt, expected) = (&golden.prompt[..tokens], &golden.logits[..tokens]);
            let logits = runner.prefill(prompt, tokens, &[3, 1, 2, 0]);
            let error = max_difference(&logits, expected) / largest(expected);
            // A rounded score may send a token to another expert, and its logits anywhere; most tokens stay.
            let limit = if has_experts(name) { f32::INFINITY } else { limit };
            // A value that 16 bits move over the middle between two of e4m3 is moved by a sixteenth.
            let is_rounded = Rounding::of(&checkpoint(name)) != Rounding::None;
            let limit = if is_rounded { limit.max(0.4) } else { limit };
            assert!(error < limit, "{name} as {dtype:?}: logits differ by {error} of the largest");
            let agree = logits.iter().zip(expected).filter(|(a, b)| argmax(a) == argmax(b));
            let agree = agree.count();
            let agreement = agree as f32 / logits.len() as f32;
            println!("{name} as {dtype:?}: {agreement} of the best tokens, error {error}");
            let least = if is_rounded { 0.5 } else { 0.7 };
            assert!(agreement > least, "{name} as {dtype:?}: {agreement} of the best tokens agree");
            (same, all) = (same + agree, all + logits.len());
            if !has_experts(name) {
                worst = worst.max(error);
            }
            if dtype == LoadDtype::Bf16 {
                also(name, &mut runner, prompt, &logits);
            }
        }
    }
    println!(
        "= best token as in float32 at {same} of {all} positions, logits within {worst:.3} of the largest"
    );
}

/// Values of eight bits are rounded, alike on the CPU and by the device's reference implementations. Nothing else is rounded.
#[test]
fn a_cache_in_fp8_moves_the_logits_but_little() {
    let mut worst = 0f32;
    for name in DECODERS {
        let golden = Golden::read(name);
        let (prompt, blocks) = (&golden.prompt[..], [3, 1, 2, 0]);
        let model = crate::golden::model(name);
        let cache = model.new_cache(CACHE, DType::F8E4M3).unwrap();
        let planned = checkpoint(name).spec().kv_bytes_per_token(KvDtype::Fp8);
        assert_eq!(cache.kv_bytes() as u64, planned * (NUM_BLOCKS * BLOCK_SIZE) as u64, "{name}");
        let on_cpu = prefill_in(&model, &cache, prompt, prompt.len(), blocks);
        let cut = prefill_in(&model, &cache, prompt, 7, [9, 4, 20, 11]);
        assert_eq!(max_difference(&on_cpu, &cut), 0.0, "{name} in chunks");
        let moved = max_difference(&on_cpu, &golden.logits);
        let error = moved / largest(&golden.logits);
        let limits = if has_experts(name) { [f32::INFINITY; 2] } else { [0.4, 0.02] };
        assert!(moved > TOLERANCE && error < limits[0], "{name}: logits moved by {moved}, {error}");
        let mut runner = Runner::with_cache(&Device::Cpu, name, LoadDtype::F32, true);
        let planned = checkpoint(name).spec().device_kv_bytes_per_token(KvDtype::Fp8, 1);
        let bytes = runner.cache_bytes();
        assert_eq!(bytes, planned * (NUM_BLOCKS * BLOCK_SIZE) as u64, "{name}");
        let on_device = runner.prefill(prompt, prompt.len(), &blocks);
        // A value between two quantized values may go to either.
        let apart = max_difference(&on_device, &on_cpu) / largest(&on_cpu);
        assert!(apart < limits[1], "{name}: CPU and device differ by {apart}");
        worst = worst.max(if has_experts(name) { 0.0 } else { error });
    }
    println!("= logits with a cache in FP8 within {worst:.3} of the largest");
}

/// Layers that read the keys of others are computed for the tokens that are looked at alone.
#[test]
fn tokens_that_nobody_looks_at_are_left_out() {
    for name in ["gemma4", "gguf-gemma4"] {
        let (mut runner, golden) = (Runner::new(name, LoadDtype::F32), Golden::read(name));
        let prompt = &golden.prompt;
        let work =
            |of: [&'static [u32]; 2]| [(0, &prompt[..30], of[0]), (0, &prompt[5..23], of[1])];
        let mut run = |counts: Option<&[usize]>| {
            let blocks: [&'static [u32]; 2] = [&[9, 1, 14], &[3, 20]];
            let logits = runner.step_of(&work(blocks), 2, LaunchShape::Fitted, counts);
            let next = [(30, &[7][..], blocks[0]), (18, &[8], blocks[1])];
            (logits, runner.step(&next, 2, LaunchShape::Fixed))
        };
        let whole = run(None);
        for counts in [[1, 1], [0, 3], [30, 0], [0, 0]] {
            let (logits, next) = run(Some(&counts));
            assert!(max_difference(&next, &whole.1) < 1e-5, "{name}: what comes next");
            let of_first = 30 - counts[0]..30;
            let expected = [&whole.0[of_first], &whole.0[48 - counts[1]..]].concat();
            assert!(max_difference(&logits, &expected) < 1e-5, "{name}: {counts:?}");
        }
    }
}

/// One sequence is being decoded while the other's prompt comes in chunks.
#[test]
fn sequences_of_a_batch_do_not_see_each_other() {
    for name in ["qwen2", "gemma2"] {
        let (mut runner, golden) = (Runner::new(name, LoadDtype::F32), Golden::read(name));
        let (a, b) = (&golden.prompt[..], &golden.prompt[5..32]);
        let alone =
            [runner.prefill(a, a.len(), &[0, 1, 2, 3]), runner.prefill(b, b.len(), &[4, 5])];
        let (of_a, of_b) = ([9, 1, 14], [3, 20]);
        let mut together =
            [runner.step(&[(0, &a[..20], &of_a)], 1, LaunchShape::Fitted), Vec::new()];
        for (i, chunk) in b.chunks(9).enumerate() {
            let work = [(20 + i, &a[20 + i..21 + i], &of_a[..]), (9 * i, chunk, &of_b[..])];
            let mut logits = runner.step(&work, 2, LaunchShape::Fitted);
            together[1].extend(logits.split_off(1));
            together[0].extend(logits);
        }
        let decoded = together[0].len();
        assert_eq!(max_difference(&alone[0][..decoded], &together[0]), 0.0, "{name}: decoding");
        assert_eq!(max_difference(&alone[1], &together[1]), 0.0, "{name}: prompt");
    }
}

/// The memory that a GPU needs is known from the configuration alone, to the byte.
#[test]
fn memory_on_a_device_is_computed_before_loading() {
    for name in goldens() {
        let checkpoint = checkpoint(name);
        let runner = Runner::new(name, LoadDtype::Auto);
        let dtype = checkpoint.device_dtype(None);
        assert_ne!(dtype, Planned::F32);
        let planned = checkpoint.spec().device_weight_bytes(dtype, 1);
        let found = runner.model.weight_bytes() as u64;
        // How much is sparse, only the weights know.
        match name == SPARSE {
            true => assert!(planned < found && found < planned * 11 / 10, "{found}, {planned}"),
            false => assert_eq!(found, planned, "{name}"),
        }
        let mut numbers = checkpoint.spec().clone();
        numbers.quantized.clear();
        let as_numbers = numbers.device_weight_bytes(dtype, 1);
        assert_eq!(
            planned < as_numbers,
            !checkpoint.spec().quantized.is_empty(),
            "{name}: {planned}"
        );
        let planned = checkpoint.spec().device_kv_bytes_per_token(dtype, 1);
        let tokens = (NUM_BLOCKS * BLOCK_SIZE) as u64;
        assert_eq!(runner.cache_bytes(), planned * tokens, "{name}");
    }
}
