//! `candlepower bench serve`: measures a server over HTTP, level by level.

mod report;

use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use super::load::{Load, Requests};
use super::output::{JsonTarget, Output};
use super::picture::PictureSize;
use super::prompts::{PromptForm, PromptSettings, Prompts, Workload};
use super::{progress_bar, unix_seconds, usage_error};
use report::Level;

use crate::api::{Api, TlsFlags, Transport};

/// Default number of requests of a level for each client, and the minimum for a level.
const REQUESTS_PER_CLIENT: usize = 4;
const LEAST_REQUESTS: usize = 8;
/// Default number of requests of a level with a rate.
const REQUESTS_AT_A_RATE: usize = 32;
/// Distance between the first prompts' numbers of two levels, so that no prompt is sent twice.
const LEVEL_STRIDE: u64 = 1 << 32;

/// The server and the load to measure.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// URL of the server, with or without /v1
    #[arg(long, alias = "base-url", value_name = "URL", default_value = "http://127.0.0.1:8000")]
    url: String,
    /// Model name [default: the first that the server lists]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// API key of the server. Prefer the environment, which other users cannot read
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    #[command(flatten)]
    tls: TlsFlags,
    /// Use HTTP/2 instead of HTTP/1.1; without TLS by prior knowledge
    #[arg(long)]
    http2: bool,
    /// Endpoint to measure
    #[arg(long, value_enum, default_value_t)]
    workload: Workload,
    /// Concurrent clients, each with one request at a time; one level for each number, separated by commas
    #[arg(long, alias = "max-concurrency", value_name = "N,..", value_delimiter = ',', default_value = "1,4,16", value_parser = positive)]
    concurrency: Vec<usize>,
    /// Requests per second at random times (a Poisson process), instead of a number of clients
    #[arg(long, alias = "request-rate", value_name = "R,..", value_delimiter = ',', conflicts_with = "concurrency", value_parser = rate)]
    rate: Vec<f64>,
    /// Number of requests: one number, or one for each level [default: 4 for each client, at least 8; 32 with --rate]
    #[arg(long, alias = "num-prompts", value_name = "N,..", value_delimiter = ',', value_parser = positive)]
    requests: Vec<usize>,
    /// Prompt length in tokens, without the shared prefix
    #[arg(long, alias = "random-input-len", value_name = "N", default_value = "512", value_parser = positive)]
    input_tokens: usize,
    /// Tokens to generate for each request
    #[arg(long, alias = "random-output-len", value_name = "N", default_value = "128", value_parser = positive)]
    output_tokens: usize,
    /// Tokens of a prefix that all prompts share; the warm-up sends it, so that it is cached
    #[arg(long, value_name = "N", default_value = "0", value_parser = any)]
    shared_prefix_tokens: usize,
    /// Size of a random picture that each prompt begins with, for --workload chat and models that take images. --input-tokens
    /// counts the text alone
    #[arg(long, value_name = "WIDTHxHEIGHT")]
    image_size: Option<PictureSize>,
    /// Form of the prompts
    #[arg(long, value_enum, default_value_t)]
    prompts: PromptForm,
    /// Do not send ignore_eos, which some servers refuse. Answers may then be shorter than --output-tokens
    #[arg(long)]
    no_ignore_eos: bool,
    /// Warm-up requests before the measurement
    #[arg(long, value_name = "N", default_value = "2", value_parser = any)]
    warmup: usize,
    /// Maximum seconds for one request
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Seed of prompts and arrival times
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Write the results as JSON to a file; with -, to standard output, and the table to standard error
    #[arg(long, value_name = "FILE|-")]
    json: Option<JsonTarget>,
}

/// Maximum of tokens, requests and clients. A larger number is a typing error, and would not fit memory.
const MOST: usize = 10_000_000;
/// Range of requests per second: from one in eleven days to one in a nanosecond.
const RATES: RangeInclusive<f64> = 1e-6..=1e9;

