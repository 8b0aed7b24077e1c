//! Reads the images of a conversation: checks that the model takes them, decodes and resizes them on a preparing thread.
//!
//! Images of URLs are fetched before, by the event loop: a preparation that needs them stops with [`Preparation::wait_for`], and
//! begins again when they are there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candlepower_api::{ChatMessage, ImageDetail, ImagePart, ImageSource, clip};
use candlepower_media::{
    Deadline, Detail, Encoded, Error, ErrorKind, Fetcher, Limits, Picture, WaitingImage, decode,
};
use tokio::sync::OwnedSemaphorePermit;

use crate::generation::cancellation;
use crate::generation::preparation::Preparation;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::image_input::{ImageInput, ImageSupport};
use crate::model::served_model::LoadedModel;

/// Time limit of one image, for fetching it and for decoding it.
pub(crate) const IMAGE_DEADLINE: Duration = Duration::from_secs(10);

/// Pictures of at most this size are decoded without waiting for memory.
const SMALL_PIXELS: u64 = 1_000_000;

/// An image of a conversation, resized for the model.
pub(crate) struct Resized {
    /// Path of its source in the request.
    pub(crate) path: String,
    pub(crate) image: Arc<WaitingImage>,
}

/// The images that a preparation waits for.
pub(crate) struct WantedImages {
    pub(crate) fetcher: Arc<Fetcher>,
    /// Paths and URLs; each URL once.
    pub(crate) urls: Vec<(String, String)>,
    /// Number of images, those within the body included.
    pub(crate) num_images: usize,
}

/// The encoded bytes of fetched images, by URL.
#[derive(Default)]
pub(crate) struct FetchedImages {
    pub(crate) by_url: HashMap<String, Encoded>,
    /// Their share of the memory for bodies, released on drop.
    pub(crate) memory: Vec<OwnedSemaphorePermit>,
}

/// The images of a conversation, in their order.
///
/// # Errors
/// 400 with the path of an image that cannot be read, or that this model does not take; 429 if the memory for images is full.
pub(crate) fn read<M>(
    preparation: &Preparation<'_, M>,
    model: &LoadedModel,
    messages: &[ChatMessage],
) -> ApiResult<Vec<Resized>> {
    let parts: Vec<&ImagePart> =
        messages.iter().flat_map(ChatMessage::images).map(Arc::as_ref).collect();
    let Some(first) = parts.first() else { return Ok(Vec::new()) };
    let support = match &model.images {
        ImageInput::Taken(support) => support,
        ImageInput::Refused(reason) => {
            return Err(ApiError::images_not_taken(&first.path, reason.message()));
        }
    };
    if let Some(beyond) = parts.get(support.max_images) {
        let message = format!(
            "The request has {} images, and this server accepts at most {} (--limit-mm-per-prompt).",
            parts.len(),
            support.max_images
        );
        return Err(ApiError::invalid(&beyond.path, message));
    }
    if !support.places.user {
        let message = "The chat template of this model does not write images: start the server with another --chat-template.";
        return Err(ApiError::invalid(&first.path, message));
    }
    let Some(fetched) = preparation.fetched() else {
        return Err(preparation.wait_for(wanted(&parts, support)));
    };
    parts.into_iter().map(|part| read_one(part, support, fetched)).collect()
}

fn wanted(parts: &[&ImagePart], support: &ImageSupport) -> WantedImages {
    let mut urls: Vec<(String, String)> = Vec::new();
    for part in parts {
        if let ImageSource::Url(url) = &part.source
            && !part.source.is_inline()
            && urls.iter().all(|(_, known)| known != url)
        {
            urls.push((part.path.clone(), url.clone()));
        }
    }
    WantedImages { fetcher: Arc::clone(&support.fetcher), urls, num_images: parts.len() }
}

/// Decodes and resizes one image.
fn read_one(
    part: &ImagePart,
    support: &ImageSupport,
    fetched: &FetchedImages,
) -> ApiResult<Resized> {
    let path = &part.path;
    let began = Instant::now();
    let failed = |error: Error| image_error(path, &error);
    let limits = &support.limits;
    let found: Encoded;
    let encoded = match &part.source {
        ImageSource::Url(url) if !part.source.is_inline() => fetched
            .by_url
            .get(url)
            .ok_or_else(|| ApiError::internal("Defect of the server: an image was not fetched."))?,
        ImageSource::Url(url) => {
            found = Encoded::from_data_url(url, limits).map_err(failed)?;
            &found
        }
        ImageSource::Base64 { media_type, data } => {
            found = Encoded::from_base64(data, Some(media_type), limits).map_err(failed)?;
            &found
        }
    };
    let (picture, _held) = decode_in_turn(encoded, support).map_err(failed)?;
    let image = resize(&picture, part, support)?;
    support.metrics.processed.increment(1);
    support.metrics.processing_time.record(began.elapsed().as_secs_f64());
    Ok(Resized { path: path.clone(), image: Arc::new(image) })
}

/// Decodes an image. A large one waits until others leave it memory, and holds it by the permit.
fn decode_in_turn(
    encoded: &Encoded,
    support: &ImageSupport,
) -> Result<(Picture, Option<OwnedSemaphorePermit>), Error> {
    let deadline = || Deadline::with_cancel(IMAGE_DEADLINE, cancellation::flag());
    let limits = support.limits;
    let small = Limits { max_pixels: SMALL_PIXELS.min(limits.max_pixels), ..limits };
    let held = match decode(encoded.bytes(), &small, &deadline()) {
        // The header is checked before memory is reserved, so that this costs nothing.
        Err(Error::TooManyPixels { width, height, .. }) => {
            let pixels = width.saturating_mul(height);
            (pixels <= limits.max_pixels).then(|| support.decoding.wait_for(pixels))
        }
        decoded => return decoded.map(|picture| (picture, None)),
    };
    Ok((decode(encoded.bytes(), &limits, &deadline())?, held))
}

/// Resizes a picture for the model, and reserves memory for the result.
fn resize(picture: &Picture, part: &ImagePart, support: &ImageSupport) -> ApiResult<WaitingImage> {
    let detail = match part.detail {
        ImageDetail::Full => Detail::Full,
        ImageDetail::Low => Detail::Low,
    };
    let processed = support.processor.process(picture, detail, &support.limits);
    let processed = processed.map_err(|error| image_error(&part.path, &error))?;
    let (bytes, limit) = (processed.bytes(), support.budget.limit());
    if bytes > limit {
        let message = format!(
            "The image at `{}` takes {bytes} bytes in the model's size, and this server has {limit} for all images (--image-memory): send a smaller one.",
            part.path
        );
        return Err(ApiError::invalid_as("image_too_large", &part.path, &message));
    }
    support.budget.keep(processed).ok_or_else(|| ApiError::images_full(limit))
}

/// The 400 of an image at `path` that cannot be read.
pub(crate) fn image_error(path: &str, error: &Error) -> ApiError {
    if error.kind() == ErrorKind::Configuration {
        return ApiError::internal(error.to_string());
    }
    // Only hosts of clients' URLs make a reason long.
    let reason = error.to_string();
    let reason = if reason.len() > 200 { clip(&reason) } else { reason };
    let message = format!("The image at `{path}` cannot be used: {reason}.");
    ApiError::invalid_as(error.kind().code(), path, &message)
}
