//! The path of a generation request of any endpoint: body, parameters, prompt, constraint, engine, text, stream.
//!
//! `request` takes the body, `params` checks bounds, `pictures` reads images, `conversation` and `prompt` make tokens, `submit` hands
//! them to the engine. `stream` and `detokenize` make text of its tokens, `chat_output` splits text into content, reasoning and tool calls,
//! and `sse` streams chunks.

pub(crate) mod body;
pub(crate) mod cancellation;
pub(crate) mod chat_output;
pub(crate) mod constraint;
pub(crate) mod content_blocks;
pub(crate) mod conversation;
pub(crate) mod detokenize;
pub(crate) mod encoded_prompt;
pub(crate) mod fill_middle;
pub(crate) mod image_tokens;
pub(crate) mod known_prefix;
pub(crate) mod logprobs;
pub(crate) mod params;
pub(crate) mod pictures;
pub(crate) mod preparation;
pub(crate) mod prompt;
pub(crate) mod reasoning_budget;
pub(crate) mod request;
pub(crate) mod ruled_out;
pub(crate) mod sse;
pub(crate) mod stream;
pub(crate) mod submit;
pub(crate) mod template_form;
pub(crate) mod thinking;
pub(crate) mod tools;
