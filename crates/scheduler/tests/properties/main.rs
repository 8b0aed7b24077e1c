//! Property tests: random operations against a memory that executes every step literally.

mod fairness;
mod memory;
mod random_run;
mod workload;
