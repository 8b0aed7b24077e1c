//! The meaning of flags, values and commands of other servers.
//!
//! Sources: `vllm serve --help`, `llama-server --help`, the server arguments of SGLang, and `ollama --help`.

/// A flag of other servers, by all of its names.
pub(super) struct Foreign {
    pub(super) names: &'static [&'static str],
    pub(super) meaning: Meaning,
}

/// The meaning of a flag.
pub(super) enum Meaning {
    /// The same as one of ours, which takes the same value.
    Flag(&'static str),
    /// The model.
    Model,
    /// Done anyway, and why; it has no value.
    Needless(&'static str),
    /// Done anyway, as long as the value is one of these; it may be left out.
    NeedlessAs { values: &'static [&'static str], why: &'static str, hint: &'static str },
    /// Layers of the model on a GPU.
    Layers,
    /// Nothing that there is; what to do.
    Not(&'static str),
}

/// The meaning of a value.
pub(super) enum Value {
    /// The same as one of ours.
    Is(&'static str),
    /// The default.
    Default,
    /// Nothing that there is; what to do.
    Not(&'static str),
}

const fn of(names: &'static [&'static str], meaning: Meaning) -> Foreign {
    Foreign { names, meaning }
}

const IN_LOG: &str = "requests are not logged unless --access-log is given";
const ON_ONE: &str = "one model runs on one machine: more GPUs take --tensor-parallel-size, more servers a gateway before them";
const PROXY: &str = "put a proxy before the server: it listens on --host and --port";
const FROM_FILES: &str =
    "the kind of a model is found in its files: leave the flag out, or see --pooling";

pub(super) const FLAGS: &[Foreign] = &[
    of(&["--model", "--model-path", "-m", "-hf", "-hfr", "--hf-repo"], Meaning::Model),
    of(&["-c", "--ctx-size", "--context-length"], Meaning::Flag("max-model-len")),
    of(&["-tp", "--tp", "--tp-size"], Meaning::Flag("tensor-parallel-size")),
    of(&["-a", "--alias"], Meaning::Flag("served-model-name")),
    of(&["-t"], Meaning::Flag("threads")),
    of(&["-np", "--parallel", "--max-running-requests"], Meaning::Flag("max-num-seqs")),
    of(&["-b", "--batch-size", "--chunked-prefill-size"], Meaning::Flag("max-num-batched-tokens")),
    of(&["--tokenizer-path"], Meaning::Flag("tokenizer")),
    of(&["--chat-template-file"], Meaning::Flag("chat-template")),
    of(&["-s", "--random-seed"], Meaning::Flag("seed")),
    of(&["--download-dir"], Meaning::Flag("hf-hub-cache")),
    of(&["--ssl-key-file"], Meaning::Flag("ssl-keyfile")),
    of(&["--ssl-cert-file"], Meaning::Flag("ssl-certfile")),
    of(&["-n", "--predict", "--n-predict"], Meaning::Flag("default-max-tokens")),
    of(
        &["-ctk", "--cache-type-k"],
        Meaning::Not("keys and values have one type: --kv-cache-dtype"),
    ),
    of(
        &["-ctv", "--cache-type-v"],
        Meaning::Not("keys and values have one type: --kv-cache-dtype"),
    ),
    of(&["-ngl", "--gpu-layers", "--n-gpu-layers"], Meaning::Layers),
    of(&["--uvicorn-log-level"], Meaning::Flag("log-level")),
    of(
        &["--enable-auto-tool-choice"],
        Meaning::Needless("tools are called wherever the model can"),
    ),
    of(&["--jinja"], Meaning::Needless("chat templates are always Jinja")),
    of(
        &["--enable-chunked-prefill"],
        Meaning::Needless("long prompts are always computed in parts"),
    ),
    of(&["-cb", "--cont-batching"], Meaning::Needless("requests are always batched as they come")),
    of(&["--metrics", "--enable-metrics"], Meaning::Needless("GET /metrics is always there")),
    of(&["--trust-remote-code"], Meaning::Needless("no code of a model is ever run")),
    of(
        &["--disable-log-requests", "--no-enable-log-requests", "--disable-uvicorn-access-log"],
        Meaning::Needless(IN_LOG),
    ),
    of(
        &["--embedding", "--embeddings", "--reranking", "--rerank", "--is-embedding"],
        Meaning::Not(FROM_FILES),
    ),
    of(
        &["-fa", "--flash-attn"],
        Meaning::NeedlessAs {
            values: &["on", "auto", "1", "true"],
            why: "attention is computed so wherever it can be",
            hint: "there is one way to compute attention: leave the flag out",
        },
    ),
    of(
        &["--task", "--runner"],
        Meaning::NeedlessAs {
            values: &["auto", "generate"],
            why: "it is what happens without the flag",
            hint: FROM_FILES,
        },
    ),
    of(
        &[
            "-pp",
            "--pp-size",
            "--pipeline-parallel-size",
            "-dp",
            "--dp-size",
            "--data-parallel-size",
            "--nnodes",
        ],
        Meaning::NeedlessAs {
            values: &["1"],
            why: "it is what happens without the flag",
            hint: ON_ONE,
        },
    ),
    of(&["--enable-log-requests"], Meaning::Not("give --access-log: a line for each request")),
    of(&["--disable-log-stats"], Meaning::Not("give --stats-interval 0")),
    of(
        &["--api-key-file"],
        Meaning::Not(
            "give --api-keys-file, which names a TOML file with keys, their names and limits",
        ),
    ),
    of(&["--uds"], Meaning::Not(PROXY)),
    of(&["--root-path", "--api-prefix"], Meaning::Not(PROXY)),
    of(&["--otlp-traces-endpoint"], Meaning::Not("there are no traces: scrape GET /metrics")),
    of(
        &["-ub", "--ubatch-size"],
        Meaning::Not("--max-num-batched-tokens is the one limit of a step"),
    ),
    of(
        &["--mlock", "--no-mmap"],
        Meaning::Not("weights are mapped or copied as the device needs it: leave the flag out"),
    ),
    of(
        &["--rope-scaling", "--rope-freq-base", "--rope-freq-scale", "--hf-overrides"],
        Meaning::Not("positions are computed as the model's own files say"),
    ),
    of(
        &["--cpu-offload-gb"],
        Meaning::Not("weights are on one device: --device cpu, or --quantize-on-load"),
    ),
    of(&["-md", "--model-draft"], Meaning::Not("there is no draft model: leave the flag out")),
    of(
        &["--slots", "--props", "--no-webui", "--webui"],
        Meaning::Not("GET /docs lists the paths that are served: leave the flag out"),
    ),
    of(
        &["--schedule-policy"],
        Meaning::Not("--framework prism prefers requests with a long known prefix"),
    ),
];

pub(super) const VALUES: &[(&str, &str, Value)] = &[
    ("kv-cache-dtype", "fp8_e4m3", Value::Is("fp8")),
    (
        "kv-cache-dtype",
        "fp8_e5m2",
        Value::Not("fp8 is e4m3, which is more exact: --kv-cache-dtype fp8"),
    ),
    ("generation-config", "vllm", Value::Is("none")),
    ("load-format", "safetensors", Value::Default),
    ("load-format", "gguf", Value::Default),
    ("quantization", "gptq_marlin", Value::Is("gptq")),
    ("quantization", "awq_marlin", Value::Is("awq")),
    ("quantization", "compressed-tensors", Value::Not(QUANTIZED)),
    ("quantization", "modelopt", Value::Not(QUANTIZED)),
    ("quantization", "modelopt_fp4", Value::Not(QUANTIZED)),
    ("quantization", "mxfp4", Value::Not(QUANTIZED)),
    ("quantization", "gguf", Value::Not(QUANTIZED)),
    (
        "quantization",
        "bitsandbytes",
        Value::Not("give --quantize-on-load int4 or int8 in its place"),
    ),
    ("tool-call-parser", "openai", Value::Is("gpt_oss")),
    ("reasoning-parser", "openai_gptoss", Value::Is("gpt_oss")),
    ("tool-call-parser", "qwen3_xml", Value::Is("qwen3_coder")),
    ("tool-call-parser", "qwen", Value::Is("hermes")),
    ("reasoning-parser", "glm45", Value::Is("deepseek_r1")),
    ("max-model-len", "auto", Value::Default),
    ("max-model-len", "-1", Value::Default),
    ("max-model-len", "0", Value::Default),
    (
        "max-num-batched-tokens",
        "-1",
        Value::Not("a number of at least 1 is needed, or leave the flag out"),
    ),
    ("default-max-tokens", "-1", Value::Is("max")),
    ("log-level", "warning", Value::Is("warn")),
    ("log-level", "critical", Value::Is("error")),
];

const QUANTIZED: &str =
    "how weights are quantized is found in the model's files: leave the flag out";

pub(super) const COMMANDS: &[(&str, &str)] = &[
    (
        "run",
        "`candlepower serve MODEL` serves a model here, `candlepower deploy MODEL --name NAME` in the background",
    ),
    ("start", "`candlepower deploy MODEL --name NAME` starts a server in the background"),
    ("stop", "`candlepower delete NAME` ends a deployment and removes it"),
    ("rm", "`candlepower delete NAME` ends a deployment and removes it"),
    ("ps", "`candlepower ls` lists the deployments"),
    ("list", "`candlepower ls` lists the deployments"),
    ("pull", "`candlepower serve owner/name` fetches a model and serves it"),
    ("show", "`candlepower doctor MODEL` says what a model takes"),
    ("chat", "`candlepower serve MODEL` serves it to any OpenAI client"),
];
