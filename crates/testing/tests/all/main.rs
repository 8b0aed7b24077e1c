//! Every golden of the repository has the weights that the scripts gave it. A file of seeds is accepted only if it is
//! complete.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};

use candlepower_testing::goldens::{folder, root, seeded_folders, write_weights};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// A temporary folder, which is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("goldens-{test}"));
        let _ = fs::remove_dir_all(&path); // left by an interrupted run
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A folder with the seeds of a golden.
    fn with_seeds_of(golden: &str, test: &str) -> Self {
        let folder = Self::new(test);
        folder.write(&fs::read(root().join(golden).join("model.seeded")).unwrap());
        folder
    }

    fn write(&self, seeds: &[u8]) {
        fs::write(self.0.join("model.seeded"), seeds).unwrap();
    }

    fn seeds(&self) -> Vec<u8> {
        fs::read(self.0.join("model.seeded")).unwrap()
    }

    fn weights(&self) -> Vec<u8> {
        write_weights(&self.0).unwrap();
        fs::read(self.0.join("model.safetensors")).unwrap()
    }

    fn error(&self) -> String {
        write_weights(&self.0).unwrap_err().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // nothing depends on it
    }
}

fn replace(bytes: &mut [u8], from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
}

/// The scripts, which generate the same weights in Python, have computed these digests.
#[test]
fn weights_of_every_golden_are_those_of_the_scripts_to_the_bit() {
    let seeded = seeded_folders(&root()).unwrap();
    assert!(seeded.len() > 100, "{} folders", seeded.len());
    let own = Folder::new("every");
    for golden in seeded {
        fs::copy(golden.join("model.seeded"), own.0.join("model.seeded")).unwrap();
        write_weights(&own.0).unwrap_or_else(|error| panic!("{}: {error}", golden.display()));
        let (weights, seeds) = (own.weights(), own.seeds());
        let weights = SafeTensors::deserialize(&weights).unwrap();
        let seeds = SafeTensors::deserialize(&seeds).unwrap();
        for (name, kept) in seeds.tensors() {
            assert_eq!(weights.tensor(&name).unwrap(), kept, "{name}");
        }
        assert!(weights.len() > seeds.len(), "{} has only small tensors", golden.display());
    }
}

#[test]
fn matrices_are_about_normal_with_the_standard_deviation_of_the_recipe() {
    for (golden, dtype) in
        [("llama", Dtype::F32), ("llama-yarn", Dtype::BF16), ("gpt2-outer", Dtype::F16)]
    {
        let weights = fs::read(folder(golden).join("model.safetensors")).unwrap();
        let weights = SafeTensors::deserialize(&weights).unwrap();
        let names = ["model.embed_tokens.weight", "transformer.wte.weight"];
        let tensor = names.iter().find_map(|name| weights.tensor(name).ok()).unwrap();
        assert_eq!(tensor.dtype(), dtype);
        let number = |bytes: &[u8]| match dtype {
            Dtype::F32 => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
            Dtype::F16 => half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
            _ => half::bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        };
        let size = dtype.bitsize() / 8;
        let numbers: Vec<f64> = tensor.data().chunks_exact(size).map(number).collect();
        let mean_of =
            |power: i32| numbers.iter().map(|x| x.powi(power)).sum::<f64>() / numbers.len() as f64;
        let std = mean_of(2).sqrt();
        let recipe = if golden == "gpt2-outer" { 0.2 } else { 0.5 };
        assert!((std / recipe - 1.0).abs() < 0.04, "{golden}: {std}");
        assert!(mean_of(1).abs() < 0.04 * std, "{golden}: {}", mean_of(1));
        assert!((mean_of(4) / std.powi(4) - 2.7).abs() < 0.2, "{golden}: {}", mean_of(4));
    }
}

#[test]
fn weights_are_written_where_they_are_missing_old_or_cut_off() {
    let folder = Folder::with_seeds_of("llama-yarn", "written");
    let path = folder.0.join("model.safetensors");
    let whole = folder.weights();
    let other = Folder::with_seeds_of("llama", "other").weights();
    for old in [other.as_slice(), &whole[..whole.len() - 1], b""] {
        fs::write(&path, old).unwrap();
        assert!(folder.weights().len() == whole.len());
    }
    // An existing file is not written again.
    let written = fs::metadata(&path).unwrap().modified().unwrap();
    folder.weights();
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written);
    let mut names: Vec<_> =
        fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["model.safetensors", "model.seeded"]);
}

#[test]
fn many_at_once_find_whole_weights() {
    let folder = Folder::with_seeds_of("llama", "many");
    let lens = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| folder.weights().len())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(lens.iter().all(|len| *len == lens[0] && *len > 500_000), "{lens:?}");
}

#[test]
fn a_folder_without_seeds_is_left_alone() {
    let folder = Folder::new("none");
    write_weights(&folder.0).unwrap();
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}

#[test]
fn damaged_seeds_are_refused_with_what_to_do() {
    let original = Folder::with_seeds_of("llama", "damaged");
    let seeds = original.seeds();
    let error_of = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut changed = seeds.clone();
        change(&mut changed);
        original.write(&changed);
        let error = original.error();
        let (path, advice) = ("goldens-damaged/model.seeded is damaged, ", ": check it out again");
        assert!(error.contains(path) && error.contains(advice), "{error}");
        assert!(!original.0.join("model.safetensors").exists());
        error
    };
    let digest = "its tensors have another SHA-256 than it says";
    for (from, to) in [
        (r#"_proj.weight\":{\"dtype\":\"F32\""#, r#"_prok.weight\":{\"dtype\":\"F32\""#),
        (r#"\"shape\":[320,64]"#, r#"\"shape\":[640,32]"#),
        ("model.norm.weight", "model.nork.weight"),
    ] {
        let error = error_of(&|seeds| replace(seeds, from, to));
        assert!(error.contains(digest), "{error}");
    }
    let error = error_of(&|seeds| *seeds.last_mut().unwrap() ^= 1);
    assert!(error.contains(digest), "{error}");
    let error = error_of(&|seeds| replace(seeds, "\"seed\":", "\"need\":"));
    assert!(error.contains("it has no `seed`"), "{error}");
    error_of(&|seeds| seeds.truncate(100));
    error_of(&|seeds| seeds.clear());
    for (generated, reason) in [
        (r#"{"a": {"dtype": "I32", "shape": [2], "factor": 1}}"#, "`a` is of I32; F32, F16 and"),
        (
            r#"{"a": {"dtype": "F32", "shape": [9999999, 9], "factor": 1}}"#,
            "`a` has more than 16777216 elements",
        ),
        (r#"{"a": {"dtype": "F32", "shape": [-1], "factor": 1}}"#, "`generated`: invalid value"),
        ("", "`generated`: EOF"),
    ] {
        let metadata = [("seed", "1"), ("sha256", ""), ("generated", generated)];
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let tensors: [(String, TensorView<'_>); 0] = [];
        let file = safetensors::serialize(tensors, Some(metadata)).unwrap();
        let error = error_of(&|seeds| *seeds = file.clone());
        assert!(error.contains(reason), "{error}");
    }
}
