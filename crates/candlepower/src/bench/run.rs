//! `candlepower bench run`: measures the engine alone, shape by shape.

mod report;
mod shape;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use candlepower_engine::EngineInfo;
use candlepower_machine::Machine;
use candlepower_server::config::{ByteSize, Effective, Setting};
use candlepower_server::{ServeConfig, init_logging, start_engine};
use clap::Args;
use serde_json::{Value, json};

use super::meter::StepMeter;
use super::output::{JsonTarget, Output};
use super::{progress_bar, unix_seconds};
use report::{Weights, to_json, to_table};
use shape::{Shape, ShapeRunner};

/// Tokens of the warm-up shape.
const WARMUP_TOKENS: usize = 8;

/// The shapes to measure.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    settings: ServeConfig,
    /// The settings as text.
    #[arg(skip)]
    in_force: Vec<Setting>,
    /// Batch sizes in sequences, separated by commas
    #[arg(long, help_heading = "Bench", value_name = "N,..", value_delimiter = ',', default_value = "1,8,64", value_parser = super::serve::positive)]
    batch: Vec<usize>,
    /// Prompt lengths in tokens, separated by commas
    #[arg(long, help_heading = "Bench", value_name = "N,..", value_delimiter = ',', default_value = "512", value_parser = super::serve::positive)]
    input_tokens: Vec<usize>,
    /// Tokens that each sequence generates
    #[arg(long, help_heading = "Bench", value_name = "N", default_value = "128", value_parser = super::serve::positive)]
    output_tokens: usize,
    /// Write the results as JSON to a file; with -, to standard output, and the table to standard error
    #[arg(long, help_heading = "Bench", value_name = "FILE|-")]
    json: Option<JsonTarget>,
}

impl RunArgs {
    /// Takes the settings in force, from the environment and the config file too.
    pub(super) fn set_in_force(&mut self, effective: Effective) {
        self.settings = effective.config;
        self.in_force = effective.settings;
    }

    /// # Errors
    /// The model cannot be loaded, a shape does not fit it, or the results cannot be written.
    pub(super) async fn run(self) -> Result<ExitCode> {
        let output = Output::open(self.json.as_ref())?;
        let started_at = unix_seconds();
        let terminal = init_logging(&self.settings).context("cannot start the log")?;
        let meter = StepMeter::default();
        let begin = Instant::now();
        let started = start_engine(self.settings.clone(), &terminal, meter.metrics()).await?;
        let load_s = begin.elapsed().as_secs_f64();
        let info = started.engine.info().clone();
        let weights = Weights::new(&info, &started.spec);
        let shapes = self.shapes();
        for shape in &shapes {
            self.check(shape, &info)?;
        }
        let mut runner = ShapeRunner::new(started.engine, meter, self.settings.seed);
        runner.run(self.warmup()).await.context("the warm-up failed")?;
        let bar = progress_bar(shapes.len(), "shapes".to_owned())?;
        let mut results = Vec::new();
        for shape in shapes {
            bar.set_message(shape.to_string());
            bar.tick();
            results.push(runner.run(shape).await.with_context(|| shape.to_string())?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        let name = self.settings.model.as_deref().unwrap_or_default();
        let json = json!({
            "kind": "run",
            "version": env!("CARGO_PKG_VERSION"),
            "started_at": started_at,
            "machine": Machine::probe(),
            "model": weights.to_json(name, &info),
            "engine": self.engine_json(&info, load_s),
            "settings": self.settings_json(),
            "shapes": results.iter().map(|result| to_json(result, &weights)).collect::<Vec<_>>(),
        });
        output.deliver(&to_table(name, &info, &weights, &results), &json)?;
        Ok(ExitCode::SUCCESS)
    }

    fn shapes(&self) -> Vec<Shape> {
        let output_tokens = self.output_tokens;
        let with_length = |&input_tokens: &usize| {
            self.batch.iter().map(move |&batch| Shape { batch, input_tokens, output_tokens })
        };
        self.input_tokens.iter().flat_map(with_length).collect()
    }

    fn warmup(&self) -> Shape {
        // The shortest length fits: the checks of all shapes have passed before.
        let input_tokens = self.input_tokens.iter().copied().min().unwrap_or(WARMUP_TOKENS);
        Shape { batch: 1, input_tokens, output_tokens: self.output_tokens.min(WARMUP_TOKENS) }
    }

    /// Refuses shapes that the engine would split into several batches, because then another shape would be measured.
    fn check(&self, shape: &Shape, info: &EngineInfo) -> Result<()> {
        let settings = &self.settings;
        // A decode has one token a sequence, so both limits bound the sequences of a step.
        let at_once = info.max_num_seqs.min(info.max_num_batched_tokens);
        if shape.batch > at_once {
            bail!(
                "{shape}: a step has at most {at_once} sequences; raise --max-num-seqs and --max-num-batched-tokens (a model with recurrent states also needs memory for more state slots)"
            );
        }
        let length = shape.sequence_tokens();
        if length > info.max_model_len {
            bail!(
                "{shape}: {length} tokens are more than the context of {}; lower --input-tokens or --output-tokens",
                info.max_model_len
            );
        }
        if !settings.prefix_caching() {
            bail!(
                "decoding is measured with the prompts in the prefix cache: leave out --no-enable-prefix-caching"
            );
        }
        let needed = shape.batch * length.div_ceil(info.block_size);
        if needed > info.num_blocks {
            let block_bytes = info.kv_cache_bytes / info.num_blocks as u64;
            bail!(
                "{shape}: {needed} KV blocks are needed, the KV cache has {}; give --kv-cache-memory {} ({})",
                info.num_blocks,
                needed as u64 * block_bytes,
                ByteSize(needed as u64 * block_bytes)
            );
        }
        Ok(())
    }

    fn settings_json(&self) -> Value {
        json!({
            "batch": self.batch,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "seed": self.settings.seed,
        })
    }

    /// The engine's properties, and all settings of `serve` in force.
    fn engine_json(&self, info: &EngineInfo, load_s: f64) -> Value {
        let settings: BTreeMap<&str, &str> = self
            .in_force
            .iter()
            .map(|setting| (setting.name.as_str(), setting.value.as_str()))
            .collect();
        json!({
            "device": info.device,
            "threads": info.num_threads,
            "max_num_batched_tokens": info.max_num_batched_tokens,
            "block_size": info.block_size,
            "num_blocks": info.num_blocks,
            "num_states": info.num_states,
            "state_bytes": info.state_bytes,
            "kv_cache_bytes": info.kv_cache_bytes,
            "kv_cache_dtype": info.kv_cache_dtype,
            "load_s": load_s,
            "settings": settings,
        })
    }
}
