//! Draws a token per row of logits on the device, each row by its own parameters.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};

use super::launch_on_gpu;
use super::reference::Reference;
use crate::sampling::{Penalties, SamplingRow, row_logprobs, sample_row_reference, uniform};
use crate::tensor::Operand;
use crate::{Error, Result};

/// Most log-probabilities that one draw reports beside its own.
pub const MOST_LOGPROBS: usize = 32;

/// "No row", "no slot" and "no token" in tables and results.
const NONE: u32 = u32::MAX;

/// How one token is drawn: the device's form of [`crate::sampling::SamplingRow`], [`SamplerRow::WORDS`]
/// numbers of a table on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerRow {
    /// The row of logits; `None` is the padding of a CUDA graph and draws nothing.
    pub logits_row: Option<u32>,
    /// 0 is greedy: the most likely token, the lowest id among equals.
    pub temperature: f32,
    /// Keep the k most likely tokens.
    pub top_k: Option<u32>,
    /// Keep the most likely tokens whose probabilities sum to at least this.
    pub top_p: f32,
    /// Keep tokens at least this times as likely as the most likely one.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens of prompt and output.
    pub repetition: f32,
    /// Subtracted once from tokens that were generated.
    pub presence: f32,
    /// Subtracted per time that the token was generated.
    pub frequency: f32,
    /// The slot of [`TokenCounts`] that penalties look at, and that counts the drawn token. No two draws of
    /// a call share one.
    pub counts_slot: Option<u32>,
    /// The range of the batch's biases that hold for this draw; a token is banned by a bias of minus
    /// infinity.
    pub biases: (u32, u32),
    /// The row of the batch's masks.
    pub mask_row: Option<u32>,
    /// Report the drawn token's log-probability, and so many most likely tokens.
    pub top_logprobs: Option<u32>,
    /// Decides, with `place`, the draw.
    pub seed: u64,
    /// The token's place in the output.
    pub place: u32,
}

impl SamplerRow {
    /// Numbers of one row of the table.
    pub const WORDS: usize = 16;

    /// The most likely token of a row of logits as they are, without a report.
    #[must_use]
    pub fn greedy(logits_row: u32) -> Self {
        Self {
            logits_row: Some(logits_row),
            temperature: 0.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition: 1.0,
            presence: 0.0,
            frequency: 0.0,
            counts_slot: None,
            biases: (0, 0),
            mask_row: None,
            top_logprobs: None,
            seed: 0,
            place: 0,
        }
    }

    /// The row as it lies in the table.
    #[must_use]
    pub fn words(&self) -> [u32; Self::WORDS] {
        [
            self.logits_row.unwrap_or(NONE),
            self.temperature.to_bits(),
            self.top_k.unwrap_or(0),
            self.top_p.to_bits(),
            self.min_p.to_bits(),
            self.repetition.to_bits(),
            self.presence.to_bits(),
            self.frequency.to_bits(),
            self.counts_slot.unwrap_or(NONE),
            self.biases.0,
            self.biases.1,
            self.mask_row.unwrap_or(NONE),
            self.top_logprobs.unwrap_or(NONE),
            self.place,
            self.seed as u32,
            (self.seed >> 32) as u32,
        ]
    }

    /// The row that lies in the table as `words`.
    fn from_words(words: &[u32]) -> Self {
        let some = |word: u32| (word != NONE).then_some(word);
        Self {
            logits_row: some(words[0]),
            temperature: f32::from_bits(words[1]),
            top_k: (words[2] > 0).then_some(words[2]),
            top_p: f32::from_bits(words[3]),
            min_p: f32::from_bits(words[4]),
            repetition: f32::from_bits(words[5]),
            presence: f32::from_bits(words[6]),
            frequency: f32::from_bits(words[7]),
            counts_slot: some(words[8]),
            biases: (words[9], words[10]),
            mask_row: some(words[11]),
            top_logprobs: some(words[12]),
            place: words[13],
            seed: u64::from(words[14]) | u64::from(words[15]) << 32,
        }
    }

    /// Writes what the draw reports of the token that it drew.
    fn report(&self, logits: &[f32], token: u32, report: &mut [u32]) {
        report[0] = token;
        let Some(top) = self.top_logprobs else { return };
        let most = report.len() / 2 - 1;
        let row = row_logprobs(logits, token, most.min(top as usize));
        report[1] = row.logprob.to_bits();
        for (place, (id, logprob)) in report[2..].chunks_mut(2).zip(row.top) {
            place.copy_from_slice(&[id, logprob.to_bits()]);
        }
    }
}

