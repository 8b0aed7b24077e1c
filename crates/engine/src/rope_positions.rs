//! The rope positions of prompts with images, for models whose tokens have a frame, a row and a column.

use std::sync::Arc;

use candlepower_checkpoint::VisionSpec;
use candlepower_scheduler::RopePositions;

use crate::PromptImage;

/// The rope positions of a prompt, where the decoder rotates tokens of images by their rows and columns.
pub(crate) fn rope_of(
    num_tokens: usize,
    images: &[PromptImage],
    vision: &VisionSpec,
) -> Option<Arc<RopePositions>> {
    let cells = |image: &PromptImage| {
        let pixels = image.image.image().pixels();
        let (rows, columns) = vision.cell_grid(pixels.width(), pixels.height());
        ImageCells { start: image.start, rows: rows as u32, columns: columns as u32 }
    };
    let needed = vision.grid_positions && !images.is_empty();
    needed.then(|| {
        let images: Vec<ImageCells> = images.iter().map(cells).collect();
        Arc::new(rope_positions(num_tokens, &images))
    })
}

/// The cells of an image among the tokens of a prompt.
#[derive(Clone, Copy, Debug)]
struct ImageCells {
    /// Position of its first token.
    start: usize,
    /// Rows of cells. Each cell is a token.
    rows: u32,
    /// Columns of cells.
    columns: u32,
}

/// The rope positions of a prompt of `num_tokens` tokens.
///
/// The three positions of text are equal, and increase by one with each token. An image is one frame: its rows and
/// columns count from the position after the text before it. The text behind it goes on after the largest of its
/// positions, as if the image had as many tokens as its longer side.
///
/// Source: transformers `models/qwen3_vl`, `get_rope_index`.
fn rope_positions(num_tokens: usize, images: &[ImageCells]) -> RopePositions {
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
    use candlepower_checkpoint::{Checkpoint, CheckpointFiles};
    use candlepower_media::{Deadline, Detail, ImageBudget, Limits, decode};
    use candlepower_testing::goldens::{VISION, VisionGolden, folder, picture};

    use super::*;

    /// Every prompt of the goldens whose models have such positions, and none of the others.
    #[test]
    fn positions_are_those_of_transformers() {
        let (limits, budget) = (Limits::default(), ImageBudget::new(1 << 20));
        let mut compared = 0;
        for name in VISION {
            let checkpoint = Checkpoint::open(CheckpointFiles::Folder(folder(name))).unwrap();
            let vision = checkpoint.vision().unwrap();
            let processor = checkpoint.image_processor().unwrap().unwrap();
            let image = |(name, start, len): &(String, usize, usize)| {
                let bytes = std::fs::read(picture(name)).unwrap();
                let decoded = decode(&bytes, &limits, &Deadline::default()).unwrap();
                let processed = processor.process(&decoded, Detail::Full, &limits).unwrap();
                let image = Arc::new(budget.keep(processed).unwrap());
                PromptImage { start: *start, len: *len, image }
            };
            for (case, golden) in VisionGolden::read(name).cases {
                let images: Vec<PromptImage> = golden.images.iter().map(image).collect();
                let found = rope_of(golden.input_ids.len(), &images, vision);
                let Some([frames, rows, columns]) = golden.position_ids else {
                    assert_eq!(found, None, "{name} {case}");
                    continue;
                };
                let each = frames.into_iter().zip(rows).zip(columns);
                let prompt: Vec<[u32; 3]> =
                    each.map(|((frame, row), column)| [frame, row, column]).collect();
                let Some(found) = found else {
                    // Text alone has the positions of its tokens.
                    let plain = prompt.iter().enumerate().all(|(i, p)| *p == [i as u32; 3]);
                    assert!(images.is_empty() && plain, "{name} {case}");
                    continue;
                };
                assert_eq!(found.prompt, prompt, "{name} {case}");
                assert_eq!(Some(found.offset), golden.rope_delta, "{name} {case}");
                compared += 1;
            }
        }
        assert_eq!(compared, 44, "eleven prompts with images for each of four models");
    }

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
