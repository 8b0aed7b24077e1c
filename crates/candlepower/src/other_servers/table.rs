//! Tables of flags, values and commands of other servers, with their translation.
//!
//! Sources: `vllm serve --help`, `llama-server --help`, the server arguments of SGLang, and `ollama --help`.

/// A flag of other servers, with all its names.
pub(super) struct Foreign {
    pub(super) names: &'static [&'static str],
    pub(super) meaning: Meaning,
}

/// The translation of a flag.
pub(super) enum Meaning {
    /// Equivalent to this flag of ours, with the same value.
    Flag(&'static str),
    /// The model.
    Model,
    /// Without a value, and on by default; the text says why.
    Needless(&'static str),
    /// The default if the value is absent or one of these; otherwise refused with the hint.
    NeedlessAs { values: &'static [&'static str], why: &'static str, hint: &'static str },
    /// Number of layers on a GPU.
    Layers,
    /// Not supported; the text says what to do.
    Not(&'static str),
}

/// The translation of a value.
pub(super) enum Value {
    /// Equivalent to this value of ours.
    Is(&'static str),
    /// The default.
    Default,
    /// Not supported; the text says what to do.
    Not(&'static str),
}

const fn of(names: &'static [&'static str], meaning: Meaning) -> Foreign {
    Foreign { names, meaning }
}

const IN_LOG: &str = "requests are logged only with --access-log";
const ON_ONE: &str = "one server runs on one machine; use --tensor-parallel-size for several GPUs, and a load balancer for several servers";
const PROXY: &str = "the server listens on --host and --port; put a reverse proxy in front of it";
const FROM_FILES: &str =
    "the task of a model is detected from its files; leave the flag out, or see --pooling";

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
        Meaning::Not("keys and values have the same type; use --kv-cache-dtype"),
    ),
    of(
        &["-ctv", "--cache-type-v"],
        Meaning::Not("keys and values have the same type; use --kv-cache-dtype"),
    ),
    of(&["-ngl", "--gpu-layers", "--n-gpu-layers"], Meaning::Layers),
    of(&["--uvicorn-log-level"], Meaning::Flag("log-level")),
    of(
        &["--enable-auto-tool-choice"],
        Meaning::Needless("automatic tool choice is on for models that support tools"),
    ),
    of(&["--jinja"], Meaning::Needless("chat templates are always Jinja")),
    of(&["--enable-chunked-prefill"], Meaning::Needless("chunked prefill is always on")),
    of(&["-cb", "--cont-batching"], Meaning::Needless("continuous batching is always on")),
    of(&["--metrics", "--enable-metrics"], Meaning::Needless("GET /metrics is always on")),
    of(&["--trust-remote-code"], Meaning::Needless("code from a model's repository is never run")),
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
            why: "flash attention is used wherever possible",
            hint: "flash attention cannot be disabled; leave the flag out",
        },
    ),
    of(
        &["--task", "--runner"],
        Meaning::NeedlessAs {
            values: &["auto", "generate"],
            why: "it is the default",
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
        Meaning::NeedlessAs { values: &["1"], why: "it is the default", hint: ON_ONE },
    ),
    of(
        &["--enable-log-requests"],
        Meaning::Not("use --access-log, which logs a line for each request"),
    ),
    of(&["--disable-log-stats"], Meaning::Not("use --stats-interval 0")),
    of(
        &["--api-key-file"],
        Meaning::Not("use --api-keys-file, a TOML file with keys, their names and limits"),
    ),
    of(&["--root-path", "--api-prefix"], Meaning::Not(PROXY)),
    of(
        &["--otlp-traces-endpoint"],
        Meaning::Not("traces are sent by OTLP over HTTP: use --otlp-endpoint http://HOST:4318"),
    ),
    of(
        &["-ub", "--ubatch-size"],
        Meaning::Not("use --max-num-batched-tokens, the only limit of a step"),
    ),
    of(
        &["--mlock", "--no-mmap"],
        Meaning::Not("weights are mapped or copied as the device needs; leave the flag out"),
    ),
    of(
        &["--rope-scaling", "--rope-freq-base", "--rope-freq-scale", "--hf-overrides"],
        Meaning::Not("RoPE settings come from the model's files; change them in config.json"),
    ),
    of(
        &["--cpu-offload-gb"],
        Meaning::Not(
            "weights cannot be offloaded; use --device cpu, or --quantize-on-load to make them smaller",
        ),
    ),
    of(
        &["-md", "--model-draft"],
        Meaning::Not("draft models are not supported; leave the flag out"),
    ),
    of(
        &["--slots", "--props", "--no-webui", "--webui"],
        Meaning::Not("GET /docs lists the endpoints; leave the flag out"),
    ),
    of(
        &["--schedule-policy"],
        Meaning::Not("use --framework prism to prefer requests with a long cached prefix"),
    ),
];

pub(super) const VALUES: &[(&str, &str, Value)] = &[
    ("kv-cache-dtype", "fp8_e4m3", Value::Is("fp8")),
    (
        "kv-cache-dtype",
        "fp8_e5m2",
        Value::Not("use --kv-cache-dtype fp8, which is e4m3 and more exact"),
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
        Value::Not("use --quantize-on-load int4, fp8 or int8 instead"),
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
        Value::Not("give a number of at least 1, or leave the flag out"),
    ),
    ("default-max-tokens", "-1", Value::Is("max")),
    ("log-level", "warning", Value::Is("warn")),
    ("log-level", "critical", Value::Is("error")),
];

const QUANTIZED: &str = "the quantization is detected from the model's files; leave the flag out";

pub(super) const COMMANDS: &[(&str, &str)] = &[
    ("start", "use `candlepower deploy MODEL --name NAME` to start a server in the background"),
    ("stop", "use `candlepower delete NAME` to stop and remove a deployment; Ctrl-C stops `serve`"),
    ("ps", "use `candlepower ls` to list deployments"),
    (
        "list",
        "use `candlepower models` to list downloaded models, or `candlepower ls` to list deployments",
    ),
    ("show", "use `candlepower doctor MODEL` to show a model's architecture and memory"),
];
