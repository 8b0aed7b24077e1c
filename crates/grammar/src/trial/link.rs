//! Messages between the server and a child: a length of four bytes, then the bytes.

use std::io::{self, ErrorKind, Read, Write};

/// Maximum bytes of a message. A vocabulary of a million tokens needs a tenth of it.
const MAX_BYTES: usize = 256 << 20;

pub(super) fn write(link: &mut impl Write, message: &[u8]) -> io::Result<()> {
    let len = u32::try_from(message.len()).map_err(|_| ErrorKind::FileTooLarge)?;
    link.write_all(&len.to_le_bytes())?;
    link.write_all(message)?;
    link.flush()
}

/// A message that arrives in parts.
#[derive(Default)]
pub(super) struct Frame {
    bytes: Vec<u8>,
}

impl Frame {
    /// Reads more; true if the message is complete, false at the end of the stream. May be called again after a temporary error.
    pub(super) fn read(&mut self, link: &mut impl Read) -> io::Result<bool> {
        let mut part = [0; 64 << 10];
        loop {
            let missing = match self.len()? {
                None => 4 - self.bytes.len(),
                Some(len) => 4 + len - self.bytes.len(),
            };
            if missing == 0 {
                return Ok(true);
            }
            // No byte of the next message may be read here.
            let most = missing.min(part.len());
            match link.read(&mut part[..most])? {
                0 => return Ok(false),
                count => self.bytes.extend_from_slice(&part[..count]),
            }
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(4..).unwrap_or_default()
    }

    fn len(&self) -> io::Result<Option<usize>> {
        let Some(len) = self.bytes.first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*len) as usize;
        if len > MAX_BYTES { Err(ErrorKind::FileTooLarge.into()) } else { Ok(Some(len)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_in_whatever_parts() {
        let mut sent = Vec::new();
        write(&mut sent, b"first").unwrap();
        write(&mut sent, b"").unwrap();
        let mut rest = sent.as_slice();
        for expected in [&b"first"[..], b""] {
            let mut frame = Frame::default();
            // One byte at a time, with a `WouldBlock` error in between.
            while !matches!(frame.read(&mut (&mut rest).take(1)), Ok(true)) {}
            assert_eq!(frame.bytes(), expected);
        }
        assert!(rest.is_empty());
        assert!(!Frame::default().read(&mut rest).unwrap(), "the link has ended");
    }

    #[test]
    fn a_length_without_bound_is_refused() {
        let error = Frame::default().read(&mut &[0xff; 8][..]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    }
}
