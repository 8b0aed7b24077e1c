//! Replaces the beginning of a prompt by the tokens of a stored response, which are in the prefix cache.

use candlepower_engine::PromptImage;
use candlepower_tokenizer::Tokenizer;

use crate::generation::encoded_prompt::EncodedPrompt;
use crate::model::stored_responses::KnownTokens;

/// Replaces the first tokens of the prompt by `known` ones of the same text, which are in the prefix cache. A model may generate a text
/// in other tokens than the tokenizer splits it into, and only equal tokens hit the cache. A prompt with another prefix stays.
pub(crate) fn with_known_prefix(
    tokenizer: &Tokenizer,
    known: &KnownTokens,
    prompt: EncodedPrompt,
) -> EncodedPrompt {
    let ids = &prompt.token_ids;
    let bytes = |ids: &[u32]| {
        ids.iter().flat_map(|id| tokenizer.token_bytes(*id).to_vec()).collect::<Vec<u8>>()
    };
    let beginning = bytes(&known.token_ids);
    let mut num_bytes = 0;
    let end = ids.iter().position(|id| {
        num_bytes += tokenizer.token_bytes(*id).len();
        num_bytes >= beginning.len()
    });
    // A prompt shorter than the known tokens cannot begin with them.
    let Some(end) = end.map(|index| index + 1) else { return prompt };
    let special = |ids: &[u32]| -> Vec<u32> {
        ids.iter().copied().filter(|id| tokenizer.is_special(*id)).collect()
    };
    let (same, rest) = ids.split_at(end);
    // A special token has the same bytes as its spelling in ordinary tokens, but another meaning.
    let is_same = bytes(same) == beginning && special(same) == special(&known.token_ids);
    let images = moved_images(&prompt.images, known, end);
    match images.filter(|_| is_same && !known.token_ids.is_empty()) {
        Some(images) => EncodedPrompt { token_ids: [&known.token_ids, rest].concat(), images },
        None => prompt,
    }
}

/// The images of a prompt at their positions after `known` has taken the place of its first `end` tokens. `None` if the known tokens
/// have other images.
fn moved_images(
    images: &[PromptImage],
    known: &KnownTokens,
    end: usize,
) -> Option<Vec<PromptImage>> {
    let within = images.iter().take_while(|image| image.start + image.len <= end).count();
    let lens = images[..within].iter().map(|image| image.len);
    let is_cut = images.get(within).is_some_and(|image| image.start < end);
    if is_cut || !lens.eq(known.images.iter().map(|(_, len)| *len)) {
        return None;
    }
    let mut moved = images.to_vec();
    for (image, (start, _)) in moved.iter_mut().zip(&known.images) {
        image.start = *start;
    }
    for image in &mut moved[within..] {
        image.start = image.start - end + known.token_ids.len();
    }
    Some(moved)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candlepower_media::{
        Detail, Family, ImageBudget, Limits, Picture, Processor, WaitingImage,
    };
    use candlepower_tokenizer::AddSpecialTokens;

    use super::*;
    use crate::lifecycle::demo;

    #[test]
    fn known_tokens_take_the_place_of_others_that_read_the_same() {
        let tokenizer = demo::tokenizer();
        let encode = |text: &str| tokenizer.encode(text, AddSpecialTokens::No).unwrap();
        let whole = encode("The capital of France is Paris.<|im_end|>\n");
        let letters: Vec<u32> =
            "The capital".chars().flat_map(|c| encode(&c.to_string())).collect();
        let num_whole = encode("The capital").len();
        assert!(letters.len() > num_whole);
        let replaced = |known: &[u32]| {
            let known = KnownTokens { token_ids: known.to_vec(), images: Vec::new() };
            with_known_prefix(&tokenizer, &known, whole.clone().into()).token_ids
        };
        let found = replaced(&letters);
        assert_eq!(found, [&letters[..], &whole[num_whole..]].concat());
        for other in
            ["The capitol", "Not it", "The capital of France is Paris.<|im_end|>\n and more"]
        {
            assert_eq!(replaced(&encode(other)), whole);
        }
        assert_eq!(replaced(&[]), whole);
    }

    #[test]
    fn images_move_with_their_tokens() {
        let tokenizer = demo::tokenizer();
        let encode = |text: &str| tokenizer.encode(text, AddSpecialTokens::No).unwrap();
        let letters = |text: &str| text.chars().flat_map(|c| encode(&c.to_string())).collect();
        let image: Vec<u32> = vec![tokenizer.token_to_id("<|im_end|>").unwrap(); 4];
        let [before, behind]: [Vec<u32>; 2] = ["The capital", " of France"].map(encode);
        let [long_before, long_behind]: [Vec<u32>; 2] = ["The capital", " of France"].map(letters);
        assert!(long_before.len() > before.len());
        let spans = |prompt: &EncodedPrompt| {
            prompt.images.iter().map(|image| (image.start, image.len)).collect::<Vec<_>>()
        };
        let held = waiting();
        let span = |start| PromptImage { start, len: image.len(), image: Arc::clone(&held) };
        let second = before.len() + image.len() + behind.len();
        let prompt = EncodedPrompt {
            token_ids: [&before[..], &image, &behind, &image, &before].concat(),
            images: vec![span(before.len()), span(second)],
        };
        let known = |images: &[(usize, usize)]| KnownTokens {
            token_ids: [&long_before[..], &image, &long_behind].concat(),
            images: images.to_vec(),
        };
        let first = (long_before.len(), image.len());
        let found = with_known_prefix(&tokenizer, &known(&[first]), prompt.clone());
        let expected = [&long_before[..], &image, &long_behind, &image, &before].concat();
        assert_eq!(found.token_ids, expected);
        let second = long_before.len() + image.len() + long_behind.len();
        assert_eq!(spans(&found), [first, (second, image.len())]);
        for images in [&[][..], &[(first.0, 3)], &[first, first]] {
            let found = with_known_prefix(&tokenizer, &known(images), prompt.clone());
            assert_eq!(found.token_ids, prompt.token_ids, "{images:?}");
        }
    }

    /// A picture that waits for the encoder.
    fn waiting() -> Arc<WaitingImage> {
        let settings = br#"{"image_processor_type": "PixtralImageProcessor", "patch_size": 4, "size": {"longest_edge": 8}}"#;
        let processor = Processor::read(Family::Pixtral, Some(settings), None).unwrap();
        let picture = Picture::new(8, 8, vec![0; 8 * 8 * 3]).unwrap();
        let image = processor.process(&picture, Detail::Full, &Limits::default()).unwrap();
        Arc::new(ImageBudget::new(1 << 20).keep(image).unwrap())
    }
}
