//! What follows a layer's mixer: a feed-forward, or experts.

use candle_core::Tensor;
use candlepower_checkpoint::{ExpertsSpec, FfnSpec, GatingSpec, LayerSpec, MlpSpec, Slot};
use candlepower_kernels::{Activation, Experts, Gating};

use super::{Linear, Norm, Ops, Place, RoutedExperts, tensor_bytes};
use crate::{
    error::Result,
    parts::{Matrix, Parts},
};

/// What follows the attention.
pub(super) enum Ffn<M: Matrix> {
    Dense(Mlp<M>),
    Experts {
        routed: RoutedExperts<M>,
        /// One that every token goes to.
        shared: Option<Mlp<M>>,
        /// The gate of what that makes: one number for each token.
        score: Option<Linear<M>>,
        /// Where each of the two reads what it norms itself.
        norms: Option<Box<OwnNorms>>,
        /// Bytes of the routed ones.
        bytes: usize,
    },
}

/// Norms of experts, of what chooses them, and of what is beside them.
pub(super) struct OwnNorms {
    router: Norm,
    experts: Norm,
    experts_post: Norm,
    shared_post: Norm,
}

/// `down(act(gate(x)) * up(x))`, with gate and up as one weight, or `down(act(up(x)))`.
pub(super) struct Mlp<M> {
    up: Linear<M>,
    gated: bool,
    activation: Activation,
    down: Linear<M>,
}

impl<M: Matrix> Ffn<M> {
    pub(super) fn take(
        parts: &mut Parts<M>,
        layer: usize,
        spec: &LayerSpec,
    ) -> Result<Option<Self>> {
        Ok(match &spec.ffn {
            FfnSpec::Nothing => None,
            FfnSpec::Dense(mlp) => Some(Self::Dense(Mlp::take(parts, layer, mlp)?)),
            FfnSpec::Experts(experts) => {
                let norms = OwnNorms::take(parts, layer, spec)?.map(Box::new);
                Some(Self::take_experts(parts, layer, experts, norms)?)
            }
        })
    }

    /// `[tokens, hidden]` -> `[tokens, hidden]`, of what is normed and of the residual that it is the norm of.
    pub(super) fn forward<O: Ops<Matrix = M>>(
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

    pub(super) fn num_bytes(&self) -> usize {
        match self {
            Self::Dense(mlp) => mlp.num_bytes(),
            Self::Experts { shared, score, norms, bytes, .. } => {
                let score = score.as_ref().map_or(0, Linear::num_bytes);
                let norms = norms.as_ref().map_or(0, |norms| norms.num_bytes());
                bytes + shared.as_ref().map_or(0, Mlp::num_bytes) + score + norms
            }
        }
    }

    fn take_experts(
        parts: &mut Parts<M>,
        layer: usize,
        spec: &ExpertsSpec,
        norms: Option<Box<OwnNorms>>,
    ) -> Result<Self> {
        let mut all = |part: fn(usize) -> Slot| -> Vec<M> {
            (0..spec.count).map(|expert| parts.matrix(Some(layer), part(expert))).collect()
        };
        let (gate_up, down) = (all(Slot::ExpertGate), all(Slot::ExpertDown));
        let router = parts.matrix(Some(layer), Slot::Router);
        let bias = parts.exact(layer, Slot::RouterCorrection)?;
        let scales = parts.exact(layer, Slot::RouterScales)?;
        let mut of_all = |part| -> Result<Option<Tensor>> {
            let bias = parts.vector(Some(layer), part)?;
            Ok(bias.map(|bias| bias.reshape((spec.count, ()))).transpose()?)
        };
        let (gate_up_bias, down_bias) =
            (of_all(Slot::ExpertGateBias(0))?, of_all(Slot::ExpertDownBias(0))?);
        let router_bias = parts.vector(Some(layer), Slot::RouterBias)?;
        let matrices = gate_up.iter().chain(&down).chain([&router]).map(M::num_bytes);
        let vectors = [&bias, &scales, &gate_up_bias, &down_bias, &router_bias];
        let vectors = vectors.into_iter().flatten().map(tensor_bytes);
        let bytes = matrices.sum::<usize>() + vectors.sum::<usize>();
        let GatingSpec { function, renormalize, scale, groups, .. } = spec.gating;
        let routed = Experts {
            router,
            router_bias,
            gate_up: M::all(gate_up)?,
            gate_up_bias,
            down: M::all(down)?,
            down_bias,
            top_k: spec.top_k,
            gating: Gating { function, bias, renormalize, scale: scale as f32, scales, groups },
            gated: spec.expert.gated,
            activation: spec.expert.act,
        };
        let shared = spec.shared.as_ref().map(|mlp| Mlp::take_shared(parts, layer, mlp));
        let score = || Linear::without_bias(parts, layer, Slot::SharedScore);
        let score = (spec.shared_gate && spec.shared.is_some()).then(score);
        Ok(Self::Experts { routed, shared, score, norms, bytes })
    }
}

impl OwnNorms {
    fn take<M>(parts: &mut Parts<M>, layer: usize, spec: &LayerSpec) -> Result<Option<Self>> {
        let mut norm = |part| parts.norm(Some(layer), part, &spec.norm);
        let Some(router) = norm(Slot::RouterNorm)? else { return Ok(None) };
        let mut own =
            |part| -> Result<Norm> { Ok(norm(part)?.expect("the plan has all of them or none")) };
        Ok(Some(Self {
            router,
            experts: own(Slot::ExpertsNorm)?,
            experts_post: own(Slot::ExpertsPostNorm)?,
            shared_post: own(Slot::SharedPostNorm)?,
        }))
    }

    fn num_bytes(&self) -> usize {
        let norms = [&self.router, &self.experts, &self.experts_post, &self.shared_post];
        norms.into_iter().map(Norm::num_bytes).sum()
    }
}

impl<M: Matrix> Mlp<M> {
    fn take(parts: &mut Parts<M>, layer: usize, spec: &MlpSpec) -> Result<Self> {
        Ok(Self {
            up: Linear::take(parts, layer, Slot::Gate, Slot::GateBias)?,
            gated: spec.gated,
            activation: spec.act,
            down: Linear::take(parts, layer, Slot::Down, Slot::DownBias)?,
        })
    }

    /// The one beside experts, which has no biases.
    fn take_shared(parts: &mut Parts<M>, layer: usize, spec: &MlpSpec) -> Self {
        let mut linear = |part| Linear::without_bias(parts, layer, part);
        Self {
            up: linear(Slot::SharedGate),
            gated: spec.gated,
            activation: spec.act,
            down: linear(Slot::SharedDown),
        }
    }

    fn num_bytes(&self) -> usize {
        self.up.num_bytes() + self.down.num_bytes()
    }

    fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor, place: Place) -> Result<Tensor> {
        let inner = match self.gated {
            true => ops.gated(x, &self.up, self.activation)?,
            false => ops.activate(&ops.linear(x, &self.up, Place::Wide)?, self.activation)?,
        };
        ops.linear(&inner, &self.down, place)
    }
}
