//! What the Python package `candlepower` asks of the deploy client: each function returns a `Work`, which is waited for
//! or awaited. Results are JSON, of which the package makes its classes.

mod errors;
mod params;
mod progress;
mod work;

use pyo3::prelude::*;

/// The functions and classes of `candlepower._native`.
#[pymodule]
mod _native {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Duration;

    use candlepower_client::{Client, LogStream};
    use pyo3::prelude::*;
    use pyo3::types::PyDict;
    use tokio::sync::Mutex;

    use crate::errors::validation;
    use crate::params;
    use crate::progress::with_progress;
    #[pymodule_export]
    use crate::work::Work;

    /// Deploys, and waits until it is ready.
    #[pyfunction]
    #[pyo3(signature = (framework, parameters, binary, on_progress))]
    fn deploy(
        framework: &str,
        parameters: &Bound<'_, PyDict>,
        binary: PathBuf,
        on_progress: Option<Py<PyAny>>,
    ) -> PyResult<Work> {
        let params = params::from_dict(framework, parameters)?;
        Ok(Work::new(with_progress(on_progress, move |on_progress| async move {
            Client::new().binary(binary).deploy(params, on_progress).await
        })))
    }

    /// The deployment of this name.
    #[pyfunction]
    fn get(name: String) -> Work {
        Work::of(async move { Client::new().get(&name).await })
    }

    /// All deployments.
    #[pyfunction]
    fn list() -> Work {
        Work::of(async { Client::new().list().await })
    }

    /// How a deployment is just now.
    #[pyfunction]
    fn status(name: String) -> Work {
        Work::of(async move { Client::new().get(&name).await?.status().await })
    }

    /// Waits until a deployment is ready, and looks at it again.
    #[pyfunction]
    #[pyo3(signature = (name, timeout, on_progress))]
    fn wait_until_ready(
        name: String,
        timeout: f64,
        on_progress: Option<Py<PyAny>>,
    ) -> PyResult<Work> {
        let timeout = Duration::try_from_secs_f64(timeout).map_err(|error| {
            validation("timeout", timeout, &format!("seconds are needed: {error}"))
        })?;
        Ok(Work::new(with_progress(on_progress, move |on_progress| async move {
            let mut deployment = Client::new().get(&name).await?;
            deployment.wait_until_ready(timeout, on_progress).await?;
            Ok(deployment)
        })))
    }

    /// Ends a deployment and removes all of it.
    #[pyfunction]
    fn delete(name: String) -> Work {
        Work::of(async move { Client::new().delete(&name).await })
    }

    /// Ends a deployment's server and starts it again.
    #[pyfunction]
    fn restart(name: String, binary: PathBuf) -> Work {
        Work::of(async move { Client::new().binary(binary).restart(&name).await })
    }

    /// The newest lines of a deployment's log, or all.
    #[pyfunction]
    #[pyo3(signature = (name, tail))]
    fn logs(name: String, tail: Option<usize>) -> Work {
        Work::of(async move { Client::new().logs(&name, tail).await })
    }

    /// What has happened to a deployment.
    #[pyfunction]
    fn events(name: String) -> Work {
        Work::of(async move { Client::new().events(&name).await })
    }

    /// The newest lines of a deployment's log, or all, and those to come.
    #[pyclass(frozen)]
    struct Lines(Arc<Mutex<Option<LogStream>>>, String, Option<usize>);

    #[pymethods]
    impl Lines {
        #[new]
        #[pyo3(signature = (name, tail))]
        fn new(name: String, tail: Option<usize>) -> Self {
            Self(Arc::default(), name, tail)
        }

        /// The next line; null once the deployment is gone.
        fn next(&self) -> Work {
            let (stream, name, tail) = (Arc::clone(&self.0), self.1.clone(), self.2);
            Work::of(async move {
                let mut stream = stream.lock().await;
                if stream.is_none() {
                    *stream = Some(Client::new().follow(&name, tail).await?);
                }
                Ok(stream.as_mut().expect("it was just opened").next().await)
            })
        }
    }
}
