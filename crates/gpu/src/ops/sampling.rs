//! Samples a token per row of logits on the device, each row by its own parameters.

use std::collections::HashMap;

use candle_core::Tensor;
use candlepower_kernels::operands::Operand;
use candlepower_kernels::sampling::{
    Penalties, SamplingRow, row_logprobs, sample_row_reference, uniform,
};
use candlepower_kernels::{Error, Result};

use super::launch_on_gpu;
use super::reference::Reference;
use crate::operands::{
    FROM_PROMPT, NONE, REPORT_HEAD, SamplerRow, SamplingBatch, SamplingOutput, SamplingScratch,
    TokenCounts,
};

impl SamplerRow {
    /// Writes the report about the sampled token.
    fn report(&self, logits: &[f32], token: u32, report: &mut [u32]) {
        report[0] = token;
        let Some(top) = self.top_logprobs else { return };
        let most = (report.len() - REPORT_HEAD) / 2;
        let row = row_logprobs(logits, token, most.min(top as usize));
        report[1] = row.logprob.to_bits();
        report[2] = row.rank as u32;
        for (place, (id, logprob)) in report[REPORT_HEAD..].chunks_mut(2).zip(row.top) {
            place.copy_from_slice(&[id, logprob.to_bits()]);
        }
    }
}

/// Samples a token for each row of `batch.rows` from `logits` `[rows, vocab]`, bf16, f16 or f32.
///
/// The order of operations is that of [`candlepower_kernels::sampling`]: penalties, logit bias, grammar mask,
/// temperature, `min_p`, `top_k`, `top_p`, and the random choice. The reference implementation is
/// [`candlepower_kernels::sampling::sample_row_reference`], with the random value in [0, 1) that
/// [`candlepower_kernels::sampling::uniform`] derives from seed and `output_index`. Log-probabilities are those of the
/// unmodified logits. The sampled token is counted in its slot.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, the scratch memory is too small, or CUDA refused the
/// launch.
pub fn sample(
    logits: &Tensor,
    batch: &SamplingBatch<'_>,
    scratch: &SamplingScratch,
    out: &SamplingOutput,
) -> Result<()> {
    launch_on_gpu!(logits, crate::cuda::sample(logits, batch, scratch, out));
    const KERNEL: &str = "sample";
    let reference = Reference::new(KERNEL, "logits", logits)?;
    let (rows, vocab) = Operand::new(KERNEL, "logits", logits).dims2("[rows, vocab]")?;
    let (samples, _) = Operand::new(KERNEL, "rows", batch.rows).dims2("[samples, 16]")?;
    let (max_samples, _) =
        Operand::new(KERNEL, "scratch", &scratch.scores).dims2("[samples, vocab]")?;
    let (_, width) = Operand::new(KERNEL, "report", &out.report).dims2("[samples, width]")?;
    if samples > max_samples {
        let (index, value, bound) = ("samples", samples, max_samples + 1);
        return Err(Error::OutOfRange { kernel: KERNEL, index, value, bound });
    }
    let values = reference.elements(("logits", logits), "[rows, vocab]", &[rows, vocab])?;
    let words =
        reference.u32s(("rows", batch.rows), "[samples, 16]", &[samples, SamplerRow::WORDS])?;
    let tables = Tables::read(&reference, batch, vocab)?;
    // Penalties read the counts from before the step, whatever the other rows sample.
    let mut counts = tables.counts.clone();
    let (mut token_ids, mut report) = (Vec::with_capacity(samples), vec![NONE; samples * width]);
    for (words, report) in words.chunks(SamplerRow::WORDS).zip(report.chunks_mut(width)) {
        let params = SamplerRow::from_words(words);
        // A row outside of the logits gives no token, since a kernel cannot report an error.
        let row = params.logits_row.map(|row| row as usize).filter(|row| *row < rows);
        let sampled = row.and_then(|row| {
            let logits = &values[row * vocab..][..vocab];
            let token = tables.sample(&params, logits)?;
            params.report(logits, token, report);
            Some(token)
        });
        if let (Some(token), Some(slot)) = (sampled, params.counts_slot)
            && let Some(count) = counts.get_mut(slot as usize * vocab + token as usize)
        {
            *count += 1;
        }
        token_ids.push(sampled.unwrap_or(NONE));
    }
    if let Some(TokenCounts { counts: tensor }) = batch.counts {
        reference.write_u32s(("counts", tensor), "[slots, vocab]", tensor.dims(), &counts)?;
    }
    reference.write_u32s(("token_ids", &out.token_ids), "[samples]", &[samples], &token_ids)?;
    reference.write_u32s(("report", &out.report), "[samples, width]", &[samples, width], &report)
}

/// The optional tables of a batch, on the host.
struct Tables {
    vocab: usize,
    counts: Vec<u32>,
    biases: Vec<(u32, f32)>,
    masks: Vec<Vec<u32>>,
}

