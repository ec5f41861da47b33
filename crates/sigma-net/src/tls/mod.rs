//! TLS: the choice of certificates, the handshake, and records on a stream.
//!
//! - [`pem`] parses the operator's certificates and keys, and checks that they match.
//! - [`ServerIdentity`] is an identity of the gateway: its certificates, protocol versions and demands on clients.
//!   Everything fallible happens when it is built.
//! - [`Certificates`] finds the identity for a name. It never changes; a new one is published as a whole, and
//!   running handshakes keep the old one.
//! - [`accept`] runs the handshake with a client, [`ClientTls::connect`] with a server. Both turn a
//!   [`Stream`](crate::Stream) into another one, with [`Facts`] about the result.
//!
//! The cryptography is aws-lc's, built with only a C compiler. Key exchange prefers X25519MLKEM768, which protects
//! recorded traffic from future quantum computers. Versions before 1.2 and ciphers without forward secrecy are never
//! offered.

mod accept;
mod buffer;
pub mod certificate;
mod certificates;
mod client_auth;
mod compression;
mod connect;
mod der;
mod early_data;
mod encrypted_key;
mod facts;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod identity;
mod inquiry;
mod ja4;
mod ocsp;
mod offer;
pub mod pem;
pub mod postgres;
pub(crate) mod quic;
pub mod reason;
mod resumption;
mod revocation;
mod session;
mod signed;
mod staple;
mod stream;
#[cfg(test)]
mod tests;
mod versions;

use std::fmt;
use std::io;
use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;
use rustls::{CipherSuite, SupportedCipherSuite};

pub use accept::{AcceptOptions, Greeting, Handshakes, Issuer, Obtained, Proofs, accept};
pub use certificates::Certificates;
pub use client_auth::{ClientAuth, Demand};
pub use connect::{Authorities, ClientSettings, ClientTls, Trust, is_server_name};
pub use early_data::{EarlyHandshake, EarlyOffer};
pub use encrypted_key::KeyPassphrases;
pub use facts::{ClientCertificate, Facts};
pub use identity::{Identity, ServerIdentity};
pub use inquiry::{Inquiries, Inquiring, Inquiry, Standing};
pub use ocsp::{OcspAnswer, OcspQuestion, RevocationStatus, Signer, must_be_stapled};
pub use offer::Offer;
pub use resumption::{Resumption, SessionCache, SharedKey, TicketKeys};
pub use revocation::{Crl, Looked, Revocation, RevocationLists, WithoutAnswer};
pub use staple::Staple;
pub use stream::TlsStream;
pub use versions::{Version, Versions};

/// A certificate in DER.
pub use rustls::pki_types::CertificateDer;

/// The only provider of cryptography.
static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(thrifty(rustls::crypto::aws_lc_rs::default_provider())));

/// Puts AES-128 with SHA-256 first: it is not weaker than the keys of the handshake, and processors have SHA-256 in
/// hardware. AES-256 comes with SHA-384, which costs a quarter of the instructions of a handshake.
fn thrifty(mut provider: CryptoProvider) -> CryptoProvider {
    let is_aes_128 =
        |suite: &SupportedCipherSuite| suite.suite().as_str().is_some_and(|name| name.contains("_AES_128_"));
    provider.cipher_suites.sort_by_key(|suite| (suite.tls13().is_none(), !is_aes_128(suite)));
    provider
}

/// Returns true if a client prefers ChaCha20: it has no hardware for AES, which would be slow for it.
fn prefers_chacha(offered: &[CipherSuite]) -> bool {
    let ours = |offered: &&CipherSuite| PROVIDER.cipher_suites.iter().any(|own| own.suite() == **offered);
    let first = offered.iter().find(ours).and_then(CipherSuite::as_str);
    first.is_some_and(|name| name.contains("_CHACHA20_"))
}

/// Unusable TLS material; the text has the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable(String);

