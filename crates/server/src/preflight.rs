//! What can be known of a model before its weights are there: whether it can run here, as asked.

use candlepower_checkpoint::Checkpoint;

use crate::config::{LoadFormat, ServeConfig};
use crate::error::{Error, Result};

/// Checks a model's configuration against the settings and this machine.
///
/// # Errors
/// What does not fit together, and what would.
pub(crate) fn check(config: &ServeConfig, checkpoint: &Checkpoint) -> Result<()> {
    check_quantization(config, checkpoint)
}

fn check_quantization(config: &ServeConfig, checkpoint: &Checkpoint) -> Result<()> {
    let found = checkpoint.quantization().map(|quantization| quantization.method.as_str());
    if let Some(asked) = config.quantization.map(|asked| asked.as_str())
        && found != Some(asked)
    {
        let found = found.map_or_else(
            || "that they are not quantized".to_owned(),
            |method| format!("`{method}`"),
        );
        return Err(Error::QuantizationMismatch { asked, found });
    }
    match found {
        Some(method) if config.load_format != LoadFormat::Dummy => {
            Err(Error::QuantizationUnsupported(method.to_owned()))
        }
        _ => Ok(()),
    }
}
