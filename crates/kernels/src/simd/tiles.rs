//! Products of bf16 in tiles, in the order of summation of a CPU's matrix unit.

use super::LANES;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;

/// Words of a row of a tile, which one instruction multiplies.
pub(crate) const TILE_LINE: usize = 16;

/// Operands of one call, which adds to 16 or 32 rows of 32 outputs. Words are two bf16, those of two steps of `k`.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(with_avx512), expect(dead_code, reason = "only a matrix unit reads ahead"))]
pub(crate) struct TileProduct {
    /// Activations `[lines][16 * row_tiles][TILE_LINE]` words.
    pub(crate) x: *const f32,
    /// Weights `[lines][TILE_LINE][32]` words.
    pub(crate) w: *const f32,
    /// Lines of words; at least one.
    pub(crate) lines: usize,
    /// Tiles of rows, 1 or 2.
    pub(crate) row_tiles: usize,
    /// Outputs `[16 * row_tiles][32]`.
    pub(crate) y: *mut f32,
    /// Whether it adds to the present values of the outputs, which may be uninitialised otherwise.
    pub(crate) continues: bool,
    /// Memory to prefetch meanwhile, `ahead_lines` cache lines per line.
    pub(crate) ahead: *const u8,
    /// Cache lines to prefetch per line, at most 64.
    pub(crate) ahead_lines: usize,
}

/// `sum` plus the products of a line of one row of activations and one output. The high halves and the low halves are
/// one chain of fused multiply-adds from zero each. Their sum is added to `sum`.
///
/// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS. It flushes values below
/// 2^-126 to zero.
pub(crate) fn tile_sum(sum: f32, words: impl Iterator<Item = (f32, f32)>) -> f32 {
    let high = |word: f32| f32::from_bits(word.to_bits() & 0xffff_0000);
    let low = |word: f32| f32::from_bits(word.to_bits() << 16);
    let (even, odd) = words.fold((0f32, 0f32), |(even, odd), (x, w)| {
        (high(x).mul_add(high(w), even), low(x).mul_add(low(w), odd))
    });
    sum + (odd + even)
}

/// The reference for [`Simd::tile_product`](super::Simd::tile_product).
///
/// # Safety
/// The pointers of `product` are valid.
pub(super) unsafe fn portable_product(product: &TileProduct) {
    const OUTPUTS: usize = 2 * LANES;
    let TileProduct { x, w, lines, row_tiles, y, continues, .. } = *product;
    let rows = row_tiles * TILE_ROWS;
    for (row, output) in (0..rows).flat_map(|row| (0..OUTPUTS).map(move |output| (row, output))) {
        // SAFETY: each index lies within what the fields describe; outputs are read where they hold something.
        unsafe {
            let y = y.add(row * OUTPUTS + output);
            let begin = if continues { *y } else { 0.0 };
            *y = (0..lines).fold(begin, |sum, line| {
                let x = x.add((line * rows + row) * TILE_LINE);
                let w = w.add(line * TILE_LINE * OUTPUTS + output);
                tile_sum(sum, (0..TILE_LINE).map(|word| (*x.add(word), *w.add(word * OUTPUTS))))
            });
        }
    }
}
