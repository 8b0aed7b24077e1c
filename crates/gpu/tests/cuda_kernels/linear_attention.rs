//! Gated delta nets and Mamba-2, copies of their states, and sigmoid gates.

use std::fmt::Debug;

use candle_core::{DType, Device, Tensor};
use candlepower_gpu::{self as gpu, StatePool, StateTables};
use candlepower_kernels::{
    LinearAttention, LinearAttentionDims, StateConfig, UpdateRule, sigmoid_gate_reference,
};

use crate::gpu::{Gpu, HALVES, ROUNDED_ONCE, Random, Tolerance, to_vec};
use crate::steps::{self, Mixer, Part, SLOTS};

/// Number of value heads in the case where those with the same key head are not neighbours.
const TILED: usize = 6;

/// Whether the layer is Mamba-2; key heads, value heads, elements of a key and of a value, and conv kernel weights per
/// channel.
const DIMS: [(bool, [usize; 5]); 17] = [
    (false, [2, 4, 128, 128, 4]),
    (false, [1, 2, 128, 64, 4]),
    (false, [2, 2, 64, 128, 4]),
    (false, [1, 3, 64, 64, 2]),
    (false, [1, 2, 32, 64, 8]),
    (false, [2, 2, 32, 128, 3]),
    (false, [1, 1, 32, 256, 4]),
    (false, [2, TILED, 64, 32, 4]),
    (false, [1, 2, 128, 48, 4]),
    (false, [2, 2, 32, 16, 5]),
    (false, [1, 1, 128, 256, 4]),
    (true, [1, 4, 128, 64, 4]),
    (true, [2, 4, 128, 80, 4]),
    (true, [1, 3, 64, 64, 2]),
    (true, [2, 2, 32, 16, 8]),
    (true, [1, 1, 64, 256, 4]),
    (true, [1, TILED, 32, 144, 3]),
];

/// Limits of the rows that are computed at once: no limit for these steps, and some that divide sequences.
const MAX_TOKENS: [usize; 3] = [4096, 16, 7];

const LAYERS: usize = 2;

/// Sums of f32 in another order.
pub(crate) const STATE_TOLERANCE: Tolerance = Tolerance { own: 20.0, largest: 20.0 };

/// Sums of products of two bf16 values for each f32: 1e-4 of the largest state. Outputs of heads with small results are divided by
/// these.
const CHUNK_TOLERANCES: [Tolerance; 2] =
    [Tolerance { own: 1.1, largest: 0.1 }, Tolerance { own: 20.0, largest: 840.0 }];

/// The same pool and weights on the GPU, and on the CPU for the reference implementation.
pub(crate) struct Pair {
    pub(crate) nets: [LinearAttention; 2],
    pub(crate) pools: [StatePool; 2],
    pub(crate) dims: LinearAttentionDims,
    pub(crate) dtype: DType,
    /// Values of a step's gates.
    pub(crate) gates: fn(&mut Random, usize, DType) -> Vec<f32>,
    /// Tolerances of the outputs and of the states.
    tolerances: [Tolerance; 2],
}

/// Random gates, among them values for which softplus returns its argument, and for which e^x is infinite.
fn mixed_gates(random: &mut Random, count: usize, dtype: DType) -> Vec<f32> {
    let mut gates = random.floats(count, 3.0, dtype);
    gates[1] = 30.0;
    gates.iter_mut().rev().step_by(37).for_each(|gate| *gate = 96.0);
    gates
}

