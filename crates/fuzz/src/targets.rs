//! The targets: every parser of the project.

mod config;
mod constraint;
mod deployments;
mod gguf;
mod grammar;
mod http;
mod images;
mod listing;
mod output;
mod request;
mod safetensors;
mod settings;
mod template;
mod tokenizer;
mod walk;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::Device;
use candlepower_checkpoint::{Checkpoint, CheckpointFiles};
use candlepower_models::{LoadDtype, LoadFormat, LoadOptions, load};
use candlepower_testing::goldens::folder as golden;

use crate::{Target, Verdict};

/// All of them.
pub const TARGETS: [Target; 15] = [
    Target { name: "config", open: config::open },
    Target { name: "safetensors", open: safetensors::open },
    Target { name: "gguf", open: gguf::open },
    Target { name: "tokenizer", open: tokenizer::open },
    Target { name: "request", open: request::open },
    Target { name: "grammar", open: grammar::open },
    Target { name: "constraint", open: constraint::open },
    Target { name: "walk", open: walk::open },
    Target { name: "output", open: output::open },
    Target { name: "template", open: template::open },
    Target { name: "listing", open: listing::open },
    Target { name: "http", open: http::open },
    Target { name: "images", open: images::open },
    Target { name: "deployments", open: deployments::open },
    Target { name: "settings", open: settings::open },
];

impl Verdict {
    fn of<T, E: std::fmt::Display>(result: Result<T, E>) -> Self {
        match result {
            Ok(_) => Self::Accepted,
            Err(error) => Self::Refused(error.to_string()),
        }
    }
}

/// A folder or a file of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A temporary folder for mutated files. It is removed when this is dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("candlepower-fuzz-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A folder with a copy of a golden's files.
    fn copy_of(golden_folder: &str) -> Self {
        let folder = Self::new();
        for entry in std::fs::read_dir(golden(golden_folder)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), folder.0.join(entry.file_name())).unwrap();
        }
        folder
    }

    fn write(&self, name: &str, contents: &[u8]) {
        std::fs::write(self.0.join(name), contents).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Files left in a temporary folder are no reason to fail.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Loads the model at a path.
fn load_model(path: &Path) -> Verdict {
    let files = match CheckpointFiles::find(path) {
        Ok(files) => files.unwrap(),
        Err(error) => return Verdict::Refused(error.to_string()),
    };
    let checkpoint = match Checkpoint::open(files) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return Verdict::Refused(error.to_string()),
    };
    let options = LoadOptions {
        device: Device::Cpu,
        dtype: LoadDtype::Auto,
        load_format: LoadFormat::Auto,
        max_model_len: Some(16),
    };
    Verdict::of(load(&checkpoint, &options, &mut |_| {}))
}
