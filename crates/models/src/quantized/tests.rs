//! The packed weights are the dequantized values of the reference, to the bit.

use candle_core::{Device, Tensor};
use candlepower_checkpoint::CheckpointFiles;
use candlepower_kernels::embedding;
use candlepower_testing::goldens::{root, write_weights};

use super::*;

/// Packs the planned columns of a matrix alone and reads them back.
fn dequantized(matrix: &AnyStored, tensor: &TensorPlan) -> Vec<f32> {
    let (n, columns) = (tensor.shape[0], tensor.columns().unwrap());
    let packed = tensor.scheme.expect("the matrix is quantized").packed(columns.len());
    let mut builder = builder(n, columns.len(), packed).unwrap();
    let mut write = |first, rows: QuantizedRows<'_>| Ok(builder.write_quantized(first, rows)?);
    matrix.each_piece(0..n, columns.clone(), &mut write).unwrap();
    if let Some(sparse) = matrix.stored().sparse() {
        let (starts, inputs, values) = columns_of(sparse, &columns);
        let sparse = SparseRows { starts: &starts, inputs: &inputs, values: &values };
        builder.write_sparse(0, sparse).unwrap();
    }
    let weight = builder.finish().unwrap();
    let all_rows = Tensor::arange(0, n as u32, &Device::Cpu).unwrap();
    embedding(&all_rows, &weight, 1.0).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// All columns, and, where their order allows it, the columns before and after the end of the first group, or the middle.
fn parts(matrix: &AnyStored, k: usize) -> Vec<Option<Range<usize>>> {
    let group = matrix.stored().packed().group;
    let end = if group < k { group } else { k / 2 };
    match matrix.stored().inputs() {
        Some(_) => vec![None],
        None => vec![None, Some(0..end), Some(end..k)],
    }
}

#[test]
fn packed_values_are_those_of_the_format_to_the_bit() {
    let mut seen = 0;
    let folders = std::fs::read_dir(root()).unwrap().map(|folder| folder.unwrap().path());
    // These have folders of their own, or no checkpoint.
    let others = ["encoders", "on-load", "vision_pictures"];
    for folder in folders.filter(|folder| !others.iter().any(|other| folder.ends_with(other))) {
        write_weights(&folder).unwrap();
        let files = CheckpointFiles::find(&folder).unwrap().unwrap();
        let checkpoint = Checkpoint::open(files).unwrap();
        let shards = Shards::open(&checkpoint).unwrap();
        let mut plan = shards.plan(&checkpoint);
        shards.check(&checkpoint, &plan).unwrap();
        note_scales(&mut plan, &shards).unwrap();
        for tensor in &plan {
            let Some(scheme) = tensor.scheme else { continue };
            let matrix = open(&shards, tensor, scheme).unwrap();
            for columns in parts(&matrix, tensor.shape[1]) {
                let tensor = TensorPlan { columns: columns.clone(), ..tensor.clone() };
                let found = dequantized(&matrix, &tensor);
                let columns = tensor.columns().unwrap();
                for (i, found) in found.iter().enumerate() {
                    let (row, column) = (i / columns.len(), columns.start + i % columns.len());
                    let defined = matrix.stored().value(row, column);
                    assert_eq!(
                        found.to_bits(),
                        defined.to_bits(),
                        "{:?} {} [{row}, {column}] of {columns:?}: {found}, not {defined}",
                        checkpoint.files(),
                        tensor.name,
                    );
                }
            }
            seen += 1;
        }
    }
    // The bound only shows that goldens of all methods were found.
    assert!(seen > 50, "only {seen} quantized matrices in the goldens");
}
