//! THIRD-PARTY.txt: the licences of all code that is linked into the program. `candlepower licenses` prints it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::steps::{Shell, output};

/// The file is compiled into the program.
pub(crate) const FILE: &str = "THIRD-PARTY.txt";
/// The licence text for crates without a licence file, unless they are under MIT.
const APACHE: &str = "LICENSE";
/// The supported targets. Linked crates may differ between them.
const PLATFORMS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];
/// The program and the Python module.
const ROOTS: [&str; 2] = ["candlepower", "candlepower-python"];
/// Linked parts that are not crates, each with its licence.
const BESIDE_CRATES: [(&str, &str); 3] = [
    ("Rust's standard library", "MIT OR Apache-2.0"),
    ("FlashInfer's headers, in builds for GPUs", "Apache-2.0"),
    ("CCCL's headers, in builds for GPUs", "Apache-2.0 WITH LLVM-exception"),
];
/// Linked parts under the BSD licence with three clauses, each with its copyright. FlashInfer took its kernel for Hopper from
/// FlashAttention.
const BSD_BESIDE_CRATES: [(&str, &str); 2] = [
    (
        "CUTLASS's headers, in builds for Hopper GPUs",
        "Copyright (c) 2017 - 2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.",
    ),
    (
        "FlashAttention's kernel in FlashInfer's headers, in builds for Hopper GPUs",
        "Copyright (c) 2024, Jay Shah, Ganesh Bikshandi, Ying Zhang, Vijay Thakkar, Pradeep Ramani, Tri Dao.",
    ),
];
/// Prefixes of licence files, in lower case.
const NAMES: [&str; 6] = ["license", "licence", "copying", "notice", "unlicense", "copyright"];
const HEAD: &str = "\
Licences of third parties

candlepower is licensed under the Apache License, version 2.0. The parts of others that are linked into it follow, each
with its licence. Where a crate has a choice of licences, the MIT licence is given if it is among them.
This file is generated: cargo xtask notices
";

/// A crate that is linked.
#[derive(Clone, Debug)]
struct Linked {
    name: String,
    version: String,
    license: String,
    authors: Vec<String>,
    /// Names and contents of its licence files.
    files: Vec<(String, String)>,
}

/// Writes the file.
pub(crate) fn write(shell: &Shell) -> Result<String> {
    let text = generate(shell)?;
    std::fs::write(shell.root().join(FILE), &text).with_context(|| FILE.to_owned())?;
    Ok(format!("{FILE}: {} kB", text.len() / 1000))
}

/// Compares the file with the text that would be written.
pub(crate) fn check(shell: &Shell) -> Result<String> {
    let found = std::fs::read_to_string(shell.root().join(FILE)).unwrap_or_default();
    if found != generate(shell)? {
        bail!("{FILE} is not what `cargo xtask notices` writes");
    }
    Ok(String::new())
}

fn generate(shell: &Shell) -> Result<String> {
    let mut linked = BTreeMap::new();
    for platform in PLATFORMS {
        let what = "metadata --format-version 1 --locked --features candlepower/full,candlepower/cuda --filter-platform";
        let metadata = output(&mut shell.cargo(&format!("{what} {platform}")))?;
        let metadata = serde_json::from_str(&metadata).context("the output of cargo is no JSON")?;
        for manifest in manifests(&metadata)? {
            let crate_of = read(manifest)?;
            linked.insert((crate_of.name.clone(), crate_of.version.clone()), crate_of);
        }
    }
    let apache = std::fs::read_to_string(shell.root().join(APACHE))?;
    compose(&linked.into_values().collect::<Vec<_>>(), &apache)
}

