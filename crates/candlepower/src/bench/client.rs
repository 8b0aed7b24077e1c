//! The HTTP client of `bench serve`: sends requests, and measures streamed answers.

use std::error::Error as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use candlepower_client::tls::{Identity, Trust, client_config};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, ClientBuilder, RequestBuilder, Response, Url};
use serde::Deserialize;
use serde_json::Value;

/// Characters of a server's error that are shown.
const ERROR_CHARS: usize = 200;
const DONE: &str = "[DONE]";

/// A server under test.
pub(super) struct Api {
    http: Client,
    /// Opens a connection for each request.
    unpooled: Client,
    /// The base URL, without a slash or `/v1` at its end.
    pub(super) base: String,
    authorization: Option<HeaderValue>,
}

/// Measurements of a streamed answer; times are since the request was sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// Time to the first chunk with text; `None` if no chunk had any.
    pub(super) first_text: Option<Duration>,
    /// Time to the last chunk with text.
    pub(super) last_text: Option<Duration>,
    /// Times between chunks with text.
    pub(super) gaps: Vec<Duration>,
    /// Time to the end of the answer.
    pub(super) end: Duration,
    pub(super) usage: Usage,
}

/// Numbers of tokens, as the server counts them.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct Usage {
    #[serde(default)]
    pub(super) prompt_tokens: usize,
    #[serde(default)]
    pub(super) completion_tokens: usize,
    prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct PromptTokensDetails {
    cached_tokens: Option<usize>,
}

impl Usage {
    /// Prompt tokens that the server had in its prefix cache.
    pub(super) fn cached_tokens(&self) -> usize {
        self.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0)
    }
}

/// Options of the connection to a server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Transport<'a> {
    /// PEM file with certificates to trust besides the system's.
    pub(super) cacert: Option<&'a Path>,
    /// The client certificate to present.
    pub(super) identity: Option<Identity<'a>>,
    /// Use HTTP/2, by prior knowledge if there is no TLS.
    pub(super) http2: bool,
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
    pub(super) fn new(
        url: &str,
        key: Option<&str>,
        timeout: Duration,
        transport: Transport<'_>,
    ) -> Result<Self> {
        let base = url.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches('/');
        let parsed = Url::parse(base).with_context(|| format!("--url `{url}` is not a URL"))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            bail!("--url `{url}`: a URL that begins with http:// or https:// is needed");
        }
        if transport.has_tls_files() && parsed.scheme() != "https" {
            bail!("--url `{url}`: --cacert and --cert are for URLs that begin with https://");
        }
        let host = parsed.host_str().unwrap_or_default();
        let is_local = host == "localhost" || host.starts_with("127.") || host == "[::1]";
        // A second client without idle connections serves the retry below.
        let client = |idle_connections| {
            let http = Client::builder().timeout(timeout).pool_max_idle_per_host(idle_connections);
            // A proxy named by the environment would be measured too.
            let http = if is_local { http.no_proxy() } else { http };
            transport.apply(http)?.build().context("cannot start the HTTP client")
        };
        let authorization = key.map(|key| HeaderValue::try_from(format!("Bearer {key}")));
        Ok(Self {
            http: client(usize::MAX)?,
            unpooled: client(0)?,
            base: base.to_owned(),
            authorization: authorization
                .transpose()
                .context("the API key has characters that a header cannot have")?,
        })
    }

    /// # Errors
    /// The server cannot be reached, answers with an error, or its answer is not JSON.
    pub(super) async fn get(&self, path: &str) -> Result<Value> {
        let response = self.send(self.http.get(self.url(path))).await?;
        self.json(response).await
    }

    /// # Errors
    /// The errors of [`get`](Self::get).
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let request = self.http.post(self.url(path)).body(body.to_string());
        let response = self.send(request.header(CONTENT_TYPE, "application/json")).await?;
        self.json(response).await
    }

    /// Sends a request for a streamed answer, and reads it to its end.
    ///
    /// # Errors
    /// The server cannot be reached, answers with an error, breaks off, or does not report the number of generated tokens.
    pub(super) async fn measure(&self, path: &str, body: Vec<u8>) -> Result<Answer> {
        let request = self.http.post(self.url(path)).body(body);
        let request = request.header(CONTENT_TYPE, "application/json");
        let mut reader = AnswerReader::new(Instant::now());
        let mut response = self.send(request).await?;
        while let Some(bytes) = response.chunk().await.map_err(|error| self.failure(&error))? {
            if reader.take(&bytes, Instant::now())? == Progress::Done {
                break;
            }
        }
        // Reading the end of the body makes the connection free for the next request.
        while let Ok(Some(_)) = response.chunk().await {}
        reader.finish()
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    async fn send(&self, mut request: RequestBuilder) -> Result<Response> {
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.build().map_err(|error| self.failure(&error))?;
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
        let body = response.text().await.unwrap_or_default();
        let said = serde_json::from_str::<Value>(&body).map_or(body, |body| error_text(&body));
        bail!("{}: HTTP {status}: {}", self.base, shortened(&said))
    }

    async fn json(&self, response: Response) -> Result<Value> {
        let body = response.text().await.map_err(|error| self.failure(&error))?;
        serde_json::from_str(&body)
            .map_err(|_| anyhow!("{}: not JSON: {}", self.base, shortened(&body)))
    }

    /// The innermost cause of a failed connection.
    fn failure(&self, error: &reqwest::Error) -> anyhow::Error {
        if error.is_timeout() {
            return anyhow!("{}: the answer did not end within --timeout; raise it", self.base);
        }
        let mut cause = error.source();
        // The outer errors of reqwest and hyper only say that a request failed.
        while let Some(deeper) = cause.and_then(|cause| cause.source()) {
            cause = Some(deeper);
        }
        let cause = cause.map_or_else(|| error.to_string(), ToString::to_string);
        let what =
            if error.is_connect() { "cannot be reached" } else { "the connection broke off" };
        anyhow!("{}: {what}: {cause}", self.base)
    }
}

