//! The scales of keys and values in a checkpoint, for a cache in FP8.

use std::result::Result as StdResult;

use candlepower_checkpoint::{ModelSpec, Slot};
use candlepower_kernels::{KvScales, WeightRows};

use crate::{
    error::{Error, Result},
    parts::values,
    shards::Shards,
};

/// Ends of names, each with whether it belongs to keys and to values. Source: vLLM `maybe_remap_kv_scale_name`.
const KINDS: [(&str, [bool; 2]); 3] =
    [(".k_scale", [true, false]), (".v_scale", [false, true]), (".kv_scale", [true, true])];

/// The scales of a model's layers, or why they cannot be used: only a cache in FP8 asks.
#[derive(Clone, Debug)]
pub(crate) struct LayerKvScales(StdResult<Vec<KvScales>, Unusable>);

#[derive(Clone, Debug, PartialEq)]
struct Unusable {
    name: String,
    reason: &'static str,
}

impl LayerKvScales {
    /// Scales of 1 for as many layers as names of tensors count.
    pub(crate) fn none(num_layers: usize) -> Self {
        Self(Ok(vec![KvScales::ONE; num_layers]))
    }

    /// The scales in a checkpoint's files. A layer without scales has scales of 1.
    pub(crate) fn read(shards: &Shards, num_layers: usize) -> Result<Self> {
        let kinds_of = |name: &str| KINDS.iter().find(|(end, _)| name.ends_with(end));
        let names = shards.names().filter_map(|name| Some((name, kinds_of(name)?.1)));
        let mut names: Vec<(&str, [bool; 2])> = names.collect();
        // In the order of names, so that the same tensor is reported each time.
        names.sort_unstable();
        let mut stored = Vec::new();
        for (name, kinds) in names {
            let Ok(dtype) = shards.dtype(name) else {
                return Ok(Self(unusable(name, "it is not F32, F16 or BF16")));
            };
            if shards.num_bytes(name) != dtype.size_in_bytes() {
                let reason = "it must hold one number: scales of single heads are not supported";
                return Ok(Self(unusable(name, reason)));
            }
            let bytes = shards.whole(name)?;
            stored.push((name, kinds, values(WeightRows { dtype, bytes: &bytes })[0]));
        }
        Ok(Self(of_layers(&stored, num_layers)))
    }

    /// The scales of each layer of one of [`ModelSpec::kv_kinds`]' caches.
    ///
    /// # Errors
    /// The checkpoint's scales cannot be used.
    pub(crate) fn of_kind(&self, spec: &ModelSpec, kind: usize) -> Result<Vec<KvScales>> {
        match &self.0 {
            Ok(scales) => {
                let keeps = |layer: usize| {
                    let attention = spec.layers[layer].attention();
                    attention.is_some_and(|attention| attention.keys_of.is_none())
                        && spec.kv_layer(layer).is_some_and(|kv_layer| kv_layer.kind == kind)
                };
                let layers = (0..spec.layers.len()).filter(|layer| keeps(*layer));
                let is_of_latents = spec.kv_kinds()[kind].latent.is_some();
                // Values that are a part of the keys have their scale.
                let of_layer = |scales: &KvScales| match is_of_latents {
                    true => KvScales { value: scales.key, ..*scales },
                    false => *scales,
                };
                Ok(layers
                    .map(|layer| of_layer(&scales[spec.stored_layer(layer, Slot::K)]))
                    .collect())
            }
            Err(Unusable { name, reason }) => Err(Error::KvScale { name: name.clone(), reason }),
        }
    }
}

/// A tensor's name, whether it belongs to keys and to values, and its value.
type StoredScale<'a> = (&'a str, [bool; 2], f32);

fn of_layers(stored: &[StoredScale<'_>], num_layers: usize) -> StdResult<Vec<KvScales>, Unusable> {
    let mut found: Vec<[Option<(f32, &str)>; 2]> = vec![[None; 2]; num_layers];
    for (name, kinds, number) in stored {
        // The layer is the first number in a name.
        let layer = name.split('.').find_map(|part| part.parse::<usize>().ok());
        let Some(of_layer) = layer.and_then(|layer| found.get_mut(layer)) else {
            return unusable(name, "its name has no number of one of the layers");
        };
        if !number.is_finite() || *number <= 0.0 {
            return unusable(name, "it must hold a number above zero");
        }
        for place in of_layer.iter_mut().zip(kinds).filter_map(|(place, is)| is.then_some(place)) {
            if place.replace((*number, name)).is_some() {
                return unusable(name, "its layer has another one");
            }
        }
    }
    let scales = found.into_iter().map(|of_layer| match of_layer {
        [Some((key, _)), Some((value, _))] => Ok(KvScales { key, value }),
        [None, None] => Ok(KvScales::ONE),
        [Some((_, name)), None] => unusable(name, "its layer has none of the values"),
        [None, Some((_, name))] => unusable(name, "its layer has none of the keys"),
    });
    scales.collect()
}

fn unusable<T>(name: &str, reason: &'static str) -> StdResult<T, Unusable> {
    Err(Unusable { name: name.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: [bool; 2] = [true, false];
    const V: [bool; 2] = [false, true];

    #[test]
    fn scales_go_to_the_layers_that_their_names_say() {
        let stored = [
            ("model.layers.0.self_attn.k_scale", K, 0.5),
            ("model.layers.0.self_attn.v_proj.v_scale", V, 2.0),
            ("model.layers.2.self_attn.kv_scale", [true, true], 0.25),
        ];
        let of = |key, value| KvScales { key, value };
        let want = vec![of(0.5, 2.0), KvScales::ONE, of(0.25, 0.25)];
        assert_eq!(of_layers(&stored, 3), Ok(want));
        assert_eq!(of_layers(&[], 2), Ok(vec![KvScales::ONE; 2]));
    }

    #[test]
    fn what_are_no_scales_is_refused_by_name() {
        let first = ("layers.0.k_scale", K, 1.0);
        for (second, word) in [
            (("layers.1.v_scale", V, 1.0), "number of one of the layers"),
            (("norm.v_scale", V, 1.0), "number of one of the layers"),
            (("layers.0.v_scale", V, 0.0), "above zero"),
            (("layers.0.v_scale", V, f32::NAN), "above zero"),
            (("layers.0.v_scale", V, f32::INFINITY), "above zero"),
            (("layers.0.v_scale", V, -1.0), "above zero"),
            (("layers.0.kv_scale", [true, true], 1.0), "has another one"),
        ] {
            let name = second.0;
            let refused = of_layers(&[first, second], 1).unwrap_err();
            assert!(refused.name == name && refused.reason.contains(word), "{refused:?}");
        }
        let alone = of_layers(&[first], 1).unwrap_err();
        assert_eq!(
            (&alone.name[..], alone.reason),
            ("layers.0.k_scale", "its layer has none of the values")
        );
    }
}
