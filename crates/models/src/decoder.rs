//! The decoder on the CPU: packed weights, f32 activations.

use std::{f32::consts::FRAC_1_SQRT_2, sync::Arc};

use candle_core::{DType, Device, Tensor};
use candlepower_checkpoint::{EmbedSpec, KvKind, LatentSpec, ModelSpec, QkNormSpan};
use candlepower_comm::Comm;
use candlepower_kernels::{
    Activation, AttentionMetadata, FullAttention, KvCache, KvCacheConfig, RecurrentState,
    StateRows, VocabPart, Weight, activation, activation_times, add, add_rms_norm, add_scaled,
    embedding, embedding_part, experts, full_attention, gated_linear, gather_rows, layer_norm,
    linear, linear_attention, linear_heads, paged_attention, reshape_and_cache, rms_norm,
    rms_norm_part, rope, rope_queries, scale_queries, short_conv, sigmoid_gate, square_sums,
};
use half::{bf16, f16};

use crate::{
    attention::Attention,
    cache::{Cache, CacheSize},
    collectives::{all_gather_columns, all_reduce},
    error::Result,
    kv_scales::LayerKvScales,
    latent_attention::LatentAttention,
    layers::{Layers, PerLayer, RoutedExperts},
    linear::Linear,
    linear_attention::LinearAttention,
    norm::{Norm, NormForm},
    ops::{Buffer, Ops, OutputOps, Reduce, Tokens},
    output_tokens::OutputTokens,
    parts::Parts,
    short_conv::ShortConv,
    states::state_config,
};

/// The input of one step: some tokens of some sequences, one sequence after the other.
pub struct ForwardInput {
    /// `[tokens]` u32.
    pub token_ids: Tensor,
    /// `[tokens]` u32: each token's position in its sequence.
    pub positions: Tensor,
    /// `[tokens, 3]` u32: frame, row and column of each token for ropes with sections, where they differ from `positions`.
    pub rope_positions: Option<Tensor>,
    /// `[tokens]` u32: each token's slot in the KV cache, `block * block_size + offset`.
    pub slot_mapping: Tensor,
    /// The tokens and the block table of each sequence.
    pub attention: AttentionMetadata,
    /// The slot of each sequence's recurrent state; not read where layers have none.
    pub state_slots: Vec<u32>,
    /// The output tokens, where not all tokens are.
    pub output: Option<OutputTokens>,
    /// Rows whose embeddings do not come from the table. Their token ids do not matter.
    pub given: Vec<GivenRows>,
}

/// Embeddings of neighbouring tokens that an encoder has computed.
#[derive(Clone, Debug)]
pub struct GivenRows {
    /// Index of the first token among the tokens of the step.
    pub first_row: usize,
    /// `[rows, hidden]` f32, contiguous. The factor on embeddings of tokens is not applied to them.
    pub rows: Tensor,
    /// `[rows, hidden]` f32 each: added behind the first layer, the second one, and so on.
    pub deepstack: Vec<Tensor>,
}

/// Tokens of a block for texts whose keys and values are not kept.
const TEXT_BLOCK: usize = 16;

impl ForwardInput {
    /// Makes the last `counts` tokens of each sequence the output tokens. Layers that only these need leave the others out, and the
    /// hidden states of the others may be zeros.
    ///
    /// # Errors
    /// There is not a count for each sequence, or one is beyond its tokens.
    pub fn with_output_tokens(mut self, counts: &[usize]) -> Result<Self> {
        let positions = self.positions.to_vec1::<u32>()?;
        self.output = OutputTokens::of(&self.attention, &positions, counts)?;
        Ok(self)
    }

    /// All tokens of some texts, and the number of blocks of [`TEXT_BLOCK`] tokens that their keys and values take.
    fn of_texts(texts: &[&[u32]]) -> Result<(Self, usize)> {
        let blocks = |text: &&[u32]| text.len().div_ceil(TEXT_BLOCK);
        let max_blocks = texts.iter().map(blocks).max().unwrap_or(0);
        let mut positions: Vec<u32> = Vec::new();
        let mut slots: Vec<u32> = Vec::new();
        let mut attention = AttentionMetadata {
            query_start: vec![0],
            context_len: Vec::new(),
            block_tables: Vec::new(),
            max_blocks,
            mutual: Vec::new(),
        };
        let mut first_block = 0;
        for text in texts {
            let (len, end) = (text.len() as u32, first_block + blocks(text) as u32);
            let first_slot = first_block * TEXT_BLOCK as u32;
            positions.extend(0..len);
            slots.extend(first_slot..first_slot + len);
            attention.query_start.push(positions.len() as u32);
            attention.context_len.push(len);
            attention.block_tables.extend(first_block..end);
            attention.block_tables.resize(attention.context_len.len() * max_blocks, 0);
            first_block = end;
        }
        let tensor = |values: Vec<u32>| {
            let len = values.len();
            Tensor::from_vec(values, len, &Device::Cpu)
        };
        let input = Self {
            token_ids: tensor(texts.concat())?,
            positions: tensor(positions)?,
            rope_positions: None,
            slot_mapping: tensor(slots)?,
            attention,
            state_slots: (0..texts.len() as u32).collect(),
            output: None,
            given: Vec::new(),
        };
        Ok((input, first_block as usize))
    }
}

