//! Measures the kernels in the shapes of Llama-3.1-8B, of MoE layers, and of linear attention and SSM layers. The
//! results decide between kernels that only a GPU can compare. `cuda_kernels --times` runs everything, or the parts
//! that are named. `--small` divides every shape by 32, to try the program where nothing can be measured.
//!
//! One CUDA graph launches an operation many times, like a decode, over more copies of its operands than fit into any
//! cache. Beside the bytes per second, it prints their share of the rate of a copy within the device, with reads and
//! writes counted. That rate is the ceiling.

use std::cell::{OnceCell, RefCell};
use std::time::Instant;

use candle_core::cuda_backend::cudarc::driver::DriverError;
use candle_core::{DType, Tensor};
use candlepower_gpu::cuda::{self, Cublas, DecodeKernel};
use candlepower_gpu::{
    self as gpu, AttentionSpec, AttentionStep, ExpertMatrices, Graph, LaunchShape, Matrix,
    NormWeight, PackedMatrix, PagedCache, PagedLayer, PlanCapacity, PrefillKernel, RmsNorm,
    Routing, SamplerRow, SamplingBatch, SamplingOutput, SamplingScratch, StatePool, StateTables,
    Uploads,
};
use candlepower_kernels::{
    Activation, Error, Gating, KvCacheConfig, LinearAttention, LinearAttentionDims, Offsets,
    PagedAttention, QuantFormat, QuantizedRows, Result, ScaleForm, StateConfig, UpdateRule, Weight,
};
use half::bf16;

use crate::attention;
use crate::gpu::{Gpu, Random};

mod fp8;
mod fusions;

/// More than the L2 cache of any GPU.
const BEYOND_CACHES: usize = 256 << 20;

/// Outputs and inputs of the matrices of a layer: q, k and v; the output of attention; gate and up; down.
const MATRICES: [(&str, usize, usize); 4] =
    [("qkv", 6144, 4096), ("o", 4096, 4096), ("gate_up", 28672, 4096), ("down", 4096, 14336)];
const HIDDEN: usize = 4096;
const VOCAB: usize = 128_256;
/// Heads of q, heads of k and v, and elements of a head.
const HEADS: [usize; 3] = [32, 8, 128];
/// The widest heads that attention is compiled for.
const WIDE_HEADS: [usize; 3] = [32, 4, 512];

/// A kernel of attention to measure.
#[derive(Clone, Copy, Debug)]
enum Attention {
    /// FlashInfer's kernel for decodes, and one for prompts.
    FlashInfer(DecodeKernel, PrefillKernel),
    /// Our own kernel for decodes over an FP8 cache.
    OwnFp8,
    /// The kernel of `--deterministic`, in a fixed order.
    Ordered,
}

/// A group of measurements.
type Part = fn(&Times<'_>) -> Result<()>;

const PARTS: [(&str, Part); 15] = [
    ("uploads", uploads),
    ("products", products),
    ("fusions", fusions::fusions),
    ("quantized", quantized),
    ("fp8", fp8::fp8),
    ("experts", experts),
    ("decode", decode),
    ("prefill", prefill),
    ("prefill_hopper", prefill_hopper),
    ("ordered", ordered),
    ("wide", wide),
    ("linear_attention", linear_attentions),
    ("rows", rows),
    ("sample", sample),
    // The last one, since it has never run: a kernel without an end would hold up the others.
    ("fp8_decode", fp8_decode),
];

/// Prints the parts that `choose` selects.
pub(crate) fn print(gpu: &Gpu, small: bool, choose: impl Fn(&str) -> bool) -> Result<()> {
    let times = Times { gpu, small, copy: OnceCell::new() };
    println!("{:<44} {:>9} {:>7} {:>6} {:>8}", "kernel", "us", "GB/s", "copy", "TFLOP/s");
    let bytes = if small { 1 << 20 } else { 2 << 30 };
    let seconds = copy(&times, bytes)?;
    let _ = times.copy.set(2.0 * bytes as f64 / seconds);
    for (_, part) in PARTS.iter().filter(|(name, _)| choose(name)) {
        part(&times)?;
    }
    Ok(())
}

/// Seconds of the driver's own copy of `bytes` bytes within the device. It runs outside of a graph, because a graph's
/// copy node is slower: 2.7 instead of 4.2 TB/s on an H200.
fn copy(times: &Times<'_>, bytes: usize) -> Result<f64> {
    let failed = |error: DriverError| Error::Cuda { kernel: "copy", message: error.to_string() };
    let stream = times.gpu.device().as_cuda_device()?.cuda_stream();
    let from = stream.alloc_zeros::<u8>(bytes).map_err(failed)?;
    let to = RefCell::new(stream.alloc_zeros::<u8>(bytes).map_err(failed)?);
    let copy = || stream.memcpy_dtod(&from, &mut *to.borrow_mut()).map_err(failed);
    let seconds = times.seconds(7, copy)?;
    times.print("copy", seconds, (2 * bytes, 0));
    Ok(seconds)
}

struct Times<'a> {
    gpu: &'a Gpu,
    small: bool,
    /// Bytes per second of a copy, once measured.
    copy: OnceCell<f64>,
}

