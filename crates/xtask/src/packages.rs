//! Packages of Debian that some tests need: `cargo xtask ci` installs them. On other machines their tests are skipped, with a
//! line that says so, because no test changes the system of a user.

use std::path::Path;

use anyhow::Result;

use crate::steps::{Shell, run};

/// Each package with its program.
const PACKAGES: [(&str, &str); 2] =
    [("chromium", "/usr/bin/chromium"), ("prometheus", "/usr/bin/prometheus")];

/// Installs the packages that are missing.
///
/// # Errors
/// There is no `apt-get`, it needs another user, or the packages cannot be fetched.
pub(crate) fn install(shell: &Shell) -> Result<()> {
    let missing: Vec<&str> = PACKAGES
        .iter()
        .filter(|(_, program)| !Path::new(program).exists())
        .map(|(package, _)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let apt = || {
        let mut apt = shell.command("apt-get");
        // Without a network it gives up at once. The build runs beside it, and may not wait for long.
        let options = ["Acquire::Retries=0", "Acquire::http::Timeout=20", "DPkg::Lock::Timeout=60"];
        apt.env("DEBIAN_FRONTEND", "noninteractive").arg("--quiet");
        apt.args(options.into_iter().flat_map(|option| ["-o", option]));
        apt
    };
    run(apt().arg("update"))?;
    run(apt().args(["install", "--yes", "--no-install-recommends"]).args(missing))
}
