//! The HTTP client for servers with OpenAI's API, of `bench serve`, `chat` and `top`.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

use anyhow::{Context, Result, anyhow, bail};
use candlepower_client::tls::{Identity, Trust, client_config};
use clap::Args;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, ClientBuilder, RequestBuilder, Response, StatusCode, Url};
use rustls::InvalidMessage;
use serde_json::Value;

use crate::failure;

/// Characters of a server's error that are shown.
const ERROR_CHARS: usize = 200;
/// The beginning of addresses of Unix sockets.
pub(crate) const UNIX: &str = "unix:";
/// The host in requests over a Unix socket.
const UNIX_HOST: &str = "http://localhost";
/// Time limit for a connection, if requests have none.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of an answer that is read whole.
const MAX_ANSWER: usize = 64 << 20;

/// A server.
pub(crate) struct Api {
    http: Client,
    /// Opens a connection for each request.
    unpooled: Client,
    /// The base URL, without a slash or `/v1` at its end.
    pub(crate) base: String,
    /// The server's name in errors.
    pub(crate) shown: String,
    /// Time limit for an answer, or for a connection if there is none for answers.
    time_limit: Duration,
    authorization: Option<HeaderValue>,
}

/// Options of the connection to a server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Transport<'a> {
    /// PEM file with certificates to trust besides the system's.
    pub(crate) cacert: Option<&'a Path>,
    /// The client certificate to present.
    pub(crate) identity: Option<Identity<'a>>,
    /// Use HTTP/2, by prior knowledge if there is no TLS.
    pub(crate) http2: bool,
}

/// Flags for TLS with a server.
#[derive(Debug, Args)]
pub(crate) struct TlsFlags {
    /// PEM file with the server's certificate or its CA's, to trust besides the system's CAs
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// PEM file with a client certificate, for servers that ask for one
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// PEM file with the private key of --cert
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

impl TlsFlags {
    /// These files, with HTTP/1.1.
    pub(crate) fn transport(&self) -> Transport<'_> {
        let identity = self.cert.as_deref().zip(self.key.as_deref());
        let identity = identity.map(|(certificate, key)| Identity { certificate, key });
        Transport { cacert: self.cacert.as_deref(), identity, http2: false }
    }
}

impl Transport<'_> {
    fn apply(self, http: ClientBuilder) -> Result<ClientBuilder> {
        let mut http = http;
        if self.has_tls_files() {
            let trust = self.cacert.map_or(Trust::System, Trust::SystemAnd);
            let mut tls = client_config(trust, self.identity).map_err(|error| anyhow!(error))?;
            // A preconfigured TLS client does not get the protocols of the builder, so they are named here.
            tls.alpn_protocols =
                vec![if self.http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
            http = http.use_preconfigured_tls(tls);
        }
        Ok(if self.http2 { http.http2_prior_knowledge() } else { http.http1_only() })
    }

    fn has_tls_files(self) -> bool {
        self.cacert.is_some() || self.identity.is_some()
    }
}

impl Api {
    /// # Errors
    /// The URL, the key or a certificate is invalid.
    pub(crate) fn new(
        url: &str,
        key: Option<&str>,
        timeout: Option<Duration>,
        transport: Transport<'_>,
    ) -> Result<Self> {
        let socket = socket_path(url);
        let shown = url;
        let url = if socket.is_some() { UNIX_HOST } else { url };
        let base = url.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches('/');
        let parsed = Url::parse(base).map_err(|error| match base.contains("://") {
            true => anyhow!("--url `{url}` is no URL: {error}"),
            false => anyhow!("--url `{url}` is no URL: begin it with http://, https:// or unix:"),
        })?;
        if !matches!(parsed.scheme(), "http" | "https") {
            bail!("--url `{url}`: a URL that begins with http://, https:// or unix: is needed");
        }
        if transport.has_tls_files() && parsed.scheme() != "https" {
            bail!("--url `{url}`: --cacert and --cert are for URLs that begin with https://");
        }
        let host = parsed.host_str().unwrap_or_default();
        let is_local = host == "localhost" || host.starts_with("127.") || host == "[::1]";
        // A second client without idle connections serves the retry below.
        let client = |idle_connections| {
            let http = Client::builder().pool_max_idle_per_host(idle_connections);
            let http = match timeout {
                Some(timeout) => http.timeout(timeout),
                None => http.connect_timeout(CONNECT_TIMEOUT),
            };
            let http = match socket {
                Some(path) => http.unix_socket(path),
                None => http,
            };
            // A proxy named by the environment would be measured too.
            let http = if is_local { http.no_proxy() } else { http };
            transport.apply(http)?.build().context("cannot start the HTTP client")
        };
        let authorization = key.map(|key| HeaderValue::try_from(format!("Bearer {key}")));
        Ok(Self {
            http: client(usize::MAX)?,
            unpooled: client(0)?,
            base: base.to_owned(),
            shown: if socket.is_some() { shown } else { base }.to_owned(),
            time_limit: timeout.unwrap_or(CONNECT_TIMEOUT),
            authorization: authorization
                .transpose()
                .context("the API key has characters that a header cannot have")?,
        })
    }