impl Times<'_> {
    fn size(&self, full: usize) -> usize {
        if self.small { (full / 32).max(1) } else { full }
    }

    /// Whether contexts of this length are measured. The longest take minutes where a CPU emulates the GPU.
    fn has(&self, context: usize) -> bool {
        !self.small || context < 32_000
    }

    /// Number of operands of `bytes` bytes that no cache can hold together.
    fn copies(&self, bytes: usize) -> usize {
        if self.small { 2 } else { (BEYOND_CACHES / bytes + 1).min(64) }
    }

    /// Random values around zero, in a block that is repeated.
    fn noise(&self, dims: &[usize]) -> Result<Tensor> {
        self.noise_of(dims, 0.1)
    }

    /// The same of another spread.
    fn noise_of(&self, dims: &[usize], spread: f32) -> Result<Tensor> {
        // One block is repeated, since random values for whole matrices would take the CPU long.
        let block = Random(7).floats(1 << 16, spread, DType::BF16);
        let numbers = block.iter().map(|number| bf16::from_f32(*number)).cycle();
        let numbers: Vec<bf16> = numbers.take(dims.iter().product()).collect();
        Ok(Tensor::from_vec(numbers, dims, self.gpu.device())?)
    }

    fn zeros(&self, dims: &[usize]) -> Result<Tensor> {
        Ok(Tensor::zeros(dims, DType::BF16, self.gpu.device())?)
    }

    /// Prints and returns the median duration, in seconds, of a launch that reads and writes `bytes` bytes and computes
    /// `operations` operations. `launch` gets the index of the launch.
    fn row(
        &self,
        what: &str,
        (bytes, operations): (usize, usize),
        launch: impl Fn(usize) -> Result<()>,
    ) -> Result<f64> {
        let (launches, replays) = if self.small { (2, 1) } else { (48, 7) };
        // One launch outside of the graph, so that everything is loaded.
        launch(0)?;
        let graph = Graph::capture(self.gpu.device(), || (0..launches).try_for_each(&launch))?;
        let median = self.seconds(replays, || graph.launch())? / launches as f64;
        self.print(what, median, (bytes, operations));
        Ok(median)
    }

    /// The median duration of a launch in seconds, after a warm-up unless `small` is set.
    fn seconds(&self, replays: usize, launch: impl Fn() -> Result<()>) -> Result<f64> {
        let warm_up = usize::from(!self.small);
        let mut seconds = Vec::new();
        for _ in 0..warm_up + replays {
            self.gpu.device().synchronize()?;
            let start = Instant::now();
            launch()?;
            // A launch returns before the GPU is done.
            self.gpu.device().synchronize()?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        seconds.drain(..warm_up);
        seconds.sort_by(f64::total_cmp);
        Ok(seconds[replays / 2])
    }

    fn print(&self, what: &str, median: f64, (bytes, operations): (usize, usize)) {
        let rate = bytes as f64 / median;
        let part = self.copy.get().map_or(1.0, |copy| rate / copy);
        let computed = operations as f64 / median / 1e12;
        println!(
            "{what:<44} {:>9.2} {:>7.0} {:>5.0}% {computed:>8.1}",
            1e6 * median,
            rate / 1e9,
            100.0 * part
        );
    }
}

