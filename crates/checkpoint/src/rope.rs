//! Rotary position embeddings as data.

use crate::{config::HfConfig, error::Result};

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Number of leading dimensions of a head that are rotated; even.
    pub dim: usize,
    /// A pair is two neighbours, not one element of each half.
    pub interleaved: bool,
    /// The base.
    pub theta: f64,
    /// Scaling of the frequencies for longer contexts.
    pub scaling: RopeScaling,
    /// Growth of queries with their position.
    pub query_growth: Option<QueryGrowth>,
    /// Rotation by frame, row and column, where tokens have three positions; those of text are equal.
    pub sections: Option<RopeSections>,
}

/// The frequencies that rotate by frame, by row and by column.
/// Source: transformers `models/qwen3_vl`, `apply_interleaved_mrope`, and `models/qwen2_vl`, `apply_multimodal_rotary_pos_emb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeSections {
    /// Number of frequencies of each.
    pub counts: [usize; 3],
    /// Frequencies of the three alternate as long as rows and columns have some left; the rest belongs to frames. Otherwise each has
    /// a range of frequencies.
    pub interleaved: bool,
}

impl RopeSections {
    /// The position by which each frequency rotates: 0 for the frame, 1 for the row, 2 for the column.
    pub fn axes(&self) -> Vec<u8> {
        let [frames, rows, columns] = self.counts;
        let axis = |frequency: usize| match (self.interleaved, frequency % 3) {
            (true, 1) if frequency < 3 * rows => 1,
            (true, 2) if frequency < 3 * columns => 2,
            (true, _) => 0,
            (false, _) => u8::from(frequency >= frames) + u8::from(frequency >= frames + rows),
        };
        (0..frames + rows + columns).map(axis).collect()
    }

    /// Reads them from the rope settings, where they are among them, for a rope of `pairs` frequencies.
    fn read(rope: &HfConfig, pairs: usize) -> Result<Option<Self>> {
        if !rope.contains("mrope_section") {
            return Ok(None);
        }
        let list = rope.floats("mrope_section")?;
        let expected = "three counts whose sum is half of the rotated dimensions";
        let wrong = || rope.ill_typed("mrope_section", &list.clone().into(), expected);
        let counts: [f64; 3] = list.clone().try_into().map_err(|_| wrong())?;
        let is_count = |count: &f64| *count >= 0.0 && count.fract() == 0.0;
        if !counts.iter().all(is_count) || counts.iter().sum::<f64>() != pairs as f64 {
            return Err(wrong());
        }
        let interleaved = rope.flag_or("mrope_interleaved", false)?;
        Ok(Some(Self { counts: counts.map(|count| count as usize), interleaved }))
    }
}

/// Queries are multiplied by `1 + beta * ln(1 + floor(position / original))`.
/// Source: transformers `models/ministral3`, `get_llama_4_attn_scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// Factor on the logarithm.
    pub beta: f64,
    /// Positions below are left as they are.
    pub original: usize,
}

impl QueryGrowth {
    /// Reads it from the rope settings, where it is among them.
    fn read(rope: &HfConfig) -> Result<Option<Self>> {
        let Some(beta) = rope.float_opt("llama_4_scaling_beta")? else { return Ok(None) };
        Ok(Some(Self { beta, original: rope.count("original_max_position_embeddings")? }))
    }
}

/// Scaling of the frequencies for longer contexts.
/// Source: transformers `modeling_rope_utils.py`.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided, high ones kept, those between blended.
    Llama3 {
        /// Divides the low frequencies.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are high frequencies.
        high_freq_factor: f64,
        /// Context length before stretching, in tokens.
        original: usize,
    },
    /// YaRN: like Llama 3, blended by dimension, and cos and sin scaled.
    Yarn {
        /// Divides the low frequencies.
        factor: f64,
        /// Context length before stretching, in tokens.
        original: usize,
        /// Rotations over `original` above which a frequency is kept.
        beta_fast: f64,
        /// Rotations over `original` below which a frequency is divided.
        beta_slow: f64,
        /// The bounds are rounded outwards to whole dimensions.
        truncate: bool,
        /// Factor on cos and sin.
        attention_factor: f64,
    },
    /// LongRoPE (Phi-3): a divisor for each frequency, one set for contexts up to `original` and
    /// one for longer ones.
    LongRope {
        /// Divisors up to `original`, `dim / 2` of them.
        short_factor: Vec<f64>,
        /// Divisors beyond, `dim / 2` of them.
        long_factor: Vec<f64>,
        /// Context length before stretching, in tokens.
        original: usize,
        /// Factor on cos and sin.
        attention_factor: f64,
    },
    /// The first of the frequencies of whole heads, all divided by a factor; the other pairs are not rotated (Gemma 4).
    Proportional {
        /// Number of pairs that are rotated.
        rotated: usize,
        /// The factor.
        factor: f64,
    },
}

