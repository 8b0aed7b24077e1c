//! Known vulnerabilities of the packages in `Cargo.lock`, from RustSec's database, or from a snapshot of it if the
//! database cannot be fetched.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use semver::{Version, VersionReq};
use toml::{Table, Value};

use crate::steps::{Shell, output, run};

/// The snapshot. It has the advisories on all names in `Cargo.lock`.
const SNAPSHOT: &str = "crates/xtask/advisories.toml";
/// Time limit for fetching the database.
const FETCH: Duration = Duration::from_secs(10);

/// An advisory on a package. A version is safe if one of its ranges contains it.
struct Advisory {
    id: String,
    package: String,
    patched: Vec<String>,
    unaffected: Vec<String>,
}

/// Checks with cargo-deny and the database, or else with the snapshot.
pub(crate) fn check(shell: &Shell, cargo_deny: &Path) -> Result<String> {
    if fetches(shell.command(cargo_deny).args(["fetch", "db"])) {
        let mut deny = shell.command(cargo_deny);
        // The database was fetched just now. Without `--offline` cargo-deny would fetch it again, with no time
        // limit.
        deny.args(["--locked", "--offline", "--workspace", "check", "--hide-inclusion-graph"]);
        run(deny.arg("advisories"))?;
        return Ok("by RustSec's database".to_owned());
    }
    let read = |path: &str| -> Result<Table> {
        let text = std::fs::read_to_string(shell.root().join(path)).context(path.to_owned())?;
        text.parse().context(path.to_owned())
    };
    let snapshot = read(SNAPSHOT)?;
    let packages = locked_packages(&read("Cargo.lock")?)?;
    let advisories = array(&snapshot, "advisories").iter().map(Advisory::of_snapshot);
    let affected = affected(&packages, &advisories.collect::<Result<Vec<_>>>()?)?;
    let date = text(&snapshot, "date")?;
    match affected.as_slice() {
        [] => Ok(format!("by the snapshot of {date}: the database cannot be reached")),
        affected => bail!("by the snapshot of {date}: {}", affected.join(", ")),
    }
}

/// Whether a command that fetches succeeds in time. Any failure counts as one of the network.
fn fetches(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = quiet.spawn() else { return false };
    let began = Instant::now();
    while began.elapsed() < FETCH {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(50)),
            Ok(Some(status)) => return status.success(),
            Err(_) => break,
        }
    }
    // It may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
    false
}

/// Writes the snapshot from a checkout of RustSec's database.
pub(crate) fn write_snapshot(shell: &Shell, database: &Path) -> Result<String> {
    let root = shell.root();
    let lock: Table = std::fs::read_to_string(root.join("Cargo.lock"))?.parse()?;
    let mut date = shell.command("git");
    date.arg("-C").arg(database).args(["log", "-1", "--format=%cs"]);
    let mut text = format!(
        "# RustSec's advisories on the names in Cargo.lock, without those on unmaintained packages.\n\
         # `cargo xtask advisories DATABASE` writes this file from a checkout of RustSec's database.\n\
         date = \"{}\"\nadvisories = [\n",
        output(&mut date)?.trim()
    );
    let mut count = 0;
    for package in locked_packages(&lock)?.keys() {
        let folder = database.join("crates").join(package);
        let Ok(files) = std::fs::read_dir(&folder) else { continue };
        let mut paths = files.map(|file| Ok(file?.path())).collect::<Result<Vec<_>>>()?;
        // Folders have another order on each machine.
        paths.sort();
        for path in paths {
            let advisory = Advisory::of_database(&std::fs::read_to_string(&path)?);
            if let Some(advisory) = advisory.with_context(|| path.display().to_string())? {
                let Advisory { id, package, patched, unaffected } = advisory;
                writeln!(
                    text,
                    "    {{ id = {id:?}, package = {package:?}, patched = {patched:?}, unaffected = {unaffected:?} }},",
                )?;
                count += 1;
            }
        }
    }
    text.push_str("]\n");
    std::fs::write(root.join(SNAPSHOT), text)?;
    Ok(format!("{count} advisories"))
}

impl Advisory {
    fn of_snapshot(entry: &Value) -> Result<Self> {
        let entry = entry.as_table().context("an advisory is a table")?;
        Ok(Self {
            id: text(entry, "id")?,
            package: text(entry, "package")?,
            patched: texts(entry, "patched"),
            unaffected: texts(entry, "unaffected"),
        })
    }