/// Weights on their way to the GPU: from memory that is not pinned, and through pinned memory by several threads.
fn uploads(times: &Times<'_>) -> Result<()> {
    let (rows, columns) = (times.size(1 << 14), 1 << 14);
    let bytes = vec![1u8; 2 * rows * columns];
    let device = times.gpu.device();
    let upload = || {
        Tensor::from_raw_buffer(&bytes, DType::BF16, &[rows, columns], device)?;
        Ok(())
    };
    times.print("upload, not pinned", times.seconds(5, upload)?, (bytes.len(), 0));
    let uploads = Uploads::new(device)?;
    let upload = || {
        let mut tensor = uploads.begin(DType::BF16, &[rows, columns])?;
        let fill = |offset: usize, out: &mut [u8]| {
            out.copy_from_slice(&bytes[offset..][..out.len()]);
        };
        uploads.write(&mut tensor, 0, bytes.len(), &fill)?;
        uploads.finish(tensor)?;
        Ok(())
    };
    times.print("upload, pinned", times.seconds(5, upload)?, (bytes.len(), 0));
    Ok(())
}

/// GEMV and the kernel for 1 to 128 rows beside cuBLAS, to find the numbers of rows for which each is the fastest.
fn products(times: &Times<'_>) -> Result<()> {
    let cublas = Cublas::new(times.gpu.device(), 8192, DType::BF16, 0)?;
    let head = ("lm_head", VOCAB, HIDDEN);
    for (name, n, k) in MATRICES.into_iter().chain([head]) {
        let (n, k) = (times.size(n), times.size(k));
        let matrices = (0..times.copies(2 * n * k)).map(|_| times.noise(&[n, k]));
        let matrices = matrices.collect::<Result<Vec<_>>>()?;
        for rows in [1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 2048] {
            let (x, out) = (times.noise(&[rows, k])?, times.zeros(&[rows, n])?);
            let work = (2 * (n * k + rows * (n + k)), 2 * rows * n * k);
            let w = |i: usize| &matrices[i % matrices.len()];
            if rows <= cuda::GEMV_MAX_ROWS {
                let what = format!("{name} [{n}, {k}], {rows} rows, gemv");
                times.row(&what, work, |i| cuda::gemv(&x, w(i), None, &out))?;
            }
            if rows <= cuda::MAX_PRODUCT_ROWS {
                let what = format!("{name} [{n}, {k}], {rows} rows, rows product");
                times.row(&what, work, |i| cublas.rows_product(&x, w(i), None, &out))?;
            }
            let what = format!("{name} [{n}, {k}], {rows} rows, cuBLAS");
            times.row(&what, work, |i| cublas.gemm(&x, w(i), None, &out))?;
        }
    }
    Ok(())
}

/// A quantized matrix without NaN.
fn packed(times: &Times<'_>, format: QuantFormat, (n, k): (usize, usize)) -> Result<PackedMatrix> {
    // Without bit 3 of the largest E4M3 value there is no NaN.
    let most = match format {
        QuantFormat::U8 => 0xff,
        QuantFormat::E4m3 => 0xf7,
        _ => 0x0f,
    };
    let mut random = Random(8);
    let block: Vec<u8> = (0..1 << 16).map(|_| random.next() as u8 & most).collect();
    let bytes: Vec<u8> = block.iter().copied().cycle().take(n * k).collect();
    let group = 128.min(k);
    let scales = vec![0.01; n * k.div_ceil(group)];
    let mut builder = Weight::quantized_builder(n, k, format, group, ScaleForm::F32)?;
    let rows = QuantizedRows {
        format,
        group,
        bytes: &bytes,
        scales: &scales,
        offsets: Offsets::None,
        sub_scales: None,
        inputs: None,
    };
    builder.write_quantized(0, rows)?;
    PackedMatrix::new(&builder.finish()?, None, times.gpu.device())
}

/// Products with quantized weights, and with weights that are dequantized first.
fn quantized(times: &Times<'_>) -> Result<()> {
    let cublas = Cublas::new(times.gpu.device(), 8192, DType::BF16, 64 << 20)?;
    for (kind, matrices) in [
        (QuantFormat::U4, &MATRICES[..]),
        (QuantFormat::E4m3, &MATRICES[2..3]),
        (QuantFormat::E2m1, &MATRICES[2..3]),
    ] {
        for &(name, n, k) in matrices {
            let (n, k) = (times.size(n), times.size(k));
            let first = packed(times, kind, (n, k))?;
            let bytes = Matrix::Packed(first.clone()).num_bytes();
            let others = (1..times.copies(bytes).min(16)).map(|_| packed(times, kind, (n, k)));
            let matrices = std::iter::once(Ok(first)).chain(others).collect::<Result<Vec<_>>>()?;
            for rows in [1, 8, 16, 32, 64, 128, 256, 512, 2048] {
                let (x, out) = (times.noise(&[rows, k])?, times.zeros(&[rows, n])?);
                let work = (bytes + 2 * rows * (n + k), 2 * rows * n * k);
                let what = format!("{name} [{n}, {k}] {kind:?}, {rows} rows");
                let w = |i: usize| &matrices[i % matrices.len()];
                times.row(&what, work, |i| cublas.packed(&x, w(i), None, &out))?;
            }
        }
    }
    Ok(())
}

