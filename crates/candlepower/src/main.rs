//! The candlepower binary.

mod allocator;
mod api;
mod bench;
mod chat;
mod deploy;
mod deployments;
mod doctor;
mod failure;
mod forward;
mod health;
mod later;
mod models;
mod other_servers;
mod place;
mod report;
mod table;
mod top;

use std::ffi::OsString;
use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use candlepower_client::{run_bound, run_with_secrets, supervise};
use candlepower_engine::{RANK_COMMAND, return_memory_when_idle, run_rank, wait_for_engines};
use candlepower_machine::{output_failed, print, print_error};
use candlepower_server::config::{Effective, number_error};
use candlepower_server::{
    CONSTRAINT_COMMAND, EndOfLog, ServeConfig, TEMPLATE_COMMAND, describe_api_keys, init_logging,
    measure_clock, run_template_trial, run_trials, serve, try_in_children,
};
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use tokio::runtime::{Builder, Runtime};

use bench::Bench;
use chat::{Bound, Chat};
use deploy::{Deploy, Update};
use deployments::{Delete, Events, List, Logs, Restart, Status};
use doctor::Doctor;
use forward::Forward;
use health::HealthArgs;
use later::Later;
use models::{Models, Pull, Remove};
use top::Top;

/// Exit status for an invalid command line, environment or config file.
const EXIT_USAGE: u8 = 2;

/// Maximum wait for the engines' threads before the process exits. Without the wait, a thread would still free CUDA memory while exit
/// handlers run, which can crash the process. A thread that hangs is abandoned.
const ENGINES_END: Duration = Duration::from_secs(10);

/// Time without work after which a thread for blocking work ends. Until then it keeps memory that others have freed.
const BLOCKING_KEEP_ALIVE: Duration = Duration::from_secs(2);

const LICENSE: &str = include_str!("../../../LICENSE");
/// Written by `cargo xtask notices`.
const THIRD_PARTY: &str = include_str!("../../../THIRD-PARTY.txt");

