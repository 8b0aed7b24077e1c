//! Brings an engine up: checks the settings, loads the model, plans the KV cache, starts the thread.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock, atomic::AtomicU64, mpsc::Receiver},
    thread,
};

use candle_core::DType;
use candlepower_checkpoint::{
    Checkpoint, Counted as MemoryCounted, DeviceKind, DeviceMemory, Dtype, MemoryPlan,
    MemoryRequest,
};
use candlepower_machine::available_bytes;
use candlepower_models::{Decoder, LoadProgress, load};
use candlepower_scheduler::{
    BlockId, LogitsFor, Scheduler, SchedulerConfig, SeqId, Step, StepRow, TokenSource,
};

use crate::{
    EngineConfig, EngineInfo, Error, Result, StartProgress,
    engine::{Counted, Engine, Message, StepClock},
    handle::Shared,
    ranks::Ranks,
    runner::{ModelRunner, SamplingBatch},
};

/// See [`EngineHandle::start`](crate::EngineHandle::start).
pub(crate) fn start(
    checkpoint: &Checkpoint,
    config: EngineConfig,
    messages: Receiver<Message>,
    progress: &mut (dyn FnMut(StartProgress) + Send),
) -> Result<Arc<Shared>> {
    check(&config)?;
    let num_threads = config.num_threads.unwrap_or_else(num_cpus::get_physical);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(num_threads)
        .thread_name(|index| format!("compute-{index}"))
        .build()
        .map_err(|error| Error::Thread(error.to_string()))?;
    let model = pool.install(|| {
        load(checkpoint, &config.load, &mut |LoadProgress { bytes_done, bytes_total }| {
            progress(StartProgress::Loading { bytes_done, bytes_total });
        })
    })?;
    let plan = memory_plan(&config, &model);
    plan.check(model.spec())?;
    let info = info(checkpoint, &config, &model, &plan, num_threads);
    let scheduler = Scheduler::new(SchedulerConfig {
        block_size: config.block_size,
        num_blocks: plan.num_blocks,
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        max_model_len: model.max_model_len(),
        enable_prefix_caching: config.enable_prefix_caching,
        policy: config.scheduling_policy,
        max_pinned_blocks: max_pinned_blocks(&config, &plan),
    })?;
    let cache = model.new_kv_cache(plan.num_blocks, config.block_size)?;
    let mut ranks = Ranks::new(ModelRunner::new(model, cache, config.block_size), pool);
    progress(StartProgress::WarmingUp);
    warm_up(&mut ranks)?;
    let shared = Arc::new(Shared {
        info,
        clock: StepClock::new(),
        stuck_after: config.stuck_after,
        in_flight: Arc::default(),
        in_flight_limit: config.max_num_seqs + config.max_queued_seqs,
        next_seed: AtomicU64::new(config.seed),
        death: OnceLock::new(),
    });
    let for_thread = Arc::clone(&shared);
    let run = move || {
        let shared = Arc::clone(&for_thread);
        let mut engine = Engine {
            scheduler,
            ranks,
            sequences: HashMap::new(),
            pins: HashMap::new(),
            messages,
            jump_forward: config.jump_forward,
            metrics: config.metrics,
            counted: Counted::default(),
            shared,
        };
        // The reason is recorded before the streams close, so that whoever finds one closed can tell why.
        let reason = match catch_unwind(AssertUnwindSafe(|| engine.run())) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic_message(&*panic),
        };
        tracing::error!(%reason, "the engine has stopped");
        let _ = for_thread.death.set(reason); // only this thread sets it, once
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
        ("max_num_batched_tokens", config.max_num_batched_tokens),
        ("block_size", config.block_size),
        ("threads", config.num_threads.unwrap_or(1)),
    ];
    match at_least_one.into_iter().find(|&(_, value)| value == 0) {
        Some((name, value)) => {
            Err(Error::Config { name, value: value.to_string(), reason: "it must be at least 1" })
        }
        None => Ok(()),
    }
}

/// What the cache gets of the memory that the weights have left.
fn memory_plan(config: &EngineConfig, model: &Decoder) -> MemoryPlan {
    let request = MemoryRequest {
        weights: weights_dtype(model),
        kv: Dtype::F32,
        max_model_len: model.max_model_len(),
        block_size: config.block_size,
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        kv_cache_bytes: config.kv_cache_bytes,
        tensor_parallel_size: 1,
        memory: DeviceMemory {
            device: DeviceKind::Cpu,
            available_bytes: available_bytes(),
            counted: MemoryCounted::AfterLoading,
        },
    };
    MemoryPlan::new(model.spec(), request)
}

/// Blocks that pins may hold: by bytes, or half of all.
fn max_pinned_blocks(config: &EngineConfig, plan: &MemoryPlan) -> usize {
    let block_bytes = (plan.kv_cache_bytes / plan.num_blocks.max(1) as u64).max(1);
    match config.max_pinned_bytes {
        Some(bytes) => plan.num_blocks.min((bytes / block_bytes) as usize),
        None => plan.num_blocks / 2,
    }
}

fn weights_dtype(model: &Decoder) -> Dtype {
    match model.weight_dtype() {
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::Bf16,
        _ => Dtype::F32,
    }
}

fn info(
    checkpoint: &Checkpoint,
    config: &EngineConfig,
    model: &Decoder,
    plan: &MemoryPlan,
    num_threads: usize,
) -> EngineInfo {
    EngineInfo {
        architecture: checkpoint.architecture().to_owned(),
        max_model_len: model.max_model_len(),
        vocab_size: model.spec().vocab_size,
        eos_token_ids: checkpoint.generation().eos_token_ids.clone(),
        num_blocks: plan.num_blocks,
        block_size: config.block_size,
        kv_cache_bytes: plan.kv_cache_bytes,
        weights_bytes: model.weight_bytes() as u64,
        weights_dtype: model.weight_dtype().as_str().to_owned(),
        device: "cpu".into(),
        num_threads,
    }
}

/// Runs the model over one token, in a block that nothing else uses yet.
fn warm_up(ranks: &mut Ranks) -> Result<()> {
    let row = StepRow {
        seq: SeqId(0),
        tokens: vec![TokenSource::Id(0)],
        first_position: 0,
        block_table: vec![BlockId(0)],
        logits: LogitsFor::None,
        samples: Vec::new(),
    };
    ranks.launch(&Step { id: 0, copies: Vec::new(), rows: vec![row] }, &SamplingBatch::default());
    ranks.wait().map(drop)
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the engine thread panicked: {}", text.unwrap_or("without a message"))
}
