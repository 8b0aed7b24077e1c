//! The metadata of a GGUF file as the `config.json` of the same model.
//! Source: `convert_hf_to_gguf.py` of llama.cpp, which goes the other way, and `src/llama-model.cpp` for what is not written.

use serde_json::{Value, json};

use super::{Gguf, arch::deepseek, keys::Keys};
use crate::{
    config::UnreadKey,
    error::{Error, Result},
    pooling::Pooling,
};

/// Tensors that are a part of the configuration: what the rope's frequencies are divided by.
pub(super) const DIVISORS: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

const POOLING: &str = "pooling_type";

impl Gguf {
    /// The model's `config.json`, and the keys that are not read for it.
    pub(super) fn config(&self) -> Result<(Value, Vec<UnreadKey>)> {
        let keys = Keys::of(self);
        let head_dim = keys.head_dim()?;
        let value_length = keys.count_opt("attention.value_length")?;
        // DeepSeek's widths of keys and values differ by design; `deepseek.rs` reads them.
        let has_latents = self.arch.is(deepseek::NAME);
        if !has_latents && value_length.is_some_and(|found| found != head_dim) {
            return Err(keys.unsupported("attention.value_length", "; the width of keys is"));
        }
        let embedding = "token_embd.weight";
        let Some(embedding) = self.tensors.get(embedding).filter(|t| t.shape.len() == 2) else {
            let reason = format!("there is no matrix {embedding} in it");
            return Err(Error::Gguf { file: self.files[0].clone(), reason });
        };
        let config = json!({
            "architectures": [self.arch.class],
            // Not every converter writes the key `vocab_size`, and only the rows of the matrix have logits.
            "vocab_size": embedding.shape[0],
            "hidden_size": keys.count("embedding_length")?,
            "intermediate_size": keys.count_of_layers("feed_forward_length")?,
            "num_hidden_layers": keys.layers()?,
            "num_attention_heads": keys.count("attention.head_count")?,
            "num_key_value_heads": keys.count_of_layers("attention.head_count_kv")?,
            "head_dim": head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": keys.norm_eps()?,
            "max_position_embeddings": keys.count("context_length")?,
            // llama.cpp's converter leaves out the output head where it is the embedding.
            "tie_word_embeddings": !keys.has_tensor("output.weight"),
            "rope_parameters": rope(&keys, head_dim)?,
            "eos_token_id": self.end_ids()?,
            "suppress_tokens": self.metadata.token_ids("tokenizer.ggml.suppress_tokens")?,
            "dtype": self.plain_dtype(),
        });
        let Value::Object(mut config) = config else { unreachable!("it is written as an object") };
        (self.arch.own)(&keys, &mut config)?;
        // The pooling is read elsewhere, so it is counted as read here. Otherwise it would be reported as unread.
        keys.key(POOLING);
        let unread = keys.unread()?;
        Ok((config.into(), unread))
    }

    /// The keys that are not read.
    pub(crate) fn unread_keys(&self) -> Result<Vec<UnreadKey>> {
        Ok(self.config()?.1)
    }

    /// The pooling, in files of models that give vectors.
    pub(crate) fn pooling(&self) -> Result<Option<Pooling>> {
        let keys = Keys::of(self);
        // The values are those of llama.cpp's `llama_pooling_type`. The fourth is that of rerankers.
        match keys.metadata.float_opt(&keys.key(POOLING))? {
            Some(1.0) => Ok(Some(Pooling::Mean)),
            Some(2.0) => Ok(Some(Pooling::Cls)),
            Some(3.0) => Ok(Some(Pooling::Last)),
            // Some write -1 where nothing is said.
            None | Some(0.0 | -1.0) => Ok(None),
            Some(_) => {
                Err(keys
                    .unsupported(POOLING, "; 1 (mean), 2 (the first token) and 3 (the last) are"))
            }
        }
    }