/// The tables of a step's draws, all on the device. Each may be longer than what its rows use.
#[derive(Clone, Copy, Debug)]
pub struct SamplingBatch<'a> {
    /// u32 `[draws, 16]`: [`SamplerRow::words`] of each draw.
    pub rows: &'a Tensor,
    /// The counts that penalties look at.
    pub counts: Option<&'a TokenCounts>,
    /// Token ids, and the bits of the f32 that is added to each one's logit; both u32 `[n]`.
    pub biases: Option<(&'a Tensor, &'a Tensor)>,
    /// u32 `[mask_rows, words]`: bit `id % 32` of word `id / 32` allows the token; shorter masks allow
    /// nothing beyond.
    pub masks: Option<&'a Tensor>,
}

/// Memory that [`sample`] overwrites.
#[derive(Clone, Debug)]
pub struct SamplingScratch {
    scores: Tensor,
}

impl SamplingScratch {
    /// Memory for up to `max_draws` draws: four bytes per draw and token of the vocabulary.
    ///
    /// # Errors
    /// The device's memory does not suffice.
    pub fn new(max_draws: usize, vocab: usize, device: &Device) -> Result<Self> {
        Ok(Self { scores: Tensor::zeros((max_draws, vocab), DType::F32, device)? })
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn scores(&self) -> &Tensor {
        &self.scores
    }
}

/// What a step drew, on the device.
#[derive(Clone, Debug)]
pub struct SamplingOutput {
    /// u32 `[draws]`: the tokens, for the next step's embedding; `u32::MAX` if none is allowed and finite.
    pub token_ids: Tensor,
    /// u32 `[draws, 2 + 2 * max_top]`, the one copy to the host: the token, the bits of its f32
    /// log-probability, then the most likely tokens alike, most likely first; `u32::MAX` where there is none.
    pub report: Tensor,
}

impl SamplingOutput {
    /// Room for `draws` draws with up to `max_top` (at most 32) most likely tokens each.
    ///
    /// # Errors
    /// The device's memory does not suffice.
    pub fn new(draws: usize, max_top: usize, device: &Device) -> Result<Self> {
        Ok(Self {
            token_ids: Tensor::zeros(draws, DType::U32, device)?,
            report: Tensor::zeros((draws, 2 + 2 * max_top), DType::U32, device)?,
        })
    }
}

/// Draws a token for each row of `batch.rows` from `logits` `[rows, vocab]`, bf16, f16 or f32.
///
/// The order of operations is [`crate::sampling`]'s: penalties, bias, mask, temperature, `min_p`, `top_k`,
/// `top_p`, the draw; the definition is [`crate::sampling::sample_row_reference`], with the number in [0, 1)
/// that [`crate::sampling::uniform`] makes of seed and place. Log-probabilities are those of the logits as given.
/// The drawn token is counted in its slot.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, the scratch is too small, or CUDA refused the
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
    let (draws, _) = Operand::new(KERNEL, "rows", batch.rows).dims2("[draws, 16]")?;
    let (max_draws, _) =
        Operand::new(KERNEL, "scratch", &scratch.scores).dims2("[draws, vocab]")?;
    let (_, width) = Operand::new(KERNEL, "report", &out.report).dims2("[draws, width]")?;
    if draws > max_draws {
        let (index, value, bound) = ("draws", draws, max_draws + 1);
        return Err(Error::OutOfRange { kernel: KERNEL, index, value, bound });
    }
    let values = reference.elements(("logits", logits), "[rows, vocab]", &[rows, vocab])?;
    let words = reference.u32s(("rows", batch.rows), "[draws, 16]", &[draws, SamplerRow::WORDS])?;
    let tables = Tables::read(&reference, batch, vocab)?;
    let mut counts = tables.counts.clone();
    let (mut token_ids, mut report) = (Vec::with_capacity(draws), vec![NONE; draws * width]);
    for (words, report) in words.chunks(SamplerRow::WORDS).zip(report.chunks_mut(width)) {
        let draw = SamplerRow::from_words(words);
        let row = draw.logits_row.map(|row| row as usize).filter(|row| *row < rows);
        let drawn = row.and_then(|row| {
            let logits = &values[row * vocab..][..vocab];
            let token = tables.draw(&draw, logits)?;
            draw.report(logits, token, report);
            Some(token)
        });
        if let (Some(token), Some(slot)) = (drawn, draw.counts_slot)
            && let Some(count) = counts.get_mut(slot as usize * vocab + token as usize)
        {
            *count += 1;
        }
        token_ids.push(drawn.unwrap_or(NONE));
    }
    if let Some(TokenCounts { counts: tensor }) = batch.counts {
        reference.write_u32s(("counts", tensor), "[slots, vocab]", tensor.dims(), &counts)?;
    }
    reference.write_u32s(("token_ids", &out.token_ids), "[draws]", &[draws], &token_ids)?;
    reference.write_u32s(("report", &out.report), "[draws, width]", &[draws, width], &report)
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

