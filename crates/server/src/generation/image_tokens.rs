//! Puts the tokens of images into a prompt, in place of what the chat template writes for them.

use candlepower_engine::PromptImage;
use candlepower_tokenizer::Prompt;

use crate::generation::encoded_prompt::EncodedPrompt;
use crate::generation::pictures::Resized;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::image_input::ImageSupport;

/// The prompt with the text that stands for each image, as transformers' processors write it before they tokenize.
pub(crate) fn spelled_out(prompt: &Prompt, support: &ImageSupport) -> Option<Prompt> {
    let replaced = support.spellings.replaced.as_ref()?;
    Some(prompt.with_special(&support.spellings.written, replaced))
}

/// Replaces the i-th placeholder of a prompt by the tokens of the i-th image.
///
/// # Errors
/// 400 if the template has written another number of images, or if the images have more tokens than the context or the encoder.
pub(crate) fn place(
    token_ids: Vec<u32>,
    images: &[Resized],
    support: &ImageSupport,
    context: usize,
) -> ApiResult<EncodedPrompt> {
    let placeholder = support.tokens.placeholder;
    let written = token_ids.iter().filter(|id| **id == placeholder).count();
    if written != images.len() {
        let message = format!(
            "The chat template of this model cannot place the images: it writes {written} of the {} in these messages. Move images into messages of the role user.",
            images.len()
        );
        let path = images.first().map_or("messages", |image| image.path.as_str());
        return Err(ApiError::invalid(path, message));
    }
    check_sizes(token_ids.len() - written, images, support, context)?;
    let mut prompt = EncodedPrompt::default();
    let mut next = images.iter();
    for id in token_ids {
        let image = if id == placeholder { next.next() } else { None };
        match image {
            None => prompt.token_ids.push(id),
            Some(image) => add(&mut prompt, image, support),
        }
    }
    Ok(prompt)
}

/// Adds the tokens of an image. Its span ends with the last embedding, so that the token behind the image is text.
fn add(prompt: &mut EncodedPrompt, image: &Resized, support: &ImageSupport) {
    let pixels = image.image.image().pixels();
    let ids = support.tokens.ids(pixels.width(), pixels.height());
    let is_embedding = |id: &u32| *id == support.tokens.placeholder;
    let start = ids.iter().position(is_embedding).unwrap_or(0);
    let end = ids.iter().rposition(is_embedding).map_or(0, |last| last + 1);
    prompt.images.push(PromptImage {
        start: prompt.token_ids.len() + start,
        len: end - start,
        image: image.image.clone(),
    });
    prompt.token_ids.extend(ids);
}

/// Checks the numbers of embeddings before any of their tokens is written.
fn check_sizes(
    num_text_tokens: usize,
    images: &[Resized],
    support: &ImageSupport,
    context: usize,
) -> ApiResult<()> {
    let mut num_tokens = num_text_tokens;
    for image in images {
        let pixels = image.image.image().pixels();
        let embeddings = support.tokens.num_embeddings(pixels.width(), pixels.height());
        if let Some(most) = support.max_embeddings.filter(|most| embeddings > *most) {
            let message = format!(
                "The image has {embeddings} embeddings, and this server's encoder cache holds {most} (--encoder-cache-memory): send a smaller image, or set `detail` to low."
            );
            return Err(ApiError::invalid_as("image_too_large", &image.path, &message));
        }
        num_tokens = num_tokens.saturating_add(embeddings);
    }
    if num_tokens > context {
        let message = format!(
            "This model's maximum context length is {context} tokens, but the prompt has at least {num_tokens} with its images: send fewer or smaller images, or set `detail` to low."
        );
        return Err(ApiError::context_length("messages", message));
    }
    Ok(())
}
