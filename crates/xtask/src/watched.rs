//! Changes since `cargo xtask deep` last passed. CI detects races in changed kernels only, and runs only the affected
//! tests on the emulated GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::tidy::code::without_comments;

/// The digests of the last pass: a line for each kernel source, with its name.
pub(crate) const FILE: &str = "crates/gpu/tests/watched.txt";

const KERNELS: &str = "crates/gpu/src/cuda/kernels";

/// Callers of the kernels, and their references. The file has one digest of them, under the name [`RUST`].
const CALLERS: [&str; 5] = [
    "crates/gpu/Cargo.toml",
    "crates/gpu/build.rs",
    "crates/gpu/src",
    "crates/gpu/tests/cuda_kernels",
    "crates/kernels/src",
];
const RUST: &str = "rust";

/// Besides the kernels, the goldens on the emulated GPU depend on `models`, and the server's tests on `engine`, too.
/// Other crates have no code of their own for GPUs.
const ABOVE: [(&str, &[&str]); 2] = [
    (MODELS, &["crates/models", "crates/checkpoint", "crates/comm", "crates/layout"]),
    (ENGINE, &["crates/engine"]),
];
const MODELS: &str = "models";
const ENGINE: &str = "engine";

/// The names in the file that are no kernels.
const NO_KERNELS: [&str; 3] = [RUST, MODELS, ENGINE];

/// Libraries that compute on a GPU. Their versions in `Cargo.lock` are part of the digest of `models`.
const LIBRARIES: [&str; 2] = ["candle-", "cudarc"];

/// The emulator, which runs every kernel, and the versions of headers that some kernels include. A change here
/// affects all kernels.
const OF_ALL: [&str; 2] = [crate::emulated::EMULATOR, "scripts/cuda/toolkit.txt"];

const HEADER: &str = "\
# Sources that passed: the kernels all comparisons, watched for races (`cargo xtask deep races`); `models` and `engine` the goldens on
# the emulated GPU (`cargo xtask deep goldens`). These commands write the lines.
# A kernel's digest is of the source, the headers that it includes, the emulator, and the versions of the toolkit; `rust` is the crate's Rust.
# Comments do not count.
";

/// The digest of each kernel source, by its name without `.cu`, and of [`NO_KERNELS`].
pub(crate) type Digests = BTreeMap<String, String>;

/// Differences from the file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Names of the kernels' sources.
    pub(crate) kernels: Vec<String>,
    /// Whether the kernels or their crate's Rust code have changed.
    pub(crate) kernel_crate: bool,
    pub(crate) models: bool,
    pub(crate) engine: bool,
}

/// The part of `cargo xtask deep` that has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    Races,
    Goldens,
}

/// The digests of the sources in the working tree.
pub(crate) fn digests(root: &Path) -> Result<Digests> {
    let mut of_all = Vec::new();
    for path in OF_ALL {
        files_below(&root.join(path), &mut of_all)?;
    }
    let mut digests = Digests::new();
    for entry in read_folder(&root.join(KERNELS))? {
        if entry.extension().is_some_and(|extension| extension == "cu") {
            let mut sources = BTreeSet::new();
            add_with_headers(&entry, &mut sources)?;
            let name = entry.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            digests.insert(name, digest(root, sources.iter().chain(&of_all))?);
        }
    }
    let mut callers = Vec::new();
    for path in CALLERS {
        files_below(&root.join(path), &mut callers)?;
    }
    // Each kernel has a digest of its own.
    callers.retain(|file| !file.starts_with(root.join(KERNELS)));
    digests.insert(RUST.into(), digest(root, callers.iter())?);
    for (name, folders) in ABOVE {
        let mut files = Vec::new();
        for folder in folders {
            files_below(&root.join(folder), &mut files)?;
        }
        let mut found = digest(root, files.iter())?;
        if name == MODELS {
            found.push_str(&libraries(root)?);
        }
        digests.insert(name.into(), found);
    }
    Ok(digests)
}

