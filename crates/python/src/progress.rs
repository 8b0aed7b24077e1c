//! Reports the progress of a deployment to a Python function.

use candlepower_client::{DeploymentStatus, Result};
use pyo3::prelude::*;
use serde::Serialize;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::work::{to_json, to_result};

/// The callback of the client for each status.
pub(crate) type Listener = Box<dyn FnMut(&DeploymentStatus) + Send>;

/// Runs an operation that reports progress. An exception in the function ends the operation.
pub(crate) async fn with_progress<T: Serialize, F: Future<Output = Result<T>>>(
    function: Option<Py<PyAny>>,
    work: impl FnOnce(Listener) -> F,
) -> PyResult<String> {
    let (failed, mut failure) = unbounded_channel();
    // This sender stays open. So a message can only be an exception, never the end of the channel.
    let listener = listener(function, failed.clone());
    let outcome = tokio::select! {
        biased;
        Some(error) = failure.recv() => Err(error),
        done = work(listener) => to_result(done),
    };
    drop(failed);
    outcome
}

/// Calls the function at each change.
fn listener(function: Option<Py<PyAny>>, failed: UnboundedSender<PyErr>) -> Listener {
    let Some(function) = function else { return Box::new(|_| {}) };
    let mut last = None;
    Box::new(move |status| {
        let news = (status.state, status.phase, status.message.clone(), status.progress.bytes_done);
        if last.as_ref() == Some(&news) {
            return;
        }
        last = Some(news);
        let called = to_json(status)
            .and_then(|json| Python::attach(|py| function.call1(py, (json,)).map(|_| ())));
        if let Err(error) = called {
            // The operation may be over already.
            let _ = failed.send(error);
        }
    })
}
