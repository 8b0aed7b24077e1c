//! The keys of a GGUF file that belong to its architecture.

use std::{cell::RefCell, collections::BTreeSet};

use serde_json::{Value, json};

use super::{
    Gguf,
    arch::{Layers, deepseek},
};
use crate::{
    config::{HfConfig, UnreadKey},
    error::{Error, Result},
};

/// Keys that say nothing of the computation, or what others say, too.
const SAY_NOTHING: &[&str] = &[
    "vocab_size",
    "tensor_data_layout",
    "decoder_start_token_id",
    "rope.scaling.finetuned",
    // All parts of a position are the same in texts.
    "rope.dimension_sections",
    // Beside those of latents.
    "attention.key_length",
    // Where there are no experts; elsewhere it is read.
    "expert_used_count",
    "expert_gating_func",
];

/// Keys that change the computation of architectures that read them. Elsewhere they are refused, unless they change nothing.
const CHANGE_RESULTS: &[&str] = &[
    "attention.causal",
    "attention.clamp_kqv",
    "attention.group_norm_epsilon",
    "attention.key_length_swa",
    "attention.layer_norm_epsilon",
    "attention.max_alibi_bias",
    "attention.recurrent_layers",
    "attention.relative_buckets_count",
    "attention.scale",
    "attention.shared_kv_layers",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.temperature_scale",
    "attention.value_length_swa",
    "attn_logit_softcapping",
    "embedding_length_per_layer_input",
    "embedding_scale",
    "expert_count",
    "expert_feed_forward_length",
    "expert_group_count",
    "expert_group_used_count",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "expert_weights_norm",
    "expert_weights_scale",
    "final_logit_softcapping",
    "interleave_moe_layer_step",
    "leading_dense_block_count",
    "logit_scale",
    "moe_every_n_layers",
    "residual_scale",
    "rope.dimension_count_swa",
    "rope.freq_base_swa",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    "use_parallel_residual",
];

/// The keys that begin with the architecture's name, and which of them were asked for.
pub(super) struct Keys<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) metadata: &'a HfConfig,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Keys<'a> {
    pub(super) fn of(gguf: &'a Gguf) -> Self {
        Self { gguf, metadata: &gguf.metadata, read: RefCell::default() }
    }

    /// The whole name of a key, which counts as read from now on.
    pub(super) fn key(&self, key: &str) -> String {
        self.read.borrow_mut().insert(key.to_owned());
        format!("{}.{key}", self.gguf.arch.name)
    }

    /// The keys that nobody has read and that are not known to say nothing.
    ///
    /// # Errors
    /// One of them is known to change the computation.
    pub(super) fn unread(&self) -> Result<Vec<UnreadKey>> {
        // The set is taken out first: `is_neutral` asks for keys, too,
        // and these must not count as read by the architecture.
        let read = self.read.take();
        let prefix = self.key("");
        let mut unread = Vec::new();
        for (full, value) in self.metadata.entries() {
            let Some(key) = full.strip_prefix(&prefix) else { continue };
            if read.contains(key) || SAY_NOTHING.contains(&key) || self.is_neutral(key, value)? {
                continue;
            }
            if CHANGE_RESULTS.contains(&key) {
                return Err(self.unsupported(key, " by this architecture in GGUF files"));
            }
            unread.push(self.metadata.unread(full, value));
        }
        Ok(unread)
    }

    /// Whether a key has the value that changes nothing.
    fn is_neutral(&self, key: &str, value: &Value) -> Result<bool> {
        let Some(number) = value.as_f64() else {
            return Ok(match key {
                "attention.causal" => *value == json!(true),
                _ => *value == json!(false),
            });
        };
        Ok(number == 0.0
            || match key {
                "attention.causal"
                | "embedding_scale"
                | "expert_group_count"
                | "expert_group_used_count"
                | "expert_weights_scale"
                | "logit_scale"
                | "residual_scale"
                | "rope.scaling.yarn_attn_factor"
                | "rope.scaling.yarn_ext_factor" => number == 1.0,
                "attention.scale" => {
                    // The scale was written in single precision, so it is compared with a tolerance.
                    let usual = (self.head_dim()? as f64).sqrt().recip();
                    (number / usual - 1.0).abs() < 1e-5
                }
                // Nothing is beyond the window.
                "attention.sliding_window" => number >= self.count("context_length")? as f64,
                _ => false,
            })
    }

    pub(super) fn count(&self, key: &str) -> Result<usize> {
        self.metadata.count(&self.key(key))
    }

    /// A count; zero is none.
    pub(super) fn count_opt(&self, key: &str) -> Result<Option<usize>> {
        let key = self.key(key);
        // Converters write a zero where the configuration of the model has null.
        match self.metadata.raw(&key).is_some_and(|value| *value == json!(0)) {
            true => Ok(None),
            false => self.metadata.count_opt(&key),
        }
    }

    /// A count of what there need not be any of.
    pub(super) fn index(&self, key: &str) -> Result<usize> {
        Ok(self.count_opt(key)?.unwrap_or(0))
    }

