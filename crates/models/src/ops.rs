//! The operations of which the walk over the layers consists, for each kind of device.

use candle_core::Tensor;
use candlepower_kernels::Activation;

use crate::{
    attention::Attention,
    error::Result,
    latent_attention::LatentAttention,
    layers::{PerLayer, RoutedExperts},
    linear::Linear,
    linear_attention::LinearAttention,
    norm::Norm,
    parts::Matrix,
    short_conv::ShortConv,
};

/// The operations of the walk over the layers.
///
/// On the CPU each operation returns a new tensor. On a GPU the results lie in buffers, which are reserved once and used by every
/// layer. So the walk has to keep this contract:
///
/// - A result is valid until its buffer is written again. [`Buffer`] names the buffers that the walk chooses. The others are the
///   residual's (written by [`embed`](Self::embed), [`add`](Self::add), [`add_norm`](Self::add_norm)) and that of normed rows
///   (written by [`norm`](Self::norm), [`add_norm`](Self::add_norm)).
/// - An operation may use further buffers for intermediate results: [`gated`](Self::gated) and [`experts`](Self::experts)
///   [`Buffer::Wide`], [`attend`](Self::attend) [`Buffer::Inner`], [`attend_latents`](Self::attend_latents) all but
///   [`Buffer::Branch`].
/// - An operation that takes a tensor by value changes it in place. After that only the returned tensor is valid.
/// - No operation may write to a buffer that it reads, except in place.
///
/// Debug builds check the contract on devices, and panic where a tensor is read after its buffer was written again.
pub(crate) trait Ops {
    /// How this device keeps matrices.
    type Matrix: Matrix;

