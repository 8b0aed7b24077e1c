//! Tokens that a request excludes: all except `allowed_token_ids`, and those that would complete one of its `bad_words`.

use std::sync::Arc;

use candlepower_tokenizer::AddSpecialTokens;

use crate::generation::params::{Limits, MAX_TOKEN_LIST, check_token_id, out_of_range};
use crate::model::api_error::{ApiError, ApiResult};

/// Maximum bytes of all `bad_words` together.
const MAX_WORD_BYTES: usize = 64 << 10;

/// The only tokens that can be sampled.
pub(crate) fn allowed_token_ids(
    asked: Option<&[u32]>,
    limits: &Limits<'_>,
) -> ApiResult<Option<Arc<[u32]>>> {
    const NAME: &str = "allowed_token_ids";
    let Some(asked) = asked else { return Ok(None) };
    if asked.is_empty() {
        let message = "`allowed_token_ids` is empty, so that no token could be sampled: leave it out, or list tokens.";
        return Err(ApiError::invalid(NAME, message));
    }
    if let Some(index) = asked.iter().position(|id| *id as usize >= limits.vocab_size) {
        check_token_id(&format!("{NAME}[{index}]"), asked[index], limits)?;
    }
    let mut ids = asked.to_vec();
    ids.sort_unstable();
    ids.dedup();
    Ok(Some(ids.into()))
}

/// The tokens of each word, with and without a space before it, because the word may begin a text or continue it.
pub(crate) fn bad_words(words: &[String], limits: &Limits<'_>) -> ApiResult<Arc<[Vec<u32>]>> {
    const NAME: &str = "bad_words";
    if words.len() > MAX_TOKEN_LIST {
        let value = format_args!("{} words long", words.len());
        return Err(out_of_range(NAME, value, "at most 1024 long"));
    }
    let num_bytes: usize = words.iter().map(String::len).sum();
    if num_bytes > MAX_WORD_BYTES {
        return Err(out_of_range(
            NAME,
            format_args!("{num_bytes} bytes long"),
            "at most 64 KiB long",
        ));
    }
    let mut all = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let param = format!("{NAME}[{index}]");
        if word.is_empty() {
            let message =
                format!("`{param}` is empty, so that every text would contain it: leave it out.");
            return Err(ApiError::invalid(param, message));
        }
        all.extend(spellings(word, &param, limits)?);
    }
    all.sort_unstable();
    all.dedup();
    Ok(all.into())
}

/// The token sequences that spell a word.
fn spellings(word: &str, param: &str, limits: &Limits<'_>) -> ApiResult<Vec<Vec<u32>>> {
    let tokenizer = limits.tokenizer;
    let encode = |text: &str| {
        let ids = tokenizer.encode(text, AddSpecialTokens::No);
        ids.map_err(|error| ApiError::invalid(param, candlepower_api::clip(&error.to_string())))
    };
    // A word of spaces only keeps them, because nothing else would be left.
    let bare = Some(word.trim_start_matches(' ')).filter(|bare| !bare.is_empty()).unwrap_or(word);
    // Some tokenizers put a prefix token before each text, so that a single token is looked up too.
    let whole = tokenizer.token_to_id(bare).map(|id| vec![id]);
    let split = [encode(bare)?, encode(&format!(" {bare}"))?];
    Ok(split.into_iter().chain(whole).filter(|ids| !ids.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use candlepower_checkpoint::SamplingDefaults;

    use super::*;
    use crate::config::DefaultMaxTokens;
    use crate::lifecycle::demo;

    fn with_limits<T>(test: impl FnOnce(&Limits<'_>) -> T) -> T {
        test(&Limits {
            vocab_size: 400,
            tokenizer: &demo::tokenizer(),
            max_logprobs: 20,
            default_max_tokens: DefaultMaxTokens::Tokens(NonZeroUsize::MIN),
            sampling_defaults: &SamplingDefaults::default(),
            least_max_tokens: 1,
        })
    }

    fn param<T>(refused: ApiResult<T>) -> String {
        refused.err().unwrap().to_body().error.param.unwrap()
    }

    #[test]
    fn allowed_tokens_are_some_of_the_vocabulary() {
        with_limits(|limits| {
            let allowed = |ids: Option<&[u32]>| allowed_token_ids(ids, limits);
            assert_eq!(allowed(None).unwrap(), None);
            assert_eq!(allowed(Some(&[399, 3, 3])).unwrap(), Some([3, 399].into()));
            assert_eq!(param(allowed(Some(&[]))), "allowed_token_ids");
            assert_eq!(param(allowed(Some(&[3, 400]))), "allowed_token_ids[1]");
        });
    }

    #[test]
    fn words_are_forbidden_alone_and_behind_a_space() {
        with_limits(|limits| {
            let words = |words: &[&str]| {
                bad_words(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(), limits)
            };
            let encode = |text: &str| limits.tokenizer.encode(text, AddSpecialTokens::No).unwrap();
            let of_cat = words(&["cat"]).unwrap();
            assert!(of_cat.contains(&encode("cat")) && of_cat.contains(&encode(" cat")));
            assert_eq!(words(&["  cat", "cat"]).unwrap(), of_cat);
            assert!(words(&[" "]).unwrap().contains(&encode(" ")));
            assert_eq!(words(&[]).unwrap(), Arc::default());
            assert_eq!(param(words(&["a", ""])), "bad_words[1]");
            assert_eq!(param(words(&["a"; 1025])), "bad_words");
            assert_eq!(param(words(&[&"a".repeat(65_537)])), "bad_words");
        });
    }
}
