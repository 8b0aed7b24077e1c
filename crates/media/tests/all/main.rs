//! Images against what Pillow and transformers make of them, and against hosts and files with anything in them.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod bombs;
mod decoded;
mod fetched;
mod processed;
mod resized;
mod support;
