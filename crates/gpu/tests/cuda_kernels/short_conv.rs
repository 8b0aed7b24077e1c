//! Gated short convolutions.

use std::fmt::Debug;

use candle_core::{DType, Device, Tensor};
use candlepower_gpu::{self as gpu, StatePool, StateTables};
use candlepower_kernels::{ConvDims, ShortConv, StateConfig};

use crate::gpu::{Gpu, HALVES, Random, Tolerance, to_vec};
use crate::steps::{self, Mixer, Part, SLOTS};

const DIMS: [ConvDims; 4] = [
    ConvDims { channels: 8, kernel: 3 },
    ConvDims { channels: 2048, kernel: 3 },
    ConvDims { channels: 1160, kernel: 2 },
    ConvDims { channels: 64, kernel: 8 },
];

/// The same pool and conv kernel weights on the GPU, and on the CPU for the reference implementation.
struct Pair {
    convs: [ShortConv; 2],
    pools: [StatePool; 2],
    dims: ConvDims,
    dtype: DType,
}

impl Pair {
    fn new(gpu: &Gpu, dims: ConvDims, dtype: DType, random: &mut Random) -> Self {
        let conv_weights = random.floats(dims.kernel * dims.channels, 1.0, DType::F32);
        let config = StateConfig { num_layers: 2, num_slots: SLOTS, dims: dims.into() };
        let devices = [gpu.device(), &Device::Cpu];
        let convs = devices.map(|device| {
            let conv_weights =
                Tensor::from_slice(&conv_weights, (dims.kernel, dims.channels), device).unwrap();
            ShortConv { dims, conv_weights }
        });
        let pools = devices.map(|device| StatePool::new(config, 64, dtype, device).unwrap());
        Self { convs, pools, dims, dtype }
    }
}

impl Mixer<5> for Pair {
    /// Rounded once, from sums whose multiply-adds may be fused.
    const TOLERANCE: Tolerance = Tolerance { own: 1.1, largest: 0.001 };

    fn dims(&self) -> impl Debug {
        self.dims
    }

    /// Operands in order: input, query_start, slots, positions and out.
    fn operands(&self, gpu: &Gpu, parts: &[Part], random: &mut Random) -> [[Tensor; 5]; 2] {
        let [query_start, slots, positions] = steps::tables(parts);
        let tokens = positions.len();
        let input = random.floats(tokens * self.dims.width(), 2.0, self.dtype);
        let on_gpu = [
            gpu.floats(&input, &[tokens, self.dims.width()], self.dtype),
            gpu.integers(&query_start, &[query_start.len()]),
            gpu.integers(&slots, &[slots.len()]),
            gpu.integers(&positions, &[tokens]),
            gpu.unwritten(&[tokens, self.dims.channels], self.dtype),
        ];
        let on_cpu = on_gpu.each_ref().map(|tensor| tensor.to_device(&Device::Cpu).unwrap());
        [on_gpu, on_cpu]
    }

    fn run(
        &self,
        on: usize,
        layer: usize,
        [input, query_start, slots, positions, out]: &[Tensor; 5],
    ) -> candlepower_kernels::Result<()> {
        let tables = StateTables { query_start, slots, positions };
        gpu::short_conv(input, &self.convs[on], &self.pools[on], layer, &tables, out)
    }
}

pub(crate) fn short_conv(gpu: &Gpu) {
    let mut random = Random(91);
    for dims in DIMS {
        for dtype in HALVES {
            let pair = Pair::new(gpu, dims, dtype, &mut random);
            for parts in &steps::steps() {
                pair.step(gpu, 1, parts, &mut random);
            }
            pair.step(gpu, 0, &[(1, 9, 3)], &mut random);
            for (pool, device) in pair.pools.iter().zip([gpu.device(), &Device::Cpu]) {
                let pairs = Tensor::from_slice(&[1u32, 4, 0, 2], (2, 2), device).unwrap();
                gpu::copy_states(pool, &pairs).unwrap();
            }
            pair.step(gpu, 1, &[(4, 58, 2), (2, 4, 1), (1, 58, 1)], &mut random);
        }
    }
    Pair::new(gpu, DIMS[2], DType::BF16, &mut random).replay(gpu, &mut random);
    wrong_tables(gpu, &mut random);
}

/// A missing slot gives NaN, and missing tokens give nothing. Neither changes the states of other sequences.
fn wrong_tables(gpu: &Gpu, random: &mut Random) {
    let pair = Pair::new(gpu, DIMS[3], DType::F16, random);
    pair.step(gpu, 0, &[(0, 0, 5), (1, 0, 2)], random);
    let [mut on_gpu, mut on_cpu] = pair.operands(gpu, &[(SLOTS as u32, 4, 2), (0, 5, 3)], random);
    // The second sequence ends after the last token.
    let channels = pair.dims.channels;
    for (on, operands) in [&mut on_gpu, &mut on_cpu].into_iter().enumerate() {
        let device = operands[0].device().clone();
        operands[1] = gpu.integers(&[0, 2, 9], &[3]).to_device(&device).unwrap();
        let sevens = gpu.floats(&vec![7.0; 5 * channels], &[5, channels], DType::F16);
        operands[4] = sevens.to_device(&device).unwrap();
        pair.run(on, 0, operands).unwrap();
        let rows = |first, count| to_vec(&operands[4].narrow(0, first, count).unwrap());
        assert!(rows(0, 2).iter().all(|x| x.is_nan()), "no such slot");
        assert!(rows(2, 3).iter().all(|x| *x == 7.0), "no such tokens");
    }
    pair.step(gpu, 0, &[(0, 5, 1), (1, 2, 1)], random);
}
