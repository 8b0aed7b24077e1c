//! Pieces of other sizes have the same bits.

use candlepower_checkpoint::{CheckpointFiles, PatchOrder};
use candlepower_media::{Deadline, Detail, Limits};
use candlepower_testing::goldens::{VISION, folder, root};

use super::*;
use crate::{LoadDtype, LoadFormat};

/// The pieces of a run in groups of one unit: a cell or a row of cells where cells are merged, and some patches elsewhere.
fn small(encoder: &ImageEncoder, grid: Grid, patches: usize) -> Vec<TowerPiece> {
    let side = encoder.spec.merger.side;
    let cells = match encoder.spec.patches.order {
        PatchOrder::Rows => side * grid.columns,
        PatchOrder::Cells { .. } => side * side,
    };
    let pieces = encoder.spec.pieces(grid.rows, grid.columns);
    let split = pieces.flat_map(|piece| {
        let group = match piece.part {
            TowerPart::Level { .. } | TowerPart::Merge => cells,
            _ => patches,
        };
        groups(piece.rows, group).map(move |(first, rows)| {
            let ends_part = piece.ends_part && first + rows == piece.rows;
            TowerPiece { first: piece.first + first, rows, ends_part, ..piece }
        })
    });
    split.collect()
}

fn results(run: &ImageRun) -> Vec<Vec<Vec<f32>>> {
    let embeddings = run.embeddings().unwrap();
    [embeddings].into_iter().chain(run.deepstack()).map(|all| all.to_vec2().unwrap()).collect()
}

#[test]
fn groups_of_rows_have_the_bits_of_all_together() {
    for golden in VISION.iter().copied() {
        let checkpoint = Checkpoint::open(CheckpointFiles::Folder(folder(golden))).unwrap();
        let processor = checkpoint.image_processor().unwrap().unwrap();
        let limits = Limits::default();
        let bytes = std::fs::read(root().join("vision_pictures/large.png")).unwrap();
        let picture = candlepower_media::decode(&bytes, &limits, &Deadline::default()).unwrap();
        let image = processor.process(&picture, Detail::Full, &limits).unwrap();
        for dtype in [LoadDtype::F32, LoadDtype::Bf16] {
            let options = LoadOptions {
                device: Device::Cpu,
                dtype,
                load_format: LoadFormat::Auto,
                max_model_len: None,
            };
            let encoder = ImageEncoder::load(&checkpoint, &options).unwrap().unwrap();
            let all = |patches: Option<usize>| {
                let mut run = encoder.begin(&image).unwrap();
                if let Some(patches) = patches {
                    run.pieces = small(&encoder, run.grid, patches).into_iter();
                }
                while run.embeddings().is_none() {
                    encoder.advance(&mut run).unwrap();
                }
                results(&run)
            };
            let whole = all(None);
            for patches in [1, 5, 16] {
                assert!(all(Some(patches)) == whole, "{golden} {dtype:?} {patches}");
            }
        }
    }
}