impl Pair {
    /// Layers that compute token by token.
    pub(crate) fn new(
        gpu: &Gpu,
        (is_mamba, [key_heads, value_heads, key_dim, value_dim, kernel]): (bool, [usize; 5]),
        dtype: DType,
        max_tokens: usize,
        random: &mut Random,
    ) -> Self {
        let tiled = value_heads == TILED;
        let dims =
            LinearAttentionDims { key_heads, value_heads, tiled, key_dim, value_dim, kernel };
        let mut weight = |dims: &[usize]| {
            let numbers = random.floats(dims.iter().product(), 0.8, DType::F32);
            Tensor::from_vec(numbers, dims, &Device::Cpu).unwrap()
        };
        let conv = weight(&[dims.channels(), kernel]);
        let (a_log, dt_bias) = (weight(&[value_heads]), weight(&[value_heads]));
        let conv_bias = is_mamba.then(|| weight(&[dims.channels()]));
        let result = weight(&[if is_mamba { value_heads } else { value_dim }]);
        let config = StateConfig { num_layers: LAYERS, num_slots: SLOTS, dims: dims.into() };
        let devices = [gpu.device(), &Device::Cpu];
        let nets = devices.map(|device| {
            let on = |tensor: &Tensor| tensor.to_device(device).unwrap();
            let (conv, a_log, dt_bias) = (on(&conv), on(&a_log), on(&dt_bias));
            let rule = match is_mamba {
                false => UpdateRule::Delta { norm: on(&result), eps: 1e-6 },
                true => UpdateRule::Mamba2 { skip: on(&result) },
            };
            LinearAttention {
                dims,
                conv,
                conv_bias: conv_bias.as_ref().map(on),
                a_log,
                dt_bias,
                rule,
            }
        });
        let pools = devices.map(|device| pool(config, max_tokens, dtype, device, 0));
        let tolerances = [Self::TOLERANCE, STATE_TOLERANCE];
        Self { nets, pools, dims, dtype, gates: mixed_gates, tolerances }
    }

    /// The same layers with states of zeros, which compute sequences with `min_chunks` whole chunks in the chunkwise form.
    pub(crate) fn with_min_chunks(&self, gpu: &Gpu, max_tokens: usize, min_chunks: usize) -> Self {
        let config = *self.pools[0].config();
        let devices = [gpu.device(), &Device::Cpu];
        let pools = devices.map(|device| pool(config, max_tokens, self.dtype, device, min_chunks));
        Self { nets: self.nets.clone(), pools, tolerances: CHUNK_TOLERANCES, ..*self }
    }

    /// The same layers with states of zeros.
    fn with_max_tokens(&self, gpu: &Gpu, max_tokens: usize) -> Self {
        let config = *self.pools[0].config();
        let devices = [gpu.device(), &Device::Cpu];
        let pools = devices.map(|device| pool(config, max_tokens, self.dtype, device, 0));
        Self { nets: self.nets.clone(), pools, ..*self }
    }

    /// The matrices of a slot in layer 0 on the GPU.
    pub(crate) fn state(&self, slot: u32) -> Vec<f32> {
        let matrices = self.pools[0].matrices(0).unwrap();
        to_vec(&matrices.narrow(0, slot as usize, 1).unwrap().contiguous().unwrap())
    }
}

fn pool(
    config: StateConfig,
    max_tokens: usize,
    dtype: DType,
    device: &Device,
    min_chunks: usize,
) -> StatePool {
    let pool = StatePool::new(config, max_tokens, dtype, device).unwrap();
    pool.with_min_chunks(min_chunks).unwrap()
}

impl Mixer<6> for Pair {
    /// Both results are rounded once, from sums in another order.
    const TOLERANCE: Tolerance = Tolerance { own: 1.1, largest: 0.02 };

    fn dims(&self) -> impl Debug {
        let is_mamba = matches!(self.nets[1].rule, UpdateRule::Mamba2 { .. });
        (if is_mamba { "Mamba-2" } else { "delta net" }, self.dims)
    }

    /// Operands in order: input, gates, query_start, slots, positions and out.
    fn operands(&self, gpu: &Gpu, parts: &[Part], random: &mut Random) -> [[Tensor; 6]; 2] {
        let [query_start, slots, positions] = steps::tables(parts);
        let tokens = positions.len();
        let (dims, dtype) = (self.dims, self.dtype);
        let input = random.floats(tokens * dims.width(), 2.0, dtype);
        let gates = (self.gates)(random, tokens * self.nets[0].gates(), dtype);
        let on_gpu = [
            gpu.floats(&input, &[tokens, dims.width()], dtype),
            gpu.floats(&gates, &[tokens, self.nets[0].gates()], dtype),
            gpu.integers(&query_start, &[query_start.len()]),
            gpu.integers(&slots, &[slots.len()]),
            gpu.integers(&positions, &[tokens]),
            gpu.unwritten(&[tokens, dims.values()], dtype),
        ];
        let on_cpu = on_gpu.each_ref().map(|tensor| tensor.to_device(&Device::Cpu).unwrap());
        [on_gpu, on_cpu]
    }

