//! Matrix products by cuBLAS, on candle's handle and with our own workspace; and the choice between it and kernels.

use std::env;
use std::ffi::c_void;
use std::ops::RangeInclusive;

use candle_core::cuda_backend::cudarc::cublas::result::gemm_ex;
use candle_core::cuda_backend::cudarc::cublas::sys::{
    cublasComputeType_t, cublasGemmAlgo_t, cublasMath_t, cublasOperation_t, cublasSetMathMode,
    cublasSetStream_v2, cublasSetWorkspace_v2, cudaDataType,
};
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use candle_core::{CudaDevice, DType, Device, Tensor};

use super::cublas_lt::CublasLt;
use super::gemv::{GemvBlocks, GemvForm, gemv_as};
use super::launch::{Address, Launch, VECTOR, driver};
use super::normed_gemv::normed_gemv;
use super::packed::{packed_max_rows, packed_product};
use super::rows_product::{MAX_PRODUCT_ROWS, has_rows_product, rows_product};
use crate::operands::{Fp8Matrix, Fp8Rows, Fusions, NormedRows, PackedMatrix};
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Activation, Error, Result};

const KERNEL: &str = "matmul";

/// Workspace that NVIDIA recommends for Hopper; older GPUs need less. Source: cuBLAS, `cublasSetWorkspace`.
pub(crate) const WORKSPACE_BYTES: usize = 32 << 20;

/// Maximum number of rows that [`super::gemv`] multiplies. It is bound by memory, and each row adds reads of x. On an
/// H200, cuBLAS was faster from three rows on for most shapes: the four matrices of an 8B model's layer take 120 us
/// with four rows, and 146 by GEMV.
const MAX_GEMV_ROWS: usize = 2;

/// Environment variable with the numbers of rows that [`Cublas::rows_product`] multiplies instead of GEMV and cuBLAS, such
/// as `3-128`. It exists so that one program can measure both.
const PRODUCT_ROWS: &str = "CANDLEPOWER_PRODUCT_ROWS";

/// No numbers of rows: on a GPU, the kernel has never been compared with cuBLAS.
#[allow(clippy::reversed_empty_ranges, reason = "an empty range")]
const NO_ROWS: RangeInclusive<usize> = 1..=0;

/// The outputs of a slice of a quantized matrix are a multiple of this, so that each slice begins at a multiple of 16
/// bytes.
const SLICE_OUTPUTS: usize = 16;

/// The kernels that multiply rows.
enum Kernel {
    RowsProduct,
    Gemv,
    Cublas,
}

/// cuBLAS with its own workspace, and the kernels that multiply few rows. Calls allocate nothing, as CUDA graphs require.
#[derive(Debug)]
pub struct Cublas {
    device: CudaDevice,
    /// Used by every product on the device's stream, one after the other. The handle stops using it when this struct is
    /// dropped. Kernels that divide the inputs keep partial sums there.
    workspace: CudaSlice<u8>,
    /// Numbers of rows that [`Cublas::rows_product`] multiplies.
    product_rows: RangeInclusive<usize>,
    /// Whether sums have one order for all numbers of rows. Then cuBLAS multiplies nothing.
    has_fixed_order: bool,
    /// Fused kernels that are used.
    fusions: Fusions,
    /// u32 zeros `[max_rows]`: row indices that repeat the bias for each row of a product.
    zeros: Tensor,
    /// Dequantized weights, some outputs at a time. Empty if no matrix is quantized.
    unpacked: Tensor,
    /// For products in FP8.
    lt: CublasLt,
}

