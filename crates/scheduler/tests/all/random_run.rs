//! Random operations: a long seeded run, and short ones that proptest shrinks.

use std::num::NonZeroU32;
use std::sync::Arc;

use candlepower_scheduler::{
    Caller, CallerId, Item, NewSequence, PrefixCacheScope, RopePositions, SchedulerConfig,
    SchedulingPolicy, SeqId,
};
use proptest::prelude::*;

use crate::encoder::{NUM_IMAGES, PLACEHOLDER, image};
use crate::memory::content;
use crate::seen::Seen;
use crate::workload::{Workload, prompt, salt};

/// Largest number of live sequences in a random run.
const MAX_LIVE: usize = 24;

#[derive(Clone, Debug)]
enum Op {
    Add(Add),
    /// Removes the live sequence with this index, wrapped around.
    Cancel(usize),
    CancelAll,
    /// Pins the tokens of the sequence with this index, wrapped around.
    Pin(usize),
    Unpin(usize),
    Schedule,
    Commit,
}

#[derive(Clone, Debug, Default)]
struct Add {
    family: u32,
    shared: usize,
    own: Vec<u32>,
    /// Images, each before the text token at a position.
    images: Vec<(usize, usize)>,
    n: usize,
    priority: i32,
    caller: u64,
    weight: u32,
    caller_priority: i32,
    salt: u32,
    kind: u32,
    runs_ahead: bool,
    max_tokens: usize,
}

impl Add {
    fn request(&self, config: &SchedulerConfig) -> NewSequence {
        let (prompt_logits, sample) = (self.kind.is_multiple_of(6), !self.kind.is_multiple_of(9));
        let (prompt, items) = self.prompt(config, config.max_model_len - usize::from(sample));
        let last = prompt.len() - 1;
        NewSequence {
            rope: self.rope(prompt.len()),
            prompt,
            items,
            n: if sample { self.n } else { 1 },
            priority: self.priority,
            caller: Caller {
                id: CallerId(self.caller),
                weight: NonZeroU32::new(self.weight).expect("weights are positive"),
            },
            caller_priority: self.caller_priority,
            cache_salt: salt(self.salt),
            prompt_logits_from: prompt_logits
                .then(|| (self.own.len().min(self.shared - 1) / 2).min(last)),
            max_tokens: match (sample, self.own.len().is_multiple_of(2)) {
                (false, _) => 0,
                (true, false) => usize::MAX,
                // The sequence is removed after `max_tokens` tokens.
                (true, true) => self.max_tokens,
            },
            runs_ahead: self.runs_ahead,
        }
    }

    /// The text with the images that fit, cut to at most `max_len` tokens.
    fn prompt(&self, config: &SchedulerConfig, max_len: usize) -> (Vec<u32>, Vec<Item>) {
        let text = prompt(self.family, self.shared, &self.own);
        let (mut tokens, mut items) = (Vec::new(), Vec::new());
        for position in 0..=text.len() {
            let here = self.images.iter().filter(|(at, _)| *at == position);
            for (of_image, item) in here.map(|(_, kind)| image(*kind)) {
                let num_embeddings = of_image.iter().filter(|token| **token == PLACEHOLDER).count();
                if num_embeddings <= config.num_encoder_embeddings
                    && tokens.len() + of_image.len() <= max_len
                {
                    items.push(Item { start: tokens.len(), ..item });
                    tokens.extend(of_image);
                }
            }
            tokens.extend(text.get(position).filter(|_| tokens.len() < max_len));
        }
        (tokens, items)
    }

    /// Some requests with images have rope positions.
    fn rope(&self, prompt_len: usize) -> Option<Arc<RopePositions>> {
        let has_rope = !self.images.is_empty() && self.kind.is_multiple_of(3);
        let prompt = (0..prompt_len as u32).map(|at| [at / 2, at, at + 1]).collect();
        let offset = self.kind as i32 % 4 - 1;
        has_rope.then(|| Arc::new(RopePositions { prompt, offset }))
    }
}