/// The message of `{"error": ..}`.
fn error_text(body: &Value) -> String {
    let error = body.get("error").unwrap_or(body);
    let message = error.get("message").unwrap_or(error);
    message.as_str().map_or_else(|| message.to_string(), str::to_owned)
}

fn shortened(text: &str) -> String {
    text.trim().chars().take(ERROR_CHARS).collect()
}

/// Whether an answer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Going,
    Done,
}

/// A reader of server-sent events.
struct AnswerReader {
    sent: Instant,
    /// The first part of a line whose end has not arrived.
    line: Vec<u8>,
    progress: Progress,
    usage: Option<Usage>,
    answer: Answer,
}

#[derive(Deserialize)]
struct Chunk {
    choices: Option<Vec<Choice>>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
}

impl Choice {
    fn has_text(&self) -> bool {
        let delta = self.delta.as_ref();
        let texts = [
            self.text.as_ref(),
            delta.and_then(|delta| delta.content.as_ref()),
            delta.and_then(|delta| delta.reasoning_content.as_ref()),
        ];
        texts.into_iter().flatten().any(|text| !text.is_empty())
    }
}

impl AnswerReader {
    fn new(sent: Instant) -> Self {
        Self {
            sent,
            line: Vec::new(),
            progress: Progress::Going,
            usage: None,
            answer: Answer::default(),
        }
    }

