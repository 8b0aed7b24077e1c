//! The header of a GGUF file: its metadata and where its tensors lie. No count in it is believed beyond the bytes that
//! are there. Source: ggml's `docs/gguf.md`, versions 2 and 3.

use std::io::{self, Read};

use serde_json::{Map, Value};

use super::GgufType;
use crate::error::{Error, Result};

pub(super) const MAGIC: [u8; 4] = *b"GGUF";
/// Alignment if no other is written.
const ALIGNMENT: u64 = 32;
/// Beyond any model: bytes of a header, entries of all its lists together, tensors, dimensions of one.
// The counts of a file size allocations, so they are bounded before anything is allocated.
const MAX_BYTES: u64 = 256 << 20;
const MAX_ENTRIES: u64 = 4 << 20;
const MAX_TENSORS: u64 = 1 << 20;
const MAX_DIMENSIONS: u32 = 4;
// Each level is a call of its own, so the depth bounds the stack.
/// Lists of lists of lists.
const MAX_DEPTH: usize = 3;

/// The header of a file.
#[derive(Debug)]
pub(super) struct Header {
    /// Keys and values; values that are not finite are text.
    pub(super) metadata: Map<String, Value>,
    /// Names and places, in the file's order.
    pub(super) tensors: Vec<(String, Place)>,
}

/// A tensor in a file.
#[derive(Debug)]
pub(super) struct Place {
    /// Type of its values.
    pub(super) kind: GgufType,
    /// `[rows, columns]`, or `[rows]` of a vector.
    pub(super) shape: Vec<usize>,
    /// Start of its bytes in the file.
    pub(super) offset: u64,
    /// Number of bytes.
    pub(super) num_bytes: u64,
}

impl Header {
    /// Reads the header of the file called `name`, of `len` bytes.
    pub(super) fn read(name: &str, input: impl Read, len: u64) -> Result<Self> {
        let mut reader = Reader { file: name, input, position: 0, len, entries: 0 };
        let header = reader.header();
        header.map_err(|fault| match fault {
            Fault::Read(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                damaged(name, "it ends within its header")
            }
            Fault::Read(source) => Error::Io { path: name.into(), source },
            Fault::Damaged(reason) => damaged(name, &reason),
            Fault::Other(error) => error,
        })
    }
}

fn damaged(file: &str, reason: &str) -> Error {
    Error::Gguf { file: file.to_owned(), reason: reason.to_owned() }
}

/// Reason why a header cannot be read.
enum Fault {
    Read(io::Error),
    Damaged(String),
    Other(Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

type Parsed<T> = std::result::Result<T, Fault>;

fn fault<T>(reason: impl Into<String>) -> Parsed<T> {
    Err(Fault::Damaged(reason.into()))
}

struct Reader<'a, R> {
    file: &'a str,
    input: R,
    position: u64,
    /// Bytes of the file.
    len: u64,
    /// Entries of all lists so far.
    entries: u64,
}

impl<R: Read> Reader<'_, R> {
    fn header(&mut self) -> Parsed<Header> {
        match self.bytes::<4>()? {
            MAGIC => {}
            // The beginning of git-lfs's pointers.
            start if start == *b"vers" => {
                return Err(Fault::Other(Error::LfsPointer { path: self.file.into() }));
            }
            _ => return fault("it does not begin with GGUF"),
        }
        match self.u32()? {
            2 | 3 => {}
            // A big-endian file has its small version number in the highest byte.
            version if version.swap_bytes() < 256 => {
                return self.unusable("it is written for machines of the other byte order");
            }
            version => {
                return self
                    .unusable(&format!("its GGUF version is {version}, and 2 and 3 are read"));
            }
        }
        let num_tensors = self.u64()?;
        let num_values = self.u64()?;
        // A tensor's entry has at least 24 bytes (length of the name,
        // number of dimensions, type, offset), and a key with its type 12.
        if num_tensors > MAX_TENSORS.min(self.left() / 24) || num_values > self.left() / 12 {
            return fault(format!("it promises {num_tensors} tensors and {num_values} values"));
        }
        let mut metadata = Map::new();
        for _ in 0..num_values {
            let key = self.string("a key")?;
            let kind = self.u32()?;
            let value = self.value(&key, kind, 0)?;
            if metadata.insert(key.clone(), value).is_some() {
                return fault(format!("`{key:.80}` is written twice"));
            }
        }
        let alignment = match metadata.get("general.alignment") {
            None => ALIGNMENT,
            Some(value) => match value.as_u64() {
                Some(value) if value.is_power_of_two() && value <= 1 << 20 => value,
                _ => return fault(format!("`general.alignment` is {:.40}", value.to_string())),
            },
        };
        let mut tensors = Vec::new();
        for _ in 0..num_tensors {
            tensors.push(self.tensor()?);
        }
        // The tensors' data begin behind the padding, and offsets in the entries count from there.
        let data = self.position.next_multiple_of(alignment);
        for (name, place) in &mut tensors {
            let end = data.checked_add(place.offset).and_then(|at| at.checked_add(place.num_bytes));
            if !place.offset.is_multiple_of(alignment) || end.is_none_or(|end| end > self.len) {
                return fault(format!("tensor {name:.80} lies beyond its {} bytes", self.len));
            }
            place.offset += data;
        }
        Ok(Header { metadata, tensors })
    }

