//! Codes of two, three, five and six bits: which bits of a pair of steps each has.
//!
//! A pair of steps is two planes one after the other, of the lower bits of all codes and of the upper ones. In registers the codes of
//! sixteen outputs are 32 lanes of 16 bits: output `o` has lane `2 * o` for the odd step and lane `2 * o + 1` for the even one, so that
//! words of both have the even step in the high half, as dot products of bf16 want it. A plane of `width` bits has `8 * width` bytes.
//! Byte `lane % (8 * width)` has the bits of the lane, those of the lanes `8 * width` further on above them, and from bit 4 on the
//! same for the panel's second sixteen outputs. So a lane's bits of both halves come from one byte, four bits apart.

use super::PANEL;

/// Outputs that are a vector.
const OUTPUTS: usize = PANEL / 2;

/// How many bits of codes of `bits` bits the first plane has, and the second: powers of two.
pub(crate) const fn widths(bits: usize) -> [usize; 2] {
    match bits {
        2 => [1, 1],
        3 => [2, 1],
        5 => [4, 1],
        6 => [4, 2],
        _ => panic!("codes of so many bits have no planes"),
    }
}

/// Bytes of a plane of `width` bits, and of planes of `width` bits together.
pub(crate) const fn plane_bytes(width: usize) -> usize {
    2 * PANEL * width / 8
}

/// The byte of a plane that has the bits of `lane`, and the first of these bits for the first half of the panel.
pub(crate) const fn place(width: usize, lane: usize) -> (usize, usize) {
    let bytes = plane_bytes(width);
    (lane & (bytes - 1), width * (lane >> bytes.trailing_zeros()))
}

/// As [`place`], of a step of a pair and a column of the panel.
fn place_of(width: usize, step: usize, column: usize) -> (usize, usize) {
    let (byte, shift) = place(width, column % OUTPUTS * 2 + 1 - step);
    (byte, shift + column / OUTPUTS * 4)
}

/// The code of `bits` bits of step `step` (0 or 1) and `column` of a pair of steps.
#[inline(always)]
pub(crate) fn code(bits: usize, pair: &[u8], step: usize, column: usize) -> u8 {
    let widths = widths(bits);
    let (low, high) = pair.split_at(plane_bytes(widths[0]));
    let part = |plane: &[u8], width: usize| {
        let (byte, shift) = place_of(width, step, column);
        plane[byte] >> shift & ((1 << width) - 1)
    };
    part(low, widths[0]) | part(high, widths[1]) << widths[0]
}

/// Writes the codes of `bits` bits of two steps of all columns where [`code`] reads them.
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
    let bits = |code: u8| code >> from & ((1 << WIDTH) - 1);
    for (i, byte) in plane[..bytes].iter_mut().enumerate() {
        *byte = 0;
        for turn in 0..PANEL / bytes {
            let [first, second] = [0, 1].map(|half| bits(lanes[half][i + turn * bytes]));
            *byte |= (first | second << 4) << (turn * WIDTH);
        }
    }
}
