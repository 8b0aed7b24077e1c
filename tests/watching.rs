//! Watching a server: metrics in Prometheus, traces in a collector, `candlepower top`.

mod collector;
mod prometheus;
mod screen;
mod top;
mod traces;
