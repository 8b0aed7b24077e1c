//! Limits of numbers, so that clocks and clusters can represent them.

use crate::error::{Error, Result};
use crate::params::Params;
use crate::status::Framework;

/// Most seconds of any duration: some thirty years, far below the range of clocks and clusters.
const MAX_SECONDS: u64 = 1_000_000_000;
/// Most replicas: a cluster counts them in 32 bits.
const MAX_REPLICAS: u64 = i32::MAX as u64;

pub(super) fn check(params: &Params) -> Result<()> {
    let at_least_one = |field, value: Option<u64>| match value {
        Some(0) => Err(Error::validation(field, 0, "at least 1 is needed")),
        _ => Ok(()),
    };
    at_least_one("timeout", Some(params.timeout))?;
    at_least_one("max_model_len", params.max_model_len)?;
    at_least_one("tensor_parallel_size", params.tensor_parallel_size.map(u64::from))?;
    at_least_one("min_gpu_memory_gb", params.min_gpu_memory_gb)?;
    at_least_one("ttl_seconds", params.ttl_seconds)?;
    at_least_one("replicas", Some(params.replicas.into()))?;
    let at_most = |field, value: Option<u64>, most: u64| match value {
        Some(value) if value > most => {
            Err(Error::validation(field, value, format!("at most {most} is possible")))
        }
        _ => Ok(()),
    };
    at_most("timeout", Some(params.timeout), MAX_SECONDS)?;
    at_most("ttl_seconds", params.ttl_seconds, MAX_SECONDS)?;
    at_most("replicas", Some(params.replicas.into()), MAX_REPLICAS)?;
    let part_field = match params.framework {
        Framework::Blaze => "gpu_memory_utilization",
        Framework::Prism => "mem_fraction_static",
    };
    if let Some(part) = params.gpu_memory_utilization
        // The condition is negated as a whole, so that it also refuses NaN.
        && !(part > 0.0 && part <= 1.0)
    {
        return Err(Error::validation(
            part_field,
            part,
            "a number above 0 and at most 1 is needed",
        ));
    }
    // On the CPU there is one rank.
    let gpus = params.gpu_count.unwrap_or(1).max(1);
    match params.tensor_parallel_size {
        Some(ranks) if ranks > gpus => Err(Error::validation(
            "tensor_parallel_size",
            ranks,
            format!("it may not exceed gpu_count, which is {}", params.gpu_count.unwrap_or(1)),
        )),
        _ => Ok(()),
    }
}