#[derive(Parser)]
#[command(
    name = "candlepower",
    version,
    about = "Serve language models through an OpenAI-compatible API, on your own machine."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a model over HTTP
    #[command(
        long_about = "Serve a model through an OpenAI-compatible HTTP API.\n\n\
        Every flag is also an environment variable (BLAZE_MAX_NUM_SEQS for --max-num-seqs; PRISM_.. with --framework prism) \
        and a key of the file that --config names. Precedence: flag > environment > file > default.",
        after_long_help = "Examples:\n  \
        candlepower serve demo\n  \
        candlepower serve ./Qwen2.5-0.5B-Instruct --port 9000 --max-model-len 8192\n  \
        BLAZE_API_KEY=secret candlepower serve demo --host 0.0.0.0\n  \
        candlepower serve --config configs/default.toml demo"
    )]
    Serve(Later<ServeConfig>),
    /// Print the settings that `serve` would use, each with its source
    #[command(
        long_about = "Print the settings that `serve` would use with the same flags, environment and config file.\n\n\
        The output is TOML and itself a config file; a comment on each line names the source of its value."
    )]
    Config(Later<ServeConfig>),
    /// Show this machine's CPU, memory and GPUs, and whether a model fits
    #[command(after_long_help = doctor::AFTER_HELP)]
    Doctor(Later<Doctor>),
    /// Talk to a model in the terminal; starts the model if no server is named
    #[command(visible_alias = "run", after_long_help = chat::AFTER_HELP)]
    Chat(Later<Chat>),
    /// Download a model of the hub without serving it
    #[command(after_long_help = models::AFTER_PULL_HELP)]
    Pull(Later<Pull>),
    /// List the downloaded models
    #[command(after_long_help = models::AFTER_HELP)]
    Models(Later<Models>),
    /// Remove a downloaded model
    #[command(after_long_help = models::AFTER_REMOVE_HELP)]
    Rm(Later<Remove>),
    /// Check the health of a server; exit status 0 if it is healthy, else 1
    Health(Later<HealthArgs>),
    /// Show a server's load, each second anew
    Top(Later<Top>),
    /// Benchmark a server over HTTP, or the engine alone
    Bench(Later<Bench>),
    /// Start a supervised server in the background, and wait until it is ready
    #[command(after_long_help = deploy::AFTER_HELP)]
    Deploy(Later<Deploy>),
    /// Change parameters of a deployment; the others stay
    #[command(after_long_help = deploy::AFTER_UPDATE_HELP)]
    Update(Later<Update>),
    /// List the deployments
    #[command(after_long_help = deployments::AFTER_HELP)]
    Ls(Later<List>),
    /// Show the state of a deployment
    #[command(after_long_help = deployments::AFTER_HELP)]
    Status(Later<Status>),
    /// Show the log of a deployment's server
    #[command(after_long_help = deployments::AFTER_HELP)]
    Logs(Later<Logs>),
    /// Restart a deployment's server
    #[command(after_long_help = deployments::AFTER_HELP)]
    Restart(Later<Restart>),
    /// Stop a deployment and remove all its files
    #[command(after_long_help = deployments::AFTER_HELP)]
    Delete(Later<Delete>),
    /// Show the events of a deployment, with times
    #[command(after_long_help = deployments::AFTER_HELP)]
    Events(Later<Events>),
    /// Forward a local port to a deployment in a cluster, until Ctrl-C
    #[command(after_long_help = deployments::AFTER_HELP)]
    Forward(Later<Forward>),
    /// Print the licences of candlepower and of its dependencies
    Licenses,
    /// Print a completion script for a shell
    Completions {
        /// Shell for which to print the script
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

/// Runs a command that only supervisors, containers and servers start.
fn hidden_command() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    match args.next()?.to_str()? {
        "__supervise" => Some(supervise()),
        "__run" => Some(run_bound(args)),
        "__secrets" => Some(run_with_secrets(args)),
        RANK_COMMAND => Some(run_rank(args)),
        CONSTRAINT_COMMAND => Some(run_trials()),
        TEMPLATE_COMMAND => Some(run_template_trial()),
        _ => None,
    }
}

fn main() -> ExitCode {
    // Hidden commands come first: they have no log, and their arguments are not for the parser of the command
    // line.
    if let Some(code) = hidden_command() {
        return code;
    }
    let mut args: Vec<OsString> = std::env::args_os().collect();
    // It ends last, after the server.
    let _bound = match Bound::take(&mut args).transpose() {
        Ok(bound) => bound,
        Err(error) => return failed(error),
    };
    // The guard lives until the end of `main`, since lines of the log may still wait to be written.
    let _end_of_log = EndOfLog;
    try_in_children();
    let code = run_command(args);
    wait_for_engines(ENGINES_END);
    if output_failed() { ExitCode::FAILURE } else { code }
}

