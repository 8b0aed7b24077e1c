//! GGUF: blocks of 32 or super-blocks of 256 quantized weights of one output, each with its scales. Source: `dequantize_row_*` of ggml's
//! `ggml-quants.c`.

use std::ops::Range;

use candlepower_checkpoint::{GgufType, Packed};
use half::f16;
use rayon::prelude::*;

use super::{Stored, Tensors, e2m1};
use crate::{error::Result, shards::MappedBytes};

/// A matrix as GGUF stores it.
pub(crate) struct GgufMatrix {
    kind: GgufType,
    packed: Packed,
    /// Quantized weights of a block, and its bytes.
    block_len: usize,
    block_bytes: usize,
    /// Blocks of a row.
    row_blocks: usize,
    /// The first of the rows that are mapped.
    first_row: usize,
    bytes: MappedBytes,
}

impl GgufMatrix {
    /// Maps the rows `rows`, for reads of these rows alone.
    pub(super) fn open(
        tensors: &Tensors<'_>,
        kind: GgufType,
        packed: Packed,
        rows: Range<usize>,
    ) -> Result<Self> {
        let (block_len, block_bytes, first_row) = (kind.block(), kind.block_bytes(), rows.start);
        let row_blocks = tensors.k / block_len;
        let row_bytes = row_blocks * block_bytes;
        let (start, len) = (first_row * row_bytes, rows.len() * row_bytes);
        let bytes = tensors.shards.bytes(tensors.name(0), start, len)?;
        let is_finite = |block: &[u8]| {
            let (scale, min) = factors(kind, block);
            scale.is_finite() && min.is_finite()
        };
        if !bytes
            .par_chunks_exact(row_bytes)
            .all(|row| row.chunks_exact(block_bytes).all(is_finite))
        {
            return Err(tensors.damaged(0, "it has a scale that is infinity or NaN"));
        }
        Ok(Self { kind, packed, block_len, block_bytes, row_blocks, first_row, bytes })
    }

    /// An output's block.
    fn block(&self, row: usize, index: usize) -> &[u8] {
        let block = (row - self.first_row) * self.row_blocks + index;
        &self.bytes[block * self.block_bytes..][..self.block_bytes]
    }

    /// The block of an output and an input, and the input's index in it.
    fn place(&self, row: usize, input: usize) -> (&[u8], usize) {
        (self.block(row, input / self.block_len), input % self.block_len)
    }

    /// The scale and the offset of an input's group.
    fn group_of(&self, row: usize, input: usize) -> (f32, f32) {
        let (block, at) = self.place(row, input);
        let (scale, min) = factors(self.kind, block);
        let [scales, offsets] = sub_scales(self.kind, block, at / self.packed.group);
        (scale * f32::from(scales), min * f32::from(offsets))
    }
}

impl Stored for GgufMatrix {
    fn packed(&self) -> Packed {
        self.packed
    }

    fn quant(&self, row: usize, input: usize) -> u8 {
        let (block, at) = self.place(row, input);
        let mut quant = [0];
        quants_of_block(self.kind, block, at, &mut quant);
        quant[0]
    }

    fn quants_from(&self, row: usize, mut input: usize, mut quants: &mut [u8]) {
        while !quants.is_empty() {
            let (block, at) = self.place(row, input);
            let len = quants.len().min(self.block_len - at);
            let (of_block, rest) = quants.split_at_mut(len);
            quants_of_block(self.kind, block, at, of_block);
            (input, quants) = (input + len, rest);
        }
    }

    fn scale(&self, row: usize, block: usize) -> f32 {
        factors(self.kind, self.block(row, block)).0
    }

    fn min(&self, row: usize, block: usize) -> f32 {
        factors(self.kind, self.block(row, block)).1
    }

    fn sub_scales(&self, row: usize, group: usize) -> [i8; 2] {
        let (block, at) = self.place(row, group * self.packed.group);
        sub_scales(self.kind, block, at / self.packed.group)
    }

    /// A zero is positive here, whatever the sign of its scale.
    fn value(&self, row: usize, input: usize) -> f32 {
        let (scale, min) = self.group_of(row, input);
        let quant = self.quant(row, input);
        let number = match self.kind {
            GgufType::Mxfp4 => e2m1::e2m1(quant),
            GgufType::Iq4Nl | GgufType::Iq4Xs => IQ4[usize::from(quant)],
            kind => f32::from(i16::from(quant) - i16::from(kind.zero_point().unwrap_or(0))),
        };
        scale * number + min
    }
}

/// The values of `kvalues_iq4nl`.
const IQ4: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The scale and the offset of a block, which sub-scales multiply; the second is zero where the type has no offsets.
fn factors(kind: GgufType, block: &[u8]) -> (f32, f32) {
    match kind {
        GgufType::Q4_1 | GgufType::Q5_1 => (half(block, 0), half(block, 2)),
        GgufType::Mxfp4 => (e2m1::power_of_two(block[0]), 0.0),
        // Q2_K has 16 bytes of sub-scales and 64 of quantized weights before its factors. Its offset is subtracted.
        GgufType::Q2K => (half(block, 80), -half(block, 82)),
        GgufType::Q3K => (half(block, 108), 0.0),
        GgufType::Q4K | GgufType::Q5K => (half(block, 0), -half(block, 2)),
        GgufType::Q6K => (half(block, 208), 0.0),
        _ => (half(block, 0), 0.0),
    }
}

