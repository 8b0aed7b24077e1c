//! GGUF: blocks of 32 or 256 codes of one output, each with its scales. Source: `dequantize_row_*` of ggml's
//! `ggml-quants.c`.

use std::ops::Range;

use candlepower_checkpoint::{Blocks, GgufType, Packed, Scheme};
use candlepower_kernels::Codes;
use half::f16;

use super::{Stored, Tensors, codes};
use crate::{error::Result, shards::MappedBytes};

/// A matrix as GGUF stores it.
pub(crate) struct GgufMatrix {
    kind: GgufType,
    packed: Packed,
    k: usize,
    /// The first of the rows that are mapped.
    first_row: usize,
    bytes: MappedBytes,
}

impl GgufMatrix {
    /// Maps the rows `rows`, of which alone codes and scales may be asked for.
    pub(super) fn open(tensors: &Tensors<'_>, kind: GgufType, rows: Range<usize>) -> Result<Self> {
        let (k, first_row) = (tensors.k, rows.start);
        let row_bytes = k / kind.block() * kind.block_bytes();
        let (start, len) = (first_row * row_bytes, rows.len() * row_bytes);
        let bytes = tensors.shards.bytes(tensors.name(0), start, len)?;
        for block in bytes.chunks_exact(kind.block_bytes()) {
            let (scale, min) = factors(kind, block);
            if !scale.is_finite() || !min.is_finite() {
                return Err(tensors.damaged(0, "it has a scale that is infinity or NaN"));
            }
        }
        Ok(Self { kind, packed: Scheme::Gguf(kind).packed(k), k, first_row, bytes })
    }

    /// The block of an output and an input, and the input's place in it.
    fn block(&self, row: usize, input: usize) -> (&[u8], usize) {
        let per_block = self.kind.block();
        let block = (row - self.first_row) * (self.k / per_block) + input / per_block;
        let len = self.kind.block_bytes();
        (&self.bytes[block * len..][..len], input % per_block)
    }

    /// The scale and the minimum of an input's group.
    fn group_of(&self, row: usize, input: usize) -> (f32, f32) {
        let (block, at) = self.block(row, input);
        let (scale, min) = factors(self.kind, block);
        let [scales, mins] = sub_scales(self.kind, block, at / self.packed.group);
        (scale * f32::from(scales), min * f32::from(mins))
    }
}

impl Stored for GgufMatrix {
    fn codes(&self) -> Codes {
        codes(self.packed)
    }

    fn group(&self) -> usize {
        self.packed.group
    }

    fn blocks(&self) -> Option<Blocks> {
        self.packed.blocks()
    }

    fn code(&self, row: usize, input: usize) -> u8 {
        let (block, at) = self.block(row, input);
        code(self.kind, block, at)
    }

    fn codes_from(&self, row: usize, mut input: usize, mut codes: &mut [u8]) {
        while !codes.is_empty() {
            let (block, at) = self.block(row, input);
            let len = codes.len().min(self.kind.block() - at);
            let (of_block, rest) = codes.split_at_mut(len);
            codes_of_block(self.kind, block, at, of_block);
            (input, codes) = (input + len, rest);
        }
    }

    fn scales(&self, row: usize, scales: &mut Vec<f32>, mins: &mut Vec<f32>) {
        let zero = f32::from(self.kind.zero());
        for first in (0..self.k).step_by(self.kind.block()) {
            let (scale, min) = factors(self.kind, self.block(row, first).0);
            scales.push(scale);
            mins.push(if zero == 0.0 { min } else { -zero * scale });
        }
    }

    fn multiples(&self, row: usize, group: usize) -> [i8; 2] {
        let (block, at) = self.block(row, group * self.packed.group);
        sub_scales(self.kind, block, at / self.packed.group)
    }

