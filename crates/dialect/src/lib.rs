//! Formats of reasoning and tool calls: detects them in chat templates, parses answers, and builds grammars of answers.
//!
//! A [`Dialect`] is detected once for each model. An [`OutputParser`] then takes the text of an answer in pieces and splits it into
//! reasoning, content and tool calls ([`OutputEvent`]s). The result does not depend on the pieces. An [`AnswerShape`] is the opposite:
//! the grammar that makes the model write tool calls, or a constrained text after its reasoning. This crate knows neither HTTP nor the
//! JSON of any API.

mod answer;
mod callable;
mod detect;
mod error;
mod event;
mod format;
mod harmony;
mod images;
mod parser;
mod past_calls;
mod probe;
mod reasoning;
mod reasoning_meter;
mod scan;
mod schema;
mod thinking_switch;
mod tool;
mod turns;
mod written_call;

pub use answer::{AnswerShape, Calls, Function};
pub use callable::Callable;
pub use detect::writes_tools;
pub use error::{Error, Result};
pub use event::OutputEvent;
pub use format::{CallIds, ReasoningFormat, Thinking, ToolFormat};
pub use images::ImagePlaces;
pub use parser::{Dialect, OutputParser};
pub use past_calls::{CallIdForm, NoContent, PastCalls};
pub use reasoning_meter::{ReasoningMarks, ReasoningMeter};
pub use thinking_switch::ThinkingSwitch;
pub use turns::Turns;
