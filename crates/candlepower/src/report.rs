//! Tells the supervisor of a deployment, where there is one, how its server is.

use std::fmt::Display;
use std::net::SocketAddr;

use candlepower_client::{REPORT_VARIABLE, Report};
use candlepower_machine::print_error;

/// It listens.
pub(crate) fn listening(address: SocketAddr) {
    write(&Report { address: Some(address), error: None });
}

/// It cannot start, or go on.
pub(crate) fn failed(error: &impl Display) {
    write(&Report { address: None, error: Some(error.to_string()) });
}

fn write(report: &Report) {
    let Some(path) = std::env::var_os(REPORT_VARIABLE) else { return };
    if let Err(error) = report.write(path.as_ref()) {
        print_error(format_args!("the supervisor cannot be told: {error}"));
    }
}
