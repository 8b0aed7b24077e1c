//! Rows of a matrix, selected by indices on the device: token embeddings, and the rows whose logits are computed.

use candle_core::Tensor;

use super::launch::{Address, CUstream, Launch};
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Result, VocabPart};

/// Computes `out[t] = table[token_ids[t]] * scale`, rounded once.
///
/// `table` is `[vocab, hidden]` and `out` `[tokens, hidden]`, bf16 or f16; `token_ids` is u32 `[tokens]`. If `table` is
/// a shard, `part` of the vocabulary, the rows of other tokens are zeros. An id beyond the vocabulary gives a row of
/// NaN. The CPU's reference implementation is [`candlepower_kernels::embedding_reference`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn embedding(
    token_ids: &Tensor,
    table: &Tensor,
    scale: f32,
    part: VocabPart,
    out: &Tensor,
) -> Result<()> {
    gather("embedding", ("token_ids", token_ids), ("table", table), (scale, part), out)
}

/// Computes `out[i] = x[rows[i]]`, for example for the rows whose logits are computed.
///
/// `x` is `[tokens, dim]` and `out` `[count, dim]`, bf16 or f16; `rows` is u32 `[count]`. An index beyond the rows of
/// `x` gives a row of NaN. The CPU's reference implementation is [`candlepower_kernels::gather_rows_reference`].
///
/// # Errors
/// Same as [`embedding`].
pub fn gather_rows(x: &Tensor, rows: &Tensor, out: &Tensor) -> Result<()> {
    let (count, _) = Operand::new("gather_rows", "x", x).dims2("[tokens, dim]")?;
    gather("gather_rows", ("rows", rows), ("x", x), (1.0, VocabPart::all_rows(count)), out)
}

fn gather(
    kernel: &'static str,
    rows: (&'static str, &Tensor),
    table: (&'static str, &Tensor),
    (scale, part): (f32, VocabPart),
    out: &Tensor,
) -> Result<()> {
    let launch = Launch::new(kernel, table.0, table.1)?;
    let (table_rows, dim) = Operand::new(kernel, table.0, table.1).dims2("[rows, dim]")?;
    let count = rows.1.elem_count();
    let args = GatherArgs {
        table: launch.elements(table, "[rows, dim]", &[table_rows, dim])?,
        rows: launch.u32s(rows, "[count]", &[count])?,
        out: launch.elements(("out", out), "[count, dim]", &[count, dim])?,
        count: count as i64,
        first_row: part.first as u32,
        table_rows: table_rows as u32,
        all_rows: part.vocab_size as u32,
        dim: dim as i32,
        dtype: launch.dtype_code(),
        scale,
    };
    if count * dim == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say; the kernel compares each
    // row index, less `first_row`, with `table_rows` before it reads.
    unsafe { launch.run(candlepower_gather, &args) }
}

/// Mirrors `GatherArgs` in rows.cu.
#[repr(C)]
struct GatherArgs {
    table: Address,
    rows: *mut u32,
    out: Address,
    count: i64,
    first_row: u32,
    table_rows: u32,
    all_rows: u32,
    dim: i32,
    dtype: i32,
    scale: f32,
}
const _: () = assert!(size_of::<GatherArgs>() == 56);

unsafe extern "C" {
    fn candlepower_gather(args: *const GatherArgs, stream: CUstream) -> i32;
}
