//! Draws a token per row of logits on the device, each row by its own parameters.

use candle_core::{DType, Device, Tensor};

use super::launch::{Address, CUstream, Launch};
use crate::tensor::Operand;
use crate::{Error, Result};

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
}

/// The tables of a step's draws, all on the device. Each may be longer than what its rows use.
#[derive(Clone, Copy, Debug)]
pub struct SamplingBatch<'a> {
    /// u32 `[draws, 16]`: [`SamplerRow::words`] of each draw.
    pub rows: &'a Tensor,
    /// The counts that penalties look at.
    pub counts: Option<&'a TokenCounts>,
    /// Token ids u32 `[n]` and what is added to their logits f32 `[n]`.
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
/// `top_p`, the draw; the definition is [`crate::sampling::sample_row_reference`], with the engine's number
/// in [0, 1) made of seed and place. Weights are integers of 2^-40 of the largest, so the draw does not
/// depend on how the device adds; tokens whose distance to the largest logit rounds to the same f32 are
/// ordered by id. Log-probabilities are those of the logits as given. The drawn token is counted in its slot.
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
    const KERNEL: &str = "sample";
    let launch = Launch::new_any_float(KERNEL, "logits", logits)?;
    let dims2 = |name, tensor, axes: &str| Operand::new(KERNEL, name, tensor).dims2(axes);
    let (rows, vocab) = dims2("logits", logits, "[rows, vocab]")?;
    let (draws, _) = dims2("rows", batch.rows, "[draws, 16]")?;
    let (max_draws, _) = dims2("scratch", &scratch.scores, "[max_draws, vocab]")?;
    let (_, width) = dims2("report", &out.report, "[draws, 2 + 2 * max_top]")?;
    if draws > max_draws {
        return Err(Error::OutOfRange {
            kernel: KERNEL,
            index: "draws",
            value: draws,
            bound: max_draws + 1,
        });
    }
    if width < 2 || !width.is_multiple_of(2) {
        return Err(
            Operand::new(KERNEL, "report", &out.report).shape_error("[draws, 2 + 2 * max_top]")
        );
    }
    let tables = Tables::check(&launch, batch, vocab)?;
    let args = SampleArgs {
        logits: launch.elements(("logits", logits), "[rows, vocab]", &[rows, vocab])?,
        draws: launch.u32s(("rows", batch.rows), "[draws, 16]", &[draws, SamplerRow::WORDS])?,
        counts: tables.counts,
        bias_ids: tables.bias_ids,
        biases: tables.biases,
        masks: tables.masks,
        scores: launch.f32s(
            ("scratch", &scratch.scores),
            "[max_draws, vocab]",
            &[max_draws, vocab],
        )?,
        token_ids: launch.u32s(("token_ids", &out.token_ids), "[draws]", &[draws])?,
        report: launch.u32s(
            ("report", &out.report),
            "[draws, 2 + 2 * max_top]",
            &[draws, width],
        )?,
        num_draws: draws as i32,
        rows: rows as i32,
        vocab: vocab as i32,
        slots: tables.slots,
        num_biases: tables.num_biases,
        mask_rows: tables.mask_rows,
        mask_words: tables.mask_words,
        max_top: (width / 2 - 1) as i32,
        dtype: launch.dtype_code(),
        padding: 0,
    };
    if draws == 0 || vocab == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say; the kernel
    // compares rows, slots, bias ranges and ids with those dimensions before it uses them.
    unsafe { launch.run(candlepower_sample, &args) }
}

/// The checked optional tables of a batch.
struct Tables {
    counts: *mut u32,
    slots: i32,
    bias_ids: *mut u32,
    biases: *mut f32,
    num_biases: i32,
    masks: *mut u32,
    mask_rows: i32,
    mask_words: i32,
}