/// Experts with few rows and with many rows each, on both sides of the thresholds between tile sizes.
fn experts(times: &Times<'_>) -> Result<()> {
    let (experts, n, k) = (times.size(128), times.size(2 * 768), times.size(2048));
    let top_k = 8.min(experts);
    let unquantized = (0..experts).map(|_| Ok(Matrix::Rows(times.noise(&[n, k])?)));
    let quantized =
        (0..experts).map(|_| Ok(Matrix::Packed(packed(times, QuantFormat::U4, (n, k))?)));
    let layers = [
        ("unquantized", 2 * n * k, ExpertMatrices::new(unquantized.collect::<Result<_>>()?)?),
        ("U4", n * k / 2, ExpertMatrices::new(quantized.collect::<Result<_>>()?)?),
    ];
    let gating = Gating { renormalize: true, ..Gating::SOFTMAX };
    for (kind, bytes, matrices) in &layers {
        for tokens in [1, 8, 64, 256, 508, 512, 2048, 8192].map(|tokens| times.size(tokens)) {
            let scores = Random(9).floats(tokens * experts, 6.0, DType::BF16);
            let scores = times.gpu.floats(&scores, &[tokens, experts], DType::BF16);
            let routing = Routing::new(tokens, experts, top_k, times.gpu.device())?;
            gpu::route(&scores, &gating, &routing)?;
            // Only experts that have tokens are read.
            let starts = routing.starts.to_vec1::<u32>()?;
            let active = starts.windows(2).filter(|pair| pair[0] < pair[1]).count();
            let pairs = routing.pairs();
            let (x, out) = (times.noise(&[tokens, k])?, times.zeros(&[pairs, n])?);
            let what = format!("experts [{n}, {k}] {kind}, {tokens} tokens, {active} used");
            let work = (active * bytes + 2 * pairs * (n + k), 2 * pairs * n * k);
            times.row(&what, work, |_| cuda::expert_product(&x, matrices, None, &routing, &out))?;
        }
    }
    Ok(())
}

/// Decodes by both kernels.
fn decode(times: &Times<'_>) -> Result<()> {
    let contexts = [
        (1, 1000),
        (1, 8000),
        (16, 1000),
        (64, 1000),
        (256, 1000),
        (1, 32_000),
        (8, 32_000),
        (1, 128_000),
        (8, 128_000),
    ];
    for (seqs, context) in contexts.into_iter().filter(|(_, context)| times.has(*context)) {
        let seqs = vec![(1, times.size(context)); if times.small { 2 } else { seqs }];
        for cache_dtype in [DType::BF16, DType::F8E4M3] {
            for kernel in [DecodeKernel::CudaCores, DecodeKernel::TensorCores] {
                let kernel = Attention::FlashInfer(kernel, PrefillKernel::Fa2);
                attend(times, HEADS, &seqs, cache_dtype, kernel)?;
            }
        }
    }
    Ok(())
}

/// Decodes over an FP8 cache by our own kernel and by FlashInfer's, and those over a bf16 cache.
fn fp8_decode(times: &Times<'_>) -> Result<()> {
    let flash_infer = Attention::FlashInfer(DecodeKernel::TensorCores, PrefillKernel::Fa2);
    for (seqs, context) in [(1, 1000), (64, 1000), (256, 1000), (8, 8192)] {
        let seqs = vec![(1, times.size(context)); if times.small { 2 } else { seqs }];
        attend(times, HEADS, &seqs, DType::F8E4M3, Attention::OwnFp8)?;
        attend(times, HEADS, &seqs, DType::F8E4M3, flash_infer)?;
        attend(times, HEADS, &seqs, DType::BF16, flash_infer)?;
    }
    Ok(())
}

