//! Steps of sequences that keep states, with the tokens of each sequence.

use std::fmt::Debug;

use candle_core::Tensor;
use candlepower_gpu::{Graph, NO_SLOT};

use crate::gpu::{Gpu, Random, Tolerance, to_vec};

/// A sequence of a step: its slot, the position of its first token in the step, and its number of tokens.
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

/// Prompts of various lengths beside padding of a graph. Then some that continue, and one that starts in a used slot.
/// Then single tokens, also after fewer tokens than a convolution covers.
pub(crate) fn steps() -> [Vec<Part>; 4] {
    [
        vec![(3, 0, 1), (0, 0, 40), (NO_SLOT, 0, 2), (5, 0, 3), (1, 0, 17)],
        vec![(5, 3, 1), (0, 0, 2), (1, 17, 40), (3, 1, 17)],
        vec![(1, 57, 1), (3, 18, 1), (5, 4, 1), (NO_SLOT, 7, 1), (0, 2, 1)],
        vec![(0, 3, 1), (5, 5, 16), (NO_SLOT, 0, 1)],
    ]
}

/// The step that a graph of three decodes is recorded with, and the steps that it is replayed for, after prompts of 5,
/// 2 and 9 tokens.
pub(crate) const DECODES: [[Part; 3]; 4] = [
    [(NO_SLOT, 0, 1), (NO_SLOT, 0, 1), (NO_SLOT, 0, 1)],
    [(2, 9, 1), (0, 5, 1), (1, 2, 1)],
    [(0, 6, 1), (4, 0, 1), (NO_SLOT, 0, 1)],
    [(4, 1, 1), (2, 10, 1), (0, 7, 1)],
];

/// The same mixer with the same states on the GPU, and on the CPU for the reference implementation. A step has `N`
/// operands, the last of which is its output.
pub(crate) trait Mixer<const N: usize> {
    const TOLERANCE: Tolerance;

    fn dims(&self) -> impl Debug;

    /// The operands of a step on both devices. All rows of the output must be written.
    fn operands(&self, gpu: &Gpu, parts: &[Part], random: &mut Random) -> [[Tensor; N]; 2];

    /// Computes a step on one of the two devices: `on` is the device's index.
    fn run(
        &self,
        on: usize,
        layer: usize,
        operands: &[Tensor; N],
    ) -> candlepower_kernels::Result<()>;

    /// Computes one step on both devices, and compares the results.
    fn step(&self, gpu: &Gpu, layer: usize, parts: &[Part], random: &mut Random) {
        let [on_gpu, on_cpu] = self.operands(gpu, parts, random);
        self.run(0, layer, &on_gpu).unwrap();
        self.run(1, layer, &on_cpu).unwrap();
        self.compare(gpu, &on_gpu, &on_cpu, &format!("{parts:?}"));
    }

    fn compare(&self, gpu: &Gpu, on_gpu: &[Tensor; N], on_cpu: &[Tensor; N], what: &str) {
        let (found, want) = (&on_gpu[N - 1], to_vec(&on_cpu[N - 1]));
        gpu.assert_close(found, &want, Self::TOLERANCE, &format!("{:?}, {what}", self.dims()));
    }

    /// A replayed decode continues from the current states, for the sequences in its tables.
    fn replay(&self, gpu: &Gpu, random: &mut Random) {
        self.step(gpu, 0, &[(0, 0, 5), (1, 0, 2), (2, 0, 9)], random);
        let [recorded, _] = self.operands(gpu, &DECODES[0], random);
        // One launch outside of the graph, so that everything is loaded. Without slots it changes no state.
        self.run(0, 0, &recorded).unwrap();
        let graph = Graph::capture(gpu.device(), || self.run(0, 0, &recorded)).unwrap();
        for parts in &DECODES[1..] {
            let [on_gpu, on_cpu] = self.operands(gpu, parts, random);
            // A graph reads its operands at the addresses of its capture.
            recorded.iter().zip(&on_gpu).for_each(|(to, from)| to.slice_set(from, 0, 0).unwrap());
            graph.launch().unwrap();
            self.run(1, 0, &on_cpu).unwrap();
            self.compare(gpu, &recorded, &on_cpu, &format!("a replay for {parts:?}"));
        }
    }
}
