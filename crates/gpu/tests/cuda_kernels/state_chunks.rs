//! The chunkwise form of gated delta nets and Mamba-2: whole chunks of a prompt on tensor cores.

use std::ops::Range;

use candle_core::DType;

use crate::gpu::{Gpu, HALVES, Random, to_vec};
use crate::linear_attention::Pair;
use crate::steps::{self, Mixer, Part};

/// Heads and elements as in [`crate::linear_attention`]: shared keys, more value heads than a block computes, values of one
/// to four blocks, and keys that the chunkwise form leaves to the recurrent form.
const DIMS: [(bool, [usize; 5]); 10] = [
    (false, [2, 4, 128, 128, 4]),
    (false, [1, 3, 64, 64, 2]),
    (false, [2, 6, 64, 32, 4]),
    (false, [1, 1, 128, 256, 4]),
    (false, [1, 5, 64, 48, 4]),
    (false, [1, 2, 32, 64, 4]),
    (true, [1, 4, 128, 64, 4]),
    (true, [2, 4, 128, 80, 4]),
    (true, [2, 6, 64, 144, 3]),
    (true, [1, 9, 64, 16, 4]),
];

/// Lengths around one and two chunks.
const LENGTHS: [usize; 11] = [1, 15, 16, 63, 64, 65, 127, 128, 129, 130, 200];

/// Memories that last long: decays of about 0.9 to 1, and beta of about one half.
fn slow(random: &mut Random, count: usize, dtype: DType) -> Vec<f32> {
    let gates = random.floats(count, 1.0, dtype);
    gates.into_iter().map(|gate| gate - 3.0).collect()
}

/// Decays whose logarithms are 0, about -10, -50 or -200, and beta of 0 or 1.
fn extreme(random: &mut Random, count: usize, _: DType) -> Vec<f32> {
    (0..count).map(|_| random.pick(&[-100.0, -100.0, -2.0, 10.0, 50.0, 200.0])).collect()
}

pub(crate) fn chunkwise(gpu: &Gpu) {
    let mut random = Random(91);
    for (i, dims) in DIMS.into_iter().enumerate() {
        let dtype = HALVES[i % 2];
        let recurrent = Pair::new(gpu, dims, dtype, 4096, &mut random);
        for gates in [recurrent.gates, slow, extreme] {
            for (max_tokens, min_chunks) in [(4096, 1), (150, 2)] {
                let mut pair = recurrent.with_min_chunks(gpu, max_tokens, min_chunks);
                pair.gates = gates;
                several(gpu, &pair, &mut random);
            }
        }
    }
    for dims in [DIMS[0], DIMS[1], DIMS[6]] {
        let mut pair = Pair::new(gpu, dims, DType::F16, 4096, &mut random);
        pair.gates = slow;
        pair = pair.with_min_chunks(gpu, 4096, 1);
        for tokens in LENGTHS {
            pair.step(gpu, 0, &[(0, 0, tokens)], &mut random);
        }
        divided(gpu, &pair, &mut random);
        few_chunks(gpu, &pair, &mut random);
    }
}

/// Steps of several sequences, which begin and end at any position.
fn several(gpu: &Gpu, pair: &Pair, random: &mut Random) {
    let steps: [&[Part]; 3] = [
        &[(0, 0, 130), (1, 0, 1), (2, 0, 64), (3, 0, 63), (4, 0, 5)],
        &[(4, 5, 1), (0, 130, 126), (1, 1, 63), (2, 64, 1), (3, 63, 200)],
        &[(2, 65, 128), (0, 256, 64), (3, 263, 3)],
    ];
    for parts in steps {
        pair.step(gpu, 1, parts, random);
    }
}

/// Computes tokens of a prompt behind `others` tokens of another sequence, and returns the bits of the outputs.
fn outputs(
    gpu: &Gpu,
    pair: &Pair,
    [input, gates]: &[Vec<f32>; 2],
    (slot, tokens): (u32, Range<usize>),
    others: usize,
) -> Vec<f32> {
    let parts = [(5, 0, others), (slot, tokens.start as u32, tokens.len())];
    let parts = if others == 0 { &parts[1..] } else { &parts };
    let [query_start, slots, positions] = steps::tables(parts);
    let behind = |values: &[f32], width: usize| {
        let rows = [&values[..others * width], &values[tokens.start * width..tokens.end * width]];
        gpu.floats(&rows.concat(), &[positions.len(), width], pair.dtype)
    };
    let operands = [
        behind(input, pair.dims.width()),
        behind(gates, pair.nets[0].gates()),
        gpu.integers(&query_start, &[query_start.len()]),
        gpu.integers(&slots, &[slots.len()]),
        gpu.integers(&positions, &[positions.len()]),
        gpu.unwritten(&[positions.len(), pair.dims.values()], pair.dtype),
    ];
    pair.run(0, 0, &operands).unwrap();
    to_vec(&operands[5])[others * pair.dims.values()..].to_vec()
}

fn bits(values: Vec<f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

/// Divisions of a prompt at multiples of a chunk change no bit, and neither do other sequences of the step.
fn divided(gpu: &Gpu, pair: &Pair, random: &mut Random) {
    const TOKENS: usize = 200;
    let prompt = [pair.dims.width(), pair.nets[0].gates()]
        .map(|width| random.floats(TOKENS * width, 2.0, pair.dtype));
    let want = bits(outputs(gpu, pair, &prompt, (0, 0..TOKENS), 0));
    let state = bits(pair.state(0));
    let divisions: [(usize, &[usize]); 4] = [
        (7, &[0, 200]),
        (0, &[0, 64, 200]),
        (70, &[0, 128, 200]),
        (1, &[0, 64, 128, 192, 199, 200]),
    ];
    for (slot, (others, bounds)) in (1..).zip(divisions) {
        let of_part =
            |bounds: &[usize]| outputs(gpu, pair, &prompt, (slot, bounds[0]..bounds[1]), others);
        let found: Vec<f32> = bounds.windows(2).flat_map(of_part).collect();
        let what = format!("{:?} divided at {bounds:?}", pair.dims);
        gpu.assert_equal(&bits(found), &want, &what);
        gpu.assert_equal(&bits(pair.state(slot)), &state, &format!("states, {what}"));
    }
}

/// Sequences with fewer whole chunks than are asked for have the bits of the recurrent form. Those with more have others.
fn few_chunks(gpu: &Gpu, pair: &Pair, random: &mut Random) {
    let prompt = [pair.dims.width(), pair.nets[0].gates()]
        .map(|width| random.floats(200 * width, 2.0, pair.dtype));
    let [recurrent, from_three, from_four] =
        [0, 3, 4].map(|min_chunks| pair.with_min_chunks(gpu, 4096, min_chunks));
    let [want, chunks, found] = [&recurrent, &from_three, &from_four].map(|pair| {
        outputs(gpu, pair, &prompt, (0, 0..200), 0);
        bits(pair.state(0))
    });
    gpu.assert_equal(&found, &want, "three chunks of four");
    assert_ne!(chunks, want, "the chunkwise form was not used");
}
