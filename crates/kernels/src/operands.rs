//! Checks and arithmetic that operations of other devices share with these kernels: operands by name, shapes, and
//! reading quantized weights.

pub use crate::activation::{TIMES as ACTIVATION_TIMES, times_width};
pub use crate::attention::SequenceView;
pub use crate::experts::{OfExperts, check_groups, check_top_k};
pub use crate::norm::{last_dim, weight_rows};
pub use crate::short_conv::KERNEL as SHORT_CONV;
pub use crate::tensor::{CpuSlice, Operand};
pub use crate::weight::{E2M1, Entry, IQ4_ZERO, Sparse, TABLE, counted_iq4, e4m3_part};
