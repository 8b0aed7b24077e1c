//! A layer's feed-forward: dense, or MoE.

use candle_core::Tensor;
use candlepower_checkpoint::{ExpertsSpec, FfnSpec, GatingSpec, LayerSpec, MlpSpec, Slot};
use candlepower_kernels::{Activation, Experts, Gating};

use crate::{
    error::Result,
    linear::Linear,
    norm::{Norm, tensor_bytes},
    parts::{Matrix, Parts},
};

/// A layer's experts, over a device's matrices.
pub(crate) type RoutedExperts<M> = Experts<M, <M as Matrix>::All>;

/// The feed-forward of a layer.
pub(crate) enum Ffn<M: Matrix> {
    Dense(Mlp<M>),
    Experts {
        routed: RoutedExperts<M>,
        /// The shared expert.
        shared: Option<Mlp<M>>,
        /// The gate of the shared expert: one value for each token.
        score: Option<Linear<M>>,
        /// The norms of the two, where each has its own.
        norms: Option<Box<SeparateNorms>>,
        /// Bytes of the routed ones.
        bytes: usize,
    },
}

/// Norms of the routed experts, of the router, and of the shared expert.
pub(crate) struct SeparateNorms {
    pub(crate) router: Norm,
    pub(crate) experts: Norm,
    pub(crate) experts_post: Norm,
    pub(crate) shared_post: Norm,
}

/// `down(act(gate(x)) * up(x))`, with gate and up as one weight, or `down(act(up(x)))`.
pub(crate) struct Mlp<M> {
    pub(crate) up: Linear<M>,
    pub(crate) gated: bool,
    pub(crate) activation: Activation,
    pub(crate) down: Linear<M>,
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
                let norms = SeparateNorms::take(parts, layer, spec)?.map(Box::new);
                Some(Self::take_experts(parts, layer, experts, norms)?)
            }
        })
    }

    /// The matrix that alone reads the feed-forward's input, if there is one.
    pub(crate) fn input_reader(&self) -> Option<&M> {
        match self {
            Self::Dense(mlp) => Some(&mlp.up.weight),
            // The router reads it, too.
            Self::Experts { .. } => None,
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
        norms: Option<Box<SeparateNorms>>,
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

impl SeparateNorms {
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

    /// Takes the shared expert, which has no biases.
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
}