impl Tables {
    fn check(launch: &Launch, batch: &SamplingBatch<'_>, vocab: usize) -> Result<Self> {
        let (counts, slots) = match batch.counts {
            Some(TokenCounts { counts }) => {
                let slots = counts.dims()[0];
                (launch.u32s(("counts", counts), "[slots, vocab]", &[slots, vocab])?, slots)
            }
            None => (std::ptr::null_mut(), 0),
        };
        let (bias_ids, biases, num_biases) = match batch.biases {
            Some((ids, values)) => {
                let n = ids.elem_count();
                let ids = launch.u32s(("bias ids", ids), "[n]", &[n])?;
                (ids, launch.f32s(("biases", values), "[n]", &[n])?, n)
            }
            None => (std::ptr::null_mut(), std::ptr::null_mut(), 0),
        };
        let (masks, mask_rows, mask_words) = match batch.masks {
            Some(masks) => {
                let operand = Operand::new(launch.kernel(), "masks", masks);
                let (rows, words) = operand.dims2("[mask_rows, words]")?;
                let dims = [rows, words];
                (launch.u32s(("masks", masks), "[mask_rows, words]", &dims)?, rows, words)
            }
            None => (std::ptr::null_mut(), 0, 0),
        };
        Ok(Self {
            counts,
            slots: slots as i32,
            bias_ids,
            biases,
            num_biases: num_biases as i32,
            masks,
            mask_rows: mask_rows as i32,
            mask_words: mask_words as i32,
        })
    }
}

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

    /// Empties the slots in `slots`, u32 `[count]`.
    ///
    /// # Errors
    /// The operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
    pub fn reset(&self, slots: &Tensor) -> Result<()> {
        self.run(0, slots, None)
    }

    /// Notes `token_ids[i]` as a token of the prompt in slot `slots[i]`; both are u32 `[count]`.
    ///
    /// # Errors
    /// As [`TokenCounts::reset`].
    pub fn add_prompt(&self, slots: &Tensor, token_ids: &Tensor) -> Result<()> {
        self.run(1, slots, Some(token_ids))
    }

    /// Counts `token_ids[i]` as generated in slot `slots[i]`, for a sequence that comes back; both are u32
    /// `[count]`. [`sample`] counts what it draws.
    ///
    /// # Errors
    /// As [`TokenCounts::reset`].
    pub fn add_generated(&self, slots: &Tensor, token_ids: &Tensor) -> Result<()> {
        self.run(2, slots, Some(token_ids))
    }

    fn run(&self, operation: i32, slots: &Tensor, token_ids: Option<&Tensor>) -> Result<()> {
        let launch = Launch::integers("token_counts", "counts", &self.counts)?;
        let dims = self.counts.dims().to_vec();
        let count = slots.elem_count();
        let args = CountArgs {
            counts: launch.u32s(("counts", &self.counts), "[slots, vocab]", &dims)?,
            slot: launch.u32s(("slots", slots), "[count]", &[count])?,
            token_ids: match token_ids {
                Some(ids) => launch.u32s(("token_ids", ids), "[count]", &[count])?,
                None => std::ptr::null_mut(),
            },
            count: count as i32,
            slots: dims[0] as i32,
            vocab: dims[1] as i32,
            operation,
        };
        if count == 0 {
            return Ok(());
        }
        // SAFETY: every address was checked above to hold the elements that the dimensions say; the kernel
        // compares slots and ids with those dimensions before it uses them.
        unsafe { launch.run(candlepower_count_tokens, &args) }
    }
}

/// As `SampleArgs` in sampling.cu.
#[repr(C)]
struct SampleArgs {
    logits: Address,
    draws: *mut u32,
    counts: *mut u32,
    bias_ids: *mut u32,
    biases: *mut f32,
    masks: *mut u32,
    scores: *mut f32,
    token_ids: *mut u32,
    report: *mut u32,
    num_draws: i32,
    rows: i32,
    vocab: i32,
    slots: i32,
    num_biases: i32,
    mask_rows: i32,
    mask_words: i32,
    max_top: i32,
    dtype: i32,
    padding: i32,
}
const _: () = assert!(size_of::<SampleArgs>() == 112);

/// As `CountArgs` in token_counts.cu.
#[repr(C)]
struct CountArgs {
    counts: *mut u32,
    slot: *mut u32,
    token_ids: *mut u32,
    count: i32,
    slots: i32,
    vocab: i32,
    operation: i32,
}
const _: () = assert!(size_of::<CountArgs>() == 40);

unsafe extern "C" {
    fn candlepower_sample(args: *const SampleArgs, stream: CUstream) -> i32;
    fn candlepower_count_tokens(args: *const CountArgs, stream: CUstream) -> i32;
}
