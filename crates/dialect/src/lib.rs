//! How a model writes its reasoning and its tool calls: found in its chat template, read from its text, held by a grammar.
//!
//! A [`Dialect`] is found once per model. An [`OutputParser`] then takes the text of one answer in pieces and tells, as
//! [`OutputEvent`]s, what of it is reasoning, what is content and what are calls, however the text is cut. Nothing here
//! knows of HTTP or of JSON on the wire. An [`AnswerShape`] is the other way round: the grammar that makes the model write
//! calls, or a text of a certain form behind its reasoning.

mod answer;
mod callable;
mod detect;
mod error;
mod event;
mod format;
mod harmony;
mod parser;
mod past_calls;
mod probe;
mod reasoning;
mod scan;
mod schema;
mod thinking_switch;
mod thought;
mod tool;
mod turns;
mod written_call;

pub use answer::{AnswerShape, Calls, Function};
pub use callable::Callable;
pub use detect::writes_tools;
pub use error::{Error, Result};
pub use event::OutputEvent;
pub use format::{CallIds, ReasoningFormat, Thinking, ToolFormat};
pub use parser::{Dialect, OutputParser};
pub use past_calls::{CallIdForm, NoContent, PastCalls};
pub use thinking_switch::ThinkingSwitch;
pub use thought::{ThoughtMarks, ThoughtMeter};
pub use turns::Turns;
