//! MoE layers: the tables of the router's choices, and the matrices of the experts.

use candle_core::{DType, Device, Tensor};
use candlepower_kernels::operands::{Operand, check_top_k};
use candlepower_kernels::{Error, Result};

use super::Matrix;

/// Maximum of `top_k`: the routing kernel keeps a token's choices in the lanes of one warp.
const MAX_CHOICES: usize = 32;
/// Maximum number of experts: a block of the sorting kernel has a counter for each expert in shared memory.
const MAX_EXPERTS: usize = 8192;

/// Rows of a tile of the product, if experts have few rows. expert_rows.cuh has this size and the next two.
const FEW_ROWS: usize = 16;
/// Larger tiles: the average number of rows per expert from which they are used, and their rows.
///
/// Larger tiles read the weights less often, and smaller ones waste fewer rows. By the kernel before `expert_tiles.cuh`,
/// on an H200, 64-row tiles take 341 instead of 433 us with 32 rows per expert. With 16 rows, 16-row tiles are faster (257
/// against 330 us), and with 128 rows 128-row tiles (641 against 814 us).
const TILE_ROWS: [(usize, usize); 2] = [(96, 128), (20, 64)];

/// The experts of each token of a step: tables on the device that [`route`](crate::route) writes and the products read.
/// A pair is a token and one of its experts; pairs are ordered by token, then by expert.
#[derive(Clone, Debug)]
pub struct Routing {
    pub(crate) tokens: usize,
    pub(crate) experts: usize,
    pub(crate) top_k: usize,
    /// u32 `[pairs]`: the expert of each pair.
    pub chosen: Tensor,
    /// f32 `[pairs]`: the weight of the expert's result.
    pub shares: Tensor,
    /// u32 `[pairs]`: the pairs, sorted by expert.
    pub sorted: Tensor,
    /// u32 `[experts + 1]`: where the pairs of each expert begin in `sorted`.
    pub starts: Tensor,
    /// u32 `[experts + 1]`: number of row tiles of all experts before each one.
    pub tiles: Tensor,
}

impl Routing {
    /// Reserves tables for steps of up to `tokens` tokens, each of which uses `top_k` of `experts` experts.
    ///
    /// # Errors
    /// `top_k` is zero, above the number of experts or above 32, there are more than 8192 experts, or memory does not suffice.
    pub fn new(tokens: usize, experts: usize, top_k: usize, device: &Device) -> Result<Self> {
        check_top_k(top_k, experts)?;
        let at_most = |parameter, value, most, expected| match value > most {
            true => Err(Error::Parameter { parameter, value, expected }),
            false => Ok(()),
        };
        at_most("top_k", top_k, MAX_CHOICES, "at most 32 on a GPU")?;
        at_most("experts", experts, MAX_EXPERTS, "at most 8192 on a GPU")?;
        let integers = |count| Tensor::zeros(count, DType::U32, device);
        let pairs = tokens * top_k;
        Ok(Self {
            tokens,
            experts,
            top_k,
            chosen: integers(pairs)?,
            shares: Tensor::zeros(pairs, DType::F32, device)?,
            sorted: integers(pairs)?,
            starts: integers(experts + 1)?,
            tiles: integers(experts + 1)?,
        })
    }

    /// The part of the tables for a step of `tokens` tokens. It starts at the same address each time.
    ///
    /// # Errors
    /// The tables have no room for that number of tokens.
    pub fn of(&self, tokens: usize) -> Result<Self> {
        let part = |table: &Tensor| table.narrow(0, 0, tokens * self.top_k);
        Ok(Self {
            tokens,
            chosen: part(&self.chosen)?,
            shares: part(&self.shares)?,
            sorted: part(&self.sorted)?,
            // The tables of experts do not depend on the number of tokens.
            ..self.clone()
        })
    }

    /// Number of pairs of a token and one of its experts.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.tokens * self.top_k
    }

    /// Rows of a tile of the product.
    pub(crate) fn tile_rows(&self) -> usize {
        tile_rows(self.pairs(), self.experts)
    }
}

/// Rows of a tile of the product, for this number of pairs and experts.
pub(crate) fn tile_rows(pairs: usize, experts: usize) -> usize {
    // Larger tiles come first, so the first match is the largest.
    let larger = TILE_ROWS.iter().find(|(from, _)| pairs >= from * experts);
    larger.map_or(FEW_ROWS, |(_, rows)| *rows)
}

/// Addresses of the experts' matrices on a GPU.
#[cfg(feature = "cuda")]
#[derive(Clone, Debug)]
pub(crate) struct ExpertTable {
    /// u32 `[experts, words]`: address or `PackedMatrix` of each matrix.
    pub(crate) words: Tensor,
    /// `PackedMatrix::cut` in `packed_matrix.cuh`, the same for all matrices.
    pub(crate) cut: i32,
}

/// The matrices `[n, k]` of all experts of a layer.
#[derive(Clone, Debug)]
pub struct ExpertMatrices {
    pub(crate) matrices: Vec<Matrix>,
    /// The table that kernels read, on a GPU.
    #[cfg(feature = "cuda")]
    pub(crate) table: Option<ExpertTable>,
}

/// The dimensions of `x`, which has a row for each pair or for each token. Refuses matrices that are not one for each
/// expert.
pub(crate) fn check_rows(
    kernel: &'static str,
    x: &Tensor,
    weights: &ExpertMatrices,
    routing: &Routing,
) -> Result<(usize, usize)> {
    if weights.matrices.len() != routing.experts {
        let (value, expected) = (weights.matrices.len(), "one for each expert");
        return Err(Error::Parameter { parameter: "matrices of experts", value, expected });
    }
    let operand = Operand::new(kernel, "x", x);
    let (rows, k) = operand.dims2("[rows, k]")?;
    if rows != routing.tokens && rows != routing.pairs() {
        let rows = [routing.tokens, routing.pairs()];
        return Err(operand.shape_error(format!("[rows, k] with {} or {} rows", rows[0], rows[1])));
    }
    Ok((rows, k))
}
