//! Finds or starts the server of a conversation.

use std::time::Duration;

use anyhow::Result;
use candlepower_client::tls::Identity;
use candlepower_server::ServeConfig;
use clap::Args;
use serde_json::Value;

use super::Chat;
use super::conversation::Conversation;
use super::local::LocalServer;
use super::session::Session;
use super::settings::Settings;
use super::style::Screen;
use super::target::{Target, wait_until_ready};
use crate::api::{Api, Transport, reachable};

/// Time limit for the question whether a server runs at the default address.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

impl Chat {
    /// Finds or starts the server, waits until it is ready, and asks for its model and its settings.
    ///
    /// # Errors
    /// The server cannot be started or reached, or has failed.
    pub(super) async fn connect(&self) -> Result<Session> {
        let screen = Screen::detect();
        let running = match (&self.url, &self.model) {
            (Some(url), _) => Some((url.clone(), None)),
            (None, None) if self.flags.is_empty() => running_server().await,
            _ => None,
        };
        let (api, mut local) = match running {
            Some((url, cacert)) => {
                let identity = self.cert.as_deref().zip(self.key.as_deref());
                let transport = Transport {
                    cacert: self.cacert.as_deref().or(cacert.as_deref()),
                    identity: identity.map(|(certificate, key)| Identity { certificate, key }),
                    http2: false,
                };
                (Api::new(&url, self.api_key.as_deref(), None, transport)?, None)
            }
            None => {
                let server =
                    LocalServer::start(self.model.as_deref().unwrap_or("demo"), &self.flags)?;
                let mut api = Api::new(&server.url(), None, None, Transport::default())?;
                api.shown = "the model's server".to_owned();
                (api, Some(server))
            }
        };
        let is_new = local.is_some();
        let check = || local.as_mut().map_or(Ok(()), LocalServer::check);
        wait_until_ready(&api, is_new, check).await?;
        let name = self.url.as_ref().and(self.model.as_deref());
        let target = Target::find(&api, name).await?;
        // Servers need no such document, and then they check the fields themselves.
        let document = api.get("/openapi.json").await.unwrap_or(Value::Null);
        Ok(Session {
            api,
            target,
            screen,
            conversation: Conversation::default(),
            settings: Settings::new(&document),
            tools: Vec::new(),
            images: Vec::new(),
            local,
        })
    }
}

/// Address and certificate of the candlepower server that runs with the environment's settings, if one does.
async fn running_server() -> Option<(String, Option<std::path::PathBuf>)> {
    let command = ServeConfig::augment_args(clap::Command::new("serve"));
    let flags = command.try_get_matches_from(["serve"]).ok()?;
    let config = ServeConfig::resolve(&flags, std::env::vars_os()).ok()?.config;
    let url = match &config.uds {
        Some(path) => format!("unix:{}", path.display()),
        None => format!("{}://{}:{}", config.scheme(), reachable(&config.host), config.port()),
    };
    let transport = Transport { cacert: config.ssl_certfile.as_deref(), ..Transport::default() };
    let api = Api::new(&url, None, Some(PROBE_TIMEOUT), transport).ok()?;
    let (_, health) = api.status("/health").await.ok()?;
    // Other servers at this address have no such answer.
    health["status"].is_string().then_some((url, config.ssl_certfile))
}
