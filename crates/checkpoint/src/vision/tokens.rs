//! The tokens that stand for an image in a prompt.

use crate::error::{Error, Result};

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
    /// A number that is the same for every image.
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

/// Texts of tokens whose ids are the tokenizer's to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenTexts {
    /// Text of the placeholder, whose id the configuration gives, too.
    pub placeholder: String,
    /// Text of the token behind each row but the last one.
    pub row_end: String,
    /// Text of the token behind the last row.
    pub image_end: String,
}

impl ImageTokens {
    /// Sets the tokens between embeddings, whose ids `id_of` knows by their texts.
    ///
    /// # Errors
    /// The tokenizer has no such token, or another placeholder than the configuration.
    pub(crate) fn set_ids(
        &mut self,
        texts: &TokenTexts,
        id_of: &dyn Fn(&str) -> Option<u32>,
    ) -> Result<()> {
        let id =
            |text: &str| id_of(text).ok_or_else(|| Error::ImageToken { text: text.to_owned() });
        let found = id(&texts.placeholder)?;
        if found != self.placeholder {
            let (text, expected) = (texts.placeholder.clone(), self.placeholder);
            return Err(Error::ImagePlaceholder { text, found, expected });
        }
        if let ImageGrid::Cells { row_end, image_end, .. } = &mut self.grid {
            (*row_end, *image_end) = (Some(id(&texts.row_end)?), Some(id(&texts.image_end)?));
        }
        Ok(())
    }
}
