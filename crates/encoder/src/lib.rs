//! An encoder's checkpoint becomes vectors and scores of texts.
//!
//! [`Encoder::load`] reads the weights into f32 on the CPU. [`Encoder::run`] computes one batch: BERT and what is built like it
//! over our own kernels, ModernBERT and NomicBERT as candle-transformers has them. A text's result does not depend on the other
//! texts of its batch: with BERT not by a bit, otherwise up to the rounding of f32.

mod bert;
mod encoder;
mod error;
mod layers;
mod pooler;
mod pooling;
mod score;
mod weights;

pub use encoder::{Encoder, EncoderInput, LoadProgress};
pub use error::{Error, Result};
pub use pooler::Pooler;
