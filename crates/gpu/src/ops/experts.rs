//! MoE layers: routing of each token to some experts, the products of each expert with its tokens, and the weighted
//! sum.

use candle_core::Tensor;
use candlepower_kernels::operands::{OfExperts, check_groups};
use candlepower_kernels::{Error, Fp8Rounding, Gating, Result, linear_reference};

use super::launch_on_gpu;
use super::reference::Reference;
use crate::operands::{ExpertMatrices, Matrix, Routing, check_rows};

impl ExpertMatrices {
    /// Takes the matrices, which must be on one device.
    ///
    /// # Errors
    /// On a GPU: the matrices differ in dtype, shape, quantization format or device.
    pub fn new(matrices: Vec<Matrix>) -> Result<Self> {
        Ok(Self {
            #[cfg(feature = "cuda")]
            table: crate::cuda::expert_table(&matrices)?,
            matrices,
        })
    }

    /// How the activations of all experts are rounded to FP8 before a product, if they are: with the largest of their fixed
    /// scales. [`expert_product`] takes activations that are rounded already.
    #[must_use]
    pub fn activations(&self) -> Option<Fp8Rounding> {
        Fp8Rounding::common(self.matrices.iter().map(Matrix::activations))
    }

    /// Number of outputs of each matrix.
    #[must_use]
    pub fn n(&self) -> usize {
        self.matrices.first().map_or(0, Matrix::n)
    }
}

/// Finds for each token the `top_k` experts that `gating` chooses by its scores, and the weights of their results.
///
/// `scores` is `[tokens, experts]`, bf16 or f16; the computation is in f32.
///
/// # Errors
/// `scores` or a per-expert tensor of `gating` has the wrong dtype, shape, layout or device, or CUDA refused the
/// launch.
pub fn route(scores: &Tensor, gating: &Gating, routing: &Routing) -> Result<()> {
    launch_on_gpu!(scores, crate::cuda::route(scores, gating, routing));
    let reference = Reference::new("route", "scores", scores)?;
    let &Routing { tokens, experts, top_k, .. } = routing;
    gating.groups.map_or(Ok(()), |groups| check_groups(&groups, experts, top_k))?;
    let scores = reference.elements(("scores", scores), "[tokens, experts]", &[tokens, experts])?;
    let read = |name, tensor: &Option<Tensor>| -> Result<Option<Vec<f32>>> {
        let values = tensor.as_ref().map(|t| reference.f32s((name, t), "[experts]", &[experts]));
        values.transpose()
    };
    let of_experts =
        OfExperts { bias: read("bias", &gating.bias)?, scales: read("scales", &gating.scales)? };
    let (chosen, shares): (Vec<u32>, Vec<f32>) = scores
        .chunks_exact(experts)
        .flat_map(|scores| gating.route(scores, &of_experts, top_k))
        .map(|(expert, share)| (expert as u32, share))
        .unzip();
    // The sort is stable, so an expert's pairs stay in the order of their tokens.
    let mut sorted: Vec<u32> = (0..chosen.len() as u32).collect();
    sorted.sort_by_key(|pair| chosen[*pair as usize]);
    let (mut starts, mut tiles) = (vec![0], vec![0]);
    for expert in 0..experts {
        let rows = chosen.iter().filter(|chosen| **chosen as usize == expert).count();
        starts.push(starts[expert] + rows as u32);
        tiles.push(tiles[expert] + rows.div_ceil(routing.tile_rows()) as u32);
    }
    let pairs = [routing.pairs()];
    let (axes, of_experts) = ("[tokens * top_k]", [experts + 1]);
    reference.write_u32s(("chosen", &routing.chosen), axes, &pairs, &chosen)?;
    reference.write_f32s(("shares", &routing.shares), axes, &pairs, &shares)?;
    reference.write_u32s(("sorted", &routing.sorted), axes, &pairs, &sorted)?;
    reference.write_u32s(("starts", &routing.starts), "[experts + 1]", &of_experts, &starts)?;
    reference.write_u32s(("tiles", &routing.tiles), "[experts + 1]", &of_experts, &tiles)
}

