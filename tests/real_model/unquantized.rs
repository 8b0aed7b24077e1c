//! Makes a GGUF file with float16 matrices from one with Q4_1 and Q8_0 matrices. Quantizing on load needs matrices
//! that are not quantized.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use half::f16;

/// Weights of a block.
const BLOCK: usize = 32;
/// GGUF's ids of tensor types.
const F32: u32 = 0;
const F16: u32 = 1;
const Q4_1: u32 = 3;
const Q8_0: u32 = 8;

struct Tensor<'a> {
    name: &'a [u8],
    shape: Vec<u64>,
    kind: u32,
    /// The start of its data, relative to the end of the header.
    offset: usize,
}

/// Writes the file `to`, with the settings and vocabulary of the file `from`.
pub(crate) fn write(from: &Path, to: &Path) {
    let stored = std::fs::read(from).unwrap();
    // The magic number and the version are eight bytes, and then come the numbers of tensors and of settings.
    let mut reader = Reader { bytes: &stored, at: 8 };
    let (tensors, settings) = (reader.u64(), reader.u64());
    for _ in 0..settings {
        reader.string();
        let kind = reader.u32();
        reader.skip_value(kind);
    }
    let settings_end = reader.at;
    let tensors: Vec<Tensor<'_>> = (0..tensors).map(|_| reader.tensor()).collect();
    let data = &stored[aligned(reader.at)..];

    let mut out = BufWriter::new(File::create(to).unwrap());
    out.write_all(&stored[..settings_end]).unwrap();
    let (mut header, mut offset) = (settings_end, 0);
    for tensor in &tensors {
        // Settings may name the old file type, but the server goes by the types of tensors.
        let kind = if tensor.kind == F32 { F32 } else { F16 };
        let mut info = tensor.name.to_vec();
        info.extend((tensor.shape.len() as u32).to_le_bytes());
        info.extend(tensor.shape.iter().flat_map(|length| length.to_le_bytes()));
        info.extend(kind.to_le_bytes());
        info.extend((offset as u64).to_le_bytes());
        out.write_all(&info).unwrap();
        header += info.len();
        offset = aligned(offset + tensor.numbers() * if kind == F32 { 4 } else { 2 });
    }
    // The data begins at a multiple of the alignment.
    out.write_all(&vec![0; aligned(header) - header]).unwrap();
    for tensor in &tensors {
        let numbers = tensor.as_numbers(&data[tensor.offset..]);
        out.write_all(&numbers).unwrap();
        out.write_all(&vec![0; aligned(numbers.len()) - numbers.len()]).unwrap();
    }
    out.flush().unwrap();
}

/// The default alignment of tensors.
fn aligned(offset: usize) -> usize {
    offset.next_multiple_of(32)
}

impl Tensor<'_> {
    fn numbers(&self) -> usize {
        self.shape.iter().product::<u64>() as usize
    }

    /// Vectors unchanged, and matrices in float16.
    fn as_numbers(&self, data: &[u8]) -> Vec<u8> {
        let half = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
        let blocks = self.numbers() / BLOCK;
        let mut numbers = Vec::with_capacity(self.numbers() * 2);
        let mut push = |number: f32| numbers.extend(f16::from_f32(number).to_le_bytes());
        match self.kind {
            F32 => return data[..self.numbers() * 4].to_vec(),
            Q4_1 => {
                // A scale and an offset in float16, and then 16 bytes with two
                // weights each: the low halves are the first 16 weights.
                for block in data.chunks_exact(4 + BLOCK / 2).take(blocks) {
                    let (scale, min) = (half(block), half(&block[2..]));
                    let low = block[4..].iter().map(|byte| byte & 15);
                    let high = block[4..].iter().map(|byte| byte >> 4);
                    low.chain(high).for_each(|code| push(scale * f32::from(code) + min));
                }
            }
            Q8_0 => {
                // A scale in float16, and then 32 signed bytes.
                for block in data.chunks_exact(2 + BLOCK).take(blocks) {
                    let scale = half(block);
                    block[2..].iter().for_each(|code| push(scale * f32::from(*code as i8)));
                }
            }
            other => panic!("type {other} of GGUF is not one of this model's"),
        }
        numbers
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        self.at += count;
        &self.bytes[self.at - count..self.at]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    /// A string with its length before it.
    fn string(&mut self) -> &'a [u8] {
        let first = self.at;
        let length = self.u64() as usize;
        self.take(length);
        &self.bytes[first..self.at]
    }

    fn skip_value(&mut self, kind: u32) {
        match kind {
            // Source: GGUF's specification, `gguf_metadata_value_type`: 0,
            // 1 and 7 are u8, i8 and bool, 8 is a string, 9 an array.
            0 | 1 | 7 => drop(self.take(1)),
            2 | 3 => drop(self.take(2)),
            4..=6 => drop(self.take(4)),
            10..=12 => drop(self.take(8)),
            8 => drop(self.string()),
            9 => {
                let kind = self.u32();
                for _ in 0..self.u64() {
                    self.skip_value(kind);
                }
            }
            other => panic!("GGUF has no type of settings {other}"),
        }
    }

    fn tensor(&mut self) -> Tensor<'a> {
        let name = self.string();
        let dimensions = self.u32();
        let shape = (0..dimensions).map(|_| self.u64()).collect();
        Tensor { name, shape, kind: self.u32(), offset: self.u64() as usize }
    }
}
