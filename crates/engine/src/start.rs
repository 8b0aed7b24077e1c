//! Brings an engine up: checks the settings, starts the ranks, warms the model up, starts the engine's thread.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64, mpsc::Receiver},
    thread,
    time::Instant,
};

use candlepower_checkpoint::{
    Checkpoint, Counted as MemoryCounted, DeviceKind, DeviceMemory, Dtype, KvDtype,
    LINEAR_ATTENTION_CHUNK, MemoryPlan, MemoryRequest, device_logits_rows,
};
use candlepower_gpu::MAX_LOGPROBS;
use candlepower_models::{CacheSize, WorkspaceSize};
use candlepower_scheduler::{
    BlockId, LogitsFor, Scheduler, SchedulerConfig, SeqId, StateSlot, Step, StepRow, TokenSource,
};
use rayon::ThreadPool;

use crate::{
    Error, Result,
    config::{EngineConfig, EngineInfo, StartProgress},
    constraint::ConstraintWork,
    cores::Threads,
    device::{check_gpus, free_bytes},
    engine::{Counted, Engine, Message, Shared},
    follower::Setup,
    followers::Followers,
    gate::{Death, EngineGate},
    orders::{Loaded, Order, StepMemory, encode},
    rank_model::{RankDevice, RankLoad, RankModel, plain_dtype},
    ranks::Ranks,
    running::Running,
    step_io::SamplingBatch,
    warm_up::warm_up_tokens,
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
    let death = Death::default();
    let host = RankHost { threads, pool: own_threads.start()?, death: Arc::clone(&death) };
    let (info, mut ranks) = start_ranks(checkpoint, &config, host, progress)?;
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
        num_swap_blocks: ranks.num_swap_blocks(),
        num_state_slots: info.num_states,
        row_multiple: row_multiple(checkpoint, &info),
        max_graph_rows: ranks.max_graph_rows(),
        num_encoder_embeddings: info.max_image_embeddings,
    })?;
    progress(StartProgress::WarmingUp);
    warm_up(&mut ranks, info.vocab_size)?;
    let in_flight_limit = info.max_num_seqs + config.max_queued_seqs;
    let shared = Arc::new(Shared {
        info,
        gate: EngineGate::new(in_flight_limit, config.stuck_after, death),
        next_seed: AtomicU64::new(config.seed),
        decoder: checkpoint.spec().clone(),
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
            constraints: ConstraintWork::new(config.mask_patience),
            pins: HashMap::new(),
            messages,
            jump_forward: config.jump_forward,
            appended_share: 0.0,
            metrics: config.metrics,
            counted: Counted::default(),
            finished: Instant::now(),
            shared,
        };
        // The engine, with its streams, is dropped after the reason of its end is recorded.
        for_thread.gate.run(|| engine.run());
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

/// The threads of the ranks, and rank 0's record of why one has ended.
struct RankHost {
    /// Threads of each rank.
    threads: Vec<Threads>,
    /// Threads of rank 0 for work outside of steps.
    pool: ThreadPool,
    /// The reason why a rank has ended.
    death: Death,
}

/// Starts all ranks of the model: each loads its shard, rank 0 plans the memory, each reserves it.
fn start_ranks(
    checkpoint: &Checkpoint,
    config: &EngineConfig,
    host: RankHost,
    progress: &mut (dyn FnMut(StartProgress) + Send),
) -> Result<(EngineInfo, Ranks)> {
    let device = RankDevice::of(&config.load, config.device_reference);
    let ranks = config.tensor_parallel_size;
    checkpoint.spec().check_tensor_parallel(ranks)?;
    check_gpus(&config.load.device, ranks)?;
    let setup = Setup::new(checkpoint, device, &config.load, host.threads.clone());
    // Where a later step fails, `comm` is dropped before `followers`, so they end and can be waited for.
    let (followers, comm) =
        Followers::start(config.rank_kind, &setup, config.stuck_after, Arc::clone(&host.death))?;

    let began = Instant::now();
    let load = RankLoad { device, options: &config.load, comm: &comm };
    let load = || RankModel::load(checkpoint, &load, &mut |bytes| progress(bytes.into()));
    let model = host.pool.install(load).map_err(|error| followers.explain(error))?;
    let others = followers.loaded(&comm, config.stuck_after + 4 * began.elapsed())?;

    let plan = plan_memory(checkpoint, config, &model, &others)?;
    if config.deterministic && device != RankDevice::Cpu {
        checkpoint.spec().check_deterministic(plan.request.kv, ranks)?;
    }
    let others_bytes = others.iter().map(|other| other.weights_bytes);
    let info = EngineInfo {
        weights_bytes: model.weights_bytes() + others_bytes.sum::<u64>(),
        kv_cache_bytes: plan.kv_cache_bytes * ranks as u64,
        state_bytes: plan.state_bytes * ranks as u64,
        device: if model.device().is_cuda() { "cuda" } else { "cpu" }.into(),
        max_logprobs: match device {
            RankDevice::Cpu => None,
            RankDevice::Reference | RankDevice::Gpu => Some(MAX_LOGPROBS),
        },
        num_threads: host.threads.iter().map(|threads| threads.count).sum(),
        vision: checkpoint.vision().filter(|_| model.takes_images()).cloned().map(Arc::new),
        max_image_embeddings: match model.takes_images() {
            true => max_image_embeddings(checkpoint, config),
            false => 0,
        },
        ..info(checkpoint, &plan)
    };

    let memory = step_memory(config, device, &plan, &info)?;
    comm.send_message(&encode(&Order::Reserve(memory))?)?;
    let mut captured = |done, total| progress(StartProgress::CapturingGraphs { done, total });
    let runner = model.reserve(memory, &host.threads[0], &mut captured)?;
    Ok((info, Ranks::new(runner, followers, host.pool)))
}

/// Divides the memory that is left after all ranks have loaded.
fn plan_memory(
    checkpoint: &Checkpoint,
    config: &EngineConfig,
    model: &RankModel,
    others: &[Loaded],
) -> Result<MemoryPlan> {
    let spec = checkpoint.spec();
    let free = free_bytes(model.device());
    let available_bytes = match model.device().is_cpu() {
        // The ranks share the memory of the machine.
        true => free.map(|bytes| bytes / config.tensor_parallel_size as u64),
        // The GPU with the least memory decides for all.
        false => others
            .iter()
            .map(|other| other.free_bytes)
            .fold(free, |least, free| least.zip(free).map(|(least, free)| least.min(free))),
    };
    let device = match model {
        RankModel::Cpu(..) => DeviceKind::Cpu,
        RankModel::Device(_) => DeviceKind::Gpu { utilization: config.gpu_memory_utilization },
    };
    let memory = DeviceMemory { device, available_bytes, counted: MemoryCounted::AfterLoading };
    let plan = MemoryPlan::new(spec, memory_request(checkpoint, config, model, memory)?);
    let in_fp8 = match model {
        RankModel::Cpu(..) => spec.rounded_activations(),
        RankModel::Device(model) => model.describe_fp8()?,
    };
    if let Some(line) = in_fp8 {
        tracing::info!("{line}");
    }
    if let RankModel::Device(model) = model {
        log_memory(&plan, model.weight_bytes() as u64);
    }
    plan.check(spec)?;
    Ok(plan)
}

fn log_memory(plan: &MemoryPlan, weight_bytes: u64) {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    tracing::info!(
        "memory of the device: {:.2} GiB of weights, {:.2} GiB free beside them, of which {:.2} GiB for steps and CUDA graphs, {:.2} GiB for states of sequences and {:.2} GiB for the KV cache",
        gib(weight_bytes),
        gib(plan.request.memory.available_bytes.unwrap_or(0)),
        gib(plan.activation_bytes),
        gib(plan.state_bytes),
        gib(plan.kv_cache_bytes)
    );
}

/// Rows of prompts that end at its multiples lose no whole chunk of linear attention, which a GPU computes in another form than the
/// chunk's parts.
fn row_multiple(checkpoint: &Checkpoint, info: &EngineInfo) -> usize {
    let has_chunks = checkpoint.spec().linear_attentions().next().is_some();
    if has_chunks && info.device == "cuda" { LINEAR_ATTENTION_CHUNK } else { 1 }
}

/// The memory that each rank reserves by the plan.
fn step_memory(
    config: &EngineConfig,
    device: RankDevice,
    plan: &MemoryPlan,
    info: &EngineInfo,
) -> Result<StepMemory> {
    let &MemoryPlan { num_blocks, num_states, .. } = plan;
    let (kv, block_size) = (plan.request.kv, config.block_size);
    if device == RankDevice::Cpu {
        let size = CacheSize { num_blocks, block_size, num_states };
        return Ok(StepMemory::Cpu { size, kv });
    }
    let max_rows = device_logits_rows(plan.max_num_seqs);
    let size = WorkspaceSize {
        max_tokens: plan.max_num_batched_tokens.max(max_rows),
        max_seqs: plan.max_num_seqs,
        max_rows,
        num_states,
        num_blocks,
        block_size,
        fp8_cache: kv == KvDtype::Fp8,
        deterministic: config.deterministic,
    };
    let num_swap_blocks = num_swap_blocks(config, info)?;
    Ok(StepMemory::Device { size, graphs: !config.enforce_eager, num_swap_blocks })
}

fn memory_request(
    checkpoint: &Checkpoint,
    config: &EngineConfig,
    model: &RankModel,
    memory: DeviceMemory,
) -> Result<MemoryRequest> {
    let (max_model_len, weights) = (model.max_model_len(), model.weights_dtype());
    let asked = config.load.dtype.chosen().map(plain_dtype);
    Ok(MemoryRequest {
        weights,
        kv: checkpoint.kv_dtype(memory.device, config.kv_cache_dtype, asked, weights)?,
        max_model_len,
        block_size: config.block_size,
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        kv_cache_bytes: config.kv_cache_bytes,
        tensor_parallel_size: config.tensor_parallel_size,
        images: config.images,
        memory,
    })
}

/// Number of blocks that fit the host memory for preempted sequences.
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

/// Embeddings of images that the cache of the encoder holds.
fn max_image_embeddings(checkpoint: &Checkpoint, config: &EngineConfig) -> usize {
    let Some(vision) = checkpoint.vision() else { return 0 };
    (config.images.encoder_cache_bytes / vision.embedding_bytes()) as usize
}

/// The values that the plan and the checkpoint determine.
fn info(checkpoint: &Checkpoint, plan: &MemoryPlan) -> EngineInfo {
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
        num_threads: 0,
        vision: None,
        max_image_embeddings: 0,
    }
}

/// Runs the model over one token, in a block that no sequence uses yet. The logits of some token must be finite.
fn warm_up(ranks: &mut Ranks, vocab_size: usize) -> Result<()> {
    for token_id in warm_up_tokens(vocab_size) {
        let row = StepRow {
            seq: SeqId(0),
            tokens: vec![TokenSource::Id(token_id)],
            first_position: 0,
            rope_positions: Vec::new(),
            whole: Vec::new(),
            block_table: vec![BlockId(0)],
            state_slot: Some(StateSlot(0)),
            logits: LogitsFor::Last,
            samples: vec![SeqId(0)],
        };
        let step = Step { rows: vec![row], ..Step::default() };
        ranks.launch(&step, &SamplingBatch::like_rank_0(&step, &[]), &[]);
        if ranks.wait()?.samples.iter().any(|sampled| sampled.token_id.is_some()) {
            return Ok(());
        }
    }
    Err(Error::NothingFinite)
}
