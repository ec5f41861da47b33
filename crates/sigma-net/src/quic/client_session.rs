//! The TLS session of a connection that this side opens. It keeps the reason of a failure, which QUIC reduces to the
//! number of an alert.

use std::any::Any;
use std::io::Cursor;
use std::sync::{Arc, Mutex, PoisonError};

use quinn_proto::crypto::{self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::pki_types::ServerName;
use rustls::quic::{ClientConnection, KeyChange, Secrets, Version};

use super::session::{INTERNAL_ERROR, keys_of, suite};
use crate::tls::{ClientTls, HandshakeError};

/// The bytes of the integrity tag at the end of a Retry packet (RFC 9001 §5.8).
const RETRY_TAG_BYTES: usize = 16;

/// The TLS settings of one handshake.
pub(super) struct ClientCrypto {
    tls: ClientTls,
    /// The reason for a failure on this side.
    failure: Arc<Mutex<Option<rustls::Error>>>,
}

impl ClientCrypto {
    /// Returns the settings, and the place where a failure will be.
    pub(super) fn new(tls: &ClientTls) -> (ClientCrypto, Failure) {
        let failure = Arc::default();
        (ClientCrypto { tls: tls.clone(), failure: Arc::clone(&failure) }, Failure(failure))
    }
}

/// The reason why a handshake has failed on this side, if it has.
pub(super) struct Failure(Arc<Mutex<Option<rustls::Error>>>);

impl Failure {
    /// Takes the reason.
    pub(super) fn take(&self) -> Option<HandshakeError> {
        let error = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        error.map(HandshakeError::Protocol)
    }
}

impl crypto::ClientConfig for ClientCrypto {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        parameters: &TransportParameters,
    ) -> Result<Box<dyn crypto::Session>, ConnectError> {
        if version != super::endpoint::VERSION {
            return Err(ConnectError::UnsupportedVersion);
        }
        let invalid = || ConnectError::InvalidServerName(server_name.into());
        let name = ServerName::try_from(server_name).map_err(|_| invalid())?.to_owned();
        let mut own = Vec::new();
        parameters.write(&mut own);
        let config = self.tls.quic_config();
        let connection = ClientConnection::new(config, Version::V1, name, own).map_err(|error| {
            set(&self.failure, error);
            invalid()
        })?;
        Ok(Box::new(Session { connection, failure: Arc::clone(&self.failure), next: None, has_told: false }))
    }
}

fn set(failure: &Mutex<Option<rustls::Error>>, error: rustls::Error) {
    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
}

/// A session; see the module.
struct Session {
    connection: ClientConnection,
    failure: Arc<Mutex<Option<rustls::Error>>>,
    next: Option<Secrets>,
    /// The state machine has learnt that the handshake data is there.
    has_told: bool,
}

impl crypto::Session for Session {
    fn initial_keys(&self, id: &ConnectionId, side: Side) -> Keys {
        let side = if side.is_client() { rustls::Side::Client } else { rustls::Side::Server };
        keys_of(suite().keys(id, side, Version::V1))
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        // Requests are never sent before the handshake is complete: a replay would repeat them.
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        Some(false)
    }

    fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        if let Err(error) = self.connection.read_hs(bytes) {
            let alert = self.connection.alert().map_or(INTERNAL_ERROR, u8::from);
            set(&self.failure, error);
            let code = TransportErrorCode::crypto(alert);
            return Err(TransportError { code, frame: None, reason: String::new() });
        }
        let is_there = self.connection.alpn_protocol().is_some() || !self.is_handshaking();
        Ok(is_there && !std::mem::replace(&mut self.has_told, true))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(bytes) = self.connection.quic_transport_parameters() else { return Ok(None) };
        Ok(Some(TransportParameters::read(Side::Client, &mut Cursor::new(bytes))?))
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        Some(match self.connection.write_hs(out)? {
            KeyChange::Handshake { keys } => keys_of(keys),
            KeyChange::OneRtt { keys, next } => {
                self.next = Some(next);
                keys_of(keys)
            }
        })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.next.as_mut()?.next_packet_keys();
        Some(KeyPair { local: Box::new(keys.local), remote: Box::new(keys.remote) })
    }

    fn is_valid_retry(&self, id: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        let Some(at) = payload.len().checked_sub(RETRY_TAG_BYTES) else { return false };
        let (rest, tag) = payload.split_at(at);
        super::retry::tag(id, &[header, rest].concat()) == tag
    }

    fn export_keying_material(
        &self,
        _out: &mut [u8],
        _label: &[u8],
        _context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        // No user of a connection needs it.
        Err(ExportKeyingMaterialError)
    }
}
