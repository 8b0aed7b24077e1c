//! The work of decodes over an FP8 cache: which blocks compute which keys of which sequences.

use super::ordered_attention::{Item, WHOLE};

/// Keys of a unit, which a warp computes at once. Blocks of the cache have a multiple of it.
pub(crate) const UNIT_KEYS: usize = 16;
/// Units of a round: one for each warp of a block.
const ROUND_UNITS: usize = 4;

/// Units of one sequence that a block computes. Mirrors `Fp8DecodePiece` in fp8_decode.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Index of the sequence.
    pub(crate) seq: u32,
    /// Index of the sequence's first page among the page indices.
    pub(crate) first_page: u32,
    /// First unit of keys.
    pub(crate) first_unit: u32,
    /// The unit after the last.
    pub(crate) end_unit: u32,
    /// Positions of the sequence in the cache.
    pub(crate) context: u32,
    /// Index of the partial result, or [`WHOLE`].
    pub(crate) part: u32,
    padding: [u32; 2],
}
const _: () = assert!(size_of::<Piece>() == 32);

impl Piece {
    /// The words of the piece in the device's memory.
    #[cfg(feature = "cuda")]
    pub(crate) const fn words(&self) -> [u32; 8] {
        let Self { seq, first_page, first_unit, end_unit, context, part, padding: [a, b] } = *self;
        [seq, first_page, first_unit, end_unit, context, part, a, b]
    }
}

/// The properties of a model and a device by which decodes are divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workers {
    /// Blocks for each KV head.
    pub(crate) count: usize,
    /// Partial results that fit into memory.
    pub(crate) max_parts: usize,
    /// A query sees this many positions up to its own, or all.
    pub(crate) window: Option<usize>,
}

/// The work of a step's decodes.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// The first piece of each worker, and the end of the last one's.
    pub(crate) starts: Vec<u32>,
    /// The pieces of all workers, one worker's after the other's.
    pub(crate) pieces: Vec<Piece>,
    /// Partial results to be added.
    pub(crate) merges: Vec<Item>,
}

/// A sequence whose units are not all given to workers yet.
struct Rest {
    seq: u32,
    first_page: u32,
    context: usize,
    first_unit: usize,
    next_unit: usize,
    end_unit: usize,
    /// Partial results so far, and the first of them.
    parts: u32,
    first_part: u32,
}

impl Rest {
    fn rounds(&self) -> usize {
        (self.end_unit - self.next_unit).div_ceil(ROUND_UNITS)
    }
}

/// Rounds of a worker, at least, if the longest sequence has `longest`.
///
/// A round takes about 0.35 us where few blocks share a multiprocessor, and the merge 0.07 us for each partial result of a
/// sequence. Both are estimates. Their sum is least with as many rounds as the root of a fifth of all.
fn least_share(longest: usize) -> usize {
    (longest / 5).isqrt().max(1)
}

