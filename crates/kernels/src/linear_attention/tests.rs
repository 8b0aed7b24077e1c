//! Linear attention and SSMs against their reference, and the states that they leave.

use std::ops::Range;

use candle_core::{DType, Device};

use super::*;
use crate::{StateConfig, copy_states};

/// Few heads of the smallest size, and heads whose columns are not whole blocks.
const DIMS: [LinearAttentionDims; 5] = [
    LinearAttentionDims {
        key_heads: 1,
        value_heads: 2,
        tiled: false,
        key_dim: 16,
        value_dim: 16,
        kernel: 4,
    },
    LinearAttentionDims {
        key_heads: 2,
        value_heads: 6,
        tiled: false,
        key_dim: 32,
        value_dim: 80,
        kernel: 2,
    },
    LinearAttentionDims {
        key_heads: 2,
        value_heads: 6,
        tiled: true,
        key_dim: 32,
        value_dim: 80,
        kernel: 2,
    },
    LinearAttentionDims {
        key_heads: 3,
        value_heads: 3,
        tiled: false,
        key_dim: 80,
        value_dim: 48,
        kernel: 8,
    },
    LinearAttentionDims {
        key_heads: 1,
        value_heads: 2,
        tiled: false,
        key_dim: 128,
        value_dim: 128,
        kernel: 4,
    },
];

fn test_values(count: usize, seed: usize, spread: f32) -> Vec<f32> {
    (0..count)
        .map(|i| (((i + seed) * 7919 + 13) % 10_007) as f32 / 5003.0 * spread - spread)
        .collect()
}

fn tensor(values: &[f32], dims: &[usize]) -> Tensor {
    Tensor::from_slice(values, dims, &Device::Cpu).unwrap()
}

/// A gated delta net.
fn net(dims: LinearAttentionDims) -> LinearAttention {
    let LinearAttentionDims { value_heads, value_dim, kernel, .. } = dims;
    let random =
        |dims: &[usize], seed| tensor(&test_values(dims.iter().product(), seed, 1.0), dims);
    LinearAttention {
        dims,
        conv: random(&[dims.channels(), kernel], 3),
        conv_bias: None,
        a_log: random(&[value_heads], 4),
        dt_bias: random(&[value_heads], 5),
        rule: UpdateRule::Delta { norm: random(&[value_dim], 6), eps: 1e-6 },
    }
}

/// Mamba-2.
fn mamba(dims: LinearAttentionDims) -> LinearAttention {
    let random = |len, seed| tensor(&test_values(len, seed, 1.0), &[len]);
    LinearAttention {
        conv_bias: Some(random(dims.channels(), 8)),
        rule: UpdateRule::Mamba2 { skip: random(dims.value_heads, 7) },
        ..net(dims)
    }
}

/// Both kinds of layer in all dimensions.
fn nets() -> impl Iterator<Item = LinearAttention> {
    DIMS.into_iter().flat_map(|dims| [net(dims), mamba(dims)])
}

fn state(dims: LinearAttentionDims, num_slots: usize) -> RecurrentState {
    let config = StateConfig { num_layers: 2, num_slots, dims: dims.into() };
    RecurrentState::new(config, &Device::Cpu).unwrap()
}

/// The rows of a sequence's tokens, which do not depend on the step that computes them.
fn rows_of(net: &LinearAttention, sequence: usize, tokens: Range<usize>) -> [Vec<f32>; 2] {
    let rows = |width: usize, seed: usize, spread| {
        let seed = seed + 1000 * sequence;
        test_values(tokens.end * width, seed, spread).split_off(tokens.start * width)
    };
    [rows(net.dims.width(), 1, 2.0), rows(net.gates(), 2, 3.0)]
}

/// Tokens of sequences; sequence `i` has slot `i`.
type Parts<'a> = &'a [(usize, Range<usize>)];

/// Computes one step and returns the result of each sequence.
fn step(net: &LinearAttention, state: &RecurrentState, parts: Parts<'_>) -> Vec<Vec<f32>> {
    step_with(Isa::detect(), net, state, parts)
}

