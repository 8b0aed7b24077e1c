//! The rope positions of prompts with images, for models whose tokens have a frame, a row and a column.

use candlepower_scheduler::RopePositions;

/// The cells of an image among the tokens of a prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImageCells {
    /// Position of its first token.
    pub(crate) start: usize,
    /// Rows of cells. Each cell is a token.
    pub(crate) rows: u32,
    /// Columns of cells.
    pub(crate) columns: u32,
}

/// The rope positions of a prompt of `num_tokens` tokens.
///
/// The three positions of text are equal, and increase by one with each token. An image is one frame: its rows and
/// columns count from the position after the text before it. The text behind it goes on after the largest of its
/// positions, as if the image had as many tokens as its longer side.
///
/// Source: transformers `models/qwen3_vl`, `get_rope_index`.
pub(crate) fn rope_positions(num_tokens: usize, images: &[ImageCells]) -> RopePositions {
    let mut prompt: Vec<[u32; 3]> = Vec::with_capacity(num_tokens);
    let mut next = 0u32;
    let text_until = |end: usize, prompt: &mut Vec<[u32; 3]>, next: &mut u32| {
        while prompt.len() < end {
            prompt.push([*next; 3]);
            *next += 1;
        }
    };
    for ImageCells { start, rows, columns } in images {
        text_until(*start, &mut prompt, &mut next);
        for row in 0..*rows {
            prompt.extend((0..*columns).map(|column| [next, next + row, next + column]));
        }
        next += rows.max(columns);
    }
    text_until(num_tokens, &mut prompt, &mut next);
    // Both fit 32 bits, since a context does.
    let offset = next as i32 - num_tokens as i32;
    RopePositions { prompt, offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_count_as_their_longer_side() {
        let images = [
            ImageCells { start: 2, rows: 2, columns: 3 },
            ImageCells { start: 9, rows: 2, columns: 1 },
        ];
        let found = rope_positions(12, &images);
        let text = |p| [p; 3];
        let first = [[2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4]];
        let mut expected = vec![text(0), text(1)];
        expected.extend(first);
        expected.extend([text(5), [6, 6, 6], [6, 7, 6], text(8)]);
        assert_eq!(found.prompt, expected);
        assert_eq!(found.offset, 9 - 12);
        assert_eq!(rope_positions(3, &[]).offset, 0);
    }
}
