//! Fused kernels, which must have the bits of separate ones, and requests for the L2 cache, which must change none.

use candle_core::{DType, Tensor};
use candlepower_gpu::cuda::{self, Cublas, FEW_ROWS, GemvBlocks, GemvForm};
use candlepower_gpu::{
    Factor, Fusions, GatedProduct, Graph, Matmul, Matrix, NormWeight, NormedRows, RmsNorm, RowsOut,
};
use candlepower_kernels::Activation;

use crate::gpu::{Gpu, HALVES, Random, to_vec};

/// Numbers of rows: one row, whole and partial blocks of the product with tensor cores.
const ROWS: [usize; 7] = [1, 2, 3, 8, 17, 64, 128];

/// Gates and inputs of matrices whose sums eight, four, two warps and one warp share; with even and odd numbers of gates, and
/// with inputs in one part and in several.
const SHAPES: [(usize, usize); 7] =
    [(1, 8), (7, 264), (33, 1032), (64, 896), (600, 512), (1101, 72), (2150, 40)];

/// The bits of a tensor's elements as f32.
fn bits(tensor: &Tensor) -> Vec<u32> {
    to_vec(tensor).into_iter().map(f32::to_bits).collect()
}

/// A random product with gates.
struct Product {
    dtype: DType,
    inner: usize,
    x: Tensor,
    w: Tensor,
    bias: Tensor,
}

impl Product {
    fn new(
        gpu: &Gpu,
        random: &mut Random,
        dtype: DType,
        rows: usize,
        (inner, k): (usize, usize),
    ) -> Self {
        let mut floats = |count: usize, spread, dims: &[usize]| {
            gpu.floats(&random.floats(count, spread, dtype), dims, dtype)
        };
        Self {
            dtype,
            inner,
            // Sums beyond the limits of the activations, in both directions.
            x: floats(rows * k, 2.0, &[rows, k]),
            w: floats(2 * inner * k, 1.0, &[2 * inner, k]),
            bias: floats(2 * inner, 3.0, &[2 * inner]),
        }
    }

    fn rows(&self, rows: usize) -> Tensor {
        self.x.narrow(0, 0, rows).unwrap()
    }

    /// The product of the first rows by `multiply`, and the activation by its own kernel.
    fn separate(
        &self,
        gpu: &Gpu,
        rows: usize,
        act: Activation,
        multiply: impl Fn(&Tensor, &Tensor),
    ) -> Vec<u32> {
        let gate_up = gpu.unwritten(&[rows, 2 * self.inner], self.dtype);
        multiply(&self.rows(rows), &gate_up);
        let out = gpu.unwritten(&[rows, self.inner], self.dtype);
        cuda::gated_activation(&gate_up, act, None, &out).unwrap();
        bits(&out)
    }
}

pub(crate) fn gated_product(gpu: &Gpu) {
    let mut random = Random(61);
    let cublas = Cublas::new(gpu.device(), 300, DType::BF16, 0).unwrap();
    let by_rows = cublas.with_product_rows(1..=128).with_fusions(Fusions::default());
    for shape in SHAPES {
        for dtype in HALVES {
            let product = Product::new(gpu, &mut random, dtype, 128, shape);
            let acts = match shape {
                (7, _) => &Activation::ALL[..],
                _ => &[Activation::Silu, Activation::SwigluOai],
            };
            for act in acts {
                compare_gated(gpu, &by_rows, &product, *act, &ROWS);
            }
        }
    }
    // Blocks of 128 sums, with parts of the inputs and without.
    for (shape, rows) in [((1215, 2112), [17, 65]), ((8151, 136), [20, 33])] {
        let product = Product::new(gpu, &mut random, DType::BF16, rows[1], shape);
        compare_gated(gpu, &by_rows, &product, Activation::Silu, &rows);
    }
    drop(by_rows);
    chosen(gpu, &mut random);
    replayed(gpu, &mut random);
}

/// Compares the products of these numbers of rows by both kernels, with and without a bias.
fn compare_gated(
    gpu: &Gpu,
    cublas: &Cublas,
    product: &Product,
    act: Activation,
    numbers_of_rows: &[usize],
) {
    let Product { dtype, inner, w, .. } = product;
    for bias in [None, Some(&product.bias)] {
        for &rows in numbers_of_rows {
            let what = format!("{rows} rows, {:?}, {act:?}, bias {}", w.dims(), bias.is_some());
            let out = gpu.unwritten(&[rows, *inner], *dtype);
            assert!(cublas.gated(&product.rows(rows), w, bias, act, &out).unwrap());
            let want = product.separate(gpu, rows, act, |x, out| {
                cublas.rows_product(x, w, bias, out).unwrap();
            });
            gpu.assert_equal(&bits(&out), &want, &what);
            if rows <= FEW_ROWS {
                let out = gpu.unwritten(&[rows, *inner], *dtype);
                let form = GemvForm { gate: Some(act), ..GemvForm::default() };
                cuda::gemv_as(&form, &product.rows(rows), w, bias, &out).unwrap();
                let want = product.separate(gpu, rows, act, |x, out| {
                    cuda::gemv(x, w, bias, out).unwrap();
                });
                gpu.assert_equal(&bits(&out), &want, &format!("{what}, gemv"));
            }
        }
    }
}

