//! Converts one choice's tokens to text: detokenizer, parser of answers, then stop strings.
//!
//! Stop strings are searched in the content only, not in reasoning and tool calls. Models often reason about the very words that should
//! stop their answers, and a match there would lose the answer. Without a parser, the whole text is content.

use std::sync::Arc;

use candlepower_api::{FinishReason, StopReason, clip};
use candlepower_dialect::{OutputEvent, OutputParser};
use candlepower_engine::FinishReason as EngineFinish;
use candlepower_tokenizer::{
    Detokenizer, Result, SkipSpecialTokens, StopMatcher, StopStringInOutput, Tokenizer,
};

use crate::generation::chat_output::AnswerFormat;
use crate::generation::params::TextOptions;

/// Converts the generated tokens of one choice to pieces of text, and finds its end.
pub(crate) struct TextAssembler {
    detokenizer: Detokenizer,
    /// Parses the answer in a conversation.
    parser: Option<OutputParser>,
    matcher: StopMatcher,
    options: TextOptions,
    num_tokens: usize,
}

/// The text that one token produced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    /// All text of the token, with marks of reasoning and calls.
    pub(crate) written: String,
    /// Text to send; empty if there is a parser.
    pub(crate) text: String,
    /// The parsed parts of the text, if there is a parser.
    pub(crate) parts: Vec<OutputEvent>,
    /// Set if the choice has ended.
    pub(crate) finish: Option<Finish>,
}

/// The end of a choice.
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
    /// An assembler for the text after `prompt`.
    ///
    /// # Errors
    /// The prompt's tokens cannot be decoded, or a stop string is empty.
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
            parser: options.answers.as_ref().map(AnswerFormat::parser),
            matcher: StopMatcher::new(&options.stop, in_output)?,
            options,
            num_tokens: 0,
        })
    }

    /// Adds the next token; `finish` is set if the engine ended the sequence with it.
    ///
    /// # Errors
    /// The tokens cannot be decoded.
    pub(crate) fn push(&mut self, token_id: u32, finish: Option<EngineFinish>) -> Result<Piece> {
        self.num_tokens += 1;
        let is_stop =
            matches!(finish, Some(EngineFinish::EndOfSequence(_) | EngineFinish::StopToken(_)));
        let mut text = String::new();
        // A stop token is removed from the text, like a stop string.
        if !is_stop || self.options.include_stop_str_in_output {
            text.extend(self.detokenizer.push(token_id)?);
        }
        let is_cut = finish == Some(EngineFinish::Length);
        if is_cut {
            text.push_str(&self.cut_text()?);
        } else if finish.is_some() {
            text.extend(self.detokenizer.finish()?);
        }
        let ending = finish.as_ref().map(|_| if is_cut { Ending::Cut } else { Ending::Whole });
        let (mut piece, stopped) = self.read(&text, ending);
        piece.finish = match stopped {
            Some(index) => {
                let stop_reason = Some(StopReason::Text(self.options.stop[index].clone()));
                Some(Finish { reason: FinishReason::Stop, stop_reason })
            }
            None => finish.map(Finish::from),
        };
        piece.written = text;
        Ok(piece)
    }

    /// The text held back so far, for an aborted choice.
    ///
    /// # Errors
    /// The tokens cannot be decoded.
    pub(crate) fn cut_short(&mut self) -> Result<Piece> {
        let text = self.cut_text()?;
        Ok(self.read(&text, Some(Ending::Cut)).0)
    }

    /// The rest of a text that was cut, without an incomplete character.
    fn cut_text(&mut self) -> Result<String> {
        let rest = self.detokenizer.finish()?.unwrap_or_default();
        Ok(rest.trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned())
    }

    /// Parses a text, the last one with its `ending`. Returns the piece, and the index of the stop string that ended the answer.
    fn read(&mut self, text: &str, ending: Option<Ending>) -> (Piece, Option<usize>) {
        let mut piece = Piece::default();
        let Some(parser) = &mut self.parser else {
            let stopped = self.content(text, &mut piece.text);
            if ending.is_some() && stopped.is_none() {
                piece.text.push_str(&self.matcher.finish());
            }
            return (piece, stopped);
        };
        let mut events = parser.push(text);
        match ending {
            None => {}
            Some(Ending::Cut) => events.extend(parser.cut()),
            Some(Ending::Whole) => events.extend(parser.finish()),
        }
        if ending.is_some() {
            for function in parser.unknown_functions() {
                let function = clip(function);
                tracing::info!(
                    ?function,
                    "the model called an unknown function; the call is returned as content"
                );
            }
        }
        for event in events {
            let mut content = String::new();
            let stopped = match &event {
                OutputEvent::Content(text) => self.content(text, &mut content),
                _ => {
                    content = self.matcher.interrupt();
                    None
                }
            };
            if !content.is_empty() {
                OutputEvent::Content(content).add_to(&mut piece.parts);
            }
            if stopped.is_some() {
                return (piece, stopped);
            }
            if !matches!(event, OutputEvent::Content(_)) {
                event.add_to(&mut piece.parts);
            }
        }
        let rest = if ending.is_some() { self.matcher.finish() } else { String::new() };
        if !rest.is_empty() {
            OutputEvent::Content(rest).add_to(&mut piece.parts);
        }
        (piece, None)
    }

    /// Appends content to `out`, except a possible start of a stop string. Returns the stop string that ended it.
    fn content(&mut self, text: &str, out: &mut String) -> Option<usize> {
        if self.num_tokens <= self.options.min_tokens {
            out.push_str(&self.matcher.pass(text));
            return None;
        }
        let outcome = self.matcher.push(text);
        out.push_str(&outcome.text);
        outcome.matched
    }
}

/// The kind of end of a text.
#[derive(Clone, Copy)]
enum Ending {
    /// The text is incomplete.
    Cut,
    Whole,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::demo;

    /// The output for `text`, generated token by token, and its end.
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
            // The first stop string that ends after these tokens.
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