    /// The value of a key for each layer that is computed: one for all, or a list. A zero means that the layer has no such part.
    pub(super) fn counts_of_layers(&self, key: &str) -> Result<Vec<usize>> {
        let full = self.key(key);
        let Some(Value::Array(list)) = self.metadata.raw(&full) else {
            return Ok(self.count_opt(key)?.into_iter().collect());
        };
        let counts: Option<Vec<usize>> =
            list.iter().map(|count| usize::try_from(count.as_u64()?).ok()).collect();
        let stored = self.count("block_count")?;
        let counts = counts.filter(|counts| counts.len() == stored);
        let mut counts = counts.ok_or_else(|| {
            self.metadata.ill_typed(&full, &list.clone().into(), "a number for each layer")
        })?;
        // The list has the layers that predict further tokens, too, and these come last.
        counts.truncate(self.layers()?);
        Ok(counts)
    }

    /// The value of a key for the first layer that has such a part, if its architecture allows different ones; otherwise that of all layers.
    pub(super) fn count_of_layers(&self, key: &str) -> Result<Option<usize>> {
        let counts = self.counts_of_layers(key)?;
        let has_part = |count: &&usize| **count > 0;
        let first = counts.iter().find(has_part).copied();
        let same = |count: &usize| match self.gguf.arch.layers {
            Layers::Alike => Some(*count) == first,
            Layers::OrNothing => *count == 0 || Some(*count) == first,
            Layers::Different => *count > 0,
        };
        match counts.iter().all(same) {
            true => Ok(first),
            false => Err(self.unsupported(key, "; the same number for all layers is")),
        }
    }

    /// Number of layers that are computed. Files may have more behind them, which predict further tokens.
    pub(super) fn layers(&self) -> Result<usize> {
        const KEY: &str = "nextn_predict_layers";
        let (stored, behind) = (self.count("block_count")?, self.index(KEY)?);
        let computed = stored.checked_sub(behind).filter(|layers| *layers > 0);
        computed.ok_or_else(|| self.unsupported(KEY, "; less than block_count is"))
    }

    /// The list of a key for each layer that is computed, if there is one.
    pub(super) fn flags_of_layers(&self, key: &str) -> Result<Option<Vec<bool>>> {
        let full = self.key(key);
        let Some(found @ Value::Array(list)) = self.metadata.raw(&full) else { return Ok(None) };
        let flags: Option<Vec<bool>> = list.iter().map(Value::as_bool).collect();
        let layers = self.layers()?;
        let Some(mut flags) = flags.filter(|flags| flags.len() >= layers) else {
            let needed = "true or false for each layer";
            return Err(self.metadata.ill_typed(&full, found, needed));
        };
        flags.truncate(layers);
        Ok(Some(flags))
    }

    pub(super) fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        self.metadata.flag_or(&self.key(key), default)
    }

    pub(super) fn float(&self, key: &str) -> Result<f64> {
        self.metadata.float(&self.key(key))
    }

    pub(super) fn float_opt(&self, key: &str) -> Result<Option<f64>> {
        self.metadata.float_opt(&self.key(key))
    }

    /// Epsilon of the norms: older files of models with LayerNorms have no other.
    pub(super) fn norm_eps(&self) -> Result<f64> {
        const RMS: &str = "attention.layer_norm_rms_epsilon";
        let plain = self.float_opt("attention.layer_norm_epsilon")?;
        let rms = self.float_opt(RMS)?;
        match self.gguf.arch.layer_norms {
            true => plain.or(rms),
            false => rms.or(plain),
        }
        .ok_or_else(|| self.metadata.missing(&self.key(RMS), "a number"))
    }

    pub(super) fn unsupported(&self, key: &str, hint: &str) -> Error {
        let key = self.key(key);
        let value = self.metadata.raw(&key).cloned().unwrap_or_default();
        self.metadata.unsupported(&key, &value, hint)
    }

    pub(super) fn has_tensor(&self, name: &str) -> bool {
        self.gguf.tensors.contains_key(name)
    }

    /// Whether any layer has a tensor of this name.
    pub(super) fn has_in_layers(&self, name: &str) -> bool {
        let is_it = |tensor: &String| {
            let of_layer = tensor.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
            of_layer.is_some_and(|(_, part)| part == name)
        };
        self.gguf.tensors.keys().any(is_it)
    }

    pub(super) fn head_dim(&self) -> Result<usize> {
        if self.gguf.arch.is(deepseek::NAME) {
            // The rotated part; the widths of keys are another matter.
            return self.count("rope.dimension_count");
        }
        let (hidden, heads) =
            (self.count("embedding_length")?, self.count("attention.head_count")?);
        match self.count_opt("attention.key_length")? {
            Some(head_dim) => Ok(head_dim),
            None if hidden.is_multiple_of(heads) => Ok(hidden / heads),
            None => {
                let key = self.key("attention.key_length");
                Err(self.metadata.missing(&key, "the heads do not divide embedding_length, so it"))
            }
        }
    }
}