fn step_with(
    isa: Isa,
    net: &LinearAttention,
    state: &RecurrentState,
    parts: Parts<'_>,
) -> Vec<Vec<f32>> {
    let dims = net.dims;
    let rows: Vec<_> =
        parts.iter().map(|(seq, tokens)| rows_of(net, *seq, tokens.clone())).collect();
    let all = |i: usize| rows.iter().flat_map(|rows| rows[i].clone()).collect::<Vec<_>>();
    let mut query_start = vec![0];
    parts.iter().for_each(|(_, part)| {
        query_start.push(query_start[query_start.len() - 1] + part.len() as u32);
    });
    let tokens = query_start[parts.len()] as usize;
    let state_rows = StateRows {
        query_start: &query_start,
        context_len: &parts.iter().map(|(_, part)| part.end as u32).collect::<Vec<_>>(),
        slots: &parts.iter().map(|(seq, _)| *seq as u32).collect::<Vec<_>>(),
    };
    let input = tensor(&all(0), &[tokens, dims.width()]);
    let gates = tensor(&all(1), &[tokens, net.gates()]);
    let out = run(isa, (&input, &gates), net, (state, 1), &state_rows);
    let out: Vec<f32> = out.unwrap().flatten_all().unwrap().to_vec1().unwrap();
    let bounds = query_start.windows(2).map(|bounds| bounds[0] as usize..bounds[1] as usize);
    bounds.map(|rows| out[rows.start * dims.values()..rows.end * dims.values()].to_vec()).collect()
}

/// The state of the second layer in `slot`.
fn kept(state: &RecurrentState, slot: usize) -> SequenceState {
    let layer = state.layer(KERNEL, 1).unwrap();
    let of_slot =
        |tensor: &Tensor| tensor.get(slot).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    SequenceState { inputs: of_slot(&layer.inputs), matrices: of_slot(layer.matrices()) }
}

fn assert_close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    // Terms of a sum cancel, so that errors are relative to the largest value.
    let largest = want.iter().fold(0f32, |max, value| max.max(value.abs()));
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() <= 1e-5 * largest, "{got} is not {want}");
    }
}

#[test]
fn the_reference_knows_values_of_transformers() {
    // Source: causal_conv1d, torch_recurrent_gated_delta_rule and RMSNormGated of transformers 5, composed like
    // Qwen3.5's layer.
    let net = net(DIMS[0]);
    let mut state = SequenceState::zeros(&net.dims);
    let [input, gates] = rows_of(&net, 0, 0..5);
    let out = linear_attention_reference(&input, &gates, &net, &mut state).unwrap();
    let near = |got: [f32; 6], want: [f32; 6]| {
        for (got, want) in got.into_iter().zip(want) {
            assert!((got - want).abs() < 2e-6, "{got} is not {want}");
        }
    };
    let places = [0, 7, 15, 16, 25, 31];
    let want =
        [-0.184_057_58, -0.099_928_07, -0.159_953_04, -0.094_224_06, -0.018_539_326, 0.038_805_51];
    near(places.map(|i| out[4 * 32 + i]), want);
    let places = [0, 3 * 16 + 5, 16 * 16 + 15 * 16 + 15, 16 * 16 + 7 * 16 + 2, 0, 0];
    let first = -0.001_779_654_8;
    let want = [first, -0.013_100_367, 0.000_855_315_24, 0.045_689_624, first, first];
    near(places.map(|i| state.matrices[i]), want);
}

/// Prompts and single tokens in one step, and a second step for some of the sequences.
#[test]
fn matches_the_definition_and_keeps_its_state() {
    for net in nets() {
        let dims = net.dims;
        let state = state(dims, 5);
        // The old content of a slot does not matter at the start of a sequence.
        step(&net, &state, &[(3, 0..9), (1, 0..2)]);
        // A sequence may have no tokens in a step.
        let steps = [
            vec![(4, 0..1), (0, 0..40), (1, 0..0), (3, 0..3), (2, 0..17)],
            vec![(0, 40..41), (4, 1..2), (2, 17..19)],
            vec![(4, 2..75), (3, 3..8)],
        ];
        let mut want: Vec<_> = (0..5).map(|_| SequenceState::zeros(&dims)).collect();
        for parts in &steps {
            for ((seq, tokens), got) in parts.iter().zip(step(&net, &state, parts)) {
                let [input, gates] = rows_of(&net, *seq, tokens.clone());
                let want =
                    linear_attention_reference(&input, &gates, &net, &mut want[*seq]).unwrap();
                assert_close(&got, &want);
            }
        }
        for seq in [0, 2, 3, 4] {
            let got = kept(&state, seq);
            assert_eq!(got.inputs, want[seq].inputs, "{dims:?}, sequence {seq}");
            assert_close(&got.matrices, &want[seq].matrices);
        }
        let untouched = state.layer(KERNEL, 0).unwrap().matrices().sum_all().unwrap();
        assert_eq!(untouched.to_scalar::<f32>().unwrap(), 0.0, "the other layer");
    }
}

