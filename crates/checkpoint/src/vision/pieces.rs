//! The pieces of a tower's run over a picture.
//!
//! A scheduler computes a picture piece by piece, beside the rows of texts. A piece is a group of rows of one part of the run, so
//! that it takes a fraction of a layer's time.

use super::{PatchOrder, VisionSpec};
use crate::spec::ModelSpec;

/// Rows of a picture that are computed together.
pub(super) const PIECE_ROWS: usize = 512;

/// A part of a tower's run. A part reads the results of earlier parts and begins when they are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TowerPart {
    /// Pixels become the input of the first layer.
    Embed,
    /// Queries, keys and values of a layer.
    Project {
        /// Index of the layer.
        layer: usize,
    },
    /// Attention of a layer and its feed-forward.
    Attend {
        /// Index of the layer.
        layer: usize,
    },
    /// The merger of a deepstack level.
    Level {
        /// Index in [`VisionSpec::deepstack`].
        level: usize,
    },
    /// The merger and the projector behind the last layer.
    Merge,
}

/// A piece of a tower's run: some rows of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TowerPiece {
    /// The part that it belongs to.
    pub part: TowerPart,
    /// Its first patch.
    pub first: usize,
    /// Number of its patches.
    pub rows: usize,
    /// Whether it completes its part.
    pub ends_part: bool,
}

impl VisionSpec {
    /// The pieces of a run over a grid of `rows` x `columns` patches, in their order.
    pub fn pieces(&self, rows: usize, columns: usize) -> impl Iterator<Item = TowerPiece> {
        let patches = rows * columns;
        let merged = self.merged_rows(columns);
        self.parts().flat_map(move |part| {
            let group = match part {
                TowerPart::Level { .. } | TowerPart::Merge => merged,
                _ => PIECE_ROWS,
            };
            (0..patches).step_by(group).map(move |first| {
                let rows = group.min(patches - first);
                TowerPiece { part, first, rows, ends_part: first + rows == patches }
            })
        })
    }

    /// Number of pieces of a run over a resized picture of `width` x `height` pixels.
    pub fn num_pieces(&self, width: u32, height: u32) -> u32 {
        let (rows, columns) = self.patch_grid(width, height);
        self.pieces(rows, columns).count() as u32
    }

    fn parts(&self) -> impl Iterator<Item = TowerPart> {
        let of_layer = |layer| {
            let level = self.deepstack.iter().position(|with_level| *with_level == layer);
            let level = level.map(|level| TowerPart::Level { level });
            [TowerPart::Project { layer }, TowerPart::Attend { layer }].into_iter().chain(level)
        };
        let layers: Vec<_> = (0..self.layers).flat_map(of_layer).collect();
        [TowerPart::Embed].into_iter().chain(layers).chain([TowerPart::Merge])
    }

    /// Patches that a merger takes together: whole cells, which are in one place or spread over rows of patches.
    fn merged_rows(&self, columns: usize) -> usize {
        let side = self.merger.side;
        let unit = match self.patches.order {
            PatchOrder::Cells { .. } => side * side,
            PatchOrder::Rows => side * columns,
        };
        (PIECE_ROWS / unit.max(1)).max(1) * unit.max(1)
    }

    /// The mean work of a piece of a run over a resized picture of `width` x `height` pixels, in tokens of `decoder`, at least 1.
    ///
    /// Both are counted in multiply-adds.
    pub fn tokens_per_piece(&self, width: u32, height: u32, decoder: &ModelSpec) -> usize {
        let pieces = f64::from(self.num_pieces(width, height).max(1));
        ((self.work(width, height) / pieces / decoder.token_work()).ceil() as usize).max(1)
    }
}
