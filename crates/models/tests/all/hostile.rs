//! Weight files with anything in them: each loads or is refused in one line; nothing panics, and nothing is reserved for
//! what is not there.

use std::{fs, path::PathBuf};

use candlepower_checkpoint::{Checkpoint, CheckpointFiles};
use candlepower_models::load;

use crate::golden::{folder, options};

/// Changed files per golden model.
const ROUNDS: usize = 150;

/// Random numbers. Source: SplitMix64 (Steele, Lea, Flood, 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// A copy of a golden checkpoint whose weights are written anew each time.
struct Hostile(PathBuf);

impl Hostile {
    fn of(golden: &str) -> Self {
        let to = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("hostile-{golden}"));
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(folder(golden)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
        Self(to)
    }

    /// Loads the checkpoint with these weights; what is wrong must be one line.
    fn load(&self, weights: &[u8]) -> Result<(), String> {
        fs::write(self.0.join("model.safetensors"), weights).unwrap();
        let checkpoint = Checkpoint::open(CheckpointFiles::Folder(self.0.clone())).unwrap();
        load(&checkpoint, &options(), &mut |_| {}).map(|_| ()).map_err(|error| {
            let line = error.to_string();
            assert!(!line.contains('\n') && line.len() < 2_000, "{line:.300}");
            line
        })
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Changes a file in one of the ways in which files are found changed, or are changed on purpose.
fn change(file: &mut Vec<u8>, random: &mut Random) {
    let header_len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header = 8..8 + header_len;
    match random.below(6) {
        // A flipped bit in the header or anywhere.
        0 => file[random.below(header.end)] ^= 1 << random.below(8),
        1 => {
            let at = random.below(file.len());
            file[at] ^= 1 << random.below(8);
        }
        // The end is missing, or there is more.
        2 => file.truncate(random.below(file.len())),
        3 => file.extend((0..random.below(100)).map(|i| i as u8)),
        // Another length of the header.
        4 => {
            let len = [0, 1, header_len - 1, header_len + 1, file.len(), usize::MAX, 1 << 40];
            file[..8].copy_from_slice(&(len[random.below(len.len())] as u64).to_le_bytes());
        }
        // Another digit in a shape or an offset.
        _ => {
            let digits: Vec<usize> = header.filter(|&at| file[at].is_ascii_digit()).collect();
            file[digits[random.below(digits.len())]] = b'0' + random.below(10) as u8;
        }
    }
}

#[test]
fn changed_weight_files_load_or_are_refused_in_one_line() {
    let mut random = Random(11);
    let (mut loaded, mut refused) = (0, 0);
    for golden in ["llama-yarn", "awq", "gptq", "fp8-block", "squeezellm"] {
        let hostile = Hostile::of(golden);
        let original = fs::read(folder(golden).join("model.safetensors")).unwrap();
        for _ in 0..ROUNDS {
            let mut file = original.clone();
            change(&mut file, &mut random);
            match hostile.load(&file) {
                Ok(()) => loaded += 1,
                Err(_) => refused += 1,
            }
        }
    }
    // A flipped bit in a weight is seen by nobody.
    assert!(loaded > 50 && refused > 300, "{loaded} loaded, {refused} refused");
}

#[test]
fn headers_that_lie_are_refused() {
    let hostile = Hostile::of("llama");
    let entry = |shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let headers = [
        entry("[4294967296,4294967296]", "[0,8]"),
        entry("[18446744073709551615]", "[0,8]"),
        entry("[2]", "[0,18446744073709551615]"),
        entry("[2]", "[8,0]"),
        entry("[2]", "[0,9]"),
        entry("[-1]", "[0,8]"),
        entry("[2]", "[8,16]"),
        "{".repeat(100_000),
        r#"{"a":1}"#.to_owned(),
        "null".to_owned(),
        "\u{1}".repeat(64),
    ];
    for header in headers {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend([0; 8]);
        let line = hostile.load(&file).unwrap_err();
        let expected = "model.safetensors is damaged or truncated (";
        assert!(line.starts_with(expected), "{line}");
    }
}
