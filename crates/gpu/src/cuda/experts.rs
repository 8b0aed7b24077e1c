//! MoE layers: routing, the products of all experts in one launch, and the weighted sum.

use candle_core::{Device, Tensor};

use super::launch::{Address, CUstream, Launch};
use super::packed::{ANY_LAYOUT, PackedAddresses, address_words, format_kind};
use crate::operands::{ExpertMatrices, ExpertTable, Matrix, PackedMatrix, Routing, check_rows};
use candlepower_kernels::operands::{Operand, check_groups};
use candlepower_kernels::{Error, ExpertGroups, Gating, GatingFunction, GroupScore, Result};

const PRODUCT: &str = "expert_product";

/// Why a form of matrices is refused.
const NO_FP8: &str = "experts have no form for products in FP8";

/// The table of the matrices that kernels read. `None` if the matrices are not on a GPU.
pub(crate) fn expert_table(matrices: &[Matrix]) -> Result<Option<ExpertTable>> {
    let first = match matrices.first() {
        Some(Matrix::Rows(first)) => first,
        Some(Matrix::Packed(first)) => &first.words,
        Some(Matrix::Fp8(_)) => return Err(Error::QuantizedRows(NO_FP8)),
        None => return Ok(None),
    };
    if !first.device().is_cuda() {
        return Ok(None);
    }
    let launch = Launch::of_any(PRODUCT, "weights", first)?;
    let kind = |w: &PackedMatrix| (w.n, w.width, format_kind(w.format));
    let (mut words, mut cuts) = (Vec::new(), Vec::new());
    for (i, matrix) in matrices.iter().enumerate() {
        match (matrix, &matrices[0]) {
            (Matrix::Rows(matrix), Matrix::Rows(_)) => {
                let begin = launch.elements(("weights", matrix), "[n, k]", first.dims())?;
                words.extend(address_words(begin as u64));
            }
            (Matrix::Packed(matrix), Matrix::Packed(first)) if kind(matrix) == kind(first) => {
                let addresses = PackedAddresses::of(matrix, &launch)?;
                words.extend(addresses.words());
                cuts.push(addresses.cut);
            }
            _ => {
                return Err(Error::Parameter {
                    parameter: "the matrix of an expert",
                    value: i,
                    expected: "a matrix with the shape and quantization format of the first",
                });
            }
        }
    }
    let dims = (matrices.len(), words.len() / matrices.len());
    let words = Tensor::from_vec(words, dims, first.device())?;
    // Kernels take one layout for all experts if all have the same, and look it up for each expert otherwise.
    cuts.dedup();
    Ok(Some(ExpertTable { words, cut: if let [cut] = cuts[..] { cut } else { ANY_LAYOUT } }))
}

/// See [`crate::route`].
///
/// # Errors
/// Same as [`crate::route`].
pub fn route(scores: &Tensor, gating: &Gating, routing: &Routing) -> Result<()> {
    let launch = Launch::new("route", "scores", scores)?;
    let &Routing { tokens, experts, top_k, .. } = routing;
    gating.groups.map_or(Ok(()), |groups| check_groups(&groups, experts, top_k))?;
    // Without groups all experts are one group, which is always chosen.
    let all = ExpertGroups { count: 1, chosen: 1, score: GroupScore::Best };
    let groups = gating.groups.unwrap_or(all);
    let (pairs, of_experts) = ([routing.pairs()], [experts + 1]);
    let args = RouteArgs {
        scores: launch.elements(("scores", scores), "[tokens, experts]", &[tokens, experts])?,
        chosen: launch.u32s(("chosen", &routing.chosen), "[tokens * top_k]", &pairs)?,
        shares: launch.f32s(("shares", &routing.shares), "[tokens * top_k]", &pairs)?,
        sorted: launch.u32s(("sorted", &routing.sorted), "[tokens * top_k]", &pairs)?,
        starts: launch.u32s(("starts", &routing.starts), "[experts + 1]", &of_experts)?,
        tiles: launch.u32s(("tiles", &routing.tiles), "[experts + 1]", &of_experts)?,
        bias: match &gating.bias {
            Some(bias) => launch.f32s(("bias", bias), "[experts]", &[experts])?,
            None => std::ptr::null_mut(),
        },
        scales: match &gating.scales {
            Some(scales) => launch.f32s(("scales", scales), "[experts]", &[experts])?,
            None => std::ptr::null_mut(),
        },
        tokens: tokens as i32,
        experts: experts as i32,
        top_k: top_k as i32,
        renormalize: i32::from(gating.renormalize),
        tile_rows: routing.tile_rows() as i32,
        dtype: launch.dtype_code(),
        function: match gating.function {
            GatingFunction::Softmax => 0,
            GatingFunction::Sigmoid => 1,
        },
        scale: gating.scale,
        groups: groups.count as i32,
        chosen_groups: groups.chosen as i32,
        group_score: match groups.score {
            GroupScore::Best => 0,
            GroupScore::BestTwo => 1,
        },
        padding: 0,
    };
    if tokens == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say, and `Routing::new`
    // limited `experts` and `top_k` to the kernel's capacity.
    unsafe { launch.run(candlepower_route, &args) }
}