impl Pieces {
    /// Replaces the work by that of sequences with these numbers of positions in the cache, and these places of their first pages.
    ///
    /// All workers get the same number of rounds, but for one. So a sequence may be divided among several workers. Where there is
    /// little work, some get none.
    pub(crate) fn divide(
        &mut self,
        workers: &Workers,
        seqs: impl Iterator<Item = (usize, usize)> + Clone,
    ) {
        self.starts.clear();
        self.pieces.clear();
        self.merges.clear();
        let rest_of = |(seq, (context, first_page)): (usize, (usize, usize))| {
            let lowest = workers.window.map_or(0, |window| context.saturating_sub(window));
            let first_unit = lowest / UNIT_KEYS;
            Rest {
                seq: seq as u32,
                first_page: first_page as u32,
                context,
                first_unit,
                next_unit: first_unit,
                end_unit: context.div_ceil(UNIT_KEYS),
                parts: 0,
                first_part: 0,
            }
        };
        let all_rounds = seqs.clone().enumerate().map(|seq| rest_of(seq).rounds());
        let mut left: usize = all_rounds.clone().sum();
        let least = least_share(all_rounds.max().unwrap_or(0));
        let mut rests = seqs.enumerate().map(rest_of).filter(|rest| rest.rounds() > 0);
        // A worker begins and ends with a partial result at most.
        let divides = workers.max_parts >= 2 * workers.count;
        let mut rest = rests.next();
        let mut parts = 0;
        for worker in 0..workers.count {
            self.starts.push(self.pieces.len() as u32);
            let mut share = left.div_ceil(workers.count - worker).max(least);
            // The last round of a sequence costs less than a piece of its own.
            let slack = usize::from(share > 2 * ROUND_UNITS);
            while share > 0 {
                let Some(mut of) = rest.take() else { break };
                let rounds = of.rounds();
                let is_last = !divides || rounds <= share + slack;
                let taken = if is_last { rounds } else { share };
                let end_unit = (of.next_unit + taken * ROUND_UNITS).min(of.end_unit);
                let is_whole = is_last && of.next_unit == of.first_unit;
                if of.next_unit == of.first_unit {
                    of.first_part = parts;
                }
                self.pieces.push(Piece {
                    seq: of.seq,
                    first_page: of.first_page,
                    first_unit: of.next_unit as u32,
                    end_unit: end_unit as u32,
                    context: of.context as u32,
                    part: if is_whole { WHOLE } else { of.first_part + of.parts },
                    padding: [0; 2],
                });
                if !is_whole {
                    (of.parts, parts) = (of.parts + 1, parts + 1);
                }
                (left, share) = (left - taken, share.saturating_sub(taken));
                if !is_last {
                    rest = Some(Rest { next_unit: end_unit, ..of });
                    continue;
                }
                if !is_whole {
                    self.merges.push(Item::merge(of.seq, of.first_part, of.parts));
                }
                rest = rests.next();
            }
        }
        self.starts.push(self.pieces.len() as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(count: usize) -> Workers {
        Workers { count, max_parts: 1 << 20, window: None }
    }

    /// Each unit is computed once, in the order of the sequences, and the parts of a sequence are merged in their order. Returns the rounds of each worker.
    fn check(workers: &Workers, contexts: &[usize]) -> (Pieces, Vec<usize>) {
        let mut pieces = Pieces::default();
        pieces.divide(workers, contexts.iter().enumerate().map(|(i, context)| (*context, 7 * i)));
        assert_eq!(pieces.starts.len(), workers.count + 1);
        assert_eq!(*pieces.starts.last().unwrap() as usize, pieces.pieces.len());
        let mut all = pieces.pieces.iter();
        let mut parts = Vec::new();
        let mut merges = pieces.merges.iter();
        for (seq, context) in contexts.iter().enumerate() {
            let lowest = workers.window.map_or(0, |window| context.saturating_sub(window));
            let mut next = (lowest / UNIT_KEYS) as u32;
            let mut own = Vec::new();
            while (next as usize) < context.div_ceil(UNIT_KEYS) {
                let piece = all.next().unwrap();
                assert_eq!((piece.seq, piece.first_page), (seq as u32, 7 * seq as u32));
                assert_eq!((piece.first_unit, piece.context), (next, *context as u32));
                assert!(piece.end_unit > next);
                own.push(piece.part);
                next = piece.end_unit;
            }
            assert_eq!(next as usize, context.div_ceil(UNIT_KEYS));
            if let [only] = own[..] {
                assert_eq!(only, WHOLE);
            } else {
                let merge = merges.next().unwrap();
                assert_eq!(*merge, Item::merge(seq as u32, own[0], own.len() as u32));
                parts.extend(own);
            }
        }
        assert!(all.next().is_none() && merges.next().is_none());
        assert_eq!(parts, (0..parts.len() as u32).collect::<Vec<_>>());
        assert!(parts.len() <= workers.max_parts);
        let rounds = pieces.starts.windows(2).map(|ends| {
            let own = &pieces.pieces[ends[0] as usize..ends[1] as usize];
            own.iter()
                .map(|piece| {
                    (piece.end_unit - piece.first_unit).div_ceil(ROUND_UNITS as u32) as usize
                })
                .sum()
        });
        let rounds = rounds.collect();
        (pieces, rounds)
    }

    #[test]
    fn every_unit_is_computed_once() {
        let contexts = [1, 15, 16, 17, 63, 64, 65, 1000, 4097, 2, 640, 128_000];
        for count in [1, 2, 3, 7, 66, 528] {
            for window in [None, Some(1), Some(48), Some(1000)] {
                for max_parts in [0, 2 * count, 1 << 20] {
                    for seqs in 1..=contexts.len() {
                        let workers = Workers { count, max_parts, window };
                        check(&workers, &contexts[..seqs]);
                    }
                }
            }
        }
    }

    #[test]
    fn all_workers_have_equal_shares() {
        for (count, contexts) in [
            (66, vec![1000; 256]),
            (66, vec![8192]),
            (66, vec![1000; 64]),
            (33, vec![70_000, 1, 500]),
        ] {
            let (pieces, rounds) = check(&workers(count), &contexts);
            let most = rounds.iter().max().unwrap();
            let mean = rounds.iter().sum::<usize>() as f64 / count as f64;
            let least = least_share(contexts.iter().max().unwrap().div_ceil(64));
            assert!(*most as f64 <= mean.max(least as f64) + 2.0, "{most} of {mean}");
            assert!(pieces.merges.len() <= contexts.len());
        }
        // A long sequence alone is not divided into as many parts as possible.
        assert_eq!(check(&workers(66), &[8192]).0.pieces.len(), 26);
        // Without memory for partial results no sequence is divided.
        let few = Workers { max_parts: 5, ..workers(4) };
        assert!(check(&few, &[1000, 300, 20]).0.merges.is_empty());
        // A token each: no sequence is worth a second worker.
        assert!(check(&workers(66), &[1; 70]).0.merges.is_empty());
    }
}