/// The versions of [`LIBRARIES`] in `Cargo.lock`, each after a `+`.
fn libraries(root: &Path) -> Result<String> {
    let lock = read(&root.join("Cargo.lock"))?;
    let lock = String::from_utf8_lossy(&lock);
    let mut versions = String::new();
    let mut lines = lock.lines();
    while let Some(line) = lines.next() {
        let name = line.strip_prefix("name = \"").unwrap_or_default();
        if LIBRARIES.iter().any(|library| name.starts_with(library)) {
            // In Cargo.lock the version follows the name.
            let version = lines.next().unwrap_or_default().trim_start_matches("version = ");
            write!(versions, "+{}-{}", name.trim_matches('"'), version.trim_matches('"'))?;
        }
    }
    Ok(versions)
}

/// Compares with the file. Without a file everything has changed.
pub(crate) fn changes(root: &Path, digests: &Digests) -> Changes {
    let known = fs::read_to_string(root.join(FILE)).unwrap_or_default();
    let known: BTreeSet<_> = known.lines().filter_map(|line| line.split_once(' ')).collect();
    let is_changed =
        |(name, digest): &(&String, &String)| !known.contains(&(name.as_str(), digest.as_str()));
    let mut kernels: Vec<String> =
        digests.iter().filter(is_changed).map(|(name, _)| name.clone()).collect();
    let has = |name: &str| kernels.iter().any(|changed| changed == name);
    let (models, engine) = (has(MODELS), has(ENGINE));
    let rust = has(RUST);
    kernels.retain(|name| !NO_KERNELS.contains(&name.as_str()));
    Changes { kernel_crate: rust || !kernels.is_empty(), kernels, models, engine }
}

/// Writes the digests of a part that has passed. Other lines stay.
pub(crate) fn write(root: &Path, digests: &Digests, passed: Passed) -> Result<()> {
    let is_passed = |name: &str| [MODELS, ENGINE].contains(&name) == (passed == Passed::Goldens);
    let before = fs::read_to_string(root.join(FILE)).unwrap_or_default();
    let before = before.lines().filter(|line| !line.starts_with('#'));
    let kept = before.filter_map(|line| line.split_once(' ')).filter(|(name, _)| !is_passed(name));
    let passed = digests.iter().filter(|(name, _)| is_passed(name));
    let lines: BTreeMap<&str, &str> =
        kept.chain(passed.map(|(name, digest)| (name.as_str(), digest.as_str()))).collect();
    let mut text = HEADER.to_owned();
    for (name, digest) in lines {
        writeln!(text, "{name} {digest}")?;
    }
    fs::write(root.join(FILE), text).with_context(|| format!("cannot write {FILE}"))
}

/// Adds a source and all files that it includes from its own folder.
fn add_with_headers(source: &Path, sources: &mut BTreeSet<PathBuf>) -> Result<()> {
    if !sources.insert(source.to_path_buf()) {
        return Ok(());
    }
    let text = read(source)?;
    let text = String::from_utf8_lossy(&text);
    // Headers of CUDA and FlashInfer are included in angle brackets. Their versions are in `OF_ALL`.
    for line in text.lines().filter_map(|line| line.trim_start().strip_prefix("#include \"")) {
        let header = source.with_file_name(line.split('"').next().unwrap_or_default());
        add_with_headers(&header, sources)?;
    }
    Ok(())
}

/// A digest of names and contents, so that a moved file counts as changed. Comments do not count.
fn digest<'a>(root: &Path, files: impl Iterator<Item = &'a PathBuf>) -> Result<String> {
    let mut digest = Sha256::new();
    for file in files {
        let (name, content) = (file.strip_prefix(root).unwrap_or(file), compiled(file)?);
        // With its length, no content can move from the end of one file to the next.
        digest.update(format!("{} {}\n", name.display(), content.len()));
        digest.update(content);
    }
    let mut text = String::new();
    for byte in digest.finalize() {
        write!(text, "{byte:02x}")?;
    }
    Ok(text)
}

