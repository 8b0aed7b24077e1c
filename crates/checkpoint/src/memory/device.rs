//! Bytes on a GPU: row-major matrices in one dtype or quantized, buffers that are reserved once, heads padded to the widths of attention.

use candlepower_layout::{
    Dtype, LATENT_PARTIALS_BYTES, MatrixForm, SCHEDULE_BYTES, SCHEDULES, attention_partials_bytes,
    device_head_dim, device_latent_dims, device_logits_rows, device_samples_at_once,
    device_sampling_bytes, linear_attention_chunk_values, linear_attention_chunks,
    linear_attention_row_values, linear_attention_rows,
};

use super::{KvDtype, MemoryRequest, sum};
use crate::spec::{FfnSpec, GatingSpec, KvKind, LayerSpec, Mixer, MlpSpec, ModelSpec};

/// Bytes of weights that are dequantized at once: enough to keep a product of many rows busy.
const UNPACKED_BYTES: usize = 64 << 20;
/// cuBLAS's workspace, kernels that are loaded at their first call, CUDA graphs: an estimate from above.
const FIXED_BYTES: u64 = 512 << 20;

/// Values per token in the buffers that layers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceWidths {
    /// The widest of: q, k and v; the rows of a delta net; gate and up of all experts of a token; and the outputs of these experts.
    pub wide: usize,
    /// The widest of: q; decay and beta of a delta net; the activated gates of all experts of a token; and the scores of experts.
    pub inner: usize,
    /// Output of all heads.
    pub attended: usize,
}

impl ModelSpec {
    /// Bytes of the weights as one of `ranks` ranks loads them to a GPU: in `dtype` unless they are quantized.
    pub fn device_weight_bytes(&self, dtype: Dtype, ranks: usize) -> u64 {
        let (stored, _) = self.rank_shapes(ranks);
        let (padded, vectors) = self.with_padded_heads().rank_shapes(ranks);
        let matrices = stored.into_iter().zip(padded).map(|(stored, padded)| {
            match stored.form.on_device(stored.columns) {
                MatrixForm::Quantized(packed) => {
                    let between_heads = padded.columns != stored.columns;
                    packed.device_bytes(padded.rows, stored.columns, between_heads)
                }
                MatrixForm::Plain | MatrixForm::Widened => {
                    padded.rows * padded.columns * dtype.size()
                }
            }
        });
        // Corrections of routers, attention sink logits, and vectors of linear attention and of short convolutions stay in single precision.
        let exact = self.shard(ranks).layers.into_iter().map(|LayerSpec { mixer, ffn, .. }| {
            let of_mixer = match mixer {
                Mixer::Attention(a) => {
                    if a.sinks {
                        a.heads
                    } else {
                        0
                    }
                }
                Mixer::LinearAttention(net) => net.exact(),
                Mixer::ShortConv(conv) => conv.channels * conv.kernel_size,
            };
            let of_router = ffn.experts().map_or(0, |experts| {
                let GatingSpec { bias, scales, .. } = experts.gating;
                experts.count * (usize::from(bias) + usize::from(scales))
            });
            of_router + of_mixer
        });
        let exact: usize = exact.sum();
        let vectors = (vectors - exact) * dtype.size() + exact * Dtype::F32.size();
        // Padding of latents in the matrices of heads.
        let padded_latents = self.attentions().filter_map(|a| {
            let latent = a.latent?;
            let (padded, _) = device_latent_dims(latent.rank, a.head_dim - latent.rank);
            let columns = latent.key_dim + latent.value_dim;
            Some(a.heads.div_ceil(ranks) * columns * (padded - latent.rank) * dtype.size())
        });
        (matrices.sum::<usize>() + vectors + padded_latents.sum::<usize>()) as u64
    }

    /// Bytes on a GPU for the dequantized values of a part of a matrix.
    pub fn device_unpacked_bytes(&self) -> usize {
        if self.quantized.is_empty() { 0 } else { UNPACKED_BYTES }
    }

    /// The most inputs of a matrix on one of `ranks` GPUs whose activations are rounded to FP8; zero if there is none.
    pub fn device_fp8_width(&self, ranks: usize) -> usize {
        let (stored, _) = self.rank_shapes(ranks);
        let (padded, _) = self.with_padded_heads().rank_shapes(ranks);
        let is_rounded =
            |form| matches!(form, MatrixForm::Quantized(packed) if packed.activations.is_some());
        let widths = stored.into_iter().zip(padded);
        let widths =
            widths.map(|(stored, padded)| if is_rounded(stored.form) { padded.columns } else { 0 });
        widths.max().unwrap_or(0)
    }