/// The packages that are linked, without the workspace's own.
fn manifests(metadata: &Value) -> Result<Vec<&Value>> {
    let of = |value: &'_ Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let packages = metadata["packages"].as_array().context("cargo lists no packages")?;
    let by_id: BTreeMap<&str, &Value> =
        packages.iter().filter_map(|package| Some((package["id"].as_str()?, package))).collect();
    let mut edges: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in of(&metadata["resolve"], "nodes") {
        let is_linked = |dependency: &Value| {
            // A dependency of the program itself has no kind. The others are `build` and `dev`.
            of(dependency, "dep_kinds").iter().any(|kind| kind["kind"].is_null())
        };
        let id = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let linked = of(&node, "deps").into_iter().filter(is_linked);
        edges.insert(id(&node, "id"), linked.map(|dependency| id(&dependency, "pkg")).collect());
    }
    let is_root = |package: &&Value| ROOTS.iter().any(|root| package["name"] == *root);
    let roots = packages.iter().filter(is_root).filter_map(|package| package["id"].as_str());
    let mut waiting: Vec<String> = roots.map(str::to_owned).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if seen.insert(id.clone()) {
            waiting.extend(edges.get(&id).into_iter().flatten().cloned());
        }
    }
    let linked = seen.iter().filter_map(|id| by_id.get(id.as_str()).copied());
    // Proc macros run during the build and are not part of the program.
    let is_macro = |package: &Value| {
        let targets = of(package, "targets");
        targets.iter().any(|target| of(target, "kind").iter().any(|kind| kind == "proc-macro"))
    };
    Ok(linked.filter(|package| !package["source"].is_null() && !is_macro(package)).collect())
}

