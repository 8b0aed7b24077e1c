//! A checkpoint becomes a model: loader, layers, decoder.
//!
//! [`load()`] turns a [`Checkpoint`](candlepower_checkpoint::Checkpoint) into a [`Decoder`]: one
//! decoder, driven by the checkpoint's `ModelSpec`, runs every architecture. It keeps no state of
//! any sequence; keys and values live in the paged `KvCache` that the caller passes to
//! [`Decoder::forward`].

mod attention;
mod decoder;
mod dummy;
mod error;
mod linear;
mod load;
mod mlp;
mod norm;
mod parts;
mod rope;
mod shards;

pub use decoder::{Decoder, ForwardInput};
pub use error::{Error, Result};
pub use load::{LoadDtype, LoadFormat, LoadOptions, LoadProgress, load};
