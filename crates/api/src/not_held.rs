//! Unsupported parts of a request, which are ignored and listed in the response header `x-candlepower-not-held`.

use std::fmt;

use crate::error::excerpt;

/// Maximum number of parts in the list; further ones are only counted.
const MAX_PARTS: usize = 64;
/// Maximum bytes of the header's value.
const MAX_HEADER_BYTES: usize = 1024;

/// The ignored parts of a request, in the order in which they were found.
///
/// Code that ignores a part pushes its path. The response then has the header `x-candlepower-not-held`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotHeld {
    parts: Vec<NotHeldPart>,
    num_more: usize,
}

/// An ignored part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotHeldPart {
    /// Its path in the request, such as `tools[8]`.
    pub path: String,
    /// Its kind, such as `web_search`, if the path does not show it.
    pub kind: Option<String>,
    /// Whether it is a preference whose effect an answer cannot show, such as an effort.
    pub is_preference: bool,
}

impl NotHeld {
    /// Adds the part at `path`, once.
    pub fn push(&mut self, path: impl AsRef<str>, kind: Option<&str>) {
        let (path, kind) = (excerpt(path.as_ref()), kind.map(excerpt));
        self.add(NotHeldPart { path, kind, is_preference: false });
    }

    /// Adds a preference at `path`, once. The header lists it, and no request is refused for it.
    pub fn push_preference(&mut self, path: &str) {
        self.add(NotHeldPart { path: excerpt(path), kind: None, is_preference: true });
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

    /// Whether nothing was ignored.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The listed parts.
    pub fn parts(&self) -> &[NotHeldPart] {
        &self.parts
    }

    /// All parts on one line of visible ASCII, for the header and the log: `tools[8] (web_search), tools[0].a.pattern`.
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

/// The text with `?` for characters that are not allowed in a header.
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
        all.push_preference("reasoning.effort");
        assert!(all.line().ends_with("pattern, reasoning.effort"), "{}", all.line());
        assert_eq!(all.parts().iter().filter(|part| part.is_preference).count(), 1);
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
