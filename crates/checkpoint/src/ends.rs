//! Tokens that end a text or a turn by what they are called, as old files and careless ones do not say it otherwise.
//! Source: `src/llama-vocab.cpp` of llama.cpp.

/// Names of ends.
const ENDS: [&str; 24] = [
    "<|eot_id|>",
    "<|im_end|>",
    END,
    RETURN,
    CALL,
    FLUSH,
    CALLS,
    "<end_of_turn>",
    "<turn|>",
    TOOL_RESPONSE,
    // FunctionGemma. Source: the publisher's page on its format.
    "<start_function_response>",
    // Kimi K3. Source: llama.cpp's `Kimi-K3.jinja`.
    "<|end_of_msg|>",
    "<eos>",
    "<|endoftext|>",
    CLOSED,
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];
/// Names of tokens that code models write behind the file or the gap that they were asked for.
const ENDS_OF_FILES: [&str; 11] = [
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];
const END: &str = "<|end|>";
const RETURN: &str = "<|return|>";
const CALL: &str = "<|call|>";
const CALLS: &str = "<|calls|>";
const FLUSH: &str = "<|flush|>";
/// Behind it the answer to a call is expected.
const TOOL_RESPONSE: &str = "<|tool_response>";
/// In some vocabularies a tag of HTML.
const CLOSED: &str = "</s>";

/// The ids of the ends of a vocabulary, where `find` knows a token's id and whether it is a special one.
pub fn ends_by_name(find: &dyn Fn(&str) -> Option<(u32, bool)>) -> Vec<u32> {
    let ends = ENDS.iter().filter(|name| !is_within_turns(name, find));
    ends.filter_map(|name| end_id(name, find)).collect()
}

/// The ends of a GGUF file: those of [`ends_by_name`], and those of files in code.
pub(crate) fn ends_of_gguf(find: &dyn Fn(&str) -> Option<(u32, bool)>) -> Vec<u32> {
    let of_files = ENDS_OF_FILES.iter().filter_map(|name| end_id(name, find));
    ends_by_name(find).into_iter().chain(of_files).collect()
}

/// Whether a token is a mark and not text, whatever kind the file says it is.
pub(crate) fn is_mark(name: &str) -> bool {
    name != CLOSED && (ENDS.contains(&name) || ENDS_OF_FILES.contains(&name))
}

/// Whether the token ends no turn beside others: messages within a turn of Harmony and of Solar end with it, and where calls have
/// marks of their own `</s>` is a tag.
pub(crate) fn is_within_turns(name: &str, find: &dyn Fn(&str) -> Option<(u32, bool)>) -> bool {
    let has = |other: &str| find(other).is_some();
    match name {
        END => (has(CALL) || has(CALLS)) && (has(RETURN) || has(FLUSH)),
        CLOSED => has(TOOL_RESPONSE),
        _ => false,
    }
}

fn end_id(name: &str, find: &dyn Fn(&str) -> Option<(u32, bool)>) -> Option<u32> {
    let (id, special) = find(name)?;
    (special || name != CLOSED).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends<'a>(tokens: &[(&'a str, bool)]) -> Vec<&'a str> {
        let find = |name: &str| {
            let id = tokens.iter().position(|(token, _)| *token == name)?;
            Some((id as u32, tokens[id].1))
        };
        ends_of_gguf(&find).into_iter().map(|id| tokens[id as usize].0).collect()
    }

    #[test]
    fn messages_of_harmony_and_solar_end_no_turn() {
        let all = [(END, true), (RETURN, true), (CALL, true), ("<|endoftext|>", true)];
        assert_eq!(ends(&all), [RETURN, CALL, "<|endoftext|>"]);
        assert_eq!(ends(&[(END, true), (FLUSH, true), (CALLS, true)]), [FLUSH, CALLS]);
        assert_eq!(ends(&[(END, true), ("<|user|>", true)]), [END]);
        assert_eq!(ends(&[(END, true), (CALL, true)]), [END, CALL]);
    }

    #[test]
    fn a_tag_of_html_is_no_end() {
        assert_eq!(ends(&[(CLOSED, true)]), [CLOSED]);
        assert!(ends(&[(CLOSED, false)]).is_empty());
        assert_eq!(ends(&[(CLOSED, true), (TOOL_RESPONSE, false)]), [TOOL_RESPONSE]);
        assert_eq!(ends(&[("<|im_end|>", false), ("<|fim_pad|>", false)]).len(), 2);
    }
}
