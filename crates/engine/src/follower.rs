//! What a rank other than 0 does: it loads its part of the model and follows rank 0, step by step.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use candle_core::Device;
use candlepower_checkpoint::{Checkpoint, CheckpointFiles, Gguf, KvDtype, OnLoad};
use candlepower_comm::Comm;
use candlepower_kernels::WarmThreads;
use candlepower_models::{
    CacheSize, Decoder, DeviceDecoder, LoadDtype, LoadFormat, LoadOptions, LoadProgress,
    WorkspaceSize, load_shard, load_shard_on_device,
};
use candlepower_scheduler::{Step, TokenSource};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    cores::Threads,
    cpu_runner::{ModelRunner, PromptRow, SamplingBatch, Scored},
    device::{free_bytes, open_gpu},
    device_graphs::Graphs,
    device_runner::DeviceRunner,
    rank_process::{Death, RankProcess},
    ranks::Runner,
    start::{cache_dtype, panic_message},
};

/// What rank 0 sends to the others. After [`Order::Begin`] come steps, until it ends.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Order {
    /// All ranks have loaded their parts: the cache is to have so many blocks of such numbers.
    Begin { num_blocks: usize, num_states: usize, kv: KvDtype },
    /// As `Begin`, on devices: what steps need, and whether decodes are recorded as graphs.
    BeginOnDevice { size: WorkspaceSize, graphs: bool, num_swap_blocks: usize },
    /// A step, in which every token is known, and the rows whose prompt tokens are scored.
    Step { step: Step, scored: Vec<Scored> },
}

/// What a rank answers when it has loaded its part.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Loaded {
    pub(crate) weights_bytes: u64,
    /// What its device has left.
    pub(crate) free_bytes: Option<u64>,
}

/// On what ranks compute.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankDevice {
    /// The CPU, with its own kernels.
    Cpu,
    /// The CPU, by the definitions of the GPUs' kernels.
    Reference,
    /// A GPU each: the one with the rank's number.
    Gpu,
}

/// What a rank is started with.
#[derive(Clone, Debug)]
pub(crate) struct FollowerConfig {
    files: CheckpointFiles,
    on_load: Option<OnLoad>,
    load: LoadOptions,
    device: RankDevice,
    block_size: usize,
    threads: Threads,
}

/// What all ranks that are processes are started with: the first message to them.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Setup {
    files: Files,
    on_load: Option<OnLoad>,
    device: RankDevice,
    dtype: LoadDtype,
    load_format: LoadFormat,
    max_model_len: Option<usize>,
    block_size: usize,
    /// By rank.
    threads: Vec<Threads>,
}

/// A checkpoint's files.
#[derive(Serialize, Deserialize, Clone, Debug)]
enum Files {
    Folder(PathBuf),
    Gguf(PathBuf),
    Embedded(Vec<(String, Vec<u8>)>),
}

impl Setup {
    pub(crate) fn new(
        checkpoint: &Checkpoint,
        (load, device): (&LoadOptions, RankDevice),
        block_size: usize,
        threads: Vec<Threads>,
    ) -> Self {
        let files = match checkpoint.files() {
            CheckpointFiles::Folder(folder) => Files::Folder(folder.clone()),
            CheckpointFiles::Gguf(gguf) => Files::Gguf(gguf.path()),
            CheckpointFiles::Embedded(files) => {
                let owned = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()));
                Files::Embedded(owned.collect())
            }
        };
        let LoadOptions { dtype, load_format, max_model_len, device: _ } = load.clone();
        let on_load = checkpoint.on_load();
        Self { files, on_load, device, dtype, load_format, max_model_len, block_size, threads }
    }

    /// What one of the ranks is started with.
    ///
    /// # Errors
    /// A GGUF file cannot be read any more, or the rank's GPU cannot be used.
    pub(crate) fn config(self, rank: usize) -> Result<FollowerConfig> {
        let files = match self.files {
            Files::Folder(folder) => CheckpointFiles::Folder(folder),
            Files::Gguf(path) => CheckpointFiles::Gguf(Arc::new(Gguf::open(&path)?)),
            // They are needed as long as the rank is there.
            Files::Embedded(files) => {
                let leak = |(name, bytes): (String, Vec<u8>)| -> (&'static str, &'static [u8]) {
                    (name.leak(), bytes.leak())
                };
                CheckpointFiles::Embedded(files.into_iter().map(leak).collect::<Vec<_>>().leak())
            }
        };
        let Self {
            on_load, device, dtype, load_format, max_model_len, block_size, threads, ..
        } = self;
        let opened = if device == RankDevice::Gpu { open_gpu(rank)? } else { Device::Cpu };
        let load = LoadOptions { device: opened, dtype, load_format, max_model_len };
        let threads = threads.get(rank).cloned();
        let threads =
            threads.ok_or_else(|| Error::Invariant(format!("there is no rank {rank}")))?;
        Ok(FollowerConfig { files, on_load, load, device, block_size, threads })
    }
}