/// The bytes of a file, without comments if its language is known.
fn compiled(file: &Path) -> Result<Vec<u8>> {
    let bytes = read(file)?;
    let extension = file.extension().unwrap_or_default();
    match ["rs", "cu", "cuh", "cpp", "h"].into_iter().any(|known| extension == known) {
        true => Ok(without_comments(&String::from_utf8_lossy(&bytes)).into_bytes()),
        false => Ok(bytes),
    }
}

fn files_below(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if path.is_dir() {
        for entry in read_folder(path)? {
            files_below(&entry, files)?;
        }
    } else {
        files.push(path.to_path_buf());
    }
    Ok(())
}

/// The entries in an order that is the same on all machines.
fn read_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with two kernels. One includes a header that includes another one. The tree is removed at the end.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("watched-{name}-{}", std::process::id()));
            let tree = Self(root);
            for (path, text) in [
                ("crates/gpu/src/cuda/kernels/gemv.cu", "#include \"common.cuh\"\nrows\n"),
                ("crates/gpu/src/cuda/kernels/qkv.cu", "  #include \"heads.cuh\"\n"),
                ("crates/gpu/src/cuda/kernels/heads.cuh", "#include \"common.cuh\"\n"),
                ("crates/gpu/src/cuda/kernels/common.cuh", "#pragma once\n"),
                ("crates/gpu/tests/emulator/include/pipeline", ""),
                ("crates/gpu/tests/emulator/nvcc", ""),
                ("scripts/cuda/toolkit.txt", "flashinfer\n"),
                ("crates/gpu/Cargo.toml", ""),
                ("crates/gpu/build.rs", ""),
                ("crates/gpu/src/cuda.rs", ""),
                ("crates/gpu/tests/cuda_kernels/main.rs", ""),
                ("crates/kernels/src/lib.rs", ""),
                ("crates/models/src/lib.rs", ""),
                ("crates/checkpoint/src/lib.rs", ""),
                ("crates/comm/src/lib.rs", ""),
                ("crates/layout/src/lib.rs", ""),
                ("crates/engine/src/lib.rs", ""),
                (
                    "Cargo.lock",
                    "name = \"candle-core\"\nversion = \"0.11.1\"\nname = \"a\"\nversion = \"1\"\n",
                ),
            ] {
                tree.put(path, text);
            }
            tree
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn changes(&self) -> Changes {
            changes(&self.0, &digests(&self.0).unwrap())
        }

        fn changed(&self) -> Vec<String> {
            self.changes().kernels
        }

        fn write(&self) {
            for passed in [Passed::Races, Passed::Goldens] {
                self.write_passed(passed);
            }
        }

        fn write_passed(&self, passed: Passed) {
            write(&self.0, &digests(&self.0).unwrap(), passed).unwrap();
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_kernel_has_changed_if_its_source_or_a_header_of_it_has() {
        let tree = Tree::new("headers");
        assert_eq!(tree.changed(), ["gemv", "qkv"], "nothing has been watched");
        tree.write();
        assert!(tree.changed().is_empty());
        tree.put("crates/gpu/src/cuda/kernels/gemv.cu", "#include \"common.cuh\"\ncolumns\n");
        assert_eq!(tree.changed(), ["gemv"]);
        tree.write();
        tree.put("crates/gpu/src/cuda/kernels/heads.cuh", "#include \"common.cuh\"\nheads\n");
        assert_eq!(tree.changed(), ["qkv"]);
        tree.write();
        tree.put("crates/gpu/src/cuda/kernels/common.cuh", "#pragma once\nall\n");
        assert_eq!(tree.changed(), ["gemv", "qkv"]);
        tree.write();
        tree.put("crates/gpu/src/cuda/kernels/short_conv.cu", "");
        assert_eq!(tree.changed(), ["short_conv"], "a new kernel");
    }

    #[test]
    fn comments_change_nothing() {
        let tree = Tree::new("comments");
        tree.write();
        tree.put("crates/gpu/src/cuda/kernels/common.cuh", "// all\n\n#pragma once  // once\n");
        tree.put("crates/models/src/lib.rs", "//! Models.\n/* all */\n");
        assert_eq!(tree.changes(), Changes::default());
        tree.put("crates/gpu/src/cuda/kernels/common.cuh", "#pragma once\nf(\"// all\");\n");
        tree.write();
        tree.put("crates/gpu/src/cuda/kernels/common.cuh", "#pragma once\nf(\"// one\");\n");
        assert_eq!(tree.changed(), ["gemv", "qkv"], "a literal is code");
    }

    #[test]
    fn the_emulator_and_the_toolkit_are_part_of_every_kernel() {
        let tree = Tree::new("emulator");
        for path in ["crates/gpu/tests/emulator/include/pipeline", "scripts/cuda/toolkit.txt"] {
            tree.write();
            tree.put(path, "changed\n");
            assert_eq!(tree.changed(), ["gemv", "qkv"], "{path}");
        }
        tree.write();
        tree.put("crates/gpu/tests/emulator/races.cpp", "");
        assert_eq!(tree.changed(), ["gemv", "qkv"], "a new file");
    }

    #[test]
    fn what_calls_kernels_concerns_none_of_them() {
        let tree = Tree::new("rust");
        tree.write();
        assert_eq!(tree.changes(), Changes::default());
        for path in ["crates/gpu/src/cuda.rs", "crates/gpu/tests/cuda_kernels/rows.rs"] {
            tree.put(path, "changed\n");
            assert_eq!(
                tree.changes(),
                Changes { kernel_crate: true, ..Changes::default() },
                "{path}"
            );
            tree.write();
        }
        tree.put("crates/gpu/src/cuda/kernels/gemv.cu", "#include \"common.cuh\"\n");
        let gemv =
            Changes { kernels: vec!["gemv".into()], kernel_crate: true, ..Changes::default() };
        assert_eq!(tree.changes(), gemv);
        tree.put("crates/server/src/lib.rs", "");
        tree.write();
        assert_eq!(tree.changes(), Changes::default());
    }

    #[test]
    fn models_and_the_engine_have_digests_of_their_own() {
        let tree = Tree::new("models");
        tree.write_passed(Passed::Races);
        let unknown = Changes { models: true, engine: true, ..Changes::default() };
        assert_eq!(tree.changes(), unknown, "no goldens have passed");
        tree.write_passed(Passed::Goldens);
        assert_eq!(tree.changes(), Changes::default());
        tree.put("crates/engine/src/lib.rs", "changed\n");
        tree.write_passed(Passed::Races);
        assert_eq!(tree.changes(), Changes { engine: true, ..Changes::default() });
        tree.write_passed(Passed::Goldens);
        let lock = "name = \"candle-core\"\nversion = \"0.11.1\"\nname = \"a\"\nversion = \"2\"\n";
        tree.put("Cargo.lock", lock);
        assert_eq!(tree.changes(), Changes::default(), "it computes nothing");
        tree.put("Cargo.lock", &lock.replace("0.11.1", "0.11.2"));
        assert_eq!(tree.changes(), Changes { models: true, ..Changes::default() });
        tree.write_passed(Passed::Races);
        assert!(tree.changes().models, "comparisons of kernels are no goldens");
    }

    #[test]
    fn a_header_that_is_not_there_is_an_error() {
        let tree = Tree::new("missing");
        tree.put("crates/gpu/src/cuda/kernels/gemv.cu", "#include \"index.cuh\"\n");
        let error = format!("{:#}", digests(&tree.0).unwrap_err());
        assert!(error.contains("index.cuh"), "{error}");
    }

    /// Only the kernels that are named here are compiled with recorded memory accesses.
    #[test]
    fn the_projects_own_kernels_have_digests() {
        let found = digests(&crate::workspace_root()).unwrap();
        assert!(found.contains_key("attention_decode") && found.contains_key("gemv"), "{found:?}");
        let distinct: BTreeSet<_> = found.values().collect();
        assert_eq!(distinct.len(), found.len());
    }
}