impl RopeSpec {
    /// Reads the rope settings of a model whose heads are `head_dim` wide.
    pub(crate) fn read(c: &HfConfig, head_dim: usize) -> Result<Self> {
        let rope = c.rope_parameters()?;
        let partial = rope.float_opt("partial_rotary_factor")?.unwrap_or(1.0);
        let rotated = (head_dim as f64 * partial) as usize;
        let proportional = rope.text_opt("rope_type")? == Some("proportional");
        // Pairs without rotation count as rotated by zero: they lie between those that are rotated.
        let dim = if proportional { head_dim } else { rotated };
        if rotated == 0 || dim == 0 || dim > head_dim || dim % 2 == 1 {
            let needed = "a factor that leaves an even part of head_dim";
            let place = if c.contains("partial_rotary_factor") { c } else { &rope };
            return Err(place.ill_typed("partial_rotary_factor", &partial.into(), needed));
        }
        let scaling = match proportional {
            true => RopeScaling::Proportional {
                rotated: rotated / 2,
                factor: rope.float_opt("factor")?.unwrap_or(1.0),
            },
            false => RopeScaling::read(c, &rope, dim)?,
        };
        // Llama checkpoints from before transformers 4.31 have no rope_theta.
        let theta = rope.float_opt("rope_theta")?.unwrap_or(10_000.0);
        let query_growth = QueryGrowth::read(&rope)?;
        let sections = RopeSections::read(&rope, dim / 2)?;
        Ok(Self { dim, interleaved: false, theta, scaling, query_growth, sections })
    }

    /// The longest context, given the configuration's `max_position_embeddings`: YaRN is commonly
    /// switched on without raising that.
    pub(crate) fn max_positions(&self, max_position_embeddings: usize) -> usize {
        match self.scaling {
            RopeScaling::Yarn { factor, original, .. } => {
                let stretched = (original as f64 * factor).min(f64::from(u32::MAX));
                max_position_embeddings.max(stretched as usize)
            }
            _ => max_position_embeddings,
        }
    }
}

impl RopeScaling {
    fn read(c: &HfConfig, rope: &HfConfig, dim: usize) -> Result<Self> {
        let max_len = c.count("max_position_embeddings")?;
        let original = rope.count_opt("original_max_position_embeddings")?.unwrap_or(max_len);
        let kind = rope.text_opt("rope_type")?.unwrap_or("default");
        match kind {
            "default" => Ok(Self::None),
            "linear" => Ok(Self::Linear { factor: rope.float("factor")? }),
            "llama3" => Ok(Self::Llama3 {
                factor: rope.float("factor")?,
                low_freq_factor: rope.float("low_freq_factor")?,
                high_freq_factor: rope.float("high_freq_factor")?,
                original,
            }),
            "yarn" => Self::yarn(rope, max_len, original),
            // Phi-3's first releases wrote "su".
            "longrope" | "su" => Self::long_rope(rope, max_len, dim),
            other => Err(rope.unsupported(
                "rope_type",
                &other.into(),
                "; default, linear, llama3, yarn, longrope and proportional are",
            )),
        }
    }

    fn yarn(rope: &HfConfig, max_len: usize, original: usize) -> Result<Self> {
        let factor = rope.float_opt("factor")?.unwrap_or(max_len as f64 / original as f64);
        // A written zero counts as absent, as in transformers.
        let given = |key: &str| Ok(rope.float_opt(key)?.filter(|&v| v != 0.0));
        let temperature =
            |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
        let attention_factor = match rope.float_opt("attention_factor")? {
            Some(factor) => factor,
            None => match (given("mscale")?, given("mscale_all_dim")?) {
                (Some(mscale), Some(all_dim)) => temperature(mscale) / temperature(all_dim),
                _ => temperature(1.0),
            },
        };
        Ok(Self::Yarn {
            factor,
            original,
            beta_fast: given("beta_fast")?.unwrap_or(32.0),
            beta_slow: given("beta_slow")?.unwrap_or(1.0),
            truncate: rope.flag_or("truncate", true)?,
            attention_factor,
        })
    }

    fn long_rope(rope: &HfConfig, max_len: usize, dim: usize) -> Result<Self> {
        let original = rope.count("original_max_position_embeddings")?;
        let factors = |key: &str| {
            let list = rope.floats(key)?;
            if list.len() == dim / 2 {
                return Ok(list);
            }
            Err(rope.ill_typed(key, &list.into(), "a number for each pair of rotated dimensions"))
        };
        let factor = rope.float_opt("factor")?.unwrap_or(max_len as f64 / original as f64);
        let attention_factor = match rope.float_opt("attention_factor")? {
            Some(factor) => factor,
            None if factor <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
        };
        Ok(Self::LongRope {
            short_factor: factors("short_factor")?,
            long_factor: factors("long_factor")?,
            original,
            attention_factor,
        })
    }
}
