//! Matrix products through cuBLAS, on candle's handle and in memory of our own.

use std::ffi::c_void;

use candle_core::cuda_backend::cudarc::cublas::result::gemm_ex;
use candle_core::cuda_backend::cudarc::cublas::sys::{
    cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t, cublasSetWorkspace_v2, cudaDataType,
};
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use candle_core::{CudaDevice, DType, Device, Tensor};

use super::launch::{Address, Launch, driver};
use crate::tensor::Operand;
use crate::{Error, Result};

const KERNEL: &str = "matmul";

/// What NVIDIA recommends for Hopper; older GPUs need less. Source: cuBLAS, `cublasSetWorkspace`.
pub(crate) const WORKSPACE_BYTES: usize = 32 << 20;

/// Up to so many rows the product of [`super::gemv`] is taken: each row adds reads of x to a kernel that is bound by
/// memory.
const MOST_GEMV_ROWS: usize = 4;

/// Elements of one vector access of the small product.
const K_MULTIPLE: usize = 8;

/// cuBLAS with its workspace, which makes its calls free of allocations, and so fit for a CUDA graph.
#[derive(Debug)]
pub struct Cublas {
    device: CudaDevice,
    /// Used by every product on the device's stream, one after the other.
    _workspace: CudaSlice<u8>,
    /// u32 zeros `[max_rows]`: the rows of a bias that lies under each row of a product.
    zeros: Tensor,
}

impl Cublas {
    /// Gives candle's handle of `device` a workspace.
    ///
    /// # Errors
    /// The device is no GPU, or memory does not suffice.
    pub fn new(device: &Device, max_rows: usize) -> Result<Self> {
        let zeros = Tensor::zeros(max_rows.max(1), DType::U32, device)?;
        let Device::Cuda(device) = device else {
            let device = device.location();
            return Err(Error::NotOnGpu { kernel: KERNEL, operand: "device", device });
        };
        let stream = device.cuda_stream();
        let workspace =
            stream.alloc_zeros::<u8>(WORKSPACE_BYTES).map_err(|error| driver(KERNEL, error))?;
        let address = workspace.device_ptr(&stream).0;
        // SAFETY: the handle is alive with the device, and the memory with `self`, which every product goes through.
        let status = unsafe {
            cublasSetWorkspace_v2(
                *device.cublas_handle().handle(),
                address as *mut c_void,
                WORKSPACE_BYTES,
            )
        };
        status.result().map_err(|error| Error::Cuda {
            kernel: KERNEL,
            message: format!("cuBLAS takes no workspace: {error:?}"),
        })?;
        Ok(Self { device: device.clone(), _workspace: workspace, zeros })
    }

    /// `out = x @ w^T + bias`: `x` `[rows, k]`, `w` `[n, k]`, `bias` `[n]`, `out` `[rows, n]`, all bf16 or f16,
    /// summed in f32.
    ///
    /// # Errors
    /// An operand has the wrong dtype, shape, layout or device, or CUDA refused.
    pub fn matmul(
        &self,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        let (rows, k) = Operand::new(KERNEL, "x", x).dims2("[rows, k]")?;
        if rows <= MOST_GEMV_ROWS && rows > 0 && k > 0 && k.is_multiple_of(K_MULTIPLE) {
            return super::gemv(x, w, bias, out);
        }
        self.gemm(x, w, bias, out)
    }

    /// As [`Cublas::matmul`], whatever the number of rows.
    ///
    /// # Errors
    /// As [`Cublas::matmul`].
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
            element: match x.dtype() {
                DType::F16 => cudaDataType::CUDA_R_16F,
                _ => cudaDataType::CUDA_R_16BF,
            },
        };
        if rows * n * k == 0 {
            return Ok(());
        }
        let Some(bias) = bias else { return product.run(&self.device, 0.0) };
        // The bias lies in `out` before the product is added to it: one rounding, and no kernel of its own.
        Operand::new(KERNEL, "bias", bias).expect_dims("[n]", &[n])?;
        let under = self.zeros.narrow(0, 0, rows)?;
        super::gather_rows(&bias.reshape((1, n))?, &under, out)?;
        product.run(&self.device, 1.0)
    }
}

/// A checked product.
struct Product {
    x: Address,
    w: Address,
    out: Address,
    rows: usize,
    n: usize,
    k: usize,
    element: cudaDataType,
}

impl Product {
    /// `out = x @ w^T + beta * out`. cuBLAS reads columns first: to it the rows of w, x and out are columns, and the
    /// product is `out^T = w @ x^T`.
    fn run(&self, device: &CudaDevice, beta: f32) -> Result<()> {
        let alpha = 1f32;
        let (n, rows, k) = (self.n as i32, self.rows as i32, self.k as i32);
        device.cuda_stream().context().bind_to_thread().map_err(|error| driver(KERNEL, error))?;
        // SAFETY: the addresses hold n * k, rows * k and rows * n elements, as their checks said; the factors live
        // until the call returns, and cuBLAS reads them in it.
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
                n,
                cublasComputeType_t::CUBLAS_COMPUTE_32F,
                cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
            )
        }
        .map_err(|error| Error::Cuda { kernel: KERNEL, message: format!("cuBLAS: {error:?}") })
    }
}
