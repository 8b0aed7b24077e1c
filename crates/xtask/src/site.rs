//! The site: the pages as HTML in `target/site`, with a list of all pages beside each. No page needs a script.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use pulldown_cmark::{CowStr, Event, Tag, TagEnd, html};

use crate::pages::{Page, parser, resolved};
use crate::tidy::files::{self, SourceFile};
use crate::tidy::links;

/// Where the site is written, below the root.
const FOLDER: &str = "target/site";
const STYLE: &str = include_str!("site/style.css");

/// Pages at the root. The README is the front page.
const ROOT_PAGES: [&str; 5] =
    ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];

/// A line of the list of pages.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    Group(String),
    Page { path: String, text: String },
}

/// Writes the site. A dead link is an error.
pub(crate) fn write(root: &Path) -> Result<String> {
    let files = files::read(root)?;
    let dead: Vec<String> = links::findings(&files).iter().map(ToString::to_string).collect();
    if !dead.is_empty() {
        bail!("{} findings\n{}", dead.len(), dead.join("\n"));
    }
    let folder = root.join(FOLDER);
    // Pages that no longer exist must not stay.
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let pages = built(&files)?;
    for (path, text) in &pages {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&folder))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    fs::write(folder.join("style.css"), STYLE)?;
    Ok(format!("{} pages in {FOLDER}", pages.len()))
}

/// Paths of the site's pages and their HTML.
fn built(files: &[SourceFile]) -> Result<Vec<(String, String)>> {
    let is_page = |path: &str| {
        ROOT_PAGES.contains(&path) || path.starts_with("docs/") && path.ends_with(".md")
    };
    let pages: HashMap<&str, &str> = files
        .iter()
        .filter(|file| is_page(&file.path))
        .map(|file| (file.path.as_str(), file.text.as_str()))
        .collect();
    let index = pages.get(links::INDEX).with_context(|| format!("there is no {}", links::INDEX))?;
    let entries = entries(index);
    let mut built: Vec<(String, String)> = pages
        .iter()
        .map(|(path, text)| (output(path), page(path, text, &pages, &entries)))
        .collect();
    built.sort();
    Ok(built)
}

/// The list of pages: the headings of the index, and its links to pages.
fn entries(index: &str) -> Vec<Entry> {
    let (mut entries, mut heading, mut link) = (Vec::new(), None::<String>, None);
    for event in parser(index) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(level)) => {
                let text = heading.take().unwrap_or_default();
                // The title of the index is no group.
                if level as usize > 1 {
                    entries.push(Entry::Group(text));
                }
            }
            Event::Start(Tag::Link { dest_url, .. }) => {
                link = resolved(links::INDEX, &dest_url).map(|(path, _)| (path, String::new()));
            }
            Event::End(TagEnd::Link) => {
                if let Some((path, text)) = link.take().filter(|(path, _)| path.ends_with(".md")) {
                    entries.push(Entry::Page { path, text });
                }
            }
            Event::Text(found) => {
                heading.iter_mut().for_each(|heading| heading.push_str(&found));
                link.iter_mut().for_each(|(_, text)| text.push_str(&found));
            }
            _ => {}
        }
    }
    entries
}

/// The site's path of a page.
fn output(path: &str) -> String {
    match path {
        "README.md" => "index.html".to_owned(),
        path => format!("{}.html", path.strip_suffix(".md").unwrap_or(path)),
    }
}

/// The way from a page of the site to another of its files.
fn way(from: &str, to: &str) -> String {
    "../".repeat(from.matches('/').count()) + to
}

fn page(path: &str, text: &str, pages: &HashMap<&str, &str>, entries: &[Entry]) -> String {
    let read = Page::read(text);
    let mut body = String::new();
    html::push_html(&mut body, events(path, text, &read, pages));
    let way = |to: &str| escaped(&way(path, to));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<link rel=\"stylesheet\" href=\"{}\">\n</head>\n<body>\n\
         <header><a class=\"name\" href=\"{}\">candlepower</a> <a href=\"#pages\">All pages</a></header>\n\
         <div class=\"columns\">\n{}<main>\n{body}</main>\n</div>\n</body>\n</html>\n",
        escaped(&read.title),
        way("style.css"),
        way("index.html"),
        navigation(path, entries),
    )
}