/// Decodes and prompts in a fixed order. `decode` and `prefill` have the same shapes without it.
fn ordered(times: &Times<'_>) -> Result<()> {
    let shapes = [(1, 1, 1000), (64, 1, 1000), (1, 1, 8000), (1, 8192, 8192)];
    for (seqs, queries, context) in shapes.into_iter().filter(|(.., context)| times.has(*context)) {
        let seqs = vec![(times.size(queries), times.size(context)); times.size(seqs)];
        attend(times, HEADS, &seqs, DType::BF16, Attention::Ordered)?;
    }
    Ok(())
}

/// A prompt alone, a chunk after a long context, and prompts together.
fn prefill(times: &Times<'_>) -> Result<()> {
    prompts(times, PrefillKernel::Fa2)
}

/// The same by FlashInfer's kernel for Hopper. It has never run, and would hold up the other parts if it had no end. So it runs
/// if `CANDLEPOWER_PREFILL_ATTENTION` asks for it.
fn prefill_hopper(times: &Times<'_>) -> Result<()> {
    if PrefillKernel::asked_for()? == PrefillKernel::Fa2 {
        println!("prompts on Hopper: CANDLEPOWER_PREFILL_ATTENTION=hopper measures them");
        return Ok(());
    }
    if cuda::hopper_capability().is_none() {
        println!("prompts on Hopper: this build has no kernel for them");
        return Ok(());
    }
    prompts(times, PrefillKernel::Hopper)
}

fn prompts(times: &Times<'_>, kernel: PrefillKernel) -> Result<()> {
    let prompts =
        [(1, 1024, 1024), (8, 1000, 1000), (1, 8192, 8192), (1, 2048, 16384), (1, 32_768, 32_768)];
    for (seqs, queries, context) in prompts.into_iter().filter(|(.., context)| times.has(*context))
    {
        let seq = (times.size(queries), times.size(context));
        let seqs = vec![seq; if times.small { 1 } else { seqs }];
        let kernel = Attention::FlashInfer(DecodeKernel::TensorCores, kernel);
        attend(times, HEADS, &seqs, DType::BF16, kernel)?;
    }
    Ok(())
}

/// Decodes and a prompt with wide heads.
fn wide(times: &Times<'_>) -> Result<()> {
    for cache_dtype in [DType::BF16, DType::F8E4M3] {
        for (seqs, queries, context) in [(1, 1, 8000), (64, 1, 1000), (1, 2048, 2048)] {
            let seq = (times.size(queries), times.size(context));
            let seqs = vec![seq; times.size(seqs)];
            let kernel = Attention::FlashInfer(DecodeKernel::CudaCores, PrefillKernel::Fa2);
            attend(times, WIDE_HEADS, &seqs, cache_dtype, kernel)?;
        }
    }
    Ok(())
}

