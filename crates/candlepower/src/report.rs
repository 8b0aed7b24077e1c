//! Reports the state of a server to the supervisor of its deployment, if it has one.

use std::fmt::Display;
use std::net::SocketAddr;

use candlepower_client::{REPORT_VARIABLE, Report};
use candlepower_machine::print_error;

/// Reports that the server listens.
pub(crate) fn listening(address: SocketAddr) {
    write(&Report { address: Some(address), error: None });
}

/// Reports that the server cannot start, or has failed.
pub(crate) fn failed(error: &impl Display) {
    write(&Report { address: None, error: Some(error.to_string()) });
}

fn write(report: &Report) {
    let Some(path) = std::env::var_os(REPORT_VARIABLE) else { return };
    if let Err(error) = report.write(path.as_ref()) {
        let path = path.display();
        print_error(format_args!("cannot report to the supervisor in {path}: {error}"));
    }
}
