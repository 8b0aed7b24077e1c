//! `candlepower chat`: a conversation with a model in the terminal.

mod answer;
mod commands;
mod connect;
mod conversation;
mod editor;
mod file;
mod history;
mod images;
mod interactive;
mod local;
mod obey;
mod printer;
mod session;
mod settings;
mod style;
mod target;
mod tools;

use std::io::{Read, stdin};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use candlepower_machine::print_error;
use clap::Args;
use tokio::runtime::Runtime;

use crate::api::last_words;
pub(crate) use local::Bound;
use session::Session;
use style::clean;

/// End of the long help.
pub(crate) const AFTER_HELP: &str = "Examples:\n  \
    candlepower chat\n  \
    candlepower chat Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M -- --max-model-len 8192\n  \
    candlepower chat --url http://gpu-1:8000 --system \"Answer briefly.\" --set temperature=0\n  \
    echo \"What is 2 + 3?\" | candlepower chat demo\n\n\
    Without --url the model runs in a server of its own, which listens on a Unix socket in a private folder and ends with the \
    conversation. If the default address already has a server and no model is named, the conversation is with that one.\n\n\
    In the conversation, /help lists commands. Ctrl-C stops an answer, and Ctrl-D or Ctrl-C twice ends the conversation. If standard \
    input or output is no terminal, all of the input is one message, and the answer alone is printed; the exit status is 1 if there \
    is none.";

/// Maximum bytes of a message from a pipe.
const MAX_INPUT: u64 = 16 << 20;

/// `candlepower chat`.
#[derive(Debug, Args)]
pub(crate) struct Chat {
    /// Model to start, as for `serve`; with --url the name of a model of that server [default: the server at the default address, else
    /// demo]
    model: Option<String>,
    /// URL of a running server, with or without /v1, or unix:PATH for a Unix socket
    #[arg(long, alias = "base-url", value_name = "URL")]
    url: Option<String>,
    /// API key of the server. Prefer the environment, which other users cannot read
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// PEM file with the server's certificate or its CA's, to trust besides the system's CAs
    #[arg(long, value_name = "FILE", requires = "url")]
    cacert: Option<PathBuf>,
    /// PEM file with a client certificate, for servers that ask for one
    #[arg(long, value_name = "FILE", requires_all = ["url", "key"])]
    cert: Option<PathBuf>,
    /// PEM file with the private key of --cert
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Field of the requests, such as temperature=0; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// Image file for the first message; may be repeated
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Flags of `serve` for the model that is started
    #[arg(last = true, value_name = "FLAGS OF serve", conflicts_with = "url")]
    flags: Vec<String>,
}

fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Chat {
    pub(crate) fn run(&self) -> ExitCode {
        // A thread of its own closes connections while this one waits for a line.
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let talked = runtime.context("cannot start the async runtime").and_then(|runtime| {
            let talked = self.talk(&runtime);
            runtime.shutdown_background();
            talked
        });
        match talked {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                print_error(format_args!("error: {}", clean(&last_words(&error))));
                ExitCode::FAILURE
            }
        }
    }

    fn talk(&self, runtime: &Runtime) -> Result<()> {
        let mut session = runtime.block_on(self.connect())?;
        session.conversation.system.clone_from(&self.system);
        for (name, value) in &self.set {
            session.settings.set(name, value)?;
        }
        for path in &self.image {
            obey::attach(&mut session, path)?;
        }
        if session.screen.is_interactive {
            interactive::run(runtime, &mut session)
        } else {
            answer_input(runtime, &mut session)
        }
    }
}

/// Answers standard input as one message.
fn answer_input(runtime: &Runtime, session: &mut Session) -> Result<()> {
    let mut bytes = Vec::new();
    stdin()
        .lock()
        .take(MAX_INPUT + 1)
        .read_to_end(&mut bytes)
        .context("standard input cannot be read")?;
    if bytes.len() as u64 > MAX_INPUT {
        bail!("standard input has more than {} MiB", MAX_INPUT >> 20);
    }
    let text = String::from_utf8(bytes).context("standard input is no text in UTF-8")?;
    let text = text.trim_end_matches('\n');
    if text.trim().is_empty() && session.images.is_empty() {
        bail!("standard input has no message");
    }
    let images = std::mem::take(&mut session.images);
    session.conversation.ask(text.to_owned(), images);
    runtime.block_on(session.generate()).map(drop)
}
