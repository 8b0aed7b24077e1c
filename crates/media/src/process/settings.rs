//! Settings of image processors, from `preprocessor_config.json` and `processor_config.json`.
//!
//! Keys that could change pixels are either understood or refused by their name, so that no model sees other pixels than
//! the ones it was trained with.
//!
//! Source: `ImageProcessingMixin.get_image_processor_dict` and the class attributes of each processor in transformers.

use serde_json::{Map, Value};

use super::{Family, Layout, Normalize, Processor, Sizing};
use crate::error::line;
use crate::resize::Filter;
use crate::{Error, Result};

const PREPROCESSOR: &str = "preprocessor_config.json";
const PROCESSOR: &str = "processor_config.json";

/// Keys without an effect on the pixels of one image that is RGB already.
const HARMLESS: [&str; 14] = [
    "_valid_processor_keys",
    "data_format",
    "default_to_square",
    "device",
    "disable_grouping",
    "do_convert_rgb",
    "do_pad",
    "feature_extractor_type",
    "image_processor_type",
    "image_seq_length",
    "input_data_format",
    "processor_class",
    "return_tensors",
    "video_processor_type",
];

/// Longest side and largest patch that settings may ask for, in pixels.
const MAX_SIDE: u64 = 16_384;
const MAX_PATCH: u64 = 1_024;
/// Largest area that settings may ask for, in pixels.
const MAX_AREA: u64 = 64_000_000;

/// The defaults of a family's class.
struct Defaults {
    types: &'static [&'static str],
    filter: Filter,
    mean: [f64; 3],
    std: [f64; 3],
}

impl Family {
    fn defaults(self) -> Defaults {
        const CLIP_MEAN: [f64; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
        const CLIP_STD: [f64; 3] = [0.268_629_54, 0.261_302_58, 0.275_777_11];
        let (types, filter, mean, std): (&[&str], _, _, _) = match self {
            Self::Gemma3 => (&["Gemma3ImageProcessor"], Filter::Bilinear, [0.5; 3], [0.5; 3]),
            Self::Pixtral => (&["PixtralImageProcessor"], Filter::Bicubic, CLIP_MEAN, CLIP_STD),
            Self::Qwen2Vl => {
                let types = &["Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor"];
                (types, Filter::Bicubic, CLIP_MEAN, CLIP_STD)
            }
        };
        Defaults { types, filter, mean, std }
    }
}

/// The keys of one file that are not read yet.
struct Keys {
    file: &'static str,
    rest: Map<String, Value>,
}

impl Keys {
    fn refusal(&self, key: &str, problem: impl Into<String>) -> Error {
        Error::Setting { file: self.file, key: line(key, 100), problem: problem.into() }
    }

    /// A key's value; null is no value, as in transformers.
    fn take(&mut self, key: &str) -> Option<Value> {
        self.rest.remove(key).filter(|value| !value.is_null())
    }

    /// A flag that must be true or absent.
    fn require(&mut self, key: &str) -> Result<()> {
        match self.take(key) {
            None | Some(Value::Bool(true)) => Ok(()),
            Some(_) => Err(self.refusal(key, "must be true")),
        }
    }

    /// A flag that must be false or absent.
    fn forbid(&mut self, key: &str, problem: &str) -> Result<()> {
        match self.take(key) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(_) => Err(self.refusal(key, problem)),
        }
    }