/// What the ranks beside rank 0 are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankKind {
    /// Threads of this process.
    Threads,
    /// Processes of this binary, which has to give [`run_rank`](crate::run_rank) what follows
    /// [`RANK_COMMAND`](crate::RANK_COMMAND).
    Processes,
}

/// The other ranks of a model. Dropping waits for them: they end when rank 0's end of the collectives is gone.
#[derive(Default)]
pub(crate) struct Followers {
    threads: Vec<JoinHandle<()>>,
    processes: Vec<RankProcess>,
    /// Why processes are gone.
    death: Death,
}

/// How long after its socket the end of a process may be seen.
const END_SEEN: Duration = Duration::from_secs(2);

impl Followers {
    /// Starts the ranks from 1 on, and returns rank 0's end of the collectives.
    pub(crate) fn start(
        kind: RankKind,
        setup: &Setup,
        deadline: Duration,
        death: Death,
    ) -> Result<(Self, Arc<Comm>)> {
        let ranks = setup.threads.len();
        let mut followers = Self { threads: Vec::new(), processes: Vec::new(), death };
        if kind == RankKind::Threads || ranks == 1 {
            let mut comms = Comm::local(ranks, deadline)?.into_iter();
            let root = comms.next().expect("there is a rank 0");
            for comm in comms {
                let config = setup.clone().config(comm.rank())?;
                let rank = thread::Builder::new().name(format!("rank-{}", comm.rank()));
                // What goes wrong was told to rank 0.
                let thread = rank.spawn(move || drop(run(Arc::new(comm), config)));
                followers.threads.push(thread.map_err(|error| Error::Thread(error.to_string()))?);
            }
            return Ok((followers, Arc::new(root)));
        }
        let mut links = Vec::new();
        for rank in 1..ranks {
            let death = Arc::clone(&followers.death);
            let (process, link) = RankProcess::start((rank, ranks), deadline, death)?;
            followers.processes.push(process);
            links.push(link);
        }
        let root = Comm::root(links, deadline);
        root.send_message(&encode(setup)?)?;
        Ok((followers, Arc::new(root)))
    }

    /// Waits for what the others say when they have loaded their parts: these are as large as rank 0's, and may lie on a slower disk.
    pub(crate) fn loaded(&self, comm: &Comm, patience: Duration) -> Result<Vec<Loaded>> {
        let loaded = comm.answers(patience).map_err(|error| self.explain(error.into()))?;
        loaded.iter().map(|bytes| decode(bytes)).collect()
    }

    /// The error, or, where it is that a rank is gone, why it is.
    pub(crate) fn explain(&self, error: Error) -> Error {
        use candlepower_comm::Error::Gone;
        let gone = matches!(
            error,
            Error::Comm(Gone { .. }) | Error::Model(candlepower_models::Error::Comm(Gone { .. }))
        );
        if !gone || self.processes.is_empty() {
            return error;
        }
        let began = Instant::now();
        while began.elapsed() < END_SEEN {
            if let Some(reason) = self.death.get() {
                return Error::RankEnded(reason.clone());
            }
            thread::sleep(Duration::from_millis(10));
        }
        error
    }
}

impl Drop for Followers {
    fn drop(&mut self) {
        self.processes.iter().for_each(RankProcess::close);
        for thread in self.threads.drain(..) {
            // It has caught what went wrong, and told rank 0.
            let _ = thread.join();
        }
    }
}

/// Runs a rank until rank 0 ends. What goes wrong is told to rank 0.
pub(crate) fn run(comm: Arc<Comm>, config: FollowerConfig) -> Result<()> {
    // Rank 0 is told before this rank's part is let go of, which may take a while where a GPU is in the middle of a step.
    let mut runner = None;
    let done = catch_unwind(AssertUnwindSafe(|| follow(&comm, &config, &mut runner)));
    let done = done.unwrap_or_else(|panic| Err(Error::Invariant(panic_message(&*panic))));
    done.inspect_err(|error| comm.fail(&error.to_string()))
}

/// Does what rank 0 orders, with what it leaves in `runner`.
fn follow(comm: &Arc<Comm>, config: &FollowerConfig, runner: &mut Option<Runner>) -> Result<()> {
    let pool = config.threads.start()?;
    let mut checkpoint = Checkpoint::open(config.files.clone())?;
    if let Some(on_load) = config.on_load {
        checkpoint.quantize_on_load(on_load)?;
    }
    let model = pool.install(|| Part::load(&checkpoint, config, Arc::clone(comm)))?;
    comm.answer(&encode(&model.loaded())?)?;
    let Some(order) = next_order(comm)? else { return Ok(()) };
    config.threads.bind();
    let runner = runner.insert(model.begin(order, config.block_size, config.threads.warm()?)?);
    while let Some(order) = next_order(comm)? {
        let Order::Step { step, scored } = order else { return Err(unexpected()) };
        runner.follow(&step, &scored)?;
    }
    Ok(())
}

