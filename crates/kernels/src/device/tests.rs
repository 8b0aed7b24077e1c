//! The definitions behind the device's operations, where the models' goldens do not reach.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};

use super::*;
use crate::sampling::{Penalties, SamplingRow, logprobs_of, sample_row_reference, uniform};
use crate::{Error, KvCacheConfig};

fn integers(values: &[u32], dims: &[usize]) -> Tensor {
    Tensor::from_slice(values, dims, &Device::Cpu).unwrap()
}

fn row(temperature: f32, top: Option<u32>) -> SamplerRow {
    SamplerRow {
        logits_row: Some(1),
        temperature,
        top_k: Some(7),
        top_p: 0.9,
        min_p: 0.01,
        repetition: 1.5,
        presence: 0.25,
        frequency: 0.5,
        counts_slot: Some(1),
        biases: (1, 3),
        mask_row: Some(1),
        top_logprobs: top,
        seed: 1 << 40 | 9,
        place: 3,
    }
}

/// A draw with everything that a row can ask for, and its count for the next one.
#[test]
fn a_draw_reads_its_own_tables_and_is_counted() {
    let vocab = 40;
    let logits: Vec<f32> = (0..2 * vocab).map(|i| ((i * 37) % 23) as f32 / 4.0).collect();
    let tensor = Tensor::from_slice(&logits, (2, vocab), &Device::Cpu).unwrap();
    let counts = TokenCounts::new(2, vocab, &Device::Cpu).unwrap();
    counts.add_generated(&integers(&[0, 1, 1, 9], &[4]), &integers(&[1, 2, 2, 3], &[4])).unwrap();
    counts.add_prompt(&integers(&[1, 1], &[2]), &integers(&[5, 400], &[2])).unwrap();
    let (ids, bits) = ([4, 6, 7], [9.0f32, 2.0, f32::NEG_INFINITY].map(f32::to_bits));
    let (ids, bits) = (integers(&ids, &[3]), integers(&bits, &[3]));
    let mask = [0x0fff_fff0, 0xff];
    let masks = integers(&[0, 0, mask[0], mask[1]], &[2, 2]);
    let seen = HashMap::from([(2, 2), (5, 0)]);
    let wanted = |seen: &HashMap<u32, u32>| {
        let params = SamplingRow {
            temperature: 0.8,
            top_k: Some(7),
            top_p: 0.9,
            min_p: 0.01,
            uniform: uniform(1 << 40 | 9, 3),
            penalties: Some(Penalties { repetition: 1.5, presence: 0.25, frequency: 0.5, seen }),
            logit_bias: &[(6, 2.0)],
            banned: vec![7],
            mask: Some(&mask),
            logprobs: None,
        };
        sample_row_reference(&logits[vocab..], &params).unwrap()
    };
    let draw = || {
        let table = row(0.8, Some(2)).words();
        let padding = SamplerRow { logits_row: None, ..row(0.0, None) }.words();
        let batch = SamplingBatch {
            rows: &integers(&[table, padding].concat(), &[2, SamplerRow::WORDS]),
            counts: Some(&counts),
            biases: Some((&ids, &bits)),
            masks: Some(&masks),
        };
        let out = SamplingOutput::new(2, 3, &Device::Cpu).unwrap();
        let scratch = SamplingScratch::new(2, vocab, &Device::Cpu).unwrap();
        sample(&tensor, &batch, &scratch, &out).unwrap();
        let report: Vec<Vec<u32>> = out.report.to_vec2().unwrap();
        (out.token_ids.to_vec1::<u32>().unwrap(), report)
    };
    let (tokens, report) = draw();
    assert_eq!(tokens, [wanted(&seen), u32::MAX]);
    assert_eq!(report[1], [u32::MAX; 8]);
    let own = Tensor::from_slice(&logits[vocab..], (1, vocab), &Device::Cpu).unwrap();
    let logprobs = &logprobs_of(&own, &tokens[..1], 2).unwrap()[0];
    assert_eq!(report[0][..2], [tokens[0], logprobs.logprob.to_bits()]);
    assert_eq!(report[0][2..4], [logprobs.top[0].0, logprobs.top[0].1.to_bits()]);
    assert_eq!(report[0][6..], [u32::MAX; 2]);
    let mut seen = seen;
    *seen.entry(tokens[0]).or_default() += 1;
    assert_eq!(draw().0[0], wanted(&seen), "the first draw counts");
    counts.reset(&integers(&[1], &[1])).unwrap();
    assert_eq!(draw().0[0], wanted(&HashMap::new()), "counts begin anew");
}

#[test]
fn tokens_of_the_previous_step_are_looked_up() {
    let tokens = integers(&[5, 1 << 31 | 1, 1 << 31, 1 << 31 | 2], &[4]);
    resolve_tokens(&tokens, &integers(&[70, 80], &[2])).unwrap();
    assert_eq!(tokens.to_vec1::<u32>().unwrap(), [5, 80, 70, u32::MAX]);
}

