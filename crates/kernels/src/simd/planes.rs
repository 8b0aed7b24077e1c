//! How the codes of a pair of steps come from their planes to lanes of 16 bits.

use crate::weight::planes::{place, widths};

/// Lanes of half a panel: two steps of sixteen outputs.
const LANES: usize = 32;

/// What brings the bits of a plane to a place in their lanes.
#[repr(align(64))]
pub(super) struct Spread {
    /// For each lane zero, and its byte of the plane, as shuffles of sixteen bytes have it.
    pub(super) bytes: [u8; 2 * LANES],
    /// The upper half of what these and the bytes are multiplied to has the bits at their place.
    pub(super) factors: [u16; LANES],
}

impl Spread {
    /// For plane `plane` of codes of `bits` bits: what it has of the first half of a panel comes to its place in the codes, what it has of the
    /// second half four bits further up.
    pub(super) const fn of(bits: usize, plane: usize) -> Self {
        let width = widths(bits)[plane];
        let first_bit = if plane == 0 { 0 } else { widths(bits)[0] };
        let mut spread = Self { bytes: [0x80; 2 * LANES], factors: [0; LANES] };
        let mut lane = 0;
        while lane < LANES {
            let (byte, shift) = place(width, lane);
            spread.bytes[2 * lane + 1] = byte as u8;
            spread.factors[lane] = 1 << (8 + first_bit - shift);
            lane += 1;
        }
        spread
    }
}
