//! The native part of the Python package `candlepower`: the operations of the deploy client. Each returns a `Work` to
//! wait for. Results are JSON, from which the package makes its classes.
//!
//! The client is wrapped and not rewritten in Python, because that would be a second implementation of all checks, backends
//! and the supervisor.

mod errors;
mod params;
mod progress;
mod work;

use pyo3::prelude::*;

/// The classes of `candlepower._native`.
#[pymodule]
mod _native {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Duration;

    use candlepower_client::{self as client, Backend, LogStream};
    use pyo3::prelude::*;
    use pyo3::types::{PyDict, PyType};
    use tokio::sync::Mutex;

    use crate::errors::{exception, validation};
    use crate::params;
    use crate::progress::with_progress;
    #[pymodule_export]
    use crate::work::Work;

    /// The arguments of a client: backend, namespace, context.
    type Words = (Option<String>, Option<String>, Option<String>);

    /// A client with its backend.
    #[pyclass(frozen, module = "candlepower._native")]
    struct Client {
        client: client::Client,
        words: Words,
    }

    #[pymethods]
    impl Client {
        #[new]
        #[pyo3(signature = (backend, namespace, context))]
        fn new(
            backend: Option<String>,
            namespace: Option<String>,
            context: Option<String>,
        ) -> PyResult<Self> {
            let of =
                Backend::from_words(backend.as_deref(), namespace.as_deref(), context.as_deref());
            let client = client::Client::new();
            let client = match of.map_err(|error| exception(&error))? {
                Some(backend) => client.backend(backend),
                None => client,
            };
            Ok(Self { client, words: (backend, namespace, context) })
        }

        /// This client if it is restricted to this backend, or else a new one that is.
        fn at(slf: Bound<'_, Self>, backend: String) -> PyResult<Bound<'_, Self>> {
            let (own, namespace, context) = &slf.get().words;
            let in_cluster = namespace.is_some() || context.is_some();
            if own.as_ref() == Some(&backend) || (in_cluster && backend == "kubernetes") {
                return Ok(slf);
            }
            Bound::new(slf.py(), Self::new(Some(backend), None, None)?)
        }

        /// The class and its arguments, for pickle and copy.
        fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyType>, Words) {
            (slf.get_type(), slf.get().words.clone())
        }

        /// Deploys, and waits until the deployment is ready.
        #[pyo3(signature = (framework, parameters, binary, on_progress))]
        fn deploy(
            &self,
            framework: &str,
            parameters: &Bound<'_, PyDict>,
            binary: PathBuf,
            on_progress: Option<Py<PyAny>>,
        ) -> PyResult<Work> {
            let params = params::from_dict(framework, parameters)?;
            let client = self.client.clone().binary(binary);
            Ok(Work::new(with_progress(on_progress, move |on_progress| async move {
                client.deploy(params, on_progress).await
            })))
        }

        /// The deployment of this name.
        fn get(&self, name: String) -> Work {
            let client = self.client.clone();
            Work::of(async move { client.get(&name).await })
        }

        /// All deployments.
        fn list(&self) -> Work {
            let client = self.client.clone();
            Work::of(async move { client.list().await })
        }

        /// The current status of a deployment.
        fn status(&self, name: String) -> Work {
            let client = self.client.clone();
            Work::of(async move { client.get(&name).await?.status().await })
        }

        /// Waits until a deployment is ready, and reads it again.
        #[pyo3(signature = (name, timeout, on_progress))]
        fn wait_until_ready(
            &self,
            name: String,
            timeout: f64,
            on_progress: Option<Py<PyAny>>,
        ) -> PyResult<Work> {
            let timeout = Duration::try_from_secs_f64(timeout).map_err(|error| {
                validation("timeout", timeout, &format!("seconds are needed: {error}"))
            })?;
            let client = self.client.clone();
            Ok(Work::new(with_progress(on_progress, move |on_progress| async move {
                let mut deployment = client.get(&name).await?;
                deployment.wait_until_ready(timeout, on_progress).await?;
                Ok(deployment)
            })))
        }

        /// Stops a deployment and removes all of it.
        fn delete(&self, name: String) -> Work {
            let client = self.client.clone();
            Work::of(async move { client.delete(&name).await })
        }

        /// Stops a deployment's server and starts it again.
        fn restart(&self, name: String, binary: PathBuf) -> Work {
            let client = self.client.clone().binary(binary);
            Work::of(async move { client.restart(&name).await })
        }

        /// The newest lines of a deployment's log, or all of them.
        #[pyo3(signature = (name, tail))]
        fn logs(&self, name: String, tail: Option<usize>) -> Work {
            let client = self.client.clone();
            Work::of(async move { client.logs(&name, tail).await })
        }

        /// The newest lines of a deployment's log, or all of them, then new lines.
        #[pyo3(signature = (name, tail))]
        fn follow(&self, name: String, tail: Option<usize>) -> Lines {
            Lines { stream: Arc::default(), client: self.client.clone(), name, tail }
        }

        /// Events of a deployment.
        fn events(&self, name: String) -> Work {
            let client = self.client.clone();
            Work::of(async move { client.events(&name).await })
        }
    }

    /// A log, line by line. The first request for a line opens it.
    #[pyclass(frozen)]
    struct Lines {
        stream: Arc<Mutex<Option<LogStream>>>,
        client: client::Client,
        name: String,
        tail: Option<usize>,
    }

    #[pymethods]
    impl Lines {
        /// The next line; null once the deployment is gone.
        fn next(&self) -> Work {
            let stream = Arc::clone(&self.stream);
            let (client, name, tail) = (self.client.clone(), self.name.clone(), self.tail);
            Work::of(async move {
                let mut stream = stream.lock().await;
                if stream.is_none() {
                    *stream = Some(client.follow(&name, tail).await?);
                }
                Ok(stream.as_mut().expect("it was just opened").next().await)
            })
        }
    }
}