impl Cublas {
    /// Gives candle's handle of `device` a workspace, and reserves `unpacked_bytes` bytes for dequantized weights of
    /// `dtype`.
    ///
    /// # Errors
    /// The device is no GPU, memory does not suffice, `CANDLEPOWER_PRODUCT_ROWS` is no range of rows, or `CANDLEPOWER_DECODE_FUSIONS`
    /// names no fusions.
    pub fn new(
        device: &Device,
        max_rows: usize,
        dtype: DType,
        unpacked_bytes: usize,
    ) -> Result<Self> {
        // Initialized, since inputs without a column stay unwritten. Their activations are zero, but zero times NaN is NaN.
        let count = (unpacked_bytes / dtype.size_in_bytes()).max(1);
        let unpacked = Tensor::zeros(count, dtype, device)?;
        let zeros = Tensor::zeros(max_rows.max(1), DType::U32, device)?;
        let Device::Cuda(device) = device else {
            let device = device.location();
            return Err(Error::NotOnGpu { kernel: KERNEL, operand: "device", device });
        };
        let stream = device.cuda_stream();
        let workspace =
            stream.alloc_zeros::<u8>(WORKSPACE_BYTES).map_err(|error| driver(KERNEL, error))?;
        let address = workspace.device_ptr(&stream).0;
        let handle = *device.cublas_handle().handle();
        let refused = |what| {
            move |error| {
                let message = format!("cuBLAS takes no {what}: {error:?}");
                Error::Cuda { kernel: KERNEL, message }
            }
        };
        // SAFETY: the handle is alive with the device, and the memory with `self`, through which every product goes.
        let status =
            unsafe { cublasSetWorkspace_v2(handle, address as *mut c_void, WORKSPACE_BYTES) };
        status.result().map_err(refused("workspace"))?;
        // Otherwise cuBLAS may add the parts of a product that is split along k in 16 bits.
        let mode = cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
        // SAFETY: the handle is alive.
        unsafe { cublasSetMathMode(handle, mode) }.result().map_err(refused("math mode"))?;
        let product_rows = product_rows(env::var(PRODUCT_ROWS).ok().as_deref())?;
        Ok(Self {
            device: device.clone(),
            workspace,
            product_rows,
            has_fixed_order: false,
            fusions: Fusions::asked_for()?,
            zeros,
            unpacked,
            lt: CublasLt::default(),
        })
    }

    /// Uses these fused kernels, whatever the environment says.
    #[must_use]
    pub fn with_fusions(mut self, fusions: Fusions) -> Self {
        self.fusions = fusions;
        self
    }

    /// Multiplies these numbers of rows by [`Cublas::rows_product`], whatever the environment says. With `1..=128`, sums
    /// are added in one order for all of them.
    #[must_use]
    pub fn with_product_rows(mut self, rows: RangeInclusive<usize>) -> Self {
        self.product_rows = rows;
        self
    }

    /// Adds the sums of a product in one order for all numbers of rows. A row's result then depends on its own values and
    /// on the matrix alone. cuBLAS, whose order may depend on the number of rows, multiplies nothing then.
    #[must_use]
    pub fn with_fixed_order(mut self) -> Self {
        self.has_fixed_order = true;
        self
    }

    /// Computes `out = x @ w^T + bias`: `x` `[rows, k]`, `w` `[n, k]`, `bias` `[n]`, `out` `[rows, n]`, all bf16 or
    /// f16, with sums in f32.
    ///
    /// # Errors
    /// An operand has the wrong dtype, shape, layout or device; `k` is no multiple of 8 with a fixed order; or CUDA refused.
    pub fn matmul(
        &self,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        match self.kernel(x)? {
            Kernel::RowsProduct => self.rows_product(x, w, bias, out),
            Kernel::Gemv => gemv_as(&self.gemv_form(None), x, w, bias, out),
            Kernel::Cublas => self.gemm(x, w, bias, out),
        }
    }

    /// Computes `out = act(gate) * up` with one kernel, if there is one for this number of rows: `x` `[rows, k]`, `w`
    /// `[2 * n, k]`, whose first half makes gates, `bias` `[2 * n]`, `out` `[rows, n]`, all bf16 or f16. The bits are those of
    /// [`Cublas::matmul`] and [`gated_activation`](super::gated_activation). Returns `false` if there is no such kernel, or
    /// if it is switched off; nothing is computed then.
    ///
    /// # Errors
    /// Same as [`Cublas::matmul`]; or `w` has an odd number of rows.
    pub fn gated(
        &self,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
        act: Activation,
        out: &Tensor,
    ) -> Result<bool> {
        if !self.fusions.gate {
            return Ok(false);
        }
        match self.kernel(x)? {
            Kernel::RowsProduct => {
                rows_product(x, w, bias, Some(act), out, &self.workspace).map(|()| true)
            }
            Kernel::Gemv => gemv_as(&self.gemv_form(Some(act)), x, w, bias, out).map(|()| true),
            Kernel::Cublas => Ok(false),
        }
    }

    /// Whether GEMV multiplies `rows` rows of `k` inputs.
    pub(crate) fn has_gemv(&self, rows: usize, k: usize) -> bool {
        matches!(self.kernel_of(rows, k), Kernel::Gemv)
    }

    /// See [`normed_gemv`].
    ///
    /// # Errors
    /// Same as [`normed_gemv`].
    pub(crate) fn normed(
        &self,
        rows: &NormedRows<'_>,
        w: &Tensor,
        bias: Option<&Tensor>,
        gate: Option<Activation>,
        out: &Tensor,
    ) -> Result<()> {
        normed_gemv(&self.gemv_form(gate), rows, w, bias, out)
    }