#[test]
fn results_do_not_depend_on_the_batch_or_on_chunks() {
    for net in nets() {
        let dims = net.dims;
        let whole = state(dims, 3);
        let want = step(&net, &whole, &[(2, 0..70)]).remove(0);
        let parts = state(dims, 3);
        let mut got = Vec::new();
        for (i, chunk) in [0..1, 1..2, 2..5, 5..38, 38..70].into_iter().enumerate() {
            // Other sequences come and go in the same steps.
            let other = (i % 2, 0..3 * i + 1);
            got.extend(step(&net, &parts, &[other, (2, chunk)]).remove(1));
        }
        assert_eq!(got, want, "{dims:?}");
        assert_eq!(kept(&parts, 2), kept(&whole, 2));
    }
}

/// Results do not depend on sharing the work for keys either, which heads do if there are few threads.
#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for net in nets() {
        let dims = net.dims;
        let with_threads = |count| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(count).build().unwrap();
            pool.install(|| {
                let state = state(dims, 2);
                let first = step(&net, &state, &[(0, 0..37), (1, 0..1)]);
                let second = step(&net, &state, &[(1, 1..4), (0, 37..38)]);
                (first, second, kept(&state, 0), kept(&state, 1))
            })
        };
        assert_eq!(with_threads(1), with_threads(5), "{dims:?}");
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for net in nets() {
        let dims = net.dims;
        let of_isa = |isa: Isa| {
            let state = state(dims, 2);
            let first = step_with(isa, &net, &state, &[(0, 0..37), (1, 0..1)]);
            let second = step_with(isa, &net, &state, &[(1, 1..4), (0, 37..38)]);
            (first, second, kept(&state, 0), kept(&state, 1))
        };
        let all: Vec<_> = Isa::all().into_iter().map(of_isa).collect();
        assert!(all.iter().all(|found| *found == all[0]), "{dims:?}");
    }
}

#[test]
fn states_are_copied_in_order_and_go_on_alike() {
    let net = net(DIMS[1]);
    let state = state(net.dims, 4);
    step(&net, &state, &[(0, 0..5), (1, 0..6)]);
    copy_states(&state, &[(0, 3), (1, 0), (3, 2)]).unwrap();
    assert_eq!(kept(&state, 0), kept(&state, 1));
    assert_eq!(kept(&state, 2), kept(&state, 3));
    assert_ne!(kept(&state, 0), kept(&state, 3));
    let next = step(&net, &state, &[(1, 6..8)]);
    copy_states(&state, &[(0, 1)]).unwrap();
    assert_eq!(step(&net, &state, &[(1, 6..8)]), next);
    let outside = copy_states(&state, &[(0, 4)]);
    assert!(matches!(outside, Err(Error::OutOfRange { index: "slot", value: 4, .. })));
}

#[test]
fn large_gates_are_not_infinite() {
    let decay = |x, rate| reference::decay(reference::softplus(x), rate);
    assert_eq!(decay(1000.0, 1.0), 0.0);
    assert_eq!(decay(-1000.0, 1.0), 1.0);
    for x in [19.99f32, 20.01] {
        let want = (-0.01 * f64::from(x).exp().ln_1p()).exp() as f32;
        assert!((decay(x, 0.01) - want).abs() < 1e-7);
    }
    assert_eq!(reference::sigmoid(-1000.0), 0.0);
}

