//! Headers of GGUF files: values of all types, and what is damaged or not supported.

use serde_json::json;

use super::*;

/// A file with these values and no tensors.
fn file(values: &[(&str, u32, Vec<u8>)]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend((values.len() as u64).to_le_bytes());
    for (key, kind, value) in values {
        bytes.extend(text(key));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(value);
    }
    bytes
}

/// A file with the entry of one tensor, whose data are missing.
fn with_tensor(kind: u32, shape: &[u64]) -> Vec<u8> {
    let mut bytes = file(&[]);
    bytes[8..16].copy_from_slice(&1_u64.to_le_bytes());
    bytes.extend(1_u64.to_le_bytes());
    bytes.extend(b"t");
    bytes.extend((shape.len() as u32).to_le_bytes());
    bytes.extend(shape.iter().flat_map(|size| size.to_le_bytes()));
    bytes.extend(kind.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes
}

fn read(bytes: &[u8]) -> Result<Header> {
    Header::read("a.gguf", bytes, bytes.len() as u64)
}

#[test]
fn values_of_every_type_are_read() {
    let header = read(&file(&[
        ("a", 1, vec![255]),
        ("b", 6, 1e-5_f32.to_le_bytes().to_vec()),
        ("c", 7, vec![1]),
        ("d", 8, [&2_u64.to_le_bytes()[..], b"hi"].concat()),
        ("e", 9, [&0_u32.to_le_bytes()[..], &2_u64.to_le_bytes(), &[3, 4]].concat()),
        ("f", 12, f64::NAN.to_le_bytes().to_vec()),
        ("g", 10, u64::MAX.to_le_bytes().to_vec()),
        ("h", 3, (-300_i16).to_le_bytes().to_vec()),
        ("i", 11, i64::MIN.to_le_bytes().to_vec()),
        ("j", 9, [&2_u32.to_le_bytes()[..], &2_u64.to_le_bytes(), &[0, 1, 2, 0]].concat()),
    ]));
    let expected = json!({
        "a": -1, "b": 1e-5, "c": true, "d": "hi", "e": [3, 4], "f": "NaN", "g": u64::MAX, "h": -300,
        "i": i64::MIN, "j": [256, 2],
    });
    assert_eq!(Value::Object(header.unwrap().metadata), expected);
}

#[test]
fn counts_are_held_against_the_bytes_that_are_there() {
    let list = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    // Eight lists within each other and one of bytes are more than any writer nests.
    let nested = |depth: usize| (0..depth).flat_map(|_| list(9, 1)).chain(list(0, 0)).collect();
    let huge = |at: usize| {
        let mut bytes = file(&[]);
        bytes[at..at + 8].copy_from_slice(&(1_u64 << 60).to_le_bytes());
        bytes
    };
    let cases = [
        (Vec::new(), "it ends within its header"),
        (b"GGML".repeat(9), "it does not begin with GGUF"),
        (huge(8), "it promises 1152921504606846976 tensors and 0 values"),
        (huge(16), "it promises 0 tensors and 1152921504606846976 values"),
        (file(&[("a", 9, list(0, u64::MAX))]), "`a` promises 18446744073709551615 entries"),
        (file(&[("a", 9, nested(9))]), "`a` promises 1 entries"),
        (
            file(&[("a", 8, u64::MAX.to_le_bytes().to_vec())]),
            "the text of a promises 18446744073709551615 bytes",
        ),
        (file(&[("a", 99, vec![0])]), "`a` has a value of type 99"),
        (file(&[("a\nb", 99, vec![0])]), "`a\\nb` has a value of type 99"),
        (file(&[("a", 0, vec![0]), ("a", 0, vec![0])]), "`a` is written twice"),
        (file(&[("general.alignment", 4, vec![3, 0, 0, 0])]), "`general.alignment` is 3"),
        (file(&[("a", 7, vec![2])]), "`a` is 2, not true or false"),
        // Blocks of Q8_0 have 32 weights.
        (with_tensor(8, &[33]), "tensor t of Q8_0 has the dimensions [33]"),
        (with_tensor(0, &[0]), "tensor t of F32 has the dimensions [0]"),
        (with_tensor(0, &[]), "tensor t has 0 dimensions"),
    ];
    for (bytes, reason) in cases {
        let line = read(&bytes).unwrap_err().to_string();
        let expected = format!("a.gguf is damaged, or no GGUF file: {reason}; download it again");
        assert_eq!(line, expected);
    }
}

#[test]
fn tensors_of_types_that_are_not_computed_with_are_named() {
    let line = read(&with_tensor(16, &[256])).unwrap_err().to_string();
    assert!(
        line.starts_with("a.gguf: tensor t is stored as IQ2_XXS, which is not supported; F32, ")
            && line.contains(", Q4_K, "),
        "{line}"
    );
}

#[test]
fn files_that_another_download_does_not_mend_are_said_to_be_such() {
    for (version, reason) in [
        (3_u32.swap_bytes(), "it is written for machines of the other byte order"),
        (1, "its GGUF version is 1, and 2 and 3 are read"),
        (4, "its GGUF version is 4, and 2 and 3 are read"),
    ] {
        let mut bytes = file(&[]);
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        let line = read(&bytes).unwrap_err().to_string();
        assert_eq!(
            line,
            format!("a.gguf cannot be used: {reason}; take another version of the model")
        );
    }
    let line =
        read(b"version https://git-lfs.example/spec/v1\noid sha256:0").unwrap_err().to_string();
    assert!(line.contains("a.gguf is a pointer of git-lfs"), "{line}");
}
