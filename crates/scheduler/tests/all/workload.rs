//! Drives a scheduler with requests, executes its steps on the naive memory, and verifies its promises.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use candlepower_scheduler::{
    CallerId, Item, LogitsFor, NewSequence, PinId, RopePositions, Sampled, Scheduler,
    SchedulerConfig, SeqId, Step, StepRow, TokenSource,
};

use crate::encoder::{EncoderMemory, Owner, embedding, item_at};
use crate::memory::{Content, Memory, content};
use crate::seen::Seen;

/// A scheduler, the memory on which its steps run, and facts on each sequence that do not come from the scheduler.
pub(crate) struct Workload {
    pub(crate) scheduler: Scheduler,
    pub(crate) live: BTreeMap<SeqId, LiveSequence>,
    pub(crate) seen: Seen,
    /// Executed steps with their sampled tokens, not yet committed.
    uncommitted: VecDeque<(Step, Vec<Sampled>)>,
    /// Tokens that the latest step with rows sampled.
    previous: Vec<u32>,
    memory: Memory,
    encoder: EncoderMemory,
    /// Number of prompt positions of each request whose logits were output.
    prompt_logits: HashMap<SeqId, usize>,
    /// Sequences that ended lately.
    ended: VecDeque<LiveSequence>,
    /// Sequences that are held, the one that was held first in front.
    held: VecDeque<SeqId>,
    /// Samples that were taken back, by step, and are committed all the same.
    retracted: HashSet<(u64, SeqId)>,
    pins: Vec<PinId>,
    last_step: u64,
}

pub(crate) struct LiveSequence {
    pub(crate) tokens: Vec<u32>,
    /// Number of tokens that were passed to the scheduler.
    pub(crate) num_known: usize,
    contents: Vec<Content>,
    items: Vec<Item>,
    rope: Option<Arc<RopePositions>>,
    num_prompt_tokens: usize,
    /// Length at which the caller stops.
    stop_len: usize,
    /// The first sequence of the request.
    request: SeqId,
    pub(crate) caller: CallerId,
    salt: Option<Arc<str>>,
    /// Length after which no more tokens are sampled.
    limit: usize,
    sample: bool,
    runs_ahead: bool,
    prompt_logits: bool,
    /// Whether it has sampled a token yet.
    is_started: bool,
    arrival: usize,
}

impl Workload {
    pub(crate) fn new(config: SchedulerConfig) -> Self {
        Self {
            memory: Memory::new(&config),
            encoder: EncoderMemory::new(&config),
            scheduler: Scheduler::new(config).expect("a valid configuration"),
            live: BTreeMap::new(),
            seen: Seen::default(),
            uncommitted: VecDeque::new(),
            previous: Vec::new(),
            prompt_logits: HashMap::new(),
            ended: VecDeque::new(),
            held: VecDeque::new(),
            retracted: HashSet::new(),
            pins: Vec::new(),
            last_step: 0,
        }
    }

    /// Adds a request whose sequences are removed after `max_tokens` tokens each.
    pub(crate) fn add(&mut self, new: NewSequence, max_tokens: usize) -> Vec<SeqId> {
        let ids = self.scheduler.add(new.clone()).expect("a valid request");
        assert_eq!(ids.len(), new.n);
        let logits_from = new.prompt_logits_from.unwrap_or(0);
        let whole = item_at(&new.items, logits_from).filter(|item| item.is_whole);
        let logits_from = whole.map_or(logits_from, |item| item.start);
        self.prompt_logits.insert(ids[0], logits_from);
        let salt = new.cache_salt.as_deref().map_or(0, |salt: &str| 1 + salt.len() as u64);
        for id in &ids {
            let mut seq = LiveSequence {
                tokens: Vec::new(),
                num_known: new.prompt.len(),
                contents: Vec::new(),
                items: new.items.clone(),
                rope: new.rope.clone(),
                num_prompt_tokens: new.prompt.len(),
                stop_len: new.prompt.len() + max_tokens,
                request: ids[0],
                caller: new.caller.id,
                salt: new.cache_salt.clone(),
                limit: new.prompt.len().saturating_add(new.max_tokens),
                sample: new.max_tokens > 0,
                runs_ahead: new.runs_ahead,
                prompt_logits: new.prompt_logits_from.is_some(),
                is_started: false,
                arrival: self.seen.steps,
            };
            for (position, token) in new.prompt.iter().enumerate() {
                let image = embedding(&new.items, &new.prompt, position);
                seq.push_content(
                    *token,
                    // No text token is as large.
                    image.map_or(*token, |(item, at)| 1000 + 100 * u32::from(item.digest[0]) + at),
                    salt,
                );
            }
            self.live.insert(*id, seq);
        }
        self.check();
        ids
    }

