//! The HTTP server: configuration, routes, streaming, metrics.
//!
//! The path of a request: `http::track` names and measures it, `http::auth` and the gate in `http::router` let it
//! through, and `generation::request` takes its body. A file of `endpoints` parses it, `generation::params` checks its
//! bounds, `generation::conversation` and `generation::prompt` turn it into tokens, and `generation::submit` hands them to
//! the engine. `generation::stream` and `generation::detokenize` turn tokens into text. `generation::chat_output` splits
//! it into content, reasoning and tool calls, which are sent whole or through `generation::sse`.
//!
//! A folder imports only from later ones in this list: `lifecycle`, `http`, `endpoints`, `generation`, `model`, `config`.

pub mod config;
mod endpoints;
mod generation;
mod http;
mod lifecycle;
mod model;

pub use candlepower_grammar::{TRIAL_COMMAND as CONSTRAINT_COMMAND, run_trials};
pub use config::ServeConfig;
pub use endpoints::health::VERSION;
pub use lifecycle::demo::files as demo_files;
pub use lifecycle::error::{Error, Result};
pub use lifecycle::logging::{EndOfLog, Terminal, init_logging};
pub use lifecycle::offline::{StartedEngine, start_engine};
pub use lifecycle::pull::report::alongside as show_download;
pub use lifecycle::source::{hub, hub_cache};
pub use lifecycle::startup::serve;
pub use lifecycle::template_trial::{TEMPLATE_COMMAND, run_template_trial};
pub use model::keys::describe_api_keys;
pub use model::metrics::measure_clock;
pub use model::own_program::try_in_children;
