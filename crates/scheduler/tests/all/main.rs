//! Property tests: random operations against a memory that executes every step literally.

mod callers;
mod fairness;
mod memory;
mod random_run;
mod simulation;
mod workload;
