//! Compiles the kernels for the emulated GPU before cargo needs them. These minutes of g++ use processors that the
//! tests leave idle.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cuda::with_toolkit;
use crate::emulated::{Watched, libraries, with_stand_in};
use crate::steps::{Shell, output};
use crate::watched::{self, Digests};

/// The compiled object files.
pub(crate) struct Ahead {
    objects: PathBuf,
    /// Digests of the compiled sources.
    digests: Digests,
}

impl Ahead {
    /// Runs the kernels' own build script.
    pub(crate) fn compile(shell: &Shell) -> Result<Self> {
        let objects = libraries(shell).join("objects");
        let _ = std::fs::remove_dir_all(&objects);
        std::fs::create_dir_all(&objects).with_context(|| objects.display().to_string())?;
        let digests = watched::digests(shell.root())?;
        let script = objects.join("build-script");
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        // The build script imports the standard library alone, so it is compiled without cargo.
        let mut rustc = shell.command(rustc);
        output(rustc.args(["--edition", "2024", "crates/gpu/build.rs", "-o"]).arg(&script))?;
        let mut compile = with_toolkit(shell, &shell.command(&script));
        compile.current_dir(shell.root().join("crates/gpu"));
        // cargo would set these variables.
        compile.env("CARGO_FEATURE_CUDA", "1").env("OUT_DIR", &objects);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        compile.env("NUM_JOBS", cores.to_string());
        let changed = watched::changes(shell.root(), &digests).kernels;
        output(with_stand_in(&mut compile, shell, &Watched::Some(changed)))?;
        Ok(Self { objects, digests })
    }

    /// Whether the objects were compiled from sources with these digests.
    pub(crate) fn is_of(&self, digests: &Digests) -> bool {
        self.digests == *digests
    }

    pub(crate) fn objects(&self) -> &Path {
        &self.objects
    }
}