    /// The kernel that multiplies the rows `x` by a matrix that is not quantized.
    fn kernel(&self, x: &Tensor) -> Result<Kernel> {
        let (rows, k) = Operand::new(KERNEL, "x", x).dims2("[rows, k]")?;
        Ok(self.kernel_of(rows, k))
    }

    fn kernel_of(&self, rows: usize, k: usize) -> Kernel {
        let by_rows = self.product_rows.contains(&rows) && has_rows_product(rows, k);
        let by_gemv = (1..=MAX_GEMV_ROWS).contains(&rows) && k > 0 && k.is_multiple_of(VECTOR);
        match (self.has_fixed_order || by_rows, by_gemv) {
            (true, _) => Kernel::RowsProduct,
            (false, true) => Kernel::Gemv,
            (false, false) => Kernel::Cublas,
        }
    }

    fn gemv_form(&self, gate: Option<Activation>) -> GemvForm {
        let blocks = match self.fusions.wave {
            true => GemvBlocks::Resident,
            false => GemvBlocks::OfTiles,
        };
        GemvForm { gate, blocks }
    }

    /// Same as [`Cublas::matmul`], but always by the kernel in rows_product.cu. A row's result depends on its own values and
    /// the shape of `w` alone.
    ///
    /// # Errors
    /// Same as [`Cublas::matmul`]; or `k` is no multiple of 8.
    pub fn rows_product(
        &self,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        rows_product(x, w, bias, None, out, &self.workspace)
    }

    /// Same as [`Cublas::matmul`], for a quantized matrix. Up to `packed_max_rows` rows, a kernel multiplies the
    /// quantized weights. For more rows, weights are dequantized and rounded for cuBLAS, for as many outputs at a time
    /// as memory allows.
    ///
    /// # Errors
    /// Same as [`Cublas::matmul`]; or the memory for dequantized weights is too small for 16 outputs.
    pub fn packed(
        &self,
        x: &Tensor,
        w: &PackedMatrix,
        bias: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        let (rows, _) = Operand::new(KERNEL, "x", x).dims2("[rows, k]")?;
        let most = packed_max_rows(w);
        if (1..=most).contains(&rows) {
            return packed_product(x, w, bias, out, &self.workspace);
        }
        if self.has_fixed_order {
            // A row has the same result in each piece.
            return (0..rows).step_by(most).try_for_each(|first| {
                let count = most.min(rows - first);
                let (x, out) = (x.narrow(0, first, count)?, out.narrow(0, first, count)?);
                packed_product(&x, w, bias, &out, &self.workspace)
            });
        }
        let launch = Launch::new(KERNEL, "x", x)?;
        let (n, k) = (w.n, w.width);
        let slice = self.unpacked.elem_count() / k / SLICE_OUTPUTS * SLICE_OUTPUTS;
        if slice == 0 {
            let expected = "enough for 16 outputs of every matrix";
            let value = self.unpacked.elem_count();
            return Err(Error::Parameter {
                parameter: "memory for dequantized weights",
                value,
                expected,
            });
        }
        let x_address = launch.elements(("x", x), "[rows, k]", &[rows, k])?;
        let out_address = launch.elements(("out", out), "[rows, n]", &[rows, n])?;
        // The whole bias is laid first. Each slice then adds to its own columns.
        let beta = self.lay_bias(bias, rows, n, out)?;
        for first in (0..n).step_by(slice) {
            let count = slice.min(n - first);
            let values = self.unpacked.narrow(0, 0, count * k)?.reshape((count, k))?;
            super::packed::unpack_rows(w, first..first + count, &values)?;
            let product = Product {
                x: x_address,
                w: launch.elements(("w", &values), "[n, k]", &[count, k])?,
                out: out_address.wrapping_byte_add(first * x.dtype().size_in_bytes()),
                rows,
                n: count,
                k,
                out_stride: n,
                element: element(x.dtype()),
            };
            if rows > 0 {
                product.run(&self.device, beta)?;
            }
        }
        Ok(())
    }

    /// Same as [`Cublas::matmul`], in FP8.
    ///
    /// # Errors
    /// Same as [`Cublas::matmul`].
    pub(crate) fn fp8(
        &self,
        x: &Fp8Rows,
        w: &Fp8Matrix,
        bias: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        let (rows, _) = Operand::new(KERNEL, "x", &x.codes).dims2("[rows, k]")?;
        let lay_bias = || self.lay_bias(bias, rows, w.n, out);
        // The kernel for few rows has one order for all numbers of rows.
        let lt = (!self.has_fixed_order).then_some((&self.lt, &self.workspace));
        super::fp8::product(x, w, bias, out, lt, lay_bias)
    }

