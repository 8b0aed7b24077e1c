//! What is packed for the kernels are the numbers that the format defines, to the bit.

use std::path::Path;

use candle_core::{Device, Tensor};
use candlepower_checkpoint::{CheckpointFiles, MatrixForm};
use candlepower_kernels::{Weight, embedding};

use super::*;

/// Packs a matrix alone and reads it back.
fn packed_numbers(matrix: &AnyStored, tensor: &TensorPlan) -> Vec<f32> {
    let &[n, k] = tensor.shape.as_slice() else { panic!("{} is no matrix", tensor.name) };
    let MatrixForm::Quantized(packed) = tensor.form() else { panic!("{} is plain", tensor.name) };
    let mut builder = Weight::quantized_builder(n, k, codes(packed), packed.group).unwrap();
    let mut write = |first, rows: QuantizedRows<'_>| Ok(builder.write_quantized(first, rows)?);
    matrix.each_piece(0..n, k, &mut write).unwrap();
    if let Some(sparse) = matrix.stored().sparse() {
        builder.write_sparse(0, sparse).unwrap();
    }
    let weight = builder.finish().unwrap();
    let all_rows = Tensor::arange(0, n as u32, &Device::Cpu).unwrap();
    embedding(&all_rows, &weight, 1.0).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn packed_numbers_are_those_of_the_format_to_the_bit() {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let mut seen = 0;
    let folders = std::fs::read_dir(goldens).unwrap().map(|folder| folder.unwrap().path());
    // Those of encoders lie in a folder of their own.
    for folder in folders.filter(|folder| !folder.ends_with("encoders")) {
        let files = CheckpointFiles::find(&folder).unwrap().unwrap();
        let checkpoint = Checkpoint::open(files).unwrap();
        let plan = checkpoint.tensor_plan();
        let shards = Shards::open(&checkpoint).unwrap();
        shards.check(&checkpoint, &plan).unwrap();
        for tensor in &plan {
            let Some(scheme) = tensor.scheme else { continue };
            let matrix = open(&shards, tensor, scheme).unwrap();
            let found = packed_numbers(&matrix, tensor);
            let k = tensor.shape[1];
            for (i, found) in found.iter().enumerate() {
                let defined = matrix.stored().number(i / k, i % k);
                assert_eq!(
                    found.to_bits(),
                    defined.to_bits(),
                    "{:?} {} [{}, {}]: {found}, not {defined}",
                    checkpoint.files(),
                    tensor.name,
                    i / k,
                    i % k
                );
            }
            seen += 1;
        }
    }
    assert!(seen > 50, "only {seen} quantized matrices in the goldens");
}
