//! The metrics of the engine, as handles that its owner registers.

use metrics::{Counter, Gauge, Histogram};

/// Handles written by the engine thread after each step. The server makes them from its recorder;
/// [`EngineMetrics::noop`] counts nowhere.
#[derive(Clone, Debug)]
pub struct EngineMetrics {
    /// Sequences that are running.
    pub num_requests_running: Gauge,
    /// Sequences that wait for blocks or for room in the batch.
    pub num_requests_waiting: Gauge,
    /// Share of KV blocks that some sequence or pin holds, 0 to 1; cached blocks that nobody holds count as free.
    pub kv_cache_usage_ratio: Gauge,
    /// All KV blocks.
    pub kv_blocks_total: Gauge,
    /// KV blocks that neither a sequence nor a pin holds, cached ones included.
    pub kv_blocks_free: Gauge,
    /// KV blocks that pins hold.
    pub kv_blocks_pinned: Gauge,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_cache_queries: Counter,
    /// Prompt tokens found in the prefix cache.
    pub prefix_cache_hits: Counter,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: Counter,
    /// Tokens generated.
    pub generation_tokens: Counter,
    /// Generated tokens that were not sampled, because a grammar allowed no other.
    pub jump_forward_tokens: Counter,
    /// Sequences that were preempted, since blocks ran out or for another caller: recomputed later, or swapped out and in.
    pub num_preemptions: Counter,
    /// Blocks of preempted sequences in host memory.
    pub kv_blocks_swapped: Gauge,
    /// Blocks swapped out to host memory.
    pub swapped_out_blocks: Counter,
    /// Blocks swapped in from host memory.
    pub swapped_in_blocks: Counter,
    /// Images that the vision tower has encoded.
    pub images_encoded: Counter,
    /// Images of prompts that were found encoded.
    pub encoder_cache_hits: Counter,
    /// Share of the encoder's cache that holds embeddings, 0 to 1, whether some sequence needs them or not.
    pub encoder_cache_usage_ratio: Gauge,
    /// Tokens computed in a step.
    pub iteration_tokens: Histogram,
    /// Seconds from submission to the first step that computes the request.
    pub request_queue_time_seconds: Histogram,
    /// Seconds of a whole step: schedule, forward, sample, commit, send.
    pub step_duration_seconds: Histogram,
    /// Seconds of the model's forward within a step, logits included.
    pub forward_duration_seconds: Histogram,
    /// Seconds of a step's work on grammars: masks, and sampled tokens that they took. Steps without a grammar record nothing.
    pub grammar_duration_seconds: Histogram,
}

impl EngineMetrics {
    /// Handles that count nowhere.
    pub fn noop() -> Self {
        Self {
            num_requests_running: Gauge::noop(),
            num_requests_waiting: Gauge::noop(),
            kv_cache_usage_ratio: Gauge::noop(),
            kv_blocks_total: Gauge::noop(),
            kv_blocks_free: Gauge::noop(),
            kv_blocks_pinned: Gauge::noop(),
            prefix_cache_queries: Counter::noop(),
            prefix_cache_hits: Counter::noop(),
            prompt_tokens: Counter::noop(),
            generation_tokens: Counter::noop(),
            jump_forward_tokens: Counter::noop(),
            num_preemptions: Counter::noop(),
            kv_blocks_swapped: Gauge::noop(),
            swapped_out_blocks: Counter::noop(),
            swapped_in_blocks: Counter::noop(),
            images_encoded: Counter::noop(),
            encoder_cache_hits: Counter::noop(),
            encoder_cache_usage_ratio: Gauge::noop(),
            iteration_tokens: Histogram::noop(),
            request_queue_time_seconds: Histogram::noop(),
            step_duration_seconds: Histogram::noop(),
            forward_duration_seconds: Histogram::noop(),
            grammar_duration_seconds: Histogram::noop(),
        }
    }
}