    /// Fails where the file is as it was written.
    fn unusable<T>(&self, reason: &str) -> Parsed<T> {
        let (file, reason) = (self.file.to_owned(), reason.to_owned());
        Err(Fault::Other(Error::GgufContents { file, reason }))
    }

    fn tensor(&mut self) -> Parsed<(String, Place)> {
        let name = self.string("a tensor's name")?;
        let dimensions = self.u32()?;
        if dimensions == 0 || dimensions > MAX_DIMENSIONS {
            return fault(format!("tensor {name:.80} has {dimensions} dimensions"));
        }
        // The innermost dimension comes first.
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            // A dimension beyond `usize` becomes the largest one, so that
            // the checked products below overflow and refuse it.
            shape.push(usize::try_from(self.u64()?).unwrap_or(usize::MAX));
        }
        let kind = self.u32()?;
        let offset = self.u64()?;
        let kind = GgufType::of(kind).map_err(|found| {
            Fault::Other(Error::GgufTensorType {
                file: self.file.to_owned(),
                tensor: name.chars().take(80).collect(),
                found,
                served: GgufType::names(),
            })
        })?;
        let blocks = shape[0].is_multiple_of(kind.block()).then_some(shape[0] / kind.block());
        let bytes = blocks.and_then(|blocks| {
            let rows = shape[1..].iter().try_fold(blocks, |all, n| all.checked_mul(*n))?;
            // An empty tensor is refused here, so that no later division meets a zero.
            rows.checked_mul(kind.block_bytes()).filter(|bytes| *bytes > 0)
        });
        let Some(num_bytes) = bytes else {
            let kind = kind.as_str();
            return fault(format!("tensor {name:.80} of {kind} has the dimensions {shape:?}"));
        };
        shape.reverse();
        // Matrices of experts are one tensor, one behind the other.
        if let [outer @ .., columns] = shape.as_slice()
            && outer.len() > 1
        {
            shape = vec![outer.iter().product(), *columns];
        }
        Ok((name, Place { kind, shape, offset, num_bytes: num_bytes as u64 }))
    }

    /// A value of the type `kind`, within `depth` lists.
    fn value(&mut self, key: &str, kind: u32, depth: usize) -> Parsed<Value> {
        Ok(match kind {
            // The numbers of types are those of `gguf_metadata_value_type` in the specification.
            0 => self.bytes::<1>()?[0].into(),
            1 => i8::from_le_bytes(self.bytes()?).into(),
            2 => u16::from_le_bytes(self.bytes()?).into(),
            3 => i16::from_le_bytes(self.bytes()?).into(),
            4 => self.u32()?.into(),
            5 => i32::from_le_bytes(self.bytes()?).into(),
            6 => float(f32::from_le_bytes(self.bytes()?).to_string()),
            7 => match self.bytes::<1>()?[0] {
                0 => false.into(),
                1 => true.into(),
                other => return fault(format!("`{key:.80}` is {other}, not true or false")),
            },
            8 => self.string(key)?.into(),
            9 => self.list(key, depth)?,
            10 => self.u64()?.into(),
            11 => i64::from_le_bytes(self.bytes()?).into(),
            12 => float(f64::from_le_bytes(self.bytes()?).to_string()),
            other => return fault(format!("`{key:.80}` has a value of type {other}")),
        })
    }

    fn list(&mut self, key: &str, depth: usize) -> Parsed<Value> {
        let kind = self.u32()?;
        let count = self.u64()?;
        // The fewest bytes of a value of each type.
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            // A list within a list has its type and its count before its entries.
            9 => 12,
            _ => 8,
        };
        self.entries = self.entries.saturating_add(count);
        if count > self.left() / least || self.entries > MAX_ENTRIES || depth == MAX_DEPTH {
            return fault(format!("`{key:.80}` promises {count} entries"));
        }
        // The count was compared with the remaining bytes above, so a
        // hostile one cannot demand more memory than the file's size allows.
        let mut values = Vec::with_capacity(count as usize);
        for _ in 0..count {
            values.push(self.value(key, kind, depth + 1)?);
        }
        Ok(values.into())
    }

    fn string(&mut self, what: &str) -> Parsed<String> {
        let len = self.u64()?;
        if len > self.left() {
            return fault(format!("the text of {what:.80} promises {len} bytes"));
        }
        let mut bytes = vec![0; len as usize];
        self.input.read_exact(&mut bytes)?;
        self.position += len;
        match String::from_utf8(bytes) {
            Ok(text) => Ok(text),
            Err(_) => fault(format!("the text of {what:.80} is not UTF-8")),
        }
    }

    /// Bytes that a header may still have.
    fn left(&self) -> u64 {
        self.len.min(MAX_BYTES).saturating_sub(self.position)
    }

    fn bytes<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes)?;
        self.position += N as u64;
        Ok(bytes)
    }

    fn u32(&mut self) -> Parsed<u32> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Parsed<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }
}

/// A number by its shortest decimal digits: 1e-5 in single precision is the 1e-5 of the model's own configuration.
fn float(digits: String) -> Value {
    let number: Option<f64> = digits.parse().ok().filter(|number: &f64| number.is_finite());
    number.map_or(Value::String(digits), Value::from)
}
