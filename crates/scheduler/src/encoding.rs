//! Plans the encoder's work for the items that the next rows need.

use crate::batch::Batch;
use crate::scheduler::Scheduler;
use crate::sequence::ItemSlot;
use crate::{Encode, SeqId};

impl Scheduler {
    /// Takes hold of the items that the next row of a running sequence needs, and adds encoder work to the step for
    /// the first one that is not complete. Returns the position at which the row ends at the latest.
    ///
    /// The tokens before an item have their part of the budget, and the encoder has the rest. A sequence that cannot
    /// begin an item is the next one to do so: later sequences begin none in this step, so that small items do not
    /// keep a large one waiting.
    ///
    /// Some sequence can always go on. The items that a sequence holds are the next ones that it needs, and only the
    /// last of them may be unfinished. So a holder can compute the tokens of its first item, or continue the one
    /// unfinished item. If no item is held, each item finds room.
    pub(crate) fn encode_items(&mut self, id: SeqId, batch: &mut Batch) -> usize {
        let seq = self.sequences.get_mut(&id).expect("running sequences are known");
        let (start, items) = (seq.num_computed_tokens, seq.items.clone());
        for (index, item) in items.after(start) {
            let end = start + seq.num_row_tokens(batch.budget);
            if end == start || item.start >= end {
                break;
            }
            let held = seq.slot_of(index);
            let slot = held.or_else(|| {
                let slot = self.encoder.hold(&seq.cache_root, item, batch.may_begin_item)?;
                seq.slots.push(ItemSlot { item: index, slot });
                Some(slot)
            });
            let cut = item.start.max(start);
            let Some(slot) = slot else {
                batch.may_begin_item = false;
                return cut;
            };
            let rest = batch.budget - (cut - start);
            let max_pieces = (rest / item.tokens_per_piece).max(1);
            let pieces = self.encoder.advance(slot, max_pieces);
            if !pieces.is_empty() {
                let cost = pieces.len().saturating_mul(item.tokens_per_piece);
                batch.budget -= cost.min(rest);
                batch.charge(seq.caller, cost);
                batch.encode(Encode { slot, seq: id, item: index as u32, pieces });
            }
            if !self.encoder.is_complete(slot) {
                return cut;
            }
        }
        usize::MAX
    }
}