    /// Bytes of keys and values that one token takes on a GPU that is one of `ranks`.
    pub fn device_kv_bytes_per_token(&self, dtype: impl Into<KvDtype>, ranks: usize) -> u64 {
        let of_kind = |kind: KvKind| {
            let kind = kind.on_device();
            let of_head = if kind.latent.is_some() { kind.head_dim } else { 2 * kind.head_dim };
            kind.kv_heads.div_ceil(ranks) * of_head * kind.layers
        };
        let numbers: usize = self.kv_kinds().into_iter().map(of_kind).sum();
        (numbers * dtype.into().size()) as u64
    }

    /// Values per token in the buffers that layers share, on one of `ranks` ranks.
    pub fn device_widths(&self, ranks: usize) -> DeviceWidths {
        let widest =
            |width: &dyn Fn(&LayerSpec) -> usize| self.layers.iter().map(width).max().unwrap_or(0);
        // The values of wide, inner and attended.
        let mixer = |mixer: &Mixer| match mixer {
            Mixer::Attention(a) => {
                let heads = a.heads.div_ceil(ranks);
                match &a.latent {
                    Some(l) => {
                        let (latent, row) = device_latent_dims(l.rank, a.head_dim - l.rank);
                        let inner = a.head_dim.max(l.q_rank.unwrap_or(0)).max(heads * l.value_dim);
                        (heads * a.q_dim().max(latent), inner, heads * row)
                    }
                    None => {
                        let padded = device_head_dim(a.head_dim);
                        let (q, kv) = (heads * padded, a.kv_heads.div_ceil(ranks) * padded);
                        (q + 2 * kv, q, q)
                    }
                }
            }
            Mixer::LinearAttention(net) => {
                let net = net.shard(ranks);
                (net.width(), net.gates(), net.values())
            }
            Mixer::ShortConv(conv) => {
                let channels = conv.channels.div_ceil(ranks);
                (3 * channels, 0, channels)
            }
        };
        let ffn = |ffn: &FfnSpec| {
            let of = |mlp: &MlpSpec| mlp.inner.div_ceil(ranks);
            let inner = ffn.mlp().map_or(0, of);
            let shared = ffn.shared().map_or(0, of);
            match ffn {
                FfnSpec::Nothing => (0, 0),
                FfnSpec::Dense(_) => (2 * inner, inner),
                FfnSpec::Experts(experts) => (
                    (experts.top_k * self.hidden_size.max(2 * inner)).max(2 * shared),
                    experts.count.max(experts.top_k * inner).max(shared),
                ),
            }
        };
        // Rows of the table of what layers get beside the residual, and a layer's gate of it.
        let per_layer = self.per_layer.map_or(0, |per_layer| per_layer.width);
        // Output of the routed experts, kept apart from that of the shared expert.
        let aside = |l: &LayerSpec| {
            let separate_norms = l.ffn.experts().is_some_and(|experts| experts.separate_norms);
            if separate_norms { self.hidden_size } else { 0 }
        };
        DeviceWidths {
            wide: widest(&|l| mixer(&l.mixer).0.max(ffn(&l.ffn).0))
                .max(per_layer * self.layers.len()),
            inner: widest(&|l| mixer(&l.mixer).1.max(ffn(&l.ffn).1)).max(per_layer),
            attended: widest(&|l| mixer(&l.mixer).2.max(aside(l))),
        }
    }

