//! Stored responses, which later requests continue with `previous_response_id`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candlepower_api::{ChatMessage, excerpt};
use candlepower_engine::CallerId;
use candlepower_tokenizer::Tokenizer;
use serde_json::Value;

use crate::model::api_error::{ApiError, ApiResult};

/// Maximum number of stored responses, and of their bytes. The oldest response of the caller with the most bytes is removed first.
const MAX_RESPONSES: usize = 1024;
const MAX_BYTES: usize = 64 << 20;

/// A response and its conversation.
#[derive(Debug)]
pub(crate) struct StoredResponse {
    /// Only this caller may read it.
    owner: CallerId,
    /// The conversation including the response, without instructions.
    pub(crate) messages: Vec<ChatMessage>,
    /// The tokens of the prompt and the answer, as they are in the prefix cache.
    pub(crate) token_ids: Vec<u32>,
    /// The response object as JSON text, which takes a fraction of the memory of parsed values.
    pub(crate) object: Box<str>,
    /// Approximate bytes of the whole.
    num_bytes: usize,
}

impl StoredResponse {
    pub(crate) fn new(
        owner: CallerId,
        messages: Vec<ChatMessage>,
        token_ids: Vec<u32>,
        object: &Value,
    ) -> Self {
        let object: Box<str> = object.to_string().into();
        // The three parts are nearly all of the memory; the exact number is not worth a walk over the values.
        let num_bytes = json_len(&messages) + size_of_val(&token_ids[..]) + object.len();
        Self { owner, messages, token_ids, object, num_bytes }
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
    /// Bytes by owner.
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

    pub(crate) fn remove(&self, owner: CallerId, id: &str) -> ApiResult<()> {
        let mut held = self.lock();
        let is_own = held.by_id.get(id).is_some_and(|stored| stored.owner == owner);
        (is_own && held.remove(id)).then_some(()).ok_or_else(|| not_found("id", id))
    }

    pub(crate) fn insert(&self, id: String, stored: StoredResponse) {
        let mut held = self.lock();
        held.num_bytes += stored.num_bytes;
        *held.bytes_of.entry(stored.owner).or_default() += stored.num_bytes;
        held.by_id.insert(id.clone(), Arc::new(stored));
        held.order.push_back(id);
        while held.order.len() > MAX_RESPONSES || held.num_bytes > MAX_BYTES {
            // A response beyond the limit removes itself last, so the loop ends.
            let Some(oldest) = held.oldest_of_the_largest() else { break };
            held.remove(&oldest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn remove(&mut self, id: &str) -> bool {
        let Some(stored) = self.by_id.remove(id) else { return false };
        self.num_bytes -= stored.num_bytes;
        self.order.retain(|other| other != id);
        if let Some(bytes) = self.bytes_of.get_mut(&stored.owner) {
            *bytes -= stored.num_bytes;
        }
        self.bytes_of.retain(|_, bytes| *bytes > 0);
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

/// Replaces the first tokens of the prompt by `known` ones of the same text, which are in the prefix cache. A model may generate a text
/// in other tokens than the tokenizer splits it into, and only equal tokens hit the cache. A prompt with another prefix stays.
pub(crate) fn with_known_prefix(
    tokenizer: &Tokenizer,
    known: &[u32],
    prompt: Vec<u32>,
) -> Vec<u32> {
    let bytes = |ids: &[u32]| {
        ids.iter().flat_map(|id| tokenizer.token_bytes(*id).to_vec()).collect::<Vec<u8>>()
    };
    let beginning = bytes(known);
    let mut num_bytes = 0;
    let end = prompt.iter().position(|id| {
        num_bytes += tokenizer.token_bytes(*id).len();
        num_bytes >= beginning.len()
    });
    // A prompt shorter than the known tokens cannot begin with them.
    let Some(end) = end.map(|index| index + 1) else { return prompt };
    let special = |ids: &[u32]| -> Vec<u32> {
        ids.iter().copied().filter(|id| tokenizer.is_special(*id)).collect()
    };
    let (same, rest) = prompt.split_at(end);
    // A special token has the same bytes as its spelling in ordinary tokens, but another meaning.
    if known.is_empty() || bytes(same) != beginning || special(same) != special(known) {
        return prompt;
    }
    [known, rest].concat()
}

#[cfg(test)]
mod tests {
    use candlepower_tokenizer::AddSpecialTokens;

    use super::*;
    use crate::lifecycle::demo;

    const OWNER: CallerId = CallerId(1);

    fn stored(num_tokens: usize) -> StoredResponse {
        StoredResponse::new(OWNER, Vec::new(), vec![0; num_tokens], &Value::Null)
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
        // Half of the limit in the object, a quarter in the messages and an eighth in the tokens fit together.
        let long = || serde_json::json!("x".repeat(MAX_BYTES / 2));
        let message = ChatMessage::text(candlepower_api::Role::User, "x".repeat(MAX_BYTES / 4));
        responses.insert(
            "large".into(),
            StoredResponse::new(OWNER, vec![message], vec![0; MAX_BYTES / 32], &long()),
        );
        assert!(
            responses.get(OWNER, "id", "large").is_ok()
                && responses.get(OWNER, "id", "1000").is_ok()
        );
        // Another half is too much, so all older ones go, beginning with the oldest.
        responses
            .insert("larger".into(), StoredResponse::new(OWNER, Vec::new(), Vec::new(), &long()));
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
            StoredResponse::new(owner, Vec::new(), vec![0; num_tokens], &Value::Null)
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

    #[test]
    fn known_tokens_take_the_place_of_others_that_read_the_same() {
        let tokenizer = demo::tokenizer();
        let encode = |text: &str| tokenizer.encode(text, AddSpecialTokens::No).unwrap();
        let whole = encode("The capital of France is Paris.<|im_end|>\n");
        let letters: Vec<u32> =
            "The capital".chars().flat_map(|c| encode(&c.to_string())).collect();
        let num_whole = encode("The capital").len();
        assert!(letters.len() > num_whole);
        let found = with_known_prefix(&tokenizer, &letters, whole.clone());
        assert_eq!(found, [&letters[..], &whole[num_whole..]].concat());
        for other in
            ["The capitol", "Not it", "The capital of France is Paris.<|im_end|>\n and more"]
        {
            assert_eq!(with_known_prefix(&tokenizer, &encode(other), whole.clone()), whole);
        }
        assert_eq!(with_known_prefix(&tokenizer, &[], whole.clone()), whole);
    }
}
