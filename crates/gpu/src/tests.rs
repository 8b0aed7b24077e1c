//! Tests of the reference implementations behind the device's operations, for cases that the models' goldens do not
//! cover.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};

use candlepower_kernels::sampling::{
    Penalties, SamplingRow, logprobs_of, sample_row_reference, uniform,
};
use candlepower_kernels::{
    Activation, Experts, Gating, KvCacheConfig, LinearAttention, LinearAttentionDims, OffsetForm,
    Offsets, QuantFormat, QuantizedRows, RopeStyle, RopeTable, ScaleForm, SequenceState,
    SparseRows, StateConfig, UpdateRule, Weight, WeightRows, experts_reference,
    linear_attention_reference,
};

use super::*;

fn integers(values: &[u32], dims: &[usize]) -> Tensor {
    Tensor::from_slice(values, dims, &Device::Cpu).unwrap()
}

fn row(temperature: f32, top: Option<u32>) -> SamplerRow {
    SamplerRow {
        logits_row: Some(1),
        temperature,
        top_k: Some(7),
        top_p: 0.9,
        min_p: 0.01,
        repetition: 1.5,
        presence: 0.25,
        frequency: 0.5,
        counts_slot: Some(1),
        biases: (1, 3),
        mask_row: Some(1),
        top_logprobs: top,
        seed: 1 << 40 | 9,
        output_index: 3,
    }
}

/// Samples with all parameters that a row can have, and the effect of the first sample's count on the next.
#[test]
fn a_sample_reads_its_own_tables_and_is_counted() {
    let vocab = 40;
    let logits: Vec<f32> = (0..2 * vocab).map(|i| ((i * 37) % 23) as f32 / 4.0).collect();
    let tensor = Tensor::from_slice(&logits, (2, vocab), &Device::Cpu).unwrap();
    let counts = TokenCounts::new(2, vocab, &Device::Cpu).unwrap();
    // There is no slot 9, and below no token 400. A device cannot report them, so both are ignored.
    counts.add_generated(&integers(&[0, 1, 1, 9], &[4]), &integers(&[1, 2, 2, 3], &[4])).unwrap();
    counts.add_prompt(&integers(&[1, 1], &[2]), &integers(&[5, 400], &[2])).unwrap();
    let (ids, bits) = ([4, 6, 7], [9.0f32, 2.0, f32::NEG_INFINITY].map(f32::to_bits));
    let (ids, bits) = (integers(&ids, &[3]), integers(&bits, &[3]));
    let mask = [0x0fff_fff0, 0xff];
    let masks = integers(&[0, 0, mask[0], mask[1]], &[2, 2]);
    let seen = HashMap::from([(2, 2), (5, 0)]);
    let wanted = |seen: &HashMap<u32, u32>| {
        let params = SamplingRow {
            temperature: 0.8,
            top_k: Some(7),
            top_p: 0.9,
            min_p: 0.01,
            uniform: uniform(1 << 40 | 9, 3),
            penalties: Some(Penalties { repetition: 1.5, presence: 0.25, frequency: 0.5, seen }),
            logit_bias: &[(6, 2.0)],
            banned: vec![7],
            mask: Some(&mask),
            logprobs: None,
        };
        sample_row_reference(&logits[vocab..], &params).unwrap()
    };
    let sample = || {
        let table = row(0.8, Some(2)).words();
        let padding = SamplerRow { logits_row: None, ..row(0.0, None) }.words();
        let batch = SamplingBatch {
            rows: &integers(&[table, padding].concat(), &[2, SamplerRow::WORDS]),
            counts: Some(&counts),
            biases: Some((&ids, &bits)),
            masks: Some(&masks),
        };
        let out = SamplingOutput::new(2, 3, &Device::Cpu).unwrap();
        let scratch = SamplingScratch::new(2, vocab, &Device::Cpu).unwrap();
        sample(&tensor, &batch, &scratch, &out).unwrap();
        let report: Vec<Vec<u32>> = out.report.to_vec2().unwrap();
        (out.token_ids.to_vec1::<u32>().unwrap(), report)
    };
    let (tokens, report) = sample();
    assert_eq!(tokens, [wanted(&seen), u32::MAX]);
    assert_eq!(report[1], [u32::MAX; 9]);
    let own = Tensor::from_slice(&logits[vocab..], (1, vocab), &Device::Cpu).unwrap();
    let logprobs = &logprobs_of(&own, &tokens[..1], 2).unwrap()[0];
    assert_eq!(report[0][..3], [tokens[0], logprobs.logprob.to_bits(), logprobs.rank as u32]);
    assert_eq!(report[0][3..5], [logprobs.top[0].0, logprobs.top[0].1.to_bits()]);
    assert_eq!(report[0][7..], [u32::MAX; 2]);
    let mut seen = seen;
    *seen.entry(tokens[0]).or_default() += 1;
    assert_eq!(sample().0[0], wanted(&seen), "the first sample counts");
    counts.reset(&integers(&[1], &[1])).unwrap();
    assert_eq!(sample().0[0], wanted(&HashMap::new()), "counts begin anew");
}

