//! Rounding of activations to FP8 before a product with FP8 weights.

/// Scales of activations that are rounded to e4m3. A rounded activation is `e4m3(x / scale) * scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationScales {
    /// One scale for each row, computed from the row: its largest magnitude becomes 448.
    Row,
    /// One scale for so many neighbouring inputs of a row, computed from them.
    Group(usize),
    /// One scale for all rows, which the checkpoint has.
    Fixed,
}

impl ActivationScales {
    /// The scales for two matrices that are multiplied as one; `None` if they differ.
    #[must_use]
    pub fn join(this: Option<Self>, other: Option<Self>) -> Option<Self> {
        if this == other { this } else { None }
    }

    /// Inputs that share a scale, of `k`.
    #[must_use]
    pub fn group(self, k: usize) -> usize {
        match self {
            Self::Row | Self::Fixed => k,
            Self::Group(group) => group.min(k),
        }
    }

    /// The scales in words, as logs and `doctor` name them.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Row => "a scale per row".to_owned(),
            Self::Group(group) => format!("a scale per {group} inputs of a row"),
            Self::Fixed => "the checkpoint's scales".to_owned(),
        }
    }
}
