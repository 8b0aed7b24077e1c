//! The fast path of attention: online softmax over tiles of the cache.
//!
//! Tiles and partitions of the cache begin at fixed positions of the sequence. Each row (one head of one query) has
//! its own running maximum, sum and output. So a row's result depends on its query and the cache only. Its bits are
//! the same for a prompt in one step, in chunks or token by token, and for any other content of the batch.
//!
//! Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
//! "FlashAttention", 2022; the partitions are those of "Flash-Decoding", Dao et al., 2023.

use std::ops::Range;

use super::group::Group;
use super::tile::{Cached, Cell, TILE, TilePlace};
use super::{PagedAttention, SequenceView};
use crate::parallel::{self, SharedMut};
use crate::simd::{Isa, Simd, WithSimd};
use crate::threads;
use crate::{KvCacheConfig, KvScales};

/// Positions whose partial result is computed separately, so that several threads share a long context. With 256
/// positions even a context of 640 is shared, which costs about 5 % on one thread, compared with 1,024.
const PARTITION: usize = 4 * TILE;

/// Rows of one unit of work. So many rows reuse each tile of keys and values while it is in the CPU's cache.
const UNIT_ROWS: usize = 64;

/// Calls of fewer multiplications than this run on the calling thread, since waking others would take longer.
const INLINE_PRODUCTS: usize = 64 * 1024;

/// Checked operands, except the cache. `q` is `[tokens, heads, head_dim]`, and `out` is `[tokens, heads, value_dim]`.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) q: &'a [f32],
    pub(super) config: KvCacheConfig,
    pub(super) heads: usize,
    pub(super) params: PagedAttention,
    /// Attention sink logits, `[heads]`.
    pub(super) sinks: Option<&'a [f32]>,
    /// Factors of the keys and values of a cache in FP8.
    pub(super) scales: KvScales,
    pub(super) out: SharedMut<'a>,
}

impl Step<'_> {
    /// Number of query heads that share a key-value head.
    fn group(&self) -> usize {
        self.heads / self.config.num_kv_heads
    }
}

/// All operands, the cache included.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a, T> {
    pub(super) step: Step<'a>,
    pub(super) cache: T,
}

impl<T: Cached> Operands<'_, T> {
    /// Computes one partition of one unit.
    fn part(&self, isa: Isa, unit: &Unit<'_>, partition: usize) -> Partial {
        let work = Attend { operands: self, unit, partition };
        if const { T::Cell::STEPS == 2 } { isa.run_with_dot(work) } else { isa.run(work) }
    }
}

/// Neighbouring queries of a sequence with all the query heads of one key-value head.
#[derive(Clone)]
struct Unit<'a> {
    seq: SequenceView<'a>,
    kv_head: usize,
    /// Range of queries, counted from the sequence's first query of this step.
    queries: Range<usize>,
}

impl Unit<'_> {
    /// Position of row `r`, and its index among the heads of all tokens. Row `r` is head `r % group` of query `r /
    /// group`.
    fn row(&self, step: &Step<'_>, row: usize) -> (usize, usize) {
        let query = self.queries.start + row / step.group();
        let head = self.head(step, row);
        let token = self.seq.first_token + query;
        (self.seq.first_position + query, token * step.heads + head)
    }

    /// The query head of a row.
    fn head(&self, step: &Step<'_>, row: usize) -> usize {
        self.kv_head * step.group() + row % step.group()
    }

    /// Range of the positions that any of the rows sees.
    fn visible(&self, params: &PagedAttention) -> Range<usize> {
        let of = |query: usize| params.visible(self.seq.first_position + query, self.seq.mutual);
        of(self.queries.start).start..of(self.queries.end - 1).end
    }

    /// Range of the partitions that hold those positions.
    fn partitions(&self, params: &PagedAttention) -> Range<usize> {
        let visible = self.visible(params);
        visible.start / PARTITION..visible.end.div_ceil(PARTITION)
    }
}

/// Writes the attention of every query of `sequences` to `operands.out`.
pub(super) fn attend<T: Cached>(
    isa: Isa,
    operands: &Operands<'_, T>,
    sequences: &[SequenceView<'_>],
) {
    let step = &operands.step;
    let queries_together = (UNIT_ROWS / step.group()).max(1);
    let mut units = Vec::new();
    let (mut products, mut largest) = (0, 0);
    for seq in sequences {
        for first in (0..seq.num_queries).step_by(queries_together) {
            let queries = first..seq.num_queries.min(first + queries_together);
            for kv_head in 0..step.config.num_kv_heads {
                let unit = Unit { seq: *seq, kv_head, queries: queries.clone() };
                let rows = queries.len() * step.group();
                let of_unit = unit.visible(&step.params).len() * rows * step.config.head_dim;
                (products, largest) = (products + of_unit, largest.max(of_unit));
                units.push(unit);
            }
        }
    }
    let threads = threads::available();
    if threads == 1 || products <= INLINE_PRODUCTS {
        units.iter().for_each(|unit| attend_unit(isa, operands, unit));
    } else if products >= 2 * threads * largest {
        parallel::for_ranges(units.len(), 1, |range| {
            units[range].iter().for_each(|unit| attend_unit(isa, operands, unit));
        });
    } else {
        attend_split_units(isa, operands, &units);
    }
}

/// Computes one unit, partition after partition.
fn attend_unit(isa: Isa, operands: &Operands<'_, impl Cached>, unit: &Unit<'_>) {
    let mut partitions = unit.partitions(&operands.step.params);
    let first = partitions.next().expect("a query sees itself");
    let mut total = operands.part(isa, unit, first);
    for partition in partitions {
        total.combine(&operands.part(isa, unit, partition));
    }
    total.write(&operands.step, unit);
}

/// Computes units whose partitions are shared among the threads. Partial results are combined in the order of the
/// partitions, which gives the same bits as [`attend_unit`].
fn attend_split_units(isa: Isa, operands: &Operands<'_, impl Cached>, units: &[Unit<'_>]) {
    let partitions = |unit: &Unit<'_>| unit.partitions(&operands.step.params);
    let tasks: Vec<_> = units
        .iter()
        .flat_map(|unit| partitions(unit).map(move |partition| (unit, partition)))
        .collect();
    let partials = parallel::map(tasks.len(), |task| {
        let (unit, partition) = tasks[task];
        operands.part(isa, unit, partition)
    });
    let mut partials = partials.into_iter();
    for unit in units {
        let mut own = partials.by_ref().take(partitions(unit).len());
        let mut total = own.next().expect("a query sees itself");
        own.for_each(|partial| total.combine(&partial));
        total.write(&operands.step, unit);
    }
}

