//! Stale results in buffers are found: see the contract of [`Ops`].

// Only these builds have the check.
#![cfg(debug_assertions)]

use candlepower_checkpoint::{Checkpoint, CheckpointFiles};

use super::*;
use crate::{LoadDtype, LoadFormat, LoadOptions, layers::Mixer, load_on_device};

const TOKENS: usize = 3;

/// Runs `with` on the operations of a step of the golden llama, with its first residual.
fn with_ops(with: impl FnOnce(&DeviceOps<'_>, &Layers<Matrix>, Tensor)) {
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
    let workspace = model.workspace(size).unwrap();
    let table = Tensor::arange(0, TOKENS as u32, &Device::Cpu).unwrap();
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
        let normed = ops.norm(&residual, &layers.final_norm).unwrap();
        let sum = ops.add(residual, &normed, 1.0).unwrap();
        let again = ops.norm(&sum, &layers.final_norm).unwrap();
        ops.add(sum, &again, 1.0).unwrap();
    });
}

#[test]
#[should_panic(expected = "generation 1 of the buffer Normed is read, which was written again")]
fn a_stale_result_is_found() {
    with_ops(|ops, layers, residual| {
        let stale = ops.norm(&residual, &layers.final_norm).unwrap();
        // The second norm writes the same buffer.
        ops.norm(&residual, &layers.final_norm).unwrap();
        let _ = ops.add(residual, &stale, 1.0);
    });
}

#[test]
#[should_panic(expected = "the buffer Residual is read, which was written again")]
fn a_clone_of_a_tensor_that_changed_in_place_is_found() {
    with_ops(|ops, layers, residual| {
        let clone = residual.clone();
        let normed = ops.norm(&residual, &layers.final_norm).unwrap();
        ops.add(residual, &normed, 1.0).unwrap();
        // The clone is a tensor with the same memory and the same generation as before.
        let _ = ops.norm(&clone, &layers.final_norm);
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
