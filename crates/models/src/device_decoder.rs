//! The decoder on a device: row-major or quantized weights, and buffers that are reserved once.

use std::{f32::consts::FRAC_1_SQRT_2, sync::Arc};

use candle_core::{DType, Device, Tensor};
use candlepower_checkpoint::{ModelSpec, QkNormSpan};
use candlepower_comm::Comm;
use candlepower_gpu::{
    self as gpu, AttentionStep, Factor, GatedProduct, LatentsToCache, LaunchShape, LayerNorm,
    Matrix, NormWeight, QkNorm, QkvToCache, RmsNorm, Routing, RowsOut, StatePool, StateTables,
    ValueNorm,
};
use candlepower_kernels::{Activation, AttentionMetadata, KvCacheConfig, VocabPart};

use crate::{
    attention::Attention,
    collectives::DeviceRanks,
    decoder::embed_scale,
    error::Result,
    kv_scales::LayerKvScales,
    latent_attention::LatentAttention,
    layers::{Layers, PerLayer, RoutedExperts},
    linear::Linear,
    linear_attention::LinearAttention,
    norm::{Norm, NormForm},
    ops::{Buffer, Ops, OutputOps, Reduce, Tokens},
    parts::Parts,
    short_conv::ShortConv,
};

mod deferred;
mod fp8;
mod fp8_decode;
mod generations;
mod prefill;
mod workspace;

use deferred::DeferredNorm;
use generations::Region;
pub use prefill::AttentionLine;
pub use workspace::{Workspace, WorkspaceSize};
use workspace::{plan_all, plan_of};

/// A decoder-only language model whose weights are on a device.
pub struct DeviceDecoder {
    /// The description of this rank's shard.
    spec: ModelSpec,
    /// The ranks, where the model is split.
    ranks: Option<DeviceRanks>,
    max_model_len: usize,
    device: Device,
    dtype: DType,
    embed_scale: f32,
    kv_scales: LayerKvScales,
    layers: Layers<Matrix>,
}

/// The input of one step, in tensors on the device. [`Workspace::prepare`] has to have planned its attention.
#[derive(Clone, Copy)]
pub struct DeviceInput<'a> {
    /// `[tokens]` u32.
    pub token_ids: &'a Tensor,
    /// `[tokens]` u32: each token's position in its sequence.
    pub positions: &'a Tensor,
    /// `[tokens]` u32: each token's slot in the KV cache, or [`gpu::NO_SLOT`].
    pub slot_mapping: &'a Tensor,
    /// The tokens and the state's slot of each sequence, where layers have recurrent states.
    pub states: Option<StateTables<'a>>,
    /// The output tokens, where not all tokens are: only for models that have a [`ModelSpec::first_reader`].
    pub output: Option<DeviceOutputTokens<'a>>,
}

/// The output tokens of a step: see [`crate::OutputTokens`].
#[derive(Clone, Copy)]
pub struct DeviceOutputTokens<'a> {
    /// u32 `[output tokens]` each: their indices among the step's tokens, and their positions; `None` where there is no output token.
    pub tables: Option<(&'a Tensor, &'a Tensor)>,
    /// The metadata of the sequences that have output tokens.
    pub attention: &'a AttentionMetadata,
}

impl DeviceDecoder {
    /// Builds the model from its parts, with rope tables for `max_model_len` positions.
    pub(crate) fn new(
        spec: ModelSpec,
        parts: Parts<Matrix>,
        kv_scales: LayerKvScales,
        max_model_len: usize,
        ranks: Option<DeviceRanks>,
    ) -> Result<Self> {
        let device = parts.layout().device.clone();
        let dtype = parts.layout().vectors;
        let layers = Layers::take(&spec, parts, max_model_len)?;
        let embed_scale = embed_scale(&spec.embed, dtype);
        Ok(Self { spec, ranks, max_model_len, device, dtype, embed_scale, kv_scales, layers })
    }

    /// Runs the layers on a step's tokens, writes their keys and values to the cache, and updates the states. Returns the hidden states
    /// `[tokens, hidden]` of the output tokens after the final norm, which the next step overwrites.
    ///
    /// # Errors
    /// The input's tensors do not fit together, to the plan or to the workspace; or CUDA refused.
    pub fn forward(&self, input: &DeviceInput<'_>, workspace: &Workspace) -> Result<Tensor> {
        self.layers.forward(&self.ops(input, workspace))
    }

