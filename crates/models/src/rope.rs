//! Rope tables: the inverse frequencies of each kind of scaling, computed in f32 where
//! transformers does, since at long positions its rounding is part of the model.
//! Source: transformers `modeling_rope_utils.py`.

use std::f64::consts::PI;

use candlepower_checkpoint::{QueryGrowth, RopeScaling, RopeSpec};
use candlepower_kernels::{RopeStyle, RopeTable};

use crate::error::Result;

/// The table of a rope for positions below `max_len`. Without a rope it turns the first two dimensions by nothing, which
/// is exact.
pub(crate) fn rope_table(spec: Option<&RopeSpec>, max_len: usize) -> Result<RopeTable> {
    let Some(spec) = spec else {
        return Ok(RopeTable::from_inv_freq(&[0.0], max_len, 1.0, RopeStyle::Neox)?);
    };
    let (inv_freq, magnitude) = inverse_frequencies(spec, max_len);
    let style = if spec.interleaved { RopeStyle::Interleaved } else { RopeStyle::Neox };
    let mut table = RopeTable::from_inv_freq(&inv_freq, max_len, magnitude as f32, style)?;
    if let Some(sections) = &spec.sections {
        table = table.with_axes(sections.axes())?;
    }
    let Some(QueryGrowth { beta, original }) = spec.query_growth else { return Ok(table) };
    let scale = |position: usize| (1.0 + beta * (1.0 + (position / original) as f64).ln()) as f32;
    Ok(table.with_query_scales((0..max_len).map(scale).collect())?)
}

/// The `dim / 2` inverse frequencies, and the factor on cos and sin.
///
/// LongRoPE has two sets. transformers takes the short one until a sequence outgrows the original
/// context and then recomputes its whole cache with the long one. A paged cache is not recomputed:
/// the set is chosen once, by the context the model is loaded for.
fn inverse_frequencies(spec: &RopeSpec, max_len: usize) -> (Vec<f32>, f64) {
    let plain: Vec<f32> = powers(spec).iter().map(|power| 1.0 / power).collect();
    match &spec.scaling {
        RopeScaling::None => (plain, 1.0),
        RopeScaling::Linear { factor } => {
            (plain.iter().map(|freq| freq / *factor as f32).collect(), 1.0)
        }
        RopeScaling::Llama3 { .. } => {
            (plain.iter().map(|&freq| llama3(freq, &spec.scaling)).collect(), 1.0)
        }
        RopeScaling::Yarn { attention_factor, .. } => (yarn(spec), *attention_factor),
        RopeScaling::Proportional { rotated, factor } => {
            let divided = |(pair, freq): (usize, &f32)| {
                if pair < *rotated { freq / *factor as f32 } else { 0.0 }
            };
            (plain.iter().enumerate().map(divided).collect(), 1.0)
        }
        RopeScaling::LongRope { short_factor, long_factor, original, attention_factor } => {
            let factors = if max_len > *original { long_factor } else { short_factor };
            let stretch = |(power, &factor): (f32, &f64)| 1.0 / (factor as f32 * power);
            (powers(spec).into_iter().zip(factors).map(stretch).collect(), *attention_factor)
        }
    }
}

/// `theta^(2i / dim)` for each pair of dimensions, rounded to f32 as its exponent is.
fn powers(spec: &RopeSpec) -> Vec<f32> {
    let power = |i: usize| {
        let exponent = (2 * i) as f32 / spec.dim as f32;
        f64::from(spec.theta as f32).powf(f64::from(exponent)) as f32
    };
    (0..spec.dim / 2).map(power).collect()
}

fn llama3(freq: f32, scaling: &RopeScaling) -> f32 {
    let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } = scaling
    else {
        return freq;
    };
    let (factor, original) = (*factor as f32, *original as f32);
    let (low, high) = (*low_freq_factor as f32, *high_freq_factor as f32);
    let wavelength = (2.0 * PI) as f32 / freq;
    if wavelength > original / low {
        freq / factor
    } else if wavelength < original / high {
        freq
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * freq / factor + smooth * freq
    }
}

fn yarn(spec: &RopeSpec) -> Vec<f32> {
    let RopeScaling::Yarn { factor, original, beta_fast, beta_slow, truncate, .. } = spec.scaling
    else {
        return Vec::new();
    };
    let dim = spec.dim as f64;
    // The dimension whose frequency makes so many rotations over the original context.
    let correction_dim = |rotations: f64| {
        dim * (original as f64 / (rotations * 2.0 * PI)).ln() / (2.0 * spec.theta.ln())
    };
    let (mut low, mut high) = (correction_dim(beta_fast), correction_dim(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(dim - 1.0));
    if low == high {
        high += 0.001;
    }
    let blend = |(i, power): (usize, &f32)| {
        let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
        let keep = 1.0 - ramp;
        1.0 / (factor as f32 * power) * (1.0 - keep) + 1.0 / power * keep
    };
    powers(spec).iter().enumerate().map(blend).collect()
}

#[cfg(test)]
mod tests {
    use candlepower_checkpoint::{Checkpoint, CheckpointFiles};
    use safetensors::SafeTensors;

    use super::*;

    /// Frequencies are compared relatively: at a position of 100,000 an error of 1e-6 would be a
    /// tenth of a radian.
    fn check(golden: &str, tensor: &str, max_len: usize) {
        let folder = candlepower_testing::goldens::folder(golden);
        let bytes = std::fs::read(folder.join("golden.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let data = file.tensor(tensor).unwrap().data();
        let expected: Vec<f32> =
            data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let checkpoint = Checkpoint::open(CheckpointFiles::Folder(folder)).unwrap();
        let spec = checkpoint.spec().attentions().next().unwrap().rope.as_ref().unwrap();
        let (found, _) = inverse_frequencies(spec, max_len);
        assert_eq!(found.len(), expected.len(), "{golden}");
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let error = (found / expected - 1.0).abs();
            assert!(error <= 2e-7, "{golden}: frequency {i} is {found}, not {expected}");
        }
    }

    #[test]
    fn frequencies_are_those_of_transformers() {
        for golden in ["llama", "llama-linear", "llama-yarn", "qwen3", "phi3"] {
            check(golden, "inv_freq", 256);
        }
        check("phi3-longrope", "inv_freq", 33);
        check("phi3-longrope", "short_inv_freq", 32);
    }
}
