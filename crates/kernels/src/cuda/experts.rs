//! Layers of experts: routing, the products of all experts in one launch, and their sum.

use candle_core::{Device, Tensor};

use super::launch::{Address, CUstream, Launch};
use crate::device::{ExpertMatrices, Matrix, Routing, check_rows};
use crate::tensor::Operand;
use crate::{Error, Result};

const PRODUCT: &str = "expert_product";

/// Where the matrices of experts begin, as two words of each address; `None` where they are not on a GPU.
pub(crate) fn expert_addresses(matrices: &[Matrix]) -> Result<Option<Tensor>> {
    let device = match matrices.first() {
        Some(Matrix::Rows(first)) => first.device(),
        Some(Matrix::Packed(first)) => first.words.device(),
        None => return Ok(None),
    };
    if !device.is_cuda() {
        return Ok(None);
    }
    let first = rows(&matrices[0])?;
    let launch = Launch::new(PRODUCT, "weights", first)?;
    let mut words = Vec::with_capacity(2 * matrices.len());
    for matrix in matrices {
        let matrix = launch.elements(("weights", rows(matrix)?), "[n, k]", first.dims())?;
        let address = matrix as u64;
        words.extend([address as u32, (address >> 32) as u32]);
    }
    Ok(Some(Tensor::from_vec(words, (matrices.len(), 2), device)?))
}

fn rows(matrix: &Matrix) -> Result<&Tensor> {
    match matrix {
        Matrix::Rows(rows) => Ok(rows),
        Matrix::Packed(_) => Err(Error::QuantizedRows("experts with codes are for the CPU")),
    }
}

/// As [`crate::device::route`].
///
/// # Errors
/// As there.
pub fn route(scores: &Tensor, renormalize: bool, routing: &Routing) -> Result<()> {
    let launch = Launch::new("route", "scores", scores)?;
    let &Routing { tokens, experts, top_k, .. } = routing;
    let (pairs, of_experts) = ([routing.pairs()], [experts + 1]);
    let args = RouteArgs {
        scores: launch.elements(("scores", scores), "[tokens, experts]", &[tokens, experts])?,
        chosen: launch.u32s(("chosen", &routing.chosen), "[tokens * top_k]", &pairs)?,
        shares: launch.f32s(("shares", &routing.shares), "[tokens * top_k]", &pairs)?,
        sorted: launch.u32s(("sorted", &routing.sorted), "[tokens * top_k]", &pairs)?,
        starts: launch.u32s(("starts", &routing.starts), "[experts + 1]", &of_experts)?,
        tiles: launch.u32s(("tiles", &routing.tiles), "[experts + 1]", &of_experts)?,
        tokens: tokens as i32,
        experts: experts as i32,
        top_k: top_k as i32,
        renormalize: i32::from(renormalize),
        tile_rows: routing.tile_rows() as i32,
        dtype: launch.dtype_code(),
    };
    if tokens == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say, and the tables' maker has held
    // `experts` and `top_k` to what the kernel has room for.
    unsafe { launch.run(candlepower_route, &args) }
}

