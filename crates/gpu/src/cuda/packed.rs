//! Quantized matrices: products with a few rows, and dequantization.

use std::ops::Range;

use candle_core::Tensor;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Error, QuantFormat, Result, VocabPart};
use candlepower_layout::DEVICE_TILE;

use super::launch::{Address, CUstream, Launch};
use crate::operands::PackedMatrix;

/// Rows of one tensor core product. More rows take packed_rows.cu, if it supports the matrix.
const TILE_ROWS: usize = 8;

/// Maximum number of rows of x that [`packed_product`] takes. For more rows, dequantizing for cuBLAS was faster on an
/// H200. With 256 rows, the gate and up projection of an 8B model took 151 us to dequantize and 91 us by cuBLAS. The
/// kernel before packed_rows.cu took 271 us for them, and 163 us for 128 rows.
pub fn packed_max_rows(w: &PackedMatrix) -> usize {
    if has_rows_kernel(w) { 128 } else { 32 }
}

/// Whether packed_rows.cu supports the matrix.
fn has_rows_kernel(w: &PackedMatrix) -> bool {
    cut(w) != ANY_LAYOUT && w.format != QuantFormat::Table
}

/// Computes `out = x @ w^T + bias`: `x` `[rows, k]` with 1 to [`packed_max_rows`] rows, `bias` `[n]`, `out`
/// `[rows, n]`, all bf16 or f16, with sums in f32; `w` is `[n, k]`. `partial` is memory for partial sums: 16 MiB suffice
/// for any matrix.
///
/// A row's result depends on its own values and on `w` alone. The reference implementation of one output is
/// [`candlepower_kernels::linear_reference`] over dequantized weights, which adds in another order. Entries of lookup
/// tables are rounded to the element type; other weights are not rounded.
///
/// # Errors
/// `x` has more rows; an operand has the wrong dtype, shape, layout or device; or CUDA refused the launch.
pub(super) fn packed_product(
    x: &Tensor,
    w: &PackedMatrix,
    bias: Option<&Tensor>,
    out: &Tensor,
    partial: &CudaSlice<u8>,
) -> Result<()> {
    const KERNEL: &str = "packed product";
    let launch = Launch::new(KERNEL, "x", x)?;
    let (rows, _) = Operand::new(KERNEL, "x", x).dims2("[rows, k]")?;
    if !(1..=packed_max_rows(w)).contains(&rows) {
        let expected = match has_rows_kernel(w) {
            true => "1 to 128; use a matmul for more",
            false => "1 to 32; use a matmul for more",
        };
        return Err(Error::Parameter { parameter: "rows", value: rows, expected });
    }
    let args = PackedProductArgs {
        w: PackedAddresses::of(w, &launch)?,
        x: launch.elements(("x", x), "[rows, k]", &[rows, w.width])?,
        bias: match bias {
            Some(bias) => launch.elements(("bias", bias), "[n]", &[w.n])?,
            None => std::ptr::null_mut(),
        },
        out: launch.elements(("out", out), "[rows, n]", &[rows, w.n])?,
        rows: rows as i32,
        dtype: launch.dtype_code(),
    };
    // SAFETY: every address was checked above to hold the elements that the dimensions say. `PackedMatrix::new`
    // computed those of `w` from the same dimensions, and they contain no input index beyond `width`. The launcher
    // compares the memory for partial sums with what it needs.
    unsafe {
        if rows <= TILE_ROWS || !has_rows_kernel(w) {
            return launch.run(candlepower_packed_product, &args);
        }
        let args = PackedRowsArgs {
            of: args,
            partial: partial.device_ptr(partial.stream()).0 as *mut f32,
            partial_bytes: partial.len() as i64,
        };
        launch.run(candlepower_packed_rows, &args)
    }
}

