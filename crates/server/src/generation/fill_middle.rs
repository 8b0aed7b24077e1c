//! Fill-in-the-middle completions (`suffix`), with the special tokens of each model family.

use candlepower_tokenizer::{AddSpecialTokens, Tokenizer};

use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::LoadedModel;

/// The special tokens of a model family.
struct Marks {
    prefix: &'static str,
    suffix: &'static str,
    /// The model writes after this token; empty if it writes after the prefix.
    middle: &'static str,
}

/// Sources: the model cards of StarCoder, Qwen2.5-Coder, DeepSeek-Coder, CodeLlama, CodeGemma and Codestral.
const FAMILIES: [Marks; 6] = [
    Marks { prefix: "<|fim_prefix|>", suffix: "<|fim_suffix|>", middle: "<|fim_middle|>" },
    Marks { prefix: "<fim_prefix>", suffix: "<fim_suffix>", middle: "<fim_middle>" },
    Marks { prefix: "<fim-prefix>", suffix: "<fim-suffix>", middle: "<fim-middle>" },
    Marks {
        prefix: "<｜fim▁begin｜>", suffix: "<｜fim▁hole｜>", middle: "<｜fim▁end｜>"
    },
    Marks { prefix: "▁<PRE>", suffix: "▁<SUF>", middle: "▁<MID>" },
    Marks { prefix: "[PREFIX]", suffix: "[SUFFIX]", middle: "" },
];

/// Ids of the special tokens of a family.
#[derive(Clone, Copy)]
struct MarkIds {
    prefix: u32,
    suffix: u32,
    middle: Option<u32>,
}

fn mark_ids(tokenizer: &Tokenizer) -> Option<MarkIds> {
    FAMILIES.iter().find_map(|marks| {
        let middle = match marks.middle {
            "" => None,
            mark => Some(tokenizer.token_to_id(mark)?),
        };
        Some(MarkIds {
            prefix: tokenizer.token_to_id(marks.prefix)?,
            suffix: tokenizer.token_to_id(marks.suffix)?,
            middle,
        })
    })
}

/// The prompt for a text between `prefix` and `suffix`.
///
/// # Errors
/// 400 if the model has no such tokens, or a text cannot be tokenized.
pub(crate) fn prompt(
    model: &LoadedModel,
    suffix: &str,
    add_special_tokens: bool,
    prefix: &[u32],
    encode: impl Fn(&str) -> ApiResult<Vec<u32>>,
) -> ApiResult<Vec<u32>> {
    let ids = mark_ids(&model.tokenizer).ok_or_else(|| {
        let message = "This model has no tokens for fill-in-the-middle: leave `suffix` out.";
        ApiError::invalid("suffix", message)
    })?;
    // The begin-of-text token comes before all marks.
    let start = model.tokenizer.encode("", AddSpecialTokens::Yes).unwrap_or_default();
    let start = if add_special_tokens { start.first().copied() } else { None };
    let suffix = encode(suffix)?;
    let (before, after) = match ids.middle {
        Some(middle) => {
            let rest = [&[ids.suffix], &*suffix, &[middle]].concat();
            ([&[ids.prefix], prefix].concat(), rest)
        }
        None => ([&[ids.suffix], &*suffix, &[ids.prefix]].concat(), prefix.to_vec()),
    };
    Ok(start.into_iter().chain(before).chain(after).collect())
}
