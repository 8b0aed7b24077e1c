//! The operations of which the walk over the layers consists, for each kind of device.

use candle_core::Tensor;
use candlepower_kernels::Activation;

use crate::{
    attention::Attention,
    error::Result,
    latent_attention::LatentAttention,
    layers::{PerLayer, RoutedExperts},
    linear::Linear,
    norm::Norm,
    parts::Matrix,
    recurrence::Recurrence,
    short_conv::ShortConv,
};

/// The operations that the walk is made of. Each returns a tensor that holds its result until the same operation, or
/// one that writes to the same place, is asked for again: a new tensor, or a buffer.
pub(crate) trait Ops {
    /// How this device keeps matrices.
    type Matrix: Matrix;

    /// The embeddings of the step's tokens, `[tokens, hidden]`, with those of their positions where the model has such:
    /// the first residual.
    fn embed(&self, table: &Self::Matrix, positions: Option<&Self::Matrix>) -> Result<Tensor>;
    /// What each layer gets of the step's tokens beside the residual, `[tokens, layers * width]`, of their embeddings.
    fn per_layer(&self, x: &Tensor, of: &PerLayer<Self::Matrix>) -> Result<Tensor>;
    /// `act(x)` times as many columns of `per_layer`, from `first` on, in place of `x`.
    fn times(&self, x: Tensor, act: Activation, per_layer: &Tensor, first: usize)
    -> Result<Tensor>;
    /// The operations on the wanted tokens alone, of which `tokens` are the rows, where not all are wanted; `None` of these where
    /// none is.
    fn of_wanted(&self, tokens: &Tokens) -> Result<Wanted<Self>>
    where
        Self: Sized;
    /// What [`Layers::forward`] is to return where not all tokens are wanted: on the CPU their rows among those of all, the others zeros; on a
    /// device the rows themselves. `None` where there are none.
    fn among_all(&self, wanted: Option<&Tensor>) -> Result<Tensor>;
    /// The norm of the residual.
    fn norm(&self, residual: &Tensor, norm: &Norm) -> Result<Tensor>;
    /// The norm of what is about to be added to the residual.
    fn post_norm(&self, x: Tensor, norm: &Norm) -> Result<Tensor>;
    /// `(residual + x) * scale`.
    fn add(&self, residual: Tensor, x: &Tensor, scale: f32) -> Result<Tensor>;
    /// `(residual + x) * scale`, and its norm.
    fn add_norm(
        &self,
        residual: Tensor,
        x: &Tensor,
        scale: f32,
        norm: &Norm,
    ) -> Result<(Tensor, Tensor)>;
    /// `x W^T + b`.
    fn linear(&self, x: &Tensor, linear: &Linear<Self::Matrix>, place: Place) -> Result<Tensor>;
    /// From the rows of q, k and v, or of q alone, to the attended rows `[tokens, heads * head_dim]`; writes keys and values to the
    /// cache.
    fn attend(&self, qkv: &Tensor, attention: &Attention<Self::Matrix>) -> Result<Tensor>;
    /// From the rows of queries and of latents to the attended rows `[tokens, heads * value_dim]`; writes latents to the cache.
    fn attend_latents(
        &self,
        q: &Tensor,
        latents: &Tensor,
        attention: &LatentAttention<Self::Matrix>,
    ) -> Result<Tensor>;
    /// From the rows `[q, k, v, z]` of a recurrence and what steers its states to what comes out, `[tokens, values]`; moves on the states.
    fn recurrence(
        &self,
        rows: &Tensor,
        gates: &Tensor,
        net: &Recurrence<Self::Matrix>,
    ) -> Result<Tensor>;
    /// From the rows `[b, c, x]` of a short convolution to what comes out, `[tokens, channels]`; keeps what later tokens see.
    fn short_conv(&self, rows: &Tensor, conv: &ShortConv<Self::Matrix>) -> Result<Tensor>;
    /// The norm of each group of `x`, `[tokens, groups * dim]`, where the norm has weights `[groups, dim]`.
    fn norm_groups(&self, x: Tensor, norm: &Norm) -> Result<Tensor>;
    /// `x * sigmoid(gate)`, where `gate` is as wide as `x` or has one number for each row.
    fn gate(&self, x: Tensor, gate: &Tensor) -> Result<Tensor>;
    /// `act(gate) * up`, where `[gate, up]` are the rows of `x W^T + b`.
    fn gated(&self, x: &Tensor, linear: &Linear<Self::Matrix>, act: Activation) -> Result<Tensor>;
    /// `act(x)`.
    fn activate(&self, x: &Tensor, act: Activation) -> Result<Tensor>;
    /// Finds by `scored` which experts the tokens go to: what [`Self::experts`] is to be told.
    fn route(&self, scored: &Tensor, layer: &RoutedExperts<Self::Matrix>) -> Result<Tensor>;
    /// What the experts make of the rows that they get, in [`Place::Branch`] or [`Place::Aside`]; with `shared`, what [`Place::Part`] has.
    fn experts(
        &self,
        x: &Tensor,
        routes: &Tensor,
        layer: &RoutedExperts<Self::Matrix>,
        shared: Option<Tensor>,
        place: Place,
    ) -> Result<Tensor>;
}

/// What goes from layer to layer.
#[derive(Clone)]
pub(crate) struct Tokens {
    /// The residual, `[tokens, hidden]`.
    pub(crate) x: Tensor,
    /// What the next block reads of it.
    pub(crate) input: Tensor,
    /// What [`Ops::per_layer`] has made.
    pub(crate) per_layer: Option<Tensor>,
}

/// Of which tokens the hidden states are wanted.
pub(crate) enum Wanted<O> {
    All,
    Some(O, Tokens),
    None,
}

/// Where a product goes: on a device with buffers to one of them, and among ranks to this one alone or to a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Rows wider than the model: q, k and v, or gate and up, or a gate of what is elsewhere.
    Wide,
    /// A few numbers for each row, which are read together with rows in [`Self::Wide`].
    Narrow,
    /// Rows as wide as the model, to be added to the residual.
    Branch,
    /// As [`Self::Branch`], but what a rank makes stays its own: the sum is made of it and of something else, or all ranks make the same.
    Part,
    /// As [`Self::Branch`], where the attended rows were, so that what is in the other place stays.
    Aside,
}
