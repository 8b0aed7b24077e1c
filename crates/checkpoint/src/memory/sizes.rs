//! Bytes of a model's weights, keys, values and intermediate results, whole or on one of several ranks.

use std::collections::BTreeMap;

use candlepower_layout::{Dtype, LOGITS_ROWS, MatrixForm};

use super::{KvDtype, MemoryRequest, sum};
use crate::{
    error::{Error, Result},
    rope::RopeSpec,
    slot::{Slot, SlotShard},
    spec::{FfnSpec, KvKind, LayerSpec, Mixer, ModelSpec},
};

/// Activations are single precision on the CPU.
const ACTIVATION_BYTES: u64 = 4;
/// Dimensions in the table of a model without rope, which turns two of them by nothing.
const UNROTATED: usize = 2;
/// Most ranks that are proposed.
const MAX_RANKS: usize = 64;

/// A matrix as it is loaded.
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) form: MatrixForm,
}

impl ModelSpec {
    /// Count of all weights.
    pub fn num_parameters(&self) -> u64 {
        let stored = self.slots().filter(|(layer, slot, _)| {
            let attention = layer.and_then(|layer| self.layers[layer].attention());
            *slot != Slot::V || attention.is_none_or(|attention| !attention.values_are_keys)
        });
        stored.map(|(_, _, shape)| shape.iter().product::<usize>() as u64).sum()
    }

    /// Bytes of the weights as loaded, with the matrices that are not quantized in `dtype`; norms and biases are always F32.
    pub fn weight_bytes(&self, dtype: Dtype) -> u64 {
        self.rank_weight_bytes(dtype, 1)
    }

    /// Bytes of the weights as one of `ranks` ranks loads them.
    pub fn rank_weight_bytes(&self, dtype: Dtype, ranks: usize) -> u64 {
        let (matrices, vectors) = self.rank_shapes(ranks);
        let bytes = |m: Matrix| m.form.bytes(m.rows, m.columns, dtype);
        let matrices = matrices.into_iter().map(bytes).sum::<usize>();
        (vectors * Dtype::F32.size() + matrices) as u64
    }

    /// The share of routed experts in the weights' bytes, with values in 16 bits.
    pub fn share_of_experts(&self) -> f64 {
        let mut without = self.clone();
        for layer in &mut without.layers {
            if let FfnSpec::Experts(experts) = &mut layer.ffn {
                experts.count = 0;
            }
        }
        1.0 - without.weight_bytes(Dtype::Bf16) as f64 / self.weight_bytes(Dtype::Bf16) as f64
    }

    /// Bytes of the loaded tables of which each token needs one row alone, in `dtype` unless they are quantized. These are the
    /// embedding, unless it is the head, too, and the per-layer embeddings.
    pub fn looked_up_bytes(&self, dtype: Dtype) -> u64 {
        let bytes = |slot, rows, columns| {
            let quantized = self.quantized.get(&(None, slot));
            let form = quantized.map_or(MatrixForm::Plain, |packed| MatrixForm::Quantized(*packed));
            form.bytes(rows, columns, dtype) as u64
        };
        let embedding = match self.head.tied {
            true => 0,
            false => bytes(Slot::Embed, self.vocab_size, self.hidden_size),
        };
        let per_layer = self.per_layer.map_or(0, |of| {
            bytes(Slot::PerLayerEmbed, of.vocab_size, of.width * self.layers.len())
        });
        embedding + per_layer
    }