    pub(crate) fn remove(&mut self, id: SeqId) {
        self.scheduler.remove(id);
        self.seen.cancelled += 1;
        let seq = self.live.remove(&id).expect("only live sequences are removed");
        self.remember(seq);
        self.check();
    }

    /// Pins the computed tokens of a sequence that is live or ended lately.
    pub(crate) fn pin(&mut self, index: usize) {
        let known: Vec<_> = self.live.values().chain(&self.ended).collect();
        if known.is_empty() {
            return;
        }
        let seq = known[index % known.len()];
        let (tokens, salt) = (&seq.tokens[..seq.num_known], seq.salt.clone());
        self.pins.push(self.scheduler.pin(tokens, &seq.items, seq.caller, salt));
        self.seen.pins += 1;
        self.check();
    }

    /// Ends one of the pins, which may have been given up already.
    pub(crate) fn unpin(&mut self, index: usize) {
        if !self.pins.is_empty() {
            let pin = self.pins.swap_remove(index % self.pins.len());
            self.scheduler.unpin(pin);
            self.check();
        }
    }

    fn remember(&mut self, seq: LiveSequence) {
        self.ended.push_back(seq);
        if self.ended.len() > 16 {
            self.ended.pop_front();
        }
    }

    pub(crate) fn num_uncommitted(&self) -> usize {
        self.uncommitted.len()
    }

    /// Schedules and executes one step.
    pub(crate) fn step(&mut self) -> Step {
        let num_preemptions = self.scheduler.stats().num_preemptions;
        let step = self.scheduler.schedule();
        self.check();
        assert!(step.rows.iter().all(|row| !self.held.contains(&row.seq)), "a held one runs");
        self.check_step(&step);
        let stats = self.scheduler.stats();
        assert!(
            stats.num_preemptions == num_preemptions || stats.num_pinned_blocks == 0,
            "a sequence was preempted for a pin"
        );
        self.seen.partial_blocks += self.num_partial_blocks(&step);
        if step.is_empty() {
            let may_wait = self.num_uncommitted() > 0 || !self.held.is_empty();
            assert!(may_wait || self.live.is_empty(), "nothing can run");
            assert_eq!(self.scheduler.commit(&step, &[]), Ok(()));
            return step;
        }
        self.seen.steps += 1;
        self.seen.copies += step.copies.len();
        self.seen.state_copies += step.state_copies.len();
        self.seen.resumed += self.num_resumed(&step);
        self.encode(&step);
        let live = &self.live;
        let contents = |row: &StepRow| &live[&row.seq].contents[..end(row)];
        self.memory.execute(&step, contents, |id| live[&id].caller);
        let sampled = self.sample(&step);
        if !step.rows.is_empty() {
            self.previous = sampled.iter().map(|sampled| sampled.token).collect();
        }
        self.uncommitted.push_back((step.clone(), sampled));
        step
    }

    /// Commits the oldest step, if there is one, and removes finished sequences. Returns the sequences that ended.
    pub(crate) fn commit(&mut self) -> Vec<SeqId> {
        let num_released = self.held.len().div_ceil(2);
        self.held.drain(..num_released).for_each(|id| self.scheduler.release(id));
        let Some((step, sampled)) = self.uncommitted.pop_front() else { return Vec::new() };
        self.scheduler.commit(&step, &sampled).expect("the oldest step");
        for Sampled { seq: id, .. } in sampled {
            if !self.retracted.remove(&(step.id, id))
                && let Some(seq) = self.live.get_mut(&id)
            {
                seq.num_known += 1;
                self.retract(id);
                self.append(id);
            }
        }
        self.check();
        let max_model_len = self.scheduler.config().max_model_len;
        let is_finished = |id: &SeqId, seq: &LiveSequence| {
            if seq.sample {
                seq.num_known >= seq.stop_len.min(max_model_len)
            } else {
                self.scheduler.is_prompt_computed(*id)
            }
        };
        let finished: Vec<_> =
            self.live.iter().filter(|(id, seq)| is_finished(id, seq)).map(|(id, _)| *id).collect();
        for id in &finished {
            assert_eq!(
                self.scheduler.tokens(*id),
                &self.live[id].tokens[..self.live[id].num_known]
            );
            self.scheduler.remove(*id);
            let seq = self.live.remove(id).expect("it was listed");
            if seq.prompt_logits {
                assert_eq!(self.prompt_logits.get(&seq.request), Some(&seq.num_prompt_tokens));
            }
            self.seen.finished += 1;
            self.seen.longest_stay = self.seen.longest_stay.max(self.seen.steps - seq.arrival);
            self.remember(seq);
        }
        self.check();
        finished
    }