/// The sub-scales of a block's group: the factors on the block's scale and on its offset.
fn sub_scales(kind: GgufType, block: &[u8], group: usize) -> [i8; 2] {
    match kind {
        GgufType::Q2K => [(block[group] & 15) as i8, (block[group] >> 4) as i8],
        GgufType::Q3K => {
            // Twelve bytes have 16 sub-scales of six bits: the low four
            // bits lie in eight bytes, the high two in the last four.
            let scales = &block[96..108];
            let low = scales[group % 8] >> (group / 8 * 4) & 15;
            let high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
            [(low | high << 4) as i8 - 32, 0]
        }
        GgufType::Q4K | GgufType::Q5K => {
            // Eight sub-scales and eight sub-offsets of six bits lie in twelve bytes. The low four bits of
            // the last four of each lie in `rest`, and their high two bits above those of the first four.
            let (scales, offsets, rest) = (&block[4..8], &block[8..12], &block[12..16]);
            let (scale, min) = match group.checked_sub(4) {
                None => (scales[group] & 63, offsets[group] & 63),
                Some(group) => (
                    rest[group] & 15 | scales[group] >> 6 << 4,
                    rest[group] >> 4 | offsets[group] >> 6 << 4,
                ),
            };
            [scale as i8, min as i8]
        }
        GgufType::Q6K => [block[192 + group] as i8, 0],
        GgufType::Iq4Xs => {
            // The high two bits of eight sub-scales are one word, and the low four bits lie in pairs.
            let (high, low) = (&block[2..4], &block[4..8]);
            let low = low[group / 2] >> (group % 2 * 4) & 15;
            let high = high[group / 4] >> (group % 4 * 2) & 3;
            [(low | high << 4) as i8 - 32, 0]
        }
        _ => [1, 1],
    }
}

/// Quantized weights that are unpacked alike: in every type, sixteen of them come from consecutive bytes, at the same bits.
const ALIKE: usize = 16;

/// The quantized weights of a block, from the `first` on. Each type has a loop of its own, so the type is matched once.
fn quants_of_block(kind: GgufType, block: &[u8], first: usize, quants: &mut [u8]) {
    macro_rules! of_type {
        ($($kind:ident)*) => {
            match kind {
                $(GgufType::$kind => {
                    let mut at = first;
                    let mut quants = quants;
                    while !quants.is_empty() {
                        let found = quants_alike(GgufType::$kind, block, at / ALIKE);
                        let found = &found[at % ALIKE..];
                        let (these, rest) = quants.split_at_mut(quants.len().min(found.len()));
                        these.copy_from_slice(&found[..these.len()]);
                        (at, quants) = (at + these.len(), rest);
                    }
                })*
            }
        };
    }
    of_type!(F32 F16 Bf16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Mxfp4 Iq4Nl Iq4Xs Q2K Q3K Q4K Q5K Q6K);
}

/// The `part`-th sixteen quantized weights of a block.
#[inline(always)]
fn quants_alike(kind: GgufType, block: &[u8], part: usize) -> [u8; ALIKE] {
    let bits = |at: usize, shift: usize, mask: u8| -> [u8; ALIKE] {
        let bytes = block[at..].first_chunk::<ALIKE>().expect("a block has bytes for its weights");
        bytes.map(|byte| byte >> shift & mask)
    };
    let join = |low: [u8; ALIKE], high: [u8; ALIKE], shift: usize| -> [u8; ALIKE] {
        std::array::from_fn(|i| low[i] | high[i] << shift)
    };
    // 32 weights in sixteen bytes: the first half lies in the low bits.
    let nibble = |at: usize| bits(at, part * 4, 15);
    // 64 weights in 32 bytes: the first half lies in the low bits.
    let long_nibble = |at: usize| bits(at + part / 4 * 32 + part % 2 * 16, part / 2 % 2 * 4, 15);
    // 128 weights in 32 bytes: the first quarter lies in the lowest bits.
    let pair = |at: usize| bits(at + part / 8 * 32 + part % 2 * 16, part / 2 % 4 * 2, 3);
    // 32 weights have one bit each in 32 bytes, and the next 32 weights the next bit.
    let bit = |at: usize| bits(at + part % 2 * 16, part / 2, 1);
    // A bit for each of 32 weights, in four bytes.
    let own_bit = |at: usize| -> [u8; ALIKE] {
        std::array::from_fn(|i| block[at + part * 2 + i / 8] >> (i % 8) & 1)
    };
    match kind {
        GgufType::Mxfp4 => nibble(1),
        GgufType::Q4_0 | GgufType::Iq4Nl => nibble(2),
        // 32 weights each, like a block of its own.
        GgufType::Iq4Xs => bits(8 + part / 2 * 16, part % 2 * 4, 15),
        GgufType::Q4_1 => nibble(4),
        GgufType::Q5_0 => join(nibble(6), own_bit(2), 4),
        GgufType::Q5_1 => join(nibble(8), own_bit(4), 4),
        // Signed bytes; 128 more is unsigned.
        GgufType::Q8_0 => bits(2 + part * 16, 0, 255).map(|quant| quant ^ 0x80),
        GgufType::Q2K => pair(16),
        GgufType::Q3K => join(pair(32), bit(0), 2),
        GgufType::Q4K => long_nibble(16),
        GgufType::Q5K => join(long_nibble(48), bit(16), 4),
        GgufType::Q6K => {
            // 128 weights have their low bits in 64 bytes: the first 64 weights in the low half of each.
            let low = bits(part / 8 * 64 + part % 4 * 16, part / 4 % 2 * 4, 15);
            join(low, pair(128), 4)
        }
        GgufType::F32 | GgufType::F16 | GgufType::Bf16 => {
            unreachable!("plain types are not quantized")
        }
    }
}
