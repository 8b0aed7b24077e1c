//! Shows an answer while it arrives.

use candlepower_machine::print;

use super::answer::Piece;
use super::style::{Screen, clean};

/// The part of an answer that was shown last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Nothing,
    Reasoning,
    Content,
}

/// Shows one answer. Without a terminal it shows the content alone.
#[derive(Debug)]
pub(super) struct Printer {
    screen: Screen,
    part: Part,
    is_line_open: bool,
}

impl Printer {
    pub(super) fn new(screen: Screen) -> Self {
        Self { screen, part: Part::Nothing, is_line_open: false }
    }

    /// Shows new text. Returns whether more may be shown.
    pub(super) fn show(&mut self, piece: Piece<'_>) -> bool {
        let (part, text) = match piece {
            Piece::Reasoning(text) => (Part::Reasoning, clean(text)),
            Piece::Content(text) => (Part::Content, clean(text)),
        };
        if part == Part::Reasoning && !self.screen.is_interactive {
            return true;
        }
        let before = self.before(part);
        self.part = part;
        if !text.is_empty() {
            self.is_line_open = !text.ends_with('\n');
        }
        let text = if part == Part::Reasoning { self.screen.faint(&text) } else { text };
        print(&format!("{before}{text}"))
    }

    /// The text between two parts.
    fn before(&self, part: Part) -> String {
        match (self.part, part) {
            (Part::Nothing, Part::Reasoning) => self.screen.faint("Reasoning:\n"),
            (Part::Reasoning, Part::Content) => {
                let end = if self.is_line_open { "\n\n" } else { "\n" };
                // Without styles only words tell the two apart.
                let name = if self.screen.has_styles() { "" } else { "Answer:\n" };
                format!("{end}{name}")
            }
            (Part::Content, Part::Reasoning) => "\n".to_owned(),
            _ => String::new(),
        }
    }

    /// Ends the last line.
    pub(super) fn finish(&self) {
        if self.is_line_open {
            print("\n");
        }
    }
}
