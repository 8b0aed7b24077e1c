//! From the hidden states of a text's tokens to one vector.
//!
//! Source: sentence-transformers, modules `Pooling` and `Normalize`.

use candlepower_checkpoint::Pooling;

/// One vector `[width]` of the hidden states `[tokens, width]` of one text, padding left out.
pub(crate) fn pool(states: &[f32], width: usize, pooling: Pooling) -> Vec<f32> {
    let mut rows = states.chunks_exact(width);
    // An input has one token at least, so there is a first row.
    let first = rows.next().unwrap_or_default().to_vec();
    match pooling {
        Pooling::Cls => first,
        Pooling::Last => rows.next_back().map_or(first, <[f32]>::to_vec),
        Pooling::Max => rows.fold(first, |mut most, row| {
            most.iter_mut().zip(row).for_each(|(most, value)| *most = most.max(*value));
            most
        }),
        Pooling::Mean => {
            let count = (states.len() / width) as f32;
            let mut sum = rows.fold(first, |mut sum, row| {
                sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
                sum
            });
            sum.iter_mut().for_each(|sum| *sum /= count);
            sum
        }
    }
}

/// Least length that a vector is divided by.
// The value is the default `eps` of `torch.nn.functional.normalize`.
const LEAST_LENGTH: f32 = 1e-12;

/// Divides a vector by its Euclidean length.
pub(crate) fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt().max(LEAST_LENGTH);
    vector.iter_mut().for_each(|value| *value /= length);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pooling_takes_what_it_says() {
        let states = [1.0, -2.0, 3.0, 4.0, 5.0, -6.0];
        assert_eq!(pool(&states, 2, Pooling::Cls), [1.0, -2.0]);
        assert_eq!(pool(&states, 2, Pooling::Last), [5.0, -6.0]);
        assert_eq!(pool(&states, 2, Pooling::Mean), [3.0, -4.0 / 3.0]);
        assert_eq!(pool(&states, 2, Pooling::Max), [5.0, 4.0]);
        for pooling in [Pooling::Cls, Pooling::Last, Pooling::Mean, Pooling::Max] {
            assert_eq!(pool(&states[..2], 2, pooling), [1.0, -2.0], "one token");
        }
    }

    #[test]
    fn vectors_get_length_one_and_zeros_stay() {
        let mut vector = [3.0, 4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
        let mut zeros = [0.0; 3];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
    }
}
