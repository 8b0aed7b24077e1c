//! The choice of fused kernels, which steps with few tokens can take.

use std::env;

use candlepower_kernels::{Error, Result};

/// The environment variable that names the fusions: `off`, or a list such as `gate,wave`.
const VARIABLE: &str = "CANDLEPOWER_DECODE_FUSIONS";

/// The fusions of kernels. None changes a bit of any result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fusions {
    /// Products of up to 128 rows apply the activation of gates themselves, if a kernel of ours multiplies.
    pub gate: bool,
    /// Products of one or two short rows compute the norm of these rows, after the addition to the residual.
    pub norm: bool,
    /// Norms, activations and the write into the KV cache request the first weights of a later product for the L2 cache.
    pub prefetch: bool,
    /// Blocks of products of one or two rows compute several tiles one after the other.
    pub wave: bool,
}

impl Fusions {
    /// Every operation has a kernel of its own.
    pub const OFF: Self = Self { gate: false, norm: false, prefetch: false, wave: false };

    /// The fusions that the environment variable `CANDLEPOWER_DECODE_FUSIONS` names, or the default without it.
    ///
    /// # Errors
    /// The variable names something else.
    pub fn asked_for() -> Result<Self> {
        Self::parse(env::var(VARIABLE).ok().as_deref())
    }

    fn parse(text: Option<&str>) -> Result<Self> {
        let text = match text {
            None | Some("") => return Ok(Self::default()),
            Some("off") => return Ok(Self::OFF),
            Some(text) => text,
        };
        let mut fusions = Self::OFF;
        for name in text.split(',') {
            match name.trim() {
                "gate" => fusions.gate = true,
                "norm" => fusions.norm = true,
                "prefetch" => fusions.prefetch = true,
                "wave" => fusions.wave = true,
                _ => {
                    let expected = "write off, or a list of gate, norm, prefetch and wave";
                    return Err(Error::Metadata(format!("{VARIABLE}={text}: {expected}")));
                }
            }
        }
        Ok(fusions)
    }
}

impl Default for Fusions {
    /// The fusion that saves a kernel and memory accesses. The others may be slower in some shapes, and no GPU has measured them.
    fn default() -> Self {
        Self { gate: true, ..Self::OFF }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fusions_are_named_in_a_list() {
        let parse = |text| Fusions::parse(text).unwrap();
        assert_eq!(parse(None), Fusions::default());
        assert_eq!(parse(Some("")), Fusions::default());
        assert_eq!(parse(Some("off")), Fusions::OFF);
        assert_eq!(parse(Some("wave")), Fusions { wave: true, ..Fusions::OFF });
        let all = Fusions { gate: true, norm: true, prefetch: true, wave: true };
        assert_eq!(parse(Some("prefetch, wave,gate,norm")), all);
        let error = Fusions::parse(Some("gate,waves")).unwrap_err().to_string();
        assert!(error.contains("CANDLEPOWER_DECODE_FUSIONS=gate,waves: write off, or"), "{error}");
        assert!(Fusions::parse(Some("gate,")).is_err());
    }
}
