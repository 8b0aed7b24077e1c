//! Stale results in buffers are found: see the contract of [`Ops`].

// Only these builds have the check.
#![cfg(debug_assertions)]

use candlepower_checkpoint::{ActivationScales, Checkpoint, CheckpointFiles};
use candlepower_gpu::{Fusions, Matmul};
use candlepower_kernels::{OffsetForm, Offsets, QuantFormat, QuantizedRows, ScaleForm, Weight};

use super::*;
use crate::{LoadDtype, LoadFormat, LoadOptions, layers::Ffn, layers::Mixer, load_on_device};

const TOKENS: usize = 3;

/// Runs `with` on the operations of a step of the golden llama, with its first residual.
fn with_ops(with: impl FnOnce(&DeviceOps<'_>, &Layers<Matrix>, Tensor)) {
    with_fusions(Fusions::OFF, TOKENS, with);
}

/// The same with fused kernels and some of the tokens.
fn with_fusions(
    fusions: Fusions,
    tokens: usize,
    with: impl FnOnce(&DeviceOps<'_>, &Layers<Matrix>, Tensor),
) {
    let folder = candlepower_testing::goldens::folder("llama");
    let checkpoint = Checkpoint::open(CheckpointFiles::Folder(folder)).unwrap();
    let options = LoadOptions {
        device: Device::Cpu,
        dtype: LoadDtype::F32,
        load_format: LoadFormat::Auto,
        max_model_len: Some(64),
    };
    let model = load_on_device(&checkpoint, &options, &mut |_| {}).unwrap();
    let size = WorkspaceSize {
        max_tokens: TOKENS,
        max_seqs: 1,
        max_rows: 1,
        num_states: 0,
        num_blocks: 4,
        block_size: 16,
        fp8_cache: false,
        deterministic: false,
    };
    let mut workspace = model.workspace(size).unwrap();
    // The model has no products in FP8, but a test may.
    workspace.matmul =
        Matmul::new(&Device::Cpu, TOKENS, DType::F32, 0, model.spec().hidden_size).unwrap();
    workspace.matmul = workspace.matmul.with_fusions(fusions);
    let table = Tensor::arange(0, tokens as u32, &Device::Cpu).unwrap();
    let input = DeviceInput {
        token_ids: &table,
        positions: &table,
        slot_mapping: &table,
        states: None,
        output: None,
    };
    let ops = model.ops(&input, &workspace);
    let residual = ops.embed(&model.layers.embed, None).unwrap();
    with(&ops, &model.layers, residual);
}

#[test]
fn results_are_valid_until_their_buffer_is_written_again() {
    with_ops(|ops, layers, residual| {
        let normed = ops.norm(&residual, &layers.final_norm, None).unwrap();
        let sum = ops.add(residual, &normed, 1.0).unwrap();
        let again = ops.norm(&sum, &layers.final_norm, None).unwrap();
        ops.add(sum, &again, 1.0).unwrap();
    });
}

#[test]
#[should_panic(expected = "generation 1 of the buffer Normed is read, which was written again")]
fn a_stale_result_is_found() {
    with_ops(|ops, layers, residual| {
        let stale = ops.norm(&residual, &layers.final_norm, None).unwrap();
        // The second norm writes the same buffer.
        ops.norm(&residual, &layers.final_norm, None).unwrap();
        let _ = ops.add(residual, &stale, 1.0);
    });
}

#[test]
#[should_panic(expected = "the buffer Residual is read, which was written again")]
fn a_clone_of_a_tensor_that_changed_in_place_is_found() {
    with_ops(|ops, layers, residual| {
        let clone = residual.clone();
        let normed = ops.norm(&residual, &layers.final_norm, None).unwrap();
        ops.add(residual, &normed, 1.0).unwrap();
        // The clone is a tensor with the same memory and the same generation as before.
        let _ = ops.norm(&clone, &layers.final_norm, None);
    });
}

#[test]
#[should_panic(expected = "the buffer Of(Wide) is read, which was written again")]
fn an_operand_in_the_buffer_of_the_result_is_found() {
    with_ops(|ops, layers, residual| {
        let Mixer::Attention(attention) = &layers.layers[0].mixer else { unreachable!() };
        let qkv = ops.linear(&residual, &attention.qkv, Buffer::Wide, Reduce::Keep).unwrap();
        let _ = ops.linear(&qkv, &attention.qkv, Buffer::Wide, Reduce::Keep);
    });
}

/// A matrix whose outputs are the inputs in another order, in the buffer of branches.
fn turned(ops: &DeviceOps<'_>) -> Linear<Matrix> {
    let width = ops.hidden;
    let is_one = |i: usize| f32::from(u8::from(i / width == (i % width + 1) % width));
    let weight: Vec<f32> = (0..width * width).map(is_one).collect();
    let weight = Tensor::from_vec(weight, (width, width), &Device::Cpu).unwrap();
    Linear { weight: Matrix::Rows(weight), bias: None }
}

#[test]
fn products_compute_deferred_norms() {
    let run = |norm, tokens| {
        let mut found = Vec::new();
        with_fusions(Fusions { norm, ..Fusions::OFF }, tokens, |ops, layers, residual| {
            let Mixer::Attention(attention) = &layers.layers[0].mixer else { unreachable!() };
            let Some(Ffn::Dense(mlp)) = &layers.layers[0].ffn else { unreachable!() };
            let mut keep = |x: &Tensor| {
                found.push(x.flatten_all().unwrap().to_vec1::<f32>().unwrap());
            };
            let branch =
                |x: &Tensor| ops.linear(x, &turned(ops), Buffer::Branch, Reduce::Keep).unwrap();
            let (qkv, norm) = (&attention.qkv, &layers.final_norm);
            let y = branch(&residual);
            let (sum, normed) = ops.add_norm(residual, &y, 0.5, norm, Some(&qkv.weight)).unwrap();
            keep(&ops.linear(&normed, qkv, Buffer::Wide, Reduce::Keep).unwrap());
            keep(&sum);
            let y = branch(&sum);
            let (sum, normed) = ops.add_norm(sum, &y, 1.0, norm, Some(&mlp.up.weight)).unwrap();
            keep(&ops.gated(&normed, &mlp.up, mlp.activation, &mlp.down.weight).unwrap());
            keep(&sum);
            // A norm without one reader is computed at once.
            let y = branch(&sum);
            let (sum, normed) = ops.add_norm(sum, &y, 1.0, norm, None).unwrap();
            keep(&normed);
            keep(&sum);
        });
        found
    };
    // The buffer has no room for a second residual of two tokens, so these norms are computed at once.
    for tokens in [1, 2] {
        assert_eq!(run(true, tokens), run(false, tokens), "{tokens} tokens");
    }
}

#[test]
#[should_panic(expected = "an operation reads a norm before its reader")]
fn a_sum_is_not_read_before_its_product() {
    with_fusions(Fusions { norm: true, ..Fusions::OFF }, 1, |ops, layers, residual| {
        let Mixer::Attention(attention) = &layers.layers[0].mixer else { unreachable!() };
        let y = ops.linear(&residual, &turned(ops), Buffer::Branch, Reduce::Keep).unwrap();
        let reader = Some(&attention.qkv.weight);
        let (sum, _) = ops.add_norm(residual, &y, 1.0, &layers.final_norm, reader).unwrap();
        let _ = ops.norm(&sum, &layers.final_norm, None);
    });
}

/// An FP8 matrix as wide as the model.
fn fp8_matrix(width: usize) -> Matrix {
    let form = ScaleForm { offsets: OffsetForm::None, ..ScaleForm::F32 };
    let builder = Weight::quantized_builder(width, width, QuantFormat::E4m3, width, form).unwrap();
    let mut builder = builder.with_activations(Some(ActivationScales::Row));
    let rows = QuantizedRows {
        format: QuantFormat::E4m3,
        group: width,
        bytes: &vec![0x38; width * width],
        scales: &vec![1.0; width],
        offsets: Offsets::None,
        sub_scales: None,
        inputs: None,
    };
    builder.write_quantized(0, rows).unwrap();
    let matrix = gpu::Fp8Matrix::new(&builder.finish().unwrap(), (9, 0), &Device::Cpu);
    Matrix::Fp8(matrix.unwrap().unwrap())
}

#[test]
fn rows_in_fp8_have_the_product_of_plain_ones() {
    with_ops(|ops, layers, residual| {
        let linear = Linear { weight: fp8_matrix(ops.hidden), bias: None };
        let product = |reader| -> Vec<f32> {
            let normed = ops.norm(&residual, &layers.final_norm, reader).unwrap();
            assert_eq!(normed.dtype() == DType::F8E4M3, reader.is_some());
            let out = ops.linear(&normed, &linear, Buffer::Wide, Reduce::Keep).unwrap();
            out.flatten_all().unwrap().to_vec1().unwrap()
        };
        let plain = product(None);
        assert_eq!(product(Some(&linear.weight)), plain);
    });
}

#[test]
#[should_panic(expected = "of the buffer Fp8 is read, which was written again")]
fn rows_in_fp8_are_stale_after_a_product_that_rounds_its_own() {
    with_ops(|ops, layers, residual| {
        let linear = Linear { weight: fp8_matrix(ops.hidden), bias: None };
        let normed = ops.norm(&residual, &layers.final_norm, Some(&linear.weight)).unwrap();
        ops.linear(&residual, &linear, Buffer::Wide, Reduce::Keep).unwrap();
        let _ = ops.linear(&normed, &linear, Buffer::Inner, Reduce::Keep);
    });
}