#[test]
fn tokens_of_the_previous_step_are_looked_up() {
    let tokens = integers(&[5, 1 << 31 | 1, 1 << 31, 1 << 31 | 2], &[4]);
    resolve_tokens(&tokens, &integers(&[70, 80], &[2])).unwrap();
    assert_eq!(tokens.to_vec1::<u32>().unwrap(), [5, 80, 70, u32::MAX]);
}

#[test]
fn uploads_replace_what_views_show() {
    let mut staging = Staging::new(8, &Device::Cpu).unwrap();
    let view = staging.view(4, &[2, 2]).unwrap();
    staging.upload(&[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    assert_eq!(view.to_vec2::<u32>().unwrap(), [[5, 6], [7, 8]]);
    staging.upload(&[9; 6]).unwrap();
    assert_eq!(view.to_vec2::<u32>().unwrap(), [[9, 9], [7, 8]]);
    assert!(matches!(staging.upload(&[0; 9]), Err(Error::OutOfRange { value: 9, .. })));
    let mut readback = Readback::new(4, &Device::Cpu).unwrap();
    assert!(readback.finish().unwrap().is_empty());
    readback.start(&view).unwrap();
    staging.upload(&[0; 8]).unwrap();
    assert_eq!(readback.finish().unwrap(), [9, 9, 7, 8], "as it was when the copy was queued");
}

#[test]
fn blocks_are_copied_in_every_layer() {
    let config = KvCacheConfig {
        num_layers: 2,
        num_blocks: 3,
        block_size: 16,
        num_kv_heads: 1,
        head_dim: 8,
        latent: None,
    };
    let cache = PagedCache::new(config, DType::BF16, &Device::Cpu).unwrap();
    let keys = &cache.layer(1).unwrap().keys;
    let ones = Tensor::ones((1, 1, 16, 8), DType::BF16, &Device::Cpu).unwrap();
    keys.slice_set(&ones, 0, 2).unwrap();
    cache.copy_blocks(&integers(&[2, 0, 1, 7], &[2, 2])).unwrap();
    let sums: Vec<f32> = (0..3)
        .map(|block| keys.narrow(0, block, 1).unwrap().to_dtype(DType::F32).unwrap())
        .map(|block| block.sum_all().unwrap().to_scalar().unwrap())
        .collect();
    assert_eq!(sums, [128.0, 0.0, 128.0]);
}

/// Blocks are swapped out to host memory and swapped in to other blocks, in an FP8 cache. Pairs with a missing block
/// are ignored.
#[test]
fn blocks_are_brought_out_and_back_in_every_layer() {
    let (num_layers, num_blocks, block_size) = (2, 3, 16);
    let config = KvCacheConfig {
        num_layers,
        num_blocks,
        block_size,
        num_kv_heads: 1,
        head_dim: 8,
        latent: None,
    };
    let cache = PagedCache::new(config, DType::F8E4M3, &Device::Cpu).unwrap();
    let host = HostBlocks::new(&cache, 2).unwrap();
    let values = &cache.layer(1).unwrap().values;
    let numbers: Vec<f32> = (0..3 * 128).map(|i| (1 + i / 128) as f32).collect();
    let numbers = Tensor::from_slice(&numbers, (3, 1, 16, 8), &Device::Cpu).unwrap();
    values.slice_set(&numbers.to_dtype(DType::F8E4M3).unwrap(), 0, 0).unwrap();
    cache.bring_out(&host, &integers(&[2, 1, 0, 0, 3, 0, 0, 2], &[4, 2])).unwrap();
    cache.bring_back(&host, &integers(&[1, 0, 0, 2], &[2, 2])).unwrap();
    let blocks: Vec<Vec<f32>> =
        values.to_dtype(DType::F32).unwrap().reshape((3, 128)).unwrap().to_vec2().unwrap();
    let want = [3.0, 2.0, 1.0];
    assert!(blocks.iter().zip(want).all(|(block, want)| block.iter().all(|x| *x == want)));
    let keys = &cache.layer(0).unwrap().keys.to_dtype(DType::F32).unwrap();
    assert_eq!(keys.sum_all().unwrap().to_scalar::<f32>().unwrap(), 0.0);
}

/// The device's form of a quantized weight dequantizes to the same values, bit for bit, also with inputs in another
/// order and with padding.
#[test]
fn packed_matrices_have_the_dequantized_values_of_the_weight() {
    let kinds = {
        use QuantFormat::{E2m1, E4m3, Table, U2, U3, U4, U5, U6, U8};
        [U2, U3, U4, U5, U6, U8, E4m3, E2m1, Table]
    };
    for format in kinds {
        for (n, k, group) in [(1usize, 6usize, 6), (40, 96, 16), (33, 150, 48), (16, 64, 64)] {
            let group = if format == QuantFormat::Table { k } else { group };
            // Without bit 3 of the largest E4M3 value there is no NaN.
            let most = if format == QuantFormat::E4m3 { 0x77 } else { format.most() };
            let bytes: Vec<u8> = (0..n * k).map(|i| (i * 37 % 251) as u8 & most).collect();
            let count = if format == QuantFormat::Table { n * 16 } else { n * k.div_ceil(group) };
            let scales: Vec<f32> = (0..count).map(|i| (i % 13) as f32 / 7.0 - 0.9).collect();
            let offsets: Vec<f32> = match format {
                QuantFormat::Table => Vec::new(),
                _ => (0..count).map(|i| (i % 5) as f32 / 3.0).collect(),
            };
            let order: Vec<u32> = (0..k as u32).rev().collect();
            let inputs = Some(&order[..]);
            let rows = QuantizedRows {
                format,
                group,
                bytes: &bytes,
                scales: &scales,
                offsets: if offsets.is_empty() { Offsets::None } else { Offsets::Own(&offsets) },
                sub_scales: None,
                inputs,
            };
            let mut builder =
                Weight::quantized_builder(n, k, format, group, ScaleForm::F32).unwrap();
            builder.write_quantized(0, rows).unwrap();
            let starts: Vec<u32> = (0..=n as u32).collect();
            let (inputs, values) = (vec![3; n], vec![0.5; n]);
            let sparse = SparseRows { starts: &starts, inputs: &inputs, values: &values };
            builder.write_sparse(0, sparse).unwrap();
            let weight = builder.finish().unwrap();
            for heads in [None, Some(HeadPadding { len: 2, padded: 5 })] {
                let packed = PackedMatrix::new(&weight, heads, &Device::Cpu).unwrap();
                let found = packed.dequantized().unwrap();
                let mut want = vec![0.0; k];
                for (row, found) in found.chunks_exact(found.len() / n).enumerate() {
                    weight.read_row(row, &mut want);
                    let padded = |(input, number): (usize, &f32)| match heads {
                        Some(heads) => {
                            (input / heads.len * heads.padded + input % heads.len, *number)
                        }
                        None => (input, *number),
                    };
                    let mut left = found.to_vec();
                    for (input, number) in want.iter().enumerate().map(padded) {
                        assert_eq!(left[input], number, "{format:?} [{n}, {k}] row {row}");
                        left[input] = 0.0;
                    }
                    assert!(left.iter().all(|number| *number == 0.0), "between heads");
                }
            }
        }
    }
    let mut numbers = Weight::builder(2, 2, DType::F32).unwrap();
    numbers.write_rows(0, WeightRows { dtype: DType::F32, bytes: &[0; 16] }).unwrap();
    let numbers = numbers.finish().unwrap();
    assert!(PackedMatrix::new(&numbers, None, &Device::Cpu).is_err());
    let odd = Weight::quantized_builder(2, 24, QuantFormat::U4, 6, ScaleForm::F32)
        .unwrap()
        .finish_with_zeros();
    let error = PackedMatrix::new(&odd, None, &Device::Cpu).unwrap_err();
    assert!(matches!(error, Error::Parameter { parameter: "weight group", value: 6, .. }));
}

/// Routing, products and sum, one after the other, compute the MoE layer: with tiles of both sizes, and with unused
/// experts.
#[test]
fn experts_step_by_step_are_the_layer() {
    let (hidden, inner) = (24, 8);
    let numbers = |count: usize, seed: usize| -> Vec<f32> {
        (0..count).map(|i| (((i + seed) * 7919 + 13) % 10_007) as f32 / 5003.0 - 1.0).collect()
    };
    let tensor = |numbers: &[f32], dims: [usize; 2]| {
        Tensor::from_slice(numbers, dims.to_vec(), &Device::Cpu).unwrap()
    };
    for (count, top_k, renormalize, tokens) in
        // The last two steps have 35 and 200 rows an expert on average, which take the larger tiles.
        [
            (5, 2, true, 1),
            (8, 8, false, 7),
            (40, 3, false, 9),
            (2, 1, true, 70),
            (3, 2, true, 300),
        ]
    {
        let of_experts = |seed| {
            let numbers = Tensor::from_vec(numbers(count, seed), count, &Device::Cpu).unwrap();
            (!renormalize).then_some(numbers)
        };
        let (bias, scales) = (of_experts(5), of_experts(6));
        let biases = |dims: &[usize], seed| {
            let numbers = numbers(dims.iter().product(), seed);
            (count == 8).then(|| Tensor::from_vec(numbers, dims, &Device::Cpu).unwrap())
        };
        let layer = Experts {
            router: numbers(count * hidden, 3),
            router_bias: biases(&[count], 11),
            gate_up_bias: biases(&[count, 2 * inner], 12),
            down_bias: biases(&[count, hidden], 13),
            gate_up: (0..count).map(|i| numbers(2 * inner * hidden, 31 * i)).collect::<Vec<_>>(),
            down: (0..count).map(|i| numbers(hidden * inner, 17 * i + 5)).collect(),
            top_k,
            gating: Gating { bias, renormalize, scales, ..Gating::SOFTMAX },
            gated: true,
            activation: if count == 8 { Activation::SwigluOai } else { Activation::Silu },
        };
        let matrices = |all: &[Vec<f32>], dims| {
            let all = all.iter().map(|numbers| Matrix::Rows(tensor(numbers, dims)));
            ExpertMatrices::new(all.collect()).unwrap()
        };
        let x = numbers(tokens * hidden, 99);
        let rows = tensor(&x, [tokens, hidden]);
        let zeros = |rows, width| tensor(&vec![0.0; rows * width], [rows, width]);
        let routing = Routing::new(300, count, top_k, &Device::Cpu).unwrap().of(tokens).unwrap();
        let pairs = tokens * top_k;
        let (scores, gate_up, activated) =
            (zeros(tokens, count), zeros(pairs, 2 * inner), zeros(pairs, inner));
        let matmul = Matmul::new(&Device::Cpu, tokens, DType::F32, 0, 0).unwrap();
        let router = Matrix::Rows(tensor(&layer.router, [count, hidden]));
        matmul.run(&rows, &router, layer.router_bias.as_ref(), &scores).unwrap();
        route(&scores, &layer.gating, &routing).unwrap();
        let up = matrices(&layer.gate_up, [2 * inner, hidden]);
        let bias = layer.gate_up_bias.as_ref();
        expert_product(&rows, &up, bias, &routing, &gate_up).unwrap();
        gated_activation(&gate_up, layer.activation, &activated).unwrap();
        let (results, out) = (zeros(pairs, hidden), zeros(tokens, hidden));
        let down = matrices(&layer.down, [hidden, inner]);
        let bias = layer.down_bias.as_ref();
        expert_product(&activated, &down, bias, &routing, &results).unwrap();
        combine_experts(&results, &routing, false, &out).unwrap();
        for (x, found) in x.chunks(hidden).zip(out.to_vec2::<f32>().unwrap()) {
            assert_eq!(found, experts_reference(x, x, &layer));
        }
        let wrong = expert_product(&zeros(pairs + 1, hidden), &up, None, &routing, &gate_up);
        assert!(matches!(wrong, Err(Error::Shape { operand: "x", .. })));
        let wrong = expert_product(&activated, &up, None, &routing, &gate_up);
        assert!(matches!(wrong, Err(Error::Shape { operand: "weights", .. })));
    }
    for (experts, top_k, parameter) in [(8, 9, "top_k"), (64, 33, "top_k"), (8193, 1, "experts")] {
        let error = Routing::new(1, experts, top_k, &Device::Cpu).unwrap_err();
        assert!(matches!(error, Error::Parameter { parameter: found, .. } if found == parameter));
    }
}

/// The CPU refuses what a GPU refuses, so that tests find such calls.
#[test]
fn views_in_the_midst_of_a_vector_are_refused() {
    let x = Tensor::zeros(64, DType::BF16, &Device::Cpu).unwrap();
    assert!(scale_and_cap(&x.narrow(0, 8, 8).unwrap(), 1.0, Some(5.0)).is_ok());
    // Four elements are 8 bytes, and kernels read 16 at a time.
    let error = scale_and_cap(&x.narrow(0, 4, 8).unwrap(), 1.0, None).unwrap_err();
    assert!(matches!(error, Error::Misaligned { operand: "x", .. }));
    let halves = Tensor::zeros((2, 8), DType::F16, &Device::Cpu).unwrap();
    let norm = RmsNorm {
        weight: &Tensor::zeros(8, DType::BF16, &Device::Cpu).unwrap(),
        form: NormWeight::OnePlus,
        eps: 1e-6,
        next: None,
    };
    assert!(matches!(rms_norm(&halves, &norm, &halves), Err(Error::DType { .. })));
    assert!(Graph::capture(&Device::Cpu, || Ok(())).is_err());
}

/// Sequences that start and sequences that continue, in pools of all dtypes, together with padding and with invalid
/// sequences.
#[test]
fn linear_attention_keeps_the_states_of_their_sequences() {
    let dims = LinearAttentionDims {
        key_heads: 1,
        value_heads: 2,
        tiled: false,
        key_dim: 32,
        value_dim: 32,
        kernel: 4,
    };
    let numbers = |dims: &[usize], seed: usize| {
        let count = dims.iter().product();
        let numbers = (0..count).map(|i| ((i * 37 + seed) % 29) as f32 / 16.0 - 0.875);
        Tensor::from_vec(numbers.collect::<Vec<f32>>(), dims, &Device::Cpu).unwrap()
    };
    let net = LinearAttention {
        dims,
        conv: numbers(&[dims.channels(), 4], 1),
        conv_bias: None,
        a_log: numbers(&[2], 2),
        dt_bias: numbers(&[2], 3),
        rule: UpdateRule::Delta { norm: numbers(&[32], 4), eps: 1e-6 },
    };
    let config = StateConfig { num_layers: 2, num_slots: 3, dims: dims.into() };
    let flat = |tensor: &Tensor| -> Vec<f32> {
        tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    };
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let pool = StatePool::new(config, 8, dtype, &Device::Cpu).unwrap();
        // All values are exact in bf16.
        let rows = |tokens: usize, seed| {
            let rows = [dims.width(), net.gates()].map(|width| numbers(&[tokens, width], seed));
            rows.map(|rows| rows.to_dtype(dtype).unwrap())
        };
        let run = |[input, gates]: &[Tensor; 2], starts: &[u32], slots: &[u32], first: &[u32]| {
            let tokens = input.dims()[0];
            let out = Tensor::full(7f32, (tokens, dims.values()), &Device::Cpu).unwrap();
            let out = out.to_dtype(dtype).unwrap();
            // Any position but 0 continues a sequence.
            let mut positions = vec![9; tokens];
            starts.iter().zip(first).for_each(|(start, first)| positions[*start as usize] = *first);
            let tables = StateTables {
                query_start: &integers(starts, &[starts.len()]),
                slots: &integers(slots, &[slots.len()]),
                positions: &integers(&positions, &[tokens]),
            };
            linear_attention(input, gates, &net, &pool, 1, &tables, &out).unwrap();
            flat(&out)
        };
        let mut state = SequenceState::zeros(&dims);
        let mut want = |[input, gates]: &[Tensor; 2], tokens: std::ops::Range<usize>| {
            let of = |rows: &Tensor| flat(&rows.narrow(0, tokens.start, tokens.len()).unwrap());
            let want = linear_attention_reference(&of(input), &of(gates), &net, &mut state);
            flat(
                &Tensor::from_vec(want.unwrap(), tokens.len() * 64, &Device::Cpu)
                    .unwrap()
                    .to_dtype(dtype)
                    .unwrap(),
            )
        };
        // The slot's previous content must be ignored.
        run(&rows(2, 9), &[0, 2], &[1], &[0]);
        let [first, second] = [rows(8, 5), rows(3, 6)];
        // The eighth token belongs to no sequence.
        let found = run(&first, &[0, 5, 6, 7], &[1, NO_SLOT, 3], &[0, 4, 4]);
        assert_eq!(found[..5 * 64], want(&first, 0..5), "{dtype:?}");
        assert!(found[5 * 64..6 * 64].iter().all(|x| *x == 0.0), "padding");
        assert!(found[6 * 64..7 * 64].iter().all(|x| x.is_nan()), "no slot of the pool");
        assert!(found[7 * 64..].iter().all(|x| *x == 7.0), "of no sequence");
        // Slot 3 does not exist, so two of the pairs are ignored.
        copy_states(&pool, &integers(&[1, 2, 3, 0, 1, 3], &[3, 2])).unwrap();
        let found = run(&second, &[0, 1, 2, 9], &[2, 1, 0], &[5, 5, 5]);
        assert_eq!(found[..64], want(&second, 0..1), "a copy goes on");
        assert!(found[2 * 64..].iter().all(|x| *x == 7.0), "of tokens that are not there");
        let state = pool.layer("test", 0).unwrap();
        assert!(flat(state.matrices()).iter().all(|x| *x == 0.0), "another layer");
        assert!(flat(&pool.layer("test", 1).unwrap().inputs)[..3 * 128].iter().all(|x| *x == 0.0));
    }
    for (wrong, parameter) in [
        (LinearAttentionDims { key_dim: 48, ..dims }, "key_dim"),
        (LinearAttentionDims { value_dim: 288, ..dims }, "value_dim"),
    ] {
        let config = StateConfig { dims: wrong.into(), ..config };
        let error = StatePool::new(config, 8, DType::BF16, &Device::Cpu).unwrap_err();
        assert!(matches!(error, Error::Parameter { parameter: found, .. } if found == parameter));
    }
    let error = StatePool::new(config, 8, DType::U32, &Device::Cpu).unwrap_err();
    assert!(matches!(error, Error::DType { operand: "dtype", .. }));
}

#[test]
fn gates_multiply_rows_in_place() {
    let tensor = |values: &[f32], dims: (usize, usize)| {
        Tensor::from_slice(values, dims, &Device::Cpu).unwrap().to_dtype(DType::BF16).unwrap()
    };
    let x = tensor(&[1.0, -2.0, 3.0, 4.0], (2, 2));
    sigmoid_gate(&x, &tensor(&[0.0, 100.0], (2, 1))).unwrap();
    let found: Vec<Vec<f32>> = x.to_dtype(DType::F32).unwrap().to_vec2().unwrap();
    assert_eq!(found, [[0.5, -1.0], [3.0, 4.0]]);
    sigmoid_gate(&x, &tensor(&[100.0, 0.0, -200.0, 0.0], (2, 2))).unwrap();
    let found: Vec<Vec<f32>> = x.to_dtype(DType::F32).unwrap().to_vec2().unwrap();
    assert_eq!(found, [[0.5, -0.5], [0.0, 2.0]]);
    let error = sigmoid_gate(&x, &tensor(&[0.0; 6], (2, 3))).unwrap_err();
    assert!(matches!(error, Error::Shape { operand: "gate", .. }));
}

/// A norm of v with padded heads, together with QK norm; and queries alone, where nothing else is written.
#[test]
fn values_are_normed_and_queries_may_come_alone() {
    let (heads, head_dim, len, tokens) = (2, 16, 12, 3);
    let config = KvCacheConfig {
        num_layers: 2,
        num_blocks: 2,
        block_size: 16,
        num_kv_heads: 1,
        head_dim,
        latent: None,
    };
    let tensor =
        |values: &[f32], dims: &[usize]| Tensor::from_slice(values, dims, &Device::Cpu).unwrap();
    let numbers = |count: usize, seed: usize| -> Vec<f32> {
        (0..count).map(|i| ((i * 37 + seed) % 29) as f32 / 16.0 - 0.875).collect()
    };
    let mut rows = numbers(tokens * 4 * head_dim, 3);
    rows.chunks_mut(head_dim).for_each(|head| head[len..].fill(0.0));
    let angles = numbers(8 * head_dim / 2, 5);
    let half = |f: fn(f32) -> f32| {
        let values: Vec<f32> = angles.iter().map(|angle| f(*angle)).collect();
        tensor(&values, &[8, head_dim / 2])
    };
    let rope = RopeTable::new(half(f32::cos), half(f32::sin), RopeStyle::Neox).unwrap();
    let (positions, slots) = (integers(&[1, 7, 2], &[3]), integers(&[17, NO_SLOT, 4], &[3]));
    let weight = tensor(&numbers(head_dim, 9), &[head_dim]);
    let qk_norm = QkNorm {
        q_weight: &weight,
        k_weight: Some(&weight),
        span: QkNormOperands::Head,
        form: NormWeight::OnePlus,
        eps: 1e-6,
    };
    let cache = PagedCache::new(config, DType::F32, &Device::Cpu).unwrap();
    let of_cache = || {
        let layer = cache.layer(1).unwrap();
        [&layer.keys, &layer.values].map(|t| t.flatten_all().unwrap().to_vec1::<f32>().unwrap())
    };
    let all = QkvToCache {
        qk_norm: Some(qk_norm),
        v_norm: Some(ValueNorm { eps: 1e-3, len }),
        rope: &rope,
        positions: &positions,
        slot_mapping: &slots,
        cache: Some((&cache, 1)),
        next: None,
    };
    let run = |rows: &[f32], operands: &QkvToCache<'_>| {
        let q = Tensor::zeros((tokens, heads, head_dim), DType::F32, &Device::Cpu).unwrap();
        let rows = tensor(rows, &[tokens, rows.len() / tokens]);
        qkv_to_cache(&rows, operands, &q)?;
        Ok(q.flatten_all().unwrap().to_vec1::<f32>().unwrap())
    };
    let q = run(&rows, &all).unwrap();
    let [keys, values] = of_cache();
    for (token, slot) in [(0, 17), (2, 4)] {
        let v = &rows[(token * 4 + 3) * head_dim..][..len];
        let mean = v.iter().map(|x| x * x).sum::<f32>() / len as f32;
        let found = &values[slot * head_dim..][..head_dim];
        for (found, v) in found.iter().zip(v) {
            assert!((found - v / (mean + 1e-3).sqrt()).abs() < 1e-6);
        }
        assert!(found[len..].iter().all(|x| *x == 0.0), "padding");
    }
    let others = values.chunks(head_dim).enumerate().filter(|(slot, _)| ![17, 4].contains(slot));
    assert!(others.flat_map(|(_, head)| head).all(|x| *x == 0.0), "one token has no slot");
    // The norm of v does not change q and k.
    assert_eq!(run(&rows, &QkvToCache { v_norm: None, ..all }).unwrap(), q);
    assert_eq!(of_cache()[0], keys);
    assert_ne!(of_cache()[1], values);

    let before = of_cache();
    let alone: Vec<f32> =
        rows.chunks(4 * head_dim).flat_map(|row| row[..heads * head_dim].to_vec()).collect();
    let nowhere = integers(&[], &[0]);
    let queries = QkvToCache {
        qk_norm: Some(QkNorm { k_weight: None, ..qk_norm }),
        slot_mapping: &nowhere,
        cache: None,
        ..all
    };
    assert_eq!(run(&alone, &queries).unwrap(), q);
    assert_eq!(of_cache(), before);

    let refused = |rows: &[f32], operands: QkvToCache<'_>, wanted: &str| match run(rows, &operands)
    {
        Err(Error::Parameter { parameter, .. }) => assert_eq!(parameter, wanted),
        other => panic!("{wanted}: {other:?}"),
    };
    let without = Some(QkNorm { k_weight: None, ..qk_norm });
    refused(&rows, QkvToCache { qk_norm: without, ..all }, "the number of weights for k");
    let span = QkNormOperands::AllHeads { square_sums: &weight, ranks: 1 };
    let wide = Some(QkNorm { span, ..qk_norm });
    refused(&alone, QkvToCache { qk_norm: wide, ..queries }, "the number of heads of k");
    for len in [0, head_dim + 1] {
        let v_norm = Some(ValueNorm { eps: 1e-3, len });
        refused(&rows, QkvToCache { v_norm, ..all }, "len");
    }
    let wrong = run(&rows, &queries);
    assert!(matches!(wrong, Err(Error::Shape { operand: "qkv", .. })));
}

