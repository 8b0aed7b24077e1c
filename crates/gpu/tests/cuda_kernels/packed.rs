//! Quantized matrices: products with quantized weights, dequantization, and both through cuBLAS.

use candle_core::{DType, Device, Tensor};
use candlepower_gpu::cuda::{self, Cublas};
use candlepower_gpu::{HeadPadding, PackedMatrix};
use candlepower_kernels::{
    Offsets, QuantFormat, QuantizedRows, ScaleForm, SparseRows, VocabPart, Weight, linear_reference,
};

use crate::gpu::{
    BIASED_BY_CUBLAS, Gpu, HALVES, ROUNDED_ONCE, Random, Tolerance, assert_same_bits, rounded,
    to_vec,
};

/// Quantization formats, with the largest quantized weight of each. Without bit 3 of the largest E4M3 value there is no
/// NaN.
const KINDS: [(QuantFormat, u64); 5] = [
    (QuantFormat::U4, 15),
    (QuantFormat::U8, 255),
    (QuantFormat::E4m3, 0xf7),
    (QuantFormat::E2m1, 15),
    (QuantFormat::Table, 15),
];

/// A matrix on the GPU, and its values `[n, width]` on the CPU: the dequantized weights, and the sparse part that is
/// added to them.
pub(crate) struct Case {
    pub(crate) packed: PackedMatrix,
    numbers: Vec<f32>,
    sparse: Vec<f32>,
    width: usize,
    what: String,
}

/// Matrices of all formats: whole tiles and parts of tiles, groups of one step and of all columns, columns in any
/// order, padded heads, and a sparse part.
fn cases(gpu: &Gpu) -> Vec<Case> {
    let mut random = Random(41);
    let mut cases = Vec::new();
    let shapes = [
        (16, 64usize, 64),
        (7, 32, 16),
        (40, 200, 48),
        (130, 1000, 1000),
        (64, 4096, 128),
        (150, 832, 32),
        (33, 320, 16),
    ];
    for kind in KINDS {
        for shape in shapes {
            cases.push(case(gpu, kind, shape, None, &mut random));
            let padding = Some(HeadPadding { len: 8, padded: 12 });
            cases.push(case(gpu, kind, shape, Some(padding), &mut random));
        }
    }
    // Enough outputs that packed_rows.cu does not divide the inputs among blocks; and fewer, with four parts.
    cases.push(case(gpu, KINDS[0], (16_300, 192, 64), None, &mut random));
    cases.push(case(gpu, KINDS[0], (1030, 1024, 128), None, &mut random));
    cases
}

/// One matrix per expert, for each quantization format. In every second format, every second matrix has columns in any
/// order and a sparse part.
pub(crate) fn experts(
    gpu: &Gpu,
    count: usize,
    (n, k): (usize, usize),
    random: &mut Random,
) -> Vec<Vec<Case>> {
    let mut of_kind = |(at, kind): (usize, (QuantFormat, u64))| {
        let special = |i| (at % 2 == 1 && i % 2 == 1).then_some(None);
        let group = if at == 2 { 64 } else { 32 };
        (0..count).map(|i| case(gpu, kind, (n, k, group), special(i), random)).collect()
    };
    KINDS.into_iter().enumerate().map(&mut of_kind).collect()
}