    /// The embeddings of the step's tokens, `[tokens, hidden]`, plus those of their positions where the model has such. They are
    /// the first residual.
    fn embed(&self, table: &Self::Matrix, positions: Option<&Self::Matrix>) -> Result<Tensor>;
    /// The per-layer embeddings of the step's tokens, `[tokens, layers * width]`, made of their embeddings `x` and of a table.
    fn per_layer(&self, x: &Tensor, of: &PerLayer<Self::Matrix>) -> Result<Tensor>;
    /// `act(x)` times as many columns of `per_layer`, from the column `first` on.
    fn act_times(
        &self,
        x: Tensor,
        act: Activation,
        per_layer: &Tensor,
        first: usize,
    ) -> Result<Tensor>;
    /// The operations for layers that are computed for the output tokens alone. `tokens` has the rows of all tokens.
    fn for_output_tokens(&self, tokens: &Tokens) -> Result<OutputOps<Self>>
    where
        Self: Sized;
    /// The result of [`Layers::forward`](crate::layers::Layers::forward) where only output tokens have hidden states; `None` where there
    /// is no output token. On the CPU the result has a row for every token, with zeros for the others. On a device it has the rows
    /// of the output tokens alone.
    fn output_rows(&self, hidden: Option<&Tensor>) -> Result<Tensor>;
    /// The norm of the residual. `reader` is the matrix that alone multiplies the result, if there is one and nothing else reads
    /// the result. It may then have the form in which that matrix takes it.
    fn norm(&self, residual: &Tensor, norm: &Norm, reader: Option<&Self::Matrix>)
    -> Result<Tensor>;
    /// The norm of rows that are about to be added to the residual.
    fn post_norm(&self, x: Tensor, norm: &Norm) -> Result<Tensor>;
    /// `(residual + x) * scale`.
    fn add(&self, residual: Tensor, x: &Tensor, scale: f32) -> Result<Tensor>;
    /// `(residual + x) * scale`, and its norm for `reader`: see [`Self::norm`].
    fn add_norm(
        &self,
        residual: Tensor,
        x: &Tensor,
        scale: f32,
        norm: &Norm,
        reader: Option<&Self::Matrix>,
    ) -> Result<(Tensor, Tensor)>;
    /// Adds to the tokens of images what their encoder gives for this layer, behind the layer, as some models do ("deepstack"). `x` is the
    /// residual and `input` its norm by `norm`. The other tokens keep their bits.
    fn add_image_features(
        &self,
        layer: usize,
        rows: (Tensor, Tensor),
        norm: Option<&Norm>,
    ) -> Result<(Tensor, Tensor)>;
    /// `x W^T + b`, in the buffer `to`.
    fn linear(
        &self,
        x: &Tensor,
        linear: &Linear<Self::Matrix>,
        to: Buffer,
        reduce: Reduce,
    ) -> Result<Tensor>;
    /// Attention. `qkv` has the rows of q, k and v, or of q alone; the result is `[tokens, heads * head_dim]`, in
    /// [`Buffer::Attended`]. Writes keys and values to the cache.
    fn attend(&self, qkv: &Tensor, attention: &Attention<Self::Matrix>) -> Result<Tensor>;
    /// Latent attention, from the rows of queries and of latents to `[tokens, heads * value_dim]`, in [`Buffer::Inner`]. Writes
    /// latents to the cache.
    fn attend_latents(
        &self,
        q: &Tensor,
        latents: &Tensor,
        attention: &LatentAttention<Self::Matrix>,
    ) -> Result<Tensor>;
    /// Linear attention or an SSM, from the rows `[q, k, v, z]` and the inputs of decay and beta to `[tokens, values]`, in
    /// [`Buffer::Attended`]. Updates the states.
    fn linear_attention(
        &self,
        rows: &Tensor,
        gates: &Tensor,
        net: &LinearAttention<Self::Matrix>,
    ) -> Result<Tensor>;
    /// A short convolution, from the rows `[b, c, x]` to `[tokens, channels]`, in [`Buffer::Attended`]. Updates the states, which are the
    /// inputs that later tokens need.
    fn short_conv(&self, rows: &Tensor, conv: &ShortConv<Self::Matrix>) -> Result<Tensor>;
    /// The norm of each group of `x`, `[tokens, groups * dim]`, by weights `[groups, dim]`.
    fn norm_groups(&self, x: Tensor, norm: &Norm) -> Result<Tensor>;
    /// `x * sigmoid(gate)`. `gate` is as wide as `x`, or has one value for each row.
    fn gate(&self, x: Tensor, gate: &Tensor) -> Result<Tensor>;
    /// `act(gate) * up`, where `[gate, up]` are the rows of `x W^T + b`, in [`Buffer::Inner`]. `reader` alone multiplies the result:
    /// see [`Self::norm`].
    fn gated(
        &self,
        x: &Tensor,
        linear: &Linear<Self::Matrix>,
        act: Activation,
        reader: &Self::Matrix,
    ) -> Result<Tensor>;
    /// `act(x)`, in [`Buffer::Inner`].
    fn activate(&self, x: &Tensor, act: Activation) -> Result<Tensor>;
    /// Chooses the experts of each token by `scored`, the input of the router. The result is for [`Self::experts`]; on a device it lies in
    /// [`Buffer::Inner`].
    fn route(&self, scored: &Tensor, layer: &RoutedExperts<Self::Matrix>) -> Result<Tensor>;
    /// The weighted sum of each token's experts, over all ranks, in the buffer `to`. With `shared`, which has to lie there already, the
    /// sum of both.
    fn experts(
        &self,
        x: &Tensor,
        routes: &Tensor,
        layer: &RoutedExperts<Self::Matrix>,
        shared: Option<Tensor>,
        to: Buffer,
    ) -> Result<Tensor>;
}

/// The tensors that go from layer to layer.
#[derive(Clone)]
pub(crate) struct Tokens {
    /// The residual, `[tokens, hidden]`.
    pub(crate) x: Tensor,
    /// The input of the next block: a norm of the residual, or the residual itself.
    pub(crate) input: Tensor,
    /// The result of [`Ops::per_layer`].
    pub(crate) per_layer: Option<Tensor>,
}

/// The operations for the output tokens.
pub(crate) enum OutputOps<O> {
    /// Every token is an output token, so the operations stay.
    All,
    /// Operations on the rows of the output tokens, and these rows.
    Some(O, Tokens),
    /// There is no output token.
    None,
}

/// The buffers of a device among which the walk chooses. The CPU has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Buffer {
    /// Rows wider than the model: q, k and v, or gate and up; or a gate for rows in another buffer.
    Wide,
    /// Narrower rows that are read together with rows in [`Self::Wide`], or the activated rows of a feed-forward.
    Inner,
    /// Rows as wide as the model, to be added to the residual.
    Branch,
    /// Rows of heads. Where these are not needed any more, a second branch.
    Attended,
}

/// The part of ranks in a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduce {
    /// Each rank keeps its own result: its shard of the columns, a term of a later sum, or the same as all ranks.
    Keep,
    /// Each rank has some of the inputs, and the results are summed over all ranks.
    Sum,
}
