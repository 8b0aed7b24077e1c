//! Stored responses, which later requests continue with `previous_response_id`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candlepower_api::{ChatMessage, Content, ImagePart, ImageSource, excerpt};
use candlepower_engine::CallerId;
use serde_json::Value;

use crate::model::api_error::{ApiError, ApiResult};

/// Maximum number of stored responses, and of their bytes. The oldest response of the caller with the most bytes is removed first.
const MAX_RESPONSES: usize = 1024;
const MAX_BYTES: usize = 64 << 20;
/// Maximum bytes of the images of all stored responses, which are counted apart. Beyond it, responses lose their images in the same
/// order, and stay without them.
const MAX_IMAGE_BYTES: usize = 64 << 20;

/// The field of a request that names a stored response, and so its images.
const PREVIOUS: &str = "previous_response_id";

/// A response and its conversation.
#[derive(Debug)]
pub(crate) struct StoredResponse {
    /// Only this caller may read it.
    owner: CallerId,
    /// The conversation including the response, without instructions.
    pub(crate) messages: Vec<ChatMessage>,
    /// The tokens of the prompt and the answer, as they are in the prefix cache.
    pub(crate) known: KnownTokens,
    /// The response object as JSON text, which takes a fraction of the memory of parsed values.
    pub(crate) object: Box<str>,
    /// Approximate bytes of the whole, without images.
    num_bytes: usize,
    images: StoredImages,
}

/// Tokens whose KV blocks may be in the prefix cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownTokens {
    pub(crate) token_ids: Vec<u32>,
    /// Starts and lengths of the images in `token_ids`.
    pub(crate) images: Vec<(usize, usize)>,
}

/// The images in the messages of a stored response.
#[derive(Clone, Copy, Debug)]
enum StoredImages {
    /// All of them, with this number of bytes.
    Held(usize),
    /// Their bytes were removed.
    Gone,
}

impl StoredResponse {
    pub(crate) fn new(
        owner: CallerId,
        mut messages: Vec<ChatMessage>,
        known: KnownTokens,
        object: &Value,
    ) -> Self {
        let object: Box<str> = object.to_string().into();
        // The three parts are nearly all of the memory; the exact number is not worth a walk over the values.
        let num_bytes = json_len(&messages) + size_of_val(&known.token_ids[..]) + object.len();
        let mut image_bytes = 0;
        let contents = messages.iter_mut().filter_map(|message| message.content.as_mut());
        for image in contents.flat_map(Content::images_mut) {
            image_bytes += image.source.num_bytes();
            // Paths of the next turn begin with `input`. Images of earlier turns are shared with their responses.
            if image.path != PREVIOUS {
                Arc::make_mut(image).path = PREVIOUS.to_owned();
            }
        }
        let images = StoredImages::Held(image_bytes);
        Self { owner, messages, known, object, num_bytes, images }
    }

    fn image_bytes(&self) -> usize {
        match self.images {
            StoredImages::Held(bytes) => bytes,
            StoredImages::Gone => 0,
        }
    }

    /// The same response without the bytes of its images.
    fn without_images(&self) -> Self {
        let mut messages = self.messages.clone();
        let contents = messages.iter_mut().filter_map(|message| message.content.as_mut());
        for image in contents.flat_map(Content::images_mut) {
            let (source, path) = (ImageSource::Url(String::new()), PREVIOUS.to_owned());
            *image = Arc::new(ImagePart { source, detail: image.detail, path });
        }
        let (known, object) = (self.known.clone(), self.object.clone());
        Self { messages, known, object, images: StoredImages::Gone, ..*self }
    }
}

/// Length of a value as JSON.
fn json_len(value: &impl serde::Serialize) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, value)
        .expect("a value that was parsed from JSON can be written as JSON");
    count.0
}

/// All responses of one model, in memory.
#[derive(Debug, Default)]
pub(crate) struct StoredResponses(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    by_id: HashMap<String, Arc<StoredResponse>>,
    /// The oldest first.
    order: VecDeque<String>,
    num_bytes: usize,
    image_bytes: usize,
    /// Bytes by owner, without images.
    bytes_of: HashMap<CallerId, usize>,
}