    /// Same as [`Cublas::matmul`], but always by cuBLAS, for any number of rows.
    ///
    /// # Errors
    /// Same as [`Cublas::matmul`].
    pub fn gemm(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>, out: &Tensor) -> Result<()> {
        let launch = Launch::new(KERNEL, "x", x)?;
        let (rows, k) = Operand::new(KERNEL, "x", x).dims2("[rows, k]")?;
        let (n, _) = Operand::new(KERNEL, "w", w).dims2("[n, k]")?;
        let product = Product {
            x: launch.elements(("x", x), "[rows, k]", &[rows, k])?,
            w: launch.elements(("w", w), "[n, k]", &[n, k])?,
            out: launch.elements(("out", out), "[rows, n]", &[rows, n])?,
            rows,
            n,
            k,
            out_stride: n,
            element: element(x.dtype()),
        };
        if rows * n * k == 0 {
            return Ok(());
        }
        product.run(&self.device, self.lay_bias(bias, rows, n, out)?)
    }

    /// Copies the bias into each row of `out`, so that cuBLAS adds the product to it. Returns the factor on `out` for
    /// that: 1, or 0 without a bias. cuBLAS rounds the product before it adds the bias (seen on an H200).
    fn lay_bias(&self, bias: Option<&Tensor>, rows: usize, n: usize, out: &Tensor) -> Result<f32> {
        let Some(bias) = bias else { return Ok(0.0) };
        Operand::new(KERNEL, "bias", bias).expect_dims("[n]", &[n])?;
        let under = self.zeros.narrow(0, 0, rows)?;
        super::gather_rows(&bias.reshape((1, n))?, &under, out)?;
        Ok(1.0)
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        let (handle, stream) = (self.device.cublas_handle(), self.device.cuda_stream());
        // SAFETY: the handle and the stream are alive with the device. Setting the same stream again restores the
        // handle's default workspace. Source: NVIDIA, cuBLAS, cublasSetStream().
        let _ = unsafe { cublasSetStream_v2(*handle.handle(), stream.cu_stream().cast()) };
    }
}

/// The range of rows that `text` names, such as `3-128`; none without a text.
fn product_rows(text: Option<&str>) -> Result<RangeInclusive<usize>> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(NO_ROWS) };
    let number = |text: &str| text.trim().parse().ok().filter(|rows| *rows <= MAX_PRODUCT_ROWS);
    text.split_once('-').and_then(|(first, last)| Some(number(first)?..=number(last)?)).ok_or_else(
        || Error::Cuda {
            kernel: KERNEL,
            message: format!(
                "{PRODUCT_ROWS}={text}: write a range of rows up to 128, such as 3-128"
            ),
        },
    )
}

/// cuBLAS's name of an element type.
fn element(dtype: DType) -> cudaDataType {
    match dtype {
        DType::F16 => cudaDataType::CUDA_R_16F,
        _ => cudaDataType::CUDA_R_16BF,
    }
}

/// A product whose operands were checked.
struct Product {
    x: Address,
    w: Address,
    out: Address,
    rows: usize,
    n: usize,
    k: usize,
    /// Distance between rows of `out`, in elements.
    out_stride: usize,
    element: cudaDataType,
}

impl Product {
    /// Computes `out = x @ w^T + beta * out`. cuBLAS assumes column-major matrices: it sees the rows of w, x and out as
    /// columns, and computes `out^T = w @ x^T`.
    fn run(&self, device: &CudaDevice, beta: f32) -> Result<()> {
        let alpha = 1f32;
        let (n, rows, k) = (self.n as i32, self.rows as i32, self.k as i32);
        device.cuda_stream().context().bind_to_thread().map_err(|error| driver(KERNEL, error))?;
        // SAFETY: the addresses hold n * k, rows * k and rows of n elements, as their checks said; cuBLAS reads the
        // factors before the call returns.
        unsafe {
            gemm_ex(
                *device.cublas_handle().handle(),
                cublasOperation_t::CUBLAS_OP_T,
                cublasOperation_t::CUBLAS_OP_N,
                n,
                rows,
                k,
                (&raw const alpha).cast(),
                self.w,
                self.element,
                k,
                self.x,
                self.element,
                k,
                (&raw const beta).cast(),
                self.out,
                self.element,
                self.out_stride as i32,
                cublasComputeType_t::CUBLAS_COMPUTE_32F,
                cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
            )
        }
        .map_err(|error| Error::Cuda { kernel: KERNEL, message: format!("cuBLAS: {error:?}") })
    }
}