    /// The operations over one step.
    fn ops<'a>(&'a self, input: &'a DeviceInput<'a>, workspace: &'a Workspace) -> DeviceOps<'a> {
        workspace.generations.begin_step();
        DeviceOps {
            input,
            workspace,
            tokens: input.token_ids.elem_count(),
            positions: input.positions,
            hidden: self.spec.hidden_size,
            embed_scale: self.embed_scale,
            ranks: self.ranks.as_ref(),
            deferred: DeferredNorm::default(),
        }
    }

    /// The logits `[rows, vocab]` of the hidden states at `rows`, u32 `[rows]`, which the next call overwrites.
    ///
    /// # Errors
    /// There are more rows than the workspace holds, or CUDA refused.
    pub fn logits(&self, hidden: &Tensor, rows: &Tensor, workspace: &Workspace) -> Result<Tensor> {
        let count = rows.elem_count();
        let last = view(&workspace.last, &[count, self.spec.hidden_size])?;
        let logits = view(&workspace.logits, &[count, self.vocab_size()])?;
        workspace.generations.read(&[hidden]);
        gpu::gather_rows(hidden, rows, &last)?;
        let Some((ranks, gathered)) = self.ranks.as_ref().zip(workspace.gathered.as_ref()) else {
            self.shard_of_logits(&last, &logits, workspace)?;
            return Ok(logits);
        };
        let width = self.spec.vocab_size;
        let own = view(&gathered.own, &[count, width])?;
        let all = view(&gathered.all, &[ranks.size(), count, width])?;
        self.shard_of_logits(&last, &own, workspace)?;
        ranks.all_gather(&own, &all)?;
        // The ranks' shards lie one behind the other, and a row of logits has the whole vocabulary.
        for rank in 0..ranks.size() {
            logits.slice_set(&all.narrow(0, rank, 1)?.squeeze(0)?, 1, rank * width)?;
        }
        Ok(logits)
    }

    /// The logits of this rank's shard of the vocabulary, `[rows, tokens]`.
    fn shard_of_logits(&self, last: &Tensor, out: &Tensor, workspace: &Workspace) -> Result<()> {
        let Linear { weight, bias } = &self.layers.head;
        workspace.matmul.run(last, weight, bias.as_ref(), out)?;
        let head = &self.spec.head;
        if head.scale != 1.0 || head.softcap.is_some() {
            gpu::scale_and_cap(out, head.scale as f32, head.softcap.map(|cap| cap as f32))?;
        }
        Ok(())
    }

    /// The ranks of the model, where it is split.
    pub fn comm(&self) -> Option<&Arc<Comm>> {
        self.ranks.as_ref().map(DeviceRanks::comm)
    }

    /// Size of the whole vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.ranks.as_ref().map_or(1, DeviceRanks::size) * self.spec.vocab_size
    }

    /// The description of this rank's shard: the whole model, where there is one rank.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The number of positions that the model was loaded for.
    pub fn max_model_len(&self) -> usize {
        self.max_model_len
    }

    /// The device of the model.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The dtype of weights and activations.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes of the weights as loaded. `ModelSpec::device_weight_bytes` predicts them.
    pub fn weight_bytes(&self) -> usize {
        self.layers.num_bytes()
    }
}

/// The buffers that the walk chooses, by shorter names.
const WIDE: Region = Region::Of(Buffer::Wide);
const INNER: Region = Region::Of(Buffer::Inner);
const BRANCH: Region = Region::Of(Buffer::Branch);
const ATTENDED: Region = Region::Of(Buffer::Attended);

/// The first elements of a buffer in some shape: the same memory each time.
fn view(buffer: &Tensor, dims: &[usize]) -> Result<Tensor> {
    Ok(buffer.narrow(0, 0, dims.iter().product())?.reshape(dims)?)
}

