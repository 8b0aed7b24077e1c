//! Every path of the matmul against the reference, bit for bit.

use candle_core::{DType, Device};

use super::*;
use crate::simd::{TILE_LINE, tile_sum};
use crate::{
    Blocks, Dtype, Error, OffsetForm, Offsets, QuantFormat, QuantizedRows, ScaleForm, SparseRows,
    SubScaleForm, SubScales, WeightBuilder, WeightRows,
};

/// Values that need rounding, of both signs.
fn test_values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn multiply(isa: Isa, x: &[f32], w: &Weight, bias: Option<&[f32]>) -> Vec<f32> {
    super::multiply(isa, x, w, bias, None)
}

fn weight(rows: &[f32], n: usize, k: usize, dtype: DType) -> Weight {
    let bytes: Vec<u8> = rows.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut builder = Weight::builder(n, k, dtype).unwrap();
    builder.write_rows(0, WeightRows { dtype: DType::F32, bytes: &bytes }).unwrap();
    builder.finish().unwrap()
}

/// A quantized weight with groups of `group` inputs. Its inputs are reversed, and its activations rounded, on
/// request.
fn quantized(
    (n, k): (usize, usize),
    format: QuantFormat,
    group: usize,
    backwards: bool,
    rounds: bool,
) -> Weight {
    let inputs: Vec<u32> = (0..k as u32).rev().collect();
    quantized_by((n, k), format, (group, ScaleForm::F32), backwards.then_some(&inputs[..]), rounds)
}

/// A quantized weight with groups of `group` inputs, whose scales have the given form.
fn quantized_by(
    (n, k): (usize, usize),
    format: QuantFormat,
    (group, form): (usize, ScaleForm),
    inputs: Option<&[u32]>,
    rounds: bool,
) -> Weight {
    // The largest E4M3 is NaN.
    let most = if format == QuantFormat::E4m3 { 127.0 } else { f32::from(format.most()) + 1.0 };
    let bytes: Vec<u8> = test_values(n * k, 11).iter().map(|v| (v.abs() * most) as u8).collect();
    let groups = k.div_ceil(group);
    let scale_count = match form.blocks {
        _ if format == QuantFormat::Table => 16,
        Some(blocks) => k / blocks.columns,
        None => groups,
    };
    let kept_numbers = |seed| -> Vec<f32> {
        let numbers = test_values(n * scale_count, seed).into_iter();
        match form.dtype {
            Dtype::F16 => numbers.map(|v| half::f16::from_f32(v).to_f32()).collect(),
            Dtype::Bf16 => numbers.map(|v| half::bf16::from_f32(v).to_f32()).collect(),
            Dtype::F32 => numbers.collect(),
        }
    };
    let (scales, own_offsets) = (kept_numbers(12), kept_numbers(13));
    let zeros: Vec<u8> = (0..n * groups).map(|i| (i * 37 % 256) as u8).collect();
    let offsets = match form.offsets {
        _ if format == QuantFormat::Table => Offsets::None,
        OffsetForm::None => Offsets::None,
        OffsetForm::Own => Offsets::Own(&own_offsets),
        OffsetForm::ZeroPoint(zero) => Offsets::ZeroPoint(zero),
        // All groups of a super-block have the same zero-point.
        OffsetForm::ZeroPoints if form.blocks.is_some() => Offsets::ZeroPoint(77),
        OffsetForm::ZeroPoints => Offsets::ZeroPoints(&zeros),
    };
    let by = |seed| {
        let numbers = test_values(n * groups, seed).into_iter();
        let number = |v: f32| match form.blocks.map(|blocks| blocks.sub_scales) {
            Some(SubScaleForm::U4) => (v.abs() * 16.0) as i8,
            Some(SubScaleForm::U6) => (v.abs() * 64.0) as i8,
            Some(SubScaleForm::I6) => (v * 32.0).floor() as i8,
            Some(SubScaleForm::I8) | None => (v * 128.0) as i8,
        };
        numbers.map(number).collect()
    };
    let by: [Vec<i8>; 2] = [by(14), by(15)];
    let sub_scales = form.blocks.map(|blocks| SubScales {
        block: blocks.columns,
        scales: &by[0],
        offsets: if form.offsets == OffsetForm::Own { &by[1] } else { &[] },
    });
    let mut builder = Weight::quantized_builder(n, k, format, group, form).unwrap();
    let scales = &scales[..];
    let rows = QuantizedRows { format, group, bytes: &bytes, scales, offsets, sub_scales, inputs };
    builder.write_quantized(0, rows).unwrap();
    let builder = if rounds { builder.with_rounded_activations() } else { builder };
    builder.finish().unwrap()
}

