//! The work of attention in a fixed order: which rows and which ranges of keys a block computes.

/// Keys of a range, which has a softmax of its own. The first range begins at position 0, and each other behind a whole one.
pub(crate) const RANGE_KEYS: usize = 256;
/// Rows of a partial result.
pub(crate) const NARROW_ROWS: usize = 16;
/// Rows of a wide block.
const WIDE_ROWS: usize = 64;
/// Narrow blocks that the largest GPUs hold at once: 132 multiprocessors with 8 each.
pub(crate) const RESIDENT_BLOCKS: usize = 132 * 8;
/// [`Item::part`] of an item whose result is the output.
pub(crate) const WHOLE: u32 = u32::MAX;

/// A piece of work. Mirrors `OrderedItem` in ordered_attention.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// Index of the sequence.
    pub(crate) seq: u32,
    /// First row of the block. A row is a query and one of the query heads of a KV head.
    pub(crate) first_row: u32,
    /// First range of keys.
    pub(crate) first_range: u32,
    /// The range after the last.
    pub(crate) end_range: u32,
    /// Index of the partial result, or [`WHOLE`]. For a merge, the index of the first.
    pub(crate) part: u32,
    padding: [u32; 3],
}
const _: () = assert!(size_of::<Item>() == 32);

impl Item {
    /// The merge of `parts` partial results, from `first` on, of the first row of a sequence.
    pub(crate) const fn merge(seq: u32, first: u32, parts: u32) -> Self {
        Self { seq, first_row: 0, first_range: 0, end_range: parts, part: first, padding: [0; 3] }
    }

    /// The words of the item in the device's memory.
    #[cfg(feature = "cuda")]
    pub(crate) const fn words(&self) -> [u32; 8] {
        let Self { seq, first_row, first_range, end_range, part, padding: [a, b, c] } = *self;
        [seq, first_row, first_range, end_range, part, a, b, c]
    }
}

/// The properties of a model and a device by which the work of a step is divided. They change no result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Division {
    /// Query heads of a KV head.
    pub(crate) group: usize,
    pub(crate) kv_heads: usize,
    pub(crate) window: Option<usize>,
    /// Whether there are blocks of 64 rows, for prompts.
    pub(crate) has_wide: bool,
    /// Partial results that fit into memory.
    pub(crate) max_parts: usize,
}

/// The work of a step.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Items of 16 rows.
    pub(crate) narrow: Vec<Item>,
    /// Items of 64 rows.
    pub(crate) wide: Vec<Item>,
    /// Partial results to be added.
    pub(crate) merges: Vec<Item>,
}

impl Work {
    /// Replaces the work by that of sequences with these numbers of queries and of positions in the cache, whose last
    /// positions are those of the queries.
    ///
    /// Few sequences are divided into single ranges, so that they keep the device busy. Their results are added by a
    /// second kernel.
    pub(crate) fn divide(
        &mut self,
        division: &Division,
        seqs: impl Iterator<Item = (usize, usize)>,
    ) {
        [&mut self.narrow, &mut self.wide, &mut self.merges].into_iter().for_each(Vec::clear);
        for (seq, (queries, context)) in seqs.enumerate() {
            let rows = queries * division.group;
            let is_wide = division.has_wide && queries > 1 && rows > 2 * NARROW_ROWS;
            let tile = if is_wide { WIDE_ROWS } else { NARROW_ROWS };
            let list = if is_wide { &mut self.wide } else { &mut self.narrow };
            // The last rows have the most keys, so their blocks start first.
            for first_row in (0..rows).step_by(tile).rev() {
                let position = |row: usize| context - queries + row / division.group;
                let last = position((first_row + tile).min(rows) - 1);
                let lowest = division
                    .window
                    .map_or(0, |window| (position(first_row) + 1).saturating_sub(window));
                list.push(Item {
                    seq: seq as u32,
                    first_row: first_row as u32,
                    first_range: (lowest / RANGE_KEYS) as u32,
                    end_range: (last / RANGE_KEYS + 1) as u32,
                    part: WHOLE,
                    padding: [0; 3],
                });
            }
        }
        self.divide_long(division);
    }