#[test]
fn sums_have_factors_and_activations_too() {
    let tensor = |values: &[f32], dims: (usize, usize)| {
        Tensor::from_slice(values, dims, &Device::Cpu).unwrap().to_dtype(DType::BF16).unwrap()
    };
    let rows = |tensor: &Tensor| -> Vec<Vec<f32>> {
        tensor.to_dtype(DType::F32).unwrap().to_vec2().unwrap()
    };
    let (residual, x) = (tensor(&[1.0, -2.0], (1, 2)), tensor(&[2.0, 4.0], (1, 2)));
    add(&residual, &x, 0.5).unwrap();
    assert_eq!(rows(&residual), [[1.5, 1.0]]);
    let ones = Tensor::ones(2, DType::BF16, &Device::Cpu).unwrap();
    let norm = RmsNorm { weight: &ones, form: NormWeight::Plain, eps: 0.0, next: None };
    let out = tensor(&[0.0; 2], (1, 2));
    add_rms_norm(&residual, &x, 2.0, &norm, &out).unwrap();
    assert_eq!(rows(&residual), [[7.0, 10.0]]);
    assert!((rows(&out)[0][0] - 7.0 / 74.5f32.sqrt()).abs() < 4e-3);

    let x = tensor(&[1.0, 0.0, -1.0, 2.0], (2, 2));
    let by = tensor(&[9.0, 2.0, 4.0, 9.0, 8.0, 0.5], (2, 3));
    activation_times(&x, Activation::Silu, &by, 1, &x).unwrap();
    let want = [2.0 * 0.731_058_6, 0.0, -8.0 * 0.268_941_4, 0.5 * 1.761_594_2f32];
    for (found, want) in rows(&x).iter().flatten().zip(want) {
        assert!((found - want).abs() <= want.abs() / 256.0, "{found}, not {want}");
    }
    let error = activation_times(&x, Activation::Silu, &by, 2, &x).unwrap_err();
    assert!(matches!(error, Error::Shape { operand: "by", .. }));
}

