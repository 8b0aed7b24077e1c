//! `candlepower doctor`: shows this machine, and whether a model fits, without loading it.

mod encoder;
mod report;

use std::fmt;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use candlepower_checkpoint::{
    BATCHED_TOKENS, Checkpoint, CheckpointFiles, Counted, DTYPES, Description, DeviceKind,
    DeviceMemory, Dtype, EncoderCheckpoint, EncoderMemoryRequest, GPU_MEMORY_UTILIZATION,
    ImageMemory, KvDtype, MemoryPlan, MemoryRequest, OnLoad, QuantizationMethod,
};
use candlepower_hub::ModelName;
use candlepower_machine::{Machine, print, print_error};
use candlepower_server::ServeConfig;
use candlepower_server::config::{Asked, ByteSize, one_of};
use clap::{Args, FromArgMatches};
use serde_json::json;

use crate::failure;
use encoder::EncoderReport;
use report::ModelReport;

/// End of the long help.
pub(crate) const AFTER_HELP: &str = "Examples:\n  \
    candlepower doctor\n  \
    candlepower doctor ./Qwen2.5-7B-Instruct --max-model-len 8192\n  \
    candlepower doctor Qwen/Qwen2.5-7B-Instruct\n  \
    candlepower doctor demo --json\n\n\
    Exit status: 0 if the model fits this machine; 1 if it does not, or is not supported; 2 for an invalid command line.\n\n\
    --json writes one object; sizes are bytes, contexts are tokens, and all values are of one rank:\n  \
    machine                  cpu, memory, gpus, container_engines, kubernetes\n  \
    model                    the argument MODEL (this and all below only with a model)\n  \
    architecture             class name in config.json, or null\n  \
    supported                whether this version can serve the model\n  \
    quantization             quantization method in config.json, or null\n  \
    quantize_on_load         int8, int4, fp8 or null\n  \
    rounded_activations      how activations are rounded to FP8 before products, in words, or null\n  \
    message                  reason if the model is not supported or does not fit, else null\n  \
    dtype                    of unquantized weights: float32, float16, bfloat16\n  \
    num_parameters           number of parameters\n  \
    max_model_len            context: --max-model-len, or the model's own\n  \
    max_num_batched_tokens   batch tokens: --max-num-batched-tokens, or the default\n  \
    tensor_parallel_size     number of ranks\n  \
    weights_bytes            of the weights as loaded\n  \
    kv_bytes_per_token       KV/token\n  \
    kv_bytes_per_sequence    KV/context: KV cache of one sequence of max_model_len\n  \
    max_num_seqs             max sequences: --max-num-seqs, or fewer if their recurrent states would take too much memory\n  \
    state_bytes              of recurrent states (linear attention, SSM), which some models have besides the KV cache\n  \
    activation_bytes         of a step's activations, an upper estimate\n  \
    image_bytes              of resized images and embeddings of images; 0 if the model takes none\n  \
    needed_bytes             weights, states, activations, images and the KV cache of one sequence\n  \
    available_bytes          free memory, or null if unknown\n  \
    kv_cache_bytes           of the KV cache that `serve` would allocate\n  \
    kv_cache_dtype           float32, float16, bfloat16, fp8; null without a KV cache\n  \
    fits                     whether `serve` would start on this device\n  \
    max_model_len_that_fits  longest context that fits; 0 for none\n  \
    num_sequences            sequences of max_model_len (or max_model_len_that_fits) that the KV cache holds\n  \
    plans                    a list with the same for each dtype and device: device (cpu, gpu 0, ..), dtype, stored ..";