    /// A zero is positive here, whatever the sign of its scale.
    fn number(&self, row: usize, input: usize) -> f32 {
        let (scale, min) = self.group_of(row, input);
        let steps = i16::from(self.code(row, input)) - i16::from(self.kind.zero());
        scale * f32::from(steps) + min
    }
}

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// What a block's scales and its minima have in common; without minima the second is zero.
fn factors(kind: GgufType, block: &[u8]) -> (f32, f32) {
    match kind {
        GgufType::Q4_1 | GgufType::Q5_1 => (half(block, 0), half(block, 2)),
        GgufType::Q2K => (half(block, 80), -half(block, 82)),
        GgufType::Q3K => (half(block, 108), 0.0),
        GgufType::Q4K | GgufType::Q5K => (half(block, 0), -half(block, 2)),
        GgufType::Q6K => (half(block, 208), 0.0),
        _ => (half(block, 0), 0.0),
    }
}

/// The scale and the minimum of a block's group, in units of the block's factors.
fn sub_scales(kind: GgufType, block: &[u8], group: usize) -> [i8; 2] {
    match kind {
        GgufType::Q2K => [(block[group] & 15) as i8, (block[group] >> 4) as i8],
        GgufType::Q3K => {
            let scales = &block[96..108];
            let low = scales[group % 8] >> (group / 8 * 4) & 15;
            let high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
            [(low | high << 4) as i8 - 32, 0]
        }
        GgufType::Q4K | GgufType::Q5K => {
            let (scales, mins, rest) = (&block[4..8], &block[8..12], &block[12..16]);
            let (scale, min) = match group.checked_sub(4) {
                None => (scales[group] & 63, mins[group] & 63),
                Some(group) => (
                    rest[group] & 15 | scales[group] >> 6 << 4,
                    rest[group] >> 4 | mins[group] >> 6 << 4,
                ),
            };
            [scale as i8, min as i8]
        }
        GgufType::Q6K => [block[192 + group] as i8, 0],
        _ => [1, 1],
    }
}

/// The codes from a place in a block on: for each type a loop of its own, which finds the type once.
fn codes_of_block(kind: GgufType, block: &[u8], first: usize, codes: &mut [u8]) {
    macro_rules! of_type {
        ($($kind:ident)*) => {
            match kind {
                $(GgufType::$kind => {
                    for (at, found) in (first..).zip(codes) {
                        *found = code(GgufType::$kind, block, at);
                    }
                })*
            }
        };
    }
    of_type!(F32 F16 Bf16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2K Q3K Q4K Q5K Q6K);
}

/// The code at a place in a block.
#[inline(always)]
fn code(kind: GgufType, block: &[u8], at: usize) -> u8 {
    // Of 32 codes those of the first half lie in the low bits of sixteen bytes.
    let nibble = |codes: &[u8]| codes[at % 16] >> (at / 16 * 4) & 15;
    // Of 64 codes those of the first half lie in the low bits of 32 bytes.
    let long_nibble = |codes: &[u8]| codes[at / 64 * 32 + at % 32] >> (at / 32 % 2 * 4) & 15;
    // Of 128 codes the first quarter lies in the lowest bits of 32 bytes.
    let pair = |codes: &[u8]| codes[at / 128 * 32 + at % 32] >> (at / 32 % 4 * 2) & 3;
    // Bit `at / 32` of 32 bytes.
    let bit = |bits: &[u8]| bits[at % 32] >> (at / 32) & 1;
    match kind {
        GgufType::Q4_0 => nibble(&block[2..]),
        GgufType::Q4_1 => nibble(&block[4..]),
        GgufType::Q5_0 => nibble(&block[6..]) | (block[2 + at / 8] >> (at % 8) & 1) << 4,
        GgufType::Q5_1 => nibble(&block[8..]) | (block[4 + at / 8] >> (at % 8) & 1) << 4,
        // Signed; 128 more is none.
        GgufType::Q8_0 => block[2 + at] ^ 0x80,
        GgufType::Q2K => pair(&block[16..]),
        GgufType::Q3K => pair(&block[32..]) | bit(block) << 2,
        GgufType::Q4K => long_nibble(&block[16..]),
        GgufType::Q5K => long_nibble(&block[48..]) | bit(&block[16..]) << 4,
        GgufType::Q6K => {
            let low = block[at / 128 * 64 + at % 64] >> (at / 64 % 2 * 4) & 15;
            low | pair(&block[128..]) << 4
        }
        GgufType::F32 | GgufType::F16 | GgufType::Bf16 => unreachable!("plain types have no codes"),
    }
}
