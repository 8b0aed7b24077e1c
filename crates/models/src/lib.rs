//! A checkpoint becomes a model: loader, layers, decoder.
//!
//! [`load()`] turns a [`Checkpoint`](candlepower_checkpoint::Checkpoint) into a [`Decoder`]: one
//! decoder, driven by the checkpoint's `ModelSpec`, runs every architecture. It keeps no state of
//! any sequence; keys, values and states live in the [`Cache`] that the caller passes to
//! [`Decoder::forward`]. [`load_on_device()`] makes a [`DeviceDecoder`] of it, which walks through the same layers with
//! the operations of a GPU. [`load_shard()`] and [`load_shard_on_device()`] load what one of several ranks computes.

mod attention;
mod cache;
mod collectives;
mod decoder;
mod device_decoder;
mod dummy;
mod encoder;
mod error;
mod kv_scales;
mod latent_attention;
mod layers;
mod linear;
mod linear_attention;
mod load;
mod norm;
mod ops;
mod output_tokens;
mod parts;
mod quantized;
mod rope;
mod rows;
mod shards;
mod short_conv;
mod states;
mod vision;
mod walk;

pub use cache::{Cache, CacheSize};
pub use decoder::{Decoder, ForwardInput, GivenRows};
pub use device_decoder::{
    AttentionLine, DeviceDecoder, DeviceInput, DeviceOutputTokens, Workspace, WorkspaceSize,
};
pub use encoder::{Encoder, EncoderInput, Pooler};
pub use error::{Error, Result};
pub use load::{
    LoadDtype, LoadFormat, LoadOptions, LoadProgress, load, load_on_device, load_shard,
    load_shard_on_device,
};
pub use output_tokens::OutputTokens;
pub use quantized::{dequantize_reference, recoded_values};
pub use vision::{ImageEncoder, ImageRun};
