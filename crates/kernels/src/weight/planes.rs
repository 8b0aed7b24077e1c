//! Bit planes: the order of quantized weights of two, three, five and six bits in a pair of steps.
//!
//! The bits are split into two planes whose widths are powers of two, so that a lane's bits of one plane never cross
//! a byte. First come the lower bits of all quantized weights of a pair of steps, and then the upper ones.
//!
//! In registers the quantized weights of sixteen outputs are 32 lanes of 16 bits. Output `o` has lane `2 * o` for the
//! odd step and lane `2 * o + 1` for the even one. So a word of both has the even step in its high half, where dot
//! products of bf16 expect it.
//!
//! A plane of `width` bits has `8 * width` bytes. The byte `lane % (8 * width)` has the bits of that lane in its
//! lowest bits, and above them those of the lanes `8 * width` further on. From bit 4 on it has the same lanes of the
//! panel's second sixteen outputs. So one byte has a lane's bits of both halves, four bits apart.

use super::PANEL;

/// Outputs of one vector.
const OUTPUTS: usize = PANEL / 2;

/// Bits of the first and of the second plane for quantized weights of `bits` bits: powers of two.
pub(crate) const fn widths(bits: usize) -> [usize; 2] {
    match bits {
        2 => [1, 1],
        3 => [2, 1],
        5 => [4, 1],
        6 => [4, 2],
        _ => panic!("quantized weights of this width have no planes"),
    }
}

/// Bytes of one plane of `width` bits, and also of all planes whose widths add up to `width`.
pub(crate) const fn plane_bytes(width: usize) -> usize {
    2 * PANEL * width / 8
}

/// Byte of a plane that has the bits of `lane`, and the lowest of these bits for the first half of the panel.
pub(crate) const fn place(width: usize, lane: usize) -> (usize, usize) {
    let bytes = plane_bytes(width);
    // The number of bytes is a power of two, so a mask and a shift divide by it.
    (lane & (bytes - 1), width * (lane >> bytes.trailing_zeros()))
}

/// [`place`] for a step of a pair and a column of the panel.
fn place_of(width: usize, step: usize, column: usize) -> (usize, usize) {
    let (byte, shift) = place(width, column % OUTPUTS * 2 + 1 - step);
    (byte, shift + column / OUTPUTS * 4)
}

/// The quantized weight of `bits` bits at step `step` (0 or 1) and `column` of a pair of steps.
#[inline(always)]
pub(crate) fn quant(bits: usize, pair: &[u8], step: usize, column: usize) -> u8 {
    let widths = widths(bits);
    let (low, high) = pair.split_at(plane_bytes(widths[0]));
    let part = |plane: &[u8], width: usize| {
        let (byte, shift) = place_of(width, step, column);
        plane[byte] >> shift & ((1 << width) - 1)
    };
    part(low, widths[0]) | part(high, widths[1]) << widths[0]
}

/// Writes the quantized weights of two steps of all columns, `bits` bits each, in the order in which [`quant`] reads
/// them.
#[inline(always)]
pub(super) fn pack(bits: usize, pair: &mut [u8], [even, odd]: &[[u8; PANEL]; 2]) {
    let mut lanes = [[0u8; PANEL]; 2];
    for (half, lanes) in lanes.iter_mut().enumerate() {
        for output in 0..OUTPUTS {
            lanes[2 * output] = odd[half * OUTPUTS + output];
            lanes[2 * output + 1] = even[half * OUTPUTS + output];
        }
    }
    let mut plane = pair;
    let mut from = 0;
    for width in widths(bits) {
        let (this, next) = plane.split_at_mut(plane_bytes(width));
        match width {
            1 => pack_plane::<1>(this, from, &lanes),
            2 => pack_plane::<2>(this, from, &lanes),
            _ => pack_plane::<4>(this, from, &lanes),
        }
        (plane, from) = (next, from + width);
    }
}

/// Writes a plane of `WIDTH` bits: those of each lane from bit `from` on.
#[inline(always)]
fn pack_plane<const WIDTH: usize>(plane: &mut [u8], from: usize, lanes: &[[u8; PANEL]; 2]) {
    let bytes = plane_bytes(WIDTH);
    let bits = |quant: u8| quant >> from & ((1 << WIDTH) - 1);
    for (i, byte) in plane[..bytes].iter_mut().enumerate() {
        *byte = 0;
        for turn in 0..PANEL / bytes {
            let [first, second] = [0, 1].map(|half| bits(lanes[half][i + turn * bytes]));
            *byte |= (first | second << 4) << (turn * WIDTH);
        }
    }
}
