//! Property tests: random operations against a memory that executes every step literally.

mod callers;
mod encoder;
mod fairness;
mod memory;
mod random_run;
mod seen;
mod simulation;
mod workload;
