//! Checks one rule of `crates/kernels/src/simd.rs`: code for an instruction set must be inlined into a function of
//! that set.
//!
//! A closure that remains a function of its own is compiled without the set. It then calls each intrinsic as a
//! function, which makes a matrix product forty times slower. The results stay right, so no other test notices.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::steps::{Shell, output};
use crate::tools::target_folder;

/// The standard library's module of x86 intrinsics, in mangled names.
const INTRINSICS: &str = "9core_arch3x86";

/// Fails if the compiled kernels contain an intrinsic as a function.
pub(crate) fn check(shell: &Shell) -> Result<String> {
    let library = newest_kernels(shell)?;
    let names = output(shell.command("nm").arg(&library))?;
    let called = called_intrinsics(&names);
    if !called.is_empty() {
        let called: Vec<_> = called.into_iter().collect();
        bail!(
            "{} intrinsics of the kernels are called as functions, by code that is not inlined (`objdump -dr` shows which): {}",
            called.len(),
            called.join(", ")
        );
    }
    Ok(String::new())
}

/// The newest library of the kernels' crate.
fn newest_kernels(shell: &Shell) -> Result<PathBuf> {
    let folder = target_folder(shell).join("debug/deps");
    let mut newest = None;
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        // Libraries of builds with other features lie in the same folder.
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("libcandlepower_kernels-") && name.ends_with(".rlib") {
            newest = newest.max(Some((entry.metadata()?.modified()?, entry.path())));
        }
    }
    let (_, library) = newest.with_context(|| format!("no kernels in {}", folder.display()))?;
    Ok(library)
}

/// The intrinsics among the functions that `nm` lists.
fn called_intrinsics(names: &str) -> BTreeSet<&str> {
    let symbols = names.lines().filter_map(|line| line.split_whitespace().last());
    symbols
        .filter(|symbol| symbol.contains(INTRINSICS))
        // The rest of the mangled name differs between crates and compilers.
        .map(|symbol| symbol.find("_mm").map_or(symbol, |at| &symbol[at..]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intrinsics_are_found_in_both_manglings() {
        let names = "
candlepower_kernels-2d7a.rcgu.o:
0000000000000000 t _ZN4core9core_arch3x864avx217_mm256_srli_epi1617h18e5194db9ff1ccaE
0000000000000000 t _RNvNtNtNtCsgEmfK2I1SDS_4core9core_arch3x864avx215__mm256_or_si256
                 U _RNvNtNtNtCsgEmfK2I1SDS_4core9core_arch3x864avx215__mm256_or_si256
0000000000000000 T _RNvNtCs0_19candlepower_kernels6linear6linear
";
        let found: Vec<_> = called_intrinsics(names).into_iter().collect();
        assert_eq!(found, ["_mm256_or_si256", "_mm256_srli_epi1617h18e5194db9ff1ccaE"]);
    }
}
