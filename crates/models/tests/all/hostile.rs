//! Weight files whose headers lie: each is refused in one line, and nothing is reserved for what is not there. Files with
//! anything in them are the crate `fuzz`'s.

use std::{fs, path::PathBuf};

use candlepower_checkpoint::{Checkpoint, CheckpointFiles};
use candlepower_models::load;
use candlepower_testing::goldens::folder;

use crate::golden::options;

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