/// The reference for all outputs, and the reference in a matrix unit's order of summation. Values of a matrix unit
/// are compared with the second, which is itself near the first.
struct Expected {
    chains: Vec<u32>,
    tiles: Option<Vec<u32>>,
}

impl Expected {
    fn new(x: &[f32], w: &Weight, bias: Option<&[f32]>) -> Self {
        let (n, k) = (w.n(), w.k());
        let mut x = in_order(x, w).into_owned();
        if w.rounds_activations() {
            x.iter_mut().for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
        }
        let mut rows = vec![0.0; n * k];
        rows.chunks_exact_mut(k).enumerate().for_each(|(i, row)| w.read_row(i, row));
        let rows = in_order(&rows, w);
        let quantized_rows: Vec<QuantizedRow> = match w.quant_format() {
            Some((format, _)) if format != QuantFormat::Table => {
                (0..n).map(|row| QuantizedRow::of(w, row)).collect()
            }
            _ => Vec::new(),
        };
        let all = |chain: fn(&[f32], &[f32]) -> f32| -> Vec<u32> {
            let output = |x: &[f32], i: usize| {
                let sum = match w.quant_format() {
                    Some((QuantFormat::Table, _)) => table_sum(x, &rows[i * k..][..k]),
                    Some(_) => quantized_rows[i].sum(x, chain),
                    None => chain(x, &rows[i * k..][..k]),
                };
                bias.map_or(sum, |bias| sum + bias[i]).to_bits()
            };
            x.chunks_exact(k).flat_map(|x| (0..n).map(move |i| output(x, i))).collect()
        };
        let chains = all(|x, w| linear_reference(x, w, None));
        Self { chains, tiles: fits_matrix_unit(w).then(|| all(tiles_sum)) }
    }

    /// The expected bits of the first `count` outputs on `isa`.
    fn on(&self, isa: Isa, count: usize) -> &[u32] {
        let tiles = self.tiles.as_ref().filter(|_| isa.has_tiles());
        &tiles.unwrap_or(&self.chains)[..count]
    }
}

/// A quantized row before it is scaled, and `[scale, offset]` of each group.
struct QuantizedRow {
    numbers: Vec<f32>,
    scales: Vec<[f32; 2]>,
    group: usize,
}

impl QuantizedRow {
    fn of(w: &Weight, row: usize) -> Self {
        let (format, group) = w.quant_format().unwrap();
        let number = |step: usize| match format {
            QuantFormat::E4m3 => crate::weight::e4m3_part(w.quant(row, step)),
            QuantFormat::E2m1 => crate::weight::E2M1[usize::from(w.quant(row, step))],
            QuantFormat::Iq4 => crate::weight::IQ4[usize::from(w.quant(row, step))],
            _ => f32::from(w.quant(row, step)),
        };
        let numbers = (0..w.k()).map(number).collect();
        let scales = (0..w.k().div_ceil(group)).map(|i| w.scale(row, i)).collect();
        Self { numbers, scales, group }
    }

    /// The reference for an output over quantized weights.
    fn sum(&self, x: &[f32], chain: fn(&[f32], &[f32]) -> f32) -> f32 {
        let groups = x.chunks(self.group).zip(self.numbers.chunks(self.group));
        let mut total = 0f32;
        for ((x, numbers), [scale, min]) in groups.zip(&self.scales) {
            // These are the orders of the kernels: segments of 128 steps, and sixteen chains whose halves are
            // added.
            for (x, numbers) in x.chunks(128).zip(numbers.chunks(128)) {
                let mut lanes = [0f32; 16];
                x.iter().enumerate().for_each(|(step, x)| lanes[step % 16] += x);
                total = chain(x, numbers).mul_add(*scale, total);
                total = halves_sum(lanes).mul_add(*min, total);
            }
        }
        total
    }
}

/// The reference for an output over a table; `numbers` are the row's dequantized values.
fn table_sum(x: &[f32], numbers: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    for (step, (x, number)) in x.iter().zip(numbers).enumerate() {
        lanes[step % 16] = x.mul_add(*number, lanes[step % 16]);
    }
    halves_sum(lanes)
}

