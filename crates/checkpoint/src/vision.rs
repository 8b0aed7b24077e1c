//! The description of a vision tower: how an image becomes embeddings, and which tokens stand for it.

use candlepower_media::Family;

/// The part of a model that turns images into embeddings.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionSpec {
    /// The processor that makes pixel values.
    pub family: Family,
    /// The tokens of an image in a prompt.
    pub tokens: ImageTokens,
    /// Whether the tokens of an image see each other both ways in the decoder.
    pub both_ways: bool,
    /// Number of the tower's layers.
    pub layers: usize,
}

/// The tokens of an image in a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageTokens {
    /// Token id of the positions that take an embedding.
    pub placeholder: u32,
    /// The form in which a chat template writes an image.
    pub written: WrittenImage,
    /// The number of embeddings, and the tokens between them.
    pub grid: ImageGrid,
}

/// The form in which a chat template writes an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenImage {
    /// One placeholder, which becomes the tokens of the image.
    Placeholder,
    /// The token `begin`, which becomes a blank line, `begin`, the image, `end` and a blank line (Gemma 3).
    Begin {
        /// Token before the image.
        begin: u32,
        /// Token behind the image.
        end: u32,
    },
}

/// The number of an image's embeddings, and the tokens between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageGrid {
    /// As many for every image.
    Fixed(usize),
    /// One for each cell of the resized picture, row by row.
    Cells {
        /// Side of a cell in pixels.
        cell: u32,
        /// Token behind each row but the last one.
        row_end: Option<u32>,
        /// Token behind the last row.
        image_end: Option<u32>,
    },
}

impl ImageTokens {
    /// Number of embeddings of a resized picture of `width` x `height` pixels.
    pub fn num_embeddings(&self, width: u32, height: u32) -> usize {
        match self.grid {
            ImageGrid::Fixed(count) => count,
            ImageGrid::Cells { cell, .. } => (width / cell) as usize * (height / cell) as usize,
        }
    }

    /// Token ids that take the place of one placeholder, for a resized picture of `width` x `height` pixels.
    pub fn ids(&self, width: u32, height: u32) -> Vec<u32> {
        match self.grid {
            ImageGrid::Fixed(count) => vec![self.placeholder; count],
            ImageGrid::Cells { cell, row_end, image_end } => {
                let (rows, columns) = ((height / cell) as usize, (width / cell) as usize);
                let mut ids = Vec::with_capacity(rows * (columns + 1));
                for row in 0..rows {
                    ids.extend(std::iter::repeat_n(self.placeholder, columns));
                    ids.extend(if row + 1 == rows { image_end } else { row_end });
                }
                ids
            }
        }
    }
}

impl VisionSpec {
    /// Tokens of a step's budget that one piece takes for a resized picture.
    pub fn tokens_per_piece(&self, _: u32, _: u32, _: &crate::ModelSpec) -> usize {
        1
    }

    /// Number of pieces of a tower's run, which is as many for every image.
    pub fn num_pieces(&self) -> u32 {
        self.layers as u32
    }
}