impl Tables {
    fn read(reference: &Reference, batch: &SamplingBatch<'_>, vocab: usize) -> Result<Self> {
        let counts = match batch.counts {
            Some(TokenCounts { counts }) => {
                let dims = [counts.dims()[0], vocab];
                reference.u32s(("counts", counts), "[slots, vocab]", &dims)?
            }
            None => Vec::new(),
        };
        let biases = match batch.biases {
            Some((ids, bits)) => {
                let n = [ids.elem_count()];
                let ids = reference.u32s(("bias ids", ids), "[n]", &n)?;
                let bits = reference.u32s(("biases", bits), "[n]", &n)?;
                ids.into_iter().zip(bits.into_iter().map(f32::from_bits)).collect()
            }
            None => Vec::new(),
        };
        let masks = match batch.masks {
            Some(masks) => {
                let (rows, words) =
                    Operand::new("sample", "masks", masks).dims2("[mask_rows, words]")?;
                let all = reference.u32s(("masks", masks), "[mask_rows, words]", &[rows, words])?;
                all.chunks(words.max(1)).map(<[u32]>::to_vec).collect()
            }
            None => Vec::new(),
        };
        Ok(Self { vocab, counts, biases, masks })
    }

    /// The token of one sample.
    fn sample(&self, params: &SamplerRow, logits: &[f32]) -> Option<u32> {
        let seen = params.counts_slot.map(|slot| self.seen(slot as usize));
        let biases = self.biases.get(params.biases.0 as usize..params.biases.1 as usize);
        let params = SamplingRow {
            temperature: params.temperature,
            top_k: params.top_k.map(|k| k as usize),
            top_p: params.top_p,
            min_p: params.min_p,
            uniform: uniform(params.seed, u64::from(params.output_index)),
            penalties: seen.as_ref().map(|seen| Penalties {
                repetition: params.repetition,
                presence: params.presence,
                frequency: params.frequency,
                seen,
            }),
            logit_bias: biases.unwrap_or(&[]),
            banned: Vec::new(),
            mask: params.mask_row.and_then(|row| self.masks.get(row as usize)).map(Vec::as_slice),
            logprobs: None,
        };
        sample_row_reference(logits, &params)
    }

    /// The tokens of a slot, with the number of times that each was generated.
    fn seen(&self, slot: usize) -> HashMap<u32, u32> {
        let counts = self.counts.get(slot * self.vocab..(slot + 1) * self.vocab).unwrap_or(&[]);
        // The flag of a prompt token counts as present, with no generated occurrence.
        let present = (0..).zip(counts).filter(|(_, count)| **count > 0);
        present.map(|(id, count)| (id, count & !FROM_PROMPT)).collect()
    }
}

impl TokenCounts {
    /// Empties the slots in `slots`, u32 `[count]`.
    ///
    /// # Errors
    /// The operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
    pub fn reset(&self, slots: &Tensor) -> Result<()> {
        launch_on_gpu!(slots, crate::cuda::count_tokens(&self.counts, 0, slots, None));
        self.edit(slots, None, |_| 0)
    }

    /// Marks `token_ids[i]` as a token of the prompt in slot `slots[i]`; both are u32 `[count]`.
    ///
    /// # Errors
    /// Same as [`TokenCounts::reset`].
    pub fn add_prompt(&self, slots: &Tensor, token_ids: &Tensor) -> Result<()> {
        launch_on_gpu!(slots, crate::cuda::count_tokens(&self.counts, 1, slots, Some(token_ids)));
        self.edit(slots, Some(token_ids), |count| count | FROM_PROMPT)
    }

    /// Counts `token_ids[i]` as generated in slot `slots[i]`, for a sequence that resumes after preemption; both are
    /// u32 `[count]`. [`sample`] counts the tokens that it samples.
    ///
    /// # Errors
    /// Same as [`TokenCounts::reset`].
    pub fn add_generated(&self, slots: &Tensor, token_ids: &Tensor) -> Result<()> {
        launch_on_gpu!(slots, crate::cuda::count_tokens(&self.counts, 2, slots, Some(token_ids)));
        self.edit(slots, Some(token_ids), |count| count + 1)
    }

    /// Edits the counts of tokens in slots, or of whole slots. Missing slots and tokens are ignored.
    fn edit(
        &self,
        slots: &Tensor,
        token_ids: Option<&Tensor>,
        edit: impl Fn(u32) -> u32,
    ) -> Result<()> {
        let reference = Reference::integers("token_counts");
        let n = [slots.elem_count()];
        let dims = self.counts.dims();
        let vocab = dims[1];
        let mut counts = reference.u32s(("counts", &self.counts), "[slots, vocab]", dims)?;
        let slots = reference.u32s(("slots", slots), "[count]", &n)?;
        let ids = token_ids.map(|ids| reference.u32s(("token_ids", ids), "[count]", &n));
        let ids = ids.transpose()?;
        for (i, slot) in
            slots.into_iter().enumerate().filter(|(_, slot)| (*slot as usize) < dims[0])
        {
            let row = &mut counts[slot as usize * vocab..][..vocab];
            match &ids {
                None => row.iter_mut().for_each(|count| *count = edit(*count)),
                Some(ids) => {
                    row.get_mut(ids[i] as usize).into_iter().for_each(|count| *count = edit(*count))
                }
            }
        }
        reference.write_u32s(("counts", &self.counts), "[slots, vocab]", dims, &counts)
    }
}