/// Weights of [`QuantFormat::Iq4`] dequantize on a device like unsigned 8-bit weights with a zero point of 128.
#[test]
fn iq4_values_are_those_of_eight_bits() {
    let bytes: Vec<u8> = (0..64).map(|i| i * 7 % 16).collect();
    let (k, scales) = (32, [0.25, -0.5]);
    let rows = QuantizedRows {
        format: QuantFormat::Iq4,
        group: 32,
        bytes: &bytes,
        scales: &scales,
        offsets: Offsets::None,
        sub_scales: None,
        inputs: None,
    };
    let expected = rows.dequantized(k).unwrap();
    let form = |offsets| ScaleForm { offsets, ..ScaleForm::F32 };
    for (format, offsets) in [
        (QuantFormat::Iq4, OffsetForm::None),
        (QuantFormat::U8, OffsetForm::Own),
        (QuantFormat::U8, OffsetForm::ZeroPoint(128)),
        (QuantFormat::U8, OffsetForm::ZeroPoints),
    ] {
        let mut builder = Weight::quantized_builder(2, k, format, 32, form(offsets)).unwrap();
        builder.write_quantized(0, rows).unwrap();
        let packed = PackedMatrix::new(&builder.finish().unwrap(), None, &Device::Cpu).unwrap();
        assert_eq!(packed.dequantized().unwrap(), expected, "{format:?} {offsets:?}");
    }
}

