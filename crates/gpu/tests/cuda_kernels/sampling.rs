//! Sampling and log-probabilities.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use candlepower_gpu::cuda;
use candlepower_gpu::{
    Graph, REPORT_HEAD, SamplerRow, SamplingBatch, SamplingOutput, SamplingScratch, TokenCounts,
};
use candlepower_kernels::sampling::{
    Penalties, RowLogprobs, SamplingRow, logprobs_of, sample_row_reference, uniform,
};

use crate::gpu::{Gpu, Random};

/// The element types of logits.
const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];
const NONE: u32 = u32::MAX;

pub(crate) fn sample(gpu: &Gpu) {
    let mut random = Random(11);
    for (samples, vocab) in [(1, 151_936), (7, 32_001), (64, 500), (5, 3), (256, 1024)] {
        for dtype in DTYPES {
            for spread in [1.0, 8.0] {
                sample_batch(gpu, &mut random, (samples, vocab), (dtype, spread));
            }
        }
    }
    // One part of the vocabulary, two, and more than a warp has lanes. Logits are flat, with many ties, or far apart. A
    // flat row has too many candidates for a list.
    for (samples, vocab) in [(6, 8192), (6, 8193), (5, 40_000), (2, 270_001)] {
        for dtype in DTYPES {
            for spread in [0.02, 30.0] {
                sample_batch(gpu, &mut random, (samples, vocab), (dtype, spread));
            }
        }
    }
}

/// A replayed graph samples for the parameters and logits of the replay, whatever the batches before have left in the
/// memory between its kernels.
pub(crate) fn replayed(gpu: &Gpu) {
    let mut random = Random(13);
    let (samples, vocab) = (6, 20_000);
    let scratch = SamplingScratch::new(samples, vocab, gpu.device()).unwrap();
    let out = SamplingOutput::new(samples, 0, gpu.device()).unwrap();
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, gpu.device()).unwrap();
    let logits = zeros(&[samples, vocab]);
    let rows =
        gpu.integers(&vec![NONE; samples * SamplerRow::WORDS], &[samples, SamplerRow::WORDS]);
    let batch = SamplingBatch { rows: &rows, counts: None, biases: None, masks: None };
    let run = || cuda::sample(&logits, &batch, &scratch, &out);
    // One launch outside of the graph, so that everything is loaded.
    run().unwrap();
    let graph = Graph::capture(gpu.device(), run).unwrap();
    for round in 0..8 {
        let spread = [0.02, 8.0, 30.0][round % 3];
        let values = random.floats(samples * vocab, spread, DType::F32);
        let values: Vec<f32> = values.iter().map(|logit| logit + 0.0).collect();
        let plain =
            |case: Case| Case { mask: None, biases: Vec::new(), seen: HashMap::new(), ..case };
        let cases: Vec<Case> = (0..samples)
            .map(|i| plain(case(&mut random, i, (samples, vocab))))
            .map(|case| Case { row: SamplerRow { counts_slot: None, ..case.row }, ..case })
            .collect();
        // Rows in turn are padding.
        let padding = round % samples;
        let table = cases.iter().enumerate().flat_map(|(i, case)| {
            let logits_row = case.row.logits_row.filter(|_| i != padding);
            SamplerRow { logits_row, ..case.row }.words()
        });
        let table: Vec<u32> = table.collect();
        logits.slice_set(&gpu.floats(&values, &[samples, vocab], DType::F32), 0, 0).unwrap();
        rows.slice_set(&gpu.integers(&table, &[samples, SamplerRow::WORDS]), 0, 0).unwrap();
        graph.launch().unwrap();
        let want: Vec<u32> = (0..samples)
            .map(|i| match i == padding {
                true => NONE,
                false => expected(&cases[i], &values, vocab).unwrap_or(NONE),
            })
            .collect();
        let got: Vec<u32> = out.token_ids.to_vec1().unwrap();
        gpu.assert_equal(&got, &want, &format!("round {round} of a replayed graph"));
    }
}

/// One row of a batch: the kernel's input, and what the reference needs in addition.
struct Case {
    row: SamplerRow,
    seen: HashMap<u32, u32>,
    biases: Vec<(u32, f32)>,
    mask: Option<Vec<u32>>,
}

