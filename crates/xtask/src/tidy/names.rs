//! Pages for users name flags, variables and metrics that exist: those that `tests/public_names` lists.

use std::collections::HashSet;

use super::Finding;
use super::files::SourceFile;
use crate::pages::{Mention, Page};

/// The lists of flags, of variables, and of metrics.
const FLAGS: &str = "tests/public_names/command_line.txt";
const VARIABLES: &str = "tests/public_names/settings.txt";
const METRICS: &str = "tests/public_names/metrics.txt";

/// Pages for users. The page about other servers names flags of theirs.
const PAGES: [&str; 3] = ["README.md", "CHANGELOG.md", "docs/"];
const OTHERS: [&str; 3] = ["docs/design/", "docs/log/", "docs/coming-from.md"];

/// Beginnings of variables that the program reads.
const PREFIXES: [&str; 5] = ["BLAZE_", "PRISM_", "CANDLEPOWER_", "HF_", "OPENAI_"];

/// Flags of cargo and docker that pages name alone, and a crate that is named like a metric.
const KNOWN: [&str; 3] = ["--build-arg", "--features", "candlepower_client"];

pub(super) fn findings(files: &[SourceFile]) -> Vec<Finding> {
    let list = |path: &str| files.iter().find(|file| file.path == path).map(|file| &*file.text);
    let (Some(flags), Some(variables), Some(metrics)) =
        (list(FLAGS), list(VARIABLES), list(METRICS))
    else {
        return Vec::new();
    };
    let names = Names {
        commands: flags.lines().collect(),
        words: [flags, variables, metrics].into_iter().flat_map(str::split_whitespace).collect(),
    };
    let starts = |path: &str, with: &[&str]| with.iter().any(|start| path.starts_with(start));
    let pages = files.iter().filter(|file| {
        file.has_extension("md") && starts(&file.path, &PAGES) && !starts(&file.path, &OTHERS)
    });
    pages.flat_map(|file| names.missing_in(file)).collect()
}

struct Names<'a> {
    commands: HashSet<&'a str>,
    words: HashSet<&'a str>,
}

impl Names<'_> {
    fn missing_in(&self, file: &SourceFile) -> Vec<Finding> {
        let page = Page::read(&file.text);
        let mentions = page.code.iter().chain(&page.lines);
        let missing = mentions.filter_map(|mention: &Mention| {
            let name = self.missing(&mention.text)?;
            Some(Finding::new(file, mention.line, format!("there is no `{name}`")))
        });
        missing.collect()
    }

    /// The first name in a piece of code that is in no list.
    fn missing(&self, code: &str) -> Option<String> {
        let is_command = code.starts_with("candlepower ");
        // A command has at most two words behind the program's name.
        let words: Vec<&str> = code.split_whitespace().take(3).collect();
        let begins = |line: &str| self.commands.iter().any(|listed| listed.starts_with(line));
        // `bench run` is a command of two words.
        let command = (1..=words.len()).rev().map(|count| words[..count].join(" "));
        let command = command.filter(|_| is_command).find(|command| begins(&format!("{command} ")));
        let is_listed = |name: &str| match &command {
            Some(command) => {
                let line = format!("{command} {name}");
                self.commands.contains(line.as_str()) || begins(&format!("{line} "))
            }
            None => self.words.contains(name) || KNOWN.contains(&name),
        };
        if is_command || code.starts_with("--") {
            // Behind `--` stand flags of another command.
            let own = code.split(" -- ").next().unwrap_or(code);
            let words = own.split([' ', '=']).filter(|word| is_flag(word));
            if let Some(flag) = words.map(str::to_owned).find(|flag| !is_listed(flag)) {
                return Some(flag);
            }
        }
        let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = code.split(|c| !is_of_word(c));
        let named = words.filter(|word| {
            word.starts_with("candlepower_")
                || PREFIXES.iter().any(|prefix| word.starts_with(prefix))
        });
        // A beginning alone is the name of a group.
        let known =
            |word: &str| word.ends_with('_') || self.words.contains(word) || KNOWN.contains(&word);
        named.map(str::to_owned).find(|word| !known(word))
    }
}

fn is_flag(word: &str) -> bool {
    let name = word.strip_prefix("--").unwrap_or_default();
    !name.is_empty()
        && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
}

#[cfg(test)]
mod tests {
    use super::super::files::sample;
    use super::*;

    fn messages(page: &str, text: &str) -> Vec<String> {
        let mut files = sample(page, text);
        files.extend(sample(
            FLAGS,
            "candlepower serve --dtype\ncandlepower serve --dtype float32\ncandlepower bench run --batch\n",
        ));
        files.extend(sample(VARIABLES, "environment BLAZE_DTYPE\n"));
        files.extend(sample(METRICS, "candlepower_steps_total counter\n"));
        findings(&files).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn names_of_the_lists_pass() {
        let text = "`--dtype float32`, `--dtype=float32`, `BLAZE_DTYPE=float32`, `candlepower_steps_total`, `BLAZE_`, `cargo build --features cuda`\n\n\
                    ```console\ncandlepower serve demo --dtype float32\ncandlepower bench run x --batch 1\ndocker run --rm x\n```\n";
        assert!(messages("docs/a.md", text).is_empty(), "{:?}", messages("docs/a.md", text));
        assert!(messages("docs/a.md", "`candlepower bench run x --batch 1 -- --other`").is_empty());
        assert!(messages("docs/design/a.md", "`--none`").is_empty());
    }

    #[test]
    fn names_of_no_list_are_found() {
        for text in [
            "`--none`",
            "`BLAZE_NONE`",
            "`candlepower_none_total`",
            "`candlepower bench run --dtype x`",
            "`candlepower run --none`",
        ] {
            assert_eq!(messages("README.md", text).len(), 1, "{text}");
        }
        let block = "```console\ncandlepower serve x --none\n```\n";
        assert_eq!(messages("docs/a.md", block), ["docs/a.md:2: there is no `--none`"]);
    }
}
