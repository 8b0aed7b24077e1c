//! A rank other than 0: it loads its shard of the model and follows rank 0, step by step.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::Arc,
};

use candle_core::Device;
use candlepower_checkpoint::{Checkpoint, CheckpointFiles, Gguf, OnLoad};
use candlepower_comm::Comm;
use candlepower_models::{LoadDtype, LoadFormat, LoadOptions};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    cores::Threads,
    device::open_gpu,
    gate::panic_message,
    image_slots::StepImage,
    orders::{Order, encode, next_order, unexpected},
    rank_model::{RankDevice, RankLoad, RankModel},
    runner::Runner,
};

/// The settings of one rank.
#[derive(Clone, Debug)]
pub(crate) struct FollowerConfig {
    files: CheckpointFiles,
    on_load: Option<OnLoad>,
    takes_images: bool,
    load: LoadOptions,
    device: RankDevice,
    threads: Threads,
}

/// The settings of all ranks. Ranks that are processes get it as their first message.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Setup {
    files: Files,
    on_load: Option<OnLoad>,
    /// Whether the part for images is loaded, where the model has one.
    takes_images: bool,
    device: RankDevice,
    dtype: LoadDtype,
    load_format: LoadFormat,
    max_model_len: Option<usize>,
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
    /// The settings of a rank for each entry of `threads`.
    pub(crate) fn new(
        checkpoint: &Checkpoint,
        device: RankDevice,
        load: &LoadOptions,
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
        let takes_images = checkpoint.vision().is_some();
        Self { files, on_load, takes_images, device, dtype, load_format, max_model_len, threads }
    }

    /// Number of ranks.
    pub(crate) fn num_ranks(&self) -> usize {
        self.threads.len()
    }

    /// The settings of one of the ranks.
    ///
    /// # Errors
    /// A GGUF file cannot be read any more, or the rank's GPU cannot be used.
    pub(crate) fn config(self, rank: usize) -> Result<FollowerConfig> {
        let files = match self.files {
            Files::Folder(folder) => CheckpointFiles::Folder(folder),
            Files::Gguf(path) => CheckpointFiles::Gguf(Arc::new(Gguf::open(&path)?)),
            // The rank needs them until its process ends, so nothing is lost by the leak.
            Files::Embedded(files) => {
                let leak = |(name, bytes): (String, Vec<u8>)| -> (&'static str, &'static [u8]) {
                    (name.leak(), bytes.leak())
                };
                CheckpointFiles::Embedded(files.into_iter().map(leak).collect::<Vec<_>>().leak())
            }
        };
        let Self { on_load, takes_images, device, dtype, .. } = self;
        let Self { load_format, max_model_len, threads, .. } = self;
        let opened = if device == RankDevice::Gpu { open_gpu(rank)? } else { Device::Cpu };
        let load = LoadOptions { device: opened, dtype, load_format, max_model_len };
        let threads = threads.get(rank).cloned();
        let threads =
            threads.ok_or_else(|| Error::Invariant(format!("there is no rank {rank}")))?;
        Ok(FollowerConfig { files, on_load, takes_images, load, device, threads })
    }
}

/// Runs a rank until rank 0 ends. Errors are reported to rank 0.
pub(crate) fn run(comm: Arc<Comm>, config: FollowerConfig) -> Result<()> {
    // The error reaches rank 0 before this rank's shard is freed, because that may take a while where a GPU is in the middle of
    // a step.
    let mut runner = None;
    let done = catch_unwind(AssertUnwindSafe(|| follow(&comm, &config, &mut runner)));
    let done = done.unwrap_or_else(|panic| Err(Error::Invariant(panic_message(&*panic))));
    done.inspect_err(|error| comm.fail(&error.to_string()))
}

/// Executes the orders of rank 0, with a runner that is left in `runner`.
fn follow(comm: &Arc<Comm>, config: &FollowerConfig, runner: &mut Option<Runner>) -> Result<()> {
    let pool = config.threads.start()?;
    let mut checkpoint = Checkpoint::open(config.files.clone())?;
    if let Some(on_load) = config.on_load {
        checkpoint.quantize_on_load(on_load)?;
    }
    if !config.takes_images {
        checkpoint.without_vision();
    }
    let load = RankLoad { device: config.device, options: &config.load, comm };
    let model = pool.install(|| RankModel::load(&checkpoint, &load, &mut |_| {}))?;
    comm.answer(&encode(&model.loaded())?)?;
    let Some(order) = next_order(comm)? else { return Ok(()) };
    let Order::Reserve(memory) = order else { return Err(unexpected()) };
    config.threads.bind();
    let runner = runner.insert(model.reserve(memory, &config.threads, &mut |_, _| {})?);
    while let Some(order) = next_order(comm)? {
        let Order::Step { step, scored, images } = order else { return Err(unexpected()) };
        let images: Vec<_> =
            images.iter().map(|(slot, image)| StepImage { slot: *slot, image }).collect();
        runner.follow(&step, &scored, &images)?;
    }
    Ok(())
}
