//! Limits `unsafe` to some folders, and checks that each use of it says why it is sound.

use super::Finding;
use super::code::{has_word, only_code};
use super::files::SourceFile;

/// Folders that need `unsafe` for their purpose: the operations of each device, and communication among ranks.
const FOLDERS: [&str; 3] = ["crates/gpu/", "crates/kernels/", "crates/comm/"];

/// Files that may contain one unsafe block: the memory map of the weights, and a function of the allocator.
const FILES: [&str; 3] = [
    "crates/candlepower/src/allocator.rs",
    "crates/models/src/load.rs",
    "crates/models/src/shards.rs",
];

pub(super) fn findings(files: &[SourceFile]) -> Vec<Finding> {
    files.iter().filter(|file| file.is_rust()).flat_map(file_findings).collect()
}

fn file_findings(file: &SourceFile) -> Vec<Finding> {
    let code = only_code(&file.text);
    let code: Vec<&str> = code.lines().collect();
    let source: Vec<&str> = file.text.lines().collect();
    let uses: Vec<usize> = (0..code.len()).filter(|&line| has_word(code[line], "unsafe")).collect();

    let anywhere = FOLDERS.iter().any(|folder| file.path.starts_with(folder));
    let once = FILES.contains(&file.path.as_str());
    let allowed = if anywhere { uses.len() } else { usize::from(once) };
    let mut findings: Vec<Finding> = uses
        .iter()
        .skip(allowed)
        .map(|&line| {
            Finding::new(
                file,
                line + 1,
                "`unsafe` lives in gpu, kernels, comm, the memory map and the allocator",
            )
        })
        .collect();
    findings.extend(
        uses.iter()
            .filter(|&&line| needs_reason(code[line]) && !has_reason(&source, &code, line))
            .map(|&line| Finding::new(file, line + 1, "`unsafe` without a `// SAFETY:` above it")),
    );
    findings
}

/// Blocks and impls say why they are sound. An `unsafe fn` states its requirements in `# Safety`.
fn needs_reason(line: &str) -> bool {
    line.match_indices("unsafe").any(|(at, word)| {
        let after = line[at + word.len()..].trim_start();
        // rustfmt may put the brace on the next line.
        after.is_empty() || after.starts_with('{') || after.starts_with("impl")
    })
}

/// Whether the comment above the statement of this line has a `SAFETY:`.
fn has_reason(source: &[&str], code: &[&str], line: usize) -> bool {
    if source[line].contains("// SAFETY:") || has_common_reason(source, line) {
        return true;
    }
    for above in (0..line).rev() {
        if source[above].trim_start().starts_with("// SAFETY:") {
            return true;
        }
        let above_code = code[above].trim_end();
        // The head of a closure is in the middle of a statement.
        let statement_ends = above_code.ends_with([';', '{', '}']) && !above_code.ends_with("| {");
        if source[above].trim().is_empty() || statement_ends {
            return false;
        }
    }
    false
}

/// A file that has only such blocks may state their common reason at its top.
fn has_common_reason(source: &[&str], line: usize) -> bool {
    source[..line].iter().any(|above| above.starts_with("// SAFETY of every block below:"))
}

#[cfg(test)]
mod tests {
    use super::super::files::sample;
    use super::*;

    const SOUND: &str = "fn f() {\n    // SAFETY: it is.\n    let x = unsafe { g() };\n}\n";

    fn lines(path: &str, text: &str) -> Vec<usize> {
        findings(&sample(path, text)).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn unsafe_outside_its_places_is_found() {
        assert_eq!(lines("crates/server/src/lib.rs", SOUND), [3]);
        assert_eq!(lines("tests/main.rs", SOUND), [3]);
    }

    #[test]
    fn unsafe_in_its_places_passes() {
        assert!(lines("crates/kernels/src/simd.rs", SOUND).is_empty());
        assert!(lines("crates/models/src/shards.rs", SOUND).is_empty());
    }

    #[test]
    fn a_second_memory_map_is_found() {
        assert_eq!(lines("crates/models/src/shards.rs", &SOUND.repeat(2)), [7]);
    }

    #[test]
    fn a_missing_reason_is_found() {
        for text in [
            "fn f() {\n    let x = 1;\n    let y = unsafe { g() };\n}\n",
            "// SAFETY: too far away.\n\nfn f() {\n    unsafe { g() }\n}\n",
            "unsafe impl Send for X {}\n",
        ] {
            assert_eq!(lines("crates/kernels/src/a.rs", text).len(), 1, "{text}");
        }
    }

    #[test]
    fn reasons_are_seen_through_attributes_longer_comments_and_statements() {
        for text in [
            "// SAFETY: a,\n// b.\n#[cfg(unix)]\nunsafe impl Send for X {}\n",
            "fn f() {\n    // SAFETY: it is.\n    let y = g(\n        unsafe { h() },\n    );\n}\n",
            "fn f() {\n    // SAFETY: it is.\n    g(|i| {\n        unsafe { h(i) }\n    })\n}\n",
            "/// # Safety\n/// `x` is valid.\nunsafe fn f(x: *const u8) {}\n",
            "// SAFETY of every block below: it is.\nimpl X {\n    fn f() {\n        unsafe { g() }\n    }\n}\n",
            "// unsafe in a comment\nfn unsafe_name() { \"unsafe\"; }\n",
        ] {
            assert!(lines("crates/kernels/src/a.rs", text).is_empty(), "{text}");
        }
    }
}
