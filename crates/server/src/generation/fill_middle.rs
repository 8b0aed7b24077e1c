//! Completions with a text behind them: the model's own tokens say where the prompt ends and the suffix begins.

use candlepower_tokenizer::{AddSpecialTokens, Tokenizer};

use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::LoadedModel;

/// The tokens of a family of models.
struct Marks {
    prefix: &'static str,
    suffix: &'static str,
    /// Behind it the model writes; empty where it writes behind the prefix.
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

/// The ids of the marks of a family.
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

/// The prompt for what stands between `prefix` and `suffix`.
///
/// # Errors
/// 400 where the model has no tokens for it, or a text cannot be split.
pub(crate) fn prompt(
    model: &LoadedModel,
    suffix: &str,
    add_special_tokens: bool,
    prefix: &[u32],
    encode: impl Fn(&str) -> ApiResult<Vec<u32>>,
) -> ApiResult<Vec<u32>> {
    let ids = mark_ids(&model.tokenizer).ok_or_else(|| {
        let message = "This model has no tokens for a text in the middle: leave `suffix` out.";
        ApiError::invalid("suffix", message)
    })?;
    // The token that begins every text of the model stands in front of all marks.
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
