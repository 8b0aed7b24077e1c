//! The Python wheel, built and tested like a user's: in an environment with no other `candlepower` in reach.

use anyhow::{Context, Result};

use crate::steps::{Shell, output, run};
use crate::tools::{Venv, target_folder, tools_folder};

/// Pinned versions for the tests of the wheel.
const REQUIREMENTS: &str = "crates/python/requirements-test.txt";
const TESTS: &str = "crates/python/tests";

/// Builds the wheel with the debug binary, which must exist, and runs its tests.
pub(crate) fn test(shell: &Shell) -> Result<String> {
    let folder = tools_folder(shell).join("wheels");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).context("the last wheel cannot be removed")?;
    }
    let mut build = shell.command("scripts/build-wheel.sh");
    run(build.arg(&folder).arg(target_folder(shell).join("debug/candlepower")))?;
    let wheel = std::fs::read_dir(&folder)?.next().context("no wheel was built")??.path();

    let venv = Venv::new(shell, "wheel-test", REQUIREMENTS)?;
    let python = venv.program("python");
    let mut pip = shell.command(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall"]);
    run(pip.arg(&wheel))?;
    let mut pytest = shell.command(&python);
    pytest.args(["-m", "pytest", "--quiet", TESTS]).env_remove("CANDLEPOWER_BIN");
    // Only the system's own programs are in reach, and no installed candlepower.
    pytest.env("PATH", "/usr/bin:/bin");
    run(&mut pytest)?;
    let version = output(shell.command(venv.program("candlepower")).arg("--version"))?;
    let megabytes = std::fs::metadata(&wheel)?.len() as f64 / 1e6;
    Ok(format!("{}, {megabytes:.1} MB", version.trim()))
}