#[test]
fn uploads_replace_what_views_show() {
    let mut staging = Staging::new(8, &Device::Cpu).unwrap();
    let view = staging.view(4, &[2, 2]).unwrap();
    staging.upload(&[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    assert_eq!(view.to_vec2::<u32>().unwrap(), [[5, 6], [7, 8]]);
    staging.upload(&[9; 6]).unwrap();
    assert_eq!(view.to_vec2::<u32>().unwrap(), [[9, 9], [7, 8]]);
    assert!(matches!(staging.upload(&[0; 9]), Err(Error::OutOfRange { value: 9, .. })));
    let mut readback = Readback::new(4, &Device::Cpu).unwrap();
    assert!(readback.finish().unwrap().is_empty());
    readback.start(&view).unwrap();
    staging.upload(&[0; 8]).unwrap();
    assert_eq!(readback.finish().unwrap(), [9, 9, 7, 8], "as it was when the copy was queued");
}

#[test]
fn blocks_are_copied_in_every_layer() {
    let config = KvCacheConfig {
        num_layers: 2,
        num_blocks: 3,
        block_size: 16,
        num_kv_heads: 1,
        head_dim: 8,
    };
    let cache = PagedCache::new(config, DType::BF16, &Device::Cpu).unwrap();
    let keys = &cache.layer(1).unwrap().keys;
    let ones = Tensor::ones((1, 1, 16, 8), DType::BF16, &Device::Cpu).unwrap();
    keys.slice_set(&ones, 0, 2).unwrap();
    cache.copy_blocks(&integers(&[2, 0, 1, 7], &[2, 2])).unwrap();
    let sums: Vec<f32> = (0..3)
        .map(|block| keys.narrow(0, block, 1).unwrap().to_dtype(DType::F32).unwrap())
        .map(|block| block.sum_all().unwrap().to_scalar().unwrap())
        .collect();
    assert_eq!(sums, [128.0, 0.0, 128.0]);
}

/// Out to the host and back to other blocks, in a cache of eight bits; pairs with one that is not there are left out.
#[test]
fn blocks_are_brought_out_and_back_in_every_layer() {
    let (num_layers, num_blocks, block_size) = (2, 3, 16);
    let config = KvCacheConfig { num_layers, num_blocks, block_size, num_kv_heads: 1, head_dim: 8 };
    let cache = PagedCache::new(config, DType::F8E4M3, &Device::Cpu).unwrap();
    let host = HostBlocks::new(&cache, 2).unwrap();
    let values = &cache.layer(1).unwrap().values;
    let numbers: Vec<f32> = (0..3 * 128).map(|i| (1 + i / 128) as f32).collect();
    let numbers = Tensor::from_slice(&numbers, (3, 1, 16, 8), &Device::Cpu).unwrap();
    values.slice_set(&numbers.to_dtype(DType::F8E4M3).unwrap(), 0, 0).unwrap();
    cache.bring_out(&host, &integers(&[2, 1, 0, 0, 3, 0, 0, 2], &[4, 2])).unwrap();
    cache.bring_back(&host, &integers(&[1, 0, 0, 2], &[2, 2])).unwrap();
    let blocks: Vec<Vec<f32>> =
        values.to_dtype(DType::F32).unwrap().reshape((3, 128)).unwrap().to_vec2().unwrap();
    let want = [3.0, 2.0, 1.0];
    assert!(blocks.iter().zip(want).all(|(block, want)| block.iter().all(|x| *x == want)));
    let keys = &cache.layer(0).unwrap().keys.to_dtype(DType::F32).unwrap();
    assert_eq!(keys.sum_all().unwrap().to_scalar::<f32>().unwrap(), 0.0);
}

/// What a GPU refuses is refused here too, so that a test finds it.
#[test]
fn views_in_the_midst_of_a_vector_are_refused() {
    let x = Tensor::zeros(64, DType::BF16, &Device::Cpu).unwrap();
    assert!(scale_and_cap(&x.narrow(0, 8, 8).unwrap(), 1.0, Some(5.0)).is_ok());
    let error = scale_and_cap(&x.narrow(0, 4, 8).unwrap(), 1.0, None).unwrap_err();
    assert!(matches!(error, Error::Misaligned { operand: "x", .. }));
    let halves = Tensor::zeros((2, 8), DType::F16, &Device::Cpu).unwrap();
    let norm = RmsNorm {
        weight: &Tensor::zeros(8, DType::BF16, &Device::Cpu).unwrap(),
        form: NormWeight::OnePlus,
        eps: 1e-6,
    };
    assert!(matches!(rms_norm(&halves, &norm, &halves), Err(Error::DType { .. })));
    assert!(Graph::capture(&Device::Cpu, || Ok(())).is_err());
}
