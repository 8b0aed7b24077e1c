//! Noise from a seed. `scripts/goldens/seeded_weights.py` makes the same bits, and so does every machine.

/// The noise of one matrix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Noise {
    key: u64,
}

impl Noise {
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        Self { key: fnv1a(format!("{seed}/{name}").as_bytes()) }
    }

    /// Element `i`: roughly normally distributed around zero, with a standard deviation of sqrt((2^32 - 1) / 3).
    ///
    /// Source: Hall, "The distribution of means for samples of size N", 1927: the sum of four uniform numbers.
    pub(crate) fn at(self, i: u64) -> i32 {
        const MEAN: i32 = 4 * 0xffff / 2;
        let hash = splitmix64(self.key, i);
        let part = |shift: u32| (hash >> shift & 0xffff) as i32;
        part(0) + part(16) + part(32) + part(48) - MEAN
    }
}

/// Source: RFC 9923.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |state, byte| {
        (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Output `i`, counted from zero, of the generator that starts with `state`.
///
/// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
fn splitmix64(state: u64, i: u64) -> u64 {
    let mut z = state.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first values are from RFC 9923, the others from the splitmix64.c that belongs to the paper.
    #[test]
    fn hashes_are_those_of_their_definitions() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
        let outputs = [0, 1, 2].map(|i| splitmix64(1_234_567, i));
        assert_eq!(
            outputs,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn noise_is_about_normal() {
        const COUNT: u64 = 100_000;
        let noise = Noise::new(5, "model.layers.0.mlp.up_proj.weight");
        let sigma = ((2_f64.powi(32) - 1.0) / 3.0).sqrt();
        let scaled: Vec<f64> = (0..COUNT).map(|i| f64::from(noise.at(i)) / sigma).collect();
        let mean_of = |power: i32| scaled.iter().map(|x| x.powi(power)).sum::<f64>() / COUNT as f64;
        // Five standard deviations of each mean. A sum of four uniform numbers has a kurtosis of 2.7.
        assert!(mean_of(1).abs() < 0.016, "{}", mean_of(1));
        assert!((mean_of(2) - 1.0).abs() < 0.021, "{}", mean_of(2));
        assert!(mean_of(3).abs() < 0.05, "{}", mean_of(3));
        assert!((mean_of(4) - 2.7).abs() < 0.11, "{}", mean_of(4));
        assert!(scaled.iter().all(|x| x.abs() < 3.47));
        let neighbours = scaled.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>();
        assert!((neighbours / COUNT as f64).abs() < 0.016, "{neighbours}");
    }

    #[test]
    fn matrices_and_seeds_have_noise_of_their_own() {
        let first = |seed, name| [0, 1, 2, 3].map(|i| Noise::new(seed, name).at(i));
        assert_ne!(first(5, "a"), first(5, "b"));
        assert_ne!(first(5, "a"), first(6, "a"));
        assert_eq!(first(5, "a"), first(5, "a"));
    }
}