    /// Runs until every request has ended, and verifies that no memory is left in use.
    pub(crate) fn drain(&mut self) {
        let num_pieces = |seq: &LiveSequence| {
            seq.items.iter().map(|item| item.num_pieces as usize).sum::<usize>()
        };
        let work: usize = self.live.values().map(|seq| seq.stop_len + num_pieces(seq)).sum();
        // A sequence may be preempted, and its tokens computed again, once for each token of the others.
        let max_steps = 100 + 10 * work;
        for _ in 0..max_steps {
            self.commit();
            if self.live.is_empty() && self.uncommitted.is_empty() {
                break;
            }
            self.step();
        }
        assert!(
            self.live.is_empty(),
            "{} sequences did not end within {max_steps} steps",
            self.live.len()
        );
        let stats = self.scheduler.stats();
        assert_eq!((stats.num_running, stats.num_waiting), (0, 0));
        assert_eq!(stats.num_free_blocks + stats.num_pinned_blocks, stats.num_blocks);
        self.pins.drain(..).for_each(|pin| self.scheduler.unpin(pin));
        self.check();
        assert_eq!(self.scheduler.stats().num_free_blocks, stats.num_blocks, "blocks leaked");
    }

    /// Takes back some of the samples of the step that runs ahead, for a sequence whose token before it just became
    /// known. The tokens after it follow by other means, or are sampled later.
    fn retract(&mut self, id: SeqId) {
        let max_model_len = self.scheduler.config().max_model_len;
        let seq = self.live.get_mut(&id).expect("it just sampled a token");
        let digest = content(seq.contents[seq.num_known - 1], 78);
        let is_full = seq.num_known >= seq.stop_len.min(max_model_len);
        if seq.tokens.len() == seq.num_known || is_full || !digest.is_multiple_of(9) {
            return;
        }
        let Some((step, sampled)) = self.uncommitted.back_mut() else { return };
        let at = sampled.iter().position(|sampled| sampled.seq == id);
        let at = at.expect("the step samples the unknown token");
        if digest.is_multiple_of(2) {
            sampled.remove(at);
        } else {
            self.retracted.insert((step.id, id));
        }
        seq.tokens.truncate(seq.num_known);
        seq.contents.truncate(seq.num_known);
        self.scheduler.retract(id).expect("the token before it is known");
        assert!(!self.scheduler.is_sampled(id));
        self.seen.retracted += 1;
        if digest.is_multiple_of(10) {
            seq.runs_ahead = false;
            self.scheduler.step_back(id);
            self.seen.stepped_back += 1;
        } else {
            seq.push(0, 0);
            seq.num_known += 1;
            self.scheduler.append(id, &[0]).expect("its newest token is known");
        }
        self.scheduler.check().expect("the invariants hold");
    }

    /// Appends up to four tokens to a sequence that has just sampled one and does not run ahead.
    fn append(&mut self, id: SeqId) {
        let max_model_len = self.scheduler.config().max_model_len;
        let seq = self.live.get_mut(&id).expect("it just sampled a token");
        if seq.runs_ahead {
            return;
        }
        let room = seq.stop_len.min(max_model_len).saturating_sub(seq.num_known);
        let digest = content(*seq.contents.last().expect("it has tokens"), 77);
        let count = (digest % 9).saturating_sub(4) as usize;
        let tokens: Vec<u32> = (0..count.min(room) as u32).map(|token| token % 3).collect();
        tokens.iter().for_each(|token| seq.push(*token, 0));
        seq.num_known += tokens.len();
        self.seen.appended += tokens.len();
        self.scheduler.append(id, &tokens).expect("its newest token is known");
        if digest.is_multiple_of(5) {
            self.scheduler.hold(id);
            self.held.push_back(id);
            self.seen.held += 1;
        }
    }

