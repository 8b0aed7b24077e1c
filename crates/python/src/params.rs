//! Converts keyword arguments to the parameters of a deployment.

use std::collections::BTreeMap;

use candlepower_client::{BlazeParams, Params, PrismParams};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};

use crate::errors::validation;

/// Sets each parameter that was given.
macro_rules! set {
    ($arguments:ident, $params:ident, $($type:ty, $words:literal: $($field:ident)+;)+) => {
        $($(if let Some(value) = $arguments.take::<$type>(stringify!($field), $words)? {
            $params = $params.$field(value);
        })+)+
    };
}

/// Sets the parameters of both frameworks. A macro, since the two builders have the same methods but no common trait.
macro_rules! set_common {
    ($arguments:ident, $params:ident) => {
        set!(
            $arguments, $params,
            u32, "a whole number": gpu_count tensor_parallel_size replicas;
            u64, "a whole number": max_model_len min_gpu_memory_gb timeout ttl_seconds;
            u16, "a port, 1 to 65535,": port;
            bool, "a bool": enforce_eager keep_on_failure update;
            String, "a string": quantization memory cpu dtype served_model_name image backend api_key hub_cache;
            Vec<String>, "a list of strings": gpu_models;
        );
        let env = $arguments.take::<BTreeMap<String, String>>("env", "a dict of strings")?;
        for (name, value) in env.unwrap_or_default() {
            $params = $params.env(name, value);
        }
    };
}

/// The parameters in a dict. None means the default.
pub(crate) fn from_dict(framework: &str, given: &Bound<'_, PyDict>) -> PyResult<Params> {
    let mut arguments = Arguments { framework, given: given.copy()? };
    let name: String = arguments.required("name")?;
    let model: String = arguments.required("model")?;
    let params = if framework == "prism" {
        arguments.check_one_of("max_model_len", "context_length")?;
        let mut params = PrismParams::new(name, model);
        set_common!(arguments, params);
        set!(
            arguments, params,
            u64, "a whole number": context_length;
            f64, "a number": mem_fraction_static;
        );
        params.into()
    } else {
        let mut params = BlazeParams::new(name, model);
        set_common!(arguments, params);
        set!(arguments, params, f64, "a number": gpu_memory_utilization;);
        params.into()
    };
    arguments.finish()?;
    Ok(params)
}

/// Keyword arguments that were not processed yet.
struct Arguments<'py> {
    framework: &'py str,
    given: Bound<'py, PyDict>,
}

impl<'py> Arguments<'py> {
    fn required<T: for<'a> FromPyObject<'a, 'py>>(&mut self, name: &str) -> PyResult<T> {
        self.take(name, "a string")?.ok_or_else(|| {
            let message =
                format!("deploy_{}() needs the keyword argument '{name}'", self.framework);
            PyTypeError::new_err(message)
        })
    }

    /// Removes an argument and converts it, if it was given. `words` describe its type in errors.
    fn take<T: for<'a> FromPyObject<'a, 'py>>(
        &mut self,
        name: &str,
        words: &str,
    ) -> PyResult<Option<T>> {
        let Some(value) = self.given.get_item(name)? else { return Ok(None) };
        self.given.del_item(name)?;
        if value.is_none() {
            return Ok(None);
        }
        // A bool is an int in Python. Here it is a mistake.
        let is_mixed_up = value.is_instance_of::<PyBool>() && words != "a bool";
        match value.extract() {
            Ok(extracted) if !is_mixed_up => Ok(Some(extracted)),
            _ => Err(validation(name, shown(name, &value), &format!("{words} is needed"))),
        }
    }

    /// Refuses two names of one parameter together.
    fn check_one_of(&self, first: &str, second: &str) -> PyResult<()> {
        let of = |name| Ok::<_, PyErr>(self.given.get_item(name)?.filter(|value| !value.is_none()));
        match (of(first)?, of(second)?) {
            (Some(_), Some(value)) => {
                let reason = format!("it is another name of {first}, which is given too");
                Err(validation(second, value, &reason))
            }
            _ => Ok(()),
        }
    }

    /// Refuses arguments that are not known.
    fn finish(self) -> PyResult<()> {
        let Some((name, _)) = self.given.iter().next() else { return Ok(()) };
        let message = format!(
            "deploy_{}() got an unexpected keyword argument {}",
            self.framework,
            name.repr()?
        );
        Err(PyTypeError::new_err(message))
    }
}

/// A value as errors show it. Values that could contain a secret are hidden.
fn shown(name: &str, value: &Bound<'_, PyAny>) -> String {
    let of_type =
        || value.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
    match name {
        "api_key" | "env" => of_type(),
        _ => value.str().map_or_else(|_| of_type(), |text| text.to_string()),
    }
}
