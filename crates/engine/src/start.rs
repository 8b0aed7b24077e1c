//! Brings an engine up: checks the settings, loads the model, plans the KV cache, starts the thread.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::AtomicU64, mpsc::Receiver},
    thread,
    time::Instant,
};

use candle_core::DType;
use candlepower_checkpoint::{
    Checkpoint, Counted as MemoryCounted, DeviceKind, DeviceMemory, Dtype, KvDtype, MemoryPlan,
    MemoryRequest, device_logits_rows,
};
use candlepower_gpu::MOST_LOGPROBS;
use candlepower_models::{
    CacheSize, LoadProgress, WorkspaceSize, load_on_device, load_shard, load_shard_on_device,
};
use candlepower_scheduler::{
    BlockId, LogitsFor, Scheduler, SchedulerConfig, SeqId, StateSlot, Step, StepRow, TokenSource,
};
use rayon::ThreadPool;

use crate::{
    EngineConfig, EngineInfo, Error, Result, StartProgress,
    constraint::ConstraintWork,
    cores::Threads,
    cpu_runner::{ModelRunner, SamplingBatch},
    device::{check_gpus, free_bytes},
    device_graphs::Graphs,
    device_runner::DeviceRunner,
    engine::{Counted, Engine, Message, StepClock},
    follower::{Followers, Order, RankDevice, Setup, encode},
    handle::Shared,
    queue::Places,
    rank_process::Death,
    ranks::{Ranks, Runner},
    running::Running,
};

/// See [`EngineHandle::start`](crate::EngineHandle::start).
pub(crate) fn start(
    checkpoint: &Checkpoint,
    config: EngineConfig,
    messages: Receiver<Message>,
    progress: &mut (dyn FnMut(StartProgress) + Send),
) -> Result<Arc<Shared>> {
    check(&config)?;
    if checkpoint.spec().sees_both_ways() {
        return Err(Error::Config {
            name: "pooling",
            value: "none".to_owned(),
            reason: "tokens of this model see what is behind them, so it gives vectors alone",
        });
    }
    let num_threads = config.num_threads.unwrap_or_else(candlepower_machine::compute_threads);
    let threads = Threads::of_ranks(num_threads, config.tensor_parallel_size);
    let own_threads = threads[0].clone();
    let pool = own_threads.start()?;
    let death = Death::default();
    let on_device = !config.load.device.is_cpu() || config.device_reference;
    let (info, runner) = match on_device {
        true => device_runner(checkpoint, &config, threads, (&pool, &death), progress)?,
        false => cpu_runner(checkpoint, &config, threads, (&pool, &death), progress)?,
    };
    let scheduler = Scheduler::new(SchedulerConfig {
        block_size: config.block_size,
        num_blocks: info.num_blocks,
        max_num_seqs: info.max_num_seqs,
        max_num_batched_tokens: info.max_num_batched_tokens,
        max_model_len: info.max_model_len,
        enable_prefix_caching: config.enable_prefix_caching,
        prefix_cache_scope: config.prefix_cache_scope,
        policy: config.scheduling_policy,
        max_pinned_blocks: max_pinned_blocks(&config, &info),
        num_swap_blocks: runner.num_swap_blocks(),
        num_state_slots: info.num_states,
    })?;
    let mut ranks = Ranks::new(runner, pool);
    progress(StartProgress::WarmingUp);
    warm_up(&mut ranks, info.vocab_size)?;
    let in_flight_limit = info.max_num_seqs + config.max_queued_seqs;
    let shared = Arc::new(Shared {
        info,
        clock: StepClock::new(),
        stuck_after: config.stuck_after,
        places: Places::new(in_flight_limit),
        next_seed: AtomicU64::new(config.seed),
        death,
    });
    let for_thread = Arc::clone(&shared);
    let running = Running::begin();
    let run = move || {
        let _ends_last = running;
        own_threads.bind();
        let shared = Arc::clone(&for_thread);
        let mut engine = Engine {
            scheduler,
            ranks,
            in_flight: None,
            sequences: HashMap::new(),
            constraints: ConstraintWork::new(),
            pins: HashMap::new(),
            messages,
            jump_forward: config.jump_forward,
            metrics: config.metrics,
            counted: Counted::default(),
            finished: Instant::now(),
            shared,
        };
        // The reason is recorded before the streams close, so that whoever finds one closed can tell why.
        let reason = match catch_unwind(AssertUnwindSafe(|| engine.run())) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic_message(&*panic),
        };
        tracing::error!(%reason, "the engine has stopped");
        let _ = for_thread.death.set(reason); // a rank that has ended may have said why before
    };
    thread::Builder::new()
        .name("engine".into())
        .spawn(run)
        .map_err(|error| Error::Thread(error.to_string()))?;
    Ok(shared)
}