fn sample_batch(
    gpu: &Gpu,
    random: &mut Random,
    (samples, vocab): (usize, usize),
    (dtype, spread): (DType, f32),
) {
    // Two samples share a row of logits.
    let rows = samples.div_ceil(2);
    // Adding zero turns minus zero into zero: the reference orders the two, the kernel does not.
    let logits: Vec<f32> =
        random.floats(rows * vocab, spread, dtype).iter().map(|logit| logit + 0.0).collect();
    let words = vocab.div_ceil(32);
    let mut masks = Vec::new();
    let mut biases = Vec::new();
    let mut cases: Vec<Case> = (0..samples).map(|i| case(random, i, (rows, vocab))).collect();
    for case in &mut cases {
        if let Some(mask) = &case.mask {
            case.row.mask_row = Some((masks.len() / words) as u32);
            masks.extend(mask);
        }
        let begin = biases.len() as u32;
        biases.extend(&case.biases);
        case.row.biases = (begin, biases.len() as u32);
    }
    // candle has no empty tensors, so each table gets an unused entry.
    masks.extend(vec![0; words]);
    biases.push((0, 0.0f32));

    let counts = TokenCounts::new(samples, vocab, gpu.device()).unwrap();
    let all: Vec<(u32, u32, u32)> = cases
        .iter()
        .zip(0u32..)
        .flat_map(|(case, slot)| case.seen.iter().map(move |(&id, &times)| (slot, id, times)))
        .collect();
    count(gpu, &counts, &all);
    let table: Vec<u32> = cases.iter().flat_map(|case| case.row.words()).collect();
    let (ids, values): (Vec<u32>, Vec<u32>) =
        biases.into_iter().map(|(id, bias)| (id, bias.to_bits())).unzip();
    let (ids, values) = (gpu.integers(&ids, &[ids.len()]), gpu.integers(&values, &[values.len()]));
    let masks = gpu.integers(&masks, &[masks.len() / words, words]);
    let batch = SamplingBatch {
        rows: &gpu.integers(&table, &[samples, SamplerRow::WORDS]),
        counts: Some(&counts),
        biases: Some((&ids, &values)),
        masks: Some(&masks),
    };
    let scratch = SamplingScratch::new(samples, vocab, gpu.device()).unwrap();
    let out = SamplingOutput::new(samples, 0, gpu.device()).unwrap();
    let on_gpu = gpu.floats(&logits, &[rows, vocab], dtype);
    cuda::sample(&on_gpu, &batch, &scratch, &out).unwrap();
    let want: Vec<u32> =
        cases.iter().map(|case| expected(case, &logits, vocab).unwrap_or(NONE)).collect();
    let got: Vec<u32> = out.token_ids.to_vec1().unwrap();
    gpu.assert_equal(&got, &want, &format!("{samples} samples of {vocab}, {dtype:?}"));
}

fn case(random: &mut Random, i: usize, (rows, vocab): (usize, usize)) -> Case {
    let seen: HashMap<u32, u32> =
        (0..40).map(|_| (random.below(vocab) as u32, random.below(4) as u32)).collect();
    // A map, since a token has at most one bias.
    let biases = (0..random.below(4))
        .map(|_| (random.below(vocab) as u32, random.pick(&[2.0, -3.0, f32::NEG_INFINITY])))
        .collect::<HashMap<u32, f32>>();
    let penalized = random.below(2) == 0;
    let mask = (random.below(3) == 0)
        .then(|| (0..vocab.div_ceil(32)).map(|_| random.next() as u32).collect());
    let row = SamplerRow {
        logits_row: Some((i % rows) as u32),
        temperature: random.pick(&[0.0, 0.5, 1.0, 1.5]),
        top_k: random.pick(&[None, Some(1), Some(50), Some(100_000)]),
        top_p: random.pick(&[1.0, 0.9, 0.3]),
        min_p: random.pick(&[0.0, 0.0, 0.1]),
        repetition: 1.2,
        presence: 0.5,
        frequency: 0.25,
        counts_slot: penalized.then_some(i as u32),
        biases: (0, 0),
        mask_row: None,
        top_logprobs: None,
        seed: random.next(),
        output_index: random.below(1000) as u32,
    };
    let seen = if penalized { seen } else { HashMap::new() };
    Case { row, seen, biases: biases.into_iter().collect(), mask }
}

/// Adds entries of `(slot, token, times generated)`. Tokens with zero times are part of the prompt.
fn count(gpu: &Gpu, counts: &TokenCounts, entries: &[(u32, u32, u32)]) {
    let tensors = |entries: &[(u32, u32)]| {
        let (slots, ids): (Vec<u32>, Vec<u32>) = entries.iter().copied().unzip();
        (gpu.integers(&slots, &[slots.len()]), gpu.integers(&ids, &[ids.len()]))
    };
    let prompt: Vec<(u32, u32)> =
        entries.iter().filter(|entry| entry.2 == 0).map(|entry| (entry.0, entry.1)).collect();
    let generated: Vec<(u32, u32)> =
        entries.iter().flat_map(|&(slot, id, times)| vec![(slot, id); times as usize]).collect();
    if !prompt.is_empty() {
        let (slots, ids) = tensors(&prompt);
        counts.reset(&slots).unwrap();
        counts.add_prompt(&slots, &ids).unwrap();
    }
    if !generated.is_empty() {
        let (slots, ids) = tensors(&generated);
        counts.add_generated(&slots, &ids).unwrap();
    }
}

