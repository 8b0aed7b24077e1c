//! The commands of a conversation: lines that begin with a slash.

use std::ffi::OsString;
use std::path::PathBuf;

/// A command as the help shows it.
pub(super) struct Described {
    pub(super) name: &'static str,
    arguments: &'static str,
    text: &'static str,
}

const fn command(name: &'static str, arguments: &'static str, text: &'static str) -> Described {
    Described { name, arguments, text }
}

pub(super) const COMMANDS: [Described; 12] = [
    command("/help", "", "Show this list"),
    command("/system", "[TEXT]", "Set the system prompt; without TEXT remove it"),
    command(
        "/set",
        "[NAME VALUE]",
        "Set a field of the requests, such as temperature 0; VALUE default removes it; alone shows all",
    ),
    command("/image", "PATH", "Attach an image to the next message"),
    command("/tools", "[FILE]", "Offer the tools of a JSON file; without FILE none"),
    command("/retry", "", "Generate another answer"),
    command("/undo", "", "Remove the last message and its answer"),
    command("/clear", "", "Remove all messages; the system prompt and the settings stay"),
    command("/save", "FILE", "Save the conversation as JSON, which the playground opens too"),
    command("/load", "FILE", "Open a saved conversation"),
    command("/exit", "", "End the conversation, as Ctrl-D does"),
    command("/quit", "", "The same"),
];

/// A command that was entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    System(Option<String>),
    /// Shows the settings.
    Settings,
    Set(String, String),
    Image(PathBuf),
    Tools(Option<PathBuf>),
    Retry,
    Undo,
    Clear,
    Save(PathBuf),
    Load(PathBuf),
    Exit,
}

impl Command {
    /// The command in a line; `None` if it is a message.
    ///
    /// # Errors
    /// There is no such command, or an argument is missing.
    pub(super) fn parse(line: &str) -> Option<Result<Self, String>> {
        // A message may begin with a slash behind a space.
        if !line.starts_with('/') {
            return None;
        }
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let text = (!rest.is_empty()).then(|| rest.to_owned());
        let expanded = |path: &str| expanded(path, std::env::var_os("HOME"));
        let path = || match rest {
            "" => Err(format!("{name} needs a file")),
            path => Ok(expanded(path)),
        };
        Some(match name {
            "/help" | "/?" => Ok(Self::Help),
            "/system" => Ok(Self::System(text)),
            "/set" if text.is_none() => Ok(Self::Settings),
            "/set" => match rest.split_once(char::is_whitespace) {
                Some((name, value)) => Ok(Self::Set(name.to_owned(), value.trim().to_owned())),
                None => Err(format!("/set {rest} needs a value; the value default removes it")),
            },
            "/image" => path().map(Self::Image),
            "/tools" => Ok(Self::Tools(text.as_deref().map(expanded))),
            "/retry" => Ok(Self::Retry),
            "/undo" => Ok(Self::Undo),
            "/clear" => Ok(Self::Clear),
            "/save" => path().map(Self::Save),
            "/load" => path().map(Self::Load),
            "/exit" | "/quit" | "/bye" => Ok(Self::Exit),
            _ => Err(format!(
                "there is no command {name}; /help lists them. A message may begin with a slash behind a space"
            )),
        })
    }
}

/// A path in which `~` is the user's home folder.
fn expanded(path: &str, home: Option<OsString>) -> PathBuf {
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => PathBuf::from(path),
    }
}

/// The list of commands and keys.
pub(super) fn help() -> String {
    let line = |command: &Described| {
        format!("{:<22} {}\n", format!("{} {}", command.name, command.arguments), command.text)
    };
    let commands: String = COMMANDS.iter().map(line).collect();
    format!(
        "{commands}\n\
        Ctrl-C stops an answer; twice at the prompt it ends the conversation. A \\ at the end of a line begins a \
        new line; \"\"\" begins and ends a message of several lines. Arrow keys bring back earlier messages.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tilde_is_the_home_folder() {
        let at_home = |path| expanded(path, Some("/people/ada".into()));
        assert_eq!(at_home("~/a b.json"), PathBuf::from("/people/ada/a b.json"));
        for other in ["a.json", "/a.json", "~ada/a.json", "a/~/b.json"] {
            assert_eq!(at_home(other), PathBuf::from(other));
        }
        assert_eq!(expanded("~/a.json", None), PathBuf::from("~/a.json"));
    }

    #[test]
    fn lines_are_commands_or_messages() {
        let parse = |line| Command::parse(line).map(Result::unwrap);
        assert_eq!(parse("hello"), None);
        assert_eq!(parse(" /usr/bin"), None);
        assert_eq!(parse("/set stop a b "), Some(Command::Set("stop".into(), "a b".into())));
        assert_eq!(parse("/set"), Some(Command::Settings));
        assert_eq!(
            parse("/system  You are\nAda"),
            Some(Command::System(Some("You are\nAda".into())))
        );
        assert_eq!(parse("/save a b.json"), Some(Command::Save("a b.json".into())));
        for wrong in ["/nothing", "/save", "/set seed", "/"] {
            assert!(Command::parse(wrong).unwrap().is_err(), "{wrong}");
        }
        for command in &COMMANDS {
            let line = format!("{} a b", command.name);
            assert!(Command::parse(&line).unwrap().is_ok(), "{line}");
        }
    }
}
