//! Functions that configurations name and kernels compute: activations and the choice of experts.

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`, also called swish.
    Silu,
    /// `x * Phi(x)` with the exact normal distribution function (erf).
    Gelu,
    /// The tanh approximation of [`Activation::Gelu`].
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// `x * sigmoid(1.702 * x)` with `x` at most 7, times `1 + up` with `up` clamped to -7 to 7 (gpt-oss). Gated only.
    SwigluOai,
}

impl Activation {
    /// Each of them.
    pub const ALL: [Self; 6] =
        [Self::Silu, Self::Gelu, Self::GeluTanh, Self::Relu, Self::ReluSquared, Self::SwigluOai];
}

/// Function from a router's scores to the experts' probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatingFunction {
    /// The softmax over all scores.
    Softmax,
    /// The sigmoid of each score.
    Sigmoid,
}

/// Experts in groups of equal size, one group after the other. A token's experts are chosen from its best groups alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups: at most [`MAX_EXPERT_GROUPS`](crate::MAX_EXPERT_GROUPS), and a divisor of the number of experts.
    pub count: usize,
    /// Number of groups that a token's experts are chosen from; they have at least `top_k` experts together.
    pub chosen: usize,
    /// Score of a group.
    pub score: GroupScore,
}

/// Score of a group for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// The score of its best expert (DeepSeek V2).
    Best,
    /// The sum of the scores of its best two experts (DeepSeek V3).
    BestTwo,
}
