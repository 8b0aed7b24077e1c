//! Every architecture compared with transformers on the same files; and a text's result whatever its batch is.

use std::path::PathBuf;

use candlepower_checkpoint::{CheckpointFiles, Description, EncoderCheckpoint, Pooling};
use candlepower_models::{Encoder, EncoderInput};
use safetensors::SafeTensors;

const VECTORS: [&str; 6] =
    ["bert", "xlm-roberta", "distilbert", "modernbert", "nomic-bert", "mpnet"];
const SCORES: [&str; 6] = [
    "bert-score",
    "roberta-score",
    "xlm-roberta-score",
    "distilbert-score",
    "modernbert-score",
    "mpnet-score",
];
const TOLERANCE: f32 = 1e-4;

fn folder(name: &str) -> PathBuf {
    candlepower_testing::goldens::folder(&format!("encoders/{name}"))
}

fn checkpoint(name: &str) -> EncoderCheckpoint {
    match Description::open(CheckpointFiles::Folder(folder(name))).unwrap() {
        Description::Encoder(checkpoint) => checkpoint,
        Description::Decoder(_) => panic!("{name} is a decoder"),
    }
}

fn encoder(name: &str, pooling: Option<Pooling>) -> Encoder {
    Encoder::load(&checkpoint(name), pooling, &mut |_| {}).unwrap()
}

/// The results of transformers.
struct Golden {
    inputs: Vec<EncoderInput>,
    bytes: Vec<u8>,
}

impl Golden {
    fn read(name: &str) -> Self {
        let bytes = std::fs::read(folder(name).join("golden.safetensors")).unwrap();
        let mut golden = Self { inputs: Vec::new(), bytes };
        let whole =
            |name| golden.words(name).into_iter().map(u32::from_le_bytes).collect::<Vec<_>>();
        let (mut ids, mut types) = (whole("token_ids"), whole("type_ids"));
        let mut inputs = Vec::new();
        for len in whole("lengths") {
            let (more_ids, more_types) =
                (ids.split_off(len as usize), types.split_off(len as usize));
            inputs.push(EncoderInput { token_ids: ids, type_ids: types });
            (ids, types) = (more_ids, more_types);
        }
        golden.inputs = inputs;
        golden
    }

    fn words(&self, name: &str) -> Vec<[u8; 4]> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = file.tensor(name).unwrap();
        tensor.data().chunks_exact(4).map(|bytes| bytes.try_into().unwrap()).collect()
    }

    /// One row for each input.
    fn rows(&self, name: &str) -> Vec<Vec<f32>> {
        let all: Vec<f32> = self.words(name).into_iter().map(f32::from_le_bytes).collect();
        all.chunks(all.len() / self.inputs.len()).map(<[f32]>::to_vec).collect()
    }
}

#[track_caller]
fn assert_close(got: &[Vec<f32>], want: &[Vec<f32>], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(got.len(), want.len(), "{what}");
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() <= TOLERANCE, "{what}, input {i}: {got} is not {want}");
        }
    }
}

#[test]
fn vectors_are_those_of_transformers() {
    for name in VECTORS {
        let golden = Golden::read(name);
        for (pooling, key) in
            [(Pooling::Cls, "cls"), (Pooling::Mean, "mean"), (Pooling::Last, "last")]
        {
            let encoder = encoder(name, Some(pooling));
            let want = golden.rows(key);
            for (input, want) in golden.inputs.iter().zip(&want) {
                let alone = encoder.run(std::slice::from_ref(input)).unwrap();
                assert_close(&alone, std::slice::from_ref(want), &format!("{name} {key}, alone"));
            }
            let together = encoder.run(&golden.inputs).unwrap();
            assert_close(&together, &want, &format!("{name} {key}, padded"));
        }
    }
}

#[test]
fn dense_layers_are_those_of_sentence_transformers() {
    let (golden, encoder) = (Golden::read("bert-dense"), encoder("bert-dense", None));
    assert_eq!((encoder.dimensions(), encoder.normalizes()), (Some(16), true));
    let together = encoder.run(&golden.inputs).unwrap();
    assert_close(&together, &golden.rows("vector"), "bert-dense");
    let alone = encoder.run(&golden.inputs[3..4]).unwrap();
    assert_eq!(alone[0], together[3]);
}

#[test]
fn vectors_of_bert_have_the_same_bits_in_any_batch() {
    for name in ["bert", "xlm-roberta", "distilbert", "mpnet"] {
        let (golden, encoder) = (Golden::read(name), encoder(name, None));
        let together = encoder.run(&golden.inputs).unwrap();
        for (input, together) in golden.inputs.iter().zip(together) {
            let alone = encoder.run(std::slice::from_ref(input)).unwrap();
            assert_eq!(alone, [together], "{name}");
        }
    }
}

#[test]
fn scores_are_those_of_transformers() {
    for name in SCORES {
        let golden = Golden::read(name);
        let encoder = encoder(name, None);
        assert_eq!(encoder.dimensions(), None);
        let together = encoder.run(&golden.inputs).unwrap();
        assert_close(&together, &golden.rows("score"), name);
        assert!(together.iter().flatten().all(|score| (0.0..=1.0).contains(score)));
    }
}

#[test]
fn the_count_of_weights_is_what_is_loaded() {
    for name in VECTORS.into_iter().chain(SCORES) {
        let checkpoint = checkpoint(name);
        let (mut done, mut total) = (0, 0);
        Encoder::load(&checkpoint, None, &mut |progress| {
            (done, total) = (progress.bytes_done, progress.bytes_total);
        })
        .unwrap();
        // All goldens are stored in f32.
        assert_eq!((done, total), (checkpoint.num_parameters() * 4, total), "{name}");
    }
}

#[test]
fn inputs_that_cannot_be_computed_are_refused() {
    let encoder = encoder("bert", None);
    let error = |token_ids: Vec<u32>, type_ids: Vec<u32>| {
        encoder.run(&[EncoderInput { token_ids, type_ids }]).unwrap_err().to_string()
    };
    assert_eq!(error(Vec::new(), Vec::new()), "the input has no tokens");
    assert_eq!(
        error(vec![1; 65], Vec::new()),
        "the input has 65 tokens; the model has 64 positions"
    );
    assert_eq!(
        error(vec![1, 96], Vec::new()),
        "the input has the token 96, which is outside the vocabulary of 96"
    );
    assert_eq!(error(vec![1, 2], vec![0]), "the input has 2 tokens and 1 token types");
    assert_eq!(error(vec![1], vec![2]), "the input has the token type 2; the model has 2");
    assert!(encoder.run(&[]).unwrap().is_empty());
}