    /// Divides the narrow items that have more ranges than a block's share.
    fn divide_long(&mut self, division: &Division) {
        let ranges = |item: &Item| (item.end_range - item.first_range) as usize;
        let all: usize = self.narrow.iter().map(ranges).sum();
        let share = (all * division.kv_heads).div_ceil(2 * RESIDENT_BLOCKS);
        let mut parts = 0;
        for index in 0..self.narrow.len() {
            let item = self.narrow[index];
            let count = ranges(&item);
            if count <= share || parts + count > division.max_parts {
                continue;
            }
            self.merges.push(Item { part: parts as u32, ..item });
            let single = |range: u32| Item {
                first_range: range,
                end_range: range + 1,
                part: (parts as u32) + range - item.first_range,
                ..item
            };
            let mut singles = (item.first_range..item.end_range).map(single);
            if let Some(first) = singles.next() {
                self.narrow[index] = first;
            }
            self.narrow.extend(singles);
            parts += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const DIVISION: Division =
        Division { group: 4, kv_heads: 8, window: None, has_wide: true, max_parts: 1000 };

    fn work(division: &Division, seqs: &[(usize, usize)]) -> Work {
        let mut work = Work::default();
        work.divide(division, seqs.iter().copied());
        work
    }

    /// The ranges of each row are computed once, from first to last, and merged if they are apart.
    fn check(division: &Division, seqs: &[(usize, usize)]) -> Work {
        let work = work(division, seqs);
        let mut computed: HashMap<(u32, u32), Vec<u32>> = HashMap::new();
        let mut parts = HashMap::new();
        let tiles = [(&work.narrow, NARROW_ROWS), (&work.wide, WIDE_ROWS)];
        for (item, tile) in
            tiles.into_iter().flat_map(|(list, tile)| list.iter().map(move |i| (i, tile)))
        {
            assert!(item.first_range < item.end_range, "{item:?}");
            if item.part != WHOLE {
                assert_eq!(item.end_range, item.first_range + 1);
                assert!((item.part as usize) < division.max_parts);
                assert_eq!(parts.insert(item.part, *item), None);
            }
            for row in item.first_row..item.first_row + tile as u32 {
                computed
                    .entry((item.seq, row))
                    .or_default()
                    .extend(item.first_range..item.end_range);
            }
        }
        for (seq, &(queries, context)) in seqs.iter().enumerate() {
            for row in 0..queries * division.group {
                let position = context - queries + row / division.group;
                let lowest =
                    division.window.map_or(0, |window| (position + 1).saturating_sub(window));
                let mut ranges = computed[&(seq as u32, row as u32)].clone();
                ranges.sort_unstable();
                let (first, last) = (ranges[0] as usize, ranges[ranges.len() - 1] as usize);
                assert_eq!(ranges, (first as u32..=last as u32).collect::<Vec<_>>());
                assert!(first * RANGE_KEYS <= lowest && (last + 1) * RANGE_KEYS > position);
            }
        }
        let merged: usize =
            work.merges.iter().map(|m| (m.end_range - m.first_range) as usize).sum();
        assert_eq!(merged, parts.len());
        for merge in &work.merges {
            for range in merge.first_range..merge.end_range {
                let part = parts[&(merge.part + range - merge.first_range)];
                assert_eq!(
                    (part.seq, part.first_row, part.first_range),
                    (merge.seq, merge.first_row, range)
                );
            }
        }
        work
    }

    #[test]
    fn every_row_has_its_ranges_once() {
        let seqs = [(1, 1), (1, 5000), (3, 700), (200, 1300), (256, 256), (1, 257)];
        let all = check(&DIVISION, &seqs);
        assert!(!all.merges.is_empty() && !all.wide.is_empty());
        for window in [1, 100, 256, 3000] {
            check(&Division { window: Some(window), ..DIVISION }, &seqs);
        }
        assert!(check(&Division { has_wide: false, ..DIVISION }, &seqs).wide.is_empty());
        check(&Division { group: 1, ..DIVISION }, &seqs);
        check(&Division { group: 40, kv_heads: 1, ..DIVISION }, &seqs);
    }

    #[test]
    fn only_few_sequences_are_divided_and_no_more_than_fit() {
        assert_eq!(check(&DIVISION, &[(1, 5000)]).narrow.len(), 20);
        assert!(check(&DIVISION, &vec![(1, 1000); 1000]).merges.is_empty());
        let few = Division { max_parts: 30, ..DIVISION };
        let both = check(&few, &[(1, 5000), (1, 5000), (1, 2000)]);
        // The second has no room, and the third has.
        assert_eq!(both.merges.iter().map(|merge| merge.seq).collect::<Vec<_>>(), [0, 2]);
        assert!(check(&Division { max_parts: 0, ..DIVISION }, &[(1, 5000)]).merges.is_empty());
    }
}
