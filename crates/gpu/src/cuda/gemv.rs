//! A matrix times a few rows, an alternative to cuBLAS.

use candle_core::Tensor;

use super::activation::code;
use super::launch::{Address, CUstream, Launch, VECTOR};
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Activation, Error, Result};

/// Maximum number of rows of x that [`gemv`] takes.
pub const GEMV_MAX_ROWS: usize = 8;
/// Maximum number of rows with gates or with norms. More rows have no [`GemvBlocks`] but [`GemvBlocks::OfTiles`].
pub const FEW_ROWS: usize = 2;

/// How the outputs are divided among thread blocks. It changes no bit of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GemvBlocks {
    /// A block computes one tile.
    #[default]
    OfTiles,
    /// A block computes some tiles, so that the GPU holds all blocks at once. Matrices whose inputs are no multiple of 1,024
    /// for each warp keep [`GemvBlocks::OfTiles`].
    Resident,
    /// The same for at most this number of blocks.
    AtMost(usize),
}

/// The form of [`gemv_as`].
#[derive(Clone, Copy, Debug, Default)]
pub struct GemvForm {
    /// The activation of gates. The first half of the matrix's rows then makes gates, and the second half what they are
    /// multiplied by.
    pub gate: Option<Activation>,
    /// The thread blocks.
    pub blocks: GemvBlocks,
}

/// Computes `out = x @ w^T + bias`: `x` `[rows, k]` with 1 to 8 rows, `w` `[n, k]`, `bias` `[n]`, `out` `[rows, n]`,
/// all bf16 or f16, with sums in f32.
///
/// A row's result depends on its own values and the shape of `w` alone. The CPU's reference implementation of one
/// output is [`candlepower_kernels::linear_reference`], which adds in another order.
///
/// # Errors
/// `x` has more than 8 rows or `k` is no multiple of 8; an operand has the wrong dtype, shape, layout or device; or
/// CUDA refused the launch.
pub fn gemv(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, out: &Tensor) -> Result<()> {
    gemv_as(&GemvForm::default(), x, w, bias, out)
}

/// Same as [`gemv`], in some form. With gates, `out` is `[rows, n / 2]` and has the bits of [`gemv`] and
/// [`gated_activation`](super::gated_activation).
///
/// # Errors
/// Same as [`gemv`]; or there are gates and more than two rows, or an odd number of outputs.
pub fn gemv_as(
    form: &GemvForm,
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    out: &Tensor,
) -> Result<()> {
    let launch = Launch::new("gemv", "x", x)?;
    let args = gemv_args(&launch, form, x, w, bias, out)?;
    if args.n == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say.
    unsafe { launch.run(candlepower_gemv, &args) }
}

/// The checked arguments of [`gemv_as`].
///
/// # Errors
/// Same as [`gemv_as`], but for those of the launch.
pub(super) fn gemv_args(
    launch: &Launch,
    form: &GemvForm,
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    out: &Tensor,
) -> Result<GemvArgs> {
    let kernel = launch.kernel();
    let (rows, k) = Operand::new(kernel, "x", x).dims2("[rows, k]")?;
    let (n, _) = Operand::new(kernel, "w", w).dims2("[n, k]")?;
    let error = |parameter, value, expected| Err(Error::Parameter { parameter, value, expected });
    let (most, expected) = match form.gate {
        Some(_) => (FEW_ROWS, "1 or 2 with gates"),
        None => (GEMV_MAX_ROWS, "1 to 8; use a matmul for more"),
    };
    if !(1..=most).contains(&rows) {
        return error("rows", rows, expected);
    }
    if k == 0 || !k.is_multiple_of(VECTOR) {
        return error("k", k, "a positive multiple of 8");
    }
    let outputs = gated_outputs(n, form.gate)?;
    Ok(GemvArgs {
        x: launch.elements(("x", x), "[rows, k]", &[rows, k])?,
        weight: launch.elements(("w", w), "[n, k]", &[n, k])?,
        bias: match bias {
            Some(bias) => launch.elements(("bias", bias), "[n]", &[n])?,
            None => std::ptr::null_mut(),
        },
        out: launch.elements(("out", out), "[rows, outputs]", &[rows, outputs])?,
        rows: rows as i32,
        n: outputs as i32,
        k: k as i32,
        dtype: launch.dtype_code(),
        activation: gate_code(form.gate),
        blocks: match form.blocks {
            GemvBlocks::OfTiles => 0,
            GemvBlocks::Resident => -1,
            GemvBlocks::AtMost(blocks) => blocks as i32,
        },
    })
}

/// Number of outputs of a product with a matrix of `n` rows: half of them with gates.
///
/// # Errors
/// There are gates, and `n` is odd.
pub(super) fn gated_outputs(n: usize, gate: Option<Activation>) -> Result<usize> {
    match gate {
        None => Ok(n),
        Some(_) if n.is_multiple_of(2) => Ok(n / 2),
        Some(_) => {
            let expected = "an even number of outputs, half of them gates";
            Err(Error::Parameter { parameter: "n", value: n, expected })
        }
    }
}

/// The activation of gates in the arguments of a product: `kNoGates` in C where there are none.
pub(super) fn gate_code(gate: Option<Activation>) -> i32 {
    gate.map_or(-1, code)
}

/// Mirrors `GemvArgs` in gemv.cuh.
#[repr(C)]
pub(super) struct GemvArgs {
    x: Address,
    weight: Address,
    bias: Address,
    out: Address,
    rows: i32,
    n: i32,
    k: i32,
    dtype: i32,
    activation: i32,
    blocks: i32,
}
const _: () = assert!(size_of::<GemvArgs>() == 56);

unsafe extern "C" {
    fn candlepower_gemv(args: *const GemvArgs, stream: CUstream) -> i32;
}