/// The operations on a device, over one step. Each writes to its buffer.
struct DeviceOps<'a> {
    input: &'a DeviceInput<'a>,
    workspace: &'a Workspace,
    /// Number of tokens that are computed: all of the input, or the output tokens.
    tokens: usize,
    /// Positions of these tokens.
    positions: &'a Tensor,
    hidden: usize,
    embed_scale: f32,
    ranks: Option<&'a DeviceRanks>,
    deferred: DeferredNorm,
}

impl DeviceOps<'_> {
    /// The recurrent states of all layers, and their sequences in this step.
    fn states(&self) -> (&StatePool, StateTables<'_>) {
        let states = self.workspace.states.as_ref().zip(self.input.states);
        states.expect("the workspace and the step have the model's states")
    }

    /// Replaces `x` by its sum over all ranks.
    fn sum(&self, x: &Tensor) -> Result<()> {
        self.ranks.map_or(Ok(()), |ranks| ranks.all_reduce(x))
    }

    /// The sums of squares of all heads of q and of k, over all ranks.
    fn square_sums(&self, qkv: &Tensor, a: &Attention<Matrix>) -> Result<Tensor> {
        let sums = self.workspace.square_sums.as_ref();
        let sums = view(sums.expect("the workspace has room for sums"), &[self.tokens, 2])?;
        gpu::square_sums(qkv, [a.heads, a.kv_heads], &sums)?;
        self.sum(&sums)?;
        Ok(sums)
    }

    /// The tables of this step's experts.
    fn routing(&self) -> Result<Routing> {
        let routing = self.workspace.routing.as_ref();
        Ok(routing.expect("the workspace has tables for experts").of(self.tokens)?)
    }

    /// A buffer for a result of these dimensions. Earlier results in the buffer are stale after that.
    fn result(&self, region: Region, dims: &[usize]) -> Result<Tensor> {
        let result = view(self.workspace.buffer(region), dims)?;
        self.workspace.generations.write(region, &result);
        Ok(result)
    }

    /// A buffer for a row of `width` elements a token.
    fn rows(&self, region: Region, width: usize) -> Result<Tensor> {
        self.result(region, &[self.tokens, width])
    }

    /// Rows of `width` elements for `reader`, if it alone multiplies them: in FP8 if it does so in FP8, otherwise in the buffer of
    /// `region`.
    fn rows_for(&self, reader: Option<&Matrix>, region: Region, width: usize) -> Result<RowsOut> {
        let fp8_rows = |reader| self.workspace.matmul.fp8_rows(reader, self.tokens);
        if let Some(rows) = reader.map(fp8_rows).transpose()?.flatten() {
            self.workspace.generations.write(Region::Fp8, &rows.codes);
            return Ok(RowsOut::Fp8(rows));
        }
        Ok(RowsOut::Plain(self.rows(region, width)?))
    }

    /// Weights that a kernel requests ahead for the product with `reader`, if it does so.
    fn next<'a>(&self, reader: Option<&'a Matrix>) -> Option<&'a Tensor> {
        reader.and_then(|reader| self.workspace.matmul.prefetched(reader, self.tokens))
    }

    /// Checks the operand of a product, after the buffer of the result was taken.
    fn read_factor(&self, x: &Tensor, weight: &Matrix) {
        self.read(&[x]);
        // Rows in the element type are rounded into the buffer of rows in FP8.
        if matches!(weight, Matrix::Fp8(_)) && x.dtype() != DType::F8E4M3 {
            self.workspace.generations.overwrite(Region::Fp8);
        }
    }

    /// `out = x W^T + b`.
    fn product(
        &self,
        x: &Tensor,
        weight: &Matrix,
        bias: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        if let Some(normed) = self.take_deferred(x) {
            return Ok(self.workspace.matmul.run_normed(&normed.rows(), weight, bias, out)?);
        }
        self.read_factor(x, weight);
        Ok(self.workspace.matmul.run(x, weight, bias, out)?)
    }

    /// Checks operands, in debug builds, after the buffers of the results were taken.
    fn read(&self, operands: &[&Tensor]) {
        self.expect_computed(operands);
        self.workspace.generations.read(operands);
    }

    /// The result of an operation that has changed `x` in place.
    fn rewritten(&self, x: Tensor) -> Result<Tensor> {
        self.workspace.generations.rewrite(x)
    }
}

