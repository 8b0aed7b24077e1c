//! Text for the terminal: without control characters, and styled only where that is wanted.

use std::io::{IsTerminal, stdin, stdout};

use candlepower_machine::print;

/// Text without control characters, so that a model or a server cannot control the terminal by escape sequences. Line breaks and tabs
/// stay.
pub(super) fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

/// The output of a conversation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Screen {
    /// Whether a person reads and types.
    pub(super) is_interactive: bool,
    has_styles: bool,
}

impl Screen {
    pub(super) fn detect() -> Self {
        let is_interactive = stdin().is_terminal() && stdout().is_terminal();
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let is_plain = variable("NO_COLOR").is_some()
            || variable("TERM").is_none_or(|terminal| terminal == "dumb");
        Self { is_interactive, has_styles: is_interactive && !is_plain }
    }

    /// Text in a faint style, for what is not the answer itself.
    pub(super) fn faint(self, text: &str) -> String {
        if self.has_styles { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Whether styles tell reasoning and answer apart.
    pub(super) fn has_styles(self) -> bool {
        self.has_styles
    }

    /// Prints a note for the user, who may not be there.
    pub(super) fn note(self, text: &str) {
        if self.is_interactive {
            print(&format!("{}\n", self.faint(&clean(text))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_control_the_terminal() {
        let hostile = "a\x1b[2J\x07b\r\u{9b}31m\u{85}\x00\x7f\n\té🙂";
        assert_eq!(clean(hostile), "a[2Jb31m\n\té🙂");
    }
}