pub(super) fn positive(text: &str) -> Result<usize, String> {
    number_from(1, text)
}

fn any(text: &str) -> Result<usize, String> {
    number_from(0, text)
}

fn number_from(least: usize, text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (least..=MOST).contains(number));
    number.ok_or_else(|| format!("a whole number from {least} to {MOST} is needed"))
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|rate| RATES.contains(rate));
    let (least, most) = (RATES.start(), RATES.end());
    number.ok_or_else(|| format!("a number from {least} to {most} is needed"))
}

impl ServeArgs {
    /// # Errors
    /// The server cannot be used, or the results cannot be written.
    pub(super) async fn run(self) -> Result<ExitCode> {
        let loads = self.loads();
        // clap cannot express a conflict between two values.
        if self.workload == Workload::Chat && self.prompts == PromptForm::Ids {
            usage_error(
                "--prompts ids: --workload chat takes text only; use --prompts text or auto"
                    .to_owned(),
            );
        }
        if self.image_size.is_some() && self.workload != Workload::Chat {
            usage_error(
                "--image-size: pictures are parts of chats; use --workload chat".to_owned(),
            );
        }
        let output = Output::open(self.json.as_ref())?;
        let started_at = unix_seconds();
        let timeout = Duration::from_secs(self.timeout);
        let transport = Transport { http2: self.http2, ..self.tls.transport() };
        let api = Arc::new(Api::new(&self.url, self.api_key.as_deref(), Some(timeout), transport)?);
        let target = self.prepare(&api).await?;
        let mut levels = Vec::new();
        for (number, &(load, count)) in loads.iter().enumerate() {
            let bar = progress_bar(count, load.to_string())?;
            // The numbers below the first stride belong to the warm-up.
            let first = (number as u64 + 1) * LEVEL_STRIDE;
            let requests = self.requests(&api, &target, first, count);
            let measured = load.run(requests, self.seed.wrapping_add(first), &bar).await;
            bar.finish_and_clear();
            levels.push(Level::new(
                load,
                &measured,
                (!self.no_ignore_eos).then_some(self.output_tokens),
            ));
        }
        let json = json!({
            "kind": "serve",
            "version": env!("CARGO_PKG_VERSION"),
            "started_at": started_at,
            "server": {"url": api.base, "model": target.model},
            "settings": self.settings(&target),
            "levels": levels,
        });
        output.deliver(&report::to_table(&target.description(&self), &levels), &json)?;
        let failed = levels.iter().any(Level::has_failures);
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// The levels with their numbers of requests.
    fn loads(&self) -> Vec<(Load, usize)> {
        let loads: Vec<Load> = if self.rate.is_empty() {
            let closed = |&concurrency: &usize| Load::Closed { concurrency };
            self.concurrency.iter().map(closed).collect()
        } else {
            self.rate.iter().map(|&rate_per_s| Load::Open { rate_per_s }).collect()
        };
        let (given, needed) = (self.requests.len(), loads.len());
        if given > 1 && given != needed {
            usage_error(format!(
                "--requests has {given} numbers for {needed} levels: give one number, or one for each level"
            ));
        }
        let counts = loads.iter().enumerate().map(|(i, load)| match (given, load) {
            (0, Load::Closed { concurrency }) => {
                LEAST_REQUESTS.max(concurrency * REQUESTS_PER_CLIENT)
            }
            (0, Load::Open { .. }) => REQUESTS_AT_A_RATE,
            (1, _) => self.requests[0],
            _ => self.requests[i],
        });
        loads.iter().copied().zip(counts).collect()
    }

    /// Finds the model and the form of prompts, and sends the warm-up.
    async fn prepare(&self, api: &Arc<Api>) -> Result<Target> {
        let model = match &self.model {
            Some(model) => model.clone(),
            None => first_model(api).await?,
        };
        let settings = PromptSettings {
            model: model.clone(),
            workload: self.workload,
            form: self.prompts,
            input_tokens: self.input_tokens,
            shared_prefix_tokens: self.shared_prefix_tokens,
            image_size: self.image_size,
            seed: self.seed,
        };
        let prompts = Prompts::new(api, settings).await?;
        let target = Target { model, prompts };
        // Warm-up requests are sent one at a time, so that the later ones find the shared prefix in the cache.
        let warmup = self.warmup.max(usize::from(self.shared_prefix_tokens > 0));
        let bar = progress_bar(warmup, "warm-up".to_owned())?;
        for body in self.requests(api, &target, 0, warmup).bodies {
            api.measure(self.workload.path(), body).await.context("the warm-up failed")?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(target)
    }

    /// Requests with `count` prompts, from number `first` on.
    fn requests(&self, api: &Arc<Api>, target: &Target, first: u64, count: usize) -> Requests {
        let bodies = (0..count as u64)
            .map(|i| self.body(target, first + i).to_string().into_bytes())
            .collect();
        Requests { api: Arc::clone(api), path: self.workload.path(), bodies }
    }

    fn body(&self, target: &Target, number: u64) -> Value {
        let (name, prompt) = target.prompts.field(number);
        let mut body = json!({
            "model": target.model,
            name: prompt,
            "max_tokens": self.output_tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if !self.no_ignore_eos {
            body["ignore_eos"] = true.into();
        }
        body
    }

    fn settings(&self, target: &Target) -> Value {
        json!({
            "workload": self.workload.as_str(),
            "prompts": target.prompts.form(),
            "http2": self.http2,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "shared_prefix_tokens": self.shared_prefix_tokens,
            "image_size": self.image_size.map(|size| size.to_string()),
            "ignore_eos": !self.no_ignore_eos,
            "temperature": 0,
            "warmup": self.warmup,
            "timeout_s": self.timeout,
            "seed": self.seed,
        })
    }
}

/// A server that is warmed up.
struct Target {
    model: String,
    prompts: Prompts,
}

impl Target {
    /// A line that describes the workload.
    fn description(&self, args: &ServeArgs) -> String {
        let shared = match args.shared_prefix_tokens {
            0 => String::new(),
            shared => format!("{shared} shared and "),
        };
        let (input, output) = (args.input_tokens, args.output_tokens);
        let form = self.prompts.form().replace('_', " ");
        let picture = args.image_size.map(|size| format!(" and a picture of {size}"));
        let picture = picture.unwrap_or_default();
        format!(
            "{} at {}: {}, {shared}{input} tokens in as {form}{picture}, {output} out",
            self.model,
            args.url,
            args.workload.as_str()
        )
    }
}

async fn first_model(api: &Api) -> Result<String> {
    let models = api.get("/v1/models").await?;
    let id = models["data"][0]["id"].as_str();
    Ok(id.context("the server lists no model; give one with --model")?.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;

    #[test]
    fn each_level_has_as_many_requests_as_given_or_enough_for_its_clients() {
        let counts = |argv: &[&str]| {
            let command = ServeArgs::augment_args(Command::new("serve").no_binary_name(true));
            let matches = command.try_get_matches_from(argv).unwrap();
            let loads = ServeArgs::from_arg_matches(&matches).unwrap().loads();
            loads.into_iter().map(|(load, count)| format!("{load}: {count}")).collect::<Vec<_>>()
        };
        assert_eq!(counts(&[]), ["1 client: 8", "4 clients: 16", "16 clients: 64"]);
        assert_eq!(counts(&["--rate", "0.5,2"]), ["0.5/s: 32", "2/s: 32"]);
        assert_eq!(counts(&["--rate", "0.5,2", "--requests", "7"]), ["0.5/s: 7", "2/s: 7"]);
        let given = ["--concurrency", "1,2", "--requests", "5,6"];
        assert_eq!(counts(&given), ["1 client: 5", "2 clients: 6"]);
    }
}