fn apply(workload: &mut Workload, op: &Op, max_uncommitted: usize) {
    match op {
        Op::Add(add) => {
            if workload.live.len() < MAX_LIVE {
                let request = add.request(workload.scheduler.config());
                workload.add(request, add.max_tokens);
            }
        }
        Op::Cancel(index) => {
            let ids: Vec<SeqId> = workload.live.keys().copied().collect();
            if !ids.is_empty() {
                workload.remove(ids[index % ids.len()]);
            }
        }
        Op::CancelAll => {
            let ids: Vec<SeqId> = workload.live.keys().copied().collect();
            ids.into_iter().for_each(|id| workload.remove(id));
            let stats = workload.scheduler.stats();
            assert_eq!(
                stats.num_free_blocks + stats.num_pinned_blocks,
                stats.num_blocks,
                "cancelling everything frees everything at once"
            );
        }
        Op::Pin(index) => workload.pin(*index),
        Op::Unpin(index) => workload.unpin(*index),
        Op::Schedule => {
            if workload.num_uncommitted() < max_uncommitted {
                workload.step();
            }
        }
        Op::Commit => {
            workload.commit();
        }
    }
}

/// A generator for the seeded run: the digests of a counter.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed << 32)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 += 1;
        (content(self.0, 0) % bound as u64) as usize
    }

    fn config(&mut self) -> SchedulerConfig {
        let block_size = 1 + self.below(5);
        let max_model_len = 8 + self.below(40);
        let least_blocks = max_model_len.div_ceil(block_size);
        let spare_blocks = [0, 1, 2, least_blocks, 20 * least_blocks][self.below(5)];
        let max_num_seqs = 1 + self.below(12);
        let has_states = self.below(3) == 0;
        SchedulerConfig {
            block_size,
            num_blocks: least_blocks + spare_blocks,
            max_num_seqs,
            max_num_batched_tokens: [1, 2, 3, 4, 7, 16, 64][self.below(7)],
            max_model_len,
            enable_prefix_caching: self.below(5) > 0,
            prefix_cache_scope: match self.below(4) {
                0 => PrefixCacheScope::Caller,
                _ => PrefixCacheScope::Server,
            },
            policy: [SchedulingPolicy::Fcfs, SchedulingPolicy::LongestPrefix][self.below(2)],
            max_pinned_blocks: [0, 1, least_blocks, 10 * least_blocks][self.below(4)],
            num_swap_blocks: match has_states {
                true => 0,
                false => [0, 1, least_blocks, 10 * least_blocks][self.below(4)],
            },
            num_state_slots: match has_states {
                true => max_num_seqs + [0, 1, 3, 40][self.below(4)],
                false => 0,
            },
            row_multiple: if has_states { block_size + 1 } else { 1 },
            max_graph_rows: [0, 4, 100][self.below(3)],
            num_encoder_embeddings: 0,
        }
    }

    /// A configuration for text and images.
    fn config_with_images(&mut self) -> SchedulerConfig {
        let num_encoder_embeddings = [3, 5, 8, 9, 14, 300][self.below(6)];
        SchedulerConfig { num_encoder_embeddings, ..self.config() }
    }

    /// Up to three images, near the start more often than elsewhere.
    fn images(&mut self) -> Vec<(usize, usize)> {
        let image =
            |random: &mut Self| (random.below(4) * random.below(4), random.below(NUM_IMAGES));
        (0..self.below(4)).map(|_| image(self)).collect()
    }

    fn op_with_images(&mut self) -> Op {
        match self.op() {
            Op::Add(add) => Op::Add(Add { images: self.images(), ..add }),
            other => other,
        }
    }

    fn op(&mut self) -> Op {
        match self.below(100) {
            0..12 => {
                let num_own = usize::from(self.below(4) == 0) + self.below(12);
                Op::Add(Add {
                    family: self.below(3) as u32,
                    shared: 1 + self.below(30),
                    own: (0..num_own).map(|_| self.below(3) as u32).collect(),
                    images: Vec::new(),
                    n: if self.below(3) == 0 { 2 + self.below(4) } else { 1 },
                    priority: self.below(3) as i32 - 1,
                    caller: self.below(8).saturating_sub(5) as u64,
                    weight: 1 + self.below(3) as u32,
                    caller_priority: -i32::from(self.below(20) == 0),
                    salt: self.below(4).saturating_sub(1) as u32,
                    kind: self.below(36) as u32,
                    runs_ahead: self.below(4) > 0,
                    max_tokens: 1 + self.below(20),
                })
            }
            12..15 => Op::Cancel(self.below(MAX_LIVE)),
            15 if self.below(20) == 0 => Op::CancelAll,
            16..19 => Op::Pin(self.below(2 * MAX_LIVE)),
            19 => Op::Unpin(self.below(MAX_LIVE)),
            15..60 => Op::Schedule,
            _ => Op::Commit,
        }
    }
}

