//! Codes of two, three, five and six bits: which bits of a pair of steps each has.
//!
//! A pair of steps is two planes one after the other, of the lower bits of all codes and of the upper ones. In registers the codes of
//! sixteen outputs are 32 lanes of 16 bits: output `o` has lane `2 * o` for the odd step and lane `2 * o + 1` for the even one, so that
//! words of both have the even step in the high half, as dot products of bf16 want it. A plane of `width` bits has `8 * width` bytes.
//! Byte `lane % (8 * width)` has the bits of the lane, those of the lanes `8 * width` further on above them, and from bit 4 on the
//! same for the panel's second sixteen outputs. So a lane's bits of both halves come from one byte, four bits apart.

use super::layout::PANEL;

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

/// Where the codes of one column lie in every pair of steps.
pub(super) struct Places {
    /// Of each step the parts of a code, in both planes.
    parts: [[Part; 2]; 2],
}

/// Some bits of a code.
struct Part {
    /// The byte of the pair.
    byte: usize,
    /// The first of its bits.
    shift: usize,
    /// The first of the code's.
    from: usize,
    mask: u8,
}

impl Places {
    /// Those of codes of `bits` bits.
    pub(super) fn new(bits: usize, column: usize) -> Self {
        let widths = widths(bits);
        let part = |step: usize, plane: usize| {
            let (byte, shift) = place_of(widths[plane], step, column);
            Part {
                byte: byte + [0, plane_bytes(widths[0])][plane],
                shift,
                from: [0, widths[0]][plane],
                mask: (1 << widths[plane]) - 1,
            }
        };
        Self { parts: [0, 1].map(|step| [part(step, 0), part(step, 1)]) }
    }

    /// Writes a code where [`code`] reads it.
    pub(super) fn put(&self, pair: &mut [u8], step: usize, code: u8) {
        for Part { byte, shift, from, mask } in &self.parts[step] {
            let others = pair[*byte] & !(mask << shift);
            pair[*byte] = others | (code >> from & mask) << shift;
        }
    }
}
