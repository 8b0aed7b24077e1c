//! Mixers with a state of fixed size for each sequence.

/// Rows `b`, `c` and `x` of a token: `b * x` goes through a causal convolution, and what comes out is multiplied by `c`.
/// Source: Liquid AI, LFM2; transformers `models/lfm2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortConvSpec {
    /// Rows of each, and of what comes out.
    pub channels: usize,
    /// Kernel size of the convolution: a token and those before it that it sees.
    pub kernel_size: usize,
}

/// Attention whose memory is a matrix of each head, which a token changes by a rule, behind a short causal convolution of queries, keys and
/// values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearAttentionSpec {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, of the state and of what comes out; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a head of queries and keys.
    pub key_dim: usize,
    /// Width of a head of values.
    pub value_dim: usize,
    /// Kernel size of the convolution: a token and those before it that it sees.
    pub kernel_size: usize,
    /// The update rule.
    pub rule: UpdateRuleSpec,
    /// Heads of values that have the keys of one head are as many apart as there are heads of keys, not beside each other.
    pub tiled: bool,
    /// Rates of decay are stored as their logarithms, not negated as they are.
    pub log_rates: bool,
    /// Added to the mean squares of what comes out, which is normed.
    pub eps: f64,
}

/// The update rule of a recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateRuleSpec {
    /// The gated delta rule; each head of what comes out is normed, and gated then.
    /// Source: "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024, arXiv 2412.06464; transformers `models/qwen3_next`.
    Delta,
    /// Mamba-2, where queries, keys and values are called C, B and x, and heads of keys groups; what comes out is gated, and what belongs to
    /// each head of keys is normed then.
    /// Source: "Transformers are SSMs", 2024, arXiv 2405.21060; transformers `models/bamba`.
    Mamba2 {
        /// The convolution has a bias.
        conv_bias: bool,
    },
}

impl LinearAttentionSpec {
    /// Rows of queries, and of keys.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Rows of values.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Rows that are convolved: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Rows of queries, keys, values and the gate of what comes out.
    pub fn width(&self) -> usize {
        self.channels() + self.values()
    }

    /// Rows of decay and beta.
    pub fn gates(&self) -> usize {
        match self.rule {
            UpdateRuleSpec::Delta => 2 * self.value_heads,
            UpdateRuleSpec::Mamba2 { .. } => self.value_heads,
        }
    }

    /// Values of the vectors that are single precision everywhere: conv kernel weights and their biases, decays and their biases, and
    /// the norm of a head or the factors on values.
    pub fn exact(&self) -> usize {
        let of_rule = match self.rule {
            UpdateRuleSpec::Delta => self.value_dim,
            UpdateRuleSpec::Mamba2 { conv_bias } => {
                self.value_heads + if conv_bias { self.channels() } else { 0 }
            }
        };
        self.channels() * self.kernel_size + 2 * self.value_heads + of_rule
    }

    /// The shard of one of `ranks` ranks: some value heads, and the key heads that belong to them.
    pub fn shard(&self, ranks: usize) -> Self {
        let mut part = *self;
        part.key_heads = part.key_heads.div_ceil(ranks);
        part.value_heads = part.value_heads.div_ceil(ranks);
        part
    }
}
