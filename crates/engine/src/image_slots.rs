//! The embeddings of images on one rank: encoded piece by piece, and kept by slots for the decoder.

use std::collections::HashMap;

use candle_core::Tensor;
use candlepower_media::Processed;
use candlepower_models::{GivenRows, ImageEncoder, ImageRun};
use candlepower_scheduler::{EncoderSlot, Step, TokenSource};

use crate::{Error, Result};

/// The encoder of images, and the slots that the scheduler has given out.
pub(crate) struct ImageSlots {
    encoder: Box<ImageEncoder>,
    slots: HashMap<EncoderSlot, ImageRun>,
}

/// The pixels of an image whose encoding begins in a step.
pub(crate) struct StepImage<'a> {
    pub(crate) slot: EncoderSlot,
    pub(crate) image: &'a Processed,
}

impl ImageSlots {
    pub(crate) fn new(encoder: Box<ImageEncoder>) -> Self {
        Self { encoder, slots: HashMap::new() }
    }

    /// Frees the slots that the step lists, and does its work on images. `images` has the pixels of those that begin.
    ///
    /// # Errors
    /// The step encodes an image that has no pixels, or the encoder fails.
    pub(crate) fn encode(&mut self, step: &Step, images: &[StepImage<'_>]) -> Result<()> {
        for slot in &step.freed_slots {
            self.slots.remove(slot);
        }
        for encode in &step.encodes {
            if encode.pieces.start == 0 {
                let begun = images.iter().find(|begun| begun.slot == encode.slot);
                let begun = begun.ok_or_else(|| missing(encode.slot))?;
                self.slots.insert(encode.slot, self.encoder.begin(begun.image)?);
            }
            let run = self.slots.get_mut(&encode.slot).ok_or_else(|| missing(encode.slot))?;
            for _ in encode.pieces.clone() {
                self.encoder.advance(run)?;
            }
        }
        Ok(())
    }

    /// The embeddings that the rows of a step read. Neighbouring tokens with neighbouring embeddings are one entry.
    ///
    /// # Errors
    /// The step reads a slot whose image is not encoded, or more embeddings than it has.
    pub(crate) fn given_rows(&self, step: &Step) -> Result<Vec<GivenRows>> {
        let mut runs: Vec<Run> = Vec::new();
        let tokens = step.rows.iter().flat_map(|row| &row.tokens);
        for (row, source) in tokens.enumerate() {
            let TokenSource::Embedding { slot, index } = *source else { continue };
            let index = index as usize;
            match runs.last_mut() {
                Some(run) if run.continues_with(row, slot, index) => run.len += 1,
                _ => runs.push(Run { first_row: row, slot, first: index, len: 1 }),
            }
        }
        runs.into_iter().map(|run| self.rows_of(&run)).collect()
    }

    fn rows_of(&self, run: &Run) -> Result<GivenRows> {
        let image = self.slots.get(&run.slot).ok_or_else(|| missing(run.slot))?;
        let embeddings = image.embeddings().ok_or_else(|| missing(run.slot))?;
        let of_run = |all: &Tensor| all.narrow(0, run.first, run.len);
        let deepstack = image.deepstack().iter().map(of_run).collect::<Result<_, _>>()?;
        Ok(GivenRows { first_row: run.first_row, rows: of_run(embeddings)?, deepstack })
    }
}

/// Neighbouring tokens with neighbouring embeddings of one slot.
struct Run {
    first_row: usize,
    slot: EncoderSlot,
    first: usize,
    len: usize,
}

impl Run {
    fn continues_with(&self, row: usize, slot: EncoderSlot, index: usize) -> bool {
        row == self.first_row + self.len && slot == self.slot && index == self.first + self.len
    }
}

fn missing(slot: EncoderSlot) -> Error {
    Error::Invariant(format!("a step reads {slot:?}, in which no image is encoded"))
}
