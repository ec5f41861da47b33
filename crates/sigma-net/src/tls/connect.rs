//! The handshake with a server.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ResolvesClientCert, Resumption, UnbufferedClientConnection, WebPkiServerVerifier, verify_server_name,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

use super::accept::shake;
use super::buffer::Buffer;
use super::pem::{self, Pair};
use super::postgres;
use super::session::{Session, Side};
use super::stream::TlsStream;
use super::{CertificateDer, Facts, HandshakeError, Offer, PROVIDER, Unusable, Versions};
use crate::deadline::Deadline;
use crate::stream::Stream;

/// The number of sessions for resumption, one for each server name.
const SESSIONS: usize = 256;

/// The usual files of trusted authorities on systems, in search order.
const SYSTEM_FILES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Trusted authorities for servers. Cheap to clone, so that many clients share them.
#[derive(Clone)]
pub struct Authorities {
    roots: Arc<RootCertStore>,
    /// Digests of the certificates themselves: a server may use one of them as its own.
    digests: Arc<HashSet<Box<[u8]>>>,
}

impl Authorities {
    /// Returns the system's trusted authorities: from the file in the environment's `SSL_CERT_FILE`, else from the
    /// first readable usual file. Unsupported authorities are omitted, as elsewhere.
    ///
    /// # Errors
    /// Returns an error if there is no such file, or no supported certificate in it.
    pub fn system() -> Result<Authorities, Unusable> {
        let named = std::env::var_os("SSL_CERT_FILE");
        let usual = SYSTEM_FILES.iter().map(Path::new);
        let bytes = match &named {
            Some(path) => std::fs::read(path).ok(),
            None => usual.map(std::fs::read).find_map(Result::ok),
        };
        let bytes = bytes.ok_or_else(|| {
            Unusable::new(
                "the system has no CA bundle; install the ca-certificates package, set SSL_CERT_FILE, or name a file in the configuration",
            )
        })?;
        let mut roots = RootCertStore::empty();
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok).collect();
        let digests = certificates.iter().map(digest).collect();
        roots.add_parsable_certificates(certificates);
        if roots.is_empty() {
            return Err(Unusable::new("the system's CA bundle contains no certificate"));
        }
        Ok(Authorities { roots: Arc::new(roots), digests: Arc::new(digests) })
    }

    /// Parses the certificates of a PEM text.
    ///
    /// # Errors
    /// Returns `failed to parse cert: …` if the text has no certificate.
    pub fn from_pem(text: &str) -> Result<Authorities, Unusable> {
        let (mut roots, mut digests) = (RootCertStore::empty(), HashSet::new());
        for certificate in pem::parse_chain(text)? {
            digests.insert(digest(&certificate));
            roots
                .add(certificate)
                .map_err(|error| Unusable::new(format!("failed to parse cert: {error}")))?;
        }
        Ok(Authorities { roots: Arc::new(roots), digests: Arc::new(digests) })
    }
}

fn digest(certificate: &CertificateDer<'_>) -> Box<[u8]> {
    aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, certificate).as_ref().into()
}

/// Returns true if `name` can be a server name: a DNS name or an address.
pub fn is_server_name(name: &str) -> bool {
    ServerName::try_from(name).is_ok()
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authorities({})", self.roots.len())
    }
}

/// The trusted servers.
#[derive(Debug, Clone, Default)]
pub enum Trust {
    /// Any server: a man in the middle is not detected.
    #[default]
    Anyone,
    /// Servers with a certificate by one of these authorities, for the requested name.
    Authorities(Authorities),
}

/// The settings of a [`ClientTls`].
#[derive(Debug, Clone, Default)]
pub struct ClientSettings {
    /// Which servers are trusted.
    pub trust: Trust,
    /// The certificate for servers that request one.
    pub pair: Option<Pair>,
    /// Protocols above TLS, the preferred first; empty for no negotiation.
    pub alpn: Vec<Vec<u8>>,
    /// The offered versions.
    pub versions: Versions,
    /// The offered ciphers and groups.
    pub offer: Offer,
    /// Whether TLS is first requested in cleartext, as PostgreSQL servers expect it.
    pub requests_tls: bool,
}

/// The TLS settings towards one upstream, ready for handshakes. Connections that share them resume sessions.
#[derive(Debug, Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    requests_tls: bool,
}

