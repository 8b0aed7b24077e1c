//! TLS: the server's certificate and key, and CA certificates for clients. SIGHUP reloads the files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    DigitallySignedStruct, DistinguishedName, Error, InconsistentKeys, RootCertStore, ServerConfig,
    SignatureScheme,
};
use tokio_rustls::server::TlsStream;

use crate::config::ServeConfig;

/// Maximum time of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The protocols' ALPN names. Source: RFC 7301 and RFC 9113.
const HTTP1: &[u8] = b"http/1.1";
pub(crate) const HTTP2: &[u8] = b"h2";

/// The files for TLS, and the configuration that was last read from them.
pub(crate) struct Tls {
    files: Files,
    /// Configuration of new handshakes. Running ones keep the earlier configuration.
    current: RwLock<Arc<ServerConfig>>,
}

/// Paths of certificates and key, and whether HTTP/2 is negotiated.
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_authorities: Option<PathBuf>,
    http2: bool,
}

impl Tls {
    /// `None` if the settings name no certificate.
    ///
    /// # Errors
    /// A setting that another one needs is missing, or a file is invalid; the error has one line.
    pub(crate) fn of(config: &ServeConfig) -> Result<Option<Self>, String> {
        let (certificate, key) = match (&config.ssl_certfile, &config.ssl_keyfile) {
            (Some(certificate), Some(key)) => (certificate.clone(), key.clone()),
            (Some(_), None) => return Err(needs("--ssl-certfile", "--ssl-keyfile")),
            (None, Some(_)) => return Err(needs("--ssl-keyfile", "--ssl-certfile")),
            (None, None) if config.ssl_ca_certs.is_some() => {
                return Err(needs("--ssl-ca-certs", "--ssl-certfile and --ssl-keyfile"));
            }
            (None, None) => return Ok(None),
        };
        let (client_authorities, http2) = (config.ssl_ca_certs.clone(), config.http2);
        let files = Files { certificate, key, client_authorities, http2 };
        let current = RwLock::new(Arc::new(files.read()?));
        Ok(Some(Self { files, current }))
    }

    /// Reloads the files for later handshakes. Session tickets of the old files are void, so that returning clients are verified again.
    ///
    /// # Errors
    /// A file is invalid, in one line; then nothing changes.
    pub(crate) fn reload(&self) -> Result<(), String> {
        let read = Arc::new(self.files.read()?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// Does the handshake with a client in bounded time.
    ///
    /// # Errors
    /// The handshake fails or takes too long.
    pub(crate) async fn accept<S>(&self, stream: S) -> std::io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // The lock holds an `Arc`, which is complete at any time, so a panic of another thread leaves it sound.
        let config = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner));
        let accepted = TlsAcceptor::from(config).accept(stream);
        tokio::time::timeout(HANDSHAKE_TIMEOUT, accepted).await?
    }
}

fn needs(given: &str, missing: &str) -> String {
    format!("{given} needs {missing}: give both, or neither")
}

impl Files {
    fn read(&self) -> Result<ServerConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates("--ssl-certfile", &self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| {
            let kind = "unencrypted private key (PKCS#8, PKCS#1 or SEC1)";
            unusable("--ssl-keyfile", &self.key, &pem_reason(error, kind))
        })?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match &self.client_authorities {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let clients = Clients::new(path, chain[0].clone(), provider)?;
                builder.with_client_cert_verifier(Arc::new(clients))
            }
        };
        let config = builder.with_single_cert(chain, key);
        let mut config = config.map_err(|error| self.wrong(&error))?;
        // The order is that of preference.
        let protocols: &[&[u8]] = if self.http2 { &[HTTP2, HTTP1] } else { &[HTTP1] };
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(config)
    }

    /// The error if certificate and key do not match.
    fn wrong(&self, error: &Error) -> String {
        match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                let reason =
                    format!("it does not match the certificate in {}", self.certificate.display());
                unusable("--ssl-keyfile", &self.key, &reason)
            }
            Error::InvalidCertificate(_) => {
                unusable("--ssl-certfile", &self.certificate, &error.to_string())
            }
            _ => unusable("--ssl-keyfile", &self.key, &error.to_string()),
        }
    }
}

/// The certificates in a file, at least one.
fn certificates(flag: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = match read {
        Ok(read) if read.is_empty() => Err(pem::Error::NoItemsFound),
        read => read,
    };
    read.map_err(|error| unusable(flag, path, &pem_reason(error, "certificate")))
}

fn pem_reason(error: pem::Error, kind: &str) -> String {
    match error {
        pem::Error::NoItemsFound => format!("it has no {kind} in PEM format"),
        pem::Error::Io(error) => error.to_string(),
        error => format!("it is not a complete PEM file ({error})"),
    }
}

fn unusable(flag: &str, path: &Path, reason: &str) -> String {
    format!("{flag} {} cannot be used: {reason}", path.display())
}

/// Verifies clients' certificates by the CAs, and accepts the server's own certificate: only the operator has its key, and health probes
/// then need no certificate of their own.
#[derive(Debug)]
struct Clients {
    own: CertificateDer<'static>,
    of_authorities: Arc<dyn ClientCertVerifier>,
}

impl Clients {
    fn new(
        path: &Path,
        own: CertificateDer<'static>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let flag = "--ssl-ca-certs";
        let mut roots = RootCertStore::empty();
        for authority in certificates(flag, path)? {
            roots.add(authority).map_err(|error| unusable(flag, path, &error.to_string()))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let of_authorities =
            verifier.build().map_err(|error| unusable(flag, path, &error.to_string()))?;
        Ok(Self { own, of_authorities })
    }
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.of_authorities.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // The signatures below prove that the client also has the key.
        if *end_entity == self.own {
            // The comparison is of the whole certificate, so another one with the same key or name does not pass.
            return Ok(ClientCertVerified::assertion());
        }
        self.of_authorities.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.of_authorities.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.of_authorities.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.of_authorities.supported_verify_schemes()
    }
}