#[test]
fn refuses_bad_dimensions() {
    let good = DIMS[0];
    for (dims, parameter) in [
        (LinearAttentionDims { key_heads: 0, ..good }, "key_heads"),
        (LinearAttentionDims { key_heads: 4, ..good }, "value_heads"),
        (LinearAttentionDims { key_dim: 24, ..good }, "key_dim"),
        (LinearAttentionDims { value_dim: 0, ..good }, "value_dim"),
        (LinearAttentionDims { kernel: 1, ..good }, "kernel"),
        (LinearAttentionDims { kernel: 9, ..good }, "kernel"),
    ] {
        let config = StateConfig { num_layers: 1, num_slots: 1, dims: dims.into() };
        let error = RecurrentState::new(config, &Device::Cpu).unwrap_err();
        assert!(matches!(error, Error::Parameter { parameter: found, .. } if found == parameter));
    }
    let state = state(good, 3);
    assert_eq!(state.num_bytes(), 2 * 3 * (3 * 64 + 2 * 16 * 16) * 4);
}

#[test]
fn refuses_bad_operands() {
    let dims = DIMS[0];
    let (net, state) = (net(dims), state(dims, 3));
    let refused =
        |net: &LinearAttention, width: usize, dtype: DType, layer: usize, rows: &StateRows<'_>| {
            let [input, gates] = rows_of(net, 0, 0..4);
            let input = tensor(&input[..4 * width], &[4, width]).to_dtype(dtype).unwrap();
            let gates = tensor(&gates, &[4, net.gates()]);
            linear_attention(&input, &gates, net, &state, layer, rows).unwrap_err()
        };
    let good = StateRows { query_start: &[0, 3, 4], context_len: &[3, 9], slots: &[2, 0] };
    let width = dims.width();
    let with = |rows: &StateRows<'_>| refused(&net, width, DType::F32, 0, rows);
    let error = refused(&net, width - 1, DType::F32, 0, &good);
    assert!(matches!(error, Error::Shape { operand: "input", .. }));
    let error = refused(&net, width, DType::BF16, 0, &good);
    assert!(matches!(error, Error::DType { operand: "input", .. }));
    let error = refused(&net, width, DType::F32, 2, &good);
    assert!(matches!(error, Error::OutOfRange { index: "layer", value: 2, .. }));
    let other =
        LinearAttention { conv: net.conv.t().unwrap().contiguous().unwrap(), ..net.clone() };
    let error = refused(&other, width, DType::F32, 0, &good);
    assert!(matches!(error, Error::Shape { operand: "conv", .. }));
    let other = LinearAttention { dims: LinearAttentionDims { kernel: 3, ..dims }, ..net.clone() };
    let error = refused(&other, width, DType::F32, 0, &good);
    assert!(matches!(error, Error::Shape { operand: "net", .. }));

    let of_other = LinearAttention { rule: mamba(DIMS[1]).rule, ..net.clone() };
    let error = refused(&of_other, width, DType::F32, 0, &good);
    assert!(matches!(error, Error::Shape { operand: "skip", .. }));

    let error = with(&StateRows { slots: &[2, 3], ..good });
    assert!(matches!(error, Error::OutOfRange { index: "slot", value: 3, bound: 3, .. }));
    for (rows, parameter) in [
        (StateRows { slots: &[1, 1], ..good }, "slot"),
        (StateRows { query_start: &[0, 5, 4], context_len: &[9, 9], ..good }, "query_start"),
        (StateRows { query_start: &[0, 3, 5], ..good }, "the end of query_start"),
        (StateRows { query_start: &[1, 3, 4], ..good }, "the length of query_start"),
        (StateRows { query_start: &[0, 4], ..good }, "the length of query_start"),
        (StateRows { context_len: &[9], ..good }, "the length of context_len"),
        (StateRows { context_len: &[2, 9], ..good }, "context_len"),
    ] {
        let error = with(&rows);
        assert!(matches!(error, Error::Parameter { parameter: found, .. } if found == parameter));
    }
    // No refused call wrote to the state.
    let untouched = state.layer(KERNEL, 0).unwrap().inputs.sum_all().unwrap();
    assert_eq!(untouched.to_scalar::<f32>().unwrap(), 0.0);
}
