//! Images against what Pillow and transformers make of them, and against hosts and files with anything in them.

mod bombs;
mod decoded;
mod fetched;
mod processed;
mod resized;
mod support;
