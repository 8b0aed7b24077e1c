//! Parts of a request that the server neither runs nor holds, which the answer lists.

use std::fmt;

use crate::error::excerpt;

/// Most parts that are kept; of the others only the number is.
const MAX_PARTS: usize = 64;
/// Most bytes of the text for a header.
const MAX_HEADER_BYTES: usize = 1024;

/// The parts of a request that are left out, in the order in which they were found.
///
/// Code that leaves out a part pushes its path. The answer then has the header `x-candlepower-not-held`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotHeld {
    parts: Vec<NotHeldPart>,
    num_more: usize,
}

/// One part that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotHeldPart {
    /// Its place in the request, such as `tools[8]`.
    pub path: String,
    /// Its kind, such as `web_search`, where the path does not say it.
    pub kind: Option<String>,
    /// A wish, by which no answer can be judged.
    pub is_wish: bool,
}

impl NotHeld {
    /// Adds the part at `path`, once.
    pub fn push(&mut self, path: impl AsRef<str>, kind: Option<&str>) {
        let (path, kind) = (excerpt(path.as_ref()), kind.map(excerpt));
        self.add(NotHeldPart { path, kind, is_wish: false });
    }

    /// Adds a wish at `path`, once. The answer lists it, and no request is refused for it.
    pub fn push_wish(&mut self, path: &str) {
        self.add(NotHeldPart { path: excerpt(path), kind: None, is_wish: true });
    }

    fn add(&mut self, part: NotHeldPart) {
        if self.parts.contains(&part) {
            return;
        }
        match self.parts.len() < MAX_PARTS {
            true => self.parts.push(part),
            false => self.num_more += 1,
        }
    }

    /// Adds the parts of `other`.
    pub fn extend(&mut self, other: &Self) {
        other.parts.iter().for_each(|part| self.add(part.clone()));
        self.num_more += other.num_more;
    }

    /// Whether nothing is left out.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The parts, as far as they are kept.
    pub fn parts(&self) -> &[NotHeldPart] {
        &self.parts
    }

    /// All parts on one line of visible ASCII, for a header and a log: `tools[8] (web_search), tools[0].a.pattern`.
    pub fn line(&self) -> String {
        let mut line = String::new();
        for (index, part) in self.parts.iter().enumerate() {
            let part = visible(&part.to_string());
            if line.len() + part.len() > MAX_HEADER_BYTES {
                let num_left = self.parts.len() - index + self.num_more;
                return format!("{line}, and {num_left} more");
            }
            let separator = if index == 0 { "" } else { ", " };
            line = [&line, separator, &part].concat();
        }
        match self.num_more {
            0 => line,
            num_more => format!("{line}, and {num_more} more"),
        }
    }
}

impl fmt::Display for NotHeldPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            None => f.write_str(&self.path),
            Some(kind) => write!(f, "{} ({kind})", self.path),
        }
    }
}

/// The text with `?` for what a header cannot have.
fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_one_line() {
        let mut not_held = NotHeld::default();
        assert!(not_held.is_empty());
        not_held.push("tools[8]", Some("web_search"));
        not_held.push("tools[0].a.pattern", None);
        not_held.push("tools[8]", Some("web_search"));
        assert_eq!(not_held.line(), "tools[8] (web_search), tools[0].a.pattern");
        let mut all = NotHeld::default();
        all.push("include", None);
        all.extend(&not_held);
        assert_eq!(all.parts().len(), 3);
        all.push_wish("reasoning.effort");
        assert!(all.line().ends_with("pattern, reasoning.effort"), "{}", all.line());
        assert_eq!(all.parts().iter().filter(|part| part.is_wish).count(), 1);
    }

    #[test]
    fn the_line_is_bounded_and_visible() {
        let mut not_held = NotHeld::default();
        for index in 0..1000 {
            not_held.push(format!("tools[{index}]"), Some(&"é\r\n".repeat(100)));
        }
        let line = not_held.line();
        assert!(line.len() < 1100 && line.ends_with(" more"), "{line}");
        assert!(line.chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{line}");
        let mut many = NotHeld::default();
        (0..70).for_each(|index| many.push(format!("t{index}"), None));
        assert!(many.line().ends_with("t63, and 6 more"), "{}", many.line());
    }
}