fn expected(case: &Case, logits: &[f32], vocab: usize) -> Option<u32> {
    let row = &case.row;
    let start = row.logits_row.unwrap() as usize * vocab;
    let params = SamplingRow {
        temperature: row.temperature,
        top_k: row.top_k.map(|k| k as usize),
        top_p: row.top_p,
        min_p: row.min_p,
        uniform: uniform(row.seed, u64::from(row.output_index)),
        penalties: row.counts_slot.map(|_| Penalties {
            repetition: row.repetition,
            presence: row.presence,
            frequency: row.frequency,
            seen: &case.seen,
        }),
        logit_bias: &case.biases,
        banned: Vec::new(),
        mask: case.mask.as_deref(),
        logprobs: None,
    };
    sample_row_reference(&logits[start..start + vocab], &params)
}

pub(crate) fn logprobs(gpu: &Gpu) {
    let mut random = Random(12);
    for (vocab, max_top) in [(151_936, 20), (500, 5), (12, 20), (33, 0)] {
        for dtype in DTYPES {
            let rows = 3;
            let logits: Vec<f32> =
                random.floats(rows * vocab, 6.0, dtype).iter().map(|logit| logit + 0.0).collect();
            let asked = [Some(max_top as u32), None, Some(max_top.min(2) as u32)];
            let table: Vec<u32> = (0..rows)
                .flat_map(|row| greedy(row as u32, asked[row]).words())
                .chain(SamplerRow { logits_row: None, ..greedy(0, None) }.words())
                .collect();
            let batch = SamplingBatch {
                rows: &gpu.integers(&table, &[rows + 1, SamplerRow::WORDS]),
                counts: None,
                biases: None,
                masks: None,
            };
            let scratch = SamplingScratch::new(rows + 1, vocab, gpu.device()).unwrap();
            let out = SamplingOutput::new(rows + 1, max_top, gpu.device()).unwrap();
            let on_gpu = gpu.floats(&logits, &[rows, vocab], dtype);
            cuda::sample(&on_gpu, &batch, &scratch, &out).unwrap();
            let tokens: Vec<u32> = out.token_ids.to_vec1().unwrap();
            let report: Vec<Vec<u32>> = out.report.to_vec2().unwrap();
            assert_eq!(tokens[rows], NONE, "padding samples nothing");
            let cpu = Tensor::from_slice(&logits, (rows, vocab), &Device::Cpu).unwrap();
            let want = logprobs_of(&cpu, &tokens[..rows], max_top).unwrap();
            for row in 0..rows {
                assert_eq!(report[row][0], tokens[row]);
                let what = format!("row {row} of {vocab}, {dtype:?}");
                compare_report(&report[row], &want[row], asked[row], &what);
            }
            gpu.assert_equal(&report[rows], &vec![NONE; REPORT_HEAD + 2 * max_top], "padding");
        }
    }
}

fn compare_report(report: &[u32], want: &RowLogprobs, asked: Option<u32>, what: &str) {
    let close = |bits: u32, want: f32| {
        let got = f32::from_bits(bits);
        assert!((got - want).abs() <= 1e-5 * want.abs().max(1.0), "{what}: {got} is not {want}");
    };
    let Some(asked) = asked else {
        return assert!(report[1..].iter().all(|&word| word == NONE), "{what}: nothing was asked");
    };
    close(report[1], want.logprob);
    assert_eq!(report[2], want.rank as u32, "{what}: rank");
    for (place, pair) in report[REPORT_HEAD..].chunks(2).enumerate() {
        match want.top.get(place).filter(|_| place < asked as usize) {
            Some(&(id, logprob)) => {
                assert_eq!(pair[0], id, "{what}: place {place}");
                close(pair[1], logprob);
            }
            None => assert_eq!(pair, [NONE, NONE], "{what}: place {place}"),
        }
    }
}

fn greedy(logits_row: u32, top_logprobs: Option<u32>) -> SamplerRow {
    SamplerRow { top_logprobs, ..SamplerRow::greedy(logits_row) }
}
