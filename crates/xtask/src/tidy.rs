//! The project's own rules, which no ordinary linter has. Each is a function from sources to findings.

mod budget;
pub(crate) mod code;
mod configuration;
mod dashboards;
pub(crate) mod files;
mod folders;
mod ignored;
mod layers;
pub(crate) mod links;
mod map;
mod models_table;
mod names;
mod paths;
mod sizes;
mod targets;
mod unsafe_code;
mod words;

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};

use crate::prose::ratchet;
use files::SourceFile;

/// One broken rule, at one place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// Counted from 1; 0 if the finding concerns the whole file.
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl Finding {
    fn new(file: &SourceFile, line: usize, message: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// A rule takes every file of the project and returns its breaches.
type Rule = fn(&[SourceFile]) -> Vec<Finding>;

const RULES: [Rule; 15] = [
    layers::findings,
    folders::findings,
    sizes::findings,
    unsafe_code::findings,
    words::findings,
    paths::findings,
    targets::findings,
    models_table::findings,
    configuration::findings,
    dashboards::findings,
    map::findings,
    links::findings,
    names::findings,
    ignored::findings,
    ratchet::findings,
];

/// Writes the generated parts of the documentation: the tables of models, the page of settings, the dashboards, and the map of the
/// sources.
pub(crate) fn write_docs(root: &Path) -> Result<String> {
    let files = files::read(root)?;
    let page = root.join(models_table::PAGE);
    let text = std::fs::read_to_string(&page)?;
    std::fs::write(page, models_table::written(&files, &text).map_err(anyhow::Error::msg)?)?;
    let settings = std::fs::read_to_string(root.join(configuration::SETTINGS))?;
    std::fs::write(root.join(configuration::PAGE), configuration::written(&settings))?;
    for (path, text) in dashboards::written(&files).map_err(anyhow::Error::msg)? {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(root))?;
        std::fs::write(path, text)?;
    }
    std::fs::write(root.join(map::PAGE), map::written(&files))?;
    Ok(String::new())
}

/// Checks every file that git tracks or would track. The error lists all findings.
pub(crate) fn run(root: &Path) -> Result<String> {
    let files = files::read(root)?;
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(&files)).collect();
    findings.extend(budget::findings(&files::sizes(root)?));
    if findings.is_empty() {
        return Ok(format!("{} files, {} rules", files.len(), RULES.len() + 1));
    }
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    bail!("{} findings\n{}", findings.len(), lines.join("\n"))
}
