//! The report of `doctor` on a decoder, and the description of the machine, as text and as JSON.

use std::fmt;

use candlepower_checkpoint::{Bytes, Checkpoint, Dtype, Error, MemoryPlan, ModelSpec, OnLoad};
use candlepower_machine::Machine;
use serde_json::{Value, json};

use crate::table::table;

/// A model on this machine.
pub(super) struct ModelReport {
    model: String,
    architecture: &'static str,
    quantization: Option<String>,
    on_load: Option<OnLoad>,
    /// How activations are rounded to FP8.
    rounded: Option<String>,
    num_parameters: u64,
    own_context: usize,
    stored: Option<Dtype>,
    /// The reason if the first placement does not fit.
    problem: Option<Error>,
    /// Placements, first the one that `serve` would use.
    placements: Vec<Placement>,
}

/// A model in one dtype on one device.
pub(super) struct Placement {
    device: String,
    is_stored: bool,
    plan: MemoryPlan,
    longest: usize,
    num_sequences: usize,
}

impl ModelReport {
    /// A report on `plans`, each with the name of its device; the first is the one that `serve` would use.
    pub(super) fn new(
        model: &str,
        checkpoint: &Checkpoint,
        plans: impl IntoIterator<Item = (String, MemoryPlan)>,
    ) -> Self {
        let spec = checkpoint.spec();
        let stored = checkpoint.weights_dtype(None);
        let placements: Vec<Placement> = plans
            .into_iter()
            .map(|(device, plan)| Placement::new(device, plan, spec, stored))
            .collect();
        Self {
            model: model.to_owned(),
            architecture: checkpoint.architecture(),
            quantization: checkpoint.quantization().map(|found| found.method.clone()),
            on_load: checkpoint.on_load(),
            rounded: spec.rounded_activations(),
            num_parameters: spec.num_parameters(),
            own_context: spec.max_model_len,
            stored: checkpoint.dtype(),
            problem: placements.first().and_then(|first| first.plan.check(spec).err()),
            placements,
        }
    }

    /// Whether `serve` would start.
    pub(super) fn fits(&self) -> bool {
        self.problem.is_none()
    }

    /// The keys that the help explains.
    pub(super) fn to_json(&self, machine: &Machine) -> Value {
        let mut report = json!({
            "machine": machine,
            "model": self.model,
            "architecture": self.architecture,
            "supported": true,
            "quantization": self.quantization,
            "quantize_on_load": self.on_load.map(OnLoad::as_str),
            "rounded_activations": self.rounded,
            "message": self.problem.as_ref().map(Error::to_string),
            "num_parameters": self.num_parameters,
            "plans": self.placements.iter().map(Placement::to_json).collect::<Vec<_>>(),
        });
        // The keys of the placement that `serve` would use also stand at the top level.
        if let (Some(report), Some(Value::Object(first))) =
            (report.as_object_mut(), self.placements.first().map(Placement::to_json))
        {
            report.extend(first);
        }
        report
    }
}

impl fmt::Display for ModelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stored = match self.stored {
            Some(dtype) => format!("stored in {}", dtype.as_str()),
            None => "config.json does not say its dtype".to_owned(),
        };
        let stored = match &self.quantization {
            Some(method) => format!("quantized with {method}, other weights {stored}"),
            None => stored,
        };
        let stored = match self.on_load {
            Some(kind) => format!("{stored}, quantized to {} while loading", kind.as_str()),
            None => stored,
        };
        let stored = match &self.rounded {
            Some(rounded) => format!("{stored}, {rounded}"),
            None => stored,
        };
        writeln!(f, "Model")?;
        writeln!(
            f,
            "  {}: {}, {} parameters, {stored}, context of {} tokens",
            self.model,
            self.architecture,
            millions(self.num_parameters),
            self.own_context
        )?;
        let Some(first) = self.placements.first() else { return Ok(()) };
        let request = &first.plan.request;
        writeln!(
            f,
            "  for contexts of {} tokens and at most {} sequences in a batch",
            request.max_model_len, first.plan.max_num_seqs
        )?;
        // Without recurrent states there is nothing to divide by.
        let state = first.plan.state_bytes.checked_div(first.plan.num_states as u64);
        if let Some(bytes) = state {
            writeln!(
                f,
                "  each sequence has a recurrent state of {} besides the KV cache",
                Bytes(bytes)
            )?;
        }
        if request.tensor_parallel_size > 1 {
            writeln!(f, "  each of the {} ranks needs:", request.tensor_parallel_size)?;
        }
        let head = [
            "dtype",
            "on",
            "weights",
            "KV/token",
            "KV/context",
            "batch tokens",
            "activations",
            "KV cache",
            "free",
            "fits",
            "max context",
            "max sequences",
        ];
        let mut lines = vec![head.map(str::to_owned).to_vec()];
        lines.extend(self.placements.iter().map(Placement::cells));
        write!(f, "\n{}\n", table(&lines))?;
        match &self.problem {
            None => writeln!(f, "{} fits this machine.", self.model),
            Some(problem) => writeln!(f, "{} does not fit this machine: {problem}", self.model),
        }
    }
}

