//! A small HTTP/1.1 client that can misbehave on purpose, with one connection per request.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use super::Socket;

/// A request to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(method: &str, path: &str) -> Self {
        Self { method: method.into(), path: path.into(), headers: Vec::new(), body: Vec::new() }
    }

    pub(crate) fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    /// A POST of JSON.
    pub(crate) fn post(path: &str, body: &Value) -> Self {
        Self::new("POST", path).header("Content-Type", "application/json").body(body.to_string())
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends the request and reads the head of the answer.
    pub(crate) fn open(&self, address: SocketAddr) -> io::Result<ResponseStream> {
        self.open_over(Socket::connect(address, None)?)
    }

    /// The same over an existing connection.
    pub(crate) fn open_over(&self, mut socket: Socket) -> io::Result<ResponseStream> {
        let message = self.message(socket.stream().peer_addr()?, "close");
        // A server that refuses early may stop reading. Its answer still counts.
        let written = socket.write_all(&message).and_then(|()| socket.flush());
        ResponseStream::read_head(socket, &self.method)
            .map_err(|error| written.err().unwrap_or(error))
    }

    /// The bytes of the request, with this `Connection` header.
    pub(crate) fn message(&self, address: SocketAddr, connection: &str) -> Vec<u8> {
        let mut message = format!(
            "{} {} HTTP/1.1\r\nHost: {address}\r\nConnection: {connection}\r\n",
            self.method, self.path
        );
        for (name, value) in &self.headers {
            message += &format!("{name}: {value}\r\n");
        }
        // A POST without a length would be refused before the part that the test is about.
        if !self.body.is_empty() || self.method == "POST" {
            message += &format!("Content-Length: {}\r\n", self.body.len());
        }
        message += "\r\n";
        let mut message = message.into_bytes();
        message.extend_from_slice(&self.body);
        message
    }

    /// Sends the request and reads the whole answer.
    pub(crate) fn send(&self, address: SocketAddr) -> io::Result<Response> {
        self.open(address)?.finish()
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Response {
    /// The value of a header, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The names of its headers, in lower case.
    pub(crate) fn header_names(&self) -> impl Iterator<Item = &str> {
        self.headers.iter().map(|(name, _)| name.as_str())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.body
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.text()))
    }

    /// The JSON of an answer with status 200.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// Checks that this is an error in the common form, and returns its `error` object.
    #[track_caller]
    pub(crate) fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        assert!(
            self.header("content-type").is_some_and(|kind| kind.starts_with("application/json")),
            "{self:?}"
        );
        let body = self.json();
        let keys: Vec<&String> = body.as_object().expect("an object").keys().collect();
        // Anthropic's clients also read `type` at the top level.
        let is_anthropic = body["type"] == "error";
        assert_eq!(
            keys,
            if is_anthropic { vec!["type", "error"] } else { vec!["error"] },
            "{body}"
        );
        let error = &body["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
        assert_eq!(error["type"], expected_type(status), "{body}");
        for key in ["param", "code"] {
            assert!(
                error.get(key).is_some_and(|value| value.is_null() || value.is_string()),
                "{key}: {body}"
            );
        }
        assert!(self.header("x-request-id").is_some_and(|id| !id.is_empty()), "{self:?}");
        error.clone()
    }
}

fn expected_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}

/// An answer whose head was read and whose body still arrives. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct ResponseStream {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    body: BufReader<Body>,
}

impl ResponseStream {
    fn read_head(socket: Socket, method: &str) -> io::Result<Self> {
        let mut reader = BufReader::new(socket);
        let (status, headers) = read_head(&mut reader)?;
        // The answer to HEAD has the length of a body that is not sent.
        let framing =
            if method == "HEAD" { Framing::Left(0) } else { Framing::of(status, &headers) };
        Ok(Self { status, headers, body: BufReader::new(Body { reader, framing }) })
    }

    /// The data of the next server-sent event; `None` at the end of the body.
    pub(crate) fn next_event(&mut self) -> io::Result<Option<String>> {
        loop {
            let mut line = String::new();
            if self.body.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            if let Some(data) = line.strip_prefix("data:") {
                return Ok(Some(data.trim().to_owned()));
            }
        }
    }