    /// The dtype of most bytes of the matrices that are not quantized.
    fn plain_dtype(&self) -> &'static str {
        let bytes = |kind| {
            let tensors = self.tensors.values().filter(|t| t.shape.len() == 2 && t.kind == kind);
            tensors.map(|t| t.shape.iter().product::<usize>() * kind.block_bytes()).sum::<usize>()
        };
        use super::GgufType::{Bf16, F16, F32};
        let dtypes = [(F32, "float32"), (F16, "float16"), (Bf16, "bfloat16")];
        // The last of equals wins, so the order is reversed: a file with quantized matrices only counts as float32.
        dtypes.into_iter().rev().max_by_key(|(kind, _)| bytes(*kind)).expect("there are three").1
    }
}

fn rope(keys: &Keys<'_>, head_dim: usize) -> Result<Value> {
    let rotated = keys.count_opt("rope.dimension_count")?.unwrap_or(head_dim);
    let mut rope = json!({
        "rope_theta": keys.float_opt("rope.freq_base")?.unwrap_or(10_000.0),
        "rope_type": "default",
    });
    if rotated != head_dim {
        // Half an element more: the product with the width is cut to a whole number.
        rope["partial_rotary_factor"] = ((rotated as f64 + 0.5) / head_dim as f64).into();
    }
    let original = keys.count_opt("rope.scaling.original_context_length")?;
    let attn_factor = keys.float_opt("rope.scaling.attn_factor")?;
    // The name that older files have for it.
    let linear = keys.float_opt("rope.scale_linear")?.filter(|factor| ![0.0, 1.0].contains(factor));
    let factor = keys.float_opt("rope.scaling.factor")?.or(linear).filter(|factor| *factor > 0.0);
    let kind = keys.metadata.text_opt(&keys.key("rope.scaling.type"))?;
    // A factor without a type means linear scaling in llama.cpp.
    let kind = kind.unwrap_or(if factor.is_some() { "linear" } else { "none" });
    let needed = || match factor {
        Some(factor) => Ok(factor),
        None => keys.float("rope.scaling.factor"),
    };
    let divisors = |name| keys.gguf.divisors.get(name).cloned();
    // The file has the divisors and not the four parameters that they were made from,
    // so transformers' `llama3` type cannot be named. LongRoPE takes any divisors.
    if let Some(all) = divisors("rope_freqs.weight") {
        if kind != "none" || attn_factor.is_some() {
            return Err(keys.unsupported("rope.scaling.type", " beside rope_freqs.weight"));
        }
        // Llama 3.1's, which are the same for every length of a context.
        rope["rope_type"] = "longrope".into();
        rope["short_factor"] = all.clone().into();
        rope["long_factor"] = all.into();
        rope["original_max_position_embeddings"] = keys.count("context_length")?.into();
        // LongRoPE would otherwise derive an attention factor from the two lengths of contexts.
        rope["attention_factor"] = 1.0.into();
    } else if let Some(long) = divisors("rope_factors_long.weight") {
        let short = divisors("rope_factors_short.weight").unwrap_or_default();
        rope["rope_type"] = "longrope".into();
        rope["short_factor"] = short.into();
        rope["long_factor"] = long.into();
        rope["original_max_position_embeddings"] =
            keys.count("rope.scaling.original_context_length")?.into();
        rope["attention_factor"] = attn_factor.into();
    } else {
        match kind {
            "none" => {}
            "linear" => rope["factor"] = needed()?.into(),
            "yarn" => {
                rope["factor"] = needed()?.into();
                rope["original_max_position_embeddings"] = original.into();
                for bound in ["beta_fast", "beta_slow"] {
                    if let Some(turns) = keys.float_opt(&format!("rope.scaling.yarn_{bound}"))? {
                        rope[bound] = turns.into();
                    }
                }
            }
            _ => return Err(keys.unsupported("rope.scaling.type", "; none, linear and yarn are")),
        }
        if kind != "none" {
            rope["rope_type"] = kind.into();
        }
        if attn_factor.is_some_and(|factor| factor != 1.0) {
            return Err(keys.unsupported("rope.scaling.attn_factor", "; 1 is"));
        }
    }
    Ok(rope)
}
