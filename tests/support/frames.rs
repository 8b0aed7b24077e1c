//! A small HTTP/2 client that can misbehave on purpose. Source: RFC 9113 and RFC 7541.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use super::Socket;

/// The connection preface.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The kinds of frames that the tests examine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Data = 0,
    Headers = 1,
    Reset = 3,
    Settings = 4,
    Ping = 6,
    GoAway = 7,
    WindowUpdate = 8,
    Continuation = 9,
    Other = 255,
}

impl Kind {
    fn of(byte: u8) -> Self {
        let all = [
            Self::Data,
            Self::Headers,
            Self::Reset,
            Self::Settings,
            Self::Ping,
            Self::GoAway,
            Self::WindowUpdate,
            Self::Continuation,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte).unwrap_or(Self::Other)
    }
}

/// Flags: the last frame of a stream, an acknowledgement, the last frame of a header list.
pub(crate) const END_STREAM: u8 = 1;
const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A received frame.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// The error code of a reset or a GOAWAY.
    #[track_caller]
    pub(crate) fn error_code(&self) -> u32 {
        let at = match self.kind {
            Kind::Reset => 0,
            Kind::GoAway => 4,
            other => panic!("{other:?} has no error code"),
        };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }

    /// The status of an answer. The server writes it as an index of the static table, or as text. A status that
    /// occurs twice on a connection has another index, and is not decoded.
    #[track_caller]
    pub(crate) fn status(&self) -> u16 {
        assert_eq!(self.kind, Kind::Headers);
        const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
        let first = self.payload[0];
        match first {
            // An index of the static table has the highest bit; the entries 8 to 14 are statuses.
            0x88..=0x8e => INDEXED[usize::from(first - 0x88)],
            // A literal, with or without Huffman coding.
            _ => {
                // The highest bit of the length says that the text is Huffman-coded.
                let digits = &self.payload[2..2 + usize::from(self.payload[1] & 0x7f)];
                match self.payload[1] & 0x80 {
                    0 => String::from_utf8_lossy(digits).parse().unwrap(),
                    _ => decode_digits(digits),
                }
            }
        }
    }
}

/// Decodes digits in RFC 7541's Huffman code, in which 0, 1 and 2 have five bits, and the others six.
fn decode_digits(bytes: &[u8]) -> u16 {
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let (mut rest, mut number) = (bits.as_str(), 0);
    // The rest is padding of fewer than eight ones.
    while rest.len() >= 5 {
        let five = u16::from_str_radix(&rest[..5], 2).unwrap();
        let (digit, width) = match five {
            0..=2 => (five, 5),
            _ if rest.len() < 6 => break,
            _ => match u16::from_str_radix(&rest[..6], 2).unwrap() {
                six @ 0x19..=0x1f => (six - 0x19 + 3, 6),
                _ => break,
            },
        };
        number = 10 * number + digit;
        rest = &rest[width..];
    }
    number
}

/// An uncompressed header list.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeaderList(Vec<u8>);

impl HeaderList {
    pub(crate) fn request(method: &str, path: &str) -> Self {
        Self::default()
            .with(":method", method)
            .with(":scheme", "http")
            .with(":authority", "localhost")
            .with(":path", path)
    }

    /// A literal without indexing.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.0.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "longer ones take a number of several bytes");
            self.0.push(text.len() as u8);
            self.0.extend_from_slice(text.as_bytes());
        }
        self
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// An HTTP/2 connection, frame by frame.
pub(crate) struct Frames(Socket);

impl Frames {
    /// Sends the preface and empty settings. The server's answer is not read yet.
    pub(crate) fn new(mut socket: Socket) -> io::Result<Self> {
        socket.write_all(PREFACE)?;
        let mut frames = Self(socket);
        frames.send(Kind::Settings, 0, 0, &[])?;
        Ok(frames)
    }

    pub(crate) fn encode(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        // The length has three bytes.
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([kind as u8, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend_from_slice(payload);
        bytes
    }

    pub(crate) fn send(
        &mut self,
        kind: Kind,
        flags: u8,
        stream: u32,
        payload: &[u8],
    ) -> io::Result<()> {
        self.send_bytes(&Self::encode(kind, flags, stream, payload))
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)?;
        self.0.flush()
    }

    /// Sends a request: its header list, and its body if it has one.
    pub(crate) fn request(
        &mut self,
        stream: u32,
        headers: &HeaderList,
        body: &[u8],
    ) -> io::Result<()> {
        let end = if body.is_empty() { END_STREAM } else { 0 };
        self.send(Kind::Headers, END_HEADERS | end, stream, headers.bytes())?;
        if !body.is_empty() {
            self.send(Kind::Data, END_STREAM, stream, body)?;
        }
        Ok(())
    }

    /// The next frame; `None` at the end of the connection. The server's settings and pings are acknowledged.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        let frame = self.read()?;
        if matches!(frame.kind, Kind::Settings | Kind::Ping) && frame.flags & ACK == 0 {
            let payload: &[u8] = if frame.kind == Kind::Ping { &frame.payload } else { &[] };
            // The server may have closed the connection.
            let _ = self.send(frame.kind, ACK, 0, payload);
        }
        Some(frame)
    }

    /// The next frame of a kind and a stream.
    #[track_caller]
    pub(crate) fn next_of(&mut self, kind: Kind, stream: u32) -> Frame {
        loop {
            let frame =
                self.next().unwrap_or_else(|| panic!("the connection ended before {kind:?}"));
            if frame.kind == kind && frame.stream == stream {
                return frame;
            }
            let is_answer = frame.kind != Kind::GoAway && frame.kind != Kind::Reset;
            assert!(is_answer || kind == frame.kind, "{frame:?} came before {kind:?}");
        }
    }

    /// All frames until the server closes the connection.
    pub(crate) fn read_to_end(&mut self) -> Vec<Frame> {
        std::iter::from_fn(|| self.next()).collect()
    }

    /// The same, without any acknowledgement.
    pub(crate) fn read_to_end_in_silence(&mut self) -> Vec<Frame> {
        std::iter::from_fn(|| self.read()).collect()
    }

    /// The underlying connection.
    pub(crate) fn stream(&self) -> &TcpStream {
        self.0.stream()
    }

    /// The next frame; `None` at the end of the connection.
    fn read(&mut self) -> Option<Frame> {
        match self.try_read() {
            Ok(frame) => Some(frame),
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                panic!("the server leaves the connection open: {error}")
            }
            Err(_) => None,
        }
    }

    fn try_read(&mut self) -> io::Result<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head)?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        self.0.read_exact(&mut payload)?;
        // The highest bit is reserved.
        let stream = u32::from_be_bytes(head[5..9].try_into().unwrap()) & (u32::MAX >> 1);
        Ok(Frame { kind: Kind::of(head[3]), flags: head[4], stream, payload })
    }
}