/// A decoder-only language model with its weights.
pub struct Decoder {
    /// The description of this rank's shard.
    spec: ModelSpec,
    comm: Arc<Comm>,
    max_model_len: usize,
    device: Device,
    embed_scale: f32,
    kv_scales: LayerKvScales,
    layers: Layers<Weight>,
}

impl Decoder {
    /// Builds the model from its parts, with rope tables for `max_model_len` positions.
    pub(crate) fn new(
        spec: ModelSpec,
        parts: Parts<Weight>,
        kv_scales: LayerKvScales,
        max_model_len: usize,
        comm: Arc<Comm>,
    ) -> Result<Self> {
        let device = parts.layout().device.clone();
        let layers = Layers::take(&spec, parts, max_model_len)?;
        let embed_scale = embed_scale(&spec.embed, layers.embed.dtype());
        Ok(Self { spec, comm, max_model_len, device, embed_scale, kv_scales, layers })
    }

    /// Runs the layers on a step's tokens, writes their keys and values to the cache, and updates the states there. Returns
    /// the hidden states `[tokens, hidden]` f32 after the final norm.
    ///
    /// # Errors
    /// The input's tensors do not fit together or to the cache, or a token id or position is beyond
    /// the model's.
    pub fn forward(&self, input: &ForwardInput, cache: &Cache) -> Result<Tensor> {
        self.run(input, cache, true)
    }

    /// The hidden states `[tokens, hidden]` f32 after the final norm of whole texts, one after the other. No cache is kept: memory
    /// holds the keys and values, or the states, of one layer at a time, unless later layers read them.
    ///
    /// # Errors
    /// There is no text or an empty one, one is longer than [`Self::max_model_len`], or a token id is beyond the model's.
    pub fn encode(&self, texts: &[&[u32]]) -> Result<Tensor> {
        let (input, num_blocks) = ForwardInput::of_texts(texts)?;
        let dtype = match self.weight_dtype() {
            DType::BF16 => DType::BF16,
            _ => DType::F32,
        };
        let size = CacheSize { num_blocks, block_size: TEXT_BLOCK, num_states: texts.len() };
        let keeps_layers = self.spec.attentions().any(|attention| attention.keys_of.is_some());
        let cache = self.cache_of((!keeps_layers).then_some(1), size, dtype)?;
        self.run(&input, &cache, keeps_layers)
    }

    fn run(&self, input: &ForwardInput, cache: &Cache, keeps_layers: bool) -> Result<Tensor> {
        let ForwardInput { positions, rope_positions, attention, .. } = input;
        self.layers.forward(&CpuOps {
            input,
            rope_positions: rope_positions.as_ref().unwrap_or(positions).clone(),
            attention,
            cache,
            keeps_layers,
            embed_scale: self.embed_scale,
            hidden: self.spec.hidden_size,
            comm: &self.comm,
        })
    }

