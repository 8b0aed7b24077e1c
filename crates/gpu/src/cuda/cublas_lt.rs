//! Products of FP8 matrices by cuBLASLt, with scales of matrices, rows or blocks.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;

use candle_core::DType;
use candle_core::cuda_backend::cudarc::cublas::sys::cublasOperation_t;
use candle_core::cuda_backend::cudarc::cublaslt::result::{self, CublasError};
use candle_core::cuda_backend::cudarc::cublaslt::sys;
use sys::cublasLtMatmulDescAttributes_t as Attribute;

use super::launch::{Address, CUstream};
use super::matmul::WORKSPACE_BYTES;
use crate::operands::{Fp8Matrix, Fp8Product};
use candlepower_kernels::{Error, Result};

const KERNEL: &str = "fp8 matmul";

/// First version of cuBLASLt with scales of rows and blocks, that of CUDA 12.9.
const FIRST_VERSION: usize = 120_900;

/// An address that is aligned as those of scales are.
const ALIGNED: u64 = 256;

// Values of `cublasLtMatmulMatrixScale_t` in cuBLAS 13. cudarc has names for them, but other ones in builds with older toolkits.
const SCALAR: u32 = 0;
const OUTER_VECTOR: u32 = 3;
const VECTOR_OF_128: u32 = 4;
const BLOCK_OF_128: u32 = 5;

/// cuBLASLt's handle, which is made at the first use, and the algorithms that were found.
#[derive(Debug, Default)]
pub(super) struct CublasLt {
    handle: RefCell<Option<Handle>>,
    /// The algorithm for each shape; `None` where cuBLASLt has none.
    algorithms: RefCell<HashMap<Shape, Option<Algorithm>>>,
}

#[derive(Debug)]
struct Handle(sys::cublasLtHandle_t);

// SAFETY: cuBLASLt's handle may be used by any thread, one at a time. `CublasLt` is not shared among threads.
unsafe impl Send for Handle {}

/// Shape of a product, which decides on its algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    product: Fp8Product,
    rows: usize,
    n: usize,
    k: usize,
    is_half: bool,
}

#[derive(Clone, Copy)]
struct Algorithm(sys::cublasLtMatmulAlgo_t);

impl std::fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Algorithm")
    }
}

/// Addresses of a product `out = x @ w^T + beta * out`.
pub(super) struct ScaledProduct {
    pub(super) x: Address,
    pub(super) x_scales: *mut f32,
    pub(super) w: Address,
    pub(super) w_scales: *mut f32,
    pub(super) out: Address,
    pub(super) workspace: Address,
    pub(super) workspace_bytes: usize,
    pub(super) beta: f32,
}

/// Whether cuBLASLt is there and has products with scales of rows and blocks. Loads the library.
#[must_use]
pub fn has_fp8_matmul() -> bool {
    // SAFETY: the function has no arguments. Without the library it returns 1, which is no version.
    unsafe { sys::cublasLtGetVersion() >= FIRST_VERSION }
}

impl CublasLt {
    /// Whether cuBLASLt has an algorithm for `rows` rows. The first call for a shape looks for one.
    pub(super) fn has_product(&self, w: &Fp8Matrix, rows: usize, out: DType) -> Result<bool> {
        Ok(self.algorithm(Shape::of(w, rows, out))?.is_some())
    }

    /// Queues a product on `stream`.
    ///
    /// # Safety
    /// The addresses must hold what the shape says until the stream's work is done.
    pub(super) unsafe fn run(
        &self,
        w: &Fp8Matrix,
        rows: usize,
        out: DType,
        product: &ScaledProduct,
        stream: CUstream,
    ) -> Result<()> {
        let shape = Shape::of(w, rows, out);
        let Some(Algorithm(algorithm)) = self.algorithm(shape)? else {
            return Err(refused("no algorithm for this shape"));
        };
        let descriptors = Descriptors::new(shape, product.w_scales as u64, product.x_scales as u64)
            .map_err(failed)?;
        let alpha = 1f32;
        // SAFETY: the descriptors are alive, the caller vouches for the addresses, and cuBLASLt reads the factors before it
        // returns.
        unsafe {
            result::matmul(
                self.handle()?,
                descriptors.operation,
                (&raw const alpha).cast(),
                (&raw const product.beta).cast(),
                product.w,
                descriptors.w,
                product.x,
                descriptors.x,
                product.out,
                descriptors.out,
                product.out,
                descriptors.out,
                &raw const algorithm,
                product.workspace,
                product.workspace_bytes,
                stream.cast(),
            )
        }
        .map_err(failed)
    }

    fn handle(&self) -> Result<sys::cublasLtHandle_t> {
        let mut handle = self.handle.borrow_mut();
        if let Some(Handle(handle)) = *handle {
            return Ok(handle);
        }
        let made = result::create_handle().map_err(failed)?;
        *handle = Some(Handle(made));
        Ok(made)
    }

