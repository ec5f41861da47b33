//! The result of a handshake.

use std::sync::Arc;

use rustls::{CipherSuite, CommonState, HandshakeKind, ProtocolVersion};

use super::{CertificateDer, EarlyHandshake, Inquiry, ServerIdentity, Version};

/// The status of the client's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificate {
    /// It was not requested
    NotAsked,
    /// It was requested, and the client sent none
    Absent,
    /// It is valid and issued by a trusted authority
    Verified,
    /// It is not trusted; only the client's possession of its key is proved
    Refused,
}

impl ClientCertificate {
    /// Returns the value of nginx's `$ssl_client_verify`.
    pub fn as_str(self) -> &'static str {
        match self {
            ClientCertificate::NotAsked | ClientCertificate::Absent => "NONE",
            ClientCertificate::Verified => "SUCCESS",
            ClientCertificate::Refused => "FAILED",
        }
    }
}

/// The result of a connection's handshake.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The negotiated protocol above TLS (RFC 7301), if there is one.
    pub alpn: Option<Box<[u8]>>,
    /// The version of TLS.
    pub version: Version,
    /// The cipher suite, with its OpenSSL name.
    pub cipher: &'static str,
    /// The key exchange, such as `X25519MLKEM768`; empty for a resumed session of TLS 1.2.
    pub key_exchange: &'static str,
    /// The name that the client requested.
    pub server_name: Option<Arc<str>>,
    /// On the server's side: the fingerprint of the ClientHello (JA4).
    pub ja4: Option<Box<str>>,
    /// The peer's certificates, its own first; empty without one.
    pub peer_chain: Arc<[CertificateDer<'static>]>,
    /// On the server's side: the status of the client's certificate.
    pub client_certificate: ClientCertificate,
    /// The [revision](super::ClientAuth::revision) of its verdict.
    pub revision: u64,
    /// Keeps the responder's status of the client's certificate up to date.
    pub inquiry: Option<Arc<Inquiry>>,
    /// The session was resumed.
    pub is_resumed: bool,
    /// On the server's side: the handshake, if early data came before its end.
    pub early: Option<Arc<EarlyHandshake>>,
    /// On the server's side: the identity that the client sees.
    pub identity: Option<Arc<ServerIdentity>>,
}

impl Facts {
    /// Returns the facts that both sides of a connection have.
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
            early: None,
            identity: None,
        }
    }
}

/// Returns the OpenSSL name of a suite, which access logs show.
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
    fn every_offered_suite_has_its_own_name() {
        for suite in &super::super::PROVIDER.cipher_suites {
            let name = cipher_name(suite.suite());
            assert!(!name.starts_with("TLS13_") && !name.contains("WITH"), "{name}");
        }
    }
}