/// The softmax-weighted sum of values of each row over some of the positions, before the division by the sum of the
/// weights.
pub(super) struct Partial {
    /// The largest score, or minus infinity if no position was visible.
    pub(super) max: Vec<f32>,
    /// The sum of `exp(score - max)`.
    pub(super) sum: Vec<f32>,
    /// `[rows, value_dim]`: the sum of `exp(score - max) * value`.
    pub(super) output: Vec<f32>,
}

impl Partial {
    /// Adds the partial result of the positions that follow.
    fn combine(&mut self, next: &Self) {
        let value_dim = self.output.len() / self.max.len();
        for (row, output) in self.output.chunks_exact_mut(value_dim).enumerate() {
            let max = self.max[row].max(next.max[row]);
            if max == f32::NEG_INFINITY {
                continue;
            }
            let (old, new) = ((self.max[row] - max).exp(), (next.max[row] - max).exp());
            self.max[row] = max;
            self.sum[row] = self.sum[row] * old + next.sum[row] * new;
            for (output, next) in output.iter_mut().zip(&next.output[row * value_dim..]) {
                *output = *output * old + next * new;
            }
        }
    }

    /// Divides by the sums, which include the attention sink logits, scales the values and writes the rows to the
    /// output.
    fn write(&self, step: &Step<'_>, unit: &Unit<'_>) {
        let value_dim = step.config.value_dim();
        for (row, output) in self.output.chunks_exact(value_dim).enumerate() {
            let (_, at) = unit.row(step, row);
            let sink =
                step.sinks.map_or(0.0, |sinks| (sinks[unit.head(step, row)] - self.max[row]).exp());
            let sum = self.sum[row] + sink;
            // SAFETY: each row belongs to one unit, and each unit is computed once.
            let out = unsafe { step.out.at(at * value_dim, value_dim) };
            for (dim, value) in output.iter().enumerate() {
                // Adding zero makes a negative zero positive. Otherwise the sign of a zero would depend on whether
                // positions that a row does not see were skipped or added zeros.
                // SAFETY: `dim < value_dim`.
                unsafe { out.add(dim).write(value / sum * step.scales.value + 0.0) };
            }
        }
    }
}

/// One partition of one unit as work for an instruction set.
struct Attend<'a, T> {
    operands: &'a Operands<'a, T>,
    unit: &'a Unit<'a>,
    partition: usize,
}

impl<T: Cached> WithSimd for Attend<'_, T> {
    type Output = Partial;

    #[inline(always)]
    fn with<S: Simd>(self, s: S) -> Partial {
        let Self { operands: Operands { step, cache }, unit, partition } = self;
        let (head_dim, value_dim) = (step.config.head_dim, step.config.value_dim());
        let rows = unit.queries.len() * step.group();
        let count = rows.div_ceil(Group::<T::Cell>::most_rows::<S>());
        let bound = |group: usize| group * rows / count;
        let params = PagedAttention { scale: step.params.scale * step.scales.key, ..step.params };
        let mut groups: Vec<Group<T::Cell>> = (0..count)
            .map(|group| {
                let rows = (bound(group)..bound(group + 1)).map(|row| {
                    let (position, at) = unit.row(step, row);
                    let visible = params.visible(position, unit.seq.mutual);
                    (visible, &step.q[at * head_dim..(at + 1) * head_dim])
                });
                Group::new(rows, value_dim)
            })
            .collect();
        let visible = unit.visible(&params);
        let positions =
            visible.start.max(partition * PARTITION)..visible.end.min((partition + 1) * PARTITION);
        let mut widened = Vec::new();
        for first in (positions.start / TILE * TILE..positions.end).step_by(TILE) {
            let place = TilePlace {
                config: &step.config,
                block_table: unit.seq.block_table,
                kv_head: unit.kv_head,
                positions: first..positions.end,
            };
            let tile = cache.tile(&place, &mut widened);
            for group in &mut groups {
                group.attend(s, &tile, &params);
            }
        }
        let mut partial = Partial {
            max: Vec::with_capacity(rows),
            sum: Vec::with_capacity(rows),
            output: Vec::with_capacity(rows * value_dim),
        };
        groups.iter().for_each(|group| group.append_to(&mut partial));
        partial
    }
}