    /// The fastest algorithm by cuBLASLt's own estimate, which depends on the shape alone.
    fn algorithm(&self, shape: Shape) -> Result<Option<Algorithm>> {
        if let Some(known) = self.algorithms.borrow().get(&shape) {
            return Ok(*known);
        }
        let found = match self.find(shape) {
            Ok(found) => Some(Algorithm(found.algo)),
            Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => None,
            Err(error) => return Err(failed(error)),
        };
        self.algorithms.borrow_mut().insert(shape, found);
        Ok(found)
    }

    fn find(
        &self,
        shape: Shape,
    ) -> std::result::Result<sys::cublasLtMatmulHeuristicResult_t, CublasError> {
        let handle = self
            .handle()
            .map_err(|_| CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED))?;
        // The choice does not depend on the addresses, which are not read.
        let descriptors = Descriptors::new(shape, ALIGNED, ALIGNED)?;
        let preference = result::create_matmul_pref()?;
        let bytes = WORKSPACE_BYTES;
        let most =
            sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: all descriptors are alive, and the attribute is a number of bytes.
        unsafe {
            let found = result::set_matmul_pref_attribute(
                preference,
                most,
                (&raw const bytes).cast(),
                size_of::<usize>(),
            )
            .and_then(|()| {
                result::get_matmul_algo_heuristic(
                    handle,
                    descriptors.operation,
                    descriptors.w,
                    descriptors.x,
                    descriptors.out,
                    descriptors.out,
                    preference,
                )
            });
            let _ = result::destroy_matmul_pref(preference);
            found
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is alive, and nobody uses it after this.
        let _ = unsafe { result::destroy_handle(self.0) };
    }
}

impl Shape {
    fn of(w: &Fp8Matrix, rows: usize, out: DType) -> Self {
        let is_half = out == DType::F16;
        Self { product: w.product, rows, n: w.n, k: w.k, is_half }
    }
}

/// Descriptions of a product for cuBLASLt. It assumes column-major matrices: it sees the rows of w, x and out as columns, and
/// computes `out^T = w @ x^T`.
struct Descriptors {
    operation: sys::cublasLtMatmulDesc_t,
    w: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
}

impl Descriptors {
    fn new(shape: Shape, w_scales: u64, x_scales: u64) -> std::result::Result<Self, CublasError> {
        use sys::cudaDataType_t::{CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F};
        let Shape { product, rows, n, k, is_half } = shape;
        let (rows, n, k) = (rows as u64, n as u64, k as u64);
        let null = std::ptr::null_mut();
        let mut made = Self { operation: null as _, w: null as _, x: null as _, out: null as _ };
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        made.operation = result::create_matmul_desc(compute, CUDA_R_32F)?;
        made.w = result::create_matrix_layout(CUDA_R_8F_E4M3, k, n, k as i64)?;
        made.x = result::create_matrix_layout(CUDA_R_8F_E4M3, k, rows, k as i64)?;
        let element = if is_half { CUDA_R_16F } else { CUDA_R_16BF };
        made.out = result::create_matrix_layout(element, n, rows, n as i64)?;
        let (of_w, of_x) = match product {
            Fp8Product::Tensor => (SCALAR, SCALAR),
            Fp8Product::Rows => (OUTER_VECTOR, OUTER_VECTOR),
            Fp8Product::Blocks => (BLOCK_OF_128, VECTOR_OF_128),
        };
        let transposed = cublasOperation_t::CUBLAS_OP_T as u32;
        // Sums in the full precision of f32.
        let fast_accumulation = 0i8;
        made.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &transposed)?;
        made.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast_accumulation)?;
        made.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &w_scales)?;
        made.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x_scales)?;
        made.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &of_w)?;
        made.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &of_x)?;
        Ok(made)
    }

    fn set<T>(&self, attribute: Attribute, value: &T) -> std::result::Result<(), CublasError> {
        let bytes = (&raw const *value).cast::<c_void>();
        // SAFETY: the description is alive, and cuBLASLt copies the value.
        unsafe {
            result::set_matmul_desc_attribute(self.operation, attribute, bytes, size_of::<T>())
        }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: each that was made is alive, and cuBLASLt has no further use for it once a call has returned.
        unsafe {
            for layout in [self.w, self.x, self.out].into_iter().filter(|layout| !layout.is_null())
            {
                let _ = result::destroy_matrix_layout(layout);
            }
            if !self.operation.is_null() {
                let _ = result::destroy_matmul_desc(self.operation);
            }
        }
    }
}

fn failed(error: CublasError) -> Error {
    Error::Cuda { kernel: KERNEL, message: format!("cuBLASLt: {error:?}") }
}

fn refused(reason: &str) -> Error {
    Error::Cuda { kernel: KERNEL, message: format!("cuBLASLt: {reason}") }
}