/// A rank's part of the model.
enum Part {
    Cpu(Decoder),
    Device(DeviceDecoder),
}

impl Part {
    fn load(checkpoint: &Checkpoint, config: &FollowerConfig, comm: Arc<Comm>) -> Result<Self> {
        let (load, progress) = (&config.load, &mut |_: LoadProgress| {});
        Ok(match config.device {
            RankDevice::Cpu => Self::Cpu(load_shard(checkpoint, load, comm, progress)?),
            RankDevice::Reference | RankDevice::Gpu => {
                Self::Device(load_shard_on_device(checkpoint, load, comm, progress)?)
            }
        })
    }

    fn loaded(&self) -> Loaded {
        let (weights, device) = match self {
            Self::Cpu(model) => (model.weight_bytes(), model.device()),
            Self::Device(model) => (model.weight_bytes(), model.device()),
        };
        Loaded { weights_bytes: weights as u64, free_bytes: free_bytes(device) }
    }

    /// Reserves what rank 0 says.
    fn begin(self, order: Order, block_size: usize, threads: WarmThreads) -> Result<Runner> {
        match (self, order) {
            (Self::Cpu(model), Order::Begin { num_blocks, num_states, kv }) => {
                let size = CacheSize { num_blocks, block_size, num_states };
                let cache = model.new_cache(size, cache_dtype(kv))?;
                let runner = ModelRunner::new(model, cache, block_size, Followers::default());
                Ok(Runner::Cpu(Box::new(runner), threads))
            }
            (Self::Device(model), Order::BeginOnDevice { size, graphs, num_swap_blocks }) => {
                let graphs = Graphs::of(&size, graphs);
                let mut runner = DeviceRunner::new(model, size, graphs, num_swap_blocks)?;
                runner.capture_graphs(&mut |_, _| {})?;
                Ok(Runner::Device(Box::new(runner)))
            }
            _ => Err(unexpected()),
        }
    }
}

fn unexpected() -> Error {
    Error::Invariant("rank 0 gave an order that was not due".to_owned())
}

/// Sends a step to the other ranks, which know of no tokens that were drawn: those that the step before it drew are in
/// `previous_samples`. Returns the step as they get it.
pub(crate) fn tell_others(
    comm: &Comm,
    step: &Step,
    previous_samples: &[u32],
    batch: &SamplingBatch<'_>,
) -> Result<Step> {
    let mut step = step.clone();
    for source in step.rows.iter_mut().flat_map(|row| &mut row.tokens) {
        if let TokenSource::PreviousRow(sample) = *source {
            *source = TokenSource::Id(previous_samples[sample as usize]);
        }
    }
    let scored = batch.prompts.iter().map(PromptRow::scored).collect();
    let order = Order::Step { step, scored };
    comm.send_message(&encode(&order)?)?;
    match order {
        Order::Step { step, .. } => Ok(step),
        _ => Err(unexpected()),
    }
}

fn next_order(comm: &Comm) -> Result<Option<Order>> {
    comm.next_message()?.map(|message| decode(&message)).transpose()
}

/// A message's bytes.
pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>> {
    postcard::to_stdvec(message).map_err(|error| Error::Message(error.to_string()))
}

/// The message of some bytes.
pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|error| Error::Message(error.to_string()))
}

#[cfg(test)]
mod tests {
    use candlepower_scheduler::{BlockId, LogitsFor, SeqId, StepRow};

    use super::*;

    /// Decodes of 256 sequences of 4096 tokens, 256 blocks each: most ids of blocks take three bytes. What is written in docs/tensor-parallelism.md.
    #[test]
    fn a_step_of_256_sequences_has_so_many_bytes() {
        let row = |seq: u32| StepRow {
            seq: SeqId(u64::from(100_000 + seq)),
            tokens: vec![TokenSource::Id(100_000 + seq)],
            first_position: 4095,
            state_slot: None,
            block_table: (0..256).map(|block| BlockId(block * 256 + seq)).collect(),
            logits: LogitsFor::Last,
            samples: vec![SeqId(u64::from(100_000 + seq))],
        };
        let rows = (0..256).map(row).collect();
        let step = Step { id: 1_000_000, rows, ..Step::default() };
        let order = Order::Step { step, scored: Vec::new() };
        let bytes = encode(&order).unwrap();
        assert_eq!(bytes.len(), 184_714);
        let (Order::Step { step: sent, .. }, Order::Step { step, .. }) =
            (decode(&bytes).unwrap(), order)
        else {
            panic!("another order came out");
        };
        assert_eq!(sent, step);
        assert!(decode::<Order>(&bytes[..bytes.len() / 2]).is_err());
    }
}
