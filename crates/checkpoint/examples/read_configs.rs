//! Reads every model folder below a folder, and prints what is refused of each `config.json`: folders of published
//! configurations show which of their keys nobody knows.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the report is the purpose")]

use std::path::{Path, PathBuf};

use candlepower_checkpoint::{CheckpointFiles, Description, Error};

fn main() {
    let Some(root) = std::env::args().nth(1) else {
        eprintln!("usage: read_configs FOLDER");
        return;
    };
    let mut folders = Vec::new();
    find(Path::new(&root), &mut folders);
    folders.sort();
    let (mut read, mut unknown, mut refused) = (0, 0, 0);
    for folder in folders {
        let name = folder.display();
        let description = match Description::open(CheckpointFiles::Folder(folder.clone())) {
            Ok(description) => description,
            Err(Error::UnknownArchitecture { name: class, .. }) => {
                println!("{name}: {class} is not supported");
                unknown += 1;
                continue;
            }
            Err(error) => {
                println!("{name}: REFUSED: {error}");
                refused += 1;
                continue;
            }
        };
        match description.check_keys(&[]) {
            Ok(()) => read += 1,
            Err(error) => {
                println!("{name}: REFUSED: {error}");
                refused += 1;
            }
        }
        for remark in description.remarks() {
            println!("{name}: remark: {remark}");
        }
    }
    println!("{read} read, {refused} refused, {unknown} of architectures that are not supported");
}

/// All folders that have a `config.json`.
fn find(folder: &Path, found: &mut Vec<PathBuf>) {
    if folder.join("config.json").is_file() {
        found.push(folder.to_owned());
    }
    let entries = folder.read_dir().into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.path().is_dir()) {
        find(&entry.path(), found);
    }
}