    /// # Errors
    /// The server cannot be reached, answers with an error, or its answer is not JSON.
    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        let response = self.send(self.http.get(self.url(path))).await?;
        self.json(response).await
    }

    /// The text of the answer to a GET request.
    ///
    /// # Errors
    /// The server cannot be reached, answers with an error, or its answer is too long.
    pub(crate) async fn text(&self, path: &str) -> Result<String> {
        let response = self.send(self.http.get(self.url(path))).await?;
        self.whole(response).await
    }

    /// # Errors
    /// The errors of [`get`](Self::get).
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let response = self.open(path, body.to_string().into_bytes()).await?;
        self.json(response).await
    }

    /// Posts JSON, and returns the answer before its body has arrived.
    ///
    /// # Errors
    /// The server cannot be reached, or answers with an error.
    pub(crate) async fn open(&self, path: &str, body: Vec<u8>) -> Result<Response> {
        let request = self.http.post(self.url(path)).body(body);
        self.send(request.header(CONTENT_TYPE, "application/json")).await
    }

    /// Status and JSON of the answer to a GET request, whatever the status. The JSON is null if the answer is something else.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub(crate) async fn status(&self, path: &str) -> Result<(StatusCode, Value)> {
        let request = self.authorized(self.http.get(self.url(path)));
        let response = request.send().await.map_err(|error| self.failure(&error))?;
        let status = response.status();
        Ok((status, self.json(response).await.unwrap_or(Value::Null)))
    }

    fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.authorization {
            Some(authorization) => request.header(AUTHORIZATION, authorization),
            None => request,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let request = self.authorized(request).build().map_err(|error| self.failure(&error))?;
        let again = request.try_clone();
        let response = match (self.http.execute(request).await, again) {
            // Some servers close an idle connection just when it is used again. That is no failure of the request, so it is sent once more.
            (Err(error), Some(again))
                if error.is_request() && !error.is_connect() && !error.is_timeout() =>
            {
                self.unpooled.execute(again).await
            }
            (outcome, _) => outcome,
        };
        let response = response.map_err(|error| self.failure(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = self.whole(response).await.unwrap_or_default();
        let said = serde_json::from_str::<Value>(&body).map_or(body, |body| error_text(&body));
        bail!("{}: HTTP {status}: {}", self.shown, shortened(&said))
    }

    async fn json(&self, response: Response) -> Result<Value> {
        let body = self.whole(response).await?;
        serde_json::from_str(&body)
            .map_err(|_| anyhow!("{}: not JSON: {}", self.shown, shortened(&body)))
    }

    /// Reads an answer to its end, which the other side may never send.
    async fn whole(&self, mut response: Response) -> Result<String> {
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(|error| self.failure(&error))? {
            if body.len() + part.len() > MAX_ANSWER {
                bail!("{}: the answer has more than {} MiB", self.shown, MAX_ANSWER >> 20);
            }
            body.extend_from_slice(&part);
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// The innermost cause of a failed connection.
    pub(crate) fn failure(&self, error: &reqwest::Error) -> anyhow::Error {
        if error.is_timeout() {
            let seconds = self.time_limit.as_secs();
            return anyhow!("{}: no whole answer within {seconds} s", self.shown);
        }
        let mut cause = error.source();
        // The outer errors of reqwest and hyper only say that a request failed.
        while let Some(deeper) = cause.and_then(|cause| cause.source()) {
            cause = Some(deeper);
        }
        let advice = cause.map_or("", |cause| advice(cause));
        let cause = cause.map_or_else(|| error.to_string(), ToString::to_string);
        // The name of the alert in TLS.
        if cause.contains("CertificateRequired") {
            return anyhow!(
                "{}: the server asks for a client certificate: name one with --cert and --key",
                self.shown
            );
        }
        if error.is_connect() {
            let text = format!("{}: cannot be reached: {cause}", self.shown);
            return anyhow::Error::new(Unreachable { text, advice });
        }
        anyhow!("{}: the connection broke off: {cause}", self.shown)
    }
}

/// A server that cannot be reached.
#[derive(Debug)]
struct Unreachable {
    text: String,
    advice: &'static str,
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Unreachable {}

/// The text of an error that ends a command. Commands that go on and try again show errors without the advice.
pub(crate) fn last_words(error: &anyhow::Error) -> String {
    let advice = error.downcast_ref::<Unreachable>().map_or("", |error| error.advice);
    failure::text(error) + advice
}

/// The error of TLS in an error of I/O, which may be wrapped in further ones.
fn tls_error<'a>(mut error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    loop {
        if let Some(tls) = error.downcast_ref() {
            return Some(tls);
        }
        error = error.downcast_ref::<io::Error>()?.get_ref()?;
    }
}

/// Advice for common reasons of a failed connection.
fn advice(cause: &(dyn std::error::Error + 'static)) -> &'static str {
    let no_tls = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
    if tls_error(cause).is_some_and(|error| *error == no_tls) {
        return "; the server has no TLS: begin its URL with http://";
    }
    match cause.downcast_ref::<io::Error>().map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
            "; no server listens there: start one with `candlepower serve`, or name another with --url"
        }
        _ => "",
    }
}

/// The path in `unix:PATH` or `unix://PATH`; `None` for other addresses.
pub(crate) fn socket_path(url: &str) -> Option<&Path> {
    let path = url.strip_prefix(UNIX)?;
    Some(Path::new(path.strip_prefix("//").unwrap_or(path)))
}

/// The host at which this machine reaches a server that listens on `host`, as in a URL.
pub(crate) fn reachable(host: &str) -> String {
    match host {
        // A server that listens on all addresses is asked at the loopback address.
        "0.0.0.0" => "127.0.0.1".to_owned(),
        "::" => "[::1]".to_owned(),
        host if host.contains(':') => format!("[{host}]"),
        host => host.to_owned(),
    }
}

/// The message of `{"error": ..}`.
pub(crate) fn error_text(body: &Value) -> String {
    let error = body.get("error").unwrap_or(body);
    let message = error.get("message").unwrap_or(error);
    message.as_str().map_or_else(|| message.to_string(), str::to_owned)
}

pub(crate) fn shortened(text: &str) -> String {
    text.trim().chars().take(ERROR_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use candlepower_client::tls::Identity;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A server that closes its first `closed` connections after a request, and answers on the next one.
    async fn closing(closed: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            for connection in 0.. {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
                if connection == closed {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                    stream.write_all(answer).await.unwrap();
                }
            }
        });
        url
    }

    #[tokio::test]
    async fn a_closed_connection_is_tried_once_more() {
        for (closed, is_answered) in [(0, true), (1, true), (2, false)] {
            let api = Api::new(
                &closing(closed).await,
                None,
                Some(Duration::from_secs(5)),
                Transport::default(),
            )
            .unwrap();
            let answer = api.post("/v1/completions", &serde_json::json!({})).await;
            assert_eq!(answer.is_ok(), is_answered, "{closed} closed: {answer:?}");
        }
    }

    #[tokio::test]
    async fn errors_of_connections_end_with_advice() {
        let api = |url: &str| Api::new(url, None, None, Transport::default()).unwrap();
        let said = async |url: &str| last_words(&api(url).get("/v1/models").await.unwrap_err());

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        });
        let plain = said(&format!("https://{address}")).await;
        assert!(plain.ends_with("; the server has no TLS: begin its URL with http://"), "{plain}");

        for nowhere in ["http://127.0.0.1:1", "unix:/nowhere/at/all"] {
            let refused = said(nowhere).await;
            assert!(refused.starts_with(&format!("{nowhere}: cannot be reached: ")), "{refused}");
            assert!(refused.ends_with("or name another with --url"), "{refused}");
        }
    }

    #[tokio::test]
    async fn an_answer_without_an_end_is_not_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
                    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                    while stream.write_all(&[b'1'; 1 << 16]).await.is_ok() {}
                });
            }
        });
        let api = Api::new(&url, None, None, Transport::default()).unwrap();
        for error in [api.text("/metrics").await.err(), api.get("/v1/models").await.err()] {
            let error = error.unwrap().to_string();
            assert!(error.ends_with("the answer has more than 64 MiB"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_server_that_never_answers_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let limit = Some(Duration::from_secs(1));
        let api = Api::new(&url, None, limit, Transport::default()).unwrap();
        let error = api.get("/v1/models").await.unwrap_err().to_string();
        assert_eq!(error, format!("{url}: no whole answer within 1 s"));
    }

    #[test]
    fn servers_that_listen_everywhere_are_reached_at_the_loopback_address() {
        let hosts = ["0.0.0.0", "::", "fe80::1", "models.internal", "10.0.0.1"];
        let reached = ["127.0.0.1", "[::1]", "[fe80::1]", "models.internal", "10.0.0.1"];
        assert_eq!(hosts.map(reachable), reached);
    }

    #[test]
    fn addresses_are_taken_with_and_without_v1() {
        let base = |url| {
            Api::new(url, None, Some(Duration::from_secs(1)), Transport::default())
                .map(|api| api.base)
        };
        for url in ["http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/"] {
            assert_eq!(base(url).unwrap(), "http://a:1");
        }
        assert!(base("ftp://a").is_err());
        let error = base("a:1").unwrap_err().to_string();
        assert!(error.contains("http://, https:// or unix:"), "{error}");
        let error = base("127.0.0.1:8000").unwrap_err().to_string();
        assert!(error.contains("is no URL: begin it with http://, https:// or unix:"), "{error}");
        let error = base("http://a:port").unwrap_err().to_string();
        assert_eq!(error, "--url `http://a:port` is no URL: invalid port number");
        let file = Path::new("a.pem");
        let identity = Identity { certificate: file, key: file };
        for transport in [
            Transport { cacert: Some(file), ..Transport::default() },
            Transport { identity: Some(identity), ..Transport::default() },
        ] {
            let api = Api::new("http://a", None, Some(Duration::from_secs(1)), transport);
            let error = api.err().unwrap().to_string();
            assert!(error.contains("--cacert and --cert are for"), "{error}");
        }
    }
}