/// The model to check, and the settings that change its memory.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Model folder, GGUF file, hub id or `demo`. Only config.json or the GGUF header is needed, and only that is downloaded. Without a
    /// model, doctor shows only the machine
    #[arg(value_name = "MODEL")]
    model: Option<String>,
    /// Branch, tag or commit of a model on the hub
    #[arg(long, value_name = "REVISION", default_value = "main")]
    revision: String,
    /// Context length: tokens of prompt and output together [default: the model's own limit]
    #[arg(long, value_name = "TOKENS")]
    max_model_len: Option<NonZeroUsize>,
    /// Data type of weights and activations; auto keeps the checkpoint's type
    #[arg(long, default_value = "auto", value_parser = one_of(DTYPES))]
    dtype: Asked<Dtype>,
    /// Quantize unquantized weights while loading
    #[arg(long, value_name = "KIND", value_parser = one_of(OnLoad::CHOICES))]
    quantize_on_load: Option<OnLoad>,
    /// Tensor-parallel ranks that split each layer
    #[arg(long, value_name = "N", default_value = "1")]
    tensor_parallel_size: NonZeroUsize,
    /// Memory of the KV cache, such as 512M or 4Gi [default: 1/4 of free memory; on a GPU the rest of its share; no more than needed]
    #[arg(long, value_name = "SIZE")]
    kv_cache_memory: Option<ByteSize>,
    /// Data type of the KV cache. auto is the weights' type, on the CPU bfloat16 or float32
    #[arg(long, default_value = "auto", value_parser = one_of(KvDtype::CHOICES))]
    kv_cache_dtype: Asked<KvDtype>,
    /// Maximum sequences in a batch
    #[arg(long, value_name = "N", default_value = "256")]
    max_num_seqs: NonZeroUsize,
    /// Maximum batch tokens, prompt chunks included [default: 512; on a GPU 8192, or fewer if memory is short]
    #[arg(long, value_name = "N")]
    max_num_batched_tokens: Option<NonZeroUsize>,
    /// Tokens in one block of the KV cache
    #[arg(long, value_name = "N", default_value = "16")]
    block_size: NonZeroUsize,
    /// Memory for resized images until the model has read them
    #[arg(long, value_name = "SIZE", default_value = "256Mi")]
    image_memory: ByteSize,
    /// Memory for embeddings of images
    #[arg(long, value_name = "SIZE", default_value = "256Mi")]
    encoder_cache_memory: ByteSize,
    /// Do not count the part for images
    #[arg(long)]
    language_model_only: bool,
    /// Write one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// The files of a model: a folder, a GGUF file, `demo` or a hub id. `config.json` or the header of a GGUF file is enough, and nothing
