//! Layers of experts: which of them each token goes to, the products of each with its tokens, and their sum.

use candle_core::{DType, Device, Tensor};
use candlepower_kernels::operands::{Operand, check_top_k};
use candlepower_kernels::{Error, Result};

use super::Matrix;

/// A warp keeps the choices of a token, one in each lane.
const MOST_CHOICES: usize = 32;
/// A block of the sorting kernel counts the tokens of all experts in its own memory.
const MOST_EXPERTS: usize = 8192;

/// Rows of a tile of a product, where each expert has few of them, and how many an expert has on average from where tiles have more.
/// expert_product.cu has the same values.
const FEW_ROWS: usize = 16;
const TILE_ROWS: [(usize, usize); 2] = [(96, 128), (20, 64)];

/// Which experts the tokens of a step go to: tables on the device that [`route`](crate::route) writes and the products read. A pair is a
/// token and one of its experts, in the order of the tokens and then of the experts.
#[derive(Clone, Debug)]
pub struct Routing {
    pub(crate) tokens: usize,
    pub(crate) experts: usize,
    pub(crate) top_k: usize,
    /// u32 `[pairs]`: the expert of each.
    pub chosen: Tensor,
    /// f32 `[pairs]`: what it counts for.
    pub shares: Tensor,
    /// u32 `[pairs]`: the pairs, expert by expert.
    pub sorted: Tensor,
    /// u32 `[experts + 1]`: where in `sorted` those of each expert begin.
    pub starts: Tensor,
    /// u32 `[experts + 1]`: how many tiles of rows the experts before take.
    pub tiles: Tensor,
}

impl Routing {
    /// Reserves tables for steps of up to `tokens` tokens, each of which goes to `top_k` of `experts` experts.
    ///
    /// # Errors
    /// `top_k` is zero, above the number of experts or above 32, there are more than 8192 experts, or memory does not suffice.
    pub fn new(tokens: usize, experts: usize, top_k: usize, device: &Device) -> Result<Self> {
        check_top_k(top_k, experts)?;
        let at_most = |parameter, value, most, expected| match value > most {
            true => Err(Error::Parameter { parameter, value, expected }),
            false => Ok(()),
        };
        at_most("top_k", top_k, MOST_CHOICES, "at most 32 on a GPU")?;
        at_most("experts", experts, MOST_EXPERTS, "at most 8192 on a GPU")?;
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

    /// The beginning of the tables, for a step of `tokens` tokens: the same memory each time.
    ///
    /// # Errors
    /// There is no room for so many.
    pub fn of(&self, tokens: usize) -> Result<Self> {
        let part = |table: &Tensor| table.narrow(0, 0, tokens * self.top_k);
        Ok(Self {
            tokens,
            chosen: part(&self.chosen)?,
            shares: part(&self.shares)?,
            sorted: part(&self.sorted)?,
            ..self.clone()
        })
    }

    /// A token with one of its experts, so many times.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.tokens * self.top_k
    }

    /// Rows of a tile of a product.
    pub(crate) fn tile_rows(&self) -> usize {
        tile_rows(self.pairs(), self.experts)
    }
}

/// Rows of a tile of a product of so many pairs of a row and an expert.
pub(crate) fn tile_rows(pairs: usize, experts: usize) -> usize {
    let larger = TILE_ROWS.iter().find(|(from, _)| pairs >= from * experts);
    larger.map_or(FEW_ROWS, |(_, rows)| *rows)
}

/// Addresses of the matrices of experts, on a GPU.
#[cfg(feature = "cuda")]
#[derive(Clone, Debug)]
pub(crate) struct ExpertTable {
    /// u32 `[experts, words]`: where each is.
    pub(crate) words: Tensor,
    /// How all of them are cut, as `PackedMatrix::cut` in codes.cuh.
    pub(crate) cut: i32,
}

/// The matrices `[n, k]` of all experts of a layer.
#[derive(Clone, Debug)]
pub struct ExpertMatrices {
    pub(crate) matrices: Vec<Matrix>,
    /// On a GPU.
    #[cfg(feature = "cuda")]
    pub(crate) table: Option<ExpertTable>,
}

/// The dimensions of `x`, which has a row for each pair or for each token, where there are matrices of all experts.
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