fn check(config: &EngineConfig) -> Result<()> {
    let at_least_one = [
        ("max_num_seqs", config.max_num_seqs),
        ("max_num_batched_tokens", config.max_num_batched_tokens.unwrap_or(1)),
        ("block_size", config.block_size),
        ("threads", config.num_threads.unwrap_or(1)),
        ("tensor_parallel_size", config.tensor_parallel_size),
    ];
    match at_least_one.into_iter().find(|&(_, value)| value == 0) {
        Some((name, value)) => {
            Err(Error::Config { name, value: value.to_string(), reason: "it must be at least 1" })
        }
        None if !(config.gpu_memory_utilization > 0.0 && config.gpu_memory_utilization <= 1.0) => {
            Err(Error::Config {
                name: "gpu_memory_utilization",
                value: config.gpu_memory_utilization.to_string(),
                reason: "it must be above 0 and at most 1",
            })
        }
        None => Ok(()),
    }
}

/// The model on the CPU, on one rank or several.
fn cpu_runner(
    checkpoint: &Checkpoint,
    config: &EngineConfig,
    threads: Vec<Threads>,
    (pool, death): (&ThreadPool, &Death),
    progress: &mut (dyn FnMut(StartProgress) + Send),
) -> Result<(EngineInfo, Runner)> {
    let (spec, ranks) = (checkpoint.spec(), config.tensor_parallel_size);
    spec.check_tensor_parallel(ranks)?;
    let num_threads = threads.iter().map(|threads| threads.count).sum();
    let own_threads = threads[0].clone();
    let load = (&config.load, RankDevice::Cpu);
    let setup = Setup::new(checkpoint, load, config.block_size, threads);
    // Where this fails, rank 0's end goes first, and the others end.
    let (followers, comm) =
        Followers::start(config.rank_kind, &setup, config.stuck_after, Arc::clone(death))?;
    let began = Instant::now();
    let load = || {
        load_shard(checkpoint, &config.load, Arc::clone(&comm), &mut |bytes| progress(bytes.into()))
    };
    let model = pool.install(load).map_err(|error| followers.explain(error.into()))?;
    let loaded = followers.loaded(&comm, config.stuck_after + 4 * began.elapsed())?;
    // All ranks have their weights now, and share what is left.
    let memory = DeviceMemory {
        device: DeviceKind::Cpu,
        available_bytes: free_bytes(model.device()).map(|bytes| bytes / ranks as u64),
        counted: MemoryCounted::AfterLoading,
    };
    let weights = dtype(model.weight_dtype());
    let request = memory_request(checkpoint, config, (model.max_model_len(), weights), memory)?;
    let plan = MemoryPlan::new(spec, request);
    plan.check(spec)?;
    let others_bytes = loaded.iter().map(|loaded| loaded.weights_bytes);
    let info = EngineInfo {
        weights_bytes: model.weight_bytes() as u64 + others_bytes.sum::<u64>(),
        kv_cache_bytes: plan.kv_cache_bytes * ranks as u64,
        state_bytes: plan.state_bytes * ranks as u64,
        device: "cpu".into(),
        max_logprobs: None,
        ..info(checkpoint, &plan, num_threads)
    };
    let (num_blocks, num_states, kv) = (plan.num_blocks, plan.num_states, plan.request.kv);
    let size = CacheSize { num_blocks, block_size: config.block_size, num_states };
    let cache = model.new_cache(size, cache_dtype(kv))?;
    comm.send_message(&encode(&Order::Begin { num_blocks, num_states, kv })?)?;
    let runner = ModelRunner::new(model, cache, config.block_size, followers);
    Ok((info, Runner::Cpu(Box::new(runner), own_threads.warm()?)))
}