fn read(package: &Value) -> Result<Linked> {
    let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let manifest = text("manifest_path");
    let folder = Path::new(&manifest).parent().context("a package has no folder")?;
    let mut files = Vec::new();
    for entry in folder.read_dir().with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let lower = name.to_lowercase();
        let is_named = NAMES.iter().any(|begin| lower.starts_with(begin));
        if path.is_file() && (is_named || package["license_file"] == *name) {
            let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
            files.push((name, String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    files.sort();
    let authors = package["authors"].as_array().into_iter().flatten();
    let authors = authors.filter_map(|author| author.as_str().map(str::to_owned)).collect();
    Ok(Linked {
        name: text("name"),
        version: text("version"),
        license: text("license"),
        authors,
        files,
    })
}

/// The whole file. Each text occurs once, below the names of all crates that have it.
fn compose(linked: &[Linked], apache: &str) -> Result<String> {
    let mut texts: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    for crate_of in linked {
        for text in crate_of.texts(apache)? {
            // Copies of one licence differ in line breaks and indentation.
            let same: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let title = format!("{} {} ({})", crate_of.name, crate_of.version, crate_of.license);
            texts.entry(same).or_insert((text, Vec::new())).1.push(title);
        }
    }
    for (name, license) in BESIDE_CRATES {
        let same: String = apache.split_whitespace().collect::<Vec<_>>().join(" ");
        let title = format!("{name} ({license})");
        texts.entry(same).or_insert((apache.to_owned(), Vec::new())).1.push(title);
    }
    for (name, copyright) in BSD_BESIDE_CRATES {
        let text = format!("{copyright}\n\n{BSD}");
        let title = format!("{name} (BSD-3-Clause)");
        texts.insert(text.clone(), (text, vec![title]));
    }
    let mut parts: Vec<(String, Vec<String>)> = texts.into_values().collect();
    parts.sort_by(|a, b| a.1.cmp(&b.1));
    let mut whole = HEAD.to_owned();
    for (text, titles) in parts {
        whole.push_str(&format!("\n{}\n\n", "=".repeat(78)));
        titles.iter().for_each(|title| whole.push_str(&format!("{title}\n")));
        whole.push('\n');
        for line in text.trim_matches(['\n', '\r', '\u{feff}']).lines() {
            whole.push_str(line.trim_end());
            whole.push('\n');
        }
    }
    Ok(whole)
}

impl Linked {
    /// The licence texts of a crate.
    fn texts(&self, apache: &str) -> Result<Vec<String>> {
        let is_choice = |name: &str| {
            // `MIT/Apache-2.0` is the form of old manifests.
            let all = self.license.replace('/', " OR ");
            !all.contains(" AND ") && all.split(" OR ").any(|one| one.trim() == name)
        };
        let is_mit = |(_, text): &&(String, String)| {
            // A file with both licences is not one with MIT alone.
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            words.contains("Permission is hereby granted, free of charge")
                && !words.contains("Apache License")
        };
        if is_choice("MIT")
            && let Some((_, text)) = self.files.iter().find(is_mit)
        {
            return Ok(vec![text.clone()]);
        }
        if !self.files.is_empty() {
            return Ok(self.files.iter().map(|(_, text)| text.clone()).collect());
        }
        if is_choice("Apache-2.0") {
            return Ok(vec![apache.to_owned()]);
        }
        if is_choice("MIT") {
            return Ok(vec![format!("Copyright (c) {}\n\n{MIT}", self.authors.join(", "))]);
        }
        bail!("{} {} has no file with its licence, {}", self.name, self.version, self.license)
    }
}

const MIT: &str = "\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the \"Software\"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
";

const BSD: &str = "\
Redistribution and use in source and binary forms, with or without modification, are permitted provided that the
following conditions are met:

1. Redistributions of source code must retain the above copyright notice, this list of conditions and the following
disclaimer.

2. Redistributions in binary form must reproduce the above copyright notice, this list of conditions and the following
disclaimer in the documentation and/or other materials provided with the distribution.

3. Neither the name of the copyright holder nor the names of its contributors may be used to endorse or promote products
derived from this software without specific prior written permission.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS \"AS IS\" AND ANY EXPRESS OR IMPLIED WARRANTIES,
INCLUDING, BUT NOT LIMITED TO, THE IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE ARE
DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE LIABLE FOR ANY DIRECT, INDIRECT, INCIDENTAL,
SPECIAL, EXEMPLARY, OR CONSEQUENTIAL DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR
SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY,
WHETHER IN CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE OF
THIS SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn linked(name: &str, license: &str, files: &[(&str, &str)]) -> Linked {
        Linked {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            license: license.to_owned(),
            authors: vec!["A. Nother".to_owned()],
            files: files.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect(),
        }
    }

    #[test]
    fn each_text_is_there_once_below_those_that_have_it() {
        let mit = "Copyright B\n\nPermission is hereby granted, free of\ncharge";
        let other = "Copyright B\nPermission is hereby   granted, free of charge";
        let both = [("LICENSE-APACHE", "Apache License"), ("LICENSE-MIT", mit)];
        let all = [
            linked("a", "MIT/Apache-2.0", &both),
            linked("b", "MIT", &[("LICENSE", other)]),
            linked("c", "MIT AND BSD-3-Clause", &[("LICENSE", mit), ("NOTICE", "of c")]),
            linked("d", "Apache-2.0", &[]),
            linked("e", "MIT", &[]),
        ];
        let text = compose(&all, "All of Apache").unwrap();
        let heads = [
            "a 1.0.0 (MIT/Apache-2.0)\nb 1.0.0 (MIT)\nc 1.0.0 (MIT AND BSD-3-Clause)\n\nCopyright B",
        ];
        assert!(heads.iter().all(|head| text.contains(head)), "{text}");
        assert!(text.contains("c 1.0.0 (MIT AND BSD-3-Clause)\n\nof c\n"), "{text}");
        assert!(text.contains("d 1.0.0 (Apache-2.0)\nRust's standard library"), "{text}");
        assert!(text.contains("e 1.0.0 (MIT)\n\nCopyright (c) A. Nother\n\nPermission"), "{text}");
        assert!(text.contains("GPUs (BSD-3-Clause)\n\nCopyright (c) 2017 - 2026 NVIDIA"), "{text}");
        assert!(!text.contains("Apache License\n"), "MIT is chosen");
        let error = compose(&[linked("f", "ISC", &[])], "").unwrap_err().to_string();
        assert_eq!(error, "f 1.0.0 has no file with its licence, ISC");
    }

    #[test]
    fn what_is_linked_is_found_from_the_program_on() {
        let package = |name: &str, source: Value, kind: &str| json!({"id": name, "name": name, "source": source, "targets": [{"kind": [kind]}]});
        let node = |name: &str, all: &[(&str, Value)]| {
            let dep =
                |(pkg, kind): &(&str, Value)| json!({"pkg": pkg, "dep_kinds": [{"kind": kind}]});
            json!({"id": name, "deps": all.iter().map(dep).collect::<Vec<_>>()})
        };
        let metadata = json!({
            "packages": [
                package("candlepower", Value::Null, "bin"), package("used", "r".into(), "lib"),
                package("deep", "r".into(), "lib"), package("built", "r".into(), "lib"),
                package("macro", "r".into(), "proc-macro"), package("other", "r".into(), "lib"),
            ],
            "resolve": {"nodes": [
                node("candlepower", &[("used", Value::Null), ("built", "build".into()), ("macro", Value::Null)]),
                node("used", &[("deep", Value::Null), ("other", "dev".into())]),
            ]},
        });
        let names: Vec<&Value> =
            manifests(&metadata).unwrap().into_iter().map(|p| &p["name"]).collect();
        assert_eq!(names, ["deep", "used"]);
    }
}