#[test]
fn matrices_of_heads_are_not_quantized() {
    let rows = QuantizedRows {
        format: QuantFormat::U4,
        group: 32,
        bytes: &[1; 64],
        scales: &[1.0; 2],
        offsets: Offsets::None,
        sub_scales: None,
        inputs: None,
    };
    let form = ScaleForm { offsets: OffsetForm::None, ..ScaleForm::F32 };
    let mut builder = Weight::quantized_builder(2, 32, QuantFormat::U4, 32, form).unwrap();
    builder.write_quantized(0, rows).unwrap();
    let packed = PackedMatrix::new(&builder.finish().unwrap(), None, &Device::Cpu).unwrap();
    let plain = Tensor::zeros((2, 32), DType::BF16, &Device::Cpu).unwrap();
    let weights = ExpertMatrices::new(vec![Matrix::Rows(plain), Matrix::Packed(packed)]).unwrap();
    let x = Tensor::zeros((1, 2, 32), DType::BF16, &Device::Cpu).unwrap();
    let out = Tensor::zeros((1, 2, 2), DType::BF16, &Device::Cpu).unwrap();
    let error = head_product(&x, &weights, &out).unwrap_err();
    assert_eq!(error.to_string(), "matrices of heads is 2, it must be unquantized, one per head");
}