/// A matrix of `n` rows and `k` columns with groups of `group` columns. A special matrix has its columns in any order,
/// a sparse part, and optionally padded heads.
fn case(
    gpu: &Gpu,
    (format, most): (QuantFormat, u64),
    (n, k, group): (usize, usize, usize),
    special: Option<Option<HeadPadding>>,
    random: &mut Random,
) -> Case {
    let group = if format == QuantFormat::Table { k } else { group };
    let groups = n * k.div_ceil(group);
    let bytes: Vec<u8> = (0..n * k).map(|_| (random.next() & most) as u8).collect();
    let count = if format == QuantFormat::Table { n * 16 } else { groups };
    let scales = random.floats(count, 0.1, DType::F32);
    let offsets = match format {
        QuantFormat::Table | QuantFormat::E4m3 => Vec::new(),
        _ => random.floats(groups, 1.0, DType::F32),
    };
    let order = random.permutation(k);
    let rows = QuantizedRows {
        format,
        group,
        bytes: &bytes,
        scales: &scales,
        offsets: if offsets.is_empty() { Offsets::None } else { Offsets::Own(&offsets) },
        sub_scales: None,
        inputs: special.map(|_| &order[..]),
    };
    // Two entries in every third row, and none in others.
    let starts: Vec<u32> = (0..=n as u32).map(|row| row / 3 * 2).collect();
    let entries = starts[n] as usize;
    let inputs: Vec<u32> = (0..entries).map(|i| (i % k) as u32).collect();
    let added = random.floats(entries, 2.0, DType::F32);
    let sparse = SparseRows { starts: &starts, inputs: &inputs, values: &added };
    let pack = |rows, sparse, device: &Device| {
        let form = ScaleForm::F32;
        let mut builder = Weight::quantized_builder(n, k, format, group, form).unwrap();
        if let Some(sparse) = sparse {
            builder.write_sparse(0, sparse).unwrap();
        }
        builder.write_quantized(0, rows).unwrap();
        PackedMatrix::new(&builder.finish().unwrap(), special.flatten(), device).unwrap()
    };
    let numbers = pack(rows, None, &Device::Cpu).dequantized().unwrap();
    // With scales of zero, only the sparse part remains.
    let zeros = vec![0.0; count.max(groups)];
    let offsets = if offsets.is_empty() { Offsets::None } else { Offsets::Own(&zeros[..groups]) };
    let nothing = QuantizedRows { scales: &zeros[..count], offsets, ..rows };
    let sparse = special.map(|_| sparse);
    Case {
        packed: pack(rows, sparse, gpu.device()),
        sparse: pack(nothing, sparse, &Device::Cpu).dequantized().unwrap(),
        width: numbers.len() / n,
        numbers,
        what: format!("{format:?} {n} x {k}, groups of {group}, special {special:?}"),
    }
}

impl Case {
    /// The matrix's values: those that `dense` makes of the dequantized weights, plus the sparse part.
    fn sums(&self, dense: impl Fn(&[f32]) -> Vec<f32>) -> Vec<f32> {
        dense(&self.numbers)
            .iter()
            .zip(&self.sparse)
            .map(|(number, added)| number + added)
            .collect()
    }

    /// The values that a kernel multiplies. With `is_dequantized` it dequantizes and rounds them to `dtype` first.
    /// Otherwise only entries of lookup tables are rounded. The sparse part is never rounded.
    pub(crate) fn multiplied(&self, dtype: DType, is_dequantized: bool) -> Vec<f32> {
        let is_rounded = is_dequantized || self.what.starts_with("Table");
        self.sums(|numbers| if is_rounded { rounded(numbers, dtype) } else { numbers.to_vec() })
    }
}

/// Activations, which are zero in the padding of heads.
fn activations(random: &mut Random, rows: usize, case: &Case, dtype: DType) -> Vec<f32> {
    let numbers = case.sums(<[f32]>::to_vec);
    let is_used = |input| numbers.iter().skip(input).step_by(case.width).any(|w| *w != 0.0);
    let used: Vec<bool> = (0..case.width).map(is_used).collect();
    let mut x = random.floats(rows * case.width, 1.0, dtype);
    x.iter_mut().zip(used.iter().cycle()).filter(|(_, used)| !**used).for_each(|(x, _)| *x = 0.0);
    x
}

/// The product, `[rows, n]`.
fn product(x: &[f32], w: &[f32], width: usize, bias: &[f32]) -> Vec<f32> {
    let outputs = |x: &[f32]| -> Vec<f32> {
        let rows = w.chunks(width).zip(bias);
        rows.map(|(w, bias)| linear_reference(x, w, Some(*bias))).collect()
    };
    x.chunks(width).flat_map(outputs).collect()
}

