//! Keys that the configurations of several towers share.

use candlepower_layout::Activation;

use super::VisionSource;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{MAX_HEADS, MAX_LAYERS, MAX_WIDTH, activation_of},
};

/// Largest side of a picture and of a patch, in pixels.
const MAX_PIXELS: usize = 1 << 14;
/// Most patches in a side of a merged cell.
pub(super) const MAX_MERGED: usize = 1 << 6;

/// The sizes of a tower.
pub(super) struct TowerSizes {
    pub(super) width: usize,
    pub(super) inner: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    /// Side of a patch in pixels.
    pub(super) patch: usize,
    pub(super) act: Activation,
}

impl TowerSizes {
    /// Reads the sizes from the keys that most towers have in common. `act` is the activation where it is not written.
    pub(super) fn read(c: &HfConfig, act: &str) -> Result<Self> {
        if c.count_opt("num_channels")?.is_some_and(|channels| channels != 3) {
            let found = c.raw("num_channels").cloned().unwrap_or_default();
            return Err(c.unsupported("num_channels", &found, "; 3 is"));
        }
        let width = c.bounded("hidden_size", MAX_WIDTH)?;
        let heads = c.bounded("num_attention_heads", MAX_HEADS)?;
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
        Ok(Self {
            width,
            inner: c.bounded("intermediate_size", MAX_WIDTH)?,
            layers: c.bounded("num_hidden_layers", MAX_LAYERS)?,
            heads,
            patch: c.bounded("patch_size", MAX_PIXELS)?,
            act: activation_of(&c.with_default("hidden_act", act), "hidden_act")?,
        })
    }

    /// Patches along the longest side of a picture, where that is limited.
    pub(super) fn most_patches(&self, c: &HfConfig) -> Result<usize> {
        let image = c.bounded("image_size", MAX_PIXELS)?;
        match image / self.patch {
            0 => Err(c.unsupported("image_size", &image.into(), "; at least one patch is")),
            patches => Ok(patches),
        }
    }

    /// Checks that heads can be rotated by rows and by columns.
    pub(super) fn check_axial(&self, c: &HfConfig) -> Result<()> {
        if self.head_dim().is_multiple_of(4) {
            return Ok(());
        }
        let hint = "; heads of a multiple of four elements, for rows and columns, are";
        Err(c.unsupported("num_attention_heads", &self.heads.into(), hint))
    }

    pub(super) fn head_dim(&self) -> usize {
        self.width / self.heads
    }
}

/// The base of the frequencies: `rope_theta` of transformers 4, or `rope_parameters` of 5, of the types that mean the same.
pub(super) fn axial_theta(tower: &HfConfig) -> Result<f64> {
    let rope = tower.rope_parameters()?;
    match rope.text_opt("rope_type")? {
        None | Some("axial" | "default") => {}
        Some(other) => return Err(rope.unsupported("rope_type", &other.into(), "; axial is")),
    }
    let theta = rope.float_opt("rope_theta")?.unwrap_or(1e4);
    if theta > 0.0 {
        Ok(theta)
    } else {
        Err(rope.unsupported("rope_theta", &theta.into(), "; a number above 0 is"))
    }
}

impl VisionSource<'_> {
    /// Refuses a tower that names another kind than one of `kinds`, which are never empty.
    pub(super) fn check_kind(&self, kinds: &[&str]) -> Result<()> {
        match self.tower.text_opt("model_type")? {
            Some(kind) if !kinds.contains(&kind) => {
                let hint = format!("; {} is", kinds[0]);
                Err(self.tower.unsupported("model_type", &kind.into(), &hint))
            }
            _ => Ok(()),
        }
    }

    /// The tower's configuration, with the defaults of its class in transformers where keys are absent.
    pub(super) fn with_defaults(&self, defaults: &[(&str, usize)]) -> HfConfig {
        let tower = self.tower.clone();
        defaults.iter().fold(tower, |tower, (key, count)| tower.with_default(key, *count))
    }

    /// An id of a token by the names that versions of transformers give it.
    pub(super) fn token_id<const N: usize>(&self, keys: [&str; N], default: u32) -> Result<u32> {
        let key = keys.into_iter().find(|key| self.config.raw(key).is_some()).unwrap_or(keys[0]);
        let id = self.config.index_or(key, default as usize)?;
        match u32::try_from(id) {
            Ok(id) if (id as usize) < self.decoder.vocab_size => Ok(id),
            _ => Err(self.config.unsupported(key, &id.into(), "; an id of the vocabulary is")),
        }
    }

    /// Number of patches in a side of a merged cell.
    pub(super) fn merge_side(&self, default: usize) -> Result<usize> {
        Ok(self.config.bounded_opt("spatial_merge_size", MAX_MERGED)?.unwrap_or(default))
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
