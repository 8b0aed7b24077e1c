//! The walk over a model's layers, once for all devices: the operations in their order.

use std::ops::Range;

use candle_core::Tensor;

use crate::{
    attention::Attention,
    error::Result,
    latent_attention::LatentAttention,
    layers::{Ffn, Layers, Mixer, Mlp},
    linear_attention::LinearAttention,
    norm::Norm,
    ops::{Buffer, Ops, OutputOps, Reduce, Tokens},
    parts::Matrix,
    short_conv::ShortConv,
};

impl<M: Matrix> Layers<M> {
    /// Runs the layers over a step's tokens. Returns the hidden states `[tokens, hidden]` of the output tokens after the final norm:
    /// see [`Ops::output_rows`].
    pub(crate) fn forward<O: Ops<Matrix = M>>(&self, ops: &O) -> Result<Tensor> {
        let x = ops.embed(&self.embed, self.positions.as_ref())?;
        let per_layer = self.per_layer.as_ref().map(|of| ops.per_layer(&x, of)).transpose()?;
        let Some(first) = self.layers.first() else { return ops.norm(&x, &self.final_norm, None) };
        let input = match &first.attn_norm {
            Some(norm) => ops.norm(&x, norm, self.input_reader(0))?,
            None => x.clone(),
        };
        let tokens = Tokens { x, input, per_layer };
        let tokens = self.walk(ops, 0..self.first_reader, tokens)?;
        let readers = self.first_reader..self.layers.len();
        if readers.is_empty() {
            return Ok(tokens.input);
        }
        match ops.for_output_tokens(&tokens)? {
            OutputOps::All => Ok(self.walk(ops, readers, tokens)?.input),
            OutputOps::Some(output_ops, tokens) => {
                let hidden = self.walk(&output_ops, readers, tokens)?.input;
                ops.output_rows(Some(&hidden))
            }
            OutputOps::None => ops.output_rows(None),
        }
    }

    /// Runs some of the layers.
    fn walk<O: Ops<Matrix = M>>(
        &self,
        ops: &O,
        layers: Range<usize>,
        tokens: Tokens,
    ) -> Result<Tokens> {
        let Tokens { mut x, mut input, per_layer } = tokens;
        for i in layers {
            let layer = &self.layers[i];
            let next_norm = match self.layers.get(i + 1) {
                Some(next) => next.attn_norm.as_ref(),
                None => Some(&self.final_norm),
            };
            let next_reader = self.input_reader(i + 1);
            let y = layer.mixer.forward(ops, &input)?;
            let y = optional(ops, &layer.attn_post_norm, y)?;
            let Some(ffn) = &layer.ffn else {
                let rows = add_norm(ops, x, &y, layer.scale, next_norm, next_reader)?;
                (x, input) = ops.add_image_features(i, rows, next_norm)?;
                continue;
            };
            if layer.parallel {
                if let Some(norm) = &layer.ffn_norm {
                    input = ops.norm(&x, norm, ffn.input_reader())?;
                }
                x = ops.add(x, &y, 1.0)?;
            } else {
                let norm = layer.ffn_norm.as_ref();
                (x, input) = add_norm(ops, x, &y, 1.0, norm, ffn.input_reader())?;
            }
            let y = ffn.forward(ops, &input, &x)?;
            let mut y = optional(ops, &layer.ffn_post_norm, y)?;
            let of_model = self.per_layer.as_ref().zip(per_layer.as_ref());
            if let Some((own, (of, all))) = layer.per_layer.as_ref().zip(of_model) {
                x = ops.add(x, &y, 1.0)?;
                let gate = ops.linear(&x, &own.gate, Buffer::Inner, Reduce::Keep)?;
                let gated = ops.act_times(gate, of.activation, all, i * of.width)?;
                // All ranks compute the same, so there is no sum.
                let out = ops.linear(&gated, &own.out, Buffer::Branch, Reduce::Keep)?;
                y = ops.post_norm(out, &own.norm)?;
            }
            let rows = add_norm(ops, x, &y, layer.scale, next_norm, next_reader)?;
            (x, input) = ops.add_image_features(i, rows, next_norm)?;
        }
        Ok(Tokens { x, input, per_layer })
    }
}

/// Applies a norm that not every model has.
fn optional<O: Ops>(ops: &O, norm: &Option<Norm>, x: Tensor) -> Result<Tensor> {
    match norm {
        Some(norm) => ops.post_norm(x, norm),
        None => Ok(x),
    }
}

/// `(residual + x) * scale`, and the input of the next block: the norm of this sum, or the sum itself where the block has no norm.
fn add_norm<O: Ops>(
    ops: &O,
    residual: Tensor,
    x: &Tensor,
    scale: f32,
    norm: Option<&Norm>,
    reader: Option<&O::Matrix>,
) -> Result<(Tensor, Tensor)> {
    match norm {
        Some(norm) => ops.add_norm(residual, x, scale, norm, reader),
        None => {
            let sum = ops.add(residual, x, scale)?;
            Ok((sum.clone(), sum))
        }
    }
}

