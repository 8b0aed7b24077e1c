//! The digest by which the hub identifies a file: SHA-256 for large files, git's object id for the others.

use sha1::{Digest as _, Sha1};
use sha2::Sha256;

/// The expected digest of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Digest {
    /// SHA-256 in hexadecimal digits, for files in large file storage (LFS).
    Sha256(String),
    /// SHA-1 of `blob LENGTH\0` and the bytes: the object id in git.
    GitSha1(String),
}

impl Digest {
    /// The hexadecimal digits, which are the blob's name in the cache.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::GitSha1(hex) => hex,
        }
    }

    /// Starts the computation of this digest for a file of `len` bytes.
    pub(crate) fn hasher(&self, len: u64) -> Hasher {
        match self {
            Self::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Self::GitSha1(_) => {
                let mut hasher = Sha1::new();
                // Git hashes the length before the bytes, so the whole length must be known at the start.
                hasher.update(format!("blob {len}\0"));
                Hasher::Sha1(hasher)
            }
        }
    }
}

/// A digest that is being computed.
#[derive(Clone, Debug)]
pub(crate) enum Hasher {
    Sha256(Sha256),
    Sha1(Sha1),
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha1(hasher) => hasher.update(bytes),
        }
    }

    /// Whether the computed digest equals `digest`.
    pub(crate) fn matches(self, digest: &Digest) -> bool {
        let hex = match self {
            Self::Sha256(hasher) => hex(&hasher.finalize()),
            Self::Sha1(hasher) => hex(&hasher.finalize()),
        };
        // The digits come from the hub, and `is_hex` in the listing accepts both cases.
        hex.eq_ignore_ascii_case(digest.as_str())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_git_and_of_large_file_storage() {
        // printf 'hello\n' | git hash-object --stdin; printf 'hello\n' | sha256sum
        let git = Digest::GitSha1("ce013625030ba8dba906f756967f9e9ca394464a".into());
        let lfs = Digest::Sha256(
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03".into(),
        );
        for digest in [git, lfs] {
            let mut hasher = digest.hasher(6);
            hasher.update(b"he");
            hasher.update(b"llo\n");
            assert!(hasher.clone().matches(&digest));
            hasher.update(b"x");
            assert!(!hasher.matches(&digest));
        }
    }
}
