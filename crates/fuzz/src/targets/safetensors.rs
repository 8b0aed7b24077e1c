//! Mutates weight files of a golden checkpoint, plain and quantized.

use super::{Folder, load_model};
use crate::{Round, change};

pub(super) fn open() -> Round {
    const GOLDENS: [&str; 7] =
        ["llama-yarn", "awq", "gptq", "fp8-block", "squeezellm", "mxfp4", "nvfp4"];
    const FILE: &str = "model.safetensors";
    let copies = GOLDENS.map(|golden| {
        let folder = Folder::copy_of(golden);
        let original = std::fs::read(folder.0.join(FILE)).unwrap();
        (folder, original)
    });
    Box::new(move |random| {
        let (folder, original) = random.choice(&copies).unwrap();
        let mut file = original.clone();
        let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        // Any bytes are valid weights, so changes of the data would nearly always be accepted.
        change::file(&mut file, 0..8 + header, random);
        folder.write(FILE, &file);
        load_model(&folder.0)
    })
}