fn navigation(path: &str, entries: &[Entry]) -> String {
    let (mut list, mut is_open) = ("<nav id=\"pages\">\n".to_owned(), false);
    for entry in entries {
        match entry {
            Entry::Group(name) => {
                list += if is_open { "</ul>\n" } else { "" };
                is_open = false;
                list += &format!("<p>{}</p>\n", escaped(name));
            }
            Entry::Page { path: to, text } => {
                list += if is_open { "" } else { "<ul>\n" };
                is_open = true;
                let current = if to == path { " aria-current=\"page\"" } else { "" };
                let (href, text) = (escaped(&way(path, &output(to))), escaped(text));
                list += &format!("<li><a href=\"{href}\"{current}>{text}</a></li>\n");
            }
        }
    }
    list + if is_open { "</ul>\n" } else { "" } + "</nav>\n"
}

/// A page's events for the site: headings get anchors, links lead to the site's pages, and wide tables scroll. A link to a
/// file that is no page becomes its text.
fn events<'a>(
    path: &'a str,
    text: &'a str,
    read: &'a Page,
    pages: &'a HashMap<&str, &str>,
) -> impl Iterator<Item = Event<'a>> {
    let mut anchors = read.anchors.iter();
    let mut is_plain = false;
    parser(text).flat_map(move |event| match event {
        Event::Start(Tag::Heading { level, classes, attrs, .. }) => {
            // The reader of the page and this parser see the same headings in the same order, so anchors are
            // taken one by one.
            let id = anchors.next().map(|anchor| CowStr::from(anchor.as_str()));
            vec![Event::Start(Tag::Heading { level, id, classes, attrs })]
        }
        Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
            let dest_url = match resolved(path, &dest_url) {
                None => dest_url,
                Some((to, anchor)) if pages.contains_key(to.as_str()) => {
                    let anchor = anchor.map(|anchor| format!("#{anchor}")).unwrap_or_default();
                    (way(path, &output(&to)) + &anchor).into()
                }
                Some(_) => {
                    is_plain = true;
                    return Vec::new();
                }
            };
            vec![Event::Start(Tag::Link { link_type, dest_url, title, id })]
        }
        Event::End(TagEnd::Link) if is_plain => {
            is_plain = false;
            Vec::new()
        }
        Event::Start(Tag::Table(columns)) => {
            let open = Event::Html("<div class=\"table\">\n".into());
            vec![open, Event::Start(Tag::Table(columns))]
        }
        Event::End(TagEnd::Table) => {
            vec![Event::End(TagEnd::Table), Event::Html("</div>\n".into())]
        }
        // HTML in pages is comments and marks of generated parts, which the site needs not.
        Event::Html(_) | Event::InlineHtml(_) => Vec::new(),
        event => vec![event],
    })
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files::sample;

    fn site() -> HashMap<String, String> {
        let mut files =
            sample("README.md", "# Name\n\n[docs](docs/index.md), [x](configs/x.toml)\n");
        files.extend(sample(
            links::INDEX,
            "# Pages\n\n## Use\n\n| page | contents |\n|---|---|\n| [a & b](design/a.md) | words |\n| [log](log/) | |\n",
        ));
        files.extend(sample(
            "docs/design/a.md",
            "# A & one\n\n<!-- hidden -->\n[up](../../README.md#name), [own](#a--one), [out](https://a.b/c.md)\n",
        ));
        files.extend(sample("configs/x.toml", "x = 1\n"));
        built(&files).unwrap().into_iter().collect()
    }

    #[test]
    fn links_lead_to_pages_of_the_site_and_other_files_are_text() {
        let site = site();
        let front = &site["index.html"];
        assert!(front.contains("<a href=\"docs/index.html\">docs</a>, x</p>"), "{front}");
        let inner = &site["docs/design/a.html"];
        assert!(inner.contains("<a href=\"../../index.html#name\">up</a>"), "{inner}");
        assert!(inner.contains("<a href=\"../../docs/design/a.html#a--one\">own</a>"), "{inner}");
        assert!(inner.contains("<a href=\"https://a.b/c.md\">out</a>"), "{inner}");
        assert!(inner.contains("href=\"../../style.css\""), "{inner}");
        assert!(!inner.contains("hidden"), "{inner}");
    }

    #[test]
    fn each_page_lists_all_pages_and_has_anchors() {
        let site = site();
        let inner = &site["docs/design/a.html"];
        let list = "<p>Use</p>\n<ul>\n<li><a href=\"../../docs/design/a.html\" aria-current=\"page\">a &amp; b</a></li>\n</ul>\n";
        assert!(inner.contains(list), "{inner}");
        assert!(inner.contains("<h1 id=\"a--one\">A &amp; one</h1>"), "{inner}");
        assert!(site["docs/index.html"].contains("<div class=\"table\">\n<table>"));
    }
}