    /// The matrices that one of `ranks` ranks loads, and the count of values in its norms and biases.
    pub(super) fn rank_shapes(&self, ranks: usize) -> (Vec<Matrix>, usize) {
        let mut matrices: BTreeMap<(Option<usize>, Slot), Matrix> = BTreeMap::new();
        let mut vectors = 0;
        // The factor on a layer's output is an argument of a kernel.
        let slots = self.shard(ranks);
        let mut of_heads = Vec::new();
        for (layer, slot, shape) in slots.slots().filter(|slot| slot.1 != Slot::LayerScale) {
            match *shape.as_slice() {
                [n] => vectors += n,
                [..] if slot.is_per_head() => {
                    let attention = layer.and_then(|layer| slots.layers[layer].attention());
                    let attention = attention.expect("matrices of heads are an attention's");
                    let latent = attention.latent.expect("they make keys and values of latents");
                    let (rows, columns) = match slot == Slot::KeyUp {
                        true => (latent.rank, latent.key_dim),
                        false => (latent.value_dim, latent.rank),
                    };
                    let form = match self.widened.contains(&(layer, slot)) {
                        true => MatrixForm::Widened,
                        false => MatrixForm::Plain,
                    };
                    let matrix = || Matrix { rows, columns, form };
                    of_heads.extend((0..attention.heads).map(|_| matrix()));
                }
                [rows, columns] => {
                    let quantized = self.quantized.get(&(layer, slot));
                    let form = quantized.map_or(MatrixForm::Plain, |p| MatrixForm::Quantized(*p));
                    let fused = (layer, slot.fused());
                    let matrix = matrices.entry(fused).or_insert(Matrix { rows: 0, columns, form });
                    matrix.rows += rows;
                    matrix.form = matrix.form.join(form, columns);
                }
                _ => unreachable!("slots are vectors and matrices"),
            }
        }
        (matrices.into_values().chain(of_heads).collect(), vectors)
    }

    /// Bytes of keys and values that one token takes in all layers.
    pub fn kv_bytes_per_token(&self, dtype: impl Into<KvDtype>) -> u64 {
        self.rank_kv_bytes_per_token(dtype, 1)
    }

    /// Bytes of keys and values that one token takes on one of `ranks` ranks.
    pub fn rank_kv_bytes_per_token(&self, dtype: impl Into<KvDtype>, ranks: usize) -> u64 {
        let of_kind = |kind: KvKind| kind.kv_heads.div_ceil(ranks) * kind.values() * kind.layers;
        let numbers: usize = self.kv_kinds().into_iter().map(of_kind).sum();
        (numbers * dtype.into().size()) as u64
    }

    /// Bytes of the recurrent state of one sequence on one of `ranks` ranks: the states of linear attention in single precision, and
    /// the last inputs of convolutions in `inputs`.
    pub fn state_bytes(&self, inputs: Dtype, ranks: usize) -> u64 {
        let kept =
            |kernel_size: usize, channels: usize| (kernel_size - 1) * channels * inputs.size();
        let of_layer = |layer: &LayerSpec| match &layer.mixer {
            Mixer::Attention(_) => 0,
            Mixer::LinearAttention(net) => {
                let net = net.shard(ranks);
                let state = net.values() * net.key_dim * Dtype::F32.size();
                state + kept(net.kernel_size, net.channels())
            }
            Mixer::ShortConv(conv) => kept(conv.kernel_size, conv.channels.div_ceil(ranks)),
        };
        self.layers.iter().map(of_layer).sum::<usize>() as u64
    }

    /// Bytes that one rank needs beside weights and cache: an upper estimate of all buffers that live at once in a full step, and the
    /// RoPE tables.
    ///
    /// `4 * (T * (4 * hidden + max(4 * q + 5 * kv, 3 * inner)) + 2 * min(T, 128) * vocab + L * rotary)` bytes. `T` is the token budget
    /// of a step; `q`, `kv`, `inner` and `vocab` are the widths on one rank; `L` is max_model_len, once for each different RoPE.
    ///
    /// MoE layers add `2 * hidden + experts` to `3 * inner`, for one expert's tokens and results, and scores. A gate of the attention
    /// counts as `2 * q`. Linear attention counts as its rows, the convolved rows, and twice its output.
    ///
    /// The terms are: the residual, its norm and their successors; q, k and v as one tensor, apart, and rotated, with the attention's
    /// output; gate and up with their product; the logits of as many rows as the engine takes at once, and a copy for sampling.
    /// Per-layer embeddings count four times.
    pub(super) fn activation_bytes(&self, request: &MemoryRequest, tokens: usize) -> u64 {
        let ranks = request.tensor_parallel_size;
        let logits = 2 * tokens.min(LOGITS_ROWS) as u64 * self.vocab_size.div_ceil(ranks) as u64;
        let tables = self.rope_values(request.max_model_len);
        let rows = (tokens as u64).saturating_mul(self.step_width(ranks) as u64);
        sum([rows, logits, tables as u64]).saturating_mul(ACTIVATION_BYTES)
    }

