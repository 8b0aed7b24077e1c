//! Compares every CUDA kernel with its CPU reference over many shapes, on the machine's first GPU.
//!
//! Without a GPU nothing can be compared. The program reports that and fails, or passes if CANDLEPOWER_NO_GPU=1 is set.
//! Words on the command line select comparisons by name; `--list` and `--exact` are those of Rust's own test programs.
//! `--times` measures instead: see `times`.
#![allow(clippy::print_stdout, reason = "the report is the purpose")]
#![allow(clippy::unwrap_used, reason = "a panic is how a comparison fails")]

mod attention;
mod elements;
mod experts;
mod fp8;
mod fp8_decode;
mod fp8_rows;
mod fusions;
mod gpu;
mod hopper_attention;
mod latent;
mod linear_attention;
mod ordered_attention;
mod packed;
mod products;
mod rows;
mod sampling;
mod short_conv;
mod state_chunks;
mod steps;
mod times;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use gpu::Gpu;

/// A comparison over many shapes, which panics if kernel and reference differ.
type Comparison = fn(&Gpu);

const COMPARISONS: [(&str, Comparison); 61] = [
    ("rms_norm", rows::rms_norm),
    ("add_rms_norm", rows::add_rms_norm),
    ("layer_norm", rows::layer_norm),
    ("activation", rows::activation),
    ("gated_activation", rows::gated_activation),
    ("activation_times", rows::activation_times),
    ("embedding", rows::embedding),
    ("gather_rows", rows::gather_rows),
    ("gemv", rows::gemv),
    ("matmul", elements::matmul),
    ("rows_product", products::rows_product),
    ("gated_product", fusions::gated_product),
    ("gemv_waves", fusions::gemv_waves),
    ("normed_gemv", fusions::normed_gemv),
    ("prefetch", fusions::prefetch),
    ("packed_product", packed::packed_product),
    ("packed_matmul", packed::packed_matmul),
    ("packed_embedding", packed::packed_embedding),
    ("round_fp8", fp8::round_fp8),
    ("quantize_fp8", fp8::quantize_fp8),
    ("norms_in_fp8", fp8_rows::norms_in_fp8),
    ("gated_in_fp8", fp8_rows::gated_in_fp8),
    ("feed_forward_in_fp8", fp8_rows::feed_forward_in_fp8),
    ("fp8_product", fp8::fp8_product),
    ("fp8_matmul", fp8::fp8_matmul),
    ("route", experts::route),
    ("expert_product", experts::expert_product),
    ("expert_rows_alone", experts::expert_rows_alone),
    ("packed_expert_product", experts::packed_expert_product),
    ("combine_experts", experts::combine_experts),
    ("linear_attention", linear_attention::linear_attention),
    ("chunkwise", state_chunks::chunkwise),
    ("copy_states", linear_attention::copy_states),
    ("short_conv", short_conv::short_conv),
    ("sigmoid_gate", linear_attention::sigmoid_gate),
    ("add", elements::add),
    ("scale_and_cap", elements::scale_and_cap),
    ("resolve_tokens", elements::resolve_tokens),
    ("staging", elements::staging),
    ("uploads", elements::uploads),
    ("graph", elements::graph),
    ("nccl", elements::nccl),
    ("qkv_to_cache", attention::qkv_to_cache),
    ("wide_qk_norms", attention::wide_qk_norms),
    ("copy_blocks", attention::copy_blocks),
    ("swap_blocks", attention::swap_blocks),
    ("paged_attention", attention::paged_attention),
    ("planned_apart", attention::planned_apart),
    ("fixed_launch", attention::fixed_launch),
    ("fp8_decode", fp8_decode::fp8_decode),
    ("fp8_decode_trial", fp8_decode::trial),
    ("ordered_attention", ordered_attention::ordered_attention),
    ("latents_to_cache", latent::latents_to_cache),
    ("head_product", latent::head_product),
    ("latent_attention", latent::latent_attention),
    ("latent_fixed_launch", latent::latent_fixed_launch),
    ("sample", sampling::sample),
    ("sample_replayed", sampling::replayed),
    ("sample_logprobs", sampling::logprobs),
    ("hopper_trial", hopper_attention::trial),
    // The last one, since it has never run: a kernel without an end would hold up the others.
    ("hopper_attention", hopper_attention::hopper_attention),
];

/// The command line's options, named like those of Rust's own test programs.
#[derive(Default)]
struct Options {
    list: bool,
    exact: bool,
    times: bool,
    small: bool,
    words: Vec<String>,
    skipped: Vec<String>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Self {
        let mut options = Self::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => options.list = true,
                "--exact" => options.exact = true,
                "--times" => options.times = true,
                "--small" => options.small = true,
                "--skip" => options.skipped.extend(arguments.next()),
                // Options with a value that have no effect here.
                "--format" | "--test-threads" => drop(arguments.next()),
                _ if argument.starts_with('-') => {}
                _ => options.words.push(argument),
            }
        }
        options
    }

    fn choose(&self, name: &str) -> bool {
        let matches =
            |word: &String| if self.exact { word == name } else { name.contains(word.as_str()) };
        let chosen = self.words.is_empty() || self.words.iter().any(matches);
        chosen && !self.skipped.iter().any(matches)
    }
}

fn main() -> ExitCode {
    let options = Options::parse(std::env::args().skip(1));
    let comparisons: Vec<_> = COMPARISONS.iter().filter(|(name, _)| options.choose(name)).collect();
    if options.list {
        comparisons.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    // Choosing nothing is no failure, as in Rust's own test programs.
    if comparisons.is_empty() && !options.times {
        return ExitCode::SUCCESS;
    }
    let gpu = match Gpu::first() {
        Ok(gpu) => gpu,
        Err(reason) => {
            println!("no GPU: {} comparisons not run ({reason})", comparisons.len());
            let known = std::env::var("CANDLEPOWER_NO_GPU").is_ok_and(|value| value == "1");
            return if known { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
    };
    if options.times {
        let outcome = times::print(&gpu, options.small, |name| options.choose(name));
        return outcome.map_or_else(
            |error| {
                println!("error: {error}");
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        );
    }
    let mut failed = 0;
    for (name, compare) in &comparisons {
        let before = gpu.compared();
        // A panic fails one comparison, and the others still run.
        let outcome = catch_unwind(AssertUnwindSafe(|| compare(&gpu)));
        let shapes = gpu.compared() - before;
        match outcome {
            Ok(()) => println!("= {shapes} tensors compared: ok {name}"),
            Err(_) => {
                failed += 1;
                println!("FAILED  {name}: after {shapes} tensors; the message is above");
            }
        }
    }
    println!("{} of {} comparisons passed", comparisons.len() - failed, comparisons.len());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
