//! One choice's tokens become text: detokenizer, then stop strings.

use std::sync::Arc;

use candlepower_api::{FinishReason, StopReason};
use candlepower_engine::FinishReason as EngineFinish;
use candlepower_tokenizer::{
    Detokenizer, Result, SkipSpecialTokens, StopMatcher, StopStringInOutput, Tokenizer,
};

use crate::generation::params::TextOptions;

/// Turns the generated tokens of one choice into pieces of text, and finds its end.
pub(crate) struct TextAssembler {
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    options: TextOptions,
    num_tokens: usize,
}

/// What one token led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Text that may be sent.
    pub(crate) text: String,
    /// Set if the choice has ended.
    pub(crate) finish: Option<Finish>,
}

/// How a choice ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finish {
    pub(crate) reason: FinishReason,
    pub(crate) stop_reason: Option<StopReason>,
}

impl Finish {
    pub(crate) fn new(reason: FinishReason) -> Self {
        Self { reason, stop_reason: None }
    }
}

impl From<EngineFinish> for Finish {
    fn from(finish: EngineFinish) -> Self {
        match finish {
            EngineFinish::EndOfSequence(_) => Self::new(FinishReason::Stop),
            EngineFinish::StopToken(id) => {
                Self { reason: FinishReason::Stop, stop_reason: Some(StopReason::Token(id)) }
            }
            EngineFinish::GrammarEnd => Self::new(FinishReason::Stop),
            EngineFinish::Length => Self::new(FinishReason::Length),
        }
    }
}

impl TextAssembler {
    /// For what is generated after `prompt`.
    ///
    /// # Errors
    /// If the prompt's tokens cannot be decoded, or a stop string is empty.
    pub(crate) fn new(tokenizer: Tokenizer, prompt: &[u32], options: TextOptions) -> Result<Self> {
        let skip = if options.skip_special_tokens {
            SkipSpecialTokens::Yes
        } else {
            SkipSpecialTokens::No
        };
        let in_output = if options.include_stop_str_in_output {
            StopStringInOutput::Include
        } else {
            StopStringInOutput::Exclude
        };
        Ok(Self {
            detokenizer: Detokenizer::new(tokenizer, prompt, skip)?
                .showing(Arc::clone(&options.always_shown)),
            matcher: StopMatcher::new(&options.stop, in_output)?,
            options,
            num_tokens: 0,
        })
    }

    /// Takes the next token; `finish` says whether the engine ended the sequence with it.
    ///
    /// # Errors
    /// If the tokens cannot be decoded.
    pub(crate) fn push(&mut self, token_id: u32, finish: Option<EngineFinish>) -> Result<Piece> {
        self.num_tokens += 1;
        let is_stop =
            matches!(finish, Some(EngineFinish::EndOfSequence(_) | EngineFinish::StopToken(_)));
        let mut text = String::new();
        // A token that ends the text is cut from it like a stop string.
        if !is_stop || self.options.include_stop_str_in_output {
            text.extend(self.detokenizer.push(token_id)?);
        }
        if finish.is_some() {
            text.extend(self.detokenizer.finish()?);
        }
        if self.num_tokens <= self.options.min_tokens {
            text = self.matcher.pass(&text);
        } else {
            let outcome = self.matcher.push(&text);
            text = outcome.text;
            if let Some(index) = outcome.matched {
                let stop_reason = Some(StopReason::Text(self.options.stop[index].clone()));
                return Ok(Piece {
                    text,
                    finish: Some(Finish { reason: FinishReason::Stop, stop_reason }),
                });
            }
        }
        if finish.is_some() {
            text.push_str(&self.matcher.finish());
        }
        Ok(Piece { text, finish: finish.map(Finish::from) })
    }

