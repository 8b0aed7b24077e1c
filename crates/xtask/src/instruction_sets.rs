//! Instruction sets that this machine's processor lacks. Tests compare the kernels of every instruction set that a machine
//! has, so a pass says nothing about the kernels of the others.

use anyhow::{Result, bail};

use crate::steps::Shell;

/// One instruction set of the CPU kernels.
struct InstructionSet {
    name: &'static str,
    /// The flags of `/proc/cpuinfo` that the kernels need for it.
    flags: &'static [&'static str],
    /// CI fails on a machine without it: most users have it.
    is_needed_by_ci: bool,
}

const SETS: [InstructionSet; 4] = [
    InstructionSet { name: "AVX2", flags: &["avx2", "fma", "f16c"], is_needed_by_ci: true },
    InstructionSet {
        name: "AVX-512",
        flags: &["avx512f", "avx512bw", "avx512dq", "avx512vl"],
        is_needed_by_ci: false,
    },
    InstructionSet { name: "AVX-512 BF16", flags: &["avx512_bf16"], is_needed_by_ci: false },
    InstructionSet { name: "AMX BF16", flags: &["amx_tile", "amx_bf16"], is_needed_by_ci: false },
];

/// Whose tests are run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Machine {
    /// Any machine is good enough.
    Any,
    /// A machine that lacks a set which CI needs is an error.
    Ci,
}

/// Says which instruction sets are compared, and which cannot be.
pub(crate) fn check(_: &Shell, machine: Machine) -> Result<String> {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    judge(&flags, machine)
}

fn judge(cpuinfo: &str, machine: Machine) -> Result<String> {
    // All processors of a machine have the same flags.
    let line = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let flags: Vec<&str> = line.split_whitespace().collect();
    let has = |set: &&InstructionSet| set.flags.iter().all(|flag| flags.contains(flag));
    let (here, lacking): (Vec<_>, Vec<_>) = SETS.iter().partition(has);
    if let Some(set) = lacking.iter().find(|set| machine == Machine::Ci && set.is_needed_by_ci) {
        bail!("CI needs a processor with {}: its kernels would not be compared", set.name);
    }
    let names = |sets: &[&InstructionSet]| match sets {
        [] => "none".to_owned(),
        _ => sets.iter().map(|set| set.name).collect::<Vec<_>>().join(", "),
    };
    Ok(format!("compared: portable, {}; not on this machine: {}", names(&here), names(&lacking)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_that_are_not_compared_are_named() {
        let said = judge("model name: x\nflags\t\t: fpu fma f16c avx2\n", Machine::Ci).unwrap();
        assert_eq!(
            said,
            "compared: portable, AVX2; not on this machine: AVX-512, AVX-512 BF16, AMX BF16"
        );
    }

    #[test]
    fn ci_needs_some() {
        assert!(judge("flags : fpu fma f16c", Machine::Any).unwrap().contains("portable, none"));
        let error = judge("flags : fpu fma f16c", Machine::Ci).unwrap_err().to_string();
        assert!(error.contains("AVX2"), "{error}");
    }
}
