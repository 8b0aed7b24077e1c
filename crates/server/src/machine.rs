//! What this machine has, for the note at start.

use crate::config::ByteSize;

/// Cores, instruction sets and memory, in words.
pub(crate) fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let features = cpu_features();
    let features = if features.is_empty() {
        "no vector extensions known here".to_owned()
    } else {
        features.join(" ")
    };
    let memory = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| memory(&text));
    match memory {
        Some((total, available)) => {
            format!("{cores} cores with {features}; {total} of memory, {available} of it free")
        }
        None => format!("{cores} cores with {features}"),
    }
}

#[cfg(target_arch = "x86_64")]
fn cpu_features() -> Vec<&'static str> {
    let found = [
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("FMA", is_x86_feature_detected!("fma")),
        ("AVX-512", is_x86_feature_detected!("avx512f")),
        ("AVX512-BF16", is_x86_feature_detected!("avx512bf16")),
        ("AVX512-VNNI", is_x86_feature_detected!("avx512vnni")),
    ];
    found.into_iter().filter_map(|(name, is_there)| is_there.then_some(name)).collect()
}

#[cfg(target_arch = "aarch64")]
fn cpu_features() -> Vec<&'static str> {
    vec!["NEON"]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn cpu_features() -> Vec<&'static str> {
    Vec::new()
}

/// Total and available memory, from the text of Linux's `/proc/meminfo`.
fn memory(meminfo: &str) -> Option<(ByteSize, ByteSize)> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(ByteSize(kib << 10))
    };
    Some((field("MemTotal:")?, field("MemAvailable:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_kib() {
        let text = "MemTotal:       24576000 kB\nMemFree:  1 kB\nMemAvailable:   1048576 kB\n";
        assert_eq!(memory(text), Some((ByteSize(24_576_000 << 10), ByteSize(1 << 30))));
        assert_eq!(memory("nonsense"), None);
    }
}