fn run_command(args: Vec<OsString>) -> ExitCode {
    // Before the command line is known: even its parser takes long enough to be worth it.
    if args.iter().any(|arg| arg == "serve") {
        measure_clock();
    }
    let command = Cli::command();
    let translated = match other_servers::translate(args) {
        Ok(translated) => translated,
        Err(error) => {
            print_error(format_args!("error: {error}"));
            report::failed(&error);
            return ExitCode::from(EXIT_USAGE);
        }
    };
    for note in &translated.notes {
        print_error(format_args!("note: {note}"));
    }
    let matches = match command.clone().try_get_matches_from(translated.args) {
        Ok(matches) => matches,
        Err(error) => {
            let Some(message) = number_error(&error) else { error.exit() };
            print_error(format_args!("error: {message}\n\nFor more information, try '--help'."));
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let (name, flags) =
        matches.subcommand().expect("clap refuses a command line without a subcommand");
    match name {
        "bench" => bench::run(flags).unwrap_or_else(|code| code),
        "config" => print_config(flags).unwrap_or_else(|code| code),
        "doctor" => run(flags, Doctor::run),
        "chat" => run(flags, Chat::run),
        "pull" => run(flags, Pull::run),
        "models" => run(flags, Models::run),
        "rm" => run(flags, Remove::run),
        "health" => run(flags, |args: &HealthArgs| health::run(args, &command)),
        "top" => run(flags, Top::run),
        "deploy" => run(flags, Deploy::run),
        "update" => run(flags, Update::run),
        "ls" => run(flags, List::run),
        "status" => run(flags, Status::run),
        "logs" => run(flags, Logs::run),
        "restart" => run(flags, Restart::run),
        "delete" => run(flags, Delete::run),
        "events" => run(flags, Events::run),
        "forward" => run(flags, Forward::run),
        "licenses" => {
            print(LICENSE);
            print("\n");
            print(THIRD_PARTY);
            ExitCode::SUCCESS
        }
        "completions" => {
            let shell = *flags.get_one::<clap_complete::Shell>("shell").expect("clap asks for it");
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command.clone(), "candlepower", &mut script);
            print(&String::from_utf8_lossy(&script));
            ExitCode::SUCCESS
        }
        _ => run_server(flags).unwrap_or_else(|code| code),
    }
}

/// Runs a command that has these arguments.
fn run<T: FromArgMatches>(flags: &ArgMatches, command: impl FnOnce(&T) -> ExitCode) -> ExitCode {
    command(&arguments(flags))
}

/// The arguments of a command. Invalid ones end the program with clap's message.
fn arguments<T: FromArgMatches>(flags: &ArgMatches) -> T {
    T::from_arg_matches(flags).unwrap_or_else(|error| error.exit())
}

/// Prints why a command ends. Returns its exit status.
fn failed(reason: impl Display) -> ExitCode {
    print_error(format_args!("error: {reason}"));
    ExitCode::FAILURE
}

/// Starts the async runtime.
///
/// # Errors
/// The system has no more files or threads. The reason is printed.
fn started(mut runtime: Builder) -> Result<Runtime, ExitCode> {
    let runtime = runtime.enable_all().build();
    runtime.map_err(|error| failed(format_args!("cannot start the async runtime: {error}")))
}

fn resolve(flags: &ArgMatches) -> Result<Effective, ExitCode> {
    ServeConfig::resolve(flags, std::env::vars_os()).map_err(|error| {
        print_error(format_args!("error: {error}"));
        report::failed(&error);
        ExitCode::from(EXIT_USAGE)
    })
}

fn print_config(flags: &ArgMatches) -> Result<ExitCode, ExitCode> {
    let effective = resolve(flags)?;
    print(&effective.to_toml());
    match describe_api_keys(&effective.config) {
        Ok(keys) if keys.is_empty() => {}
        Ok(keys) => {
            print(&format!("\n# Keys of clients: {keys}\n"));
        }
        // The settings are printed all the same, because the file of keys may be on another machine.
        Err(error) => {
            print_error(format_args!("warning: `candlepower serve` would not start here: {error}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run_server(flags: &ArgMatches) -> Result<ExitCode, ExitCode> {
    let effective = resolve(flags)?;
    let terminal = init_logging(&effective.config);
    let terminal =
        terminal.map_err(|error| failed(format_args!("cannot start the log: {error}")))?;
    let mut runtime = Builder::new_multi_thread();
    runtime.thread_keep_alive(BLOCKING_KEEP_ALIVE);
    let runtime = started(runtime)?;
    // Other commands end soon, so their memory needs no return.
    allocator::return_freed_memory(runtime.handle().clone());
    return_memory_when_idle(allocator::collect);
    let result = runtime.block_on(serve(effective, terminal, report::listening));
    // Clients of work that is still being prepared are gone, so nobody waits for it.
    runtime.shutdown_background();
    // Users find the error in the log; the supervisor reads this report.
    result.map(|()| ExitCode::SUCCESS).map_err(|error| {
        report::failed(&error);
        ExitCode::FAILURE
    })
}