    /// The next event as JSON; `None` at `[DONE]`, which must be the end.
    #[track_caller]
    pub(crate) fn next_chunk(&mut self) -> Option<Value> {
        let event = self.next_event().unwrap().expect("the stream ends with [DONE]");
        if event == "[DONE]" {
            assert_eq!(self.next_event().unwrap(), None, "something follows [DONE]");
            return None;
        }
        let chunk: Value =
            serde_json::from_str(&event).unwrap_or_else(|error| panic!("{error}: {event}"));
        assert!(chunk.get("error").is_none(), "{chunk}");
        Some(chunk)
    }

    /// All chunks up to `[DONE]`.
    #[track_caller]
    pub(crate) fn chunks(mut self) -> Vec<Value> {
        assert_eq!(self.status, 200);
        let content_type = self.headers.iter().find(|(name, _)| name == "content-type");
        assert!(
            content_type.is_some_and(|(_, value)| value.starts_with("text/event-stream")),
            "{:?}",
            self.headers
        );
        std::iter::from_fn(|| self.next_chunk()).collect()
    }

    /// The connection of the answer.
    pub(crate) fn socket(&self) -> &Socket {
        self.body.get_ref().reader.get_ref()
    }

    /// Fills the buffer from the body.
    pub(crate) fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.body.read_exact(buffer)
    }

    /// Reads the rest as far as it arrives. Returns the error that ended it, if any.
    pub(crate) fn finish_as_far_as_it_goes(mut self) -> (Vec<u8>, Option<io::Error>) {
        let mut body = Vec::new();
        let error = self.body.read_to_end(&mut body).err();
        (body, error)
    }

    /// Reads the rest.
    pub(crate) fn finish(mut self) -> io::Result<Response> {
        let mut body = Vec::new();
        self.body.read_to_end(&mut body)?;
        Ok(Response { status: self.status, headers: self.headers, body })
    }
}

/// Reads one answer from a connection that may have more.
pub(crate) fn read_response(reader: &mut BufReader<TcpStream>) -> io::Result<Response> {
    let (status, headers) = read_head(reader)?;
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map(|(_, value)| value.parse());
    let length: usize = length.and_then(Result::ok).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Response { status, headers, body })
}

fn read_head(reader: &mut impl BufRead) -> io::Result<(u16, Vec<(String, String)>)> {
    let status_line = read_line(reader)?;
    let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status =
        status.ok_or_else(|| io::Error::other(format!("not a status line: {status_line:?}")))?;
    let mut headers = Vec::new();
    loop {
        let line = read_line(reader)?;
        if line.is_empty() {
            return Ok((status, headers));
        }
        let (name, value) =
            line.split_once(':').ok_or_else(|| io::Error::other("a header without a colon"))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

/// The rule by which a body ends.
#[derive(Debug)]
enum Framing {
    Left(u64),
    /// Bytes left of the current chunk.
    Chunked(u64),
    UntilClose,
}

impl Framing {
    fn of(status: u16, headers: &[(String, String)]) -> Self {
        let header = |name: &str| {
            headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
        };
        match (header("transfer-encoding"), header("content-length")) {
            (Some("chunked"), _) => Self::Chunked(0),
            (_, Some(length)) => Self::Left(length.parse().expect("a length is a number")),
            // 204 has no body and needs no length.
            _ if status == 204 => Self::Left(0),
            _ => Self::UntilClose,
        }
    }
}

#[derive(Debug)]
struct Body {
    reader: BufReader<Socket>,
    framing: Framing,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.framing {
            Framing::UntilClose => self.reader.read(buffer),
            Framing::Left(left) => read_up_to(&mut self.reader, buffer, left),
            Framing::Chunked(left) => {
                if *left == 0 {
                    let line = read_line(&mut self.reader)?;
                    *left = u64::from_str_radix(&line, 16).map_err(io::Error::other)?;
                    if *left == 0 {
                        self.framing = Framing::Left(0);
                        return Ok(0);
                    }
                }
                let read = read_up_to(&mut self.reader, buffer, left)?;
                if *left == 0 {
                    read_line(&mut self.reader)?;
                }
                Ok(read)
            }
        }
    }
}

fn read_up_to(
    reader: &mut BufReader<Socket>,
    buffer: &mut [u8],
    left: &mut u64,
) -> io::Result<usize> {
    let wanted = buffer.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
    let read = reader.read(&mut buffer[..wanted])?;
    if read == 0 && wanted > 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    *left -= read as u64;
    Ok(read)
}