    /// A positive integer of at most `most`.
    fn integer(&mut self, key: &str, most: u64) -> Result<Option<u64>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        self.checked(key, &value, most).map(Some)
    }

    fn checked(&self, key: &str, value: &Value, most: u64) -> Result<u64> {
        let number = value.as_u64().filter(|number| (1..=most).contains(number));
        number.ok_or_else(|| self.refusal(key, format!("must be an integer from 1 to {most}")))
    }

    /// Three numbers, or one for all channels.
    fn channels(&mut self, key: &str, default: [f64; 3], is_divisor: bool) -> Result<[f32; 3]> {
        let numbers = match self.take(key) {
            None => Some(default),
            Some(Value::Array(values)) => {
                let numbers: Option<Vec<f64>> = values.iter().map(Value::as_f64).collect();
                numbers.and_then(|numbers| numbers.try_into().ok())
            }
            Some(value) => value.as_f64().map(|number| [number; 3]),
        };
        let numbers = numbers.map(|numbers| numbers.map(|number| number as f32));
        let is_usable = |number: &f32| number.is_finite() && !(is_divisor && *number == 0.0);
        let usable = numbers.filter(|numbers| numbers.iter().all(is_usable));
        usable
            .ok_or_else(|| self.refusal(key, "must be one number or three, and no divisor of zero"))
    }

    /// The sides named `first` and `second` within an object, or the same integer for both.
    fn pair(&self, key: &str, value: &Value, names: [&str; 2], most: u64) -> Result<[u64; 2]> {
        if !value.is_object() {
            return self.checked(key, value, most).map(|side| [side; 2]);
        }
        let object = self.object(key, value, &names)?;
        let [first, second] = names.map(|name| {
            let key = format!("{key}.{name}");
            self.checked(&key, object.get(name).unwrap_or(&Value::Null), most)
        });
        Ok([first?, second?])
    }

    /// An object with these keys alone; others may be null.
    fn object<'a>(
        &self,
        key: &str,
        value: &'a Value,
        names: &[&str],
    ) -> Result<&'a Map<String, Value>> {
        let object = value.as_object().ok_or_else(|| self.refusal(key, "must be an object"))?;
        let unknown =
            object.iter().find(|(name, value)| !value.is_null() && !names.contains(&name.as_str()));
        match unknown {
            Some((name, _)) => Err(self.refusal(&format!("{key}.{name}"), "is not supported")),
            None => Ok(object),
        }
    }

    /// Refuses what was not read and is not known to be harmless.
    fn finish(self) -> Result<()> {
        let is_unknown = |(key, value): &(&String, &Value)| {
            !value.is_null() && !HARMLESS.contains(&key.as_str())
        };
        match self.rest.iter().find(is_unknown) {
            Some((key, _)) => {
                Err(self.refusal(key, "is not supported, and might change the pixels"))
            }
            None => Ok(()),
        }
    }
}

pub(super) fn read(
    family: Family,
    preprocessor_config: Option<&[u8]>,
    processor_config: Option<&[u8]>,
) -> Result<Processor> {
    let object = |file, bytes: Option<&[u8]>| match bytes {
        None => Ok(None),
        Some(bytes) => {
            let parsed: Option<Map<String, Value>> = serde_json::from_slice(bytes).ok();
            parsed.map(Some).ok_or(Error::BadSettings(file))
        }
    };
    let mut processor = object(PROCESSOR, processor_config)?.unwrap_or_default();
    let mut keys = match processor.remove("image_processor") {
        Some(Value::Object(rest)) => Keys { file: PROCESSOR, rest },
        _ => {
            let rest = object(PREPROCESSOR, preprocessor_config)?.ok_or(Error::NoSettings)?;
            Keys { file: PREPROCESSOR, rest }
        }
    };
    let defaults = family.defaults();
    check_type(&keys, defaults.types)?;
    for flag in ["do_resize", "do_rescale", "do_normalize"] {
        keys.require(flag)?;
    }
    keys.forbid("do_center_crop", "must be false: the model's family does not crop")?;
    // Without cropping its size has no effect.
    keys.take("crop_size");
    let filter = filter(&mut keys, defaults.filter)?;
    let scale = match keys.take("rescale_factor") {
        None => 1.0 / 255.0,
        Some(value) => value
            .as_f64()
            .filter(|scale| scale.is_finite())
            .ok_or_else(|| keys.refusal("rescale_factor", "must be a number"))?,
    };
    let mean = keys.channels("image_mean", defaults.mean, false)?;
    let std = keys.channels("image_std", defaults.std, true)?;
    let (sizing, layout) = match family {
        Family::Gemma3 => (gemma3(&mut keys)?, Layout::Channels),
        Family::Pixtral => {
            let mut processor = Keys { file: PROCESSOR, rest: processor };
            (pixtral(&mut keys, &mut processor)?, Layout::Channels)
        }
        Family::Qwen2Vl => qwen2_vl(&mut keys)?,
    };
    keys.finish()?;
    Ok(Processor { family, filter, sizing, normalize: Normalize { scale, mean, std }, layout })
}

