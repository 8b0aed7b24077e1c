//! Runs JSON Schema test suites: checks every instance of every schema that compiles, token by token.
//!
//! `cargo xtask schema-suite FOLDER..` runs this. A folder has JSON files, each with one group or an array of groups:
//! `{"description", "schema", "tests": [{"description", "data", "valid"}]}`. The output is a table in Markdown. The exit status
//! is 1 if an invalid instance was accepted, or if a schema compiles only with open objects.

#![expect(clippy::print_stdout, reason = "a command-line tool answers on its standard output")]

mod causes;
mod instances;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use candlepower_grammar::{Constraint, Grammar, GrammarCompiler};
use candlepower_tokenizer::{AddSpecialTokens, Tokenizer};
use serde::Deserialize;
use serde_json::Value;

use causes::{Cause, cause};
use table::{Table, Wrong};

/// The tokenizer of the demo model, and its end-of-sequence token.
const TOKENIZER: &[u8] = include_bytes!("../../../server/demo/tokenizer.json");
const EOS: u32 = 1275;
const NUM_LOGITS: usize = 1280;

/// A schema and its instances.
#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    description: String,
    schema: Value,
    tests: Vec<Test>,
}

#[derive(Deserialize)]
struct Test {
    #[serde(default)]
    description: String,
    data: Value,
    valid: bool,
}

fn main() -> ExitCode {
    let folders: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if folders.is_empty() {
        println!("usage: schema_suite FOLDER..");
        return ExitCode::from(2);
    }
    match run(&folders) {
        Ok(table) => {
            println!("{table}");
            if table.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(folders: &[PathBuf]) -> Result<Table, String> {
    let tokenizer = Tokenizer::from_bytes(TOKENIZER, None).map_err(|error| error.to_string())?;
    let compiler =
        GrammarCompiler::new(&tokenizer, &[EOS], NUM_LOGITS).map_err(|error| error.to_string())?;
    let mut table = Table::default();
    for folder in folders {
        let mut files = Vec::new();
        add_files(folder, &mut files)?;
        files.sort();
        if files.is_empty() {
            return Err(format!("there are no JSON files in {}", folder.display()));
        }
        for file in files {
            let name = file.strip_prefix(folder).unwrap_or(&file).with_extension("");
            for mut group in groups(&file)? {
                // The suite's schemas say the draft by their folder alone, and a missing `$schema` means 2020-12
                // here.
                set_draft(folder, &mut group.schema);
                judge(&tokenizer, &compiler, &name.to_string_lossy(), &group, &mut table)?;
            }
        }
    }
    Ok(table)
}

/// Adds the draft from the name of the suite's folder to a schema without one.
fn set_draft(folder: &Path, schema: &mut Value) {
    let draft = match folder.file_name().and_then(|name| name.to_str()) {
        Some("draft4") => "http://json-schema.org/draft-04/schema#",
        Some("draft6") => "http://json-schema.org/draft-06/schema#",
        Some("draft7") => "http://json-schema.org/draft-07/schema#",
        _ => return,
    };
    if let Value::Object(schema) = schema {
        schema.entry("$schema").or_insert_with(|| draft.into());
    }
}

/// Adds the JSON files below a folder.
fn add_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.is_dir() {
            add_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    Ok(())
}

fn groups(file: &Path) -> Result<Vec<Group>, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
    let list = if value.is_array() { value } else { Value::Array(vec![value]) };
    serde_json::from_value(list).map_err(|error| wrong(&error))
}

/// Compiles a schema and checks its instances.
fn judge(
    tokenizer: &Tokenizer,
    compiler: &GrammarCompiler,
    file: &str,
    group: &Group,
    table: &mut Table,
) -> Result<(), String> {
    let grammar = match compiler.compile(&Constraint::JsonSchema(group.schema.clone())) {
        Ok(grammar) => grammar,
        Err(error) => {
            // Refusing a schema that nothing satisfies is correct.
            let only_invalid = group.tests.iter().all(|test| !test.valid);
            table.refused(file, &error.to_string(), only_invalid);
            return Ok(());
        }
    };
    table.compiled(file);
    // Instances are judged with open objects, by JSON Schema's letter. Closing must not make a satisfiable schema
    // unsatisfiable.
    let closed = Constraint::JsonSchema(group.schema.clone()).closed();
    if let Err(error) = closed.and_then(|closed| compiler.compile(&closed)) {
        table.closed_refused(format!("{file}: {}", group.description), error.to_string());
    }
    for test in &group.tests {
        let spellings = instances::spellings(&group.schema, &test.data);
        let mut is_accepted = false;
        for spelling in &spellings {
            // All spellings are tried: one accepted invalid spelling would be a fault.
            is_accepted |= accepts(tokenizer, grammar.clone(), spelling)?;
        }
        let wrong = || Wrong {
            file: file.to_owned(),
            group: group.description.clone(),
            test: test.description.clone(),
            instance: spellings[0].clone(),
        };
        match (test.valid, is_accepted) {
            (true, true) => table.valid_accepted(file),
            (false, false) => table.invalid_refused(file),
            (false, true) if causes::is_annotated(&group.schema) => table.annotated(file),
            (false, true) => table.invalid_accepted(file, wrong()),
            (true, false) => {
                let cause: Cause = cause(&group.schema, &test.data);
                table.valid_refused(file, cause, wrong());
            }
        }
    }
    Ok(())
}

/// Whether a grammar allows a text, token by token.
fn accepts(tokenizer: &Tokenizer, mut grammar: Grammar, text: &str) -> Result<bool, String> {
    let ids = tokenizer.encode(text, AddSpecialTokens::No).map_err(|error| error.to_string())?;
    for id in ids {
        if grammar.is_finished() || !allows(&mut grammar, id)? {
            return Ok(false);
        }
        grammar.accept(id).map_err(|error| error.to_string())?;
    }
    Ok(grammar.is_finished() || allows(&mut grammar, EOS)?)
}

fn allows(grammar: &mut Grammar, id: u32) -> Result<bool, String> {
    Ok(grammar.allowed().map_err(|error| error.to_string())?.allows(id))
}
