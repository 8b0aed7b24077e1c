//! Which quantization a checkpoint's weights have, as its configuration says: the method, the matrices that it leaves
//! alone, and how the others are stored and kept.

use candlepower_layout::{Dtype, OffsetForm, Packed, QuantFormat, ScaleForm};
use serde_json::Value;

use crate::{
    config::HfConfig,
    error::{Error, Result},
    slot::{Slot, SlotQuantization},
};

mod awq;
mod compressed_int;
mod fp8;
mod gguf_type;
mod gptq;
mod method;
mod modules;
mod mxfp4;
mod nvfp4;
mod on_load;
mod squeezellm;

pub use awq::Awq;
pub use compressed_int::CompressedInt;
pub use fp8::Fp8;
pub use gguf_type::GgufType;
pub use gptq::Gptq;
pub use method::QuantizationMethod;
use modules::Modules;
pub use mxfp4::Mxfp4;
pub use nvfp4::Nvfp4;
pub use on_load::{OnLoad, Recoded};
pub use squeezellm::SqueezeLlm;

/// A file that older checkpoints of GPTQ have beside a `config.json` that says nothing.
const GPTQ_FILE: &str = "quantize_config.json";
/// The same of AWQ.
const AWQ_FILE: &str = "quant_config.json";
/// The file of NVIDIA ModelOpt beside the configuration, like [`GPTQ_FILE`], with the settings in a section.
const MODELOPT_FILE: &str = "hf_quant_config.json";
const MODELOPT_SECTION: &str = "quantization";

/// The `quantization_config` of `config.json`.
#[derive(Clone, Debug)]
pub struct Quantization {
    /// The method's name: that of a [`QuantizationMethod`], or in lower case what `config.json` has instead.
    pub method: String,
    /// Storage of its matrices; `None` if it is not supported.
    pub scheme: Option<Scheme>,
    /// Whether the head is quantized too.
    head: bool,
    skipped: Modules,
}

/// Storage of a quantized matrix `[n, k]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scheme {
    /// Activation-aware weight quantization.
    Awq(Awq),
    /// GPTQ.
    Gptq(Gptq),
    /// Eight-bit floating point.
    Fp8(Fp8),
    /// Integers of compressed-tensors.
    CompressedInt(CompressedInt),
    /// Tables of sixteen values.
    SqueezeLlm(SqueezeLlm),
    /// Four-bit floating point, of experts alone.
    Mxfp4(Mxfp4),
    /// Four-bit floating point with scales in two levels.
    Nvfp4(Nvfp4),
    /// A type of GGUF's.
    Gguf(GgufType),
}

/// A tensor in the weight files.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTensor {
    /// Its name.
    pub name: String,
    /// The shapes that it may have; any of one dimension where there is none.
    pub shapes: Vec<Vec<usize>>,
    /// Kind of its contents.
    pub kind: StoredKind,
    /// Whether it must be there.
    pub required: bool,
}

/// Contents of a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredKind {
    /// Unquantized values: F32, F16 or BF16.
    Plain,
    /// 32-bit integers.
    Integers,
    /// Eight-bit floats with three bits of mantissa.
    E4m3,
    /// Eight-bit integers with a sign.
    SignedBytes,
    /// Bytes.
    Bytes,
    /// Blocks of a type of GGUF's.
    Blocks(GgufType),
}

/// Reads the JSON object in a file of the checkpoint; `None` if there is no such file.
pub(crate) type ReadJson<'a> = dyn Fn(&str) -> Result<Option<HfConfig>> + 'a;

impl Quantization {
    pub(crate) fn read(config: &HfConfig, file: &ReadJson<'_>) -> Result<Option<Self>> {
        if let Some(section) = config.section("quantization_config")? {
            // ModelOpt's first releases name the algorithm alone.
            let of_modelopt = section.raw("quant_algo").map(|_| QuantizationMethod::ModelOpt);
            return Self::parse(&section, of_modelopt).map(Some);
        }
        // `config.json` wins: a file beside it is of an older tool, or left over.
        for (name, method) in
            [(GPTQ_FILE, QuantizationMethod::Gptq), (AWQ_FILE, QuantizationMethod::Awq)]
        {
            if let Some(own) = file(name)? {
                return Self::parse(&own, Some(method)).map(Some);
            }
        }
        let Some(own) = file(MODELOPT_FILE)? else { return Ok(None) };
        let section = own.section(MODELOPT_SECTION)?;
        let section = section.ok_or_else(|| own.missing(MODELOPT_SECTION, "an object"))?;
        Self::parse(&section, Some(QuantizationMethod::ModelOpt)).map(Some)
    }