    /// Number of rows of sequences that have sampled nothing yet and continue in a block that is copied for them.
    fn num_partial_blocks(&self, step: &Step) -> usize {
        let block_size = self.scheduler.config().block_size;
        let is_partial_block = |row: &&StepRow| {
            let block = row.block_table[row.first_position as usize / block_size];
            !self.live[&row.seq].is_started && step.copies.iter().any(|copy| copy.dst == block)
        };
        step.rows.iter().filter(is_partial_block).count()
    }

    /// Number of rows of sequences that have sampled nothing yet and start with a state that was copied for them.
    fn num_resumed(&self, step: &Step) -> usize {
        let has_copy =
            |row: &&StepRow| step.state_copies.iter().any(|copy| Some(copy.dst) == row.state_slot);
        let is_first = |row: &&StepRow| {
            let seq = &self.live[&row.seq];
            row.first_position > 0 && !seq.is_started && row.seq == seq.request
        };
        step.rows.iter().filter(has_copy).filter(is_first).count()
    }

    /// Executes the encoder's work of a step.
    fn encode(&mut self, step: &Step) {
        let live = &self.live;
        let owner = |id: SeqId| {
            let LiveSequence { tokens, items, caller, salt, .. } = &live[&id];
            Owner { tokens, items, caller: *caller, salt }
        };
        self.seen.embeddings += self.encoder.execute(step, owner);
        self.seen.freed_slots += step.freed_slots.len();
        self.seen.whole_items += step.rows.iter().map(|row| row.whole.len()).sum::<usize>();
        if step.rows.is_empty() {
            self.seen.without_rows += 1;
            self.seen.copies_without_rows += step.copies.len();
        }
        let budget = self.scheduler.config().max_num_batched_tokens;
        self.seen.oversized += usize::from(step.num_tokens() > budget);
    }

    /// Tokens of the budget that a step takes.
    fn cost(&self, step: &Step) -> usize {
        let of_encodes = step.encodes.iter().map(|encode| {
            let item = &self.live[&encode.seq].items[encode.item as usize];
            encode.pieces.len() * item.tokens_per_piece
        });
        step.num_tokens() + of_encodes.sum::<usize>()
    }

    /// Tokens by which a step may exceed the budget: those of one piece or of one whole item, but for one.
    fn largest_excess(&self, step: &Step) -> usize {
        let pieces = step
            .encodes
            .iter()
            .map(|encode| self.live[&encode.seq].items[encode.item as usize].tokens_per_piece - 1);
        let firsts = step.rows.iter().filter_map(|row| row.whole.first().map(|first| (row, first)));
        let whole = firsts
            .filter(|(row, first)| first.0 == row.first_position && first.1 as usize == end(row))
            .map(|(_, first)| (first.1 - first.0) as usize - 1);
        pieces.chain(whole).max().unwrap_or(0)
    }

    fn check(&self) {
        self.scheduler.check().expect("the invariants hold");
    }

    fn check_step(&mut self, step: &Step) {
        let config = self.scheduler.config();
        assert!(step.id > self.last_step);
        self.last_step = step.id;
        let budget = config.max_num_batched_tokens + self.largest_excess(step);
        assert!(self.cost(step) <= budget, "over the budget: {step:?}");
        assert!(self.scheduler.stats().num_running <= config.max_num_seqs);
        let rows: HashSet<_> = step.rows.iter().map(|row| row.seq).collect();
        assert_eq!(rows.len(), step.rows.len(), "two rows of one sequence");
        let num_decodes = step.rows.iter().filter(|row| row.tokens.len() == 1).count();
        self.seen.mixed_steps += usize::from(num_decodes > 0 && num_decodes < step.rows.len());
        assert!(!step.rows.is_empty() || step.samples().next().is_none());
        let is_idle = step.rows.is_empty() && step.encodes.is_empty();
        assert!(is_idle <= step.copies.is_empty(), "copies without any work");
        for row in &step.rows {
            self.check_row(row);
        }
    }

