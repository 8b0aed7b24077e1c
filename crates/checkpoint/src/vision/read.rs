//! Keys that the configurations of several towers share.

use candlepower_layout::Activation;

use super::VisionSource;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{MOST_HEADS, MOST_LAYERS, MOST_WIDTH, activation_of},
};

/// Largest side of a picture and of a patch, in pixels.
const MOST_PIXELS: usize = 1 << 14;
/// Most patches in a side of a merged cell.
const MOST_MERGED: usize = 1 << 6;

/// The sizes of a tower.
pub(super) struct TowerSizes {
    pub(super) width: usize,
    pub(super) inner: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    /// Side of a patch in pixels.
    pub(super) patch: usize,
    /// Patches along the longest side of a picture.
    pub(super) most_patches: usize,
    pub(super) act: Activation,
}

impl TowerSizes {
    /// Reads the sizes; `defaults` are those of the class in transformers, by key.
    pub(super) fn read(
        source: &VisionSource<'_>,
        defaults: &[(&str, usize)],
        act: &str,
    ) -> Result<Self> {
        let mut c = source.tower.with_default("hidden_act", act);
        for (key, count) in defaults {
            c = c.with_default(key, *count);
        }
        if c.count_opt("num_channels")?.is_some_and(|channels| channels != 3) {
            let found = c.raw("num_channels").cloned().unwrap_or_default();
            return Err(c.unsupported("num_channels", &found, "; 3 is"));
        }
        let width = c.bounded("hidden_size", MOST_WIDTH)?;
        let heads = c.bounded("num_attention_heads", MOST_HEADS)?;
        if !width.is_multiple_of(heads) {
            return Err(c.unsupported(
                "num_attention_heads",
                &heads.into(),
                "; a divisor of hidden_size is",
            ));
        }
        if let Some(head_dim) = c.count_opt("head_dim")?
            && head_dim * heads != width
        {
            let hint = "; hidden_size / num_attention_heads is";
            return Err(c.unsupported("head_dim", &head_dim.into(), hint));
        }
        let patch = c.bounded("patch_size", MOST_PIXELS)?;
        let image = c.bounded("image_size", MOST_PIXELS)?;
        if image < patch {
            return Err(c.unsupported("image_size", &image.into(), "; at least one patch is"));
        }
        Ok(Self {
            width,
            inner: c.bounded("intermediate_size", MOST_WIDTH)?,
            layers: c.bounded("num_hidden_layers", MOST_LAYERS)?,
            heads,
            patch,
            most_patches: image / patch,
            act: activation_of(&c, "hidden_act")?,
        })
    }

    pub(super) fn head_dim(&self) -> usize {
        self.width / self.heads
    }
}

impl VisionSource<'_> {
    /// An id of a token that is named in one of two ways, by transformers 4 and 5.
    pub(super) fn token_id(&self, keys: [&str; 2], default: u32) -> Result<u32> {
        let key = keys.into_iter().find(|key| self.config.raw(key).is_some()).unwrap_or(keys[0]);
        let id = self.config.index_or(key, default as usize)?;
        match u32::try_from(id) {
            Ok(id) if (id as usize) < self.decoder.vocab_size => Ok(id),
            _ => Err(self.config.unsupported(key, &id.into(), "; an id of the vocabulary is")),
        }
    }

    /// Number of patches in a side of a merged cell.
    pub(super) fn merge_side(&self, default: usize) -> Result<usize> {
        Ok(self.config.bounded_opt("spatial_merge_size", MOST_MERGED)?.unwrap_or(default))
    }

    /// How many of `layers` layers are computed, if the output of the layer that `vision_feature_layer` names is taken: -1 is the
    /// last one, and 0 are the patches before the first.
    pub(super) fn layers_in_use(&self, layers: usize) -> Result<usize> {
        let key = "vision_feature_layer";
        let Some(value) = self.config.raw(key) else { return Ok(layers) };
        let one = match value {
            serde_json::Value::Array(list) if list.len() == 1 => &list[0],
            value => value,
        };
        let refused = |hint| Err(self.config.unsupported(key, value, hint));
        let Some(layer) = one.as_i64() else { return refused("; the number of one layer is") };
        let used = if layer < 0 { layers as i64 + 1 + layer } else { layer };
        match usize::try_from(used) {
            Ok(used) if (1..=layers).contains(&used) => Ok(used),
            _ => refused("; the number of a layer is"),
        }
    }

    /// The text of a token in `processor_config.json`: a text, or an object with it.
    pub(super) fn token_text(&self, key: &str, default: &str) -> Result<String> {
        let Some(processor) = &self.processor else { return Ok(default.to_owned()) };
        let content = match processor.raw(key) {
            Some(serde_json::Value::Object(_)) => {
                let token: Option<HfConfig> = processor.section(key)?;
                token.map(|token| token.text_opt("content").map(|text| text.map(str::to_owned)))
            }
            _ => Some(processor.text_opt(key).map(|text| text.map(str::to_owned))),
        };
        Ok(content.transpose()?.flatten().unwrap_or_else(|| default.to_owned()))
    }
}