/// `out[p] = w[e] x[p] + bias[e]` for each pair `p` of a token and one of its experts, `e`.
///
/// `bias`, if present, is `[experts, n]`, and `out` is `[tokens * top_k, n]`. `x` is `[tokens * top_k, k]`, or
/// `[tokens, k]` if all pairs of a token share its row. All are bf16 or f16, and so are unquantized matrices; sums are
/// f32.
///
/// A row's result depends on its own values and its expert alone, with one exception: experts with quantized weights
/// and an average of 20 rows or more round the dequantized weights before the product. The reference implementation of
/// one output is [`candlepower_kernels::linear_reference`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn expert_product(
    x: &Tensor,
    weights: &ExpertMatrices,
    bias: Option<&Tensor>,
    routing: &Routing,
    out: &Tensor,
) -> Result<()> {
    const KERNEL: &str = "expert_product";
    launch_on_gpu!(x, crate::cuda::expert_product(x, weights, bias, routing, out));
    let reference = Reference::new(KERNEL, "x", x)?;
    let (rows, k) = check_rows(KERNEL, x, weights, routing)?;
    // 1 if each pair has its own row, or `top_k` if the pairs of a token share one.
    let per_row = routing.pairs() / rows.max(1);
    let (pairs, n) = ([routing.pairs()], weights.n());
    let values = reference.elements(("x", x), "[rows, k]", &[rows, k])?;
    let bias = match bias {
        Some(bias) => {
            Some(reference.elements(("bias", bias), "[experts, n]", &[routing.experts, n])?)
        }
        None => None,
    };
    let sorted = reference.u32s(("sorted", &routing.sorted), "[tokens * top_k]", &pairs)?;
    let starts = [routing.experts + 1];
    let starts = reference.u32s(("starts", &routing.starts), "[experts + 1]", &starts)?;
    let mut results = vec![0f32; pairs[0] * n];
    for (expert, (matrix, bounds)) in weights.matrices.iter().zip(starts.windows(2)).enumerate() {
        let bias = |output: usize| bias.as_ref().map(|bias| bias[expert * n + output]);
        let own = &sorted[bounds[0] as usize..bounds[1] as usize];
        if own.is_empty() {
            continue;
        }
        let (matrix, found_k) = matrix.elements(&reference, "weights")?;
        if found_k != k || matrix.len() != n * k {
            let found = vec![matrix.len() / found_k.max(1), found_k];
            let expected = format!("[n, k] = {:?}, as x and the first of them", [n, k]);
            return Err(Error::Shape { kernel: KERNEL, operand: "weights", expected, found });
        }
        for &pair in own {
            let row = &values[pair as usize / per_row * k..][..k];
            let outputs = matrix.chunks_exact(k).enumerate();
            let outputs = outputs.map(|(i, matrix)| linear_reference(row, matrix, bias(i)));
            let results = &mut results[pair as usize * n..][..n];
            results.iter_mut().zip(outputs).for_each(|(result, output)| *result = output);
        }
    }
    reference.write(("out", out), "[tokens * top_k, n]", &[pairs[0], n], &results)
}

/// Computes `out[t] = sum of shares[p] * results[p]` over the pairs of each token, in the order of the experts, in f32
/// and rounded once. With `add`, the sum is added to the content of `out`.
///
/// `results` is `[tokens * top_k, hidden]` and `out` `[tokens, hidden]`, bf16 or f16.
///
/// # Errors
/// Same as [`expert_product`].
pub fn combine_experts(results: &Tensor, routing: &Routing, add: bool, out: &Tensor) -> Result<()> {
    launch_on_gpu!(results, crate::cuda::combine_experts(results, routing, add, out));
    let reference = Reference::new("combine_experts", "results", results)?;
    let (_, hidden) = reference.operand("results", results).dims2("[tokens * top_k, hidden]")?;
    let pairs = routing.pairs();
    let axes = "[tokens * top_k, hidden]";
    let results = reference.elements(("results", results), axes, &[pairs, hidden])?;
    let shares = reference.f32s(("shares", &routing.shares), "[tokens * top_k]", &[pairs])?;
    let (out_axes, out_dims) = ("[tokens, hidden]", [routing.tokens, hidden]);
    let mut sums = match add {
        true => reference.elements(("out", out), out_axes, &out_dims)?,
        false => vec![0f32; routing.tokens * hidden],
    };
    for (pair, (result, share)) in results.chunks_exact(hidden).zip(shares).enumerate() {
        let sums = &mut sums[pair / routing.top_k * hidden..][..hidden];
        sums.iter_mut().zip(result).for_each(|(sum, value)| *sum += share * value);
    }
    reference.write(("out", out), out_axes, &out_dims, &sums)
}