impl Placement {
    fn new(device: String, plan: MemoryPlan, spec: &ModelSpec, stored: Dtype) -> Self {
        let longest = plan.max_model_len_that_fits(spec);
        let num_sequences = match (plan.fits, longest) {
            (true, _) => plan.num_sequences(),
            (false, 0) => 0,
            (false, longest) => {
                let mut request = plan.request;
                // The count is for the longest context that fits, since it would be 0 for the one that was asked
                // for.
                request.max_model_len = longest;
                MemoryPlan::new(spec, request).num_sequences()
            }
        };
        let is_stored = plan.request.weights == stored;
        Self { device, is_stored, plan, longest, num_sequences }
    }

    fn dtype(&self) -> &'static str {
        self.plan.request.weights.as_str()
    }

    fn cells(&self) -> Vec<String> {
        let plan = &self.plan;
        let size = |bytes| Bytes(bytes).to_string();
        let stored = if self.is_stored { " (stored)" } else { "" };
        let free = plan.request.memory.available_bytes;
        vec![
            format!("{}{stored}", self.dtype()),
            self.device.clone(),
            size(plan.weights_bytes),
            size(plan.kv_bytes_per_token),
            size(plan.sequence_bytes),
            plan.max_num_batched_tokens.to_string(),
            size(plan.activation_bytes),
            size(plan.kv_cache_bytes),
            free.map_or_else(|| "unknown".to_owned(), size),
            if plan.fits { "yes" } else { "no" }.to_owned(),
            self.longest.to_string(),
            self.num_sequences.to_string(),
        ]
    }

    fn to_json(&self) -> Value {
        let plan = &self.plan;
        json!({
            "device": self.device,
            "dtype": self.dtype(),
            "stored": self.is_stored,
            "max_model_len": plan.request.max_model_len,
            "max_num_batched_tokens": plan.max_num_batched_tokens,
            "tensor_parallel_size": plan.request.tensor_parallel_size,
            "weights_bytes": plan.weights_bytes,
            "kv_bytes_per_token": plan.kv_bytes_per_token,
            "kv_bytes_per_sequence": plan.sequence_bytes,
            "max_num_seqs": plan.max_num_seqs,
            "state_bytes": plan.state_bytes,
            "activation_bytes": plan.activation_bytes,
            "image_bytes": plan.image_bytes,
            "needed_bytes": plan.needed_bytes,
            "available_bytes": plan.request.memory.available_bytes,
            "kv_cache_bytes": plan.kv_cache_bytes,
            "kv_cache_dtype": plan.request.kv.as_str(),
            "fits": plan.fits,
            "max_model_len_that_fits": self.longest,
            "num_sequences": self.num_sequences,
        })
    }
}

/// The machine as lines of text.
pub(super) fn machine(machine: &Machine) -> String {
    let mut lines = vec![
        ("cpu".to_owned(), machine.cpu.to_string()),
        (
            "memory".to_owned(),
            machine.memory.map_or_else(|| "unknown".to_owned(), |memory| memory.to_string()),
        ),
    ];
    if let Some(driver) = &machine.gpus.driver {
        lines.push((
            "driver".into(),
            format!("NVIDIA {}, supports CUDA up to {}", driver.version, driver.cuda_version),
        ));
    }
    for (i, gpu) in machine.gpus.devices.iter().enumerate() {
        lines.push((format!("gpu {i}"), format!("{gpu}, {}", gpu.uuid)));
    }
    if let Some(reason) = &machine.gpus.reason {
        lines.push(("gpus".into(), format!("none: {reason}")));
    }
    for engine in &machine.container_engines {
        lines.push((engine.name.clone(), engine.to_string()));
    }
    let kubernetes = machine.kubernetes.as_ref();
    lines.push((
        "kubernetes".into(),
        kubernetes.map_or_else(|| "not configured".to_owned(), ToString::to_string),
    ));
    let cells = |(name, text): (String, String)| vec![format!("  {name}"), text];
    format!("Machine\n{}", table(&lines.into_iter().map(cells).collect::<Vec<_>>()))
}

/// A number of parameters in millions or billions.
pub(super) fn millions(count: u64) -> String {
    match count {
        0..1_000_000_000 => format!("{:.1} million", count as f64 / 1e6),
        _ => format!("{:.2} billion", count as f64 / 1e9),
    }
}
