//! Limits the length of files, so that a reader can keep a file in mind.

use super::Finding;
use super::files::SourceFile;

/// Files should have about 400 lines. Longer ones than this are refused.
const MAX_LINES: usize = 700;

/// Extensions of hand-written files.
const EXTENSIONS: [&str; 7] = ["rs", "py", "mjs", "cu", "cuh", "cpp", "sh"];

pub(super) fn findings(files: &[SourceFile]) -> Vec<Finding> {
    files
        .iter()
        .filter(|file| EXTENSIONS.iter().any(|extension| file.has_extension(extension)))
        .filter_map(|file| {
            let lines = file.text.lines().count();
            let message = format!("{lines} lines; at most {MAX_LINES}: split the file");
            (lines > MAX_LINES).then(|| Finding::new(file, lines, message))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::files::sample;
    use super::*;

    #[test]
    fn a_long_file_is_found() {
        let text = "//! Long.\n".to_owned() + &"// line\n".repeat(MAX_LINES);
        let found = findings(&sample("crates/api/src/long.rs", &text));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 701);
    }

    #[test]
    fn the_limit_itself_and_data_pass() {
        let text = "x\n".repeat(MAX_LINES);
        assert!(findings(&sample("crates/api/src/lib.rs", &text)).is_empty());
        assert!(findings(&sample("tests/data.json", &"x\n".repeat(5000))).is_empty());
    }
}
