//! Mutates GGUF files: metadata, tensors, vocabulary. A file that opens is loaded, and its tokenizer is built.

use candlepower_checkpoint::CheckpointFiles;
use candlepower_tokenizer::Tokenizer;

use super::{Folder, golden, load_model};
use crate::{Round, Verdict, change};

pub(super) fn open() -> Round {
    let originals = ["gguf-yarn", "gguf-gemma2", "gguf-granite", "gguf-qwen2"]
        .map(|name| std::fs::read(golden(name).join("model.gguf")).unwrap());
    let folder = Folder::new();
    Box::new(move |random| {
        let original = random.choice(&originals).unwrap();
        // The tensors' names and offsets come after the vocabulary, the other values before it.
        let vocabulary = find(original, b"tokenizer.ggml.tokens");
        let tensors =
            find(original, b"output_norm.weight").min(find(original, b"token_embd.weight"));
        let header = match random.usize(..3) {
            0 => 0..vocabulary,
            // A tensor's name stands behind its length of eight bytes, and before its shape, type and offset.
            1 => tensors - 8..(tensors + 2_000).min(original.len()),
            _ => 0..tensors,
        };
        let mut file = original.clone();
        change::file(&mut file, header, random);
        folder.write("model.gguf", &file);
        let path = folder.0.join("model.gguf");
        if let Verdict::Refused(line) = load_model(&path) {
            return Verdict::Refused(line);
        }
        let files = CheckpointFiles::find(&path).unwrap().unwrap();
        match files
            .read("tokenizer.json")
            .and_then(|json| Ok((json, files.read("tokenizer_config.json")?)))
        {
            Ok((json, config)) => {
                Verdict::of(Tokenizer::from_bytes(&json.unwrap(), config.as_deref()))
            }
            Err(error) => Verdict::Refused(error.to_string()),
        }
    })
}

fn find(bytes: &[u8], text: &[u8]) -> usize {
    bytes.windows(text.len()).position(|window| window == text).unwrap()
}
