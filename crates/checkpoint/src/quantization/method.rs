//! The names of quantization methods, and what `config.json` says of each.
//!
//! This is the one list: settings, checks, errors and help read it.

use super::{
    Awq, CompressedInt, Fp8, Gptq, Mxfp4, Nvfp4, Quantization, Scheme, SqueezeLlm,
    activations_of_linear, modules::Modules, weights_of_linear,
};
use crate::{choice::Choice, config::HfConfig, error::Result};
use Listed::{InDoctor, InErrors, InSettings, Nowhere};
use QuantizationMethod as Method;

/// A quantization method, by the name that `config.json` or a tool gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantizationMethod {
    /// Activation-aware weight quantization.
    Awq,
    /// GPTQ.
    Gptq,
    /// SqueezeLLM.
    SqueezeLlm,
    /// Eight-bit floating point.
    Fp8,
    /// Four-bit floating point with a power of two for each group.
    Mxfp4,
    /// Four-bit floating point with scales in two levels.
    Nvfp4,
    /// The formats of compressed-tensors; by this name its integers.
    CompressedTensors,
    /// AutoRound's, which are stored as GPTQ's or AWQ's are.
    AutoRound,
    /// The formats of NVIDIA ModelOpt, each of which has a name of its own here.
    ModelOpt,
}

/// Lists of methods that users read. A method of one list is in all lists before it here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Listed {
    /// Nowhere: the name is a tool's, or its method is not supported.
    Nowhere,
    /// In the errors that refuse another one.
    InErrors,
    /// In what `doctor` recommends.
    InDoctor,
    /// Among the values of `--quantization`.
    InSettings,
}

struct Row {
    method: QuantizationMethod,
    /// In `quant_method`, in lower case; the first is shown.
    names: &'static [&'static str],
    /// Its supported part, as errors name it; empty where the method is listed nowhere.
    supported: &'static str,
    listed: Listed,
}

/// Every method, in the order in which lists name them.
const METHODS: [Row; 9] = [
    Row { method: Method::Awq, names: &["awq"], supported: "awq", listed: InSettings },
    Row {
        method: Method::Gptq,
        names: &["gptq", "gptqmodel"],
        supported: "gptq",
        listed: InSettings,
    },
    Row {
        method: Method::SqueezeLlm,
        names: &["squeezellm"],
        supported: "squeezellm",
        listed: InSettings,
    },
    Row { method: Method::Fp8, names: &["fp8"], supported: "fp8", listed: InSettings },
    Row { method: Method::Mxfp4, names: &["mxfp4"], supported: "mxfp4", listed: InDoctor },
    Row { method: Method::Nvfp4, names: &["nvfp4"], supported: "nvfp4", listed: InErrors },
    Row {
        method: Method::CompressedTensors,
        names: &["compressed-tensors"],
        supported: "compressed-tensors' integers",
        listed: InErrors,
    },
    Row {
        method: Method::AutoRound,
        names: &["auto-round", "auto_round", "intel/auto-round"],
        supported: "",
        listed: Nowhere,
    },
    Row {
        method: Method::ModelOpt,
        names: &["modelopt", "modelopt_fp4"],
        supported: "",
        listed: Nowhere,
    },
];

impl QuantizationMethod {
    /// The method that `quant_method` names, in lower case.
    pub(super) fn of(name: &str) -> Option<Self> {
        METHODS.iter().find(|row| row.names.contains(&name)).map(|row| row.method)
    }

    fn row(self) -> &'static Row {
        METHODS.iter().find(|row| row.method == self).expect("the table has every method")
    }

    /// Its name, as in `config.json` and in settings.
    pub fn as_str(self) -> &'static str {
        self.row().names[0]
    }

    /// The values of `--quantization`.
    pub fn choices() -> Vec<Choice<Self>> {
        let choice = |row: &Row| Choice::new(row.method, row.names[0], "");
        listed(InSettings).map(choice).collect()
    }

    /// The names of [`Self::choices`] in words: `awq, gptq`.
    pub fn settings() -> String {
        Choice::names(&Self::choices()).join(", ")
    }

    /// The supported methods in words: `awq, gptq and fp8`.
    pub fn supported() -> String {
        in_words(InErrors, "and")
    }

    /// The methods to look for instead of one that is not supported, in words: `awq, gptq or fp8`.
    pub fn recommended() -> String {
        in_words(InDoctor, "or")
    }

    /// Reads what `config.json` says of the method.
    pub(super) fn read(self, c: &HfConfig, found: &mut Quantization) -> Result<()> {
        found.method = self.as_str().to_owned();
        match self {
            Self::Awq => found.scheme = Some(Scheme::Awq(Awq::read(c)?)),
            Self::Gptq => {
                found.head = c.flag_or("lm_head", false)?;
                found.scheme = Some(Scheme::Gptq(Gptq::read(c)?));
            }
            Self::SqueezeLlm => found.scheme = Some(Scheme::SqueezeLlm(SqueezeLlm::read(c)?)),
            Self::Fp8 => {
                found.skipped.extend(Modules::read(c, "ignored_layers")?);
                found.scheme = Some(Scheme::Fp8(Fp8::read(c)?));
            }
            Self::Mxfp4 => found.scheme = Some(Scheme::Mxfp4(Mxfp4::default())),
            // `config.json` names the tool that wrote it.
            Self::Nvfp4 => {}
            Self::CompressedTensors => read_compressed_tensors(c, found)?,
            Self::AutoRound => read_auto_round(c, found)?,
            Self::ModelOpt => read_modelopt(c, found)?,
        }
        Ok(())
    }
}

