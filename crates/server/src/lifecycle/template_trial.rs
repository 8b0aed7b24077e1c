//! Tries a model's chat template in a child process before the server uses it.
//!
//! Detecting the formats of a template means rendering it, and operators such as `'a' * 10000000` and `replace` can build any
//! amount of text within one step. The engine's fuel counts steps, so that it does not bound this, and a deeply nested expression
//! overflows the stack, which ends the process. A child with limits of memory and time shows whether the template is safe. It returns
//! nothing else; the server renders a template again that has passed.

use std::io::{self, Read, Write};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use candlepower_dialect::{Dialect, ImagePlaces, PastCalls, ThinkingSwitch, Turns, writes_tools};
use candlepower_tokenizer::{ChatTemplate, TemplateSources};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::lifecycle::error::{Error, Result};
use crate::model::own_program::{knows_commands, own_program};

/// The hidden command that tries a template, whose sources are on standard input.
pub const TEMPLATE_COMMAND: &str = "__try_template";
const MAX_BYTES: u64 = 256 << 20;
const MAX_CPU_S: u64 = 2;
/// Time after which a child is killed. A child that computes reaches its limit of CPU time long before, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(30);

/// The fields of [`TemplateSources`], in the form that is sent.
type Sources =
    (Option<String>, Option<String>, Vec<(String, String)>, Option<Vec<u8>>, Option<Vec<u8>>);

/// Tries the templates, if there are any. Errors name `file`.
///
/// # Errors
/// [`Error::Template`] if detecting their formats takes too much time or memory. An invalid template passes here, because its own
/// error is found when it is read.
pub(crate) fn check(sources: &TemplateSources<'_>, file: &str) -> Result<()> {
    if !knows_commands() {
        return Ok(());
    }
    let TemplateSources {
        chosen,
        chat_template_jinja,
        additional,
        tokenizer_config,
        chat_template_json,
    } = sources;
    let sent = serde_json::to_vec(&(
        chosen,
        chat_template_jinja,
        additional,
        tokenizer_config,
        chat_template_json,
    ));
    let failed = |reason: String| Error::Template { file: file.to_owned(), reason };
    match sent.map_err(io::Error::from).and_then(|sent| run_child(&sent)) {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => Err(failed(reason)),
        Err(error) => Err(failed(format!("it could not be tried in a child process: {error}"))),
    }
}

/// Runs the child; returns the reason if it failed.
fn run_child(sent: &[u8]) -> io::Result<Option<String>> {
    let mut child = own_program(TEMPLATE_COMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    // The child's output goes nowhere, so its whole input can be written first without a deadlock.
    if let Some(mut stdin) = child.stdin.take() {
        // A child that has ended already reports by its status.
        let _ = stdin.write_all(sent);
    }
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Ok(Some(format!("it did not end within {} s", PATIENCE.as_secs())));
        }
        // The standard library has no wait with a timeout.
        std::thread::sleep(Duration::from_millis(2));
    };
    let limits = format!("{} MiB of memory and {MAX_CPU_S} s of CPU time", MAX_BYTES >> 20);
    Ok((!status.success())
        .then(|| format!("rendering it for detection takes more than {limits} ({status})")))
}

/// Runs in the child: renders all that the server renders before the first request.
pub fn run_template_trial() -> ExitCode {
    let limit =
        |resource, most| setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
    // Since Linux 4.7 this limit counts private mappings, too, and so all that the allocator has.
    let limited = limit(Resource::Data, MAX_BYTES).and_then(|()| limit(Resource::Cpu, MAX_CPU_S));
    let mut json = Vec::new();
    let read = io::stdin().lock().read_to_end(&mut json);
    let sources = serde_json::from_slice::<Sources>(&json);
    let (Ok(()), Ok(_), Ok(sources)) = (limited, read, sources) else { return ExitCode::FAILURE };
    let (chosen, chat_template_jinja, additional, tokenizer_config, chat_template_json) = sources;
    let template = ChatTemplate::from_sources(&TemplateSources {
        chosen: chosen.as_deref(),
        chat_template_jinja: chat_template_jinja.as_deref(),
        additional: &additional,
        tokenizer_config: tokenizer_config.as_deref(),
        chat_template_json: chat_template_json.as_deref(),
    });
    if let Ok(Some(template)) = template.map(|found| found.map(|found| found.for_probes())) {
        // The results are dropped: only the time and the memory that they take matter.
        let _ = (Dialect::detect(&template), writes_tools(&template), PastCalls::detect(&template));
        let _ = (Turns::detect(&template), ThinkingSwitch::detect(&template));
        let _ = ImagePlaces::detect(&template, "<image>");
    }
    ExitCode::SUCCESS
}
