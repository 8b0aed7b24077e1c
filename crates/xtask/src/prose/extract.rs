//! Extracts the project's English from its files, by kind of text.

use super::passage::{Kind, Passage};
use super::{rust, scripts};
use crate::tidy::files::SourceFile;

/// Texts that are data: logs of experiments, expected answers, words for the demo model.
const LEFT_OUT: [&str; 5] =
    ["docs/log/", "tests/golden/", "tests/fuzz/", "scripts/demo_model/", "LICENSE"];

/// A generated part of a document lies between `<!-- NAME: written by .. -->` and `<!-- NAME: end -->`.
const GENERATED: (&str, &str) = (": written by ", ": end -->");

/// Every passage of the project's own English.
pub(crate) fn passages(files: &[SourceFile]) -> Vec<Passage> {
    files.iter().flat_map(of_file).collect()
}

fn of_file(file: &SourceFile) -> Vec<Passage> {
    let path = file.path.as_str();
    if LEFT_OUT.iter().any(|left_out| path.starts_with(left_out)) {
        return Vec::new();
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let of_python = path.starts_with("crates/python/");
    match extension {
        "md" => vec![document(file)],
        "rs" => rust::passages(file, crate_of(path)),
        "cu" | "cuh" | "cpp" | "h" | "mjs" => rust::only_comments(file, crate_of(path)),
        "py" | "pyi" if of_python => scripts::python(file, &Kind::Python),
        "py" | "pyi" => scripts::python(file, &Kind::Scripts),
        "sh" => scripts::hashed(file, &Kind::Scripts),
        "toml" | "yaml" => scripts::hashed(file, &Kind::Config),
        _ if name == "Dockerfile" => scripts::hashed(file, &Kind::Config),
        _ => Vec::new(),
    }
}

/// The crate of a file: the folder below `crates/`, or the first folder.
fn crate_of(path: &str) -> &str {
    let path = path.strip_prefix("crates/").unwrap_or(path);
    path.split('/').next().unwrap_or(path)
}

fn document(file: &SourceFile) -> Passage {
    let mut passage = Passage::new(Kind::Document(file.path.clone()), &file.path);
    let mut is_generated = false;
    for (i, line) in file.text.lines().enumerate() {
        is_generated |= line.starts_with("<!--") && line.contains(GENERATED.0);
        // A blank line keeps the numbers of the lines that follow.
        passage.push(if is_generated { "" } else { line }, i + 1);
        is_generated &= !line.ends_with(GENERATED.1);
    }
    passage
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files::sample;

    fn kinds(path: &str, text: &str) -> Vec<String> {
        passages(&sample(path, text)).iter().map(|passage| passage.kind.to_string()).collect()
    }

    #[test]
    fn each_file_is_read_by_its_kind_and_data_is_not() {
        for (path, text, kind) in [
            ("docs/a.md", "Text.", "docs/a.md"),
            ("crates/gpu/kernels/a.cu", "// Text.", "comments:gpu"),
            ("tests/main.rs", "//! Text.", "docs:tests"),
            ("crates/python/python/a.py", "# Text.", "python"),
            ("scripts/a.py", "# Text.", "scripts"),
            ("configs/default.toml", "# Text.", "config"),
            ("Dockerfile", "# Text.", "config"),
        ] {
            assert_eq!(kinds(path, text), [kind], "{path}");
        }
        assert!(kinds("docs/log/2026-11.md", "Text.").is_empty());
        assert!(kinds("Cargo.lock", "# Text.").is_empty());
    }

    #[test]
    fn generated_parts_of_a_document_are_left_out() {
        let text = "One.\n<!-- t: written by `x` -->\nTwo.\n<!-- t: end -->\nThree.\n";
        let passages = passages(&sample("README.md", text));
        assert_eq!(passages[0].text, "One.\n\n\n\nThree.\n");
    }
}