/// The methods that users read there.
fn listed(place: Listed) -> impl Iterator<Item = &'static Row> {
    METHODS.iter().filter(move |row| row.listed >= place)
}

/// `a, b and c`.
// The words are built from the table, so that an error never names a method that the code lacks.
fn in_words(place: Listed, conjunction: &str) -> String {
    let supported: Vec<&str> = listed(place).map(|row| row.supported).collect();
    match supported.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} {conjunction} {last}", others.join(", ")),
        None => String::new(),
    }
}

fn read_compressed_tensors(c: &HfConfig, found: &mut Quantization) -> Result<()> {
    found.skipped.extend(Modules::read(c, "ignore")?);
    let (method, scheme) = match c.text_opt("format")?.unwrap_or("unnamed") {
        "float-quantized" => {
            let activations = activations_of_linear(c)?;
            let read = Fp8::read_compressed_tensors(&weights_of_linear(c)?, activations.as_ref())?;
            (Method::Fp8, Scheme::Fp8(read))
        }
        format @ ("pack-quantized" | "int-quantized") => {
            let in_words = format == "pack-quantized";
            let read = CompressedInt::read(&weights_of_linear(c)?, in_words)?;
            (Method::CompressedTensors, Scheme::CompressedInt(read))
        }
        "nvfp4-pack-quantized" => {
            let read = Nvfp4::read_compressed_tensors(&weights_of_linear(c)?)?;
            (Method::Nvfp4, Scheme::Nvfp4(read))
        }
        other => {
            found.method = format!("{} ({other})", found.method);
            return Ok(());
        }
    };
    // The output head is a linear layer, too, unless `ignore` names it.
    (found.method, found.scheme, found.head) = (method.as_str().to_owned(), Some(scheme), true);
    Ok(())
}

/// AutoRound writes the layout of one of the others, and its name. Source: `auto_round/export`.
fn read_auto_round(c: &HfConfig, found: &mut Quantization) -> Result<()> {
    const LAYOUT: &str = "packing_format";
    let layout = c.text_opt(LAYOUT)?.unwrap_or("auto_round:auto_gptq");
    let (method, scheme) = match layout.rsplit(':').next().unwrap_or(layout) {
        "auto_gptq" | "exllamav2" | "gptq" => (Method::Gptq, Scheme::Gptq(Gptq::read(c)?)),
        "auto_awq" | "awq" => (Method::Awq, Scheme::Awq(Awq::read(c)?)),
        other => {
            found.method = format!("{} ({other})", found.method);
            return Ok(());
        }
    };
    // Layers of their own, which AutoRound left in 16 bits or gave other bits.
    if let Some(own) = c.section("extra_config")? {
        for (module, _) in own.entries() {
            let settings = own.section(module)?.ok_or_else(|| own.missing(module, "an object"))?;
            match settings.count_opt("bits")? {
                Some(16 | 32) => found.skipped.add(module),
                None => {}
                Some(bits) if Some(bits) == c.count_opt("bits")? => {}
                Some(bits) => {
                    let hint = "; the bits of all layers, or 16, are";
                    return Err(settings.unsupported("bits", &bits.into(), hint));
                }
            }
        }
    }
    (found.method, found.scheme) = (method.as_str().to_owned(), Some(scheme));
    Ok(())
}

fn read_modelopt(c: &HfConfig, found: &mut Quantization) -> Result<()> {
    found.skipped.extend(Modules::read(c, "ignore")?);
    found.skipped.extend(Modules::read(c, "exclude_modules")?);
    // ModelOpt lists the head among the excluded modules where it is left alone.
    found.head = true;
    let (method, scheme) = match c.text_opt("quant_algo")?.unwrap_or("unnamed") {
        "FP8" => (Method::Fp8, Scheme::Fp8(Fp8::read_modelopt(c)?)),
        "NVFP4" => (Method::Nvfp4, Scheme::Nvfp4(Nvfp4::read_modelopt(c)?)),
        other => {
            found.method = format!("{} ({other})", found.method);
            return Ok(());
        }
    };
    (found.method, found.scheme) = (method.as_str().to_owned(), Some(scheme));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_of_one_method() {
        for row in &METHODS {
            assert_eq!(row.method.as_str(), row.names[0]);
            for name in row.names {
                assert_eq!(QuantizationMethod::of(name), Some(row.method), "{name}");
            }
        }
        assert_eq!(QuantizationMethod::of("AWQ"), None);
    }

    #[test]
    fn who_lists_fewer_methods_lists_no_other_ones() {
        let settings = QuantizationMethod::settings();
        let recommended = QuantizationMethod::recommended().replace(" or ", ", ");
        let supported = QuantizationMethod::supported().replace(" and ", ", ");
        assert!(!settings.is_empty() && recommended.starts_with(&settings), "{recommended}");
        assert!(supported.starts_with(&recommended), "{supported}");
    }
}
