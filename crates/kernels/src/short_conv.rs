//! Gated short convolutions: each channel of a token is mixed with the same channel of the few tokens before it.

use candle_core::Tensor;

use crate::state::{RecurrentState, SaveInputs, Sequence, StateRows};
use crate::tensor::{Operand, from_vec};
use crate::{Error, Result, parallel};

/// The name of [`short_conv`] in errors, on any device.
pub const KERNEL: &str = "short_conv";

/// Number of channels and length of the kernel of a short convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvDims {
    /// Number of a token's channels, a multiple of 8.
    pub channels: usize,
    /// Length of the convolution's kernel, from 2 to 8. Its last weight is the newest token's.
    pub kernel: usize,
}

impl ConvDims {
    /// Number of elements of a token's input: the two factors of the convolution's input, and the gate of its result.
    #[must_use]
    pub fn width(&self) -> usize {
        3 * self.channels
    }

    pub(crate) fn check(&self) -> Result<()> {
        let Self { channels: value, kernel } = *self;
        if value == 0 || !value.is_multiple_of(8) {
            let (parameter, expected) = ("channels", "a positive multiple of 8");
            return Err(Error::Parameter { parameter, value, expected });
        }
        if !(2..=8).contains(&kernel) {
            let (parameter, value) = ("kernel", kernel);
            return Err(Error::Parameter { parameter, value, expected: "2 to 8" });
        }
        Ok(())
    }
}

/// The weights of one short-convolution layer, f32 on every device.
#[derive(Clone, Debug)]
pub struct ShortConv {
    /// Dimensions of the layer.
    pub dims: ConvDims,
    /// Conv kernel weights of each channel, the oldest token's first: `[kernel, channels]`.
    pub conv_weights: Tensor,
}

/// One layer for the tokens of a step. The convolution's inputs are kept in the state of their sequence in `state`,
/// for its next tokens.
///
/// `input` is f32 `[tokens, 3 * channels]`: `b`, `c` and `x` of each token. The product `b * x` goes through a causal
/// convolution over its sequence's tokens, whose result is multiplied by `c`. Returns `[tokens, channels]`.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device; `conv` has other dimensions than `state`; there is no
/// such layer. `rows` contradict themselves or the operands, name a slot that is not there, or name one twice.
///
/// Source: Liquid AI, LFM2; `Lfm2ShortConv` of Hugging Face's transformers.
pub fn short_conv(
    input: &Tensor,
    conv: &ShortConv,
    state: &RecurrentState,
    layer: usize,
    rows: &StateRows<'_>,
) -> Result<Tensor> {
    let ConvDims { channels, kernel } = conv.dims;
    let width = conv.dims.width();
    let input = Operand::new(KERNEL, "input", input);
    let (tokens, _) = input.dims2("[tokens, 3 * channels]")?;
    input.expect_dims("[tokens, 3 * channels]", &[tokens, width])?;
    state.config().check_dims(KERNEL, conv.dims.into())?;
    let sequences = rows.sequences(KERNEL, tokens, state.config().num_slots)?;
    let layer = state.layer(KERNEL, layer)?;
    let conv_weights = Operand::new(KERNEL, "conv_weights", &conv.conv_weights);
    conv_weights.expect_dims("[kernel, channels]", &[kernel, channels])?;
    let (input, conv_weights) = (input.f32s()?, conv_weights.f32s()?);
    let (input, conv_weights): (&[f32], &[f32]) = (&input, &conv_weights);
    // The guard on the conv state is dropped with this block, since `inplace_op1` below locks it for writing.
    let out = {
        let kept = Operand::new(KERNEL, "state", &layer.inputs).f32s()?;
        let kept: &[f32] = &kept;
        let mut of_tokens: Vec<Option<&Sequence>> = vec![None; tokens];
        for sequence in &sequences {
            of_tokens[sequence.tokens.clone()].fill(Some(sequence));
        }
        parallel::build_rows(tokens, channels, |token, out| {
            let sequence = of_tokens[token].expect("the sequences have all tokens");
            out.fill(0.0);
            // Weight by weight, so that the inner loops run over neighbouring channels.
            for (index, weights) in conv_weights.chunks_exact(channels).enumerate() {
                let back = kernel - 1 - index;
                let before = token - sequence.tokens.start;
                // Products of this step's tokens are computed from `input`, and those of older tokens are in the
                // state.
                if back <= before {
                    let (b, rest) = input[(token - back) * width..][..width].split_at(channels);
                    let products = b.iter().zip(&rest[channels..]).zip(weights);
                    let sums = out.iter_mut().zip(products);
                    sums.for_each(|(sum, ((b, x), weight))| *sum += weight * (b * x));
                } else if !sequence.begins {
                    // The newest input is the last of the conv state.
                    let place = sequence.slot * (kernel - 1) + (kernel - 1) - (back - before);
                    let products = kept[place * channels..][..channels].iter().zip(weights);
                    let sums = out.iter_mut().zip(products);
                    sums.for_each(|(sum, (input, weight))| *sum += weight * input);
                }
            }
            let gates = &input[token * width + channels..][..channels];
            out.iter_mut().zip(gates).for_each(|(sum, gate)| *sum *= gate);
        })
    };
    let save = |token: usize, kept: &mut [f32]| {
        let (b, rest) = input[token * width..][..width].split_at(channels);
        let products = kept.iter_mut().zip(b.iter().zip(&rest[channels..]));
        products.for_each(|(kept, (b, x))| *kept = b * x);
    };
    let of_step = SaveInputs { dims: conv.dims.into(), input: &save, sequences: &sequences };
    layer.inputs.inplace_op1(&of_step)?;
    from_vec(out, &[tokens, channels])
}