/// The model on a GPU, or what takes its place in tests, on one rank or several.
fn device_runner(
    checkpoint: &Checkpoint,
    config: &EngineConfig,
    threads: Vec<Threads>,
    (pool, death): (&ThreadPool, &Death),
    progress: &mut (dyn FnMut(StartProgress) + Send),
) -> Result<(EngineInfo, Runner)> {
    let ranks = config.tensor_parallel_size;
    checkpoint.spec().check_tensor_parallel(ranks)?;
    check_gpus(&config.load.device, ranks)?;
    let num_threads = threads.iter().map(|threads| threads.count).sum();
    let on = if config.load.device.is_cuda() { RankDevice::Gpu } else { RankDevice::Reference };
    let setup = Setup::new(checkpoint, (&config.load, on), config.block_size, threads);
    let (followers, comm) =
        Followers::start(config.rank_kind, &setup, config.stuck_after, Arc::clone(death))?;
    let began = Instant::now();
    let load = || {
        let progress = &mut |bytes: LoadProgress| progress(bytes.into());
        match ranks {
            1 => load_on_device(checkpoint, &config.load, progress),
            _ => load_shard_on_device(checkpoint, &config.load, Arc::clone(&comm), progress),
        }
    };
    let model = pool.install(load).map_err(|error| followers.explain(error.into()))?;
    let loaded = followers.loaded(&comm, config.stuck_after + 4 * began.elapsed())?;
    // Ranks of the CPU share what is left, and the GPU with the least decides.
    let free = loaded
        .iter()
        .map(|loaded| loaded.free_bytes)
        .fold(free_bytes(model.device()), |least, free| {
            least.zip(free).map(|(least, free)| least.min(free))
        });
    let sharers = if model.device().is_cpu() { ranks as u64 } else { 1 };
    let weights = dtype(model.dtype());
    let memory = DeviceMemory {
        device: DeviceKind::Gpu { utilization: config.gpu_memory_utilization },
        available_bytes: free.map(|bytes| bytes / sharers),
        counted: MemoryCounted::AfterLoading,
    };
    let request = memory_request(checkpoint, config, (model.max_model_len(), weights), memory)?;
    let spec = checkpoint.spec();
    let plan = MemoryPlan::new(spec, request);
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    tracing::info!(
        "memory of the device: {:.2} GiB of weights, {:.2} GiB free beside them, of which {:.2} GiB for steps and CUDA graphs, {:.2} GiB for states of sequences and {:.2} GiB for the KV cache",
        gib(model.weight_bytes() as u64),
        gib(plan.request.memory.available_bytes.unwrap_or(0)),
        gib(plan.activation_bytes),
        gib(plan.state_bytes),
        gib(plan.kv_cache_bytes)
    );
    plan.check(spec)?;
    let max_rows = device_logits_rows(plan.max_num_seqs);
    let size = WorkspaceSize {
        max_tokens: plan.max_num_batched_tokens.max(max_rows),
        max_seqs: plan.max_num_seqs,
        max_rows,
        num_states: plan.num_states,
        num_blocks: plan.num_blocks,
        block_size: config.block_size,
        fp8_cache: plan.request.kv == KvDtype::Fp8,
    };
    let others_bytes = loaded.iter().map(|loaded| loaded.weights_bytes);
    let info = EngineInfo {
        weights_bytes: model.weight_bytes() as u64 + others_bytes.sum::<u64>(),
        kv_cache_bytes: plan.kv_cache_bytes * ranks as u64,
        state_bytes: plan.state_bytes * ranks as u64,
        device: if model.device().is_cuda() { "cuda" } else { "cpu" }.into(),
        max_logprobs: Some(MOST_LOGPROBS),
        ..info(checkpoint, &plan, num_threads)
    };
    let num_swap_blocks = num_swap_blocks(config, &info)?;
    let graphs = !config.enforce_eager;
    comm.send_message(&encode(&Order::BeginOnDevice { size, graphs, num_swap_blocks })?)?;
    let runner = DeviceRunner::new(model, size, Graphs::of(&size, graphs), num_swap_blocks)?;
    let mut runner = runner.leading(followers);
    runner.capture_graphs(&mut |done, total| {
        progress(StartProgress::CapturingGraphs { done, total });
    })?;
    Ok((info, Runner::Device(Box::new(runner))))
}

fn memory_request(
    checkpoint: &Checkpoint,
    config: &EngineConfig,
    (max_model_len, weights): (usize, Dtype),
    memory: DeviceMemory,
) -> Result<MemoryRequest> {
    let asked = config.load.dtype.chosen().map(dtype);
    Ok(MemoryRequest {
        weights,
        kv: checkpoint.kv_dtype(memory.device, config.kv_cache_dtype, asked, weights)?,
        max_model_len,
        block_size: config.block_size,
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        kv_cache_bytes: config.kv_cache_bytes,
        tensor_parallel_size: config.tensor_parallel_size,
        memory,
    })
}

