//! The candlepower binary.

use std::process::ExitCode;

use candlepower_server::{ServeConfig, init_logging, serve};
use clap::{CommandFactory, Parser, Subcommand};

/// Exit status for a command line, an environment or a config file that cannot be used.
const EXIT_USAGE: u8 = 2;

#[derive(Parser)]
#[command(
    name = "candlepower",
    version,
    about = "Serve language models to OpenAI clients, on your own machine."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a model over HTTP
    #[command(
        long_about = "Serve a model over HTTP, to any OpenAI client.\n\n\
        Every flag is also an environment variable, BLAZE_ and its name in capitals (PRISM_ with --framework prism), and \
        a key of the file that --config names. Precedence: flag > environment > file > default.",
        after_long_help = "Examples:\n  \
        candlepower serve demo\n  \
        candlepower serve ./Qwen2.5-0.5B-Instruct --port 9000 --max-model-len 8192\n  \
        BLAZE_API_KEY=secret candlepower serve demo --host 0.0.0.0\n  \
        candlepower serve --config configs/default.toml demo"
    )]
    Serve(Box<ServeConfig>),
}

fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let (_, flags) =
        matches.subcommand().expect("clap refuses a command line without a subcommand");
    run_server(flags)
}

fn run_server(flags: &clap::ArgMatches) -> ExitCode {
    let effective = match ServeConfig::resolve(flags, std::env::vars_os()) {
        Ok(effective) => effective,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let terminal = init_logging(&effective.config);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the runtime cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(serve(effective, terminal));
    // Work that is still being prepared for requests that are gone is not waited for.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The log has said why.
        Err(_) => ExitCode::FAILURE,
    }
}