/// See [`crate::expert_product`]; `routing` is what [`route`] has written.
///
/// # Errors
/// Same as [`crate::expert_product`].
pub fn expert_product(
    x: &Tensor,
    weights: &ExpertMatrices,
    bias: Option<&Tensor>,
    routing: &Routing,
    out: &Tensor,
) -> Result<()> {
    let launch = Launch::new(PRODUCT, "x", x)?;
    let (rows, k) = check_rows(PRODUCT, x, weights, routing)?;
    let (experts, pairs, n) = (routing.experts, routing.pairs(), weights.n());
    let Some((first, table)) = weights.matrices.first().zip(weights.table.as_ref()) else {
        let device = Device::Cpu.location();
        return Err(Error::NotOnGpu { kernel: PRODUCT, operand: "weights", device });
    };
    // `expert_table` checked that the other matrices have the same shape and format.
    let format = match first {
        Matrix::Fp8(_) => return Err(Error::QuantizedRows(NO_FP8)),
        Matrix::Rows(first) => {
            launch.elements(("weights", first), "[n, k]", &[n, k])?;
            UNQUANTIZED
        }
        Matrix::Packed(first) if first.width == k => format_kind(first.format),
        Matrix::Packed(first) => {
            let axes = format!("[rows, k] with k = {}, as the matrices have", first.width);
            return Err(Operand::new(PRODUCT, "x", x).shape_error(axes));
        }
    };
    let of_experts = [experts + 1];
    let args = ExpertProductArgs {
        x: launch.elements(("x", x), "[rows, k]", &[rows, k])?,
        weights: launch.u32s(("weights", &table.words), "[experts, words]", table.words.dims())?,
        bias: match bias {
            Some(bias) => launch.elements(("bias", bias), "[experts, n]", &[experts, n])?,
            None => std::ptr::null_mut(),
        },
        sorted: launch.u32s(("sorted", &routing.sorted), "[tokens * top_k]", &[pairs])?,
        starts: launch.u32s(("starts", &routing.starts), "[experts + 1]", &of_experts)?,
        tiles: launch.u32s(("tiles", &routing.tiles), "[experts + 1]", &of_experts)?,
        out: launch.elements(("out", out), "[tokens * top_k, n]", &[pairs, n])?,
        pairs: pairs as i32,
        // 1 if each pair has its own row, or `top_k` if the pairs of a token share the token's row.
        pairs_per_row: (pairs / rows.max(1)) as i32,
        experts: experts as i32,
        n: n as i32,
        k: k as i32,
        tile_rows: routing.tile_rows() as i32,
        dtype: launch.dtype_code(),
        format,
        cut: table.cut,
        x_stride: k as i32,
        out_stride: n as i32,
        padding: 0,
    };
    if pairs * n == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say, those of the matrices by
    // `expert_table`; the tables hold what `route` wrote for the same numbers of tokens and experts.
    unsafe { launch.run(candlepower_expert_product, &args) }
}

/// See [`crate::combine_experts`].
///
/// # Errors
/// Same as [`crate::combine_experts`].
pub fn combine_experts(results: &Tensor, routing: &Routing, add: bool, out: &Tensor) -> Result<()> {
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
        add: i32::from(add),
        padding: 0,
    };
    if tokens * hidden == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say.
    unsafe { launch.run(candlepower_combine_experts, &args) }
}

/// Mirrors `RouteArgs` in experts.cu.
#[repr(C)]
struct RouteArgs {
    scores: Address,
    chosen: *mut u32,
    shares: *mut f32,
    sorted: *mut u32,
    starts: *mut u32,
    tiles: *mut u32,
    bias: *mut f32,
    scales: *mut f32,
    tokens: i32,
    experts: i32,
    top_k: i32,
    renormalize: i32,
    tile_rows: i32,
    dtype: i32,
    function: i32,
    scale: f32,
    groups: i32,
    chosen_groups: i32,
    group_score: i32,
    padding: i32,
}
const _: () = assert!(size_of::<RouteArgs>() == 112);

/// Mirrors `kUnquantized` in expert_product.cu.
pub(super) const UNQUANTIZED: i32 = -1;

/// Mirrors `ExpertProductArgs` in expert_product.cu.
#[repr(C)]
pub(super) struct ExpertProductArgs {
    pub(super) x: Address,
    pub(super) weights: *mut u32,
    pub(super) bias: Address,
    pub(super) sorted: *mut u32,
    pub(super) starts: *mut u32,
    pub(super) tiles: *mut u32,
    pub(super) out: Address,
    pub(super) pairs: i32,
    pub(super) pairs_per_row: i32,
    pub(super) experts: i32,
    pub(super) n: i32,
    pub(super) k: i32,
    pub(super) tile_rows: i32,
    pub(super) dtype: i32,
    pub(super) format: i32,
    pub(super) cut: i32,
    pub(super) x_stride: i32,
    pub(super) out_stride: i32,
    pub(super) padding: i32,
}
const _: () = assert!(size_of::<ExpertProductArgs>() == 104);

/// Mirrors `CombineArgs` in experts.cu.
#[repr(C)]
struct CombineArgs {
    results: Address,
    shares: *mut f32,
    out: Address,
    tokens: i32,
    top_k: i32,
    hidden: i32,
    dtype: i32,
    add: i32,
    padding: i32,
}
const _: () = assert!(size_of::<CombineArgs>() == 48);

unsafe extern "C" {
    fn candlepower_route(args: *const RouteArgs, stream: CUstream) -> i32;
    pub(super) fn candlepower_expert_product(
        args: *const ExpertProductArgs,
        stream: CUstream,
    ) -> i32;
    fn candlepower_combine_experts(args: *const CombineArgs, stream: CUstream) -> i32;
}
