//! Models from the hub: a model id becomes a folder in the cache that the hub's own tools use, every file of it verified,
//! or one line that says why not and what to do.
//!
//! [`Hub::open`] fetches what describes a model (configuration, tokenizer, chat template), so that it can be refused
//! before its weights are asked for; [`HubModel::fetch_weights`] fetches those. Files that are in the cache are not
//! asked for again: a model that is there whole costs one request, which asks whether its revision has moved, and none
//! where the revision is a commit or the hub is not to be asked (`HF_HUB_OFFLINE`).

mod cache;
mod config;
mod digest;
mod error;
mod listing;
mod model;
mod model_id;
mod progress;
mod transfer;

pub use config::{HubConfig, HubSettings, Token};
pub use error::{Error, Result};
pub use model::{Hub, HubModel};
pub use model_id::{GgufName, ModelId, ModelName};
pub use progress::{DownloadProgress, FileProgress};
