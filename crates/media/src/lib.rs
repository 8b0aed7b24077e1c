//! Images: fetched safely, decoded, bounded, hashed, made into pixel tensors.
//!
//! An image goes through four steps, and each is a function of its own:
//! 1. [`Fetcher::fetch`] turns a URL into encoded bytes. It is async; all other steps compute and belong on a blocking thread.
//! 2. [`decode`] turns encoded bytes into a [`Picture`]: 8-bit RGB, with the EXIF orientation applied.
//! 3. [`Processor::process`] resizes a picture for a family of models and keeps 8-bit pixels.
//! 4. [`Processed::values`] turns those pixels into the float32 values that a vision tower reads.
//!
//! Everything that an input can make large has a limit: bytes and pixels by [`Limits`], time by [`Deadline`].

mod budget;
mod deadline;
mod decode;
mod digest;
mod error;
mod fetch;
mod format;
mod limits;
mod picture;
mod process;
mod resize;

pub use budget::{ImageBudget, WaitingImage};
pub use deadline::Deadline;
pub use decode::decode;
pub use digest::ImageDigest;
pub use error::{Error, ErrorKind, Result};
pub use fetch::{
    AllowedDomain, Encoded, FetchPolicy, Fetcher, Resolver, SystemResolver, address_refusal,
};
pub use format::Format;
pub use limits::Limits;
pub use picture::Picture;
pub use process::{Detail, Family, Layout, Processed, Processor};
pub use resize::{Filter, resize};
