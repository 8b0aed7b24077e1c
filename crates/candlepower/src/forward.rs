//! `candlepower forward`: a local port that leads to a deployment in a cluster.

use std::process::ExitCode;

use candlepower_client::{Error, Result};
use candlepower_machine::print;
use clap::Args;
use serde_json::{Value, json};

use crate::deployments::{Output, Shown};
use crate::place::Place;

/// `candlepower forward`.
#[derive(Debug, Args)]
pub(crate) struct Forward {
    /// Name of the deployment
    name: String,
    /// Local port [default: a free one]
    #[arg(long)]
    port: Option<u16>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: Output,
}

impl Forward {
    pub(crate) fn run(&self) -> ExitCode {
        self.output.finish(async {
            let deployment = self.place.client()?.get(&self.name).await?;
            let forward = deployment.forward(self.port).await?;
            print(&match self.output.json {
                true => format!("{}\n", json!({ "name": self.name, "url": forward.url })),
                false => {
                    format!("{} is available at {}; press Ctrl-C to stop\n", self.name, forward.url)
                }
            });
            interrupted().await?;
            Ok(Shown { text: String::new(), json: Value::Null })
        })
    }
}

async fn interrupted() -> Result<()> {
    let waited = tokio::signal::ctrl_c().await;
    waited.map_err(|error| Error::Backend {
        doing: "cannot wait for Ctrl-C".into(),
        cause: error.to_string(),
    })
}