    /// The quantization of GGUF files: each tensor of its type, `most` for most of them.
    pub(crate) fn gguf(most: Scheme) -> Self {
        let skipped = Modules::default();
        Self { method: "gguf".to_owned(), scheme: Some(most), head: true, skipped }
    }

    fn parse(c: &HfConfig, default: Option<QuantizationMethod>) -> Result<Self> {
        let method = match c.text_opt("quant_method")? {
            Some(method) => method.to_lowercase(),
            // Older files of a method do not name it: the file's own name does.
            None => default
                .ok_or_else(|| c.missing("quant_method", "the name of the quantization"))?
                .as_str()
                .to_owned(),
        };
        let known = QuantizationMethod::of(&method);
        let skipped = Modules::read(c, "modules_to_not_convert")?;
        let mut found = Self { method, scheme: None, head: false, skipped };
        if let Some(known) = known {
            known.read(c, &mut found)?;
        }
        Ok(found)
    }

    /// The scheme of the matrix of a slot in the module of this name; `None` if it is not quantized.
    pub(crate) fn scheme_of(&self, module: &str, slot: Slot) -> Option<Scheme> {
        let quantized = match slot.info().quantization {
            SlotQuantization::Never
            | SlotQuantization::Embedding
            | SlotQuantization::PerLayerEmbedding => false,
            SlotQuantization::Head => self.head,
            SlotQuantization::InFiles
            | SlotQuantization::Projection
            | SlotQuantization::MixerOut
            | SlotQuantization::Down
            | SlotQuantization::GateUp => true,
        };
        self.scheme.filter(|_| quantized && !self.skipped.contain(module))
    }

    /// Whether a tensor that belongs to no matrix may be there. Running engines round activations to integers or to four bits by
    /// some of them, which is not done here, or divide work by them. Others are the scales of keys and values, which a cache in
    /// FP8 uses. FP8's scales of activations are not among them: they belong to matrices whose activations are rounded by them, and
    /// are refused beside a configuration that does not say so.
    pub(crate) fn may_skip(&self, name: &str) -> bool {
        // A cache in FP8 may have these scales, and running engines read them. They belong to no matrix.
        const OF_CACHE: [&str; 4] = [".q_scale", ".k_scale", ".v_scale", ".kv_scale"];
        let ends_in = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
        match self.scheme {
            Some(Scheme::Fp8(_)) => ends_in(&OF_CACHE),
            Some(Scheme::CompressedInt(ints)) => ends_in(&OF_CACHE) || ints.is_ignored(name),
            Some(Scheme::Nvfp4(_)) => {
                ends_in(&OF_CACHE) || ends_in(&[".input_scale", ".input_global_scale"])
            }
            Some(Scheme::SqueezeLlm(_)) => ends_in(&[".startrows"]),
            _ => false,
        }
    }
}

impl Scheme {
    /// The tensors in which the matrix `[n, k]` called `name` is stored.
    ///
    /// # Errors
    /// The matrix cannot be stored so.
    pub fn tensors(&self, name: &str, n: usize, k: usize) -> Result<Vec<StoredTensor>> {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        match self {
            Self::Awq(awq) => awq.tensors(module, n, k),
            Self::Gptq(gptq) => gptq.tensors(module, n, k),
            Self::Fp8(fp8) => Ok(fp8.tensors(module, n, k)),
            Self::CompressedInt(ints) => ints.tensors(module, n, k),
            Self::SqueezeLlm(squeezellm) => squeezellm.tensors(module, n, k),
            Self::Mxfp4(mxfp4) => mxfp4.tensors(module, n, k),
            Self::Nvfp4(nvfp4) => nvfp4.tensors(module, n, k),
            Self::Gguf(kind) => {
                let kind = StoredKind::Blocks(*kind);
                Ok(vec![StoredTensor::new(name.to_owned(), &[n, k], kind)])
            }
        }
    }

    /// The dtype of the scales that are kept as they are stored, and the name of their tensor, of the matrix called `name`. Until
    /// files say otherwise it is the usual one of the format: BF16 of compressed-tensors, F16 of the others.
    pub fn scales_mut(&mut self, name: &str) -> Option<(&mut Dtype, String)> {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let (dtype, part) = match self {
            Self::Awq(awq) => (&mut awq.scales, "scales"),
            Self::Gptq(gptq) => (&mut gptq.scales, "scales"),
            Self::CompressedInt(ints) => (&mut ints.scales, "weight_scale"),
            Self::Fp8(_)
            | Self::SqueezeLlm(_)
            | Self::Mxfp4(_)
            | Self::Nvfp4(_)
            | Self::Gguf(_) => return None,
        };
        Some((dtype, format!("{module}.{part}")))
    }