#[test]
fn three_hundred_thousand_random_operations() {
    let mut random = Random(2);
    let mut total = Seen::default();
    let (mut num_preemptions, mut num_hits, mut num_swaps) = (0, 0, (0, 0));
    for run in 0..150 {
        let mut workload = Workload::new(random.config());
        for _ in 0..2000 {
            apply(&mut workload, &random.op(), 1 + run % 2);
        }
        workload.drain();
        let stats = workload.scheduler.stats();
        assert!(stats.num_prefix_hits <= stats.num_prefix_queries);
        num_preemptions += stats.num_preemptions;
        num_hits += stats.num_prefix_hits;
        num_swaps.0 += stats.num_swapped_out;
        num_swaps.1 += stats.num_swapped_in;
        assert_eq!(stats.num_swapped_blocks, 0, "what is gone has nothing on the host");
        total.add(&workload.seen);
    }
    // The run is worth its time only if every case occurs often.
    assert!(total.steps > 40_000 && total.mixed_steps > 5_000, "{total:?}");
    assert!(total.forks > 5_000 && total.copies > 800 && total.previous_rows > 9_000, "{total:?}");
    assert!(total.finished > 10_000 && total.cancelled > 5_000, "{total:?}");
    assert!(total.state_copies > 2_000 && total.resumed > 100, "{total:?}");
    assert!(total.retracted > 700 && total.stepped_back > 50, "{total:?}");
    assert!(
        total.appended > 5_000
            && total.held > 1_000
            && total.pins > 4_000
            && total.partial_blocks > 1_000,
        "{total:?}"
    );
    assert!(
        num_preemptions > 1_000 && num_hits > 20_000,
        "{num_preemptions} preemptions, {num_hits} hits"
    );
    assert!(num_swaps.0 > 1_000 && num_swaps.1 > 300, "{num_swaps:?}");
    assert!(total.longest_stay < 2_000, "{total:?}");
}