/// The operation, which takes one kernel or two.
fn chosen(gpu: &Gpu, random: &mut Random) {
    let (dtype, act) = (DType::BF16, Activation::GeluTanh);
    let product = Product::new(gpu, random, dtype, 5, (24, 64));
    let weight = Matrix::Rows(product.w.clone());
    let reader = Matrix::Rows(gpu.floats(&[1.0; 24], &[1, 24], dtype));
    let run = |fusions, rows| {
        let matmul = Matmul::new(gpu.device(), 8, dtype, 0, 0).unwrap().with_fusions(fusions);
        let bias = Some(&product.bias);
        let of = GatedProduct { weight: &weight, bias, act, reader: Some(&reader) };
        let gate_up = gpu.unwritten(&[rows, 48], dtype);
        let out = gpu.unwritten(&[rows, 24], dtype);
        let x = product.rows(rows);
        matmul.gated(&Factor::Rows(&x), &of, &gate_up, &RowsOut::Plain(out.clone())).unwrap();
        (bits(&out), to_vec(&gate_up).iter().all(|value| value.is_nan()))
    };
    let all = Fusions { gate: true, norm: true, prefetch: true, wave: true };
    for rows in [1, 2, 3, 5] {
        let (want, is_fused) = run(Fusions::OFF, rows);
        assert!(!is_fused);
        for fusions in [Fusions::default(), all] {
            let (found, is_fused) = run(fusions, rows);
            assert_eq!(is_fused, rows <= 2, "{rows} rows");
            gpu.assert_equal(&found, &want, &format!("{rows} rows, {fusions:?}"));
        }
    }
    let cublas = Cublas::new(gpu.device(), 8, dtype, 0).unwrap().with_fusions(all);
    let odd = product.w.narrow(0, 0, 47).unwrap();
    let out = gpu.unwritten(&[1, 23], dtype);
    assert!(cublas.gated(&product.rows(1), &odd, None, act, &out).is_err());
    let gated = GemvForm { gate: Some(act), ..GemvForm::default() };
    let out = gpu.unwritten(&[3, 24], dtype);
    assert!(cuda::gemv_as(&gated, &product.rows(3), &product.w, None, &out).is_err());
}

/// A replayed graph with partial sums, whose rows change.
fn replayed(gpu: &Gpu, random: &mut Random) {
    let (dtype, act) = (DType::BF16, Activation::Silu);
    let product = Product::new(gpu, random, dtype, 12, (66, 1024));
    let cublas = Cublas::new(gpu.device(), 12, dtype, 0).unwrap().with_product_rows(3..=128);
    let outs = [1, 12].map(|rows| gpu.unwritten(&[rows, 66], dtype));
    let run = || {
        for (rows, out) in [1, 12].into_iter().zip(&outs) {
            assert!(cublas.gated(&product.rows(rows), &product.w, None, act, out)?);
        }
        Ok(())
    };
    // One launch outside of the graph, so that everything is loaded.
    run().unwrap();
    let graph = Graph::capture(gpu.device(), run).unwrap();
    for _ in 0..2 {
        let x = gpu.floats(&random.floats(12 * 1024, 1.0, dtype), &[12, 1024], dtype);
        product.x.slice_set(&x, 0, 0).unwrap();
        graph.launch().unwrap();
        for (rows, out) in [1, 12].into_iter().zip(&outs) {
            let want = product.separate(gpu, rows, act, |x, out| {
                cublas.matmul(x, &product.w, None, out).unwrap();
            });
            gpu.assert_equal(&bits(out), &want, &format!("{rows} rows, replayed"));
        }
    }
}

/// Blocks with several tiles, for matrices whose sums one, two, four and eight warps share.
pub(crate) fn gemv_waves(gpu: &Gpu) {
    let mut random = Random(62);
    for (n, k) in [(4302, 1024), (4226, 2048), (2250, 2048), (1186, 4096), (98, 8192)] {
        for (dtype, rows) in [(HALVES[0], 1), (HALVES[1], 2)] {
            let product = Product::new(gpu, &mut random, dtype, rows, (n / 2, k));
            let Product { x, w, bias, .. } = &product;
            for gate in [None, Some(Activation::Silu)] {
                let run = |blocks| {
                    let outputs = if gate.is_some() { n / 2 } else { n };
                    let out = gpu.unwritten(&[rows, outputs], dtype);
                    cuda::gemv_as(&GemvForm { gate, blocks }, x, w, Some(bias), &out).unwrap();
                    bits(&out)
                };
                let want = run(GemvBlocks::OfTiles);
                for blocks in [1, 5, 132, 1 << 20].map(GemvBlocks::AtMost) {
                    let what = format!("{rows} x {k} x {n}, {gate:?}, {blocks:?}");
                    gpu.assert_equal(&run(blocks), &want, &what);
                }
                gpu.assert_equal(&run(GemvBlocks::Resident), &want, "resident blocks");
            }
        }
    }
}