impl StoredResponses {
    /// A response, or 404 that names `param`, also for a response of another caller.
    pub(crate) fn get(
        &self,
        owner: CallerId,
        param: &str,
        id: &str,
    ) -> ApiResult<Arc<StoredResponse>> {
        let found = self.lock().by_id.get(id).filter(|stored| stored.owner == owner).cloned();
        found.ok_or_else(|| not_found(param, id))
    }

    /// A response that the next turn continues.
    ///
    /// # Errors
    /// Those of [`Self::get`], and 404 if the bytes of its images are gone.
    pub(crate) fn to_continue(
        &self,
        owner: CallerId,
        param: &str,
        id: &str,
    ) -> ApiResult<Arc<StoredResponse>> {
        let stored = self.get(owner, param, id)?;
        if matches!(stored.images, StoredImages::Held(_)) {
            return Ok(stored);
        }
        let message = format!(
            "The images of the stored response `{}` were removed to free memory, so that it cannot be continued. Send the whole conversation as `input`.",
            excerpt(id)
        );
        Err(ApiError::not_found(Some(param), "response_images_not_found", message))
    }

    pub(crate) fn remove(&self, owner: CallerId, id: &str) -> ApiResult<()> {
        let mut held = self.lock();
        let is_own = held.by_id.get(id).is_some_and(|stored| stored.owner == owner);
        (is_own && held.remove(id)).then_some(()).ok_or_else(|| not_found("id", id))
    }

    pub(crate) fn insert(&self, id: String, stored: StoredResponse) {
        let mut held = self.lock();
        held.num_bytes += stored.num_bytes;
        held.image_bytes += stored.image_bytes();
        *held.bytes_of.entry(stored.owner).or_default() += stored.num_bytes;
        held.by_id.insert(id.clone(), Arc::new(stored));
        held.order.push_back(id);
        while held.order.len() > MAX_RESPONSES || held.num_bytes > MAX_BYTES {
            let Some(oldest) = held.oldest_of_the_largest() else { break };
            held.remove(&oldest);
        }
        while held.image_bytes > MAX_IMAGE_BYTES && held.drop_images() {}
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn remove(&mut self, id: &str) -> bool {
        let Some(stored) = self.by_id.remove(id) else { return false };
        self.num_bytes -= stored.num_bytes;
        self.image_bytes -= stored.image_bytes();
        self.order.retain(|other| other != id);
        if let Some(bytes) = self.bytes_of.get_mut(&stored.owner) {
            *bytes -= stored.num_bytes;
        }
        self.bytes_of.retain(|_, bytes| *bytes > 0);
        true
    }

    /// Removes the images of the oldest response that has some, of the caller whose images take the most bytes.
    fn drop_images(&mut self) -> bool {
        let mut bytes_of: HashMap<CallerId, usize> = HashMap::new();
        for stored in self.by_id.values() {
            *bytes_of.entry(stored.owner).or_default() += stored.image_bytes();
        }
        let largest = bytes_of.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(owner, _)| owner);
        let has_images =
            |stored: &StoredResponse| Some(stored.owner) == largest && stored.image_bytes() > 0;
        let oldest = self.order.iter().find(|id| has_images(&self.by_id[*id]));
        let Some(stored) = oldest.and_then(|id| self.by_id.get_mut(id)) else { return false };
        self.image_bytes -= stored.image_bytes();
        *stored = Arc::new(stored.without_images());
        true
    }

    /// The oldest response of the caller whose responses take the most bytes.
    fn oldest_of_the_largest(&self) -> Option<String> {
        let (largest, _) = self.bytes_of.iter().max_by_key(|(_, bytes)| **bytes)?;
        self.order.iter().find(|id| self.by_id[*id].owner == *largest).cloned()
    }
}