    fn check_row(&mut self, row: &StepRow) {
        let seq = self.live.get(&row.seq).expect("only live sequences run");
        assert!(!row.tokens.is_empty() && end(row) <= seq.tokens.len());
        for (position, source) in (row.first_position as usize..).zip(&row.tokens) {
            match source {
                TokenSource::Id(token) => {
                    assert!(position < seq.num_known);
                    assert_eq!(*token, seq.tokens[position]);
                }
                TokenSource::PreviousRow(index) => {
                    assert!(position >= seq.num_known && seq.runs_ahead);
                    assert_eq!(self.previous[*index as usize], seq.tokens[position]);
                    self.seen.previous_rows += 1;
                }
                // The encoder's memory verifies the rest.
                TokenSource::Embedding { .. } => assert!(position < seq.num_prompt_tokens),
            }
        }
        let ropes = (row.first_position as usize..end(row)).map(|position| seq.rope_at(position));
        let ropes: Option<Vec<_>> = ropes.collect();
        assert_eq!(row.rope_positions, ropes.unwrap_or_default());
        self.check_samples(row, seq);
        let logits_done = self.prompt_logits.entry(seq.request).or_default();
        if seq.prompt_logits
            && row.first_position as usize == *logits_done
            && *logits_done < seq.num_prompt_tokens
        {
            assert_eq!(row.logits, LogitsFor::All);
            *logits_done = end(row);
        } else {
            assert_eq!(
                row.logits,
                if row.samples.is_empty() { LogitsFor::None } else { LogitsFor::Last }
            );
            let is_due = seq.prompt_logits && *logits_done < seq.num_prompt_tokens;
            assert!(!is_due || end(row) <= *logits_done, "prompt logits are left out");
        }
    }

    fn check_samples(&self, row: &StepRow, seq: &LiveSequence) {
        let is_complete = end(row) == seq.tokens.len()
            && seq.tokens.len() < seq.limit.min(self.scheduler.config().max_model_len);
        let expected: Vec<_> = match seq.sample && is_complete {
            true if seq.is_started => vec![row.seq],
            true => self
                .live
                .iter()
                .filter(|(_, other)| other.request == seq.request)
                .map(|(id, _)| *id)
                .collect(),
            false => Vec::new(),
        };
        assert_eq!(row.samples, expected, "samples of {row:?}");
    }

    /// Samples a token for each sample of a step, from so few that siblings often sample the same.
    fn sample(&mut self, step: &Step) -> Vec<Sampled> {
        let mut sampled = Vec::new();
        for id in step.samples() {
            let seq = self.live.get_mut(&id).expect("only live sequences sample");
            let last = *seq.contents.last().expect("a prompt is not empty");
            let token = (content(last, id.0 as u32) % 3) as u32;
            seq.push(token, 0);
            self.seen.forks += usize::from(!seq.is_started && id != seq.request);
            seq.is_started = true;
            sampled.push(Sampled { seq: id, token });
        }
        sampled
    }
}

impl LiveSequence {
    fn push(&mut self, token: u32, salt: Content) {
        self.push_content(token, token, salt);
    }

    /// Adds a token whose content may differ from its id.
    fn push_content(&mut self, token: u32, what: u32, salt: Content) {
        self.tokens.push(token);
        self.contents.push(content(self.contents.last().copied().unwrap_or(salt), what));
    }

    /// The rope position of a token, if the request has rope positions.
    fn rope_at(&self, position: usize) -> Option<[u32; 3]> {
        let rope = self.rope.as_ref()?;
        let after_prompt = [(position as i32 + rope.offset) as u32; 3];
        Some(rope.prompt.get(position).copied().unwrap_or(after_prompt))
    }
}

fn end(row: &StepRow) -> usize {
    row.first_position as usize + row.tokens.len()
}

/// A prompt that shares the first `shared` tokens with all others of its family.
pub(crate) fn prompt(family: u32, shared: usize, own: &[u32]) -> Vec<u32> {
    let shared = (0..shared as u32).map(|position| (position * 7 + position / 3 + family) % 3);
    shared.chain(own.iter().copied()).collect()
}

/// One of three salts, the first of which is none.
pub(crate) fn salt(index: u32) -> Option<Arc<str>> {
    [None, Some("a"), Some("bb")][index as usize % 3].map(Into::into)
}