    /// The outputs, and the states of all layers.
    fn compare(&self, gpu: &Gpu, on_gpu: &[Tensor; 6], on_cpu: &[Tensor; 6], what: &str) {
        let what = format!("{:?}, {what}", self.dims());
        let [of_outputs, of_states] = self.tolerances;
        gpu.assert_close(&on_gpu[5], &to_vec(&on_cpu[5]), of_outputs, &what);
        for layer in 0..LAYERS {
            let [found, want] = self.pools.each_ref().map(|pool| pool.matrices(layer).unwrap());
            let what = format!("states of layer {layer}, {what}");
            gpu.assert_close(found, &to_vec(want), of_states, &what);
        }
    }

    fn run(
        &self,
        on: usize,
        layer: usize,
        [input, gates, query_start, slots, positions, out]: &[Tensor; 6],
    ) -> candlepower_kernels::Result<()> {
        let tables = StateTables { query_start, slots, positions };
        let (net, pool) = (&self.nets[on], &self.pools[on]);
        gpu::linear_attention(input, gates, net, pool, layer, &tables, out)
    }
}

pub(crate) fn linear_attention(gpu: &Gpu) {
    let mut random = Random(81);
    for (i, dims) in DIMS.into_iter().enumerate() {
        for (j, dtype) in HALVES.into_iter().enumerate() {
            let max_tokens = MAX_TOKENS[(i + j) % MAX_TOKENS.len()];
            let pair = Pair::new(gpu, dims, dtype, max_tokens, &mut random);
            for parts in &steps::steps() {
                pair.step(gpu, 1, parts, &mut random);
            }
            // The state of the other layer is still zero.
            pair.step(gpu, 0, &[(1, 9, 3)], &mut random);
        }
    }
    for dims in [DIMS[0], DIMS[7]] {
        Pair::new(gpu, dims, DType::BF16, 4096, &mut random).replay(gpu, &mut random);
    }
    for dims in [DIMS[0], DIMS[7], DIMS[8], DIMS[11], DIMS[13]] {
        divided(gpu, dims, &mut random);
    }
    for max_tokens in [4096, 3] {
        wrong_tables(gpu, max_tokens, &mut random);
    }
}

/// The division of a prompt over steps and launches changes no bit, and neither do other sequences of the step.
fn divided(gpu: &Gpu, dims: (bool, [usize; 5]), random: &mut Random) {
    const TOKENS: usize = 130;
    let pair = Pair::new(gpu, dims, DType::F16, 4096, random);
    let (width, gates_width) = (pair.dims.width(), pair.nets[0].gates());
    let input = random.floats(TOKENS * width, 2.0, pair.dtype);
    let gates = random.floats(TOKENS * gates_width, 3.0, pair.dtype);
    // The outputs of tokens of the prompt, in a step behind `others` tokens of another sequence.
    let run = |pair: &Pair, slot: u32, tokens: std::ops::Range<usize>, others: usize| {
        let parts = [(5, tokens.start as u32, others), (slot, tokens.start as u32, tokens.len())];
        let parts = if others == 0 { &parts[1..] } else { &parts };
        let [query_start, slots, positions] = steps::tables(parts);
        let behind = |values: &[f32], width: usize| {
            let rows =
                [&values[..others * width], &values[tokens.start * width..tokens.end * width]];
            gpu.floats(&rows.concat(), &[positions.len(), width], pair.dtype)
        };
        let operands = [
            behind(&input, width),
            behind(&gates, gates_width),
            gpu.integers(&query_start, &[query_start.len()]),
            gpu.integers(&slots, &[slots.len()]),
            gpu.integers(&positions, &[positions.len()]),
            gpu.unwritten(&[positions.len(), pair.dims.values()], pair.dtype),
        ];
        pair.run(0, 0, &operands).unwrap();
        to_vec(&operands[5])[others * pair.dims.values()..].to_vec()
    };
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let want = bits(run(&pair, 0, 0..TOKENS, 0));
    let state = bits(pair.state(0));
    // At once beside others, token by token, and in parts of which some are shorter than a convolution.
    let in_parts = [0, 1, 3, 16, 31, 47, 64, 128, TOKENS];
    let divisions: [&[usize]; 3] = [&[0, TOKENS], &(0..=TOKENS).collect::<Vec<_>>(), &in_parts];
    let small = pair.with_max_tokens(gpu, 13);
    for (slot, bounds) in (1..).zip(divisions) {
        for pair in [&pair, &small] {
            let of_part = |bounds: &[usize]| run(pair, slot, bounds[0]..bounds[1], slot as usize);
            let found: Vec<f32> = bounds.windows(2).flat_map(of_part).collect();
            let what = format!("{:?} in {} parts", pair.dims(), bounds.len() - 1);
            gpu.assert_equal(&bits(found), &want, &what);
            gpu.assert_equal(&bits(pair.state(slot)), &state, &format!("states, {what}"));
        }
    }
}