    /// The same as [`Self::activation_bytes`], for a batch of `tokens` tokens without logits, with the keys and values of one layer.
    pub(crate) fn batch_bytes(&self, tokens: usize, max_model_len: usize) -> u64 {
        // Where layers read the keys of others, those of all layers are kept.
        let keeps_all = self.attentions().any(|a| a.keys_of.is_some());
        let keys = self
            .kv_kinds()
            .into_iter()
            .map(|kind| kind.kv_heads * kind.values() * if keeps_all { kind.layers } else { 1 });
        let width = self.step_width(1) + keys.sum::<usize>();
        let rows = (tokens as u64).saturating_mul(width as u64);
        sum([rows, self.rope_values(max_model_len) as u64]).saturating_mul(ACTIVATION_BYTES)
    }

    /// Values that exist at once in a step for each token, on one of `ranks` ranks.
    fn step_width(&self, ranks: usize) -> usize {
        let widest = self.layers.iter().map(|layer| {
            let mixer = match &layer.mixer {
                Mixer::Attention(a) if a.latent.is_some() => {
                    // Queries as projected, multiplied, rotated and joined; the output, latents and values.
                    let of_head = 2 * a.q_dim() + 3 * a.head_dim + a.out_dim();
                    a.heads.div_ceil(ranks) * of_head + 5 * a.head_dim
                }
                Mixer::Attention(a) => {
                    let q = a.heads.div_ceil(ranks) * a.head_dim;
                    let kv = a.kv_heads.div_ceil(ranks) * a.head_dim;
                    4 * q + 5 * kv + if a.gated { 2 * q } else { 0 }
                }
                Mixer::LinearAttention(net) => {
                    let net = net.shard(ranks);
                    net.width() + net.channels() + 2 * net.values() + net.gates()
                }
                Mixer::ShortConv(conv) => 4 * conv.channels.div_ceil(ranks),
            };
            let gathered = match &layer.ffn {
                FfnSpec::Nothing | FfnSpec::Dense(_) => 0,
                FfnSpec::Experts(experts) => {
                    let normed = if experts.separate_norms { 3 * self.hidden_size } else { 0 };
                    2 * self.hidden_size + experts.count + normed
                }
            };
            let shared = layer.ffn.shared().map_or(0, |mlp| mlp.inner);
            let inner = layer.ffn.mlp().map_or(0, |mlp| mlp.inner);
            let inner = 3 * inner.div_ceil(ranks) + gathered;
            mixer.max(inner).max(3 * shared.div_ceil(ranks))
        });
        // Rounded copies of the activations of a product.
        let rounded = self.rank_shapes(ranks).0.into_iter().map(|shape| match shape.form {
            MatrixForm::Quantized(packed) if packed.activations.is_some() => shape.columns,
            _ => 0,
        });
        let rounded = rounded.max().unwrap_or(0);
        // The projection, its norm, the rows of the table and their sum.
        let per_layer = self.per_layer.map_or(0, |of| 4 * of.width * self.layers.len());
        4 * self.hidden_size + widest.max().unwrap_or(0) + per_layer + rounded
    }

    /// Count of the values in the RoPE tables of `max_model_len` positions.
    pub(super) fn rope_values(&self, max_model_len: usize) -> usize {
        let mut ropes = Vec::new();
        for attention in self.attentions() {
            if !ropes.contains(&&attention.rope) {
                ropes.push(&attention.rope);
            }
        }
        let numbers = |rope: &Option<RopeSpec>| match rope {
            Some(rope) => rope.dim + usize::from(rope.query_growth.is_some()),
            None => UNROTATED,
        };
        ropes.iter().map(|rope| numbers(rope) * max_model_len).sum()
    }

