//! Downloads models from the hub. A model id becomes a folder in the cache that the hub's own tools use, with every
//! file verified; or an error of one line with its remedy.
//!
//! [`Hub::open`] fetches the files that describe a model (configuration, tokenizer, chat template), so that an
//! unsupported model is refused before its weights are downloaded. [`HubModel::fetch_weights`] downloads those.
//!
//! Files in the cache are not downloaded again. A complete model costs one request, which checks whether its revision
//! has moved. It costs none if the revision is a commit, or if the client is offline (`HF_HUB_OFFLINE`).

mod cache;
mod config;
mod digest;
mod error;
mod in_use;
mod listing;
mod model;
mod model_id;
mod progress;
mod stored;
mod transfer;

pub use config::{HubConfig, HubSettings, Token};
pub use error::{Error, Result};
pub use in_use::InUse;
pub use model::{Hub, HubModel};
pub use model_id::{GgufName, ModelId, ModelName};
pub use progress::{DownloadProgress, FileProgress};
pub use stored::{Removal, StoredCommit, StoredError, StoredModel, StoredRepo, stored};