    /// Parses a file of the database: TOML between two fences, then prose. `None` if the advisory was withdrawn, or
    /// only says that the package is unmaintained.
    fn of_database(file: &str) -> Result<Option<Self>> {
        let parts = file.strip_prefix("```toml").and_then(|rest| rest.split_once("```"));
        let (head, _) = parts.context("it does not begin with TOML")?;
        let head: Table = head.parse()?;
        let part = |name: &str| head.get(name).and_then(Value::as_table);
        let advisory = part("advisory").context("it has no `advisory`")?;
        let kind = advisory.get("informational").and_then(Value::as_str);
        if advisory.contains_key("withdrawn") || kind == Some("unmaintained") {
            return Ok(None);
        }
        let versions = part("versions").context("it has no `versions`")?;
        Ok(Some(Self {
            id: text(advisory, "id")?,
            package: text(advisory, "package")?,
            patched: texts(versions, "patched"),
            unaffected: texts(versions, "unaffected"),
        }))
    }

    fn affects(&self, version: &Version) -> Result<bool> {
        for range in self.patched.iter().chain(&self.unaffected) {
            let range =
                VersionReq::parse(range).with_context(|| format!("{}: {range}", self.id))?;
            if range.matches(version) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The affected packages, each with its advisory.
fn affected(
    packages: &BTreeMap<String, Vec<Version>>,
    advisories: &[Advisory],
) -> Result<Vec<String>> {
    let mut affected = Vec::new();
    for advisory in advisories {
        for version in packages.get(&advisory.package).into_iter().flatten() {
            if advisory.affects(version)? {
                affected.push(format!("{} {version} has {}", advisory.package, advisory.id));
            }
        }
    }
    Ok(affected)
}

/// The versions of each package in `Cargo.lock`.
fn locked_packages(lock: &Table) -> Result<BTreeMap<String, Vec<Version>>> {
    let mut packages: BTreeMap<String, Vec<Version>> = BTreeMap::new();
    for package in array(lock, "package") {
        let package = package.as_table().context("a package of Cargo.lock is a table")?;
        let version = text(package, "version")?;
        packages.entry(text(package, "name")?).or_default().push(Version::parse(&version)?);
    }
    Ok(packages)
}

fn array<'a>(table: &'a Table, name: &str) -> &'a [Value] {
    table.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn texts(table: &Table, name: &str) -> Vec<String> {
    array(table, name).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn text(table: &Table, name: &str) -> Result<String> {
    let value = table.get(name).and_then(Value::as_str);
    Ok(value.with_context(|| format!("`{name}` is missing"))?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = r#"
        [[package]]
        name = "h2"
        version = "0.3.20"
        [[package]]
        name = "h2"
        version = "0.4.20"
    "#;

    const FILE: &str = r#"```toml
[advisory]
id = "RUSTSEC-2024-0332"
package = "h2"
date = "2024-04-03"

[versions]
patched = ["^0.3.26", ">= 0.4.4"]
unaffected = ["< 0.1.0"]
```

# Words on it
"#;

    fn packages() -> BTreeMap<String, Vec<Version>> {
        locked_packages(&LOCK.parse().unwrap()).unwrap()
    }

    #[test]
    fn a_version_outside_all_safe_ranges_is_affected() {
        let advisory = Advisory::of_database(FILE).unwrap().unwrap();
        let affected = affected(&packages(), &[advisory]).unwrap();
        // Both versions are behind an old fix. 0.4.20 is above the second range's start, 0.3.20 below the first.
        assert_eq!(affected, ["h2 0.3.20 has RUSTSEC-2024-0332"]);
    }

    #[test]
    fn withdrawn_advisories_and_unmaintained_packages_are_left_out() {
        for line in ["withdrawn = \"2024-05-01\"", "informational = \"unmaintained\""] {
            let file = FILE.replace("date =", &format!("{line}\ndate ="));
            assert!(Advisory::of_database(&file).unwrap().is_none(), "{line}");
        }
        let unsound = FILE.replace("date =", "informational = \"unsound\"\ndate =");
        assert!(Advisory::of_database(&unsound).unwrap().is_some());
    }

    #[test]
    fn a_fetch_that_fails_is_no_success() {
        assert!(fetches(&mut Command::new("true")));
        assert!(!fetches(&mut Command::new("false")));
        assert!(!fetches(&mut Command::new("/no/such/program")));
    }
}