    /// The logits `[rows, vocab]` f32 of some hidden states `[rows, hidden]`.
    ///
    /// # Errors
    /// `hidden` has another width.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let Linear { weight, bias } = &self.layers.head;
        let mut logits = linear(hidden, weight, bias.as_ref())?;
        let head = &self.spec.head;
        if head.scale != 1.0 {
            logits = (logits * head.scale)?;
        }
        if let Some(cap) = head.softcap {
            logits = ((logits / cap)?.tanh()? * cap)?;
        }
        all_gather_columns(&self.comm, logits)
    }

    /// The description of this rank's shard: the whole model, where there is one rank.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The ranks of the model.
    pub fn comm(&self) -> &Arc<Comm> {
        &self.comm
    }

    /// The number of positions that the model was loaded for.
    pub fn max_model_len(&self) -> usize {
        self.max_model_len
    }

    /// The device of the model.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes of the weights as loaded: matrices packed, in their dtype; norms and biases in f32. `ModelSpec::rank_weight_bytes`
    /// predicts them, except the few biases that only rank 0 has.
    pub fn weight_bytes(&self) -> usize {
        self.layers.num_bytes()
    }

    /// The dtype of the embedding, which most matrices share.
    pub fn weight_dtype(&self) -> DType {
        self.layers.embed.dtype()
    }

    /// An empty cache for this model, with keys and values in f32, bf16 or f8e4m3. In f8e4m3 it has the checkpoint's scales of keys
    /// and values, if there are any.
    ///
    /// # Errors
    /// The memory cannot be had, the sizes are not what the kernels take, or the scales cannot be used.
    pub fn new_cache(&self, size: CacheSize, dtype: DType) -> Result<Cache> {
        let mut cache = self.cache_of(None, size, dtype)?;
        if dtype == DType::F8E4M3 {
            let kinds = cache.kv.into_iter().enumerate();
            let scaled = kinds
                .map(|(kind, kv)| Ok(kv.with_scales(&self.kv_scales.of_kind(&self.spec, kind)?)?));
            cache.kv = scaled.collect::<Result<_>>()?;
        }
        Ok(cache)
    }

    /// A cache for all layers, or for `num_layers` of each kind.
    fn cache_of(&self, num_layers: Option<usize>, size: CacheSize, dtype: DType) -> Result<Cache> {
        let of_kind = |kind: KvKind| {
            let config = KvCacheConfig {
                num_layers: num_layers.unwrap_or(kind.layers),
                num_blocks: size.num_blocks,
                block_size: size.block_size,
                num_kv_heads: kind.kv_heads,
                head_dim: kind.head_dim,
                latent: kind.latent,
            };
            Ok(KvCache::new(config, dtype, &self.device)?)
        };
        let kv = self.spec.kv_kinds().into_iter().map(of_kind).collect::<Result<_>>()?;
        let states = state_config(&self.spec, num_layers, size.num_states);
        let states = states.map(|config| RecurrentState::new(config, &self.device)).transpose()?;
        Ok(Cache { kv, states })
    }
}

/// The embedding's factor. Gemma's is rounded to the embedding's dtype: transformers casts it, and models trained in bfloat16
/// expect the rounded factor. Source: transformers `Gemma2TextScaledWordEmbedding`.
pub(crate) fn embed_scale(spec: &EmbedSpec, dtype: DType) -> f32 {
    match dtype {
        DType::BF16 if spec.rounded => bf16::from_f64(spec.scale).to_f32(),
        DType::F16 if spec.rounded => f16::from_f64(spec.scale).to_f32(),
        _ => spec.scale as f32,
    }
}

/// The operations on the CPU, over one step. Each returns a new tensor.
struct CpuOps<'a> {
    input: &'a ForwardInput,
    /// Rope positions of the tokens that are computed: all of the input, or the output tokens.
    rope_positions: Tensor,
    attention: &'a AttentionMetadata,
    cache: &'a Cache,
    /// Whether the cache has memory for each layer, instead of memory that all layers share.
    keeps_layers: bool,
    embed_scale: f32,
    hidden: usize,
    comm: &'a Comm,
}

