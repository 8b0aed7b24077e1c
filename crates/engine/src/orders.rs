//! Messages between rank 0 and the other ranks of a model.

use candlepower_checkpoint::KvDtype;
use candlepower_comm::Comm;
use candlepower_media::Processed;
use candlepower_models::{CacheSize, WorkspaceSize};
use candlepower_scheduler::{EncoderSlot, Step, TokenSource};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    image_slots::StepImage,
    step_io::{SamplingBatch, ScoredRow},
};

/// A message from rank 0 to the other ranks. After [`Order::Reserve`] come steps, until rank 0 ends.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Order {
    /// All ranks have loaded their shards. Each now reserves the memory of its steps.
    Reserve(StepMemory),
    /// A step in which every token is known, the rows whose prompt tokens are scored, and the pixels of the images whose encoding
    /// begins.
    Step { step: Step, scored: Vec<ScoredRow>, images: Vec<(EncoderSlot, Processed)> },
}

/// The memory that every rank reserves for steps.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub(crate) enum StepMemory {
    /// A cache in host memory, whose keys and values have a dtype.
    Cpu { size: CacheSize, kv: KvDtype },
    /// A device's workspace, the host memory for swapped blocks, and whether decodes are recorded as CUDA graphs.
    Device { size: WorkspaceSize, graphs: bool, num_swap_blocks: usize },
}

/// A rank's answer after it has loaded its shard.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub(crate) struct Loaded {
    pub(crate) weights_bytes: u64,
    /// Free memory of its device.
    pub(crate) free_bytes: Option<u64>,
}

/// Sends a step to the other ranks. They do not know the sampled tokens, so tokens of the step before are looked up in
/// `previous_samples`. Returns the step as it was sent.
pub(crate) fn send_step(
    comm: &Comm,
    step: &Step,
    previous_samples: &[u32],
    batch: &SamplingBatch<'_>,
    images: &[StepImage<'_>],
) -> Result<Step> {
    let mut step = step.clone();
    for source in step.rows.iter_mut().flat_map(|row| &mut row.tokens) {
        if let TokenSource::PreviousRow(sample) = *source {
            *source = TokenSource::Id(previous_samples[sample as usize]);
        }
    }
    let images = images.iter().map(|image| (image.slot, image.image.clone())).collect();
    let order = Order::Step { step, scored: batch.scored(), images };
    comm.send_message(&encode(&order)?)?;
    match order {
        Order::Step { step, .. } => Ok(step),
        Order::Reserve(_) => Err(unexpected()),
    }
}

/// Waits for the next message from rank 0; `None` when rank 0 has ended.
pub(crate) fn next_order(comm: &Comm) -> Result<Option<Order>> {
    comm.next_message()?.map(|message| decode(&message)).transpose()
}

/// The error for an order at the wrong time, or for another device.
pub(crate) fn unexpected() -> Error {
    Error::Invariant("rank 0 gave an order that was not due".to_owned())
}

/// The bytes of a message.
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

    /// Decodes of 256 sequences of 4096 tokens, with 256 blocks each. Most block ids take three bytes.
    /// docs/tensor-parallelism.md names this size.
    #[test]
    fn a_step_of_256_sequences_has_so_many_bytes() {
        let row = |seq: u32| StepRow {
            seq: SeqId(u64::from(100_000 + seq)),
            tokens: vec![TokenSource::Id(100_000 + seq)],
            first_position: 4095,
            rope_positions: Vec::new(),
            whole: Vec::new(),
            state_slot: None,
            block_table: (0..256).map(|block| BlockId(block * 256 + seq)).collect(),
            logits: LogitsFor::Last,
            samples: vec![SeqId(u64::from(100_000 + seq))],
        };
        let rows = (0..256).map(row).collect();
        let step = Step { id: 1_000_000, rows, ..Step::default() };
        let order = Order::Step { step, scored: Vec::new(), images: Vec::new() };
        let bytes = encode(&order).unwrap();
        assert_eq!(bytes.len(), 185_229);
        let (Order::Step { step: sent, .. }, Order::Step { step, .. }) =
            (decode(&bytes).unwrap(), order)
        else {
            panic!("another order came out");
        };
        assert_eq!(sent, step);
        assert!(decode::<Order>(&bytes[..bytes.len() / 2]).is_err());
    }
}
