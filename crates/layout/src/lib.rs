//! Constants and enums that the memory plan and the runtime share. They cover the bytes of quantized matrices and the form of their
//! scales, the widths and buffers of attention on a GPU, and the functions that configurations name.
//!
//! `checkpoint` plans the memory of a model with them; `kernels` and `gpu` compute with them.

mod activations;
mod buffers;
mod functions;
mod head_dims;
mod packed;
mod panels;
mod quant_format;
mod scales;

pub use activations::ActivationScales;
pub use buffers::{
    DEVICE_HEAD_DIMS, DEVICE_LATENT_DIMS, LATENT_PARTIALS_BYTES, LINEAR_ATTENTION_CHUNK,
    LOGITS_ROWS, MAX_DEVICE_HEAD_DIM, MAX_EXPERT_GROUPS, PATCH_KEYS, PATCH_QUERIES, SCHEDULE_BYTES,
    SCHEDULES, attention_partials_bytes, device_head_dim, device_latent_dims, device_latent_tokens,
    device_logits_rows, device_samples_at_once, device_sampling_bytes,
    linear_attention_chunk_values, linear_attention_chunks, linear_attention_row_values,
    linear_attention_rows,
};
pub use functions::{Activation, ExpertGroups, GatingFunction, GroupScore};
pub use packed::{MatrixForm, Packed};
pub use panels::{
    DEVICE_STEP, DEVICE_TILE, PANEL, TABLE, TABLE_STEPS, header_bytes, panel_bytes, scale_bytes,
};
pub use quant_format::QuantFormat;
pub use scales::{Blocks, Dtype, OffsetForm, ScaleForm, SubScaleForm};
