//! The report of `doctor` on an encoder: weights and activations on the CPU, without a KV cache.

use std::fmt;

use candlepower_checkpoint::{
    Bytes, Dtype, EncoderCheckpoint, EncoderMemory, EncoderMemoryRequest, Error,
};
use candlepower_machine::Machine;
use serde_json::{Value, json};

use super::report::millions;
use crate::table::table;

/// An encoder on this machine's CPU.
pub(super) struct EncoderReport {
    model: String,
    architecture: &'static str,
    num_parameters: u64,
    own_context: usize,
    /// Whether the weights are stored in the dtype in which they are computed.
    is_stored: bool,
    request: EncoderMemoryRequest,
    memory: EncoderMemory,
    longest: usize,
    problem: Option<Error>,
}

impl EncoderReport {
    pub(super) fn new(
        model: &str,
        checkpoint: &EncoderCheckpoint,
        request: EncoderMemoryRequest,
    ) -> Self {
        let memory = checkpoint.memory(request);
        Self {
            model: model.to_owned(),
            architecture: checkpoint.architecture(),
            num_parameters: checkpoint.num_parameters(),
            own_context: checkpoint.spec().max_positions,
            is_stored: checkpoint.dtype().is_none_or(|dtype| dtype == Dtype::F32),
            request,
            memory,
            longest: checkpoint.max_model_len_that_fits(request),
            problem: memory.check().err(),
        }
    }

    /// Whether `serve` would start.
    pub(super) fn fits(&self) -> bool {
        self.problem.is_none()
    }

    /// The keys that the help explains. Those of the KV cache and of its sequences are 0.
    pub(super) fn to_json(&self, machine: &Machine) -> Value {
        let memory = &self.memory;
        let plan = json!({
            "device": "cpu",
            "dtype": "float32",
            "stored": self.is_stored,
            "max_model_len": self.request.max_model_len,
            "max_num_batched_tokens": self.request.max_num_batched_tokens,
            "tensor_parallel_size": 1,
            "weights_bytes": memory.weights_bytes,
            "kv_bytes_per_token": 0,
            "kv_bytes_per_sequence": 0,
            "max_num_seqs": 0,
            "state_bytes": 0,
            "activation_bytes": memory.activation_bytes,
            "image_bytes": 0,
            "needed_bytes": memory.needed_bytes,
            "available_bytes": memory.available_bytes,
            "kv_cache_bytes": 0,
            "kv_cache_dtype": null,
            "fits": memory.fits,
            "max_model_len_that_fits": self.longest,
            "num_sequences": 0,
        });
        let mut report = json!({
            "machine": machine,
            "model": self.model,
            "architecture": self.architecture,
            "supported": true,
            "quantization": null,
            "quantize_on_load": null,
            "rounded_activations": null,
            "message": self.problem.as_ref().map(Error::to_string),
            "num_parameters": self.num_parameters,
            "plans": [plan],
        });
        if let (Some(report), Value::Object(plan)) = (report.as_object_mut(), plan) {
            report.extend(plan);
        }
        report
    }
}

impl fmt::Display for EncoderReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes| Bytes(bytes).to_string();
        writeln!(f, "Model")?;
        writeln!(
            f,
            "  {}: {}, {} parameters, context of {} tokens",
            self.model,
            self.architecture,
            millions(self.num_parameters),
            self.own_context
        )?;
        writeln!(
            f,
            "  for inputs of {} tokens, with {} batch tokens on {} threads, without a KV cache",
            self.request.max_model_len,
            self.request.max_num_batched_tokens,
            self.request.num_threads
        )?;
        let memory = &self.memory;
        let head = ["dtype", "on", "weights", "activations", "free", "fits"];
        let cells = [
            "float32".to_owned(),
            "cpu".to_owned(),
            size(memory.weights_bytes),
            size(memory.activation_bytes),
            memory.available_bytes.map_or_else(|| "unknown".to_owned(), size),
            if memory.fits { "yes" } else { "no" }.to_owned(),
        ];
        write!(f, "\n{}\n", table(&[head.map(str::to_owned).to_vec(), cells.to_vec()]))?;
        match &self.problem {
            None => writeln!(f, "{} fits this machine.", self.model),
            Some(problem) => writeln!(f, "{} does not fit this machine: {problem}", self.model),
        }
    }
}