/// Attention of one layer.
fn attend(
    times: &Times<'_>,
    [heads, num_kv_heads, head_dim]: [usize; 3],
    seqs: &[(usize, usize)],
    cache_dtype: DType,
    kernel: Attention,
) -> Result<()> {
    let block_size = 16;
    let (queries, context) = seqs[0];
    let pages = seqs.len() * context.div_ceil(block_size);
    let read = 2 * seqs.len() * context * num_kv_heads * head_dim * cache_dtype.size_in_bytes();
    let config = KvCacheConfig {
        num_layers: times.copies(read),
        num_blocks: pages,
        block_size,
        num_kv_heads,
        head_dim,
        latent: None,
    };
    let cache = PagedCache::new(config, cache_dtype, times.gpu.device())?;
    let tokens = seqs.len() * queries;
    let q = times.noise(&[tokens, heads, head_dim])?;
    let out = times.zeros(&[tokens, heads, head_dim])?;
    let spec = AttentionSpec { heads, window: None, dtype: DType::BF16, cache_dtype };
    let capacity = PlanCapacity {
        max_seqs: seqs.len(),
        max_pages: pages,
        partials_bytes: 128 << 20,
        sink_tokens: 0,
    };
    let meta = attention::metadata(&mut Random(10), &config, seqs);
    let launch = if queries == 1 { LaunchShape::Fixed } else { LaunchShape::Fitted };
    let step = AttentionStep { meta: &meta, tokens, launch };
    let params = PagedAttention { scale: 0.09, window: None, softcap: None };
    let device = times.gpu.device();
    let run: Box<dyn Fn(&PagedLayer) -> Result<()>> = if let Attention::Ordered = kernel {
        let mut plan = cuda::OrderedAttentionPlan::new(device, spec, &config, capacity)?;
        plan.prepare(&step)?;
        Box::new(move |layer| plan.attend(&q, layer, &params, None, &out))
    } else {
        let plan = cuda::AttentionPlan::new(device, spec, &config, capacity)?;
        let mut plan = match kernel {
            Attention::FlashInfer(decodes, _) => plan.with_decode_kernel(decodes),
            Attention::OwnFp8 | Attention::Ordered => plan.with_fp8_decode()?,
        };
        if let Attention::FlashInfer(_, PrefillKernel::Hopper) = kernel {
            plan = plan.with_hopper_for_all_prompts()?;
        }
        plan.prepare(&step)?;
        Box::new(move |layer| plan.attend(&q, layer, &params, None, &out))
    };
    let kernel = match kernel {
        Attention::FlashInfer(decodes, _) if queries == 1 => format!("{decodes:?}"),
        Attention::FlashInfer(_, prompts) => format!("{prompts:?}"),
        Attention::OwnFp8 => "own".to_owned(),
        Attention::Ordered => "in fixed order".to_owned(),
    };
    let what = format!("{} seqs, {queries} of {context} in {cache_dtype:?}, {kernel}", seqs.len());
    let what = if head_dim > 128 { format!("{what}, heads of {head_dim}") } else { what };
    // Average number of positions that a query attends to: those before the middle of the queries.
    let pairs = tokens * (context - (queries - 1) / 2);
    let work = (read + 4 * tokens * heads * head_dim, 4 * pairs * heads * head_dim);
    times.row(&what, work, |i| run(cache.layer(i % config.num_layers)?))?;
    Ok(())
}

/// The operations between the matrix products.
fn rows(times: &Times<'_>) -> Result<()> {
    let (hidden, inner) = (times.size(HIDDEN), times.size(14336));
    let weight = times.noise(&[hidden])?;
    let norm = RmsNorm { weight: &weight, form: NormWeight::Plain, eps: 1e-5, next: None };
    for rows in [1, 64, 256, 8192].map(|rows| times.size(rows)) {
        let [x, residual, out] = [(); 3].map(|()| times.noise(&[rows, hidden]));
        let (x, residual, out) = (x?, residual?, out?);
        // Two rows are read and two are written.
        let work = (2 * rows * hidden * 4, 0);
        times.row(&format!("add_rms_norm [{rows}, {hidden}]"), work, |_| {
            cuda::add_rms_norm(&residual, &x, 1.0, &norm, &out)
        })?;
        let (gate_up, out) = (times.noise(&[rows, 2 * inner])?, times.zeros(&[rows, inner])?);
        let work = (2 * rows * inner * 3, 0);
        times.row(&format!("silu_mul [{rows}, {inner}]"), work, |_| {
            cuda::gated_activation(&gate_up, Activation::Silu, None, &out)
        })?;
    }
    Ok(())
}

/// Decodes and prompts through a gated delta net of Qwen3-Next-80B-A3B, and through Mamba-2 of Granite-4.0-H-Small.
fn linear_attentions(times: &Times<'_>) -> Result<()> {
    let heads = times.size(32).max(2);
    let of_delta = LinearAttentionDims {
        key_heads: heads / 2,
        value_heads: heads,
        tiled: false,
        key_dim: 128,
        value_dim: 128,
        kernel: 4,
    };
    let weight = |dims: &[usize]| {
        let numbers = Random(7).floats(dims.iter().product(), 0.1, DType::F32);
        times.gpu.floats(&numbers, dims, DType::F32)
    };
    let rule = UpdateRule::Delta { norm: weight(&[of_delta.value_dim]), eps: 1e-6 };
    let value_heads = times.size(128);
    let of_mamba = LinearAttentionDims { key_heads: 1, value_heads, value_dim: 64, ..of_delta };
    let skip = weight(&[value_heads]);
    for (name, dims, rule) in
        [("delta", of_delta, rule), ("Mamba-2", of_mamba, UpdateRule::Mamba2 { skip })]
    {
        let net = LinearAttention {
            dims,
            conv: weight(&[dims.channels(), dims.kernel]),
            conv_bias: None,
            a_log: weight(&[dims.value_heads]),
            dt_bias: weight(&[dims.value_heads]),
            rule,
        };
        linear_attention(times, name, &net)?;
    }
    Ok(())
}