    /// Bytes that one rank needs on a GPU beside weights and cache. They are the buffers of a step, RoPE tables, and schedules and block
    /// tables of attention. There are also convolved rows and chunks of linear attention, tables for sampling and for experts,
    /// dequantized values, and the memory of CUDA itself.
    pub(super) fn device_activation_bytes(&self, request: &MemoryRequest, tokens: usize) -> u64 {
        let ranks = request.tensor_parallel_size;
        let element = request.weights.size() as u64;
        let DeviceWidths { wide, inner, attended } = self.device_widths(ranks);
        // Slots are u32, and each token of a step and each sequence has one. The products with more would overflow.
        let tokens = (tokens as u64).min(u64::from(u32::MAX));
        let max_num_seqs = request.max_num_seqs.min(u32::MAX as usize);
        let rows = device_logits_rows(max_num_seqs) as u64;
        let vocab = self.vocab_size as u64;
        // Buffer in which ranks gather their logits.
        let gathered = if ranks > 1 { rows * (vocab + vocab.div_ceil(ranks as u64)) } else { 0 };
        // Per-layer embeddings.
        let per_layer = self.per_layer.map_or(0, |of| of.width * self.layers.len());
        let width = 3 * self.hidden_size + wide + inner + attended + per_layer;
        let buffers = sum([
            tokens.saturating_mul(width as u64),
            rows * (self.hidden_size as u64 + vocab),
            gathered,
        ]);
        // Scores and counts of each sample are four bytes, a grammar's mask is a bit.
        let of_parts =
            device_samples_at_once(rows as usize) * device_sampling_bytes(self.vocab_size);
        let sampling = rows * (8 * vocab + vocab.div_ceil(8)) + of_parts as u64;
        // One for each kind of cache and window.
        let mut plans = Vec::new();
        for attention in self.attentions() {
            let plan = (
                attention.kv_heads,
                attention.head_dim,
                attention.latent.is_some(),
                attention.window,
            );
            if !plans.contains(&plan) {
                plans.push(plan);
            }
        }
        let pages = max_num_seqs * request.max_model_len.div_ceil(request.block_size);
        let block_tables = 4 * (3 * (max_num_seqs + SCHEDULES) + pages) as u64;
        // Denominators of each head's softmax.
        let heads = self.attentions().filter(|a| a.sinks);
        let heads = heads.map(|a| a.heads.div_ceil(ranks)).max().unwrap_or(0);
        let lse = 4 * tokens * heads as u64;
        let own = (SCHEDULES * SCHEDULE_BYTES) as u64 + block_tables + lse;
        let of_plans = plans.iter().map(|(kv_heads, head_dim, has_latents, _)| {
            let (kv_heads, head_dim) = (kv_heads.div_ceil(ranks), device_head_dim(*head_dim));
            let partials = match has_latents {
                true => LATENT_PARTIALS_BYTES,
                false => attention_partials_bytes(head_dim, kv_heads, max_num_seqs),
            };
            partials as u64 + own
        });
        let of_plans = sum(of_plans);
        // Which experts the tokens go to, what each counts for, and the order in which they are computed.
        let routing = self.layers.iter().find_map(|layer| layer.ffn.experts());
        let routing = routing.map_or(0, |experts| {
            12 * tokens * experts.top_k as u64 + 8 * (experts.count as u64 + 1)
        });
        // Between the kernels of linear attention.
        let at_once = usize::try_from(tokens).unwrap_or(usize::MAX);
        let convolved = self.linear_attentions().map(|net| {
            let net = net.shard(ranks);
            let of_row = linear_attention_row_values(net.channels(), net.value_heads);
            let keys = net.key_heads * net.key_dim;
            let of_chunk = linear_attention_chunk_values(keys, net.value_heads);
            linear_attention_rows(at_once) * of_row + linear_attention_chunks(at_once) * of_chunk
        });
        let convolved = 4 * convolved.max().unwrap_or(0) as u64;
        let square_sums = if self.norms_all_heads() { 8 * tokens } else { 0 };
        let unpacked = self.device_unpacked_bytes() as u64;
        // Activations of a product in the dtype, in eight bits, and scales for each 128 of them.
        let fp8_width = self.device_fp8_width(ranks) as u64;
        let in_fp8 = tokens * (fp8_width * (element + 1) + 4 * fp8_width.div_ceil(128));
        let ropes = 4 * self.rope_values(request.max_model_len) as u64;
        let tables = sampling + routing + square_sums + ropes + convolved;
        sum([buffers.saturating_mul(element), tables, of_plans, unpacked, in_fp8, FIXED_BYTES])
    }

    /// The model with heads as wide as a GPU keeps them.
    fn with_padded_heads(&self) -> Self {
        let mut padded = self.clone();
        padded.each_attention(|_, a| {
            if a.latent.is_none() {
                a.head_dim = device_head_dim(a.head_dim);
            }
        });
        padded
    }
}