impl Ops for CpuOps<'_> {
    type Matrix = Weight;

    fn embed(&self, table: &Weight, positions: Option<&Weight>) -> Result<Tensor> {
        let part = VocabPart {
            first: self.comm.rank() * table.n(),
            vocab_size: self.comm.size() * table.n(),
        };
        let found = embedding_part(&self.input.token_ids, table, self.embed_scale, part)?;
        let words = all_reduce(self.comm, found)?;
        for GivenRows { first_row, rows, .. } in &self.input.given {
            // Nobody else has this tensor yet, so that it may be changed in place.
            words.slice_set(rows, 0, *first_row)?;
        }
        match positions {
            None => Ok(words),
            Some(table) => Ok(add(&words, &embedding(&self.input.positions, table, 1.0)?)?),
        }
    }

    fn per_layer(&self, x: &Tensor, of: &PerLayer<Weight>) -> Result<Tensor> {
        let projected = linear(x, &of.projection, None)?;
        let width = of.norm.weight.elem_count();
        let normed = normed(&projected.reshape(((), width))?, &of.norm)?;
        let scale = embed_scale(&of.embed, of.table.dtype());
        let rows = embedding(&self.input.token_ids, &of.table, scale)?;
        Ok(add_scaled(&normed.reshape(rows.shape())?, &rows, FRAC_1_SQRT_2)?)
    }

    fn act_times(
        &self,
        x: Tensor,
        act: Activation,
        per_layer: &Tensor,
        first: usize,
    ) -> Result<Tensor> {
        Ok(activation_times(&x, act, per_layer, first)?)
    }

    fn for_output_tokens(&self, tokens: &Tokens) -> Result<OutputOps<Self>> {
        let Some(OutputTokens { rows, positions, attention }) = &self.input.output else {
            return Ok(OutputOps::All);
        };
        if rows.is_empty() {
            return Ok(OutputOps::None);
        }
        let of = |tensor: &Tensor| gather_rows(tensor, rows);
        let tokens = Tokens {
            x: of(&tokens.x)?,
            input: of(&tokens.input)?,
            per_layer: tokens.per_layer.as_ref().map(of).transpose()?,
        };
        let rope_positions = match &self.input.rope_positions {
            Some(all) => all.index_select(&Tensor::new(rows.as_slice(), &Device::Cpu)?, 0)?,
            None => Tensor::from_slice(positions, rows.len(), &Device::Cpu)?,
        };
        Ok(OutputOps::Some(Self { rope_positions, attention, ..*self }, tokens))
    }

    fn output_rows(&self, hidden: Option<&Tensor>) -> Result<Tensor> {
        let tokens = self.input.token_ids.elem_count();
        let Some(hidden) = hidden else {
            return Ok(Tensor::zeros((tokens, self.hidden), DType::F32, &Device::Cpu)?);
        };
        let rows = self.input.output.iter().flat_map(|output| &output.rows);
        let mut all = vec![0f32; tokens * self.hidden];
        let values = hidden.flatten_all()?.to_vec1::<f32>()?;
        for (row, values) in rows.zip(values.chunks_exact(self.hidden)) {
            all[*row as usize * self.hidden..][..self.hidden].copy_from_slice(values);
        }
        Ok(Tensor::from_vec(all, (tokens, self.hidden), &Device::Cpu)?)
    }

    fn norm(&self, residual: &Tensor, norm: &Norm, _: Option<&Weight>) -> Result<Tensor> {
        normed(residual, norm)
    }

    fn post_norm(&self, x: Tensor, norm: &Norm) -> Result<Tensor> {
        normed(&x, norm)
    }

    fn add(&self, residual: Tensor, x: &Tensor, scale: f32) -> Result<Tensor> {
        Ok(add_scaled(&residual, x, scale)?)
    }

    fn add_norm(
        &self,
        residual: Tensor,
        x: &Tensor,
        scale: f32,
        norm: &Norm,
        _: Option<&Weight>,
    ) -> Result<(Tensor, Tensor)> {
        match norm.form {
            NormForm::Rms(_) => Ok(add_rms_norm(&residual, x, scale, &norm.weight, norm.eps)?),
            NormForm::Layer(_) => {
                let sum = add_scaled(&residual, x, scale)?;
                let normed = normed(&sum, norm)?;
                Ok((sum, normed))
            }
        }
    }

    fn add_image_features(
        &self,
        layer: usize,
        (x, input): (Tensor, Tensor),
        norm: Option<&Norm>,
    ) -> Result<(Tensor, Tensor)> {
        for given in &self.input.given {
            let Some(features) = given.deepstack.get(layer) else { continue };
            let rows = x.narrow(0, given.first_row, features.dim(0)?)?.contiguous()?;
            let rows = add(&rows, features)?;
            x.slice_set(&rows, 0, given.first_row)?;
            // Without a norm, the input is the residual itself.
            if let Some(norm) = norm {
                input.slice_set(&normed(&rows, norm)?, 0, given.first_row)?;
            }
        }
        Ok((x, input))
    }

    fn linear(
        &self,
        x: &Tensor,
        layer: &Linear<Weight>,
        _: Buffer,
        reduce: Reduce,
    ) -> Result<Tensor> {
        let product = linear(x, &layer.weight, layer.bias.as_ref())?;
        match reduce {
            Reduce::Keep => Ok(product),
            Reduce::Sum => all_reduce(self.comm, product),
        }
    }

    fn attend(&self, qkv: &Tensor, a: &Attention<Weight>) -> Result<Tensor> {
        let tokens = qkv.dim(0)?;
        let heads_of = |first: usize, heads: usize| {
            let part = qkv.narrow(1, first * a.head_dim, heads * a.head_dim)?;
            part.contiguous()?.reshape((tokens, heads, a.head_dim))
        };
        let kv = &self.cache.kv[a.kv_layer.kind];
        let layer = if self.keeps_layers { a.kv_layer.layer } else { 0 };
        let mut q = heads_of(0, a.heads)?;
        if a.has_keys {
            let mut v = heads_of(a.heads + a.kv_heads, a.kv_heads)?;
            if let Some(eps) = a.v_norm {
                v = rms_norm(&v, &Tensor::ones(a.head_dim, DType::F32, &Device::Cpu)?, eps)?;
            }
            let (normed, k) = self.norm_heads(q, heads_of(a.heads, a.kv_heads)?, a)?;
            let k = rope(&k, &a.rope, &self.rope_positions)?;
            if a.both_ways {
                let q = rope_queries(&normed, &a.rope, &self.rope_positions)?;
                return self.attend_both_ways(a, [q, k, v]);
            }
            reshape_and_cache(&k, &v, kv, layer, &self.input.slot_mapping)?;
            q = normed;
        } else if let Some(norm) = &a.q_norm {
            q = normed(&q, norm)?;
        }
        let q = rope_queries(&q, &a.rope, &self.rope_positions)?;
        let sinks = a.sinks.as_ref();
        let out = paged_attention(&q, kv, layer, self.attention, &a.params, sinks)?;
        Ok(out.reshape((tokens, a.heads * a.head_dim))?)
    }

    fn attend_latents(
        &self,
        q: &Tensor,
        latents: &Tensor,
        a: &LatentAttention<Weight>,
    ) -> Result<Tensor> {
        let (tokens, LatentSpec { rank, key_dim, value_dim, .. }) = (q.dim(0)?, a.spec);
        let rotated = a.q_dim - key_dim;
        let q = q.reshape((tokens, a.heads, a.q_dim))?;
        let of_keys = q.narrow(2, key_dim, rotated)?.contiguous()?;
        let of_keys = rope(&of_keys, &a.rope, &self.rope_positions)?;
        let q = Tensor::cat(&[linear_heads(&q, &a.key_up)?, of_keys], 2)?;
        let q = scale_queries(q, &a.rope, &self.rope_positions)?;
        let values = normed(&latents.narrow(1, 0, rank)?.contiguous()?, &a.kv_norm)?;
        let values = values.reshape((tokens, 1, rank))?;
        let keys = latents.narrow(1, rank, rotated)?.contiguous()?.reshape((tokens, 1, rotated))?;
        let keys = Tensor::cat(&[&values, &rope(&keys, &a.rope, &self.rope_positions)?], 2)?;
        let kv = &self.cache.kv[a.kv_layer.kind];
        let layer = if self.keeps_layers { a.kv_layer.layer } else { 0 };
        reshape_and_cache(&keys, &values, kv, layer, &self.input.slot_mapping)?;
        let attended = paged_attention(&q, kv, layer, self.attention, &a.params, None)?;
        let values = linear_heads(&attended, &a.value_up)?;
        Ok(values.reshape((tokens, a.heads * value_dim))?)
    }

    fn linear_attention(
        &self,
        rows: &Tensor,
        gates: &Tensor,
        net: &LinearAttention<Weight>,
    ) -> Result<Tensor> {
        let layer = if self.keeps_layers { net.layer } else { 0 };
        let (states, of_rows) = self.states();
        Ok(linear_attention(rows, gates, &net.net, states, layer, &of_rows)?)
    }

    fn short_conv(&self, rows: &Tensor, conv: &ShortConv<Weight>) -> Result<Tensor> {
        let layer = if self.keeps_layers { conv.layer } else { 0 };
        let (states, of_rows) = self.states();
        Ok(short_conv(rows, &conv.conv, states, layer, &of_rows)?)
    }

    fn norm_groups(&self, x: Tensor, norm: &Norm) -> Result<Tensor> {
        let groups = x.reshape((x.dim(0)?, norm.weight.dim(0)?, norm.weight.dim(1)?))?;
        Ok(normed(&groups, norm)?.reshape(x.shape())?)
    }

    fn gate(&self, x: Tensor, gate: &Tensor) -> Result<Tensor> {
        Ok(sigmoid_gate(&x, gate)?)
    }

    fn gated(
        &self,
        x: &Tensor,
        layer: &Linear<Weight>,
        act: Activation,
        _: &Weight,
    ) -> Result<Tensor> {
        Ok(gated_linear(x, &layer.weight, layer.bias.as_ref(), act)?)
    }

    fn activate(&self, x: &Tensor, act: Activation) -> Result<Tensor> {
        Ok(activation(x, act)?)
    }

    /// Returns the input of the router, because `experts` routes.
    fn route(&self, scored: &Tensor, _: &RoutedExperts<Weight>) -> Result<Tensor> {
        Ok(scored.clone())
    }

    fn experts(
        &self,
        x: &Tensor,
        routes: &Tensor,
        layer: &RoutedExperts<Weight>,
        shared: Option<Tensor>,
        _: Buffer,
    ) -> Result<Tensor> {
        let mut sum = experts(x, routes, layer)?;
        if let Some(shared) = shared {
            sum = add(&shared, &sum)?;
        }
        // Each rank has some of the columns of every expert.
        all_reduce(self.comm, sum)
    }
}

