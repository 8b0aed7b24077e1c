//! The page of settings, `docs/configuration.md`. It is written from the comments of `configs/default.toml`, so that
//! they agree.

use super::Finding;
use super::files::SourceFile;

pub(super) const PAGE: &str = "docs/configuration.md";
pub(super) const SETTINGS: &str = "configs/default.toml";

const HEAD: &str = "\
# Configuration

<!-- Written by `cargo xtask docs` from configs/default.toml. -->

Each setting of `candlepower serve` is a flag (with `-` for `_`), an environment variable (in capitals, behind `BLAZE_` or `PRISM_`) and a
key of the file that `--config` names. A flag wins over the environment, the environment over the file, and the file over the default.
";

/// Reports a page that differs from what would be written.
pub(super) fn findings(files: &[SourceFile]) -> Vec<Finding> {
    let find = |path: &str| files.iter().find(|file| file.path == path);
    let (Some(page), Some(settings)) = (find(PAGE), find(SETTINGS)) else { return Vec::new() };
    match written(&settings.text) == page.text {
        true => Vec::new(),
        false => {
            let message = format!("it is not what `cargo xtask docs` writes from {SETTINGS}");
            vec![Finding::new(page, 0, message)]
        }
    }
}

/// The page, with a table for each section of the settings.
pub(super) fn written(settings: &str) -> String {
    let mut page = HEAD.to_owned();
    let mut comment: Vec<&str> = Vec::new();
    // The comment at the top describes the file.
    let (_, settings) = settings.split_once("\n\n").unwrap_or_default();
    for line in settings.lines() {
        if let Some((key, value, is_set)) = setting(line) {
            let default = if is_set { format!("`{value}`") } else { "none".to_owned() };
            let meaning = cell(&comment.join(" "));
            let example = if is_set { String::new() } else { format!(" Example: `{value}`.") };
            page += &format!("| `{key}` | {default} | {meaning}{} |\n", cell(&example));
            comment.clear();
        } else if let Some(text) = line.strip_prefix("# ") {
            comment.push(text);
            // A paragraph of one comment line without a setting is the title of a section.
        } else if let [section] = comment[..] {
            page += &format!("\n## {section}\n\n| key | default | meaning |\n|---|---|---|\n");
            comment.clear();
        }
    }
    page
}

/// Key and value of a line, and whether the line is active or commented out.
fn setting(line: &str) -> Option<(&str, &str, bool)> {
    let text = line.strip_prefix("# ");
    let (key, value) = text.unwrap_or(line).split_once(" = ")?;
    let is_key =
        key.bytes().all(|byte| byte.is_ascii_lowercase() || b"_0123456789".contains(&byte));
    is_key.then_some((key, value, text.is_none()))
}

/// Escapes a text for a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::super::files::sample;
    use super::*;

    const SETTINGS_TEXT: &str = "\
# About the file.

# Server

# Address to listen on,
# or none.
host = \"127.0.0.1\"
# Key that clients send: a|b.
# api_key = \"secret\"
";

    #[test]
    fn settings_become_rows() {
        let page = written(SETTINGS_TEXT);
        let rows = page.split_once("## Server\n\n").unwrap().1;
        assert_eq!(
            rows,
            "| key | default | meaning |\n|---|---|---|\n\
             | `host` | `\"127.0.0.1\"` | Address to listen on, or none. |\n\
             | `api_key` | none | Key that clients send: a\\|b. Example: `\"secret\"`. |\n"
        );
    }

    #[test]
    fn another_page_is_found() {
        let mut files = sample(SETTINGS, SETTINGS_TEXT);
        files.extend(sample(PAGE, &written(SETTINGS_TEXT)));
        assert!(findings(&files).is_empty());
        files[1].text.push('x');
        assert_eq!(findings(&files).len(), 1);
    }
}
