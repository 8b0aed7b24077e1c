//! Public names of the Python package. Its formatted sources are read line by line, so no Python is needed.

use std::path::Path;

use super::{Names, sources};

pub(super) fn collect(names: &mut Names) {
    let folder = sources::folder("python").join("python/candlepower");
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let exported = exported(&read(&folder.join("__init__.py")));
    assert!(
        exported.contains(&"Client".to_owned()),
        "the package is of another form: {exported:?}"
    );
    exported.iter().for_each(|name| names.add(format!("exported {name}")));
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "py") {
            continue;
        }
        let mut own = Names::default();
        module(&read(&path), &mut own);
        // A module with an underscore is private: users have the names that the package exports from it.
        let name = path.file_stem().unwrap().to_str().unwrap();
        let is_public = !name.starts_with('_');
        for found in own.0 {
            let root = found.split(['.', '(', ' ']).next().unwrap();
            if is_public {
                names.add(format!("{name}.{found}"));
            } else if exported.iter().any(|exported| exported == root) {
                names.add(found);
            }
        }
    }
}

/// The names in `__all__`.
fn exported(text: &str) -> Vec<String> {
    let list = text.split_once("__all__ = [").unwrap().1.split_once(']').unwrap().0;
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn module(text: &str, names: &mut Names) {
    // The class that indented lines belong to.
    let mut class: Option<String> = None;
    for statement in statements(text) {
        let is_member = statement.starts_with("    ");
        let statement = statement.trim();
        if is_member {
            if let Some(class) = &class {
                member(&format!("{class}."), statement, names);
            }
            continue;
        }
        class = statement.strip_prefix("class ").map(|name| {
            let end = name.find(['(', ':']).unwrap();
            name[..end].to_owned()
        });
        match &class {
            Some(class) => names.add(class.clone()),
            None => member("", statement, names),
        }
    }
}

/// Statements of modules and classes, each on one line with its indentation.
fn statements(text: &str) -> Vec<String> {
    let mut statements = Vec::new();
    let mut open: Option<String> = None;
    let mut is_text = false;
    for line in text.lines() {
        // Docstrings over several lines are skipped here. Others are no attribute, so `member` skips them.
        if line.matches("\"\"\"").count() % 2 == 1 {
            is_text = !is_text;
            continue;
        }
        let indentation = line.len() - line.trim_start().len();
        let begins = indentation == 0 || indentation == 4;
        match &mut open {
            _ if is_text || line.trim().is_empty() => continue,
            Some(statement) => {
                *statement += " ";
                *statement += line.trim();
            }
            None if begins => open = Some(line.to_owned()),
            None => continue,
        }
        let balance = |text: &str| {
            let count = |brackets: &[char]| text.matches(brackets).count();
            count(&['(', '[', '{']) == count(&[')', ']', '}'])
        };
        if open.as_deref().is_some_and(balance) {
            statements.extend(open.take());
        }
    }
    statements
}

/// Lists a function with its parameters, or an attribute with its literal values.
fn member(owner: &str, statement: &str, names: &mut Names) {
    let statement = statement.strip_prefix("async ").unwrap_or(statement);
    if let Some(function) = statement.strip_prefix("def ") {
        let (name, rest) = function.split_once('(').unwrap();
        if is_private(name) {
            return;
        }
        let end = rest.rfind(") ->").unwrap_or_else(|| panic!("no type is returned: {statement}"));
        names.add(format!("{owner}{name}({})", parameters(&rest[..end]).join(", ")));
        return;
    }
    let end = statement.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(0);
    let (name, rest) = statement.split_at(end);
    let is_attribute = rest.starts_with(": ") || rest.starts_with(" = ");
    if name.is_empty() || !is_attribute || is_private(name) {
        return;
    }
    names.add(format!("{owner}{name}"));
    for text in rest.split('"').skip(1).step_by(2) {
        names.add(format!("{owner}{name} \"{text}\""));
    }
}

fn is_private(name: &str) -> bool {
    name.starts_with('_') && name != "__init__"
}

/// Names of parameters, with the markers `*` and `**`.
fn parameters(text: &str) -> Vec<String> {
    let mut depth = 0;
    let parts = text.split(|c| {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    let names = parts.map(|part| part.split([':', '=']).next().unwrap().trim().to_owned());
    names.filter(|name| !name.is_empty()).collect()
}
