//! Sampling of one token per row of logits on the device, each row by its own parameters.

use candle_core::Tensor;

use super::launch::{Address, CUstream, Launch};
use crate::operands::{REPORT_HEAD, SamplerRow, SamplingBatch, SamplingOutput, SamplingScratch};
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Error, Result};

/// Samples a token for each row of `batch.rows` from `logits` `[rows, vocab]`, bf16, f16 or f32.
///
/// The order of operations is that of [`candlepower_kernels::sampling`]: penalties, logit bias, grammar mask,
/// temperature, `min_p`, `top_k`, `top_p`, and the random choice. The reference implementation is
/// [`candlepower_kernels::sampling::sample_row_reference`], with the engine's random value in [0, 1) from seed and
/// `output_index`.
///
/// Weights are integers in units of 2^-40 of the largest, so the result does not depend on the device's order of
/// additions. Tokens whose distance to the largest logit rounds to the same f32 are ordered by id. Log-probabilities
/// are those of the unmodified logits. The sampled token is counted in its slot.
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
    const KERNEL: &str = "sample";
    let launch = Launch::new_any_float(KERNEL, "logits", logits)?;
    let dims2 = |name, tensor, axes: &str| Operand::new(KERNEL, name, tensor).dims2(axes);
    let (rows, vocab) = dims2("logits", logits, "[rows, vocab]")?;
    let (samples, _) = dims2("rows", batch.rows, "[samples, 16]")?;
    let (max_samples, _) = dims2("scratch", &scratch.scores, "[max_samples, vocab]")?;
    let parts_axes = "[samples at once, words]";
    let (part_rows, part_words) = dims2("scratch", &scratch.parts, parts_axes)?;
    let (_, width) = dims2("report", &out.report, "[samples, 3 + 2 * max_top]")?;
    if samples > max_samples {
        return Err(Error::OutOfRange {
            kernel: KERNEL,
            index: "samples",
            value: samples,
            bound: max_samples + 1,
        });
    }
    if width < REPORT_HEAD || !(width - REPORT_HEAD).is_multiple_of(2) {
        return Err(
            Operand::new(KERNEL, "report", &out.report).shape_error("[samples, 3 + 2 * max_top]")
        );
    }
    let tables = Tables::check(&launch, batch, vocab)?;
    let args = SampleArgs {
        logits: launch.elements(("logits", logits), "[rows, vocab]", &[rows, vocab])?,
        samples: launch.u32s(
            ("rows", batch.rows),
            "[samples, 16]",
            &[samples, SamplerRow::WORDS],
        )?,
        counts: tables.counts,
        bias_ids: tables.bias_ids,
        biases: tables.biases,
        masks: tables.masks,
        scores: launch.f32s(
            ("scratch", &scratch.scores),
            "[max_samples, vocab]",
            &[max_samples, vocab],
        )?,
        parts: launch.u32s(("scratch", &scratch.parts), parts_axes, &[part_rows, part_words])?,
        token_ids: launch.u32s(("token_ids", &out.token_ids), "[samples]", &[samples])?,
        report: launch.u32s(
            ("report", &out.report),
            "[samples, 3 + 2 * max_top]",
            &[samples, width],
        )?,
        num_samples: samples as i32,
        rows: rows as i32,
        vocab: vocab as i32,
        slots: tables.slots,
        num_biases: tables.num_biases,
        mask_rows: tables.mask_rows,
        mask_words: tables.mask_words,
        max_top: ((width - REPORT_HEAD) / 2) as i32,
        dtype: launch.dtype_code(),
        // The kernels have words of 64 bits, and compare the number with what they use.
        part_words: (part_words / 2) as i32,
        part_rows: part_rows as i32,
        padding: 0,
    };
    if samples == 0 || vocab == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say; the kernel compares rows,
    // slots, bias ranges and ids with those dimensions before it uses them.
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
            Some(counts) => {
                let counts = &counts.counts;
                let slots = counts.dims()[0];
                (launch.u32s(("counts", counts), "[slots, vocab]", &[slots, vocab])?, slots)
            }
            None => (std::ptr::null_mut(), 0),
        };
        let (bias_ids, biases, num_biases) = match batch.biases {
            Some((ids, values)) => {
                let n = ids.elem_count();
                let ids = launch.u32s(("bias ids", ids), "[n]", &[n])?;
                // The bits of the biases lie among the other u32 tables of a step, which are uploaded in one
                // copy.
                (ids, launch.u32s(("biases", values), "[n]", &[n])?.cast(), n)
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

/// Runs an operation on counts: 0 empties the slots, 1 marks tokens of a prompt, 2 counts generated tokens.
pub(crate) fn count_tokens(
    counts: &Tensor,
    operation: i32,
    slots: &Tensor,
    token_ids: Option<&Tensor>,
) -> Result<()> {
    let launch = Launch::of_any("token_counts", "counts", counts)?;
    let dims = counts.dims().to_vec();
    let count = slots.elem_count();
    let args = CountArgs {
        counts: launch.u32s(("counts", counts), "[slots, vocab]", &dims)?,
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
    // SAFETY: every address was checked above to hold the elements that the dimensions say; the kernel compares slots
    // and ids with those dimensions before it uses them.
    unsafe { launch.run(candlepower_count_tokens, &args) }
}

/// Mirrors `SampleArgs` in sampling_parts.cuh.
#[repr(C)]
struct SampleArgs {
    logits: Address,
    samples: *mut u32,
    counts: *mut u32,
    bias_ids: *mut u32,
    biases: *mut f32,
    masks: *mut u32,
    scores: *mut f32,
    parts: *mut u32,
    token_ids: *mut u32,
    report: *mut u32,
    num_samples: i32,
    rows: i32,
    vocab: i32,
    slots: i32,
    num_biases: i32,
    mask_rows: i32,
    mask_words: i32,
    max_top: i32,
    dtype: i32,
    part_words: i32,
    part_rows: i32,
    padding: i32,
}
const _: () = assert!(size_of::<SampleArgs>() == 128);

/// Mirrors `CountArgs` in token_counts.cu.
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
