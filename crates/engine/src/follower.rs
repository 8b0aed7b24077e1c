//! What a rank other than 0 does: it loads its part of the model and follows rank 0, step by step.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use candlepower_checkpoint::{Checkpoint, CheckpointFiles};
use candlepower_comm::Comm;
use candlepower_models::{LoadOptions, load_shard};
use candlepower_scheduler::Step;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    runner::{ModelRunner, Scored},
    start::{compute_pool, panic_message},
};

/// What rank 0 sends to the others. After [`Order::Begin`] come steps, until it ends.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Order {
    /// All ranks have loaded their parts: the cache is to have so many blocks.
    Begin { num_blocks: usize },
    /// A step, in which every token is known, and the rows whose prompt tokens are scored.
    Step { step: Step, scored: Vec<Scored> },
}

/// What a rank answers when it has loaded its part.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Loaded {
    pub(crate) weights_bytes: u64,
}

/// What a rank is started with.
#[derive(Clone, Debug)]
pub(crate) struct FollowerConfig {
    pub(crate) files: CheckpointFiles,
    pub(crate) load: LoadOptions,
    pub(crate) block_size: usize,
    pub(crate) num_threads: usize,
}

/// The other ranks of a model, as threads of this process. Dropping waits for them: they end when rank 0's end of the
/// collectives is gone.
#[derive(Default)]
pub(crate) struct Followers(Vec<JoinHandle<()>>);

impl Followers {
    /// Starts the ranks from 1 on, each with what `config` says for it, and returns rank 0's end of the collectives.
    pub(crate) fn start(
        config: impl Fn(usize) -> FollowerConfig,
        ranks: usize,
        deadline: Duration,
    ) -> Result<(Self, Arc<Comm>)> {
        let mut followers = Self::default();
        let mut comms = Comm::local(ranks, deadline)?.into_iter();
        let root = comms.next().expect("there is a rank 0");
        for comm in comms {
            let config = config(comm.rank());
            let rank = thread::Builder::new().name(format!("rank-{}", comm.rank()));
            let thread = rank.spawn(move || run(Arc::new(comm), &config));
            followers.0.push(thread.map_err(|error| Error::Thread(error.to_string()))?);
        }
        Ok((followers, Arc::new(root)))
    }
}

impl Drop for Followers {
    fn drop(&mut self) {
        for thread in self.0.drain(..) {
            // It has caught what went wrong, and told rank 0.
            let _ = thread.join();
        }
    }
}

/// Runs a rank until rank 0 ends. What goes wrong is told to rank 0.
fn run(comm: Arc<Comm>, config: &FollowerConfig) {
    let failed = match catch_unwind(AssertUnwindSafe(|| follow(&comm, config))) {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(panic) => panic_message(&*panic),
    };
    comm.fail(&failed);
}

fn follow(comm: &Arc<Comm>, config: &FollowerConfig) -> Result<()> {
    let pool = compute_pool(config.num_threads)?;
    let checkpoint = Checkpoint::open(config.files.clone())?;
    let load = || load_shard(&checkpoint, &config.load, Arc::clone(comm), &mut |_| {});
    let model = pool.install(load)?;
    let loaded = Loaded { weights_bytes: model.weight_bytes() as u64 };
    comm.answer(&encode(&loaded)?)?;
    let Some(Order::Begin { num_blocks }) = next_order(comm)? else { return Ok(()) };
    let cache = model.new_kv_cache(num_blocks, config.block_size)?;
    let mut runner = ModelRunner::new(model, cache, config.block_size, Followers::default());
    while let Some(order) = next_order(comm)? {
        let Order::Step { step, scored } = order else {
            return Err(Error::Invariant("rank 0 began twice".to_owned()));
        };
        pool.install(|| runner.follow(&step, &scored))?;
    }
    Ok(())
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
    use candlepower_scheduler::{BlockId, LogitsFor, SeqId, StepRow, TokenSource};

    use super::*;

    /// Decodes of 256 sequences of 4096 tokens, 256 blocks each: most ids of blocks take three bytes. What is written in docs/tensor-parallelism.md.
    #[test]
    fn a_step_of_256_sequences_has_so_many_bytes() {
        let row = |seq: u32| StepRow {
            seq: SeqId(u64::from(100_000 + seq)),
            tokens: vec![TokenSource::Id(100_000 + seq)],
            first_position: 4095,
            block_table: (0..256).map(|block| BlockId(block * 256 + seq)).collect(),
            logits: LogitsFor::Last,
            samples: vec![SeqId(u64::from(100_000 + seq))],
        };
        let rows = (0..256).map(row).collect();
        let step = Step { id: 1_000_000, copies: Vec::new(), rows };
        let order = Order::Step { step, scored: Vec::new() };
        let bytes = encode(&order).unwrap();
        assert_eq!(bytes.len(), 184_456);
        let (Order::Step { step: sent, .. }, Order::Step { step, .. }) =
            (decode(&bytes).unwrap(), order)
        else {
            panic!("another order came out");
        };
        assert_eq!(sent, step);
        assert!(decode::<Order>(&bytes[..bytes.len() / 2]).is_err());
    }
}