fn halves_sum(mut lanes: [f32; 16]) -> f32 {
    for half in [8, 4, 2, 1] {
        (0..half).for_each(|lane| lanes[lane] += lanes[lane + half]);
    }
    lanes[0]
}

/// The chain of [`linear_reference`] in a matrix unit's order of summation.
fn tiles_sum(x: &[f32], w: &[f32]) -> f32 {
    let words = |steps: &[f32]| -> Vec<f32> {
        let high = |pair: &[f32]| pair[0].to_bits();
        let low = |pair: &[f32]| pair.get(1).map_or(0, |low| low.to_bits() >> 16);
        steps.chunks(2).map(|pair| f32::from_bits(high(pair) | low(pair))).collect()
    };
    let lines = x.chunks(2 * TILE_LINE).zip(w.chunks(2 * TILE_LINE));
    lines.fold(0f32, |sum, (x, w)| tile_sum(sum, words(x).into_iter().zip(words(w))))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

#[test]
fn all_paths_give_the_definitions_bits() {
    // Outputs around whole panels, even and odd numbers of steps, and numbers of rows around each tile's.
    for (n, k) in [(1, 1), (32, 2), (33, 5), (96, 191), (290, 193), (31, 400), (257, 64)] {
        let rows = test_values(n * k, (n + k) as u64);
        let bias = test_values(n, 3);
        let x = test_values(40 * k, 5);
        for dtype in DTYPES {
            let w = weight(&rows, n, k, dtype);
            let want = [Expected::new(&x, &w, None), Expected::new(&x, &w, Some(&bias))];
            for isa in Isa::all_and_tiles() {
                for m in 1..=40 {
                    for (bias, want) in [None, Some(&bias[..])].into_iter().zip(&want) {
                        let got = multiply(isa, &x[..m * k], &w, bias);
                        assert_eq!(
                            bits(&got),
                            want.on(isa, m * n),
                            "{isa:?} {dtype:?} m={m} n={n} k={k}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn quantized_weights_give_the_definitions_bits_on_all_paths() {
    use QuantFormat::{E4m3, Table, U2, U3, U4, U5, U6, U8};
    let shapes = [
        (33, 70, U4, 32, false),
        (96, 384, U4, 128, true),
        (40, 9, U4, 9, false),
        (34, 150, U4, 6, false),
        (96, 150, U2, 32, true),
        (33, 193, U3, 193, false),
        (96, 384, U5, 128, true),
        (40, 9, U5, 9, false),
        (290, 150, U5, 32, false),
        (33, 193, U6, 193, true),
        (34, 150, U6, 6, false),
        (290, 192, U6, 32, false),
        (290, 192, U8, 32, true),
        (32, 300, U8, 2, false),
        (40, 700, U8, 192, false),
        (65, 193, E4m3, 193, false),
        (40, 256, E4m3, 64, false),
        (33, 801, E4m3, 801, false),
        (70, 131, Table, 131, true),
        (33, 17, Table, 17, false),
        (97, 352, Table, 352, false),
        (97, 1500, Table, 1500, false),
        (3, 5, Table, 5, false),
    ];
    for (n, k, format, group, backwards) in shapes {
        for rounds in [false, true] {
            all_paths_agree(&quantized((n, k), format, group, backwards, rounds));
        }
    }
}

#[test]
fn scales_in_all_forms_give_the_definitions_bits_on_all_paths() {
    use Dtype::{Bf16, F16, F32};
    use OffsetForm::{None as NoOffset, Own, ZeroPoint, ZeroPoints};
    use SubScaleForm::{I6, I8, U4, U6};
    for (n, k, format, group, dtype, offsets, blocks) in [
        (33, 512, QuantFormat::U4, 32, F16, Own, Some((256, U6))),
        (290, 768, QuantFormat::U8, 16, F32, ZeroPoint(128), Some((256, I8))),
        (40, 192, QuantFormat::U8, 32, F32, Own, Some((64, I8))),
        (33, 512, QuantFormat::U2, 16, F16, Own, Some((256, U4))),
        (40, 512, QuantFormat::U3, 16, F16, ZeroPoint(4), Some((256, I6))),
        (33, 512, QuantFormat::U5, 32, Bf16, Own, Some((256, U6))),
        (65, 768, QuantFormat::U6, 16, F16, ZeroPoints, Some((256, I8))),
        (65, 480, QuantFormat::U6, 16, F16, ZeroPoints, Some((240, I6))),
        (32, 480, QuantFormat::U4, 16, Bf16, NoOffset, Some((48, I8))),
        (65, 480, QuantFormat::U5, 16, F16, Own, Some((48, U6))),
        (33, 512, QuantFormat::U4, 32, F16, ZeroPoint(8), None),
        (290, 96, QuantFormat::U8, 32, F16, ZeroPoint(128), None),
        (40, 192, QuantFormat::U5, 32, Bf16, ZeroPoint(16), None),
        (33, 51, QuantFormat::U4, 51, F16, ZeroPoint(8), None),
        (65, 320, QuantFormat::U8, 160, F32, ZeroPoint(0), None),
        (97, 384, QuantFormat::U4, 128, F16, ZeroPoints, None),
        (97, 384, QuantFormat::U8, 128, Bf16, ZeroPoints, None),
        (33, 90, QuantFormat::U4, 16, F32, ZeroPoints, None),
        (40, 192, QuantFormat::U4, 32, F16, Own, None),
        (33, 51, QuantFormat::U5, 51, Bf16, Own, None),
        (65, 320, QuantFormat::E4m3, 160, F32, NoOffset, None),
        (65, 96, QuantFormat::E2m1, 32, Bf16, NoOffset, None),
        (33, 90, QuantFormat::E2m1, 16, F32, Own, None),
        (65, 96, QuantFormat::Iq4, 32, F16, NoOffset, None),
        (33, 512, QuantFormat::Iq4, 32, F16, NoOffset, Some((256, I6))),
        (40, 90, QuantFormat::Iq4, 16, F32, Own, None),
        (65, 96, QuantFormat::U6, 32, Bf16, NoOffset, None),
    ] {
        let blocks = blocks.map(|(columns, sub_scales)| Blocks { columns, sub_scales });
        for rounds in [false, true] {
            let groups = (group, ScaleForm { dtype, offsets, blocks });
            all_paths_agree(&quantized_by((n, k), format, groups, None, rounds));
        }
    }
}

/// Products with a quantized weight have the reference's bits on every path.
fn all_paths_agree(w: &Weight) {
    let (n, k) = (w.n(), w.k());
    let (x, bias) = (test_values(40 * k, 5), test_values(n, 3));
    let want = Expected::new(&x, w, Some(&bias));
    for isa in Isa::all_and_tiles() {
        for m in (1..=16).chain([28, 33, 40]) {
            let got = multiply(isa, &in_order(&x[..m * k], w), w, Some(&bias));
            let rounds = w.rounds_activations();
            let layout = w.layout();
            assert_eq!(
                bits(&got),
                want.on(isa, m * n),
                "{isa:?} {layout:?} rounds={rounds} m={m} n={n}"
            );
        }
    }
}

#[test]
fn sums_over_quantized_weights_are_near_those_over_dequantized_ones() {
    let (m, n, k) = (3, 40, 1000);
    let x = test_values(m * k, 5);
    let mut row = vec![0.0; k];
    for (format, group) in [
        (QuantFormat::U4, 32),
        (QuantFormat::U2, 64),
        (QuantFormat::U3, 32),
        (QuantFormat::U5, 16),
        (QuantFormat::U6, 128),
        (QuantFormat::U8, 128),
        (QuantFormat::E4m3, k),
        (QuantFormat::E2m1, 32),
        (QuantFormat::Table, k),
    ] {
        // A bf16 has eight bits, an f32 has 24, and long sums lose a few more.
        for (rounds, limit) in [(false, 2f32.powi(-20)), (true, 2f32.powi(-8))] {
            let w = quantized((n, k), format, group, false, rounds);
            let y = multiply(Isa::detect(), &x, &w, None);
            for (x, y) in x.chunks_exact(k).zip(y.chunks_exact(n)) {
                for (i, y) in y.iter().enumerate() {
                    w.read_row(i, &mut row);
                    let error = (linear_reference(x, &row, None) - y).abs();
                    let size: f32 = x.iter().zip(&row).map(|(x, w)| (x * w).abs()).sum();
                    assert!(
                        error < size * limit,
                        "{format:?} rounds={rounds}: {y} is off by {error}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_gate_gives_the_bits_of_both_steps() {
    let (n, k) = (192, 150);
    let (x, bias) = (test_values(600 * k, 2), test_values(n, 3));
    let plain = DTYPES.map(|dtype| weight(&test_values(n * k, 1), n, k, dtype));
    let int4 = quantized((n, k), QuantFormat::U4, 32, false, true);
    for w in plain.iter().chain([&int4]) {
        for isa in Isa::all_and_tiles() {
            for (m, bias) in [(1, None), (37, Some(&bias[..])), (600, None)] {
                let product = multiply(isa, &x[..m * k], w, bias);
                let product = Tensor::from_vec(product, (m, n), &Device::Cpu).unwrap();
                let want = gated_activation(&product, Activation::GeluTanh).unwrap();
                let want = want.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                let gate = Some(Activation::GeluTanh);
                let got = super::multiply(isa, &x[..m * k], w, bias, gate);
                assert_eq!(bits(&got), bits(&want), "{isa:?} {:?} m={m}", w.layout().order);
            }
        }
    }
    // The wrapper takes both steps for few rows, for panels that are not whole, and for tables.
    for (m, n, has_tables) in [(3, 64, false), (40, 64, false), (40, 30, false), (40, 64, true)] {
        let w = match has_tables {
            true => quantized((n, k), QuantFormat::Table, k, false, false),
            false => weight(&test_values(n * k, 1), n, k, DType::BF16),
        };
        let x = Tensor::from_slice(&x[..m * k], (m, k), &Device::Cpu).unwrap();
        let want = gated_activation(&linear(&x, &w, None).unwrap(), Activation::Silu).unwrap();
        let got = gated_linear(&x, &w, None, Activation::Silu).unwrap();
        assert_eq!(got.dims(), [m, n / 2]);
        assert_eq!(got.to_vec2::<f32>().unwrap(), want.to_vec2::<f32>().unwrap());
    }
}

#[test]
fn a_matrix_units_order_is_near_the_definitions() {
    let (m, n, k) = (5, 40, 1000);
    let w = weight(&test_values(n * k, 1), n, k, DType::BF16);
    let want = Expected::new(&test_values(m * k, 2), &w, None);
    let tiles = want.tiles.unwrap();
    assert_ne!(want.chains, tiles, "an order of its own");
    for (chain, tile) in want.chains.iter().zip(tiles) {
        let error = (f32::from_bits(*chain) - f32::from_bits(tile)).abs();
        assert!(error < 1e-4, "off by {error}");
    }
}

/// Table indices `[n][k]` for tables `[n][16]`.
fn with_tables((n, k): (usize, usize), bytes: &[u8], tables: &[f32]) -> WeightBuilder {
    let mut builder =
        Weight::quantized_builder(n, k, QuantFormat::Table, k, ScaleForm::F32).unwrap();
    let rows = QuantizedRows {
        format: QuantFormat::Table,
        group: k,
        bytes,
        scales: tables,
        offsets: Offsets::None,
        sub_scales: None,
        inputs: None,
    };
    builder.write_quantized(0, rows).unwrap();
    builder
}

#[test]
fn a_sparse_part_is_added() {
    let (n, k) = (600, 48);
    let mut builder = with_tables((n, k), &vec![3; n * k], &test_values(n * 16, 1));
    // Outputs 500 to 503, of which the second has no entries.
    let part = SparseRows {
        starts: &[0, 2, 2, 3, 4],
        inputs: &[47, 0, 5, 5],
        values: &[0.5, -2.0, 3.0, 0.25],
    };
    builder.write_sparse(500, part).unwrap();
    let w = builder.finish().unwrap();
    let x = Tensor::new(test_values(3 * k, 2), &Device::Cpu).unwrap().reshape((3, k)).unwrap();
    let y = linear(&x, &w, None).unwrap().to_vec2::<f32>().unwrap();
    let x = x.to_vec2::<f32>().unwrap();
    let mut row = vec![0.0; k];
    for output in 0..n {
        w.read_row(output, &mut row);
        assert_eq!(row[5] != row[6], matches!(output, 502 | 503), "output {output}");
        for (x, y) in x.iter().zip(&y) {
            let error = (linear_reference(x, &row, None) - y[output]).abs();
            assert!(error < 1e-5, "output {output} is off by {error}");
        }
    }
    let builder =
        || Weight::quantized_builder(4, k, QuantFormat::Table, k, ScaleForm::F32).unwrap();
    for wrong in [
        SparseRows { inputs: &[48, 0, 5, 5], ..part },
        SparseRows { starts: &[0, 2, 1, 3, 4], ..part },
        SparseRows { starts: &[0, 5], ..part },
        SparseRows { values: &[1.0], ..part },
        SparseRows { starts: &[], ..part },
    ] {
        assert!(builder().write_sparse(0, wrong).is_err(), "{wrong:?}");
    }
    assert!(matches!(builder().write_sparse(1, part), Err(Error::OutOfRange { .. })));
}

#[test]
fn many_rows_and_any_number_of_threads_give_the_same_bits() {
    let (m, n, k) = (512, 200, 450);
    let rows = test_values(n * k, 1);
    let x = test_values(m * k, 2);
    for dtype in DTYPES {
        let w = weight(&rows, n, k, dtype);
        let want = Expected::new(&x, &w, None);
        for threads in [1, 2, 3, 8] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for isa in Isa::all_and_tiles() {
                for m in [1, 3, 16, 100, m] {
                    let got = pool.install(|| multiply(isa, &x[..m * k], &w, None));
                    assert_eq!(
                        bits(&got),
                        want.on(isa, m * n),
                        "{isa:?} {dtype:?} m={m}, {threads} threads"
                    );
                }
            }
        }
    }
}

#[test]
fn groups_of_rows_give_the_same_bits() {
    // More rows than one packed group holds.
    let (m, n, k) = (150, 40, 20_001);
    let w = weight(&test_values(n * k, 1), n, k, DType::BF16);
    let x = test_values(m * k, 2);
    let want = Expected::new(&x, &w, None);
    for isa in Isa::all_and_tiles() {
        assert_eq!(bits(&multiply(isa, &x, &w, None)), want.on(isa, m * n), "{isa:?}");
    }
}

#[test]
fn infinite_weights_do_not_meet_padding() {
    let (n, k) = (3, 3);
    let numbers = weight(&[f32::INFINITY; 9], n, k, DType::BF16);
    let tables = with_tables((n, k), &[0; 9], &[f32::INFINITY; 48]).finish().unwrap();
    let x = vec![1.0; 6 * k];
    for w in [numbers, tables] {
        for isa in Isa::all_and_tiles() {
            for m in 1..=6 {
                let y = multiply(isa, &x[..m * k], &w, None);
                assert!(y.iter().all(|y| *y == f32::INFINITY), "{isa:?} m={m}: {y:?}");
            }
        }
    }
}

#[test]
fn the_wrapper_checks_its_operands() {
    let device = &Device::Cpu;
    let w = weight(&test_values(12, 1), 4, 3, DType::F32);
    let x = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], device).unwrap();
    let bias = Tensor::new(&[1f32, 2., 3., 4.], device).unwrap();
    let y = linear(&x, &w, Some(&bias)).unwrap();
    assert_eq!(y.dims(), [2, 4]);
    let data: Vec<f32> = x.flatten_all().unwrap().to_vec1().unwrap();
    let y: Vec<f32> = y.flatten_all().unwrap().to_vec1().unwrap();
    let want = Expected::new(&data, &w, Some(&[1., 2., 3., 4.]));
    assert_eq!(bits(&y), want.on(Isa::detect(), 8));
    assert_eq!(linear(&x.narrow(0, 0, 0).unwrap(), &w, None).unwrap().dims(), [0, 4]);

    let wide = Tensor::zeros((2, 4), DType::F32, device).unwrap();
    assert!(matches!(linear(&wide, &w, None), Err(Error::Shape { operand: "x", .. })));
    let halves = x.to_dtype(DType::BF16).unwrap();
    assert!(matches!(linear(&halves, &w, None), Err(Error::DType { found: DType::BF16, .. })));
    let strided = wide.narrow(1, 0, 3).unwrap();
    assert!(matches!(linear(&strided, &w, None), Err(Error::NotContiguous { .. })));
    let short = bias.narrow(0, 0, 3).unwrap();
    assert!(matches!(linear(&x, &w, Some(&short)), Err(Error::Shape { operand: "bias", .. })));
}
