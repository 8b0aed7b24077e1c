//! Counts that show whether random runs are worth their time.

/// Counts of the cases that a run has exercised.
#[derive(Default, Debug)]
pub(crate) struct Seen {
    pub(crate) steps: usize,
    pub(crate) copies: usize,
    pub(crate) forks: usize,
    pub(crate) previous_rows: usize,
    pub(crate) mixed_steps: usize,
    pub(crate) finished: usize,
    pub(crate) cancelled: usize,
    pub(crate) appended: usize,
    /// Number of samples that were taken back.
    pub(crate) retracted: usize,
    /// Number of tokens that are computed once more, as their logits were lost.
    pub(crate) stepped_back: usize,
    /// Number of times that a sequence was held after a token.
    pub(crate) held: usize,
    pub(crate) pins: usize,
    /// Number of blocks whose prefix a new sequence copied.
    pub(crate) partial_blocks: usize,
    /// Number of states that were copied, for sequences that fork or start, or to be kept.
    pub(crate) state_copies: usize,
    /// Number of new sequences that started with the state of another sequence's tokens.
    pub(crate) resumed: usize,
    /// Number of steps without rows.
    pub(crate) without_rows: usize,
    /// Number of block copies in such steps.
    pub(crate) copies_without_rows: usize,
    /// Number of embeddings that rows have read.
    pub(crate) embeddings: usize,
    /// Number of whole items in rows.
    pub(crate) whole_items: usize,
    /// Number of rows that exceeded the budget for a whole item.
    pub(crate) oversized: usize,
    /// Number of slots that steps have freed.
    pub(crate) freed_slots: usize,
    /// The longest time from a sequence's arrival to its end, in steps.
    pub(crate) longest_stay: usize,
}

impl Seen {
    /// Adds the counts of another run.
    pub(crate) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.copies += other.copies;
        self.forks += other.forks;
        self.previous_rows += other.previous_rows;
        self.mixed_steps += other.mixed_steps;
        self.finished += other.finished;
        self.cancelled += other.cancelled;
        self.appended += other.appended;
        self.retracted += other.retracted;
        self.stepped_back += other.stepped_back;
        self.held += other.held;
        self.pins += other.pins;
        self.partial_blocks += other.partial_blocks;
        self.state_copies += other.state_copies;
        self.resumed += other.resumed;
        self.without_rows += other.without_rows;
        self.copies_without_rows += other.copies_without_rows;
        self.embeddings += other.embeddings;
        self.whole_items += other.whole_items;
        self.oversized += other.oversized;
        self.freed_slots += other.freed_slots;
        self.longest_stay = self.longest_stay.max(other.longest_stay);
    }
}