    /// The form of a matrix with `k` columns in memory.
    pub fn packed(&self, k: usize) -> Packed {
        match self {
            Self::Awq(awq) => awq.packed(k),
            Self::Gptq(gptq) => gptq.packed(k),
            Self::Fp8(fp8) => fp8.packed(k),
            Self::CompressedInt(ints) => ints.packed(k),
            Self::SqueezeLlm(_) => Packed::without_offsets(QuantFormat::Table, k),
            Self::Mxfp4(_) => Mxfp4::packed(),
            Self::Nvfp4(_) => Nvfp4::packed(),
            Self::Gguf(kind) => kind.packed().expect("plain types are no scheme"),
        }
    }
}

/// The settings of compressed-tensors for the weights of all linear layers.
fn weights_of_linear(c: &HfConfig) -> Result<HfConfig> {
    let group = linear_layers(c)?;
    group.section("weights")?.ok_or_else(|| group.missing("weights", "an object"))
}

/// The settings of compressed-tensors for the activations of all linear layers, if they are rounded.
fn activations_of_linear(c: &HfConfig) -> Result<Option<HfConfig>> {
    linear_layers(c)?.section("input_activations")
}

/// The settings of compressed-tensors for all linear layers.
fn linear_layers(c: &HfConfig) -> Result<HfConfig> {
    const GROUPS: &str = "an object with the quantization of all linear layers";
    let groups = c.section("config_groups")?.ok_or_else(|| c.missing("config_groups", GROUPS))?;
    // Several groups give layers different formats, which one scheme for the checkpoint cannot say.
    let mut names = groups.entries().map(|(name, _)| name.to_owned());
    let (Some(name), None) = (names.next(), names.next()) else {
        let found = c.raw("config_groups").cloned().unwrap_or_default();
        return Err(c.unsupported("config_groups", &found, "; one group of all Linear is"));
    };
    let group = groups.section(&name)?.ok_or_else(|| groups.missing(&name, GROUPS))?;
    if group.texts_opt("targets")?.as_deref() != Some(&["Linear"]) {
        let found = group.raw("targets").cloned().unwrap_or_default();
        return Err(group.unsupported("targets", &found, "; [\"Linear\"] is"));
    }
    Ok(group)
}

/// Checks that the description of the weights of all linear layers has one of the values that each key may have; `hint` says which.
fn check_weights(w: &HfConfig, wanted: &[(&str, &[Value])], hint: &'static str) -> Result<()> {
    for (key, allowed) in wanted {
        let found = w.raw(key).ok_or_else(|| w.missing(key, "a description of the weights"))?;
        if !allowed.contains(found) {
            return Err(w.unsupported(key, found, hint));
        }
    }
    Ok(())
}

/// Scales as the files have them, and a zero point for each: how AWQ and GPTQ are kept.
fn with_zero_points(dtype: Dtype) -> ScaleForm {
    ScaleForm { dtype, offsets: OffsetForm::ZeroPoints, blocks: None }
}

impl StoredTensor {
    fn new(name: String, shape: &[usize], kind: StoredKind) -> Self {
        Self { name, shapes: vec![shape.to_vec()], kind, required: true }
    }

    /// A tensor of unquantized values.
    pub(crate) fn plain(name: &str, shape: &[usize]) -> Self {
        Self::new(name.to_owned(), shape, StoredKind::Plain)
    }
}

/// The count of weights that share a scale: `key`, of which -1 means all of a row, which is `None`.
fn group_size(c: &HfConfig, key: &str) -> Result<Option<usize>> {
    const EXPECTED: &str = "-1 or an even number of weights";
    let value = c.raw(key).ok_or_else(|| c.missing(key, EXPECTED))?;
    if value.as_i64() == Some(-1) {
        return Ok(None);
    }
    let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
    match size.filter(|size| *size > 0 && size % 2 == 0) {
        Some(size) => Ok(Some(size)),
        None => Err(c.ill_typed(key, value, EXPECTED)),
    }
}

/// Checks that `count` of a matrix can be packed in whole words of `unit`.
fn check_multiple(module: &str, what: &'static str, count: usize, unit: usize) -> Result<()> {
    match count.is_multiple_of(unit) {
        true => Ok(()),
        false => Err(Error::QuantizedShape { module: module.to_owned(), what, count, unit }),
    }
}

#[cfg(test)]
mod tests;
