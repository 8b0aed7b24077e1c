//! How the codes of a pair of steps come from their planes to lanes of 16 bits: a shuffle brings each lane its byte, and a shift the
//! bits of it to their place.

use crate::weight::planes::{place, widths};

/// Words of 32 bits, of two lanes each, of half a panel: both steps of sixteen outputs.
const WORDS: usize = 16;

/// What brings the bits of a plane to their place in lanes.
#[repr(align(64))]
pub(super) struct Spread {
    /// For each lane zero, and its byte of the plane as the upper one, as shuffles of sixteen bytes have it.
    pub(super) bytes: [u8; 4 * WORDS],
    /// How far each word is shifted to the right. What then comes from its upper lane to the lower one is above the lower one's bits.
    pub(super) shifts: [u32; WORDS],
}

impl Spread {
    /// For plane `plane` of codes of `bits` bits: what it has of the first half of a panel comes to its place in the codes, what it has of the
    /// second half four bits further up.
    pub(super) const fn of(bits: usize, plane: usize) -> Self {
        let width = widths(bits)[plane];
        let first_bit = if plane == 0 { 0 } else { widths(bits)[0] };
        let mut spread = Self { bytes: [0x80; 4 * WORDS], shifts: [0; WORDS] };
        let mut word = 0;
        while word < WORDS {
            let [(low, shift), (high, of_high)] =
                [place(width, 2 * word), place(width, 2 * word + 1)];
            assert!(shift == of_high, "both lanes of a word are shifted alike");
            spread.bytes[4 * word + 1] = low as u8;
            spread.bytes[4 * word + 3] = high as u8;
            spread.shifts[word] = (8 - first_bit + shift) as u32;
            word += 1;
        }
        spread
    }
}