    /// The text that is held back, when the choice is cut short.
    ///
    /// # Errors
    /// If the tokens cannot be decoded.
    pub(crate) fn cut_short(&mut self) -> Result<String> {
        let rest = self.detokenizer.finish()?.unwrap_or_default();
        let mut text = self.matcher.push(&rest).text;
        text.push_str(&self.matcher.finish());
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::demo;

    /// What comes out when `text` is generated token by token, and how it ends.
    fn generate(text: &str, options: TextOptions) -> (String, Option<Finish>) {
        let tokenizer = demo::tokenizer();
        let ids = tokenizer.encode(text, candlepower_tokenizer::AddSpecialTokens::No).unwrap();
        let options = TextOptions { skip_special_tokens: true, ..options };
        let mut assembler = TextAssembler::new(tokenizer, &[], options).unwrap();
        let mut out = String::new();
        for (i, id) in ids.iter().enumerate() {
            let finish = (i + 1 == ids.len()).then_some(EngineFinish::Length);
            let piece = assembler.push(*id, finish).unwrap();
            out.push_str(&piece.text);
            if piece.finish.is_some() {
                return (out, piece.finish);
            }
        }
        (out, None)
    }

    fn stop(strings: &[&str]) -> TextOptions {
        TextOptions {
            stop: strings.iter().map(|s| s.to_string()).collect(),
            ..TextOptions::default()
        }
    }

    #[test]
    fn text_comes_out_as_it_went_in() {
        for text in ["The capital of France is Paris.", "naïve café, 日本語 🕯️ done", "END"]
        {
            let (out, finish) = generate(text, stop(&["never there"]));
            assert_eq!(out, text);
            assert_eq!(finish, Some(Finish::new(FinishReason::Length)));
        }
    }

    #[test]
    fn stop_strings_cut_the_text() {
        let (out, finish) = generate("one two three four", stop(&["x", "o thr"]));
        assert_eq!(out, "one tw");
        assert_eq!(
            finish,
            Some(Finish {
                reason: FinishReason::Stop,
                stop_reason: Some(StopReason::Text("o thr".into()))
            })
        );
        let options = TextOptions { include_stop_str_in_output: true, ..stop(&["o thr"]) };
        assert_eq!(generate("one two three four", options).0, "one two thr");
    }

    #[test]
    fn min_tokens_keeps_stop_strings_from_ending_the_text() {
        let options = TextOptions { min_tokens: 1000, ..stop(&["two"]) };
        assert_eq!(generate("one two three", options).0, "one two three");
    }

    #[test]
    fn a_stop_string_may_begin_before_min_tokens_are_out_and_ends_the_text_behind_them() {
        let tokenizer = demo::tokenizer();
        let encode =
            |text| tokenizer.encode(text, candlepower_tokenizer::AddSpecialTokens::No).unwrap();
        let (text, ids) = ("one two three two", encode("one two three two"));
        for min_tokens in 0..=ids.len() {
            let decode = |ids: &[u32]| tokenizer.decode(ids, SkipSpecialTokens::No).unwrap().len();
            // The first one that is complete behind these tokens.
            let ends = text.match_indices("two").map(|(at, found)| (at, at + found.len()));
            let cut = ends.into_iter().find(|(_, end)| *end > decode(&ids[..min_tokens]));
            let expected = cut.map_or(text, |(at, _)| &text[..at]);
            let options = TextOptions { min_tokens, ..stop(&["two"]) };
            assert_eq!(generate(text, options).0, expected, "{min_tokens}");
        }
    }

    #[test]
    fn a_token_that_ends_the_text_is_not_in_it() {
        let tokenizer = demo::tokenizer();
        let ids = tokenizer.encode("Paris", candlepower_tokenizer::AddSpecialTokens::No).unwrap();
        let (last, before) = ids.split_last().unwrap();
        let run = |include: bool| {
            let options =
                TextOptions { include_stop_str_in_output: include, ..TextOptions::default() };
            let mut assembler = TextAssembler::new(tokenizer.clone(), &[], options).unwrap();
            let mut out = String::new();
            for id in before {
                out.push_str(&assembler.push(*id, None).unwrap().text);
            }
            let piece = assembler.push(*last, Some(EngineFinish::StopToken(*last))).unwrap();
            assert_eq!(piece.finish.unwrap().stop_reason, Some(StopReason::Token(*last)));
            out + &piece.text
        };
        assert_eq!(run(true), "Paris");
        assert_eq!(run(false), tokenizer.decode(before, SkipSpecialTokens::No).unwrap());
    }
}
