//! `candlepower models`: the downloaded models. `pull` and `rm` download and remove them.

mod age;
mod cache;
mod pull;
mod remove;

use std::process::ExitCode;

use anyhow::Result;
use candlepower_checkpoint::{Bytes, CheckpointFiles};
use candlepower_hub::{GgufName, StoredCommit, StoredModel, StoredRepo, stored};
use candlepower_machine::{Machine, print, print_error};
use clap::Args;
use serde_json::{Value, json};

use crate::table::table_of_words;
use crate::{doctor, failure};
use age::age;
use cache::CacheFlags;
pub(crate) use pull::{AFTER_HELP as AFTER_PULL_HELP, Pull};
pub(crate) use remove::{AFTER_HELP as AFTER_REMOVE_HELP, Remove};

/// End of the long help.
pub(crate) const AFTER_HELP: &str = "A model fits if `serve` would start with the default settings; `candlepower doctor MODEL` says more. Models that other programs \
    have downloaded into the same folder are listed too, and their last use is unknown.\n\n\
    --json writes a list of objects:\n  \
    name           for `serve`, `pull` and `rm`\n  \
    revisions      branches and tags\n  \
    commit         full id\n  \
    folder         folder, or GGUF file\n  \
    size_bytes     of its files\n  \
    format         safetensors or gguf\n  \
    quantization   method or GGUF type, or null\n  \
    dtype          of unquantized weights, or null\n  \
    architecture   class name, or null\n  \
    context        tokens, or null\n  \
    complete       whether no file is missing\n  \
    fits           whether it fits this machine, or null if that is not known\n  \
    max_model_len_that_fits\n                 longest context that fits, or null\n  \
    message        reason if it does not fit, is not supported or not complete, else null\n  \
    last_used      seconds since 1970, or null";

