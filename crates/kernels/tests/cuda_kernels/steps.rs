//! Steps of sequences that keep states: who has which tokens.

use candlepower_kernels::device::NO_SLOT;

/// A sequence of a step: its slot, the position of its first token here, and how many there are.
pub(crate) type Part = (u32, u32, usize);

/// Slots of a pool.
pub(crate) const SLOTS: usize = 6;

/// `query_start`, `slots` and `positions` of a step.
pub(crate) fn tables(parts: &[Part]) -> [Vec<u32>; 3] {
    let (mut query_start, mut positions) = (vec![0], Vec::new());
    for &(_, first, count) in parts {
        positions.extend(first..first + count as u32);
        query_start.push(positions.len() as u32);
    }
    [query_start, parts.iter().map(|(slot, ..)| *slot).collect(), positions]
}

/// Prompts of all lengths beside what pads a graph; then some that go on, and one that begins where another was; then single tokens, also
/// after fewer than a convolution has.
pub(crate) fn steps() -> [Vec<Part>; 4] {
    [
        vec![(3, 0, 1), (0, 0, 40), (NO_SLOT, 0, 2), (5, 0, 3), (1, 0, 17)],
        vec![(5, 3, 1), (0, 0, 2), (1, 17, 40), (3, 1, 17)],
        vec![(1, 57, 1), (3, 18, 1), (5, 4, 1), (NO_SLOT, 7, 1), (0, 2, 1)],
        vec![(0, 3, 1), (5, 5, 16), (NO_SLOT, 0, 1)],
    ]
}

/// What a graph of three decodes is recorded with, behind prompts of 5, 2 and 9 tokens, and what it is replayed for.
pub(crate) const DECODES: [[Part; 3]; 4] = [
    [(NO_SLOT, 0, 1), (NO_SLOT, 0, 1), (NO_SLOT, 0, 1)],
    [(2, 9, 1), (0, 5, 1), (1, 2, 1)],
    [(0, 6, 1), (4, 0, 1), (NO_SLOT, 0, 1)],
    [(4, 1, 1), (2, 10, 1), (0, 7, 1)],
];
