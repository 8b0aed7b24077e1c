//! Callers: whose sequences they are.

/// Names a caller, such as the owner of a key. The scheduler asks only whether two are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallerId(pub u64);
