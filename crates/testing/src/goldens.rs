//! Weights of the golden checkpoints in `tests/golden`, for tests. Large matrices are generated from a seed.
//!
//! Git tracks a folder's `model.seeded` but not its `model.safetensors`, which [`folder`] writes if it is missing or
//! outdated. `scripts/goldens/seeded_weights.py` generates the same bits, and describes the method.

mod decoders;
mod random;
mod seeded;
mod vision;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

pub use decoders::DECODERS;
use seeded::Seeded;
pub use vision::{VISION, VisionCase, VisionGolden, picture};

/// The tracked file of a golden's weights.
const SEEDED: &str = "model.seeded";

/// The generated file beside it.
const WEIGHTS: &str = "model.safetensors";

/// The reason that a golden's weights are not available.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{}: {source}: make the folder of the goldens readable and writable", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file of seeds differs from the one that a script wrote.
    #[error("{} is damaged, {reason}: check it out again, or make the golden again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault that was found.
        reason: String,
    },
}

/// The folder with all goldens: the repository's, or `CANDLEPOWER_GOLDENS`, since a GPU machine may have them
/// elsewhere.
pub fn root() -> PathBuf {
    let elsewhere = std::env::var_os("CANDLEPOWER_GOLDENS").map(PathBuf::from);
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    elsewhere.unwrap_or_else(here)
}

/// The folder of a golden such as `llama` or `encoders/bert`, with its weights.
///
/// # Panics
/// The weights cannot be generated. A test cannot go on without them.
pub fn folder(name: &str) -> PathBuf {
    let folder = root().join(name);
    match write_weights(&folder) {
        Ok(()) => folder,
        Err(error) => panic!("{error}"),
    }
}

/// Every folder in `root` whose weights are generated, sorted.
///
/// # Errors
/// A folder cannot be read.
pub fn seeded_folders(root: &Path) -> Result<Vec<PathBuf>, Error> {
    let (mut found, mut left) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).map_err(of(&folder))? {
            let path = entry.map_err(of(&folder))?.path();
            if path.is_dir() {
                left.push(path);
            } else if path.ends_with(SEEDED) {
                found.push(folder.clone());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Writes the weights of a folder with a file of seeds, unless they are there.
///
/// # Errors
/// The file of seeds is damaged, or a file cannot be read or written.
pub fn write_weights(folder: &Path) -> Result<(), Error> {
    let (path, weights) = (folder.join(SEEDED), folder.join(WEIGHTS));
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(of(&path)(error)),
    };
    // Another test process may need the same weights now. The lock makes it wait, so that nobody reads a file that is
    // being written.
    file.lock().map_err(of(&path))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(of(&path))?;
    let damaged = |reason| Error::Damaged { path: path.clone(), reason };
    let seeded = Seeded::read(&bytes).map_err(damaged)?;
    if fs::read(&weights).is_ok_and(|found| seeded.has_made(&found)) {
        return Ok(());
    }
    let generated = seeded.weights().map_err(damaged)?;
    // An interrupted run leaves this file, whose name keeps it from being used as weights.
    let part = folder.join(format!("{WEIGHTS}.part"));
    fs::write(&part, generated).map_err(of(&part))?;
    fs::rename(&part, &weights).map_err(of(&weights))
}

fn of(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    |source| Error::Io { path, source }
}