fn not_found(param: &str, id: &str) -> ApiError {
    let message = format!(
        "There is no stored response `{}`: it never existed, was not stored, or was removed to free memory. Send the whole conversation as `input`.",
        excerpt(id)
    );
    ApiError::not_found(Some(param), "response_not_found", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: CallerId = CallerId(1);

    fn known(num_tokens: usize) -> KnownTokens {
        KnownTokens { token_ids: vec![0; num_tokens], images: Vec::new() }
    }

    fn stored(num_tokens: usize) -> StoredResponse {
        StoredResponse::new(OWNER, Vec::new(), known(num_tokens), &Value::Null)
    }

    #[test]
    fn the_oldest_are_forgotten_by_number_and_by_size() {
        let responses = StoredResponses::default();
        for index in 0..=MAX_RESPONSES {
            responses.insert(index.to_string(), stored(1));
        }
        assert!(
            responses.get(OWNER, "id", "0").is_err() && responses.get(OWNER, "id", "1").is_ok()
        );
        responses.remove(OWNER, "2").unwrap();
        assert!(responses.remove(OWNER, "2").is_err());
        let long = || serde_json::json!("x".repeat(MAX_BYTES / 2));
        let message = ChatMessage::text(candlepower_api::Role::User, "x".repeat(MAX_BYTES / 4));
        responses.insert(
            "large".into(),
            StoredResponse::new(OWNER, vec![message], known(MAX_BYTES / 32), &long()),
        );
        assert!(
            responses.get(OWNER, "id", "large").is_ok()
                && responses.get(OWNER, "id", "1000").is_ok()
        );
        responses
            .insert("larger".into(), StoredResponse::new(OWNER, Vec::new(), known(0), &long()));
        assert!(responses.get(OWNER, "id", "larger").is_ok());
        assert!(
            responses.get(OWNER, "id", "large").is_err()
                && responses.get(OWNER, "id", "1000").is_err()
        );
    }

    #[test]
    fn responses_are_their_owners_and_one_caller_forgets_its_own() {
        let responses = StoredResponses::default();
        let other = CallerId(2);
        let of = |owner, num_tokens| {
            StoredResponse::new(owner, Vec::new(), known(num_tokens), &Value::Null)
        };
        responses.insert("first".into(), of(other, 1));
        assert!(responses.get(OWNER, "id", "first").is_err());
        assert!(responses.remove(OWNER, "first").is_err());
        for index in 0..2 * MAX_RESPONSES {
            responses.insert(index.to_string(), of(OWNER, 1));
        }
        assert!(responses.get(other, "id", "first").is_ok());
        responses.insert("large".into(), of(OWNER, MAX_BYTES / 4));
        assert!(responses.get(other, "id", "first").is_ok());
        responses.remove(other, "first").unwrap();
    }

    /// A response with an image of `num_bytes`.
    fn with_image(owner: CallerId, num_bytes: usize) -> StoredResponse {
        let image = serde_json::json!({"type": "image_url", "image_url": "x".repeat(num_bytes)});
        let body = serde_json::json!({"messages": [{"role": "user", "content": [image]}]});
        let body = candlepower_api::ChatCompletionRequest::parse(body.to_string().as_bytes());
        StoredResponse::new(owner, body.unwrap().messages, known(1), &Value::Null)
    }

    #[test]
    fn images_go_before_their_responses() {
        let responses = StoredResponses::default();
        let (other, third) = (CallerId(2), MAX_IMAGE_BYTES / 3);
        responses.insert("other".into(), with_image(other, third));
        responses.insert("first".into(), with_image(OWNER, third));
        responses.insert("text".into(), stored(1));
        responses.insert("second".into(), with_image(OWNER, third));
        for id in ["first", "text", "second"] {
            responses.to_continue(OWNER, "id", id).unwrap();
        }
        responses.insert("third".into(), with_image(OWNER, third));
        let error = responses.to_continue(OWNER, "previous_response_id", "first").unwrap_err();
        let error = error.to_body().error;
        assert_eq!(error.code.as_deref(), Some("response_images_not_found"));
        assert_eq!(error.param.as_deref(), Some("previous_response_id"));
        assert!(responses.get(OWNER, "id", "first").is_ok(), "it can still be retrieved");
        for id in ["text", "second", "third"] {
            responses.to_continue(OWNER, "id", id).unwrap();
        }
        responses.to_continue(other, "id", "other").unwrap();
        responses.insert("huge".into(), with_image(other, MAX_IMAGE_BYTES + 1));
        assert!(responses.to_continue(other, "id", "huge").is_err());
        responses.to_continue(OWNER, "id", "third").unwrap();
        responses.remove(OWNER, "third").unwrap();
        responses.remove(OWNER, "first").unwrap();
        assert!(responses.lock().image_bytes < 2 * third);
    }
}
