//! Compares every CUDA kernel with its CPU reference over shapes, on the machine's first GPU.
//!
//! Without a GPU nothing can be compared: the program says so and fails, or passes if CANDLEPOWER_NO_GPU=1
//! says that this is known. Words on the command line choose comparisons by name.
#![allow(clippy::print_stdout, reason = "the report is the purpose")]

mod attention;
mod gpu;
mod rows;
mod sampling;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use gpu::Gpu;

/// A comparison over many shapes: panics where kernel and reference differ.
type Comparison = fn(&Gpu);

const COMPARISONS: [(&str, Comparison); 12] = [
    ("rms_norm", rows::rms_norm),
    ("add_rms_norm", rows::add_rms_norm),
    ("gated_activation", rows::gated_activation),
    ("embedding", rows::embedding),
    ("gather_rows", rows::gather_rows),
    ("gemv", rows::gemv),
    ("qkv_to_cache", attention::qkv_to_cache),
    ("copy_blocks", attention::copy_blocks),
    ("paged_attention", attention::paged_attention),
    ("fixed_launch", attention::fixed_launch),
    ("sample", sampling::sample),
    ("sample_logprobs", sampling::logprobs),
];

fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let chosen = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word));
    let comparisons: Vec<_> = COMPARISONS.iter().filter(|(name, _)| chosen(name)).collect();
    let gpu = match Gpu::first() {
        Ok(gpu) => gpu,
        Err(reason) => {
            println!("no GPU: {} comparisons not run ({reason})", comparisons.len());
            let known = std::env::var("CANDLEPOWER_NO_GPU").is_ok_and(|value| value == "1");
            return if known { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
    };
    let mut failed = 0;
    for (name, compare) in &comparisons {
        let before = gpu.compared();
        let outcome = catch_unwind(AssertUnwindSafe(|| compare(&gpu)));
        let shapes = gpu.compared() - before;
        match outcome {
            Ok(()) => println!("ok      {name}: {shapes} tensors compared"),
            Err(_) => {
                failed += 1;
                println!("FAILED  {name}: after {shapes} tensors; the message is above");
            }
        }
    }
    println!("{} of {} comparisons passed", comparisons.len() - failed, comparisons.len());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