/// else is downloaded.
///
/// # Errors
/// The model does not exist, or cannot be downloaded.
fn checkpoint_files(model: &str, revision: &str) -> Result<CheckpointFiles> {
    if model == "demo" {
        return Ok(candlepower_server::demo_files());
    }
    if let Some(files) = CheckpointFiles::find(Path::new(model))? {
        return Ok(files);
    }
    let Ok(name) = ModelName::not_here(model) else {
        bail!(
            "there is no model folder or GGUF file `{model}`; give a folder with config.json, a GGUF file, a hub id as owner/name or owner/name:Q4_K_M, or `demo`"
        );
    };
    // The settings of the hub come from the environment, as for `serve`.
    let flags =
        ServeConfig::augment_args(clap::Command::new("doctor")).get_matches_from(["doctor"]);
    let settings = ServeConfig::resolve(&flags, std::env::vars_os())?;
    let hub = candlepower_server::hub(&settings.config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let model = runtime.block_on(hub.open_configuration(&name, revision))?;
    Ok(model.files())
}

/// The JSON report on a model with the default settings.
///
/// # Errors
/// The model is not supported, or its files cannot be read.
pub(crate) fn report_on(
    model: &str,
    files: CheckpointFiles,
    machine: &Machine,
) -> Result<serde_json::Value> {
    let command = Doctor::augment_args(clap::Command::new("doctor"));
    let doctor = Doctor::from_arg_matches(&command.try_get_matches_from(["doctor"])?)?;
    Ok(doctor.look_at_files(model, files, machine)?.to_json(machine))
}

/// The report on a model.
enum Report {
    Decoder(ModelReport),
    Encoder(EncoderReport),
}

impl Report {
    fn fits(&self) -> bool {
        match self {
            Self::Decoder(report) => report.fits(),
            Self::Encoder(report) => report.fits(),
        }
    }

    fn to_json(&self, machine: &Machine) -> serde_json::Value {
        match self {
            Self::Decoder(report) => report.to_json(machine),
            Self::Encoder(report) => report.to_json(machine),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decoder(report) => report.fmt(f),
            Self::Encoder(report) => report.fmt(f),
        }
    }
}

impl Doctor {
    /// Checks the model and prints the report.
    pub(crate) fn run(&self) -> ExitCode {
        let machine = Machine::probe();
        let Some(model) = &self.model else {
            print(&match self.json {
                true => format!("{:#}\n", json!({ "machine": machine })),
                false => report::machine(&machine),
            });
            return ExitCode::SUCCESS;
        };
        match self.look_at(model, &machine) {
            Ok(report) => {
                print(&match self.json {
                    true => format!("{:#}\n", report.to_json(&machine)),
                    false => format!("{}\n{report}", report::machine(&machine)),
                });
                if report.fits() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
            }
            Err(error) => {
                if self.json {
                    print(&format!("{:#}\n", self.refusal(model, &machine, &error)));
                } else {
                    print_error(format_args!("error: {}", failure::text(&error)));
                }
                ExitCode::FAILURE
            }
        }
    }

    /// The JSON report on a model that is not supported.
    fn refusal(&self, model: &str, machine: &Machine, error: &anyhow::Error) -> serde_json::Value {
        let config = checkpoint_files(model, &self.revision)
            .ok()
            .and_then(|files| files.json("config.json").ok().flatten());
        let architecture = config
            .as_ref()
            .and_then(|config| Some(config.texts_opt("architectures").ok()??.first()?.to_string()));
        let quantization = config.as_ref().and_then(|config| {
            let section = config.section("quantization_config").ok()??;
            Some(section.text_opt("quant_method").ok()??.to_owned())
        });
        json!({
            "machine": machine,
            "model": model,
            "architecture": architecture,
            "supported": false,
            "quantization": quantization,
            "message": failure::text(error),
            "fits": false,
        })
    }

    /// Plans the memory for each dtype on each device.
    fn look_at(&self, model: &str, machine: &Machine) -> Result<Report> {
        self.look_at_files(model, checkpoint_files(model, &self.revision)?, machine)
    }

    fn look_at_files(
        &self,
        model: &str,
        files: CheckpointFiles,
        machine: &Machine,
    ) -> Result<Report> {
        match Description::open(files)? {
            Description::Decoder(mut checkpoint) => {
                if let Some(kind) = self.quantize_on_load {
                    checkpoint.quantize_on_load(kind)?;
                }
                if self.language_model_only {
                    checkpoint.without_vision();
                }
                self.look_at_decoder(model, &checkpoint, machine).map(Report::Decoder)
            }
            Description::Encoder(_) if self.quantize_on_load.is_some() => {
                bail!(
                    "--quantize-on-load is for models that generate text, and this is an encoder: leave it out"
                );
            }
            Description::Encoder(checkpoint) => {
                self.look_at_encoder(model, &checkpoint, machine).map(Report::Encoder)
            }
        }
    }

    fn look_at_encoder(
        &self,
        model: &str,
        checkpoint: &EncoderCheckpoint,
        machine: &Machine,
    ) -> Result<EncoderReport> {
        if let Some(quantization) = checkpoint.quantization() {
            bail!(
                "the weights are quantized with {}, which is not supported for embedding and reranking models: use the unquantized model",
                quantization.method
            );
        }
        let asked = self.max_model_len.map(NonZeroUsize::get);
        let request = EncoderMemoryRequest {
            max_model_len: checkpoint.max_model_len(asked)?,
            max_num_batched_tokens: self
                .max_num_batched_tokens
                .map_or(BATCHED_TOKENS, NonZeroUsize::get),
            num_threads: candlepower_machine::compute_threads(),
            available_bytes: machine.memory.map(|memory| memory.available_bytes),
        };
        Ok(EncoderReport::new(model, checkpoint, request))
    }

    fn look_at_decoder(
        &self,
        model: &str,
        checkpoint: &Checkpoint,
        machine: &Machine,
    ) -> Result<ModelReport> {
        if let Some(quantization) = checkpoint.quantization()
            && quantization.scheme.is_none()
        {
            bail!(
                "the weights are quantized with {}, which this version does not support: use a model quantized with {}, or the unquantized model",
                quantization.method,
                QuantizationMethod::recommended()
            );
        }
        let spec = checkpoint.spec();
        spec.check_tensor_parallel(self.tensor_parallel_size.get())?;
        let max_model_len = spec.max_model_len(self.max_model_len.map(NonZeroUsize::get))?;
        let stored = checkpoint.weights_dtype(None);
        let mut dtypes = vec![self.dtype.unwrap_or(stored)];
        for dtype in [stored, Dtype::F32, Dtype::Bf16, Dtype::F16] {
            if !dtypes.contains(&dtype) {
                dtypes.push(dtype);
            }
        }
        let memories = self.memories(machine);
        // Not every device supports every KV cache type with every weights' type; such combinations have no plan.
        let plan = |dtype, (name, memory): &(String, DeviceMemory)| {
            let asked = (self.dtype.is_some() || dtype != stored).then_some(dtype);
            let kv = checkpoint.kv_dtype(memory.device, self.kv_cache_dtype, asked, dtype).ok()?;
            let request = self.request(max_model_len, (dtype, kv), *memory);
            Some((name.clone(), MemoryPlan::new(spec, request)))
        };
        let plans = dtypes
            .iter()
            .flat_map(|dtype| memories.iter().filter_map(|memory| plan(*dtype, memory)));
        Ok(ModelReport::new(model, checkpoint, plans))
    }

    fn request(
        &self,
        max_model_len: usize,
        (weights, kv): (Dtype, KvDtype),
        memory: DeviceMemory,
    ) -> MemoryRequest {
        MemoryRequest {
            weights,
            kv,
            max_model_len,
            block_size: self.block_size.get(),
            max_num_seqs: self.max_num_seqs.get(),
            max_num_batched_tokens: self.max_num_batched_tokens.map(NonZeroUsize::get),
            kv_cache_bytes: self.kv_cache_memory.map(|size| size.0),
            tensor_parallel_size: self.tensor_parallel_size.get(),
            images: ImageMemory {
                waiting_bytes: self.image_memory.0,
                encoder_cache_bytes: self.encoder_cache_memory.0,
            },
            memory,
        }
    }

    /// Memory for one rank on the CPU, whose memory all ranks share, and on each GPU.
    fn memories(&self, machine: &Machine) -> Vec<(String, DeviceMemory)> {
        let memory = |device, available_bytes| DeviceMemory {
            device,
            available_bytes,
            counted: Counted::BeforeLoading,
        };
        // Ranks on the CPU share one memory, so each plan gets its part.
        let ranks = self.tensor_parallel_size.get() as u64;
        let free = machine.memory.map(|memory| memory.available_bytes / ranks);
        let cpu = ("cpu".to_owned(), memory(DeviceKind::Cpu, free));
        let gpus = machine.gpus.devices.iter().enumerate().map(|(i, gpu)| {
            let device = DeviceKind::Gpu { utilization: GPU_MEMORY_UTILIZATION };
            (format!("gpu {i}"), memory(device, Some(gpu.memory_free_bytes)))
        });
        std::iter::once(cpu).chain(gpus).collect()
    }
}

#[cfg(test)]
mod tests {
    use candlepower_machine::{ComputeCapability, Driver, Gpu, Memory};
    use clap::Command;

    use super::*;

    fn doctor(argv: &[&str]) -> Doctor {
        let command = Doctor::augment_args(Command::new("doctor").no_binary_name(true));
        Doctor::from_arg_matches(&command.try_get_matches_from(argv).unwrap()).unwrap()
    }

    fn machine(gpu_bytes: u64) -> Machine {
        let mut machine = Machine::probe();
        machine.gpus.devices = vec![Gpu {
            name: "GPU".into(),
            uuid: "GPU-1".into(),
            memory_total_bytes: gpu_bytes,
            memory_free_bytes: gpu_bytes,
            compute_capability: ComputeCapability { major: 9, minor: 0 },
        }];
        machine
    }

    #[test]
    fn each_gpu_has_its_lines() {
        let large = machine(80 << 30);
        let report = doctor(&["demo"]).look_at("demo", &large).unwrap();
        let json = report.to_json(&large);
        let plans = json["plans"].as_array().unwrap();
        // Three dtypes, each on the CPU and on the GPU.
        assert_eq!(plans.len(), 6);
        assert_eq!((&plans[1]["device"], &plans[1]["fits"]), (&"gpu 0".into(), &true.into()));
        // The KV cache is bfloat16 everywhere, but on a GPU heads of 32 elements are padded to 64.
        let kv_bytes = |plan: usize| plans[plan]["kv_bytes_per_token"].as_u64().unwrap();
        assert_eq!(kv_bytes(1), kv_bytes(0) * 64 / 32);
        assert!(report.to_string().contains("gpu 0"));
        assert!(report::machine(&large).contains("GPU (compute capability 9.0) with 80.0 GiB"));
        let small = machine(1 << 20);
        let json = doctor(&["demo"]).look_at("demo", &small).unwrap().to_json(&small);
        assert_eq!(json["plans"][1]["fits"], false);
    }

    #[test]
    fn the_driver_is_shown_beside_its_gpus() {
        let mut machine = machine(1 << 30);
        let driver = Driver { version: "580.65.06".into(), cuda_version: "13.0".into() };
        machine.gpus.driver = Some(driver);
        let shown = report::machine(&machine);
        assert!(shown.contains("NVIDIA 580.65.06, supports CUDA up to 13.0"), "{shown}");
    }

    /// sentence-transformers/all-MiniLM-L6-v2.
    const ENCODER: &str = r#"{
        "architectures": ["BertModel"], "hidden_act": "gelu", "hidden_size": 384, "intermediate_size": 1536,
        "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12,
        "num_hidden_layers": 6, "pad_token_id": 0, "position_embedding_type": "absolute", "type_vocab_size": 2,
        "vocab_size": 30522}"#;

    /// The report on an encoder with this configuration, on a machine with this much memory.
    fn encoder(config: &str, argv: &[&str], bytes: u64) -> Result<Report> {
        let mut machine = machine(1 << 30);
        let memory = machine.memory.map(|memory| Memory { available_bytes: bytes, ..memory });
        machine.memory = memory;
        let config: &'static str = config.to_owned().leak();
        let files: Vec<(&str, &[u8])> = vec![("config.json", config.as_bytes())];
        doctor(argv).look_at_files("mini", CheckpointFiles::Embedded(files.leak()), &machine)
    }

    #[test]
    fn an_encoder_that_does_not_fit_is_told_with_the_reason() {
        let large = encoder(ENCODER, &[], 64 << 30).unwrap();
        assert!(large.fits() && large.to_string().ends_with("mini fits this machine.\n"));
        let small = encoder(ENCODER, &[], 1 << 20).unwrap();
        let shown = small.to_string();
        assert!(!small.fits() && shown.contains("mini does not fit this machine: "), "{shown}");
    }

    #[test]
    fn an_encoder_is_not_quantized() {
        let error = |config: &str, argv: &[&str]| {
            encoder(config, argv, 64 << 30).err().unwrap().to_string()
        };
        let on_load = error(ENCODER, &["--quantize-on-load", "fp8"]);
        assert!(on_load.contains("this is an encoder: leave it out"), "{on_load}");
        let section = r#"{"quantization_config": {"quant_method": "bitsandbytes"},"#;
        let stored = error(&ENCODER.replacen('{', section, 1), &[]);
        assert!(
            stored.contains("quantized with bitsandbytes")
                && stored.ends_with("use the unquantized model"),
            "{stored}"
        );
    }

    #[test]
    fn a_context_beyond_the_models_is_refused() {
        let machine = machine(1 << 30);
        let error = doctor(&["demo", "--max-model-len=1000000"]).look_at("demo", &machine);
        assert!(error.err().unwrap().to_string().contains("beyond the model's"));
    }
}