impl ClientTls {
    /// Prepares settings for handshakes.
    ///
    /// # Errors
    /// Returns an error if the authorities or versions cannot be used.
    pub fn new(settings: ClientSettings) -> Result<ClientTls, Unusable> {
        let unusable = |error: &dyn fmt::Display| Unusable::new(error.to_string());
        let verifier: Arc<dyn ServerCertVerifier> = match settings.trust {
            Trust::Anyone => Arc::new(Trusting),
            Trust::Authorities(Authorities { roots, digests }) => {
                let builder = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&PROVIDER));
                Arc::new(Vouched { chain: builder.build().map_err(|error| unusable(&error))?, digests })
            }
        };
        let builder = ClientConfig::builder_with_provider(settings.offer.provider())
            .with_protocol_versions(settings.versions.supported())
            .map_err(|error| unusable(&error))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match settings.pair {
            Some(pair) => builder.with_client_cert_resolver(Arc::new(Own(Arc::clone(pair.key())))),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = settings.alpn;
        config.resumption = Resumption::in_memory_sessions(SESSIONS);
        Ok(ClientTls { config: Arc::new(config), requests_tls: settings.requests_tls })
    }

    /// Returns true if both are the same object, so that a connection of one fits the other.
    pub fn is_same(&self, other: &ClientTls) -> bool {
        Arc::ptr_eq(&self.config, &other.config)
    }

    /// Returns true if the server may choose HTTP/2.
    pub fn offers_http2(&self) -> bool {
        self.config.alpn_protocols.iter().any(|protocol| protocol == b"h2")
    }

    /// Returns the configuration for handshakes within QUIC.
    pub(crate) fn quic_config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    /// Returns settings for tests with a configuration that settings cannot express.
    #[cfg(test)]
    pub(super) fn from_config(config: ClientConfig) -> ClientTls {
        ClientTls { config: Arc::new(config), requests_tls: false }
    }

    /// Runs the handshake with the server of `socket` for `name`: a DNS name, or an address, which is verified but
    /// not sent (RFC 6066 §3).
    ///
    /// # Errors
    /// Returns an error if the handshake fails for any reason.
    pub async fn connect(
        &self,
        socket: Stream,
        name: &str,
        timeout_ms: u64,
    ) -> Result<Stream, HandshakeError> {
        let deadline = Deadline::new();
        deadline.set(timeout_ms);
        deadline.bound(self.shake(socket, name)).await.unwrap_or(Err(HandshakeError::TimedOut))
    }

    /// As [`ClientTls::connect`], for a thread with its own timers.
    ///
    /// # Errors
    /// Returns an error if the handshake fails for any reason.
    pub async fn shake(&self, mut socket: Stream, name: &str) -> Result<Stream, HandshakeError> {
        let server = ServerName::try_from(name).map_err(|_| HandshakeError::BadName)?.to_owned();
        let connection = UnbufferedClientConnection::new(Arc::clone(&self.config), server)
            .map_err(HandshakeError::Protocol)?;
        if self.requests_tls {
            postgres::request_tls(&mut socket).await?;
        }
        let mut session = Session::new(Side::Client(connection), Buffer::default());
        shake(&mut socket, &mut session).await?;
        let facts = Facts { server_name: Some(name.into()), ..Facts::of(session.common()) };
        Ok(Stream::Tls(Box::new(TlsStream::new(socket, session, facts))))
    }
}

/// Presents one certificate to every server.
#[derive(Debug)]
struct Own(Arc<CertifiedKey>);

impl ResolvesClientCert for Own {
    fn resolve(&self, _hints: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.key.choose_scheme(schemes).map(|_| Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Trusts servers with a certificate by an authority, and servers that present a trusted certificate as their own: a
/// self-signed one is formally an authority, which the usual check rejects for servers.
#[derive(Debug)]
struct Vouched {
    chain: Arc<WebPkiServerVerifier>,
    digests: Arc<HashSet<Box<[u8]>>>,
}

impl ServerCertVerifier for Vouched {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let judged =
            self.chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match judged {
            // This error comes after the check of validity times; the name is not checked yet.
            Err(error) if is_of_authority(&error) && self.digests.contains(&digest(end_entity)) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            judged => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Returns true if a certificate was rejected only for being an authority's.
fn is_of_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(OtherError(error))) = error else { return false };
    matches!(error.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// Trusts every server. Signatures are not checked either: with an untrusted key they prove nothing, and odd
/// certificates of old servers would fail.
#[derive(Debug)]
struct Trusting;

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        PROVIDER.signature_verification_algorithms.supported_schemes()
    }
}
