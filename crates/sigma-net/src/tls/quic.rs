//! TLS within QUIC, from the view of identities: the choice by the ClientHello and the facts.

use std::sync::Arc;

use rustls::quic::{ServerConnection, Suite};
use rustls::{CipherSuite, ServerConfig};

use super::accept::verdict;
use super::identity::Order;
use super::{
    ClientAuth, EarlyHandshake, EarlyOffer, Facts, HandshakeError, Offer, PROVIDER, ServerIdentity, Versions,
    ja4, prefers_chacha,
};

/// The choice that a ClientHello led to.
#[derive(Clone)]
pub(crate) struct Chosen {
    identity: Arc<ServerIdentity>,
    name: Option<Arc<str>>,
    ja4: Option<Box<str>>,
    /// The revision of verdicts before the handshake: later lists are newer than its verdict.
    revision: u64,
}

/// Chooses the identity for the body of a ClientHello; returns the configuration of its handshake as well.
///
/// # Errors
/// Returns an error if no identity is for the name, or it does not allow TLS 1.3.
pub(crate) fn choose(
    hello: &[u8],
    alpn: &[Vec<u8>],
    offer: &Offer,
    early: Option<&EarlyOffer>,
    choose: impl FnOnce(Option<&str>) -> Option<Arc<ServerIdentity>>,
) -> Result<(Arc<ServerConfig>, Chosen), HandshakeError> {
    // A hello that cannot be parsed is the library's to reject, under the identity without a name.
    let read = ja4::read(hello);
    let name: Option<Arc<str>> = read.as_ref().and_then(|read| read.server_name()).map(Arc::from);
    let ciphers: Vec<CipherSuite> =
        read.iter().flat_map(|read| read.ciphers()).map(|suite| CipherSuite::from(*suite)).collect();
    let order = if prefers_chacha(&ciphers) { Order::Clients } else { Order::Ours };
    let identity = match choose(name.as_deref()) {
        Some(identity) if !identity.refuses() => identity,
        _ => return Err(HandshakeError::NoCertificate(name.as_deref().map(Box::from))),
    };
    let versions = Versions::ONLY_13.and(identity.versions());
    if versions.is_empty() {
        return Err(HandshakeError::NoVersion);
    }
    let config = identity.config(versions, alpn, order, offer, early).map_err(HandshakeError::Protocol)?;
    let revision = identity.client_auth().map_or(0, ClientAuth::revision);
    let ja4 = read.map(|read| read.fingerprint_over_quic().into());
    Ok((config, Chosen { identity, name, ja4, revision }))
}

impl Chosen {
    /// Completes the facts of a finished handshake; the client's certificate may be rejected.
    ///
    /// # Errors
    /// Returns an error if the client's certificate is required and not trusted.
    pub(crate) async fn judge(self, mut facts: Facts) -> Result<Facts, HandshakeError> {
        let Chosen { identity, name, ja4, revision } = self;
        if let Some(auth) = identity.client_auth().filter(|auth| auth.inquires()) {
            facts.inquiry = Box::pin(auth.inquire(&facts.peer_chain)).await;
        }
        verdict(&mut facts, &identity).map_err(HandshakeError::Protocol)?;
        Ok(Facts { server_name: name, identity: Some(identity), revision, ja4, ..facts })
    }
}

impl Facts {
    /// Returns the facts of a session within QUIC, whose handshake may go on during early data.
    pub(crate) fn of_quic(connection: &ServerConnection) -> Facts {
        let early = connection.is_handshaking().then(EarlyHandshake::new);
        Facts { early, ..Facts::of(connection) }
    }
}

/// Returns the suite of Initial packets (RFC 9001 §5.2).
///
/// # Panics
/// Panics if the provider lacks it: it has all suites of TLS 1.3.
pub(crate) fn initial_suite() -> Suite {
    let suites = PROVIDER.cipher_suites.iter();
    let of_quic = |suite: &rustls::SupportedCipherSuite| match suite.suite() {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => suite.tls13().and_then(|suite| suite.quic_suite()),
        _ => None,
    };
    suites.filter_map(of_quic).next().expect("aws-lc has AES-128-GCM for QUIC")
}
