//! `candlepower health`: checks a server's health, for container engines and scripts without an HTTP client.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use candlepower_client::tls::{Identity, Trust, client_config};
use candlepower_machine::{print, print_error};
use candlepower_server::ServeConfig;
use clap::{Args, Command};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::api::{UNIX, reachable, socket_path};
use crate::failure;

/// The first process of a container is its server, or an init process whose command line contains the server's.
const FIRST_PROCESS: &str = "/proc/1/cmdline";
/// Maximum bytes of an answer. The server's own is one line.
const MAX_ANSWER: u64 = 64 << 10;

#[derive(Args)]
pub(crate) struct HealthArgs {
    /// URL of the server, or unix:PATH for a Unix socket [default: this container's server, or the environment's address]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// PEM file with the server's certificate or its CA's, to trust besides the system's CAs. Not needed without --url, nor for a
    /// loopback address, whose certificate is not checked
    #[arg(long, value_name = "FILE", requires = "url")]
    cacert: Option<PathBuf>,
    /// PEM file with a client certificate, for servers that ask for one
    #[arg(long, value_name = "FILE", requires_all = ["url", "key"])]
    cert: Option<PathBuf>,
    /// PEM file with the private key of --cert
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Seconds to wait for the answer
    #[arg(long, value_name = "SECONDS", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

/// Prints the server's answer; succeeds if it is healthy.
pub(crate) fn run(args: &HealthArgs, command: &Command) -> ExitCode {
    let timeout = Duration::from_secs(args.timeout);
    let asked = match &args.url {
        Some(url) => {
            let identity = args.cert.clone().zip(args.key.clone());
            let tls = Tls { trusted: args.cacert.clone(), identity };
            Address::of_url(url, tls).and_then(|server| server.ask(timeout))
        }
        None => ask_own_server(command, timeout),
    };
    match asked {
        Ok(Answer { is_healthy, body }) => {
            print(&format!("{body}\n"));
            if is_healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            print_error(format_args!("error: {}", failure::text(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Asks the server of this container. Without one, asks the default address of each serving mode.
fn ask_own_server(command: &Command, timeout: Duration) -> Result<Answer> {
    let first_process = std::fs::read(FIRST_PROCESS).unwrap_or_default();
    if let Some(flags) = serve_flags(&first_process) {
        // The flags of another process are parsed as `serve` parses them, but the environment is this process's
        // own.
        return Address::of_settings(command, &flags)?.ask(timeout);
    }
    let blaze = Address::of_settings(command, &[])?.ask(timeout);
    blaze.or_else(|error| {
        let prism = Address::of_settings(command, &["--framework".into(), "prism".into()])?;
        // If neither answers, the error names the blaze address, which most users mean.
        prism.ask(timeout).map_err(|_| error)
    })
}

/// The words after `candlepower serve` in a process's command line. Each word ends with a zero byte.
fn serve_flags(command_line: &[u8]) -> Option<Vec<String>> {
    let command_line = String::from_utf8_lossy(command_line);
    let words: Vec<&str> = command_line.split_terminator('\0').collect();
    let is_program =
        |word: &str| Path::new(word).file_name().is_some_and(|name| name == "candlepower");
    // `sh -c` has the whole command in one word, so no pair of words matches there.
    let at = words.windows(2).position(|pair| is_program(pair[0]) && pair[1] == "serve")?;
    Some(words[at + 2..].iter().map(|word| (*word).to_owned()).collect())
}

/// The address of a server, and its TLS files.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    /// The Unix socket on which it listens, instead of host and port.
    socket: Option<PathBuf>,
    /// Host and port, as in a URL.
    authority: String,
    /// The path before `/health`.
    prefix: String,
    tls: Option<Tls>,
}

/// The files for TLS with a server.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tls {
    /// File with trusted certificates.
    trusted: Option<PathBuf>,
    /// Files of the client certificate and its key.
    identity: Option<(PathBuf, PathBuf)>,
}

impl Address {
    fn of_socket(path: &Path) -> Self {
        // A host is needed in each request.
        let authority = "localhost".to_owned();
        Self { socket: Some(path.to_owned()), authority, prefix: String::new(), tls: None }
    }

    fn of_url(url: &str, tls: Tls) -> Result<Self> {
        if let Some(path) = socket_path(url).filter(|_| tls == Tls::default()) {
            return Ok(Self::of_socket(path));
        }
        let (tls, rest) = match url.strip_prefix("https://") {
            Some(rest) => (Some(tls), rest),
            None if tls != Tls::default() => {
                bail!("{url}: --cacert and --cert are for addresses that begin with https://")
            }
            None => (None, url.strip_prefix("http://").unwrap_or(url)),
        };
        let (authority, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let after_host = authority.rsplit_once(']').map_or(authority, |(_, port)| port);
        // An IPv6 address has colons within its brackets. Only a colon behind them begins a port.
        let port = match &tls {
            _ if after_host.contains(':') => "",
            Some(_) => ":443",
            None => ":80",
        };
        let prefix = prefix.trim_end_matches('/').to_owned();
        Ok(Self { socket: None, authority: format!("{authority}{port}"), prefix, tls })
    }

    /// The address of a server that was started with these flags in this environment.
    fn of_settings(command: &Command, flags: &[String]) -> Result<Self> {
        let serve = ["candlepower", "serve"].into_iter().chain(flags.iter().map(String::as_str));
        let matches = command.clone().try_get_matches_from(serve)?;
        let (_, flags) = matches.subcommand().context("`serve` is not a command")?;
        let config = ServeConfig::resolve(flags, std::env::vars_os())?.config;
        if let Some(path) = &config.uds {
            return Ok(Self::of_socket(path));
        }
        let authority = format!("{}:{}", reachable(&config.host), config.port());
        let tls = config.ssl_certfile.map(|certificate| Tls {
            trusted: Some(certificate.clone()),
            // A server that asks for client certificates also accepts its own, so that this check needs no other.
            identity: config.ssl_ca_certs.and(config.ssl_keyfile).map(|key| (certificate, key)),
        });
        Ok(Self { socket: None, authority, prefix: String::new(), tls })
    }

    fn ask(&self, timeout: Duration) -> Result<Answer> {
        let Self { authority, prefix, .. } = self;
        let (url, hint) = match (&self.socket, &self.tls) {
            (Some(path), _) => (format!("{UNIX}{}", path.display()), ""),
            (None, Some(_)) => {
                (format!("https://{authority}{prefix}"), " (http:// if it has no TLS)")
            }
            (None, None) => (format!("http://{authority}{prefix}"), ""),
        };
        let answer = self.exchange(timeout).with_context(|| {
            format!("no server answers at {url}; start one, or give its address with --url{hint}")
        })?;
        Answer::parse(&answer).with_context(|| format!("the answer of {authority} is not HTTP"))
    }

    fn exchange(&self, timeout: Duration) -> Result<Vec<u8>> {
        if let Some(path) = &self.socket {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            return Ok(self.request(stream)?);
        }
        let mut connected = Err(ErrorKind::AddrNotAvailable.into());
        for address in self.authority.to_socket_addrs()? {
            connected = TcpStream::connect_timeout(&address, timeout);
            if connected.is_ok() {
                break;
            }
        }
        let stream = connected?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        let Some(tls) = &self.tls else { return Ok(self.request(stream)?) };
        let host = self.host();
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| anyhow!("`{host}` is not a valid host name"))?;
        let session = ClientConnection::new(Arc::new(tls.config(host)?), name)?;
        Ok(self.request(StreamOwned::new(session, stream))?)
    }

    /// The host name or address, without brackets.
    fn host(&self) -> &str {
        let host =
            self.authority.rsplit_once(':').map_or(self.authority.as_str(), |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    fn request(&self, mut stream: impl Read + Write) -> io::Result<Vec<u8>> {
        let Self { authority, prefix, .. } = self;
        let asked = write!(
            stream,
            // `Connection: close` lets the answer end with the connection, so its length need not be parsed.
            "GET {prefix}/health HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n"
        );
        let asked = asked.and_then(|()| stream.flush());
        let mut answer = Vec::new();
        // A server that closes the connection early may have sent an answer before, so the answer is read first.
        match stream.take(MAX_ANSWER).read_to_end(&mut answer) {
            // Some servers close the connection without TLS's close_notify after a complete answer.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof && !answer.is_empty() => {}
            read => drop(read?),
        }
        asked.map(|()| answer)
    }
}

impl Tls {
    /// Trusts any certificate at a loopback address, because that server is on this machine; checks all others.
    fn config(&self, host: &str) -> Result<ClientConfig> {
        let is_loopback = host.eq_ignore_ascii_case("localhost")
            || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
        let trust = match &self.trusted {
            _ if is_loopback => Trust::Anything,
            Some(path) => Trust::SystemAnd(path),
            None => Trust::System,
        };
        let identity = self.identity.as_ref();
        let identity = identity.map(|(certificate, key)| Identity { certificate, key });
        client_config(trust, identity).map_err(|error| anyhow!(error))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    is_healthy: bool,
    body: String,
}

impl Answer {
    fn parse(answer: &[u8]) -> Result<Self> {
        let text = String::from_utf8_lossy(answer);
        let (head, body) = text.split_once("\r\n\r\n").context("its headers have no end")?;
        let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
        let status: u16 =
            status.and_then(|status| status.parse().ok()).context("it has no HTTP status")?;
        Ok(Self { is_healthy: status == 200, body: body.trim_end().to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_found_in_the_command_line_of_the_first_process() {
        let flags = |words: &[&str]| {
            let line: String = words.iter().map(|word| format!("{word}\0")).collect();
            serve_flags(line.as_bytes()).map(|flags| flags.join(" "))
        };
        assert_eq!(flags(&["candlepower", "serve", "demo"]), Some("demo".into()));
        let with_init =
            ["/dev/init", "--", "/usr/local/bin/candlepower", "serve", "demo", "--port", "9"];
        assert_eq!(flags(&with_init), Some("demo --port 9".into()));
        assert_eq!(flags(&["candlepower", "doctor"]), None);
        assert_eq!(flags(&["sh", "-c", "candlepower serve demo"]), None);
        assert_eq!(flags(&[]), None);
    }

    #[test]
    fn urls_may_leave_out_what_is_usual() {
        let parts = |url: &str| {
            let address = Address::of_url(url, Tls::default()).unwrap();
            (address.authority, address.prefix)
        };
        let owned = |authority: &str, prefix: &str| (authority.to_owned(), prefix.to_owned());
        assert_eq!(parts("http://127.0.0.1:8000"), owned("127.0.0.1:8000", ""));
        assert_eq!(parts("localhost:8000/"), owned("localhost:8000", ""));
        assert_eq!(parts("http://models.internal/a/b/"), owned("models.internal:80", "/a/b"));
        assert_eq!(parts("http://[::1]/"), owned("[::1]:80", ""));
        assert_eq!(parts("http://[::1]:8000"), owned("[::1]:8000", ""));
        assert_eq!(parts("https://localhost"), owned("localhost:443", ""));
        assert_eq!(parts("https://localhost:8000/a"), owned("localhost:8000", "/a"));
        let host = |url: &str| Address::of_url(url, Tls::default()).unwrap().host().to_owned();
        assert_eq!((host("https://[::1]"), host("a:1")), ("::1".into(), "a".into()));
        let trusted = Tls { trusted: Some("a.pem".into()), identity: None };
        let identity = Tls { trusted: None, identity: Some(("a.pem".into(), "b.pem".into())) };
        for tls in [trusted, identity] {
            assert!(Address::of_url("http://localhost", tls).is_err());
        }
    }

    #[test]
    fn a_file_of_certificates_matters_for_other_machines_alone() {
        let tls = Tls { trusted: Some("/nowhere/ca.pem".into()), identity: None };
        for host in ["localhost", "127.0.0.2", "::1", "::ffff:127.0.0.1"] {
            assert!(tls.config(host).is_ok(), "{host}");
        }
        let error = tls.config("models.internal").unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/ca.pem cannot be used: "), "{error}");
    }

    #[test]
    fn answers_are_healthy_or_not() {
        let answer = |text: &[u8]| Answer::parse(text).ok();
        let found = |is_healthy, body: &str| Some(Answer { is_healthy, body: body.to_owned() });
        assert_eq!(answer(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n{}\n"), found(true, "{}"));
        assert_eq!(answer(b"HTTP/1.0 503 No\r\n\r\n"), found(false, ""));
        assert_eq!(answer(b"SSH-2.0-OpenSSH\r\n\r\n"), None);
        assert_eq!(answer(b"HTTP/1.1 200 OK\r\nA: "), None);
    }
}