impl Unusable {
    pub(crate) fn new(text: impl Into<String>) -> Unusable {
        Unusable(text.into())
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

/// The reason for a failed handshake.
#[derive(Debug)]
pub enum HandshakeError {
    /// It was not complete in time.
    TimedOut,
    /// The client fell silent, while others waited for its place.
    Displaced,
    /// The peer closed the connection.
    Closed,
    /// The connection broke.
    Io(io::Error),
    /// The ClientHello exceeds its limit.
    HelloTooLarge,
    /// No certificate matches the requested name, or the client sent no name.
    NoCertificate(Option<Box<str>>),
    /// The certificate for this name and the listener have no protocol version in common.
    NoVersion,
    /// The client sent cleartext: all bytes read, if they begin an HTTP request.
    Cleartext(Option<Box<[u8]>>),
    /// Bytes came behind a request for TLS, or behind the response to it, before there was TLS.
    Premature,
    /// The server declines TLS.
    Declined,
    /// The server responds to a request for TLS in the way of another protocol.
    OtherProtocol,
    /// The peer or its certificate broke a rule of the protocol.
    Protocol(rustls::Error),
    /// An authority has seen the proof of a name, which ends the connection.
    Proved,
    /// The name of the server is neither a DNS name nor an address.
    BadName,
}

/// The cause of a failed handshake, as far as it is useful in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeCause {
    /// The peer's certificate, or its absence
    Certificate,
    /// An alert of the peer
    Alert,
    /// Another cause
    Protocol,
}

/// The problem with a certificate. Each needs another remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BadCertificate {
    /// It is not issued by a trusted authority, or an intermediate certificate is missing
    Untrusted,
    /// It is for other names than the requested one
    WrongName,
    /// It has expired
    Expired,
    /// It is not valid yet
    NotYetValid,
    /// Its authority has revoked it
    Revoked,
    /// Another problem
    Other,
}

impl HandshakeError {
    /// Returns the problem with the peer's certificate, if that is the cause.
    pub fn bad_certificate(&self) -> Option<BadCertificate> {
        use rustls::CertificateError as E;
        match self {
            HandshakeError::Protocol(rustls::Error::InvalidCertificate(error)) => Some(match error {
                E::UnknownIssuer => BadCertificate::Untrusted,
                E::NotValidForName | E::NotValidForNameContext { .. } => BadCertificate::WrongName,
                E::Expired | E::ExpiredContext { .. } => BadCertificate::Expired,
                E::NotValidYet | E::NotValidYetContext { .. } => BadCertificate::NotYetValid,
                E::Revoked => BadCertificate::Revoked,
                _ => BadCertificate::Other,
            }),
            _ if self.cause() == HandshakeCause::Certificate => Some(BadCertificate::Other),
            _ => None,
        }
    }

    /// Returns the cause.
    pub fn cause(&self) -> HandshakeCause {
        use rustls::Error::{
            AlertReceived, InvalidCertRevocationList, InvalidCertificate, NoCertificatesPresented,
        };
        match self {
            HandshakeError::Protocol(
                InvalidCertificate(_) | InvalidCertRevocationList(_) | NoCertificatesPresented,
            ) => HandshakeCause::Certificate,
            HandshakeError::Protocol(AlertReceived(_)) => HandshakeCause::Alert,
            _ => HandshakeCause::Protocol,
        }
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::TimedOut => f.write_str("the TLS handshake was not complete in time"),
            HandshakeError::Displaced => {
                f.write_str("the client sent nothing during the TLS handshake while other handshakes waited")
            }
            HandshakeError::Closed => f.write_str("the peer closed the connection during the TLS handshake"),
            HandshakeError::Io(error) => write!(f, "the connection broke during the TLS handshake: {error}"),
            HandshakeError::HelloTooLarge => f.write_str("the ClientHello is too large"),
            HandshakeError::NoCertificate(Some(name)) => write!(f, "no certificate for the name {name}"),
            HandshakeError::NoCertificate(None) => {
                f.write_str("the client sent no server name (SNI), and there is no default certificate")
            }
            HandshakeError::NoVersion => {
                f.write_str("the listener and the certificate allow no TLS version in common")
            }
            HandshakeError::Cleartext(Some(_)) => {
                f.write_str("the client sent HTTP in cleartext, and the listener has TLS")
            }
            HandshakeError::Cleartext(None) => {
                f.write_str("the client sent cleartext, and the listener has TLS")
            }
            HandshakeError::Premature => {
                f.write_str("extra bytes after PostgreSQL's SSLRequest or its response, before TLS began")
            }
            HandshakeError::Declined => {
                f.write_str("the server does not support TLS: it responded N to PostgreSQL's SSLRequest")
            }
            HandshakeError::OtherProtocol => {
                f.write_str("the server did not respond S or N to PostgreSQL's SSLRequest")
            }
            HandshakeError::Protocol(error) => {
                write!(f, "the TLS handshake failed: {}", reason::text_of(error))
            }
            HandshakeError::Proved => f.write_str("an authority has seen the proof of a name"),
            HandshakeError::BadName => {
                f.write_str("the name of the server is neither a DNS name nor an address")
            }
        }
    }
}

impl std::error::Error for HandshakeError {}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> HandshakeError {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof, WriteZero};
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof | WriteZero => {
                HandshakeError::Closed
            }
            _ => HandshakeError::Io(error),
        }
    }
}
