//! An operation that Python waits for.

use std::pin::{Pin, pin};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use candlepower_client::Result;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use serde::Serialize;
use tokio::runtime;
use tokio::sync::Notify;

use crate::errors::exception;

/// Interval of the checks for signals.
const LOOK: Duration = Duration::from_millis(50);

type Outcome = Pin<Box<dyn Future<Output = PyResult<String>> + Send>>;

/// An operation that has not started. Its result is JSON.
#[pyclass(frozen)]
pub(crate) struct Work {
    outcome: Mutex<Option<Outcome>>,
    cancelled: Notify,
}

impl Work {
    /// An operation whose result is JSON already.
    pub(crate) fn new(work: impl Future<Output = PyResult<String>> + Send + 'static) -> Self {
        Self { outcome: Mutex::new(Some(Box::pin(work))), cancelled: Notify::new() }
    }

    /// An operation of the client.
    pub(crate) fn of<T: Serialize>(work: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        Self::new(async { to_result(work.await) })
    }

    fn take(&self) -> PyResult<Outcome> {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        outcome
            .take()
            .ok_or_else(|| PyRuntimeError::new_err("the operation was waited for already"))
    }
}

#[pymethods]
impl Work {
    /// Waits for the result. Other threads run meanwhile. A signal whose handler raises an exception, such as Ctrl-C,
    /// ends the wait.
    fn wait(&self, py: Python<'_>) -> PyResult<String> {
        let work = self.take()?;
        py.detach(|| {
            // A runtime of its own: threads of a shared one would be missing in a process that was forked.
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| PyOSError::new_err(error.to_string()))?;
            let outcome = runtime.block_on(self.heeding_signals(work));
            runtime.shutdown_background();
            outcome
        })
    }

    /// Ends the wait, from any thread, or before it begins.
    fn cancel(&self) {
        self.cancelled.notify_one();
    }
}

impl Work {
    async fn heeding_signals(&self, work: Outcome) -> PyResult<String> {
        let (mut work, mut cancelled) = (pin!(work), pin!(self.cancelled.notified()));
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = &mut cancelled => return Err(PyRuntimeError::new_err("the operation was cancelled")),
                () = tokio::time::sleep(LOOK) => Python::attach(|py| py.check_signals())?,
            }
        }
    }
}

/// The JSON of a result, or its exception.
pub(crate) fn to_result<T: Serialize>(result: Result<T>) -> PyResult<String> {
    to_json(&result.map_err(|error| exception(&error))?)
}

/// A value as JSON.
pub(crate) fn to_json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}
