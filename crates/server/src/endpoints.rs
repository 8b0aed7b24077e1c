//! One file an endpoint: it reads the body, asks the model and writes the answer in the format of its API.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod generate;
pub(crate) mod health;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod openapi;
mod page;
pub(crate) mod playground;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod tokenize;