/// Computes `out[t] = w[ids[t]] * scale`. Dequantized weights are rounded, multiplied by `scale`, and rounded again.
///
/// `out` is `[tokens, k]`, bf16 or f16; `ids` is u32 `[tokens]`. If `w` is a shard, `part` of the vocabulary, the rows
/// of other tokens are zeros. An id beyond the vocabulary gives a row of NaN.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn packed_embedding(
    ids: &Tensor,
    w: &PackedMatrix,
    scale: f32,
    part: VocabPart,
    out: &Tensor,
) -> Result<()> {
    let launch = Launch::new("packed embedding", "out", out)?;
    let count = ids.elem_count();
    let rows = launch.u32s(("ids", ids), "[tokens]", &[count])?;
    unpack(&launch, w, Rows { ids: rows, part, count }, scale, out)
}

/// Dequantizes the rows `rows` of `w`, rounded. `out` is `[rows, k]`, bf16 or f16. Elements of inputs without a column
/// of `w` keep their content.
pub(super) fn unpack_rows(w: &PackedMatrix, rows: Range<usize>, out: &Tensor) -> Result<()> {
    let launch = Launch::new("unpack", "out", out)?;
    let part = VocabPart { first: rows.start, vocab_size: rows.end };
    let rows = Rows { ids: std::ptr::null_mut(), part, count: rows.len() };
    unpack(&launch, w, rows, 1.0, out)
}

/// A selection of a matrix's rows.
struct Rows {
    /// Row indices on the device, in the whole matrix. Null for the rows from `part.first` on.
    ids: *mut u32,
    part: VocabPart,
    count: usize,
}

fn unpack(launch: &Launch, w: &PackedMatrix, rows: Rows, scale: f32, out: &Tensor) -> Result<()> {
    let args = UnpackArgs {
        w: PackedAddresses::of(w, launch)?,
        rows: rows.ids,
        out: launch.elements(("out", out), "[rows, k]", &[rows.count, w.width])?,
        first: rows.part.first as i32,
        all_rows: rows.part.vocab_size as i32,
        count: rows.count as i32,
        dtype: launch.dtype_code(),
        scale,
        padding: 0,
    };
    if rows.count == 0 {
        return Ok(());
    }
    // SAFETY: as in `packed_product`; the kernel compares each row index with `n` before it reads.
    unsafe { launch.run(candlepower_unpack, &args) }
}

/// Format of the quantized weights in C: a value of `QuantFormat` in `packed_matrix.cuh`.
pub(super) fn format_kind(format: QuantFormat) -> i32 {
    match format {
        // The GPU stores 2 and 3 bits in 4, and 5 and 6 bits in 8.
        QuantFormat::U2 | QuantFormat::U3 | QuantFormat::U4 => 0,
        QuantFormat::U5 | QuantFormat::U6 | QuantFormat::U8 | QuantFormat::Iq4 => 1,
        QuantFormat::E4m3 => 2,
        QuantFormat::E2m1 => 4,
        QuantFormat::Table => 3,
    }
}

/// Mirrors `PackedMatrix` in `packed_matrix.cuh`.
#[repr(C)]
pub(super) struct PackedAddresses {
    quants: *mut u32,
    scales: *mut f32,
    inputs: *mut u32,
    sparse_starts: *mut u32,
    sparse_inputs: *mut u32,
    sparse_values: *mut f32,
    n: i32,
    k: i32,
    width: i32,
    group: i32,
    kind: i32,
    pub(super) cut: i32,
}
const _: () = assert!(size_of::<PackedAddresses>() == 72);

/// Mirrors `kAnyLayout` in `packed_matrix.cuh`.
pub(super) const ANY_LAYOUT: i32 = -1;

/// `PackedMatrix::cut` in `packed_matrix.cuh`: group boundaries divide each tile into 2^cut parts.
fn cut(w: &PackedMatrix) -> i32 {
    let inputs = DEVICE_TILE[1];
    // Rows of x are read in vectors of 8 elements, and a list of inputs would scatter them.
    if w.inputs.is_some() || !w.k.is_multiple_of(inputs) || !w.width.is_multiple_of(8) {
        return ANY_LAYOUT;
    }
    match w.group {
        // A group that covers the row divides no tile.
        group if group >= w.k => 0,
        16 => 2,
        32 => 1,
        group if group.is_multiple_of(inputs) && (group / inputs).is_power_of_two() => 0,
        _ => ANY_LAYOUT,
    }
}

