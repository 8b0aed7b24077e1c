//! Whether a GPU can compute the tokens of a sequence independently of other sequences, to the bit.

use candlepower_layout::device_head_dim;

use crate::{
    error::{Error, Result},
    memory::KvDtype,
    slot::Slot,
    spec::{Mixer, ModelSpec},
};

/// Widest heads, in the memory of a GPU, that its attention in a fixed order takes.
const MAX_HEAD_DIM: usize = 256;

const OTHER_MODEL: &str = "leave deterministic out, or take --device cpu, where it always holds";

impl ModelSpec {
    /// Checks that each operation of the model on a GPU has a kernel whose result for a token does not depend on the other
    /// tokens of a step. The CPU needs no check: all of its kernels are such.
    ///
    /// # Errors
    /// [`Error::NotDeterministic`] with the first part that has no such kernel.
    pub fn check_deterministic(&self, kv: KvDtype, ranks: usize) -> Result<()> {
        let error = |part: String, advice| Err(Error::NotDeterministic { part, advice });
        if ranks > 1 {
            let part =
                format!("tensor_parallel_size {ranks}, whose sums over GPUs depend on their size");
            return error(part, "set tensor_parallel_size to 1, or leave deterministic out");
        }
        if kv == KvDtype::Fp8 {
            let advice = "leave --kv-cache-dtype out, or leave deterministic out";
            return error("a KV cache in FP8".to_owned(), advice);
        }
        for layer in &self.layers {
            let part = match &layer.mixer {
                Mixer::LinearAttention(_) => Some("linear attention".to_owned()),
                Mixer::ShortConv(_) => Some("short convolutions".to_owned()),
                Mixer::Attention(attention) if attention.latent.is_some() => {
                    Some("latent attention (MLA)".to_owned())
                }
                Mixer::Attention(attention)
                    if device_head_dim(attention.head_dim) > MAX_HEAD_DIM =>
                {
                    Some(format!("attention heads of {} elements", attention.head_dim))
                }
                Mixer::Attention(_) => None,
            };
            if let Some(part) = part {
                return error(format!("a model with {part}"), OTHER_MODEL);
            }
        }
        // The kernels for quantized experts round weights by the number of a step's tokens.
        let is_expert = |slot: &Slot| {
            matches!(slot, Slot::ExpertGate(_) | Slot::ExpertUp(_) | Slot::ExpertDown(_))
        };
        match self.quantized.keys().any(|(_, slot)| is_expert(slot)) {
            true => error("a model with quantized experts".to_owned(), OTHER_MODEL),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checkpoint, CheckpointFiles, Dtype};

    fn check(golden: &str, kv: KvDtype, ranks: usize) -> Option<String> {
        let folder = candlepower_testing::goldens::folder(golden);
        let checkpoint = Checkpoint::open(CheckpointFiles::Folder(folder)).unwrap();
        checkpoint.spec().check_deterministic(kv, ranks).err().map(|error| error.to_string())
    }

    #[test]
    fn attention_and_experts_are_deterministic_and_others_are_refused_by_name() {
        let kv = KvDtype::Plain(Dtype::Bf16);
        for golden in ["llama", "qwen3", "gemma3", "qwen3-moe", "awq"] {
            assert_eq!(check(golden, kv, 1), None, "{golden}");
        }
        for (golden, kv, ranks, part) in [
            ("llama", kv, 2, "tensor_parallel_size 2"),
            ("llama", KvDtype::Fp8, 1, "a KV cache in FP8"),
            ("deepseek-v3", kv, 1, "a model with latent attention (MLA)"),
            ("awq-experts", kv, 1, "a model with quantized experts"),
            ("qwen3-next", kv, 1, "a model with linear attention"),
            ("lfm2", kv, 1, "a model with short convolutions"),
        ] {
            let error = check(golden, kv, ranks).unwrap();
            assert!(
                error.starts_with(&format!("deterministic is not possible on a GPU with {part}")),
                "{error}"
            );
        }
    }
}
