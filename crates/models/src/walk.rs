//! The walk over a model's layers, once for all devices: the operations in their order.

use std::ops::Range;

use candle_core::Tensor;

use crate::{
    attention::Attention,
    error::Result,
    latent_attention::LatentAttention,
    layers::{Ffn, Layers, Mixer, Mlp},
    norm::Norm,
    ops::{Ops, Place, Tokens, Wanted},
    parts::Matrix,
    recurrence::Recurrence,
    short_conv::ShortConv,
};

impl<M: Matrix> Layers<M> {
    /// Runs the layers over a step's tokens. Returns the hidden states `[tokens, hidden]` after the final norm, of those that are wanted.
    pub(crate) fn forward<O: Ops<Matrix = M>>(&self, ops: &O) -> Result<Tensor> {
        let x = ops.embed(&self.embed, self.positions.as_ref())?;
        let per_layer = self.per_layer.as_ref().map(|of| ops.per_layer(&x, of)).transpose()?;
        let Some(first) = self.layers.first() else { return ops.norm(&x, &self.final_norm) };
        let input = match &first.attn_norm {
            Some(norm) => ops.norm(&x, norm)?,
            None => x.clone(),
        };
        let tokens = Tokens { x, input, per_layer };
        let tokens = self.walk(ops, 0..self.first_reader, tokens)?;
        let readers = self.first_reader..self.layers.len();
        if readers.is_empty() {
            return Ok(tokens.input);
        }
        match ops.of_wanted(&tokens)? {
            Wanted::All => Ok(self.walk(ops, readers, tokens)?.input),
            Wanted::Some(of_wanted, tokens) => {
                let hidden = self.walk(&of_wanted, readers, tokens)?.input;
                ops.among_all(Some(&hidden))
            }
            Wanted::None => ops.among_all(None),
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
            let y = layer.mixer.forward(ops, &input)?;
            let y = optional(ops, &layer.attn_post_norm, y)?;
            let Some(ffn) = &layer.ffn else {
                (x, input) = add_norm(ops, x, &y, layer.scale, next_norm)?;
                continue;
            };
            if layer.parallel {
                if let Some(norm) = &layer.ffn_norm {
                    input = ops.norm(&x, norm)?;
                }
                x = ops.add(x, &y, 1.0)?;
            } else {
                (x, input) = add_norm(ops, x, &y, 1.0, layer.ffn_norm.as_ref())?;
            }
            let y = ffn.forward(ops, &input, &x)?;
            let mut y = optional(ops, &layer.ffn_post_norm, y)?;
            let of_model = self.per_layer.as_ref().zip(per_layer.as_ref());
            if let Some((own, (of, all))) = layer.per_layer.as_ref().zip(of_model) {
                x = ops.add(x, &y, 1.0)?;
                let gate = ops.linear(&x, &own.gate, Place::Narrow)?;
                let part = ops.times(gate, of.activation, all, i * of.width)?;
                y = ops.post_norm(ops.linear(&part, &own.out, Place::Part)?, &own.norm)?;
            }
            (x, input) = add_norm(ops, x, &y, layer.scale, next_norm)?;
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

/// `(residual + x) * scale`, and what the next block reads: its norm, or, where that has none before it, the sum itself.
fn add_norm<O: Ops>(
    ops: &O,
    residual: Tensor,
    x: &Tensor,
    scale: f32,
    norm: Option<&Norm>,
) -> Result<(Tensor, Tensor)> {
    match norm {
        Some(norm) => ops.add_norm(residual, x, scale, norm),
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
            Self::Recurrence(net) => net.forward(ops, x),
            Self::ShortConv(conv) => conv.forward(ops, x),
        }
    }
}

impl<M: Matrix> Attention<M> {
    /// `[tokens, hidden]` -> `[tokens, hidden]`.
    fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor) -> Result<Tensor> {
        let qkv = ops.linear(x, &self.qkv, Place::Wide)?;
        let mut attended = ops.attend(&qkv, self)?;
        if let Some(gate) = &self.gate {
            let gate = ops.linear(x, gate, Place::Wide)?;
            attended = ops.gate(attended, &gate)?;
        }
        ops.linear(&attended, &self.out, Place::Branch)
    }
}

impl<M: Matrix> LatentAttention<M> {
    /// `[tokens, hidden]` -> `[tokens, hidden]`.
    fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor) -> Result<Tensor> {
        let q = match &self.q_latent {
            Some((down, norm)) => {
                let latents = ops.post_norm(ops.linear(x, down, Place::Narrow)?, norm)?;
                ops.linear(&latents, &self.q, Place::Wide)?
            }
            None => ops.linear(x, &self.q, Place::Wide)?,
        };
        let latents = ops.linear(x, &self.kv_latent, Place::Narrow)?;
        ops.linear(&ops.attend_latents(&q, &latents, self)?, &self.out, Place::Branch)
    }
}

impl<M: Matrix> Recurrence<M> {
    /// `[tokens, hidden]` -> `[tokens, hidden]`.
    fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor) -> Result<Tensor> {
        let rows = ops.linear(x, &self.rows, Place::Wide)?;
        let gates = ops.linear(x, &self.gates, Place::Narrow)?;
        let mut made = ops.recurrence(&rows, &gates, self)?;
        if let Some(norm) = &self.norm {
            made = ops.norm_groups(made, norm)?;
        }
        ops.linear(&made, &self.out, Place::Branch)
    }
}

impl<M: Matrix> ShortConv<M> {
    /// `[tokens, hidden]` -> `[tokens, hidden]`.
    fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor) -> Result<Tensor> {
        let rows = ops.linear(x, &self.rows, Place::Wide)?;
        ops.linear(&ops.short_conv(&rows, self)?, &self.out, Place::Branch)
    }
}

impl<M: Matrix> Ffn<M> {
    /// `[tokens, hidden]` -> `[tokens, hidden]`, of what is normed and of the residual that it is the norm of.
    fn forward<O: Ops<Matrix = M>>(
        &self,
        ops: &O,
        x: &Tensor,
        residual: &Tensor,
    ) -> Result<Tensor> {
        match self {
            Self::Dense(mlp) => mlp.forward(ops, x, Place::Branch),
            Self::Experts { routed, shared: Some(beside), norms: Some(norms), .. } => {
                let made = beside.forward(ops, x, Place::Branch)?;
                let made = ops.post_norm(made, &norms.shared_post)?;
                let routes = ops.route(&ops.norm(residual, &norms.router)?, routed)?;
                let x = ops.norm(residual, &norms.experts)?;
                let others = ops.experts(&x, &routes, routed, None, Place::Aside)?;
                let others = ops.post_norm(others, &norms.experts_post)?;
                ops.add(made, &others, 1.0)
            }
            Self::Experts { routed, shared, score, .. } => {
                let mut shared =
                    shared.as_ref().map(|mlp| mlp.forward(ops, x, Place::Part)).transpose()?;
                if let Some(score) = score {
                    let made = shared.expect("what has a score is there");
                    let score = ops.linear(x, score, Place::Wide)?;
                    shared = Some(ops.gate(made, &score)?);
                }
                let routes = ops.route(x, routed)?;
                ops.experts(x, &routes, routed, shared, Place::Branch)
            }
        }
    }
}

impl<M: Matrix> Mlp<M> {
    fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor, place: Place) -> Result<Tensor> {
        let inner = match self.gated {
            true => ops.gated(x, &self.up, self.activation)?,
            false => ops.activate(&ops.linear(x, &self.up, Place::Wide)?, self.activation)?,
        };
        ops.linear(&inner, &self.down, place)
    }
}