impl CpuOps<'_> {
    /// Attention of whole texts, without a cache.
    fn attend_both_ways(&self, a: &Attention<Weight>, qkv: [Tensor; 3]) -> Result<Tensor> {
        let [q, k, v] = qkv.map(|part| part.flatten_from(1));
        let attention = FullAttention {
            heads: a.heads,
            kv_heads: a.kv_heads,
            scale: a.params.scale,
            window: a.params.window,
            bias: None,
        };
        let qkv = Tensor::cat(&[q?, k?, v?], 1)?;
        Ok(full_attention(&qkv, &attention, &self.attention.query_start)?)
    }

    /// The recurrent states of all layers, and their sequences in this step.
    fn states(&self) -> (&RecurrentState, StateRows<'_>) {
        let states = self.cache.states.as_ref().expect("the cache has the states of the model");
        let AttentionMetadata { query_start, context_len, .. } = &self.input.attention;
        (states, StateRows { query_start, context_len, slots: &self.input.state_slots })
    }

    /// Norms q and k, `[tokens, heads, head_dim]`, where the model does.
    fn norm_heads(&self, q: Tensor, k: Tensor, a: &Attention<Weight>) -> Result<(Tensor, Tensor)> {
        let (Some(q_norm), Some(k_norm)) = (&a.q_norm, &a.k_norm) else { return Ok((q, k)) };
        if a.norm_span != QkNormSpan::AllHeads {
            return Ok((normed(&q, q_norm)?, normed(&k, k_norm)?));
        }
        let (q_rows, k_rows) = (q.flatten_from(1)?, k.flatten_from(1)?);
        let (q_rows, k_rows) = match self.comm.size() {
            1 => (normed(&q_rows, q_norm)?, normed(&k_rows, k_norm)?),
            ranks => {
                let tokens = q.dim(0)?;
                let sums = Tensor::cat(&[square_sums(&q_rows)?, square_sums(&k_rows)?], 0)?;
                let sums = all_reduce(self.comm, sums)?;
                // Keys that several ranks have count as often in the sum as in the width.
                let normed = |x: &Tensor, norm: &Norm, first| -> Result<Tensor> {
                    let whole = (&sums.narrow(0, first, tokens)?, ranks * x.dim(1)?);
                    Ok(rms_norm_part(x, &norm.weight, norm.eps, whole)?)
                };
                (normed(&q_rows, q_norm, 0)?, normed(&k_rows, k_norm, tokens)?)
            }
        };
        Ok((q_rows.reshape(q.shape())?, k_rows.reshape(k.shape())?))
    }
}

/// The norm of rows.
fn normed(x: &Tensor, norm: &Norm) -> Result<Tensor> {
    Ok(match &norm.form {
        NormForm::Rms(_) => rms_norm(x, &norm.weight, norm.eps)?,
        NormForm::Layer(bias) => layer_norm(x, &norm.weight, bias.as_ref(), norm.eps)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gemma 2 9B's factor, sqrt(3584).
    #[test]
    fn the_embedding_factor_is_rounded_as_the_weights_are() {
        let scale = 3584f64.sqrt();
        let of =
            |rounded, dtype| embed_scale(&EmbedSpec { scale, rounded, positions: None }, dtype);
        assert_eq!(of(true, DType::BF16), 59.75);
        assert_eq!(of(true, DType::F16), 59.875);
        assert_eq!(of(true, DType::F32), scale as f32);
        assert_eq!(of(false, DType::BF16), scale as f32);
    }
}