impl PackedAddresses {
    /// Addresses of the tensors of `w`, on the launch's device.
    pub(super) fn of(w: &PackedMatrix, launch: &Launch) -> Result<Self> {
        let integers =
            |name, tensor: &Tensor| launch.u32s((name, tensor), "[length]", &[tensor.elem_count()]);
        let floats =
            |name, tensor: &Tensor| launch.f32s((name, tensor), "[length]", &[tensor.elem_count()]);
        let null = std::ptr::null_mut();
        let sparse = w.sparse.as_ref();
        let optional = |name, tensor: Option<&Tensor>| {
            tensor.map_or(Ok(null), |tensor| integers(name, tensor))
        };
        Ok(Self {
            quants: integers("quantized weights", &w.words)?,
            scales: floats("scales", &w.scales)?,
            inputs: optional("inputs", w.inputs.as_ref())?,
            sparse_starts: optional("starts", sparse.map(|sparse| &sparse.starts))?,
            sparse_inputs: optional("sparse inputs", sparse.map(|sparse| &sparse.inputs))?,
            sparse_values: match sparse {
                Some(sparse) => floats("sparse values", &sparse.values)?,
                None => std::ptr::null_mut(),
            },
            n: w.n as i32,
            k: w.k as i32,
            width: w.width as i32,
            group: w.group as i32,
            kind: format_kind(w.format),
            cut: cut(w),
        })
    }

    /// The struct's bytes as 32-bit words.
    pub(super) fn words(&self) -> impl Iterator<Item = u32> {
        let floats = [self.scales, self.sparse_values].map(|address| address as u64);
        let [quants, inputs, starts, sparse_inputs] =
            [self.quants, self.inputs, self.sparse_starts, self.sparse_inputs]
                // The order is that of the struct's fields, since the kernel reads the words as the struct.
                .map(|address| address as u64);
        let addresses = [quants, floats[0], inputs, starts, sparse_inputs, floats[1]];
        let sizes = [self.n, self.k, self.width, self.group, self.kind, self.cut];
        addresses.into_iter().flat_map(address_words).chain(sizes.map(|size| size as u32))
    }
}

/// An address as two 32-bit words.
pub(super) fn address_words(address: u64) -> [u32; 2] {
    [address as u32, (address >> 32) as u32]
}

/// Mirrors `PackedProductArgs` in packed_operands.cuh.
#[repr(C)]
struct PackedProductArgs {
    w: PackedAddresses,
    x: Address,
    bias: Address,
    out: Address,
    rows: i32,
    dtype: i32,
}
const _: () = assert!(size_of::<PackedProductArgs>() == 104);

/// Mirrors `PackedRowsArgs` in packed_rows.cu.
#[repr(C)]
struct PackedRowsArgs {
    of: PackedProductArgs,
    partial: *mut f32,
    partial_bytes: i64,
}
const _: () = assert!(size_of::<PackedRowsArgs>() == 120);

/// Mirrors `UnpackArgs` in packed.cu.
#[repr(C)]
struct UnpackArgs {
    w: PackedAddresses,
    rows: *mut u32,
    out: Address,
    first: i32,
    all_rows: i32,
    count: i32,
    dtype: i32,
    scale: f32,
    padding: i32,
}
const _: () = assert!(size_of::<UnpackArgs>() == 112);

unsafe extern "C" {
    fn candlepower_packed_product(args: *const PackedProductArgs, stream: CUstream) -> i32;
    fn candlepower_packed_rows(args: *const PackedRowsArgs, stream: CUstream) -> i32;
    fn candlepower_unpack(args: *const UnpackArgs, stream: CUstream) -> i32;
}