/// A missing slot gives NaN, and missing tokens give nothing. Neither changes the states of other sequences.
fn wrong_tables(gpu: &Gpu, max_tokens: usize, random: &mut Random) {
    let pair = Pair::new(gpu, DIMS[3], DType::F16, max_tokens, random);
    pair.step(gpu, 0, &[(0, 0, 5), (1, 0, 2), (SLOTS as u32 - 1, 0, 9)], random);
    let parts = [(SLOTS as u32, 4, 2), (0, 5, 3), (1, 2, 2), (2, 9, 1)];
    let [mut on_gpu, mut on_cpu] = pair.operands(gpu, &parts, random);
    // The third sequence ends before it begins, and the last one ends after the last token.
    let starts = [0, 2, 5, 4, 9];
    for (on, operands) in [&mut on_gpu, &mut on_cpu].into_iter().enumerate() {
        let values = pair.dims.values();
        let sevens = gpu.floats(&vec![7.0; 8 * values], &[8, values], DType::F16);
        operands[2] = gpu.integers(&starts, &[5]).to_device(operands[0].device()).unwrap();
        operands[5] = sevens.to_device(operands[0].device()).unwrap();
        pair.run(on, 0, operands).unwrap();
    }
    let rows = |operands: &[Tensor; 6], first, count| operands[5].narrow(0, first, count).unwrap();
    for operands in [&on_gpu, &on_cpu] {
        assert!(to_vec(&rows(operands, 0, 2)).iter().all(|x| x.is_nan()), "no such slot");
        assert!(to_vec(&rows(operands, 5, 3)).iter().all(|x| *x == 7.0), "no such tokens");
    }
    let tolerance = Tolerance { own: 1.1, largest: 0.02 };
    let (found, want) = (rows(&on_gpu, 2, 3), to_vec(&rows(&on_cpu, 2, 3)));
    gpu.assert_close(&found, &want, tolerance, "beside wrong ones");
    // Sequence 1 continues where its refused tokens would have begun.
    pair.step(gpu, 0, &[(0, 8, 1), (1, 2, 1), (SLOTS as u32 - 1, 9, 1)], random);
}

pub(crate) fn copy_states(gpu: &Gpu) {
    let mut random = Random(82);
    for dims in DIMS {
        for dtype in HALVES {
            let pair = Pair::new(gpu, dims, dtype, 64, &mut random);
            let parts = [(0, 0, 4), (1, 0, 3), (2, 0, 1), (3, 0, 2)];
            for layer in 0..LAYERS {
                pair.step(gpu, layer, &parts, &mut random);
            }
            // Copies to new slots and to used slots, and pairs with a missing slot.
            let outside = SLOTS as u32;
            let pairs = [1, 5, 0, 3, outside, 2, 2, outside, 1, 4];
            for (pool, device) in pair.pools.iter().zip([gpu.device(), &Device::Cpu]) {
                let pairs = Tensor::from_slice(&pairs, (5, 2), device).unwrap();
                gpu::copy_states(pool, &pairs).unwrap();
            }
            // The result of one more token in each slot depends on the state there.
            let parts: Vec<Part> = (0..SLOTS as u32).map(|slot| (slot, 9, 1)).collect();
            for layer in 0..LAYERS {
                pair.step(gpu, layer, &parts, &mut random);
            }
        }
    }
}

pub(crate) fn sigmoid_gate(gpu: &Gpu) {
    let mut random = Random(83);
    for (rows, width) in [(1, 1), (3, 33), (7, 64), (300, 2048)] {
        for gates in [width, 1] {
            for dtype in HALVES {
                let values = random.floats(rows * width, 2.0, dtype);
                let gate = random.floats(rows * gates, 20.0, dtype);
                let x = gpu.floats(&values, &[rows, width], dtype);
                gpu::sigmoid_gate(&x, &gpu.floats(&gate, &[rows, gates], dtype)).unwrap();
                let want: Vec<f32> = values
                    .chunks(width)
                    .zip(gate.chunks(gates))
                    .flat_map(|(x, gate)| sigmoid_gate_reference(x, gate))
                    .collect();
                let what = format!("{rows} x {width}, {gates} gates");
                gpu.assert_close(&x, &want, ROUNDED_ONCE, &what);
            }
        }
    }
}
