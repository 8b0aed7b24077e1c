//! TLS for clients: the server certificates that they accept, and the certificates that they present.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// The servers that a client trusts.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// Any server. This is for health checks at a loopback address, whose answer is no secret.
    Anything,
    /// Servers whose certificate was issued by an authority of this system.
    System,
    /// Those, and servers whose certificate, or its authority's, is in this PEM file.
    SystemAnd(&'a Path),
}

/// The PEM files with a client's certificate and key.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// The certificate and the intermediate authorities.
    pub certificate: &'a Path,
    /// The private key.
    pub key: &'a Path,
}

/// TLS settings for connections to a server.
///
/// # Errors
/// A file cannot be used. The error is one line that names it.
pub fn client_config(
    trust: Trust<'_>,
    identity: Option<Identity<'_>>,
) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Verifier::new(trust, Arc::clone(&provider))?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let Some(Identity { certificate, key: path }) = identity else {
        return Ok(builder.with_no_client_auth());
    };
    let key = PrivateKeyDer::from_pem_file(path)
        .map_err(|error| unusable(path, &reason(error, "unencrypted private key")))?;
    let chain = certificates(certificate)?;
    builder.with_client_auth_cert(chain, key).map_err(|error| unusable(path, &error.to_string()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(read) if read.is_empty() => Err(pem::Error::NoItemsFound),
        read => read,
    }
    .map_err(|error| unusable(path, &reason(error, "certificate")))
}

fn reason(error: pem::Error, kind: &str) -> String {
    match error {
        pem::Error::NoItemsFound => format!("it has no {kind} in PEM form"),
        pem::Error::Io(error) => error.to_string(),
        error => format!("it is no whole PEM file ({error})"),
    }
}

fn unusable(path: &Path, reason: &str) -> String {
    format!("{} cannot be used: {reason}", path.display())
}

/// Verifies certificates of servers.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// Certificates that are accepted whatever their names and dates: a server that presents one has its key.
    known: Vec<CertificateDer<'static>>,
    /// Verifies all others; `None` accepts them, too.
    authorities: Option<Arc<WebPkiServerVerifier>>,
}

impl Verifier {
    fn new(trust: Trust<'_>, provider: Arc<CryptoProvider>) -> Result<Self, String> {
        let known = match trust {
            Trust::Anything => {
                return Ok(Self { provider, known: Vec::new(), authorities: None });
            }
            Trust::System => Vec::new(),
            Trust::SystemAnd(path) => certificates(path)?,
        };
        let mut roots = RootCertStore::empty();
        // A damaged file among the system's certificates must not make the others useless.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots.add_parsable_certificates(known.iter().cloned());
        let authorities = if roots.is_empty() {
            return Err(
                "this system has no certificate authorities: name some in a PEM file".into()
            );
        } else {
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .map_err(|error| error.to_string())?
        };
        Ok(Self { provider, known, authorities: Some(authorities) })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.authorities {
            Some(authorities) if !self.known.contains(end_entity) => {
                authorities.verify_server_cert(end_entity, intermediates, name, ocsp, now)
            }
            // A known certificate is accepted as it is. Self-signed ones rarely have the right name.
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        // The signature is always checked, even for an accepted certificate: it proves that the server has the key.
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
