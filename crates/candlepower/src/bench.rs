//! `candlepower bench`: measures a server over HTTP, or the engine without HTTP.

mod client;
mod load;
mod meter;
mod output;
mod picture;
mod prompts;
mod run;
mod serve;
mod stats;

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, CommandFactory, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::runtime::Builder;

use crate::api::last_words;
use run::RunArgs;
use serve::ServeArgs;

/// End of the long help of `bench serve`.
const SERVE_AFTER_HELP: &str = "Examples:\n  \
    candlepower bench serve\n  \
    candlepower bench serve --url http://gpu-1:8000 --model my-model --concurrency 1,8,64 --requests 8,32,256\n  \
    candlepower bench serve --rate 0.5,2 --requests 60 --input-tokens 64 --shared-prefix-tokens 1024 --json out.json\n  \
    candlepower bench serve --workload chat --output-tokens 64 --json - | jq .levels\n\n\
    Each request is streamed. Output tokens are counted by the server's usage, not by chunks. Times start when a request is \
    sent: time to first token, time between chunks with text, time per output token after the first \
    ((last text - first text) / (tokens - 1)), and time of the whole request. No prompt is sent twice.\n\n\
    Exit status: 0 if all requests succeeded; 1 if a request failed or the server cannot be used; 2 for an invalid command \
    line.\n\n\
    --json writes one object; times are seconds, and null if nothing was measured:\n  \
    kind, version, started_at   serve, this program's version, seconds since 1970\n  \
    server                      url, model\n  \
    settings                    all parameters; prompts is token_ids or text\n  \
    levels                      a list, one object for each concurrency or rate:\n    \
    concurrency, rate_per_s     one of the two; the other is null\n    \
    requests, succeeded, failed, errors [{message, count}], short_answers\n    \
    duration_s, requests_per_s, input_tokens_per_s, output_tokens_per_s\n    \
    input_tokens, cached_tokens, output_tokens\n    \
    time_to_first_token_s, inter_chunk_s, time_per_output_token_s, request_s\n                                \
    each mean, p50, p90, p99, max";

/// End of the long help of `bench run`.
const RUN_AFTER_HELP: &str = "Examples:\n  \
    candlepower bench run demo\n  \
    candlepower bench run ./Qwen2.5-0.5B-Instruct --batch 1,8,64 --input-tokens 128,1024 --output-tokens 64\n  \
    candlepower bench run ./Qwen2.5-0.5B-Instruct --load-format dummy --dtype bfloat16 --threads 2 --json out.json\n\n\
    Model and engine take the same flags, environment and config file as `serve`. Each shape (batch and prompt length) is \
    measured twice. Prefill: prompt tokens / seconds until the last prompt's first token. Decode: with the prompts in the \
    prefix cache, the steps in which all sequences decode together. Prompts are random token ids.\n\n\
    Exit status: 0 if all shapes were measured; 1 if not; 2 for an invalid command line.\n\n\
    --json writes one object; times are seconds:\n  \
    kind, version, started_at   run, this program's version, seconds since 1970\n  \
    machine                     as in `candlepower doctor --json`\n  \
    model                       name, architecture, weights_dtype, weights_bytes, weights_bytes_per_step, max_model_len\n  \
    engine                      device, threads, block_size, num_blocks, num_states, state_bytes, kv_cache_bytes, kv_cache_dtype, load_s (time to load),\n                              \
    and settings: the settings of serve in force, as text\n  \
    settings                    batch, input_tokens, output_tokens, seed\n  \
    shapes                      a list, one object for each batch and length: batch, input_tokens, output_tokens,\n    \
    prefill                     tokens, duration_s, tokens_per_s, steps, forward_share\n    \
    decode                      steps, tokens_per_s, step_s {mean, p50, p90, p99, max}, weights_bytes_per_s (with the\n                                experts that a batch uses if all are equally likely),\n                                \
    forward_share, rest_of_step_share, between_steps_share";

/// The two benchmarks.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    form: Form,
}

#[derive(Debug, Subcommand)]
enum Form {
    /// Benchmark any OpenAI-compatible server over HTTP
    #[command(after_long_help = SERVE_AFTER_HELP)]
    Serve(Box<ServeArgs>),
    /// Benchmark the engine without HTTP: prefill and decode, by batch and prompt length
    #[command(after_long_help = RUN_AFTER_HELP, mut_args(hide_what_serves))]
    Run(Box<RunArgs>),
}

/// Runs the benchmark that the command line asks for.
///
/// # Errors
/// A setting is invalid, or the system has no more files. The reason is printed.
pub(crate) fn run(flags: &ArgMatches) -> Result<ExitCode, ExitCode> {
    let bench: Bench = crate::arguments(flags);
    let runtime = crate::started(Builder::new_multi_thread())?;
    let measured = match bench.form {
        Form::Serve(args) => runtime.block_on(args.run()),
        Form::Run(mut args) => {
            let flags = flags.subcommand_matches("run").expect("the form was read from it");
            args.set_in_force(crate::resolve(flags)?);
            runtime.block_on(args.run())
        }
    };
    // Nobody waits for connections or an engine that are still running.
    runtime.shutdown_background();
    measured.map_err(|error| crate::failed(last_words(&error)))
}

/// Hides the settings of the HTTP server, which have no effect here.
fn hide_what_serves(arg: Arg) -> Arg {
    let serves = matches!(arg.get_help_heading(), Some("Server" | "Log and metrics"));
    // These three take effect without a server, too.
    let hidden = serves && !matches!(arg.get_id().as_str(), "config" | "framework" | "log_level");
    if hidden { arg.hide(true) } else { arg }
}

/// Exits with a usage error, like clap, for flags that exclude each other.
fn usage_error(message: String) -> ! {
    crate::Cli::command().error(ErrorKind::ValueValidation, message).exit()
}

/// Seconds since 1970.
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// A progress bar on standard error, if that is a terminal.
fn progress_bar(length: usize, prefix: String) -> anyhow::Result<ProgressBar> {
    let style = ProgressStyle::with_template("{prefix:.bold} {wide_bar} {pos}/{len} {eta} {msg}")
        .context("invalid template of the progress bar")?;
    Ok(ProgressBar::new(length as u64).with_style(style).with_prefix(prefix))
}
