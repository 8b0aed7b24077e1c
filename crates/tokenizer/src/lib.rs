//! Text to tokens and back: tokenizer, chat template, detokenizer, stop strings.
//!
//! Everything here is pure and synchronous: no files, no clock, no threads. The path of a request is
//! [`ChatTemplate::prompt`] -> [`Tokenizer::encode_prompt`] -> (the engine) -> [`Detokenizer::push`] ->
//! [`StopMatcher::push`].

mod added;
mod clock;
mod cuts;
mod decoder;
mod depth;
mod detokenizer;
mod encode;
mod error;
mod input;
mod jinja;
mod json;
mod metered;
mod methods;
mod percent;
mod piece;
mod prompt;
mod stop;
mod template;
mod tokenizer;

pub use added::{ListedToken, RenamedToken, whole_config};
pub use clock::LocalTime;
pub use detokenizer::Detokenizer;
pub use error::{Error, Result};
pub use input::TextInput;
pub use prompt::Prompt;
pub use stop::{StopMatcher, StopOutcome, StopStringInOutput};
pub use template::{ChatTemplate, PromptEnd, RenderInput, TemplateSources};
pub use tokenizer::{AddSpecialTokens, NamedSpecialTokens, SkipSpecialTokens, Tokenizer};