/// Blocks that fit the memory of the host that preempted sequences may take.
fn num_swap_blocks(config: &EngineConfig, info: &EngineInfo) -> Result<usize> {
    if config.swap_bytes > 0 && info.state_bytes > 0 {
        tracing::warn!(
            "--swap-space has no effect on this model: states are not swapped, so preempted sequences are computed again"
        );
        return Ok(0);
    }
    let free = candlepower_machine::available_bytes();
    if free.is_some_and(|free| config.swap_bytes > free) {
        return Err(Error::Config {
            name: "swap_space",
            value: format!("{:.1} GiB", config.swap_bytes as f64 / f64::from(1 << 30)),
            reason: "it must fit the free memory of this machine beside all else",
        });
    }
    let blocks = config.swap_bytes / block_bytes(info);
    Ok(blocks.min(u64::from(u32::MAX)) as usize)
}

fn block_bytes(info: &EngineInfo) -> u64 {
    (info.kv_cache_bytes / info.num_blocks.max(1) as u64).max(1)
}

/// Blocks that pins may hold: by bytes, or half of all.
fn max_pinned_blocks(config: &EngineConfig, info: &EngineInfo) -> usize {
    match config.max_pinned_bytes {
        Some(bytes) => info.num_blocks.min((bytes / block_bytes(info)) as usize),
        None => info.num_blocks / 2,
    }
}

fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::Bf16,
        _ => Dtype::F32,
    }
}

/// In which the CPU's kernels keep keys and values.
pub(crate) fn cache_dtype(kv: KvDtype) -> DType {
    match kv {
        KvDtype::Plain(Dtype::F32) => DType::F32,
        KvDtype::Plain(Dtype::F16) => DType::F16,
        KvDtype::Plain(Dtype::Bf16) => DType::BF16,
        KvDtype::Fp8 => DType::F8E4M3,
    }
}

/// What the plan and the checkpoint say.
fn info(checkpoint: &Checkpoint, plan: &MemoryPlan, num_threads: usize) -> EngineInfo {
    EngineInfo {
        architecture: checkpoint.architecture().to_owned(),
        max_model_len: plan.request.max_model_len,
        vocab_size: checkpoint.spec().vocab_size,
        eos_token_ids: checkpoint.generation().eos_token_ids.clone(),
        max_num_batched_tokens: plan.max_num_batched_tokens,
        max_num_seqs: plan.max_num_seqs,
        num_states: plan.num_states,
        num_blocks: plan.num_blocks,
        block_size: plan.request.block_size,
        kv_cache_bytes: plan.kv_cache_bytes,
        state_bytes: plan.state_bytes,
        kv_cache_dtype: plan.request.kv.as_str(),
        weights_bytes: plan.weights_bytes,
        weights_dtype: match (checkpoint.quantization(), checkpoint.on_load()) {
            (Some(quantization), _) => quantization.method.clone(),
            (None, Some(on_load)) => on_load.as_str().to_owned(),
            (None, None) => match plan.request.weights {
                Dtype::F32 => "f32".to_owned(),
                Dtype::F16 => "f16".to_owned(),
                Dtype::Bf16 => "bf16".to_owned(),
            },
        },
        looked_up_bytes: checkpoint.spec().looked_up_bytes(plan.request.weights),
        device: String::new(),
        max_logprobs: None,
        num_threads,
    }
}

impl From<LoadProgress> for StartProgress {
    fn from(LoadProgress { bytes_done, bytes_total }: LoadProgress) -> Self {
        Self::Loading { bytes_done, bytes_total }
    }
}

/// Runs the model over one token, in a block that nothing else uses yet. Some token's logits must be finite.
fn warm_up(ranks: &mut Ranks, vocab_size: usize) -> Result<()> {
    for token_id in warm_up_tokens(vocab_size) {
        let row = StepRow {
            seq: SeqId(0),
            tokens: vec![TokenSource::Id(token_id)],
            first_position: 0,
            block_table: vec![BlockId(0)],
            state_slot: Some(StateSlot(0)),
            logits: LogitsFor::Last,
            samples: vec![SeqId(0)],
        };
        let step = Step { rows: vec![row], ..Step::default() };
        ranks.launch(&step, &SamplingBatch::like_rank_0(&step, &[]));
        if ranks.wait()?.samples.iter().any(|sampled| sampled.token_id.is_some()) {
            return Ok(());
        }
    }
    Err(Error::NothingFinite)
}

/// Tokens to try a model with: one may be padding, whose embedding nobody has trained.
pub(crate) fn warm_up_tokens(vocab_size: usize) -> [u32; 3] {
    [0, vocab_size / 4, vocab_size / 2].map(|token_id| token_id as u32)
}

pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the engine thread panicked: {}", text.unwrap_or("without a message"))
}