/// The reference for [`short_conv`] for consecutive tokens of one sequence. `input` is `[tokens, 3 * channels]`,
/// `conv_weights` is `[kernel, channels]`, and the result is `[tokens, channels]`. `kept`, `[kernel - 1, channels]`, are the
/// products `b * x` of the tokens before them, the oldest first. The function replaces them by the newest. Products
/// are rounded by `round`.
#[must_use]
pub fn short_conv_reference(
    input: &[f32],
    conv_weights: &[f32],
    dims: ConvDims,
    kept: &mut Vec<f32>,
    round: impl Fn(f32) -> f32,
) -> Vec<f32> {
    let ConvDims { channels, kernel } = dims;
    let mut out = Vec::new();
    for row in input.chunks_exact(dims.width()) {
        kept.extend((0..channels).map(|i| round(row[i] * row[2 * channels + i])));
        out.extend((0..channels).map(|i| {
            let sum: f32 = (0..kernel)
                .map(|index| conv_weights[index * channels + i] * kept[index * channels + i])
                .sum();
            sum * row[channels + i]
        }));
        kept.drain(..channels);
    }
    out
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::{StateConfig, copy_states};

    const DIMS: [ConvDims; 3] = [
        ConvDims { channels: 8, kernel: 3 },
        ConvDims { channels: 40, kernel: 2 },
        ConvDims { channels: 16, kernel: 8 },
    ];

    fn test_values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| (((i + seed) * 7919 + 13) % 10_007) as f32 / 5003.0 - 1.0).collect()
    }

    fn tensor(values: &[f32], dims: &[usize]) -> Tensor {
        Tensor::from_slice(values, dims, &Device::Cpu).unwrap()
    }

    fn conv(dims: ConvDims) -> ShortConv {
        let ConvDims { channels, kernel } = dims;
        ShortConv {
            dims,
            conv_weights: tensor(&test_values(kernel * channels, 3), &[kernel, channels]),
        }
    }

    fn state(dims: ConvDims, num_slots: usize) -> RecurrentState {
        let config = StateConfig { num_layers: 2, num_slots, dims: dims.into() };
        RecurrentState::new(config, &Device::Cpu).unwrap()
    }

    /// The rows of a sequence's tokens, which do not depend on the step that computes them.
    fn rows_of(dims: ConvDims, sequence: usize, tokens: std::ops::Range<usize>) -> Vec<f32> {
        let all = test_values(tokens.end * dims.width(), 1 + 1000 * sequence);
        all[tokens.start * dims.width()..].to_vec()
    }

    /// Computes one step; sequence `i` has slot `i`.
    fn step(
        conv: &ShortConv,
        state: &RecurrentState,
        parts: &[(usize, std::ops::Range<usize>)],
    ) -> Vec<Vec<f32>> {
        let dims = conv.dims;
        let rows: Vec<f32> =
            parts.iter().flat_map(|(seq, tokens)| rows_of(dims, *seq, tokens.clone())).collect();
        let mut query_start = vec![0u32];
        parts.iter().for_each(|(_, part)| {
            query_start.push(query_start[query_start.len() - 1] + part.len() as u32);
        });
        let state_rows = StateRows {
            query_start: &query_start,
            context_len: &parts.iter().map(|(_, part)| part.end as u32).collect::<Vec<_>>(),
            slots: &parts.iter().map(|(seq, _)| *seq as u32).collect::<Vec<_>>(),
        };
        let input = tensor(&rows, &[rows.len() / dims.width(), dims.width()]);
        let out = short_conv(&input, conv, state, 1, &state_rows).unwrap();
        let out: Vec<f32> = out.flatten_all().unwrap().to_vec1().unwrap();
        let bounds = query_start.windows(2).map(|pair| pair[0] as usize..pair[1] as usize);
        bounds
            .map(|rows| out[rows.start * dims.channels..rows.end * dims.channels].to_vec())
            .collect()
    }

    #[test]
    fn matches_the_definition_in_any_cut() {
        for dims in DIMS {
            let (conv, state) = (conv(dims), state(dims, 4));
            let conv_weights: Vec<f32> =
                conv.conv_weights.flatten_all().unwrap().to_vec1().unwrap();
            let mut kept = vec![vec![0.0; (dims.kernel - 1) * dims.channels]; 4];
            // The old content of a slot does not matter at the start of a sequence.
            step(&conv, &state, &[(0, 0..9), (1, 0..2)]);
            for parts in [
                vec![(2, 0..1), (0, 0..20), (1, 0..0), (3, 0..2)],
                vec![(0, 20..21), (2, 1..2), (3, 2..12)],
                vec![(2, 2..3), (0, 21..40)],
            ] {
                for ((seq, tokens), got) in parts.iter().zip(step(&conv, &state, &parts)) {
                    let rows = rows_of(dims, *seq, tokens.clone());
                    let want =
                        short_conv_reference(&rows, &conv_weights, dims, &mut kept[*seq], |x| x);
                    for (got, want) in got.iter().zip(&want) {
                        assert!((got - want).abs() < 1e-5, "{dims:?}: {got} is not {want}");
                    }
                }
            }
            // A copied state continues in another slot.
            copy_states(&state, &[(0, 1)]).unwrap();
            let rows = rows_of(dims, 1, 40..42);
            let want = short_conv_reference(&rows, &conv_weights, dims, &mut kept[0], |x| x);
            let got = step(&conv, &state, &[(1, 40..42)]).remove(0);
            assert!(got.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-5));
            assert_eq!(state.num_bytes(), 2 * 4 * (dims.kernel - 1) * dims.channels * 4);
        }
    }

    #[test]
    fn refuses_bad_operands() {
        for (dims, parameter) in [
            (ConvDims { channels: 12, kernel: 3 }, "channels"),
            (ConvDims { channels: 8, kernel: 1 }, "kernel"),
        ] {
            let config = StateConfig { num_layers: 1, num_slots: 1, dims: dims.into() };
            let error = RecurrentState::new(config, &Device::Cpu).unwrap_err();
            assert!(
                matches!(error, Error::Parameter { parameter: found, .. } if found == parameter)
            );
        }
        let (conv, state) = (conv(DIMS[0]), state(DIMS[0], 2));
        let rows = StateRows { query_start: &[0, 2], context_len: &[2], slots: &[0] };
        let input = |width, dtype| Tensor::zeros((2, width), dtype, &Device::Cpu).unwrap();
        let run = |input: Tensor, conv: &ShortConv| short_conv(&input, conv, &state, 0, &rows);
        let error = run(input(23, DType::F32), &conv).unwrap_err();
        assert!(matches!(error, Error::Shape { operand: "input", .. }));
        let error = run(input(24, DType::BF16), &conv).unwrap_err();
        assert!(matches!(error, Error::DType { operand: "input", .. }));
        let other = ShortConv {
            conv_weights: conv.conv_weights.t().unwrap().contiguous().unwrap(),
            ..conv.clone()
        };
        let error = run(input(24, DType::F32), &other).unwrap_err();
        assert!(matches!(error, Error::Shape { operand: "conv_weights", .. }));
        let other = ShortConv { dims: ConvDims { kernel: 4, ..conv.dims }, ..conv.clone() };
        let error = run(input(24, DType::F32), &other).unwrap_err();
        assert!(matches!(error, Error::Shape { operand: "net", .. }));
    }
}