/// Checks that the file is for the family's class, whose name may end with the backend.
fn check_type(keys: &Keys, types: &[&str]) -> Result<()> {
    let Some(Value::String(found)) = keys.rest.get("image_processor_type") else { return Ok(()) };
    let name = found.strip_suffix("Fast").or_else(|| found.strip_suffix("Pil")).unwrap_or(found);
    if types.contains(&name) {
        return Ok(());
    }
    let problem = format!("is {}; this model needs {}", line(found, 80), types[0]);
    Err(keys.refusal("image_processor_type", problem))
}

/// The filter, by the number that Pillow gives it.
fn filter(keys: &mut Keys, default: Filter) -> Result<Filter> {
    match keys.take("resample").map(|value| value.as_u64()) {
        None => Ok(default),
        Some(Some(1)) => Ok(Filter::Lanczos),
        Some(Some(2)) => Ok(Filter::Bilinear),
        Some(Some(3)) => Ok(Filter::Bicubic),
        Some(_) => {
            let problem = "must be 1 (Lanczos), 2 (bilinear) or 3 (bicubic)";
            Err(keys.refusal("resample", problem))
        }
    }
}

fn gemma3(keys: &mut Keys) -> Result<Sizing> {
    let problem = "must be false: crops beside the whole image (pan-and-scan) are not supported";
    keys.forbid("do_pan_and_scan", problem)?;
    for key in ["min_crop_size", "max_num_crops", "min_ratio_to_activate"] {
        keys.take(&format!("pan_and_scan_{key}"));
    }
    let [height, width] = match keys.take("size") {
        None => [224, 224],
        Some(size) => keys.pair("size", &size, ["height", "width"], MAX_SIDE)?,
    };
    Ok(Sizing::Fixed { height: height as u32, width: width as u32 })
}

/// The patch size comes from the processor, which also knows how many patches are merged into a token.
fn pixtral(keys: &mut Keys, processor: &mut Keys) -> Result<Sizing> {
    keys.take("patch_size");
    let patch = processor.integer("patch_size", MAX_PATCH)?.unwrap_or(16);
    let merge = processor.integer("spatial_merge_size", 16)?.unwrap_or(1);
    let patch = (patch * merge) as u32;
    let [height, width] = match keys.take("size") {
        None => [1_024, 1_024],
        Some(size) if size.get("longest_edge").is_some_and(|edge| !edge.is_null()) => {
            let object = keys.object("size", &size, &["longest_edge"])?;
            [keys.checked("size.longest_edge", &object["longest_edge"], MAX_SIDE)?; 2]
        }
        Some(size) => keys.pair("size", &size, ["height", "width"], MAX_SIDE)?,
    };
    let (height, width) = (height as u32, width as u32);
    Ok(Sizing::Within { height, width, patch_height: patch, patch_width: patch })
}

fn qwen2_vl(keys: &mut Keys) -> Result<(Sizing, Layout)> {
    let mut bounds = [56 * 56, 28 * 28 * 1_280];
    if let Some(size) = keys.take("size") {
        let object = keys.object("size", &size, &["shortest_edge", "longest_edge"])?;
        // Both edges, or none beside `min_pixels` and `max_pixels`.
        for (bound, name) in bounds.iter_mut().zip(["shortest_edge", "longest_edge"]) {
            if let Some(area) = object.get(name).filter(|area| !area.is_null()) {
                *bound = keys.checked(&format!("size.{name}"), area, MAX_AREA)?;
            }
        }
    }
    for (bound, name) in bounds.iter_mut().zip(["min_pixels", "max_pixels"]) {
        if let Some(area) = keys.integer(name, MAX_AREA)? {
            *bound = area;
        }
    }
    let [min, max] = bounds;
    let patch = keys.integer("patch_size", MAX_PATCH)?.unwrap_or(14) as u32;
    let merge = keys.integer("merge_size", 16)?.unwrap_or(2) as u32;
    let temporal = keys.integer("temporal_patch_size", 16)?.unwrap_or(2) as u32;
    let sizing = Sizing::Area { factor: patch * merge, min, max };
    Ok((sizing, Layout::Patches { patch, merge, temporal }))
}
