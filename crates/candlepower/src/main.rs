//! The candlepower binary.

mod bench;
mod doctor;
mod health;
mod table;

use std::io::Write;
use std::process::ExitCode;

use candlepower_server::config::Effective;
use candlepower_server::{ServeConfig, init_logging, serve};
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use bench::Bench;
use doctor::Doctor;
use health::HealthArgs;

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
    /// Print the settings that `serve` would have, and where each comes from
    #[command(
        long_about = "Print the settings that `serve` would have with the same flags, environment and config file.\n\n\
        The output is TOML and itself a config file; each line says in a comment where its value comes from."
    )]
    Config(Box<ServeConfig>),
    /// Show what this machine has, and whether a model fits it
    #[command(after_long_help = doctor::AFTER_HELP)]
    Doctor(Doctor),
    /// Ask a server whether it is healthy; exit status 0 if it is, else 1
    Health(HealthArgs),
    /// Measure a server over HTTP, or the engine alone
    Bench(Bench),
}

fn main() -> ExitCode {
    let command = Cli::command();
    let matches = command.clone().get_matches();
    let (name, flags) =
        matches.subcommand().expect("clap refuses a command line without a subcommand");
    match name {
        "bench" => bench::run(flags),
        "config" => print_config(flags),
        "doctor" => match Doctor::from_arg_matches(flags) {
            Ok(doctor) => doctor.run(),
            Err(error) => error.exit(),
        },
        "health" => match HealthArgs::from_arg_matches(flags) {
            Ok(health) => health::run(&health, &command),
            Err(error) => error.exit(),
        },
        _ => run_server(flags),
    }
}

/// Writes to standard output. A reader that has gone away, as `head` does, is nobody's fault.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn resolve(flags: &ArgMatches) -> Result<Effective, ExitCode> {
    ServeConfig::resolve(flags, std::env::vars_os()).map_err(|error| {
        eprintln!("error: {error}");
        ExitCode::from(EXIT_USAGE)
    })
}

fn print_config(flags: &ArgMatches) -> ExitCode {
    match resolve(flags) {
        Ok(effective) => {
            print(&effective.to_toml());
            ExitCode::SUCCESS
        }
        Err(code) => code,
    }
}

fn run_server(flags: &ArgMatches) -> ExitCode {
    let effective = match resolve(flags) {
        Ok(effective) => effective,
        Err(code) => return code,
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
