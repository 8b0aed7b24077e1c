//! Lists of modules that a quantization leaves alone.

use regex::Regex;

use crate::{config::HfConfig, error::Result};

/// Names and patterns of modules.
#[derive(Clone, Debug, Default)]
pub(super) struct Modules {
    names: Vec<String>,
    patterns: Vec<Regex>,
}

impl Modules {
    /// Reads a list of names; `re:` begins a regular expression, and `*` stands for anything.
    pub(super) fn read(c: &HfConfig, key: &str) -> Result<Self> {
        let mut modules = Self::default();
        for entry in c.texts_opt(key)?.unwrap_or_default() {
            let pattern = match entry.strip_prefix("re:") {
                Some(pattern) => Some(format!("^(?:{pattern})")),
                None => entry.contains('*').then(|| {
                    // compressed-tensors uses Python's `re.match`, which is anchored at the start alone.
                    let pattern = regex::escape(entry).replace(r"\*", ".*");
                    format!(r"^(?:{pattern})(?:\.|$)")
                }),
            };
            match pattern {
                None => modules.names.push(entry.to_owned()),
                Some(pattern) => match Regex::new(&pattern) {
                    Ok(pattern) => modules.patterns.push(pattern),
                    Err(_) => {
                        let hint = "; a list of names and regular expressions is";
                        return Err(c.unsupported(key, &entry.into(), hint));
                    }
                },
            }
        }
        Ok(modules)
    }

    /// Adds a module by its whole name.
    pub(super) fn add(&mut self, module: &str) {
        self.names.push(module.to_owned());
    }

    pub(super) fn extend(&mut self, others: Self) {
        self.names.extend(others.names);
        self.patterns.extend(others.patterns);
    }

    /// Whether a module is one of them, or lies in one of them. A name may be the end of a module's name, or stand in its
    /// middle: `lm_head`, `mlp.down_proj`, `model.layers.0`. Models of texts and images name the same module with what they call
    /// their part for texts.
    pub(super) fn contain(&self, module: &str) -> bool {
        // Quantizers list modules as they saw them, within a model of texts and images or without.
        let inner = module.strip_prefix("model.").unwrap_or(module);
        let spellings = [
            module.to_owned(),
            format!("model.language_model.{inner}"),
            format!("language_model.{module}"),
        ];
        spellings.iter().any(|module| {
            // The dots keep `layers.1` from being found in `layers.10`.
            let dotted = format!(".{module}.");
            self.names.iter().any(|name| dotted.contains(&format!(".{name}.")))
                || self.patterns.iter().any(|pattern| pattern.is_match(module))
        })
    }
}