    /// Checks that each layer can be split over `ranks` ranks. Heads, inner width and vocabulary must divide into equal parts. KV heads
    /// divide, too, or several ranks share each. Quantized inputs are split between two groups.
    ///
    /// # Errors
    /// [`Error::TensorParallel`], with the count that does not divide, and the possible counts of ranks.
    pub fn check_tensor_parallel(&self, ranks: usize) -> Result<()> {
        let Some(what) = self.indivisible(ranks) else { return Ok(()) };
        let possible: Vec<String> =
            self.tensor_parallel_sizes().iter().map(usize::to_string).collect();
        let possible = match possible.as_slice() {
            [one] => one.clone(),
            several => format!("one of {}", several.join(", ")),
        };
        Err(Error::TensorParallel { asked: ranks, what, possible })
    }

    /// The numbers of ranks, up to 64, over which each layer can be split.
    pub fn tensor_parallel_sizes(&self) -> Vec<usize> {
        (1..=MAX_RANKS).filter(|ranks| self.indivisible(*ranks).is_none()).collect()
    }

    /// The count that cannot be split, and its name.
    fn indivisible(&self, ranks: usize) -> Option<String> {
        let splits = |count: usize| ranks > 0 && count.is_multiple_of(ranks);
        let shared = |count: usize| splits(count) || (ranks > count && ranks.is_multiple_of(count));
        let unless =
            |divides: bool, count: usize, what: &str| (!divides).then(|| format!("{count} {what}"));
        let (mut heads, mut kv_heads, mut inner) = (None, None, None);
        for layer in &self.layers {
            match &layer.mixer {
                Mixer::Attention(a) => {
                    heads = heads.or_else(|| unless(splits(a.heads), a.heads, "attention heads"));
                    let divides = shared(a.kv_heads);
                    kv_heads =
                        kv_heads.or_else(|| unless(divides, a.kv_heads, "key and value heads"));
                }
                Mixer::LinearAttention(net) => {
                    // Each rank has whole heads of keys, and so what is normed as one.
                    let (divides, count) = (splits(net.key_heads), net.key_heads);
                    heads =
                        heads.or_else(|| unless(divides, count, "key heads of linear attention"));
                    // Columns of what comes out would be apart.
                    let together = ranks == 1 || !net.tiled;
                    let what = "heads of values in the order of GGUF files";
                    heads = heads.or_else(|| unless(together, net.value_heads, what));
                }
                Mixer::ShortConv(conv) => {
                    // Each rank has whole vectors of eight.
                    let (divides, count) = (splits(conv.channels / 8), conv.channels);
                    heads =
                        heads.or_else(|| unless(divides, count, "channels of short convolutions"));
                }
            }
            for mlp in [layer.ffn.mlp(), layer.ffn.shared()].into_iter().flatten() {
                let width = mlp.inner;
                inner =
                    inner.or_else(|| unless(splits(width), width, "columns of the feed-forward"));
            }
        }
        let vocab = unless(splits(self.vocab_size), self.vocab_size, "tokens of the vocabulary");
        heads.or(kv_heads).or(inner).or(vocab).or_else(|| self.indivisible_groups(ranks))
    }

    /// Which quantized inputs cannot be split: a group that shares a scale has to be on one rank, and so have all inputs whose
    /// groups are spread over them.
    fn indivisible_groups(&self, ranks: usize) -> Option<String> {
        if ranks == 1 {
            return None;
        }
        let mut split = self.slots().filter(|(_, slot, _)| slot.info().shard == SlotShard::Columns);
        split.find_map(|(layer, slot, shape)| {
            let packed = self.quantized.get(&(layer, slot))?;
            let columns = shape[1];
            if packed.reordered {
                return Some(
                    "quantized inputs, whose groups are in act-order (desc_act)".to_owned(),
                );
            }
            let whole = packed.group >= columns || (columns / ranks).is_multiple_of(packed.group);
            (!whole)
                .then(|| format!("{} groups of quantized inputs", columns.div_ceil(packed.group)))
        })
    }
}
