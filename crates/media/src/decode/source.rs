//! The encoded bytes as a reader that fails when the deadline has passed.

use std::io::{BufRead, Error, ErrorKind, Read, Result, Seek, SeekFrom};

use crate::Deadline;

/// Reads between two looks at the clock. A decoder reads a few bytes at a time.
const READS_PER_CHECK: u32 = 4096;

/// Encoded bytes as a reader that fails when the deadline has passed.
pub(super) struct Source<'a> {
    bytes: &'a [u8],
    at: usize,
    deadline: &'a Deadline,
    reads: u32,
    is_late: bool,
}

impl<'a> Source<'a> {
    pub(super) fn new(bytes: &'a [u8], deadline: &'a Deadline) -> Self {
        Self { bytes, at: 0, deadline, reads: 0, is_late: false }
    }

    /// All encoded bytes.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(super) fn deadline(&self) -> &'a Deadline {
        self.deadline
    }

    /// The same reader over other bytes.
    pub(super) fn over<'b>(&self, bytes: &'b [u8]) -> Source<'b>
    where
        'a: 'b,
    {
        Source::new(bytes, self.deadline)
    }

    fn rest(&mut self) -> Result<&'a [u8]> {
        self.reads = self.reads.wrapping_add(1);
        if self.reads.is_multiple_of(READS_PER_CHECK) && self.deadline.check().is_err() {
            self.is_late = true;
        }
        if self.is_late {
            return Err(Error::from(ErrorKind::TimedOut));
        }
        Ok(self.bytes.get(self.at..).unwrap_or_default())
    }
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let rest = self.rest()?;
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        self.at += len;
        Ok(len)
    }
}

impl BufRead for Source<'_> {
    fn fill_buf(&mut self) -> Result<&[u8]> {
        self.rest()
    }

    fn consume(&mut self, amount: usize) {
        self.at = self.at.saturating_add(amount);
    }
}

impl Seek for Source<'_> {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let (base, offset) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::End(offset) => (self.bytes.len() as u64, offset),
            SeekFrom::Current(offset) => (self.at as u64, offset),
        };
        let at = base.checked_add_signed(offset).and_then(|at| usize::try_from(at).ok());
        self.at = at.ok_or(ErrorKind::InvalidInput)?;
        Ok(self.at as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn reads_and_seeks_like_a_cursor() {
        let deadline = Deadline::default();
        let mut source = Source::new(b"0123456789", &deadline);
        let mut four = [0; 4];
        source.read_exact(&mut four).unwrap();
        assert_eq!((&four, source.stream_position().unwrap()), (b"0123", 4));
        source.seek(SeekFrom::End(-2)).unwrap();
        assert_eq!(source.read(&mut four).unwrap(), 2);
        source.seek(SeekFrom::Start(1 << 40)).unwrap();
        assert_eq!(source.read(&mut four).unwrap(), 0);
        assert!(source.seek(SeekFrom::Current(-(1 << 41))).is_err());
    }

    #[test]
    fn reading_fails_after_the_deadline() {
        let deadline = Deadline::after(Duration::ZERO);
        let mut source = Source::new(b"0123456789", &deadline);
        let failed = (0..=READS_PER_CHECK).find_map(|_| source.read(&mut [0]).err());
        assert_eq!(failed.map(|error| error.kind()), Some(ErrorKind::TimedOut));
        assert!(source.read(&mut [0]).is_err(), "and goes on failing");
    }
}