/// All numbers of rows give the same bits, by both kernels: those of the product of the most rows.
pub(crate) fn packed_product(gpu: &Gpu) {
    let mut random = Random(42);
    for case in cases(gpu) {
        let (n, width) = (case.numbers.len() / case.width, case.width);
        // The reference would take long for many rows of so many outputs.
        let most = if n > 10_000 { 12 } else { cuda::packed_max_rows(&case.packed) };
        for dtype in HALVES {
            let cublas = Cublas::new(gpu.device(), most, dtype, 0).unwrap();
            let x = activations(&mut random, most, &case, dtype);
            let bias = random.floats(n, 1.0, dtype);
            let want = product(&x, &case.multiplied(dtype, false), width, &bias);
            let (x, bias) = (gpu.floats(&x, &[most, width], dtype), gpu.floats(&bias, &[n], dtype));
            let of_rows = |first, rows| {
                let out = gpu.unwritten(&[rows, n], dtype);
                let x = x.narrow(0, first, rows).unwrap().contiguous().unwrap();
                cublas.packed(&x, &case.packed, Some(&bias), &out).unwrap();
                out
            };
            let all = to_vec(&of_rows(0, most));
            for rows in [1, 3, 8, 9, 12, 16, 17, 31, 33, 65, 128] {
                if rows > most {
                    break;
                }
                let out = of_rows(0, rows);
                // Sums in f32 in another order.
                let tolerance = Tolerance { own: 0.6, largest: 0.1 };
                let what = format!("{rows} rows of {}", case.what);
                gpu.assert_close(&out, &want[..rows * n], tolerance, &what);
                assert_same_bits(&out, &all[..rows * n], &what);
            }
            if width % 8 != 0 {
                // Other rows than the first are not aligned.
                continue;
            }
            for row in [1, 7, 8, 11, 31, 63, 64, 127].into_iter().filter(|row| *row < most) {
                let what = format!("row {row} alone of {}", case.what);
                assert_same_bits(&of_rows(row, 1), &all[row * n..][..n], &what);
            }
        }
    }
}

/// More rows than the kernels for quantized weights take, with memory for a few outputs at a time.
pub(crate) fn packed_matmul(gpu: &Gpu) {
    let mut random = Random(43);
    for case in cases(gpu) {
        let (n, width) = (case.numbers.len() / case.width, case.width);
        if n > 10_000 {
            continue;
        }
        for dtype in HALVES {
            let cublas = Cublas::new(gpu.device(), 300, dtype, 2 * 48 * width).unwrap();
            let rows = 1 + cuda::packed_max_rows(&case.packed);
            let x = activations(&mut random, rows, &case, dtype);
            let bias = random.floats(n, 1.0, dtype);
            // Dequantized weights are rounded to `dtype` too.
            let w = rounded(&case.multiplied(dtype, true), dtype);
            let want = product(&x, &w, width, &bias);
            let out = gpu.unwritten(&[rows, n], dtype);
            let (x, bias) = (gpu.floats(&x, &[rows, width], dtype), gpu.floats(&bias, &[n], dtype));
            cublas.packed(&x, &case.packed, Some(&bias), &out).unwrap();
            gpu.assert_close(&out, &want, BIASED_BY_CUBLAS, &case.what);
        }
    }
}

pub(crate) fn packed_embedding(gpu: &Gpu) {
    for case in cases(gpu) {
        let (n, width) = (case.numbers.len() / case.width, case.width);
        // Inputs in the padding of heads are not written.
        if activations(&mut Random(44), 1, &case, DType::F32).contains(&0.0) {
            continue;
        }
        for dtype in HALVES {
            let ids: Vec<u32> = (0..20).map(|i| (i * 7 % n) as u32).collect();
            let on_gpu: Tensor = gpu.integers(&ids, &[20]);
            let out = gpu.unwritten(&[20, width], dtype);
            let numbers = rounded(&case.multiplied(dtype, true), dtype);
            // A whole vocabulary, and the middle shard of a larger one, where some tokens belong to other shards.
            for first in [0, 5] {
                let part = VocabPart { first, vocab_size: n + 2 * first };
                cuda::packed_embedding(&on_gpu, &case.packed, 0.5, part, &out).unwrap();
                let want = ids.iter().flat_map(|id| match (*id as usize).checked_sub(first) {
                    Some(row) => {
                        numbers[row * width..][..width].iter().map(|number| number * 0.5).collect()
                    }
                    None => vec![0.0; width],
                });
                let what = format!("{}, from {first} on", case.what);
                gpu.assert_close(&out, &want.collect::<Vec<_>>(), ROUNDED_ONCE, &what);
            }
            let beyond = gpu.integers(&[n as u32], &[1]);
            let out = gpu.unwritten(&[1, width], dtype);
            let whole = VocabPart { first: 0, vocab_size: n };
            cuda::packed_embedding(&beyond, &case.packed, 0.5, whole, &out).unwrap();
            assert!(to_vec(&out).iter().all(|value| value.is_nan()), "an unknown id");
        }
    }
}
