//! The slots of token counts on a device: the sequence that has each of them, and the number of its tokens that are counted there.
//!
//! Sampling counts its own token on the device. So a sequence's counts are filled once, and later the host adds the tokens alone that
//! were not sampled. A slot is never freed: a new sequence takes the one that was used least recently.

use std::collections::HashMap;

use candlepower_scheduler::SeqId;

use crate::{
    Error, Result,
    step_io::{KnownTokens, Sample},
};

/// The slots and their sequences.
pub(crate) struct CountSlots {
    slots: Vec<CountSlot>,
    /// Index of each sequence's slot.
    of_seqs: HashMap<SeqId, usize>,
    last_use: u64,
}

#[derive(Clone, Default)]
struct CountSlot {
    seq: Option<SeqId>,
    /// Number of output tokens in the counts, that of the last launched sample included.
    num_counted: usize,
    last_use: u64,
}

/// The tokens to count before a sample.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ToCount<'a> {
    pub(crate) slot: u32,
    /// Whether the slot has another sequence's counts.
    pub(crate) is_new: bool,
    pub(crate) tokens: KnownTokens<'a>,
}

impl CountSlots {
    pub(crate) fn new(num_slots: usize) -> Self {
        Self { slots: vec![CountSlot::default(); num_slots], of_seqs: HashMap::new(), last_use: 0 }
    }

    /// Whether a step with `num_penalized` penalized samples can be counted although the newest tokens of its sequences `unknown` are
    /// not known. Their counts must be there, and the other samples must find slots beside theirs.
    pub(crate) fn hold(&self, unknown: &[SeqId], num_penalized: usize) -> bool {
        num_penalized <= self.slots.len()
            && unknown.iter().all(|seq| self.of_seqs.contains_key(seq))
    }

    /// Marks the slots of a step's sequences as used, so that others give up theirs first.
    pub(crate) fn use_all(&mut self, seqs: impl Iterator<Item = SeqId>) {
        self.last_use += 1;
        for slot in seqs.filter_map(|seq| self.of_seqs.get(&seq)) {
            self.slots[*slot].last_use = self.last_use;
        }
    }

    /// Assigns a slot to a penalized sample, and finds the tokens that its counts lack.
    ///
    /// # Errors
    /// The host does not know a token that the counts lack.
    pub(crate) fn count<'a>(&mut self, sample: &Sample<'a>) -> Result<ToCount<'a>> {
        let (seq, tokens) = (sample.seq, sample.tokens);
        let num_output = sample.position.index as usize;
        let are_known = tokens.output.len() == num_output;
        self.last_use += 1;
        let found = self.of_seqs.get(&seq).copied();
        let index = found.unwrap_or_else(|| self.take(seq));
        let slot = &mut self.slots[index];
        let num_counted = found.map(|_| slot.num_counted);
        slot.last_use = self.last_use;
        slot.num_counted = num_output + 1;
        let slot = index as u32;
        match num_counted {
            Some(counted) if counted == num_output => {
                Ok(ToCount { slot, is_new: false, tokens: KnownTokens::default() })
            }
            Some(counted) if are_known && counted < num_output => {
                let tokens = KnownTokens { prompt: &[], output: &tokens.output[counted..] };
                Ok(ToCount { slot, is_new: false, tokens })
            }
            _ if are_known => Ok(ToCount { slot, is_new: true, tokens }),
            _ => Err(Error::Invariant(format!(
                "{seq:?} has {} known tokens of {num_output}, and its counts are lost",
                tokens.output.len()
            ))),
        }
    }

    /// Takes the slot that was used least recently. It belongs to no sample of the same launch, as long as a launch has no more
    /// samples than there are slots.
    fn take(&mut self, seq: SeqId) -> usize {
        let by_use = self.slots.iter_mut().enumerate().min_by_key(|(_, slot)| slot.last_use);
        let (index, slot) = by_use.expect("there is a slot for each row of logits");
        if let Some(before) = slot.seq.replace(seq) {
            self.of_seqs.remove(&before);
        }
        self.of_seqs.insert(seq, index);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_io::OutputPosition;

    fn sample(seq: u64, index: u32, output: &[u32]) -> Sample<'_> {
        Sample {
            position: OutputPosition { seed: 0, index },
            tokens: KnownTokens { prompt: &[1, 2], output },
            ..Sample::greedy(SeqId(seq))
        }
    }

    fn count<'a>(slots: &mut CountSlots, sample: &Sample<'a>) -> (u32, bool, &'a [u32]) {
        let ToCount { slot, is_new, tokens } = slots.count(sample).unwrap();
        assert_eq!(tokens.prompt.is_empty(), !is_new);
        (slot, is_new, tokens.output)
    }

    #[test]
    fn what_was_sampled_is_counted_already() {
        let mut slots = CountSlots::new(2);
        assert!(!slots.hold(&[SeqId(7)], 1));
        assert_eq!(count(&mut slots, &sample(7, 0, &[])), (0, true, &[][..]));
        assert!(slots.hold(&[SeqId(7)], 2) && !slots.hold(&[SeqId(7)], 3));
        // Its token is not known on the host.
        assert_eq!(count(&mut slots, &sample(7, 1, &[])), (0, false, &[][..]));
        assert_eq!(count(&mut slots, &sample(7, 2, &[5])), (0, false, &[][..]));
        // Two tokens followed without being sampled.
        assert_eq!(count(&mut slots, &sample(7, 5, &[5, 6, 7, 8, 9])), (0, false, &[8, 9][..]));
        assert_eq!(count(&mut slots, &sample(7, 6, &[5, 6, 7, 8, 9])), (0, false, &[][..]));
    }

    #[test]
    fn the_slot_that_was_not_used_for_longest_is_taken() {
        let mut slots = CountSlots::new(2);
        count(&mut slots, &sample(1, 0, &[]));
        count(&mut slots, &sample(2, 0, &[]));
        slots.use_all([SeqId(1)].into_iter());
        assert_eq!(count(&mut slots, &sample(3, 4, &[3; 4])), (1, true, &[3; 4][..]));
        assert!(slots.hold(&[SeqId(1), SeqId(3)], 2) && !slots.hold(&[SeqId(2)], 1));
        let error = slots.count(&sample(2, 1, &[])).unwrap_err().to_string();
        assert!(error.contains("its counts are lost"), "{error}");
    }
}