    /// The token of one draw.
    fn draw(&self, draw: &SamplerRow, logits: &[f32]) -> Option<u32> {
        let seen = draw.counts_slot.map(|slot| self.seen(slot as usize));
        let biases = self.biases.get(draw.biases.0 as usize..draw.biases.1 as usize);
        let params = SamplingRow {
            temperature: draw.temperature,
            top_k: draw.top_k.map(|k| k as usize),
            top_p: draw.top_p,
            min_p: draw.min_p,
            uniform: uniform(draw.seed, u64::from(draw.place)),
            penalties: seen.as_ref().map(|seen| Penalties {
                repetition: draw.repetition,
                presence: draw.presence,
                frequency: draw.frequency,
                seen,
            }),
            logit_bias: biases.unwrap_or(&[]),
            banned: Vec::new(),
            mask: draw.mask_row.and_then(|row| self.masks.get(row as usize)).map(Vec::as_slice),
            logprobs: None,
        };
        sample_row_reference(logits, &params)
    }

    /// The tokens of a slot with how often each was generated.
    fn seen(&self, slot: usize) -> HashMap<u32, u32> {
        let counts = self.counts.get(slot * self.vocab..(slot + 1) * self.vocab).unwrap_or(&[]);
        let present = (0..).zip(counts).filter(|(_, count)| **count > 0);
        present.map(|(id, count)| (id, count & !FROM_PROMPT)).collect()
    }
}

/// Marks a token of the prompt among counts.
const FROM_PROMPT: u32 = 1 << 31;

/// How often each token stands in the sequences that have penalties, kept on the device: a slot per
/// sequence, four bytes per token of the vocabulary.
#[derive(Clone, Debug)]
pub struct TokenCounts {
    /// u32 `[slots, vocab]`: times generated, and the highest bit for tokens of the prompt.
    counts: Tensor,
}

impl TokenCounts {
    /// Empty counts for `slots` sequences.
    ///
    /// # Errors
    /// The device's memory does not suffice.
    pub fn new(slots: usize, vocab: usize, device: &Device) -> Result<Self> {
        Ok(Self { counts: Tensor::zeros((slots, vocab), DType::U32, device)? })
    }

    /// Slots that there are.
    #[must_use]
    pub fn num_slots(&self) -> usize {
        self.counts.dims()[0]
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn tensor(&self) -> &Tensor {
        &self.counts
    }

    /// Empties the slots in `slots`, u32 `[count]`.
    ///
    /// # Errors
    /// The operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
    pub fn reset(&self, slots: &Tensor) -> Result<()> {
        launch_on_gpu!(slots, crate::cuda::count_tokens(&self.counts, 0, slots, None));
        self.edit(slots, None, |_| 0)
    }

    /// Notes `token_ids[i]` as a token of the prompt in slot `slots[i]`; both are u32 `[count]`.
    ///
    /// # Errors
    /// As [`TokenCounts::reset`].
    pub fn add_prompt(&self, slots: &Tensor, token_ids: &Tensor) -> Result<()> {
        launch_on_gpu!(slots, crate::cuda::count_tokens(&self.counts, 1, slots, Some(token_ids)));
        self.edit(slots, Some(token_ids), |count| count | FROM_PROMPT)
    }

    /// Counts `token_ids[i]` as generated in slot `slots[i]`, for a sequence that comes back; both are u32
    /// `[count]`. [`sample`] counts what it draws.
    ///
    /// # Errors
    /// As [`TokenCounts::reset`].
    pub fn add_generated(&self, slots: &Tensor, token_ids: &Tensor) -> Result<()> {
        launch_on_gpu!(slots, crate::cuda::count_tokens(&self.counts, 2, slots, Some(token_ids)));
        self.edit(slots, Some(token_ids), |count| count + 1)
    }

    /// Edits the counts of tokens in slots, or whole slots; what is not there is left out.
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