/// Many images, of which few fit the encoder's cache.
#[test]
fn a_hundred_and_fifty_thousand_random_operations_with_images() {
    let mut random = Random(3);
    let mut total = Seen::default();
    let (mut num_encoded, mut num_hits, mut num_preemptions) = (0, 0, 0);
    for run in 0..100 {
        let mut workload = Workload::new(random.config_with_images());
        for _ in 0..1500 {
            apply(&mut workload, &random.op_with_images(), 1 + run % 2);
        }
        workload.drain();
        let stats = workload.scheduler.stats();
        if !workload.scheduler.config().enable_prefix_caching {
            assert_eq!(stats.num_encoder_embeddings, 0, "nothing is kept");
        }
        num_encoded += stats.num_items_encoded;
        num_hits += stats.num_item_hits;
        num_preemptions += stats.num_preemptions;
        total.add(&workload.seen);
    }
    // The run is worth its time only if every case occurs often.
    assert!(
        num_encoded > 4_000 && num_hits > 1_000 && num_preemptions > 300,
        "{num_encoded} encoded, {num_hits} hits, {num_preemptions} preemptions"
    );
    assert!(total.embeddings > 20_000 && total.freed_slots > 4_000, "{total:?}");
    assert!(total.whole_items > 2_000 && total.oversized > 500, "{total:?}");
    assert!(total.without_rows > 4_000 && total.copies_without_rows > 5, "{total:?}");
    assert!(total.partial_blocks > 100 && total.resumed > 30, "{total:?}");
    assert!(total.finished > 5_000 && total.cancelled > 3_000, "{total:?}");
    assert!(total.longest_stay < 2_000, "{total:?}");
}

fn config() -> impl Strategy<Value = SchedulerConfig> {
    let sizes = (1..5_usize, 4..24_usize, 0..12_usize, 1..6_usize, 1..20_usize);
    let switches = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let num_embeddings = prop_oneof![Just(0), 1..16_usize];
    (sizes, switches, num_embeddings).prop_map(|(sizes, switches, num_encoder_embeddings)| {
        let (block_size, max_model_len, spare_blocks, max_num_seqs, max_num_batched_tokens) = sizes;
        let (enable_prefix_caching, is_shared, is_fcfs, has_states) = switches;
        SchedulerConfig {
            block_size,
            num_blocks: max_model_len.div_ceil(block_size) + spare_blocks,
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            enable_prefix_caching,
            prefix_cache_scope: match is_shared {
                true => PrefixCacheScope::Server,
                false => PrefixCacheScope::Caller,
            },
            policy: if is_fcfs { SchedulingPolicy::Fcfs } else { SchedulingPolicy::LongestPrefix },
            max_pinned_blocks: spare_blocks,
            num_swap_blocks: if has_states { 0 } else { 2 * spare_blocks },
            num_state_slots: if has_states { max_num_seqs + spare_blocks } else { 0 },
            row_multiple: if has_states { block_size + 1 } else { 1 },
            max_graph_rows: spare_blocks,
            num_encoder_embeddings,
        }
    })
}

fn op() -> impl Strategy<Value = Op> {
    let images = prop::collection::vec((0..10_usize, 0..NUM_IMAGES), 0..3);
    let prompt = (0..2_u32, 1..12_usize, prop::collection::vec(0..3_u32, 0..6), images);
    let whose = (-1..2_i32, 0..3_u64, 1..4_u32, -1..1_i32, 0..3_u32);
    let rest = (1..4_usize, whose, 1..36_u32, any::<bool>(), 1..12_usize);
    let add = (prompt, rest).prop_map(
        |((family, shared, own, images), (n, whose, kind, runs_ahead, max_tokens))| {
            let (priority, caller, weight, caller_priority, salt) = whose;
            let prompt = Add { family, shared, own, images, ..Add::default() };
            let whose = Add { priority, caller, weight, caller_priority, salt, ..prompt };
            Op::Add(Add { n, kind, runs_ahead, max_tokens, ..whose })
        },
    );
    prop_oneof![
        3 => add,
        1 => (0..MAX_LIVE).prop_map(Op::Cancel),
        1 => (0..2 * MAX_LIVE).prop_map(Op::Pin),
        1 => (0..MAX_LIVE).prop_map(Op::Unpin),
        8 => Just(Op::Schedule),
        7 => Just(Op::Commit),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn any_short_run_keeps_every_promise(
        config in config(),
        ops in prop::collection::vec(op(), 1..100),
        max_uncommitted in 1..3_usize,
    ) {
        let mut workload = Workload::new(config);
        ops.iter().for_each(|op| apply(&mut workload, op, max_uncommitted));
        workload.drain();
    }
}
