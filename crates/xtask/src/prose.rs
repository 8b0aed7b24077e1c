//! `cargo xtask prose`: measures the project's English and checks it by rules.

mod blocks;
mod context;
mod extract;
mod passage;
pub(crate) mod ratchet;
mod report;
mod rules;
mod rust;
mod scripts;
mod sentences;
mod words;

use std::path::Path;

use anyhow::{Result, bail};

use crate::tidy::files::{self, SourceFile};
use passage::Kind;
use rules::{Breach, Rules};
use sentences::Sentence;

/// A sentence of the project, its place, and the rules that it breaks.
pub(crate) struct Judged {
    kind: Kind,
    path: String,
    sentence: Sentence,
    breaches: Vec<Breach>,
}

/// Characters of a sentence that are shown.
const SHOWN_CHARS: usize = 70;

impl Judged {
    /// The broken rule, the remedy, and the start of the sentence.
    fn message(&self, breach: &Breach) -> String {
        let shown: String = self.sentence.text.chars().take(SHOWN_CHARS).collect();
        format!("{}: \"{shown}\"", breach.message)
    }
}

/// Prints the table, or the breaches of some paths and kinds, or tightens the list.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<String> {
    let judged = judge(&files::read(root)?);
    match arguments {
        [] => report::table(&judged),
        [option] if option == "--tighten" => return ratchet::tighten(root, &judged),
        _ => {
            if let Some(option) = arguments.iter().find(|argument| argument.starts_with('-')) {
                bail!("prose has no option `{option}`; its only one is --tighten, alone");
            }
            report::breaches(&judged, arguments)?;
        }
    }
    Ok(format!("{} sentences", judged.len()))
}

/// Every sentence of the files.
pub(crate) fn judge(files: &[SourceFile]) -> Vec<Judged> {
    let rules = Rules::new();
    let mut judged = Vec::new();
    for passage in extract::passages(files) {
        for sentence in blocks::blocks(&passage).iter().flat_map(sentences::sentences) {
            let breaches = rules.breaches(&sentence, &passage.path);
            let (kind, path) = (passage.kind.clone(), passage.path.clone());
            judged.push(Judged { kind, path, sentence, breaches });
        }
    }
    judged
}

#[cfg(test)]
fn sample(path: &str, text: &str) -> Vec<Judged> {
    judge(&files::sample(path, text))
}