/// `candlepower models`.
#[derive(Debug, Args)]
pub(crate) struct Models {
    #[command(flatten)]
    cache: CacheFlags,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Models {
    pub(crate) fn run(&self) -> ExitCode {
        match self.list() {
            Ok(text) => {
                print(&text);
                ExitCode::SUCCESS
            }
            Err(error) => {
                print_error(format_args!("error: {}", failure::text(&error)));
                ExitCode::FAILURE
            }
        }
    }

    fn list(&self) -> Result<String> {
        let cache = self.cache.folder()?;
        let repos = stored(&cache)?;
        let machine = Machine::probe();
        let mut rows = Vec::new();
        for repo in &repos {
            for commit in &repo.commits {
                rows.extend(
                    repo.models(commit).into_iter().map(|model| row(commit, &model, &machine)),
                );
            }
        }
        if self.json {
            return Ok(format!("{:#}\n", Value::from(rows)));
        }
        if rows.is_empty() {
            return Ok(format!(
                "no models in {}; `candlepower pull owner/name` downloads one\n",
                cache.display()
            ));
        }
        let heads = ["NAME", "REVISION", "SIZE", "FORMAT", "CONTEXT", "FITS", "LAST USED"];
        let mut lines = vec![heads.map(str::to_owned).to_vec()];
        lines.extend(rows.iter().map(cells));
        let bytes = repos.iter().map(StoredRepo::bytes).sum();
        Ok(format!("{}\n{} in {}\n", table_of_words(&lines), Bytes(bytes), cache.display()))
    }
}

/// A model as JSON, with the keys that the help explains.
fn row(commit: &StoredCommit, model: &StoredModel, machine: &Machine) -> Value {
    let gguf = model.name.gguf.as_ref();
    let missing = model.missing.as_ref().map(|file| {
        json!({"message": format!("{file} is missing: `candlepower pull {}` downloads it", model.name)})
    });
    let found = missing.unwrap_or_else(|| described(model, machine));
    let quantization = match gguf {
        Some(GgufName::End(end)) => Some(end.clone()),
        Some(GgufName::Path(path)) => Some(path.trim_end_matches(".gguf").to_owned()),
        None => found["quantization"].as_str().map(str::to_owned),
    };
    let plans = || found["plans"].as_array().into_iter().flatten();
    // The first plan is of the dtype that `serve` would use; one device on which it fits is enough.
    let is_served = |plan: &&Value| plan["dtype"] == found["dtype"];
    let fits = plans().filter(is_served).any(|plan| plan["fits"] == true);
    let longest =
        plans().filter(is_served).filter_map(|plan| plan["max_model_len_that_fits"].as_u64()).max();
    json!({
        "name": model.name.to_string(),
        "revisions": commit.revisions,
        "commit": commit.id,
        "folder": model.path,
        "size_bytes": model.bytes,
        "format": if gguf.is_some() { "gguf" } else { "safetensors" },
        "quantization": quantization,
        "dtype": found["dtype"],
        "architecture": found["architecture"],
        "context": found["max_model_len"],
        "complete": model.missing.is_none(),
        "fits": found["plans"].is_array().then_some(fits),
        "max_model_len_that_fits": longest,
        "message": if fits { Value::Null } else { found["message"].clone() },
        "last_used": commit.last_used,
    })
}

/// The report of `doctor`, or the reason that there is none as `message`.
fn described(model: &StoredModel, machine: &Machine) -> Value {
    let files = CheckpointFiles::find(&model.path).map_err(anyhow::Error::from);
    let report = files.and_then(|files| {
        // The folder may also have GGUF files, which are models of their own.
        let files = match (&model.name.gguf, files) {
            (Some(_), Some(files)) => files,
            _ => CheckpointFiles::Folder(model.path.clone()),
        };
        doctor::report_on(&model.name.to_string(), files, machine)
    });
    report.unwrap_or_else(|error| json!({"message": failure::text(&error)}))
}

fn cells(row: &Value) -> Vec<String> {
    let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let names = row["revisions"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let names = names.collect::<Vec<_>>().join(",");
    let short = text("commit").chars().take(8).collect();
    let number = |key: &str| row[key].as_u64();
    let kind = row["quantization"].as_str().or(row["dtype"].as_str()).unwrap_or_default();
    let fits = match (&row["fits"], number("max_model_len_that_fits")) {
        _ if row["complete"] == false => "not complete".to_owned(),
        (Value::Bool(true), _) => "yes".to_owned(),
        (Value::Bool(false), Some(tokens @ 1..)) => format!("up to {tokens} tokens"),
        (Value::Bool(false), _) => "no".to_owned(),
        _ => "not supported".to_owned(),
    };
    vec![
        text("name"),
        if names.is_empty() { short } else { names },
        Bytes(number("size_bytes").unwrap_or(0)).to_string(),
        format!("{} {kind}", text("format")).trim_end().to_owned(),
        number("context").map_or_else(String::new, |tokens| tokens.to_string()),
        fits,
        number("last_used").map_or_else(|| "-".to_owned(), age),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells_with(changes: Value) -> Vec<String> {
        let mut row = json!({
            "name": "acme/tiny", "revisions": ["main", "v1"], "commit": "0123456789abcdef", "size_bytes": 1 << 20,
            "format": "gguf", "quantization": "Q8_0", "dtype": "bfloat16", "context": 512, "complete": true, "fits": true,
            "max_model_len_that_fits": 512, "last_used": null,
        });
        let (row_keys, changes) = (row.as_object_mut().unwrap(), changes.as_object().unwrap());
        row_keys.extend(changes.clone());
        cells(&row)
    }

    #[test]
    fn a_row_says_how_long_a_context_fits() {
        for (changes, expected) in [
            (json!({}), "yes"),
            (json!({"fits": false, "max_model_len_that_fits": 64}), "up to 64 tokens"),
            (json!({"fits": false, "max_model_len_that_fits": 0}), "no"),
            (json!({"fits": false, "max_model_len_that_fits": null}), "no"),
            (json!({"fits": null}), "not supported"),
            (json!({"complete": false}), "not complete"),
        ] {
            assert_eq!(cells_with(changes.clone())[5], expected, "{changes}");
        }
    }

    #[test]
    fn a_row_names_branches_or_else_the_commit() {
        let whole = ["acme/tiny", "main,v1", "1.0 MiB", "gguf Q8_0", "512", "yes", "-"];
        assert_eq!(cells_with(json!({})), whole);
        let bare = cells_with(json!({"revisions": [], "quantization": null, "context": null}));
        assert_eq!(bare[1..5], ["01234567", "1.0 MiB", "gguf bfloat16", ""]);
    }
}