/// As [`crate::device::expert_product`]; `routing` is what [`route`] has written.
///
/// # Errors
/// As there; and the matrices have codes.
pub fn expert_product(
    x: &Tensor,
    weights: &ExpertMatrices,
    routing: &Routing,
    out: &Tensor,
) -> Result<()> {
    let launch = Launch::new(PRODUCT, "x", x)?;
    let (rows, k) = check_rows(PRODUCT, x, weights, routing)?;
    let (experts, pairs, n) = (routing.experts, routing.pairs(), weights.n());
    let Some((Matrix::Rows(first), addresses)) =
        weights.matrices.first().zip(weights.addresses.as_ref())
    else {
        let device = Device::Cpu.location();
        return Err(Error::NotOnGpu { kernel: PRODUCT, operand: "weights", device });
    };
    // The others are like it, and where the addresses say.
    launch.elements(("weights", first), "[n, k]", &[n, k])?;
    let of_experts = [experts + 1];
    let args = ExpertProductArgs {
        x: launch.elements(("x", x), "[rows, k]", &[rows, k])?,
        weights: launch.u32s(("addresses", addresses), "[experts, 2]", &[experts, 2])?,
        sorted: launch.u32s(("sorted", &routing.sorted), "[tokens * top_k]", &[pairs])?,
        starts: launch.u32s(("starts", &routing.starts), "[experts + 1]", &of_experts)?,
        tiles: launch.u32s(("tiles", &routing.tiles), "[experts + 1]", &of_experts)?,
        out: launch.elements(("out", out), "[tokens * top_k, n]", &[pairs, n])?,
        pairs: pairs as i32,
        pairs_per_row: (pairs / rows.max(1)) as i32,
        experts: experts as i32,
        n: n as i32,
        k: k as i32,
        tile_rows: routing.tile_rows() as i32,
        dtype: launch.dtype_code(),
        padding: 0,
    };
    if pairs * n == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say, those of the matrices when they
    // were taken; the tables hold what `route` wrote for the same numbers of tokens and experts.
    unsafe { launch.run(candlepower_expert_product, &args) }
}

/// As [`crate::device::combine_experts`].
///
/// # Errors
/// As there.
pub fn combine_experts(results: &Tensor, routing: &Routing, out: &Tensor) -> Result<()> {
    const KERNEL: &str = "combine_experts";
    let launch = Launch::new(KERNEL, "results", results)?;
    let axes = "[tokens * top_k, hidden]";
    let (_, hidden) = Operand::new(KERNEL, "results", results).dims2(axes)?;
    let (tokens, pairs) = (routing.tokens, routing.pairs());
    let args = CombineArgs {
        results: launch.elements(("results", results), axes, &[pairs, hidden])?,
        shares: launch.f32s(("shares", &routing.shares), "[tokens * top_k]", &[pairs])?,
        out: launch.elements(("out", out), "[tokens, hidden]", &[tokens, hidden])?,
        tokens: tokens as i32,
        top_k: routing.top_k as i32,
        hidden: hidden as i32,
        dtype: launch.dtype_code(),
    };
    if tokens * hidden == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say.
    unsafe { launch.run(candlepower_combine_experts, &args) }
}

/// As `RouteArgs` in experts.cu.
#[repr(C)]
struct RouteArgs {
    scores: Address,
    chosen: *mut u32,
    shares: *mut f32,
    sorted: *mut u32,
    starts: *mut u32,
    tiles: *mut u32,
    tokens: i32,
    experts: i32,
    top_k: i32,
    renormalize: i32,
    tile_rows: i32,
    dtype: i32,
}
const _: () = assert!(size_of::<RouteArgs>() == 72);

/// As `ExpertProductArgs` in experts.cu.
#[repr(C)]
struct ExpertProductArgs {
    x: Address,
    weights: *mut u32,
    sorted: *mut u32,
    starts: *mut u32,
    tiles: *mut u32,
    out: Address,
    pairs: i32,
    pairs_per_row: i32,
    experts: i32,
    n: i32,
    k: i32,
    tile_rows: i32,
    dtype: i32,
    padding: i32,
}
const _: () = assert!(size_of::<ExpertProductArgs>() == 80);

/// As `CombineArgs` in experts.cu.
#[repr(C)]
struct CombineArgs {
    results: Address,
    shares: *mut f32,
    out: Address,
    tokens: i32,
    top_k: i32,
    hidden: i32,
    dtype: i32,
}
const _: () = assert!(size_of::<CombineArgs>() == 40);

unsafe extern "C" {
    fn candlepower_route(args: *const RouteArgs, stream: CUstream) -> i32;
    fn candlepower_expert_product(args: *const ExpertProductArgs, stream: CUstream) -> i32;
    fn candlepower_combine_experts(args: *const CombineArgs, stream: CUstream) -> i32;
}