fn linear_attention(times: &Times<'_>, name: &str, net: &LinearAttention) -> Result<()> {
    let (device, dims) = (times.gpu.device(), net.dims);
    for (seqs, tokens) in
        [(1, 1), (8, 1), (64, 1), (256, 1), (1, 64), (1, 256), (1, 512), (1, 2048), (16, 512)]
    {
        let (seqs, tokens) = (times.size(seqs), times.size(tokens));
        let state = 4 * seqs * dims.values() * dims.key_dim;
        let num_layers = times.copies(state);
        let config = StateConfig { num_layers, num_slots: seqs, dims: dims.into() };
        let pool = || StatePool::new(config, seqs * tokens, DType::BF16, device);
        let rows = seqs * tokens;
        let (input, gates) =
            (times.noise(&[rows, dims.width()])?, times.noise(&[rows, net.gates()])?);
        let out = times.zeros(&[rows, dims.values()])?;
        let integers = |numbers: Vec<u32>| Tensor::new(numbers, device);
        let tables = StateTables {
            query_start: &integers((0..=seqs).map(|seq| (seq * tokens) as u32).collect())?,
            slots: &integers((0..seqs as u32).collect())?,
            // The sequences continue behind a whole chunk.
            positions: &integers(vec![64; rows])?,
        };
        let rows_read = 2 * rows * (dims.width() + dims.values());
        // Three multiply-adds for each element of the state, and its decay.
        let work = (2 * state + rows_read, 7 * state / 4 * tokens);
        let heads = dims.value_heads;
        let recurrent = pool()?.with_min_chunks(0)?;
        times.row(&format!("{name} {seqs} x {tokens}, {heads} heads"), work, |i| {
            gpu::linear_attention(&input, &gates, net, &recurrent, i % num_layers, &tables, &out)
        })?;
        if tokens >= 64 {
            drop(recurrent);
            let chunkwise = pool()?.with_min_chunks(1)?;
            times.row(&format!("{name} {seqs} x {tokens}, chunkwise"), work, |i| {
                let layer = i % num_layers;
                gpu::linear_attention(&input, &gates, net, &chunkwise, layer, &tables, &out)
            })?;
        }
    }
    Ok(())
}

/// Sampling from logits over Llama's vocabulary.
fn sample(times: &Times<'_>) -> Result<()> {
    let vocab = times.size(VOCAB);
    // Noise is flat: top_p keeps most tokens. Logits of a model have few likely ones.
    for (samples, spread) in [(1, 0.1), (1, 20.0), (16, 0.1), (64, 0.1), (64, 20.0), (256, 0.1)] {
        let samples = times.size(samples);
        let logits = times.noise_of(&[samples, vocab], spread)?;
        let scratch = SamplingScratch::new(samples, vocab, times.gpu.device())?;
        let out = SamplingOutput::new(samples, 0, times.gpu.device())?;
        let plain = SamplerRow::greedy(0);
        let kinds = [
            ("greedy", plain),
            ("temperature", SamplerRow { temperature: 0.8, ..plain }),
            ("top_p 0.9", SamplerRow { temperature: 0.8, top_p: 0.9, ..plain }),
            ("top_k 50", SamplerRow { temperature: 0.8, top_k: Some(50), ..plain }),
            (
                "top_k 50, top_p 0.9",
                SamplerRow { temperature: 0.8, top_k: Some(50), top_p: 0.9, ..plain },
            ),
        ];
        for (kind, row) in kinds {
            let of_sample = |i| SamplerRow { logits_row: Some(i), ..row }.words();
            let table: Vec<u32> = (0..samples as u32).flat_map(of_sample).collect();
            let rows = times.gpu.integers(&table, &[samples, SamplerRow::WORDS]);
            let batch = SamplingBatch { rows: &rows, counts: None, biases: None, masks: None };
            let what = format!("sample {samples} of {vocab} by {spread}, {kind}");
            times.row(&what, (2 * samples * vocab, 0), |_| {
                cuda::sample(&logits, &batch, &scratch, &out)
            })?;
        }
    }
    Ok(())
}
