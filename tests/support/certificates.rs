//! Certificates for tests: authorities, the certificates that they sign, and clients that trust them.

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::TempFolder;

/// A certificate authority, with the files of the certificates that it has signed.
pub(crate) struct Authority {
    folder: TempFolder,
    issuer: Issuer<'static, KeyPair>,
    /// PEM file with its certificate.
    pub(crate) certificate: PathBuf,
}

/// The PEM files of a certificate and its key.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let folder = TempFolder::new();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // A certificate of an authority must say so, or clients refuse what it has signed.
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority of the tests");
        let certificate = folder.write("authority.pem", params.self_signed(&key).unwrap().pem());
        Self { folder, issuer: Issuer::new(params, key), certificate }
    }

    /// A certificate for this machine, in files with this prefix. A second one replaces them.
    pub(crate) fn sign(&self, name: &str) -> Pair {
        let key = KeyPair::generate().unwrap();
        let hosts = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        // The key is written first. A server that reads between the two writes notices that they do not match.
        Pair {
            key: self.write(&format!("{name}.key.pem"), &key.serialize_pem()),
            certificate: self.write(&format!("{name}.pem"), &certificate),
        }
    }

    /// Writes a file beside the certificates atomically.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        let new = self.folder.write(&format!("{name}.new"), text);
        std::fs::rename(new, &path).unwrap();
        path
    }

    /// A client that trusts this authority, and presents a certificate if one is given.
    pub(crate) fn client(&self, shows: Option<&Pair>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.certificate).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match shows {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain = vec![CertificateDer::from_pem_file(&pair.certificate).unwrap()];
                let key = PrivateKeyDer::from_pem_file(&pair.key).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }

    /// A client that trusts this authority and offers only this protocol.
    pub(crate) fn client_of(&self, protocol: &str) -> Arc<ClientConfig> {
        let mut client = Arc::unwrap_or_clone(self.client(None));
        client.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        Arc::new(client)
    }
}

/// A self-signed certificate as made by `openssl req -x509`, for a name that no machine has.
pub(crate) fn self_signed(folder: &TempFolder) -> Pair {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["models.invalid".to_owned()]).unwrap();
    // `openssl req -x509` marks its certificates as those of an authority.
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    Pair {
        certificate: folder.write("own.pem", params.self_signed(&key).unwrap().pem()),
        key: folder.write("own.key.pem", key.serialize_pem()),
    }
}