/// Products that compute the norm of their rows, for matrices whose sums one, two, four and eight warps share. The numbers of
/// inputs are the least and the most; multiples of the vectors of a warp, and others.
pub(crate) fn normed_gemv(gpu: &Gpu) {
    let mut random = Random(64);
    for (n, k) in [(2, 8), (98, 2048), (1186, 264), (2250, 896), (4302, 1032), (4226, 64)] {
        for dtype in HALVES {
            for (rows, form, scale) in [(1, NormWeight::Plain, 1.0), (2, NormWeight::OnePlus, 0.37)]
            {
                let product = Product::new(gpu, &mut random, dtype, rows, (n / 2, k));
                let Product { x, w, bias, .. } = &product;
                let mut floats = |count: usize, dims: &[usize]| {
                    gpu.floats(&random.floats(count, 2.0, dtype), dims, dtype)
                };
                let (before, weight) = (floats(rows * k, &[rows, k]), floats(k, &[k]));
                let norm = RmsNorm { weight: &weight, form, eps: 1e-5, next: None };
                for gate in [None, Some(Activation::Silu)] {
                    let out = || {
                        let outputs = if gate.is_some() { n / 2 } else { n };
                        gpu.unwritten(&[rows, outputs], dtype)
                    };
                    let (want_sum, normed, want) =
                        (before.copy().unwrap(), gpu.unwritten(&[rows, k], dtype), out());
                    cuda::add_rms_norm(&want_sum, x, scale, &norm, &normed).unwrap();
                    let plain = GemvForm { gate, blocks: GemvBlocks::OfTiles };
                    cuda::gemv_as(&plain, &normed, w, Some(bias), &want).unwrap();
                    for blocks in [GemvBlocks::Resident, GemvBlocks::AtMost(3)] {
                        let (sum, found) = (gpu.unwritten(&[rows, k], dtype), out());
                        let of = NormedRows { residual: &before, x, sum: &sum, scale, norm };
                        let form = GemvForm { gate, blocks };
                        cuda::normed_gemv(&form, &of, w, Some(bias), &found).unwrap();
                        let what = format!("{rows} x {k} x {n}, {gate:?}, {blocks:?}, {dtype:?}");
                        gpu.assert_equal(&bits(&sum), &bits(&want_sum), &format!("{what}: sum"));
                        gpu.assert_equal(&bits(&found), &bits(&want), &what);
                    }
                }
                // A sum in the memory of the residual, and rows that are too long or too many.
                let refused = |of: NormedRows<'_>, w: &Tensor| {
                    let out = gpu.unwritten(&[of.x.dims()[0], n], dtype);
                    let refused = cuda::normed_gemv(&GemvForm::default(), &of, w, None, &out);
                    assert!(refused.is_err(), "{rows} x {k} x {n}");
                };
                refused(NormedRows { residual: &before, x, sum: &before, scale, norm }, w);
                let many = floats(3 * k, &[3, k]);
                let sum = gpu.unwritten(&[3, k], dtype);
                refused(NormedRows { residual: &many, x: &many, sum: &sum, scale, norm }, w);
            }
        }
    }
}

/// Kernels that request weights for the L2 cache: less than a line, and more than they request.
pub(crate) fn prefetch(gpu: &Gpu) {
    let mut random = Random(63);
    let many = (9 << 20) / 2;
    for dtype in HALVES {
        let weights = [gpu.unwritten(&[3], dtype), gpu.unwritten(&[many], dtype)];
        for (rows, dim) in [(1, 896), (3, 4096), (128, 64), (2, 33)] {
            let mut floats = |count: usize, dims: &[usize]| {
                gpu.floats(&random.floats(count, 2.0, dtype), dims, dtype)
            };
            let (x, weight) = (floats(rows * dim, &[rows, dim]), floats(dim, &[dim]));
            let (before, gate_up) =
                (floats(rows * dim, &[rows, dim]), floats(2 * rows * dim, &[rows, 2 * dim]));
            let run = |next| {
                let residual = before.copy().unwrap();
                let outs = [(); 3].map(|()| gpu.unwritten(&[rows, dim], dtype));
                let norm = RmsNorm { weight: &weight, form: NormWeight::Plain, eps: 1e-5, next };
                cuda::rms_norm(&x, &norm, &outs[0]).unwrap();
                cuda::add_rms_norm(&residual, &x, 1.0, &norm, &outs[1]).unwrap();
                cuda::gated_activation(&gate_up, Activation::Gelu, next, &outs[2]).unwrap();
                let [normed, added, gated] = outs;
                [normed, added, gated, residual].map(|out| bits(&out))
            };
            let want = run(None);
            for next in &weights {
                for (found, want) in run(Some(next)).iter().zip(&want) {
                    gpu.assert_equal(found, want, &format!("{rows} x {dim}, {dtype:?}"));
                }
            }
        }
    }
}