impl Norm {
    /// Whether the norm has a kernel that adds to the residual, and writes rows in FP8.
    fn is_rms(&self) -> bool {
        matches!(self.form, NormForm::Rms(_))
    }

    /// `out = norm(x)`. Only RMSNorm writes rows in FP8, and requests the weights `next` ahead.
    fn run(&self, x: &Tensor, next: Option<&Tensor>, out: &RowsOut) -> Result<()> {
        let Norm { weight, eps, .. } = self;
        match &self.form {
            NormForm::Rms(form) => {
                gpu::rms_norm(x, &RmsNorm { weight, form: *form, eps: *eps, next }, out)?;
            }
            NormForm::Layer(bias) => {
                let norm = LayerNorm { weight, bias: bias.as_ref(), eps: *eps };
                gpu::layer_norm(x, &norm, out.tensor())?;
            }
        }
        Ok(())
    }
}

impl Ops for DeviceOps<'_> {
    type Matrix = Matrix;

    fn embed(&self, table: &Matrix, positions: Option<&Matrix>) -> Result<Tensor> {
        let out = self.rows(Region::Residual, self.hidden)?;
        let (rank, ranks) = self.ranks.map_or((0, 1), |ranks| (ranks.rank(), ranks.size()));
        let rows = table.n();
        // A rank has some rows of the table and makes zeros of the other tokens, so the sum over ranks is the row.
        let part = VocabPart { first: rank * rows, vocab_size: ranks * rows };
        gpu::embedding(self.input.token_ids, table, self.embed_scale, part, &out)?;
        self.sum(&out)?;
        // Every rank has the whole table of positions, so it is added once, after the sum.
        if let Some(table) = positions {
            let rows = self.rows(BRANCH, self.hidden)?;
            let whole = VocabPart { first: 0, vocab_size: table.n() };
            gpu::embedding(self.input.positions, table, 1.0, whole, &rows)?;
            gpu::add(&out, &rows, 1.0)?;
        }
        Ok(out)
    }

    fn per_layer(&self, x: &Tensor, of: &PerLayer<Matrix>) -> Result<Tensor> {
        let (all, width) = (of.projection.n(), of.norm.weight.elem_count());
        let out = self.rows(Region::PerLayer, all)?;
        self.product(x, &of.projection, None, &out)?;
        // The norm is over the elements of one layer, so each token's row is seen as rows of layers.
        let by_layer = out.reshape(((), width))?;
        of.norm.run(&by_layer, None, &(&by_layer).into())?;
        let rows = self.rows(WIDE, all)?;
        let whole = VocabPart { first: 0, vocab_size: of.table.n() };
        let scale = embed_scale(&of.embed, x.dtype());
        gpu::embedding(self.input.token_ids, &of.table, scale, whole, &rows)?;
        gpu::add(&out, &rows, FRAC_1_SQRT_2)?;
        Ok(out)
    }

    fn act_times(
        &self,
        x: Tensor,
        act: Activation,
        per_layer: &Tensor,
        first: usize,
    ) -> Result<Tensor> {
        self.read(&[&x, per_layer]);
        gpu::activation_times(&x, act, per_layer, first, &x)?;
        self.rewritten(x)
    }

    fn for_output_tokens(&self, tokens: &Tokens) -> Result<OutputOps<Self>> {
        let Some(DeviceOutputTokens { tables, attention }) = self.input.output else {
            return Ok(OutputOps::All);
        };
        let Some((rows, positions)) = tables else { return Ok(OutputOps::None) };
        let count = rows.elem_count();
        // The layers that follow see fewer tokens, so their attention is planned anew.
        let step = AttentionStep { meta: attention, tokens: count, launch: LaunchShape::Fitted };
        plan_all(&mut self.workspace.plans.borrow_mut(), &step)?;
        // Through another buffer, because rows move within their own.
        let keep = |from: &Tensor, through: Region, to: Region| -> Result<Tensor> {
            let dims = [count, from.dim(1)?];
            let gathered = self.result(through, &dims)?;
            self.read(&[from]);
            gpu::gather_rows(from, rows, &gathered)?;
            let kept = self.result(to, &dims)?;
            kept.slice_set(&gathered, 0, 0)?;
            Ok(kept)
        };
        // The input before the residual, because they may be the same tensor.
        let input = keep(&tokens.input, BRANCH, Region::Normed)?;
        let per_layer = tokens.per_layer.as_ref();
        let kept = Tokens {
            input,
            per_layer: per_layer.map(|from| keep(from, WIDE, Region::PerLayer)).transpose()?,
            x: keep(&tokens.x, BRANCH, Region::Residual)?,
        };
        let deferred = DeferredNorm::default();
        Ok(OutputOps::Some(Self { tokens: count, positions, deferred, ..*self }, kept))
    }

    fn output_rows(&self, hidden: Option<&Tensor>) -> Result<Tensor> {
        match hidden {
            Some(hidden) => Ok(hidden.clone()),
            None => self.rows(Region::Normed, self.hidden),
        }
    }

    fn norm(&self, residual: &Tensor, norm: &Norm, reader: Option<&Matrix>) -> Result<Tensor> {
        let next = self.next(reader);
        let reader = reader.filter(|_| norm.is_rms());
        let out = self.rows_for(reader, Region::Normed, self.hidden)?;
        self.read(&[residual]);
        norm.run(residual, next, &out)?;
        Ok(out.tensor().clone())
    }

    fn post_norm(&self, x: Tensor, norm: &Norm) -> Result<Tensor> {
        self.read(&[&x]);
        norm.run(&x, None, &(&x).into())?;
        self.rewritten(x)
    }

    fn add(&self, residual: Tensor, x: &Tensor, scale: f32) -> Result<Tensor> {
        self.read(&[&residual, x]);
        gpu::add(&residual, x, scale)?;
        self.rewritten(residual)
    }

    fn add_norm(
        &self,
        residual: Tensor,
        x: &Tensor,
        scale: f32,
        norm: &Norm,
        reader: Option<&Matrix>,
    ) -> Result<(Tensor, Tensor)> {
        // Only RMSNorm has a kernel that adds as well.
        let NormForm::Rms(form) = norm.form else {
            let residual = self.add(residual, x, scale)?;
            let normed = self.norm(&residual, norm, None)?;
            return Ok((residual, normed));
        };
        let matmul = &self.workspace.matmul;
        let takes_norm = reader.is_some_and(|reader| matmul.takes_norm(reader, self.tokens));
        if takes_norm && self.has_second_residual() {
            return self.defer_norm(residual, x, scale, (norm, form));
        }
        let out = self.rows_for(reader, Region::Normed, self.hidden)?;
        self.read(&[&residual, x]);
        let norm = RmsNorm { weight: &norm.weight, form, eps: norm.eps, next: self.next(reader) };
        gpu::add_rms_norm(&residual, x, scale, &norm, &out)?;
        Ok((self.rewritten(residual)?, out.tensor().clone()))
    }

    /// On a device, models take text alone.
    fn add_image_features(
        &self,
        _: usize,
        rows: (Tensor, Tensor),
        _: Option<&Norm>,
    ) -> Result<(Tensor, Tensor)> {
        Ok(rows)
    }

    fn linear(
        &self,
        x: &Tensor,
        linear: &Linear<Matrix>,
        to: Buffer,
        reduce: Reduce,
    ) -> Result<Tensor> {
        let out = self.rows(Region::Of(to), linear.weight.n())?;
        self.product(x, &linear.weight, linear.bias.as_ref(), &out)?;
        if reduce == Reduce::Sum {
            self.sum(&out)?;
        }
        Ok(out)
    }

    fn attend(&self, qkv: &Tensor, a: &Attention<Matrix>) -> Result<Tensor> {
        let dims = [self.tokens, a.heads, a.head_dim];
        let q = self.result(INNER, &dims)?;
        let out = self.rows(ATTENDED, a.heads * a.head_dim)?;
        self.read(&[qkv]);
        let square_sums = match a.norm_span {
            QkNormSpan::AllHeads => Some(self.square_sums(qkv, a)?),
            _ => None,
        };
        let span = match (&square_sums, a.norm_span) {
            (Some(square_sums), _) => gpu::QkNormOperands::AllHeads {
                square_sums,
                ranks: self.ranks.map_or(1, DeviceRanks::size),
            },
            (None, QkNormSpan::EachHead) => gpu::QkNormOperands::EachHead { len: a.head_len },
            (None, _) => gpu::QkNormOperands::Head,
        };
        let k_norm = a.k_norm.as_ref();
        let qk_norm = a.q_norm.as_ref().map(|q| QkNorm {
            q_weight: &q.weight,
            k_weight: k_norm.map(|k| &k.weight),
            span,
            form: match q.form {
                NormForm::Rms(form) => form,
                NormForm::Layer(_) => NormWeight::Plain,
            },
            eps: q.eps,
        });
        let cache = &self.workspace.caches[a.kv_layer.kind];
        let operands = QkvToCache {
            qk_norm,
            v_norm: a.v_norm.map(|eps| ValueNorm { eps, len: a.head_len }),
            rope: &a.rope,
            positions: self.positions,
            slot_mapping: self.input.slot_mapping,
            // A layer that reads the keys of an earlier one writes none.
            cache: a.has_keys.then_some((cache, a.kv_layer.layer)),
            next: self.next(Some(&a.out.weight)),
        };
        gpu::qkv_to_cache(qkv, &operands, &q)?;
        let layer = cache.layer(a.kv_layer.layer)?;
        let plans = self.workspace.plans.borrow();
        plan_of(&plans, a.kv_layer, a.params.window).attend(
            &q,
            layer,
            &a.params,
            a.sinks.as_ref(),
            &out.reshape(&dims)?,
        )?;
        Ok(out)
    }

    fn attend_latents(
        &self,
        q: &Tensor,
        latents: &Tensor,
        a: &LatentAttention<Matrix>,
    ) -> Result<Tensor> {
        let (tokens, heads) = (self.tokens, a.heads);
        let cache = &self.workspace.caches[a.kv_layer.kind];
        let &KvCacheConfig { head_dim, .. } = cache.config();
        let (latent, value_dim) = (cache.config().value_dim(), a.spec.value_dim);
        let NormForm::Rms(form) = a.kv_norm.form else { unreachable!("latents have RMSNorm") };
        let operands = LatentsToCache {
            norm: RmsNorm { weight: &a.kv_norm.weight, form, eps: a.kv_norm.eps, next: None },
            rope: &a.rope,
            positions: self.positions,
            slot_mapping: self.input.slot_mapping,
            cache: (cache, a.kv_layer.layer),
        };
        let absorbed = self.result(ATTENDED, &[tokens, heads, head_dim])?;
        self.read(&[q, latents]);
        let q = q.reshape((tokens, heads, a.q_dim))?;
        // The queries are multiplied by the matrix that makes keys, so that attention is over the latents themselves.
        gpu::head_product(&q, &a.key_up, &absorbed)?;
        gpu::latents_to_cache(&q, latents, &operands, &absorbed)?;
        // The queries are not needed any more, so their buffer takes the attended latents.
        let out = self.result(WIDE, &[tokens, heads, latent])?;
        let (layer, plans) = (cache.layer(a.kv_layer.layer)?, self.workspace.plans.borrow());
        plan_of(&plans, a.kv_layer, None).attend(&absorbed, layer, &a.params, None, &out)?;
        // The step's latents are not needed any more, so their buffer takes the values.
        let values = self.rows(INNER, heads * value_dim)?;
        gpu::head_product(&out, &a.value_up, &values.reshape((tokens, heads, value_dim))?)?;
        Ok(values)
    }

    fn linear_attention(
        &self,
        rows: &Tensor,
        gates: &Tensor,
        net: &LinearAttention<Matrix>,
    ) -> Result<Tensor> {
        let out = self.rows(ATTENDED, net.net.dims.values())?;
        self.read(&[rows, gates]);
        let (pool, tables) = self.states();
        gpu::linear_attention(rows, gates, &net.net, pool, net.layer, &tables, &out)?;
        Ok(out)
    }

    fn short_conv(&self, rows: &Tensor, conv: &ShortConv<Matrix>) -> Result<Tensor> {
        let out = self.rows(ATTENDED, conv.conv.dims.channels)?;
        self.read(&[rows]);
        let (pool, tables) = self.states();
        gpu::short_conv(rows, &conv.conv, pool, conv.layer, &tables, &out)?;
        Ok(out)
    }

    fn norm_groups(&self, x: Tensor, norm: &Norm) -> Result<Tensor> {
        self.read(&[&x]);
        let groups = x.reshape((self.tokens, norm.weight.dim(0)?, norm.weight.dim(1)?))?;
        norm.run(&groups, None, &(&groups).into())?;
        self.rewritten(x)
    }

    fn gate(&self, x: Tensor, gate: &Tensor) -> Result<Tensor> {
        self.read(&[&x, gate]);
        gpu::sigmoid_gate(&x, gate)?;
        self.rewritten(x)
    }

    fn gated(
        &self,
        x: &Tensor,
        linear: &Linear<Matrix>,
        act: Activation,
        reader: &Matrix,
    ) -> Result<Tensor> {
        let Linear { weight, bias } = linear;
        let gate_up = self.rows(WIDE, weight.n())?;
        let normed = self.take_deferred(x);
        let factor = match &normed {
            Some(normed) => Factor::Normed(normed.rows()),
            None => {
                self.read_factor(x, weight);
                Factor::Rows(x)
            }
        };
        let out = self.rows_for(Some(reader), INNER, weight.n() / 2)?;
        // One kernel may write `out` while it reads x. Rows in FP8 are written by another kernel.
        if matches!((&out, &factor), (RowsOut::Plain(_), Factor::Rows(_))) {
            self.read(&[x]);
        }
        let product = GatedProduct { weight, bias: bias.as_ref(), act, reader: Some(reader) };
        self.workspace.matmul.gated(&factor, &product, &gate_up, &out)?;
        Ok(out.tensor().clone())
    }

    fn activate(&self, x: &Tensor, act: Activation) -> Result<Tensor> {
        let out = self.rows(INNER, x.dim(1)?)?;
        self.read(&[x]);
        gpu::activation(x, act, &out)?;
        Ok(out)
    }

    /// Returns the scores. The workspace's tables have the chosen experts.
    fn route(&self, scored: &Tensor, layer: &RoutedExperts<Matrix>) -> Result<Tensor> {
        let scores = self.rows(INNER, layer.router.n())?;
        self.product(scored, &layer.router, layer.router_bias.as_ref(), &scores)?;
        gpu::route(&scores, &layer.gating, &self.routing()?)?;
        Ok(scores)
    }

    fn experts(
        &self,
        x: &Tensor,
        routes: &Tensor,
        layer: &RoutedExperts<Matrix>,
        shared: Option<Tensor>,
        to: Buffer,
    ) -> Result<Tensor> {
        let routing = self.routing()?;
        let (pairs, width) = (routing.pairs(), layer.gate_up.n());
        let gate_up = self.result(WIDE, &[pairs, width])?;
        self.read(&[x, routes]);
        let x = self.workspace.matmul.rounded(x, layer.gate_up.activations(), None)?;
        gpu::expert_product(&x, &layer.gate_up, layer.gate_up_bias.as_ref(), &routing, &gate_up)?;
        let inner_width = if layer.gated { width / 2 } else { width };
        let activated = self.result(INNER, &[pairs, inner_width])?;
        match layer.gated {
            true => gpu::gated_activation(&gate_up, layer.activation, &activated)?,
            false => gpu::activation(&gate_up, layer.activation, &activated)?,
        }
        if let Some(rounding) = layer.down.activations() {
            gpu::round_activations(&activated, &rounding, None, &activated)?;
        }
        let results = self.result(WIDE, &[pairs, self.hidden])?;
        gpu::expert_product(&activated, &layer.down, layer.down_bias.as_ref(), &routing, &results)?;
        // The rows of the shared expert, if there is one, lie there already.
        if let Some(shared) = &shared {
            self.read(&[shared]);
        }
        let out = self.rows(Region::Of(to), self.hidden)?;
        gpu::combine_experts(&results, &routing, shared.is_some(), &out)?;
        self.sum(&out)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests;
