//! How much memory there is, and how many KV blocks are made of it.

use std::fs;

use crate::{Error, Result};

/// Bytes that a process may still take on this machine: what the kernel calls available, or what
/// the control group's limit leaves, whichever is less. `None` where neither can be read.
pub(crate) fn available_bytes() -> Option<u64> {
    [machine_available(), cgroup_available()].into_iter().flatten().min()
}

/// What the KV cache is planned from.
pub(crate) struct KvPlan {
    /// Bytes of one block over all layers.
    pub(crate) block_bytes: u64,
    /// Positions in a block.
    pub(crate) block_size: usize,
    /// Longest sequence.
    pub(crate) max_model_len: usize,
    /// Most sequences at once.
    pub(crate) max_num_seqs: usize,
    /// What the user set, if anything.
    pub(crate) asked_bytes: Option<u64>,
}

impl KvPlan {
    /// Number of blocks: what was asked for, else a quarter of `available` bytes and no more than
    /// `max_num_seqs` sequences of `max_model_len` need.
    pub(crate) fn num_blocks(&self, available: Option<u64>) -> Result<usize> {
        let per_seq = self.max_model_len.div_ceil(self.block_size) as u64;
        let most = per_seq.saturating_mul(self.max_num_seqs as u64);
        let budget = match (self.asked_bytes, available) {
            (Some(bytes), _) => bytes,
            (None, Some(bytes)) => bytes / 4,
            (None, None) => per_seq * self.block_bytes,
        };
        let affordable = budget / self.block_bytes;
        if affordable < per_seq {
            return Err(Error::KvCacheTooSmall {
                max_model_len: self.max_model_len,
                needed: per_seq * self.block_bytes,
                available: budget,
                fits: affordable as usize * self.block_size,
            });
        }
        let blocks = if self.asked_bytes.is_some() { affordable } else { affordable.min(most) };
        // Block ids are u32 and slots (block * block_size + offset) too.
        Ok(blocks.min(u64::from(u32::MAX) / self.block_size as u64) as usize)
    }
}

fn machine_available() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// The tightest limit on the way from this process's control group (version 2) to the root.
fn cgroup_available() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut folder = std::path::PathBuf::from("/sys/fs/cgroup").join(path.trim_start_matches('/'));
    let mut least = None;
    while folder.starts_with("/sys/fs/cgroup") {
        let read =
            |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        if let (Some(max), Some(current)) = (read("memory.max"), read("memory.current")) {
            let left = max.saturating_sub(current);
            least = Some(least.map_or(left, |l: u64| l.min(left)));
        }
        folder.pop();
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(asked_bytes: Option<u64>) -> KvPlan {
        KvPlan {
            block_bytes: 1000,
            block_size: 16,
            max_model_len: 100,
            max_num_seqs: 4,
            asked_bytes,
        }
    }

    #[test]
    fn default_is_a_quarter_of_what_is_free_but_no_more_than_is_useful() {
        assert_eq!(plan(None).num_blocks(Some(60_000)).unwrap(), 15);
        assert_eq!(plan(None).num_blocks(Some(1 << 40)).unwrap(), 28);
    }

    #[test]
    fn an_asked_size_is_taken_as_it_is() {
        assert_eq!(plan(Some(99_999)).num_blocks(Some(0)).unwrap(), 99);
    }

    #[test]
    fn a_cache_too_small_for_one_sequence_says_what_fits() {
        let error = plan(Some(6_999)).num_blocks(None).unwrap_err();
        assert!(matches!(
            error,
            Error::KvCacheTooSmall { needed: 7000, available: 6999, fits: 96, .. }
        ));
        assert_eq!(plan(Some(7_000)).num_blocks(None).unwrap(), 7);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(available_bytes().is_none_or(|bytes| bytes > 1 << 20));
    }
}
