//! Markdown pages: their anchors, their links, and the paths that they name.

use std::collections::HashSet;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Marks around the part of a page that `cargo xtask docs` writes: `<!-- NAME: written by .. -->`.
pub(crate) const GENERATED: &str = ": written by `cargo xtask docs` -->";

/// A link of a page, or a path that it names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mention {
    pub(crate) text: String,
    /// Counted from 1.
    pub(crate) line: usize,
}

/// The links and names of a page.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// The title: the text of the first heading.
    pub(crate) title: String,
    /// One anchor per heading, in order.
    pub(crate) anchors: Vec<String>,
    /// Targets of links.
    pub(crate) links: Vec<Mention>,
    /// Pieces of inline code.
    pub(crate) code: Vec<Mention>,
    /// Lines of code blocks.
    pub(crate) lines: Vec<Mention>,
}

/// The parser of all pages: CommonMark with tables.
pub(crate) fn parser(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES)
}

impl Page {
    /// Reads a page.
    pub(crate) fn read(text: &str) -> Self {
        let mut page = Self::default();
        let (mut heading, mut used) = (None::<String>, HashSet::new());
        let mut in_block = false;
        for (event, range) in parser(text).into_offset_iter() {
            let mention = |text: &str, start: usize, source: &str| Mention {
                text: text.to_owned(),
                line: source[..start].matches('\n').count() + 1,
            };
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let found = heading.take().unwrap_or_default();
                    page.anchors.push(anchor(&found, &mut used));
                    if page.title.is_empty() {
                        page.title = found;
                    }
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(mention(&dest_url, range.start, text));
                }
                Event::Code(code) => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&code));
                    page.code.push(mention(&code, range.start, text));
                }
                Event::Start(Tag::CodeBlock(_)) => in_block = true,
                Event::End(TagEnd::CodeBlock) => in_block = false,
                // A fenced block arrives as one text, so its lines are counted from the first.
                Event::Text(found) if in_block => {
                    let first = mention("", range.start, text).line;
                    let lines = found.lines().zip(first..);
                    page.lines
                        .extend(lines.map(|(text, line)| Mention { text: text.to_owned(), line }));
                }
                Event::Text(found) => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&found));
                }
                _ => {}
            }
        }
        page
    }
}

/// The anchor of a heading, as GitHub makes it: letters, digits, hyphens and underscores, and a number where it was used before.
fn anchor(heading: &str, used: &mut HashSet<String>) -> String {
    let heading = heading.trim().to_lowercase();
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    });
    let base: String = kept.collect();
    let numbered = (1..).map(|number| format!("{base}-{number}"));
    let free = std::iter::once(base.clone()).chain(numbered).find(|name| !used.contains(name));
    let name = free.unwrap_or(base);
    used.insert(name.clone());
    name
}

/// The file or folder that a link of `page` leads to, relative to the root, and the anchor there; `None` for addresses.
pub(crate) fn resolved<'a>(page: &str, link: &'a str) -> Option<(String, Option<&'a str>)> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = match link.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (link, None),
    };
    if path.is_empty() {
        return Some((page.to_owned(), anchor));
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            // Above the root nothing is removed, so that such a link leads to no file.
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    Some((parts.join("/"), anchor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_get_the_anchors_of_github() {
        let text =
            "# One `two`!\n\n## A, b_c-d\n\nA\n-\n\n## 2026-11-22: CPU, beside X\n\n### One two\n";
        let page = Page::read(text);
        assert_eq!(page.title, "One two!");
        let expected = ["one-two", "a-b_c-d", "a", "2026-11-22-cpu-beside-x", "one-two-1"];
        assert_eq!(page.anchors, expected);
    }

    #[test]
    fn links_and_code_have_their_lines() {
        let page = Page::read("# A\n\nSee [b](b.md#c) and\n`d.rs`.\n\n```sh\n[e](f)\ng\n```\n");
        assert_eq!(page.links, [Mention { text: "b.md#c".to_owned(), line: 3 }]);
        assert_eq!(page.code, [Mention { text: "d.rs".to_owned(), line: 4 }]);
        let lines: Vec<_> = page.lines.iter().map(|line| (line.text.as_str(), line.line)).collect();
        assert_eq!(lines, [("[e](f)", 7), ("g", 8)]);
    }

    #[test]
    fn links_lead_from_their_page() {
        for (link, expected) in [
            ("#a", Some(("docs/x.md", Some("a")))),
            ("y.md", Some(("docs/y.md", None))),
            ("../README.md#b", Some(("README.md", Some("b")))),
            ("log/", Some(("docs/log", None))),
            ("../../z", Some(("../z", None))),
            ("https://example.org/#a", None),
        ] {
            let expected = expected.map(|(path, anchor)| (path.to_owned(), anchor));
            assert_eq!(resolved("docs/x.md", link), expected, "{link}");
        }
    }
}
