//! How a matrix is kept in memory: what the codes of a quantized one mean, in which form the scales of its groups are, what becomes of
//! matrices that are computed as one, and how many bytes all of it takes.
//!
//! `checkpoint` plans with it what a model will need, `kernels` packs and multiplies by it.

mod codes;
mod packed;
mod panels;
mod scales;

pub use codes::Codes;
pub use packed::{MatrixForm, Packed};
pub use panels::{
    DEVICE_STEP, DEVICE_TILE, PANEL, TABLE, TABLE_STEPS, header_bytes, panel_bytes, scale_bytes,
};
pub use scales::{Blocks, Dtype, MinForm, MultipleForm, ScaleForm};
