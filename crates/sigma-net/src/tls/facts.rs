//! The outcome of a handshake.

use std::sync::Arc;

use rustls::{CipherSuite, CommonState, HandshakeKind, ProtocolVersion};

use super::{CertificateDer, Inquiry, ServerIdentity, Version};

/// The known facts about the client's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificate {
    /// None was asked for.
    NotAsked,
    /// It was asked for, and the client gave none.
    Absent,
    /// It was issued by a trusted authority, and is in force.
    Verified,
    /// It is not to be trusted; that the client holds its key is all that is sure.
    Refused,
}

impl ClientCertificate {
    /// As nginx's `$ssl_client_verify` shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            ClientCertificate::NotAsked | ClientCertificate::Absent => "NONE",
            ClientCertificate::Verified => "SUCCESS",
            ClientCertificate::Refused => "FAILED",
        }
    }
}

/// The outcome of a connection's handshake.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The protocol above TLS (RFC 7301), if one was agreed on.
    pub alpn: Option<Box<[u8]>>,
    /// The version of TLS.
    pub version: Version,
    /// The cipher suite, as OpenSSL names it.
    pub cipher: &'static str,
    /// How the key was agreed on, such as `X25519MLKEM768`; empty for a resumed session of TLS 1.2.
    pub key_exchange: &'static str,
    /// The name that the client asked for.
    pub server_name: Option<Arc<str>>,
    /// On the server's side: what the client's first message looks like (JA4).
    pub ja4: Option<Box<str>>,
    /// The peer's certificates, its own first; empty if it gave none.
    pub peer_chain: Arc<[CertificateDer<'static>]>,
    /// On the server's side: what is known of the client's certificate.
    pub client_certificate: ClientCertificate,
    /// The [revision](super::ClientAuth::revision) by which it was judged.
    pub revision: u64,
    /// Keeps up to date what a responder says of the client's certificate.
    pub inquiry: Option<Arc<Inquiry>>,
    /// The session goes on from an earlier connection.
    pub is_resumed: bool,
    /// On the server's side: who the client sees.
    pub identity: Option<Arc<ServerIdentity>>,
}

impl Facts {
    /// The facts that both sides of a connection have.
    pub(super) fn of(connection: &CommonState) -> Facts {
        let version = match connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => Version::Tls12,
            _ => Version::Tls13,
        };
        let group = connection.negotiated_key_exchange_group();
        let suite = connection.negotiated_cipher_suite().map(|suite| suite.suite());
        Facts {
            alpn: connection.alpn_protocol().map(Box::from),
            version,
            cipher: suite.map_or("", cipher_name),
            key_exchange: group.and_then(|group| group.name().as_str()).unwrap_or(""),
            server_name: None,
            ja4: None,
            peer_chain: connection.peer_certificates().unwrap_or_default().into(),
            client_certificate: ClientCertificate::NotAsked,
            revision: 0,
            inquiry: None,
            is_resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
            identity: None,
        }
    }
}

/// The name of a suite in OpenSSL, which is what access logs show.
pub(super) fn cipher_name(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => "ECDHE-ECDSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => "ECDHE-ECDSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-ECDSA-CHACHA20-POLY1305",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => "ECDHE-RSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => "ECDHE-RSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-RSA-CHACHA20-POLY1305",
        other => other.as_str().unwrap_or(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_on_offer_has_its_own_name() {
        for suite in &super::super::PROVIDER.cipher_suites {
            let name = cipher_name(suite.suite());
            assert!(!name.starts_with("TLS13_") && !name.contains("WITH"), "{name}");
        }
    }
}