impl<M: Matrix> Mixer<M> {
    /// `[tokens, hidden]` -> `[tokens, hidden]`.
    fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Attention(attention) => attention.forward(ops, x),
            Self::Latent(attention) => attention.forward(ops, x),
            Self::LinearAttention(net) => net.forward(ops, x),
            Self::ShortConv(conv) => conv.forward(ops, x),
        }
    }
}

impl<M: Matrix> Attention<M> {
    /// `[tokens, hidden]` -> `[tokens, hidden]`.
    fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor) -> Result<Tensor> {
        let qkv = ops.linear(x, &self.qkv, Buffer::Wide, Reduce::Keep)?;
        let mut attended = ops.attend(&qkv, self)?;
        if let Some(gate) = &self.gate {
            let gate = ops.linear(x, gate, Buffer::Wide, Reduce::Keep)?;
            attended = ops.gate(attended, &gate)?;
        }
        ops.linear(&attended, &self.out, Buffer::Branch, Reduce::Sum)
    }
}

impl<M: Matrix> LatentAttention<M> {
    /// `[tokens, hidden]` -> `[tokens, hidden]`.
    fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor) -> Result<Tensor> {
        let q = match &self.q_latent {
            Some((down, norm)) => {
                let latents = ops.linear(x, down, Buffer::Inner, Reduce::Keep)?;
                let latents = ops.post_norm(latents, norm)?;
                ops.linear(&latents, &self.q, Buffer::Wide, Reduce::Keep)?
            }
            None => ops.linear(x, &self.q, Buffer::Wide, Reduce::Keep)?,
        };
        let latents = ops.linear(x, &self.kv_latent, Buffer::Inner, Reduce::Keep)?;
        let attended = ops.attend_latents(&q, &latents, self)?;
        ops.linear(&attended, &self.out, Buffer::Branch, Reduce::Sum)
    }
}

impl<M: Matrix> LinearAttention<M> {
    /// `[tokens, hidden]` -> `[tokens, hidden]`.
    fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor) -> Result<Tensor> {
        let rows = ops.linear(x, &self.rows, Buffer::Wide, Reduce::Keep)?;
        let gates = ops.linear(x, &self.gates, Buffer::Inner, Reduce::Keep)?;
        let mut mixed = ops.linear_attention(&rows, &gates, self)?;
        if let Some(norm) = &self.norm {
            mixed = ops.norm_groups(mixed, norm)?;
        }
        ops.linear(&mixed, &self.out, Buffer::Branch, Reduce::Sum)
    }
}

impl<M: Matrix> ShortConv<M> {
    /// `[tokens, hidden]` -> `[tokens, hidden]`.
    fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor) -> Result<Tensor> {
        let rows = ops.linear(x, &self.rows, Buffer::Wide, Reduce::Keep)?;
        let mixed = ops.short_conv(&rows, self)?;
        ops.linear(&mixed, &self.out, Buffer::Branch, Reduce::Sum)
    }
}

impl<M: Matrix> Ffn<M> {
    /// `[tokens, hidden]` -> `[tokens, hidden]`. `x` is a norm of `residual`; some experts read norms of their own.
    fn forward<O: Ops<Matrix = M>>(
        &self,
        ops: &O,
        x: &Tensor,
        residual: &Tensor,
    ) -> Result<Tensor> {
        match self {
            Self::Dense(mlp) => mlp.forward(ops, x, Reduce::Sum),
            Self::Experts { routed, shared: Some(shared), norms: Some(norms), .. } => {
                let shared = shared.forward(ops, x, Reduce::Sum)?;
                let shared = ops.post_norm(shared, &norms.shared_post)?;
                let routes = ops.route(&ops.norm(residual, &norms.router, None)?, routed)?;
                let x = ops.norm(residual, &norms.experts, None)?;
                let chosen = ops.experts(&x, &routes, routed, None, Buffer::Attended)?;
                let chosen = ops.post_norm(chosen, &norms.experts_post)?;
                ops.add(shared, &chosen, 1.0)
            }
            Self::Experts { routed, shared, score, .. } => {
                // The experts are added to it before the sum over ranks.
                let mut shared =
                    shared.as_ref().map(|mlp| mlp.forward(ops, x, Reduce::Keep)).transpose()?;
                if let Some(score) = score {
                    let rows = shared.expect("a shared expert with a score has rows");
                    let score = ops.linear(x, score, Buffer::Wide, Reduce::Keep)?;
                    shared = Some(ops.gate(rows, &score)?);
                }
                let routes = ops.route(x, routed)?;
                ops.experts(x, &routes, routed, shared, Buffer::Branch)
            }
        }
    }
}

impl<M: Matrix> Mlp<M> {
    /// `[tokens, hidden]` -> `[tokens, hidden]`.
    fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor, reduce: Reduce) -> Result<Tensor> {
        let inner = match self.gated {
            true => ops.gated(x, &self.up, self.activation, &self.down.weight)?,
            false => {
                let up = ops.linear(x, &self.up, Buffer::Wide, Reduce::Keep)?;
                ops.activate(&up, self.activation)?
            }
        };
        ops.linear(&inner, &self.down, Buffer::Branch, reduce)
    }
}