    /// Takes bytes that arrived `now`.
    fn take(&mut self, bytes: &[u8], now: Instant) -> Result<Progress> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.take_line(&line, now)?;
            }
        }
        Ok(self.progress)
    }

    fn take_line(&mut self, line: &[u8], now: Instant) -> Result<()> {
        // A space behind the colon is optional, and other lines are comments or events without data.
        let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else {
            return Ok(());
        };
        if data == DONE.as_bytes() {
            self.progress = Progress::Done;
            self.answer.end = now - self.sent;
            return Ok(());
        }
        let chunk: Chunk = serde_json::from_slice(data).map_err(|error| {
            let data = String::from_utf8_lossy(data);
            anyhow!("a chunk of the stream is invalid ({error}): {}", shortened(&data))
        })?;
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            bail!(
                "the server reports an error within the answer: {}",
                shortened(&error_text(&error))
            );
        }
        // Servers send usage in the last chunk or in each. The last one counts all tokens.
        self.usage = chunk.usage.or(self.usage);
        // The first chunk of a chat has the role and an empty text. It does not stand for a token.
        if chunk.choices.iter().flatten().any(Choice::has_text) {
            self.take_text(now - self.sent);
        }
        Ok(())
    }

    fn take_text(&mut self, time: Duration) {
        let answer = &mut self.answer;
        match answer.last_text {
            None => answer.first_text = Some(time),
            Some(last) => answer.gaps.push(time - last),
        }
        answer.last_text = Some(time);
    }

    fn finish(self) -> Result<Answer> {
        if self.progress == Progress::Going {
            bail!("the answer ended without {DONE}");
        }
        let Some(usage) = self.usage else {
            bail!(
                "the answer has no `usage`, although the request asked for it (stream_options.include_usage)"
            );
        };
        Ok(Answer { usage, ..self.answer })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    // The stream has the variants that servers send: CR LF, no space after the colon, comments, both endpoints'
    // chunks, null.
    const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"a b\"}}]}\r\n\r\n: a comment\n\
        data:{\"choices\":[{\"text\":\"c\"}],\"usage\":null}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":7,\
        \"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";

    fn read(stream: &str, cut: usize) -> Result<Answer> {
        let sent = Instant::now();
        let mut reader = AnswerReader::new(sent);
        for (i, bytes) in stream.as_bytes().chunks(cut).enumerate() {
            reader.take(bytes, sent + Duration::from_millis(i as u64))?;
        }
        reader.finish()
    }

    #[test]
    fn tokens_are_those_of_the_usage_however_the_bytes_are_cut() {
        for cut in [1, 7, 4096] {
            let answer = read(STREAM, cut).unwrap();
            assert_eq!((answer.usage.prompt_tokens, answer.usage.completion_tokens), (5, 7));
            assert_eq!((answer.usage.cached_tokens(), answer.gaps.len()), (4, 1));
            assert!(answer.first_text <= answer.last_text && answer.first_text.is_some());
        }
    }

    #[test]
    fn what_is_wrong_with_an_answer_is_told() {
        let cut = |stream: &str| read(stream, 64).unwrap_err().to_string();
        assert!(cut("data: {\"choices\":[]}\n\n").contains("without [DONE]"));
        assert!(cut("data: {\"choices\":[]}\n\ndata: [DONE]\n\n").contains("usage"));
        assert!(cut("data: {\"error\":{\"message\":\"oh\"}}\n\n").ends_with("answer: oh"));
        assert!(cut("data: {nonsense\n\n").contains("nonsense"));
    }

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
                Duration::from_secs(5),
                Transport::default(),
            )
            .unwrap();
            let answer = api.post("/v1/completions", &serde_json::json!({})).await;
            assert_eq!(answer.is_ok(), is_answered, "{closed} closed: {answer:?}");
        }
    }

    #[test]
    fn addresses_are_taken_with_and_without_v1() {
        let base = |url| {
            Api::new(url, None, Duration::from_secs(1), Transport::default()).map(|api| api.base)
        };
        for url in ["http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/"] {
            assert_eq!(base(url).unwrap(), "http://a:1");
        }
        assert!(base("ftp://a").is_err() && base("a").is_err());
        let file = Path::new("a.pem");
        let identity = Identity { certificate: file, key: file };
        for transport in [
            Transport { cacert: Some(file), ..Transport::default() },
            Transport { identity: Some(identity), ..Transport::default() },
        ] {
            let api = Api::new("http://a", None, Duration::from_secs(1), transport);
            let error = api.err().unwrap().to_string();
            assert!(error.contains("--cacert and --cert are for"), "{error}");
        }
    }
}
