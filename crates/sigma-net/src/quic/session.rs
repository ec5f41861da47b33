//! The TLS session of a client's QUIC connection: it reads the ClientHello, chooses the identity by its name, and only
//! then begins the handshake.

use std::any::Any;
use std::io::Cursor;
use std::sync::{Arc, OnceLock};

use quinn_proto::crypto::{
    self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::quic::{KeyChange, Secrets, ServerConnection, Suite, Version};

use crate::tls::quic::{Chosen, choose, initial_suite};
use crate::tls::{EarlyOffer, Facts, HandshakeError, Offer, ServerIdentity};

/// The alert for a name without a certificate (RFC 6066 §3), and for an internal problem (RFC 8446 §6.2).
const UNRECOGNIZED_NAME: u8 = 112;
const PROTOCOL_VERSION: u8 = 70;
const DECODE_ERROR: u8 = 50;
pub(super) const INTERNAL_ERROR: u8 = 80;

/// The identities that a listener shows, by the requested name.
pub trait Identities: Send + Sync {
    /// Returns the identity for a name; None if the handshake must fail.
    fn choose(&self, name: Option<&str>) -> Option<Arc<ServerIdentity>>;
}

/// The TLS options of one handshake.
pub(super) struct ServerCrypto {
    pub(super) identities: Arc<dyn Identities>,
    pub(super) offer: Offer,
    pub(super) hello_bytes: usize,
    pub(super) alpn: Vec<Vec<u8>>,
    /// The accepted early data.
    pub(super) early: Option<Early>,
    /// The reason for a failure, for logs.
    pub(super) failure: OnceLock<HandshakeError>,
}

/// The early data of one handshake.
pub(super) struct Early {
    pub(super) offer: EarlyOffer,
    /// The client has proved its address. Otherwise its tickets allow early data, but this handshake does not: rules
    /// would see a forged address.
    pub(super) is_accepted: bool,
}

/// Returns the suite of the first packets, whose keys everyone can derive.
pub(super) fn suite() -> Suite {
    initial_suite()
}

pub(super) fn keys_of(keys: rustls::quic::Keys) -> Keys {
    Keys {
        header: KeyPair { local: Box::new(keys.local.header), remote: Box::new(keys.remote.header) },
        packet: KeyPair { local: Box::new(keys.local.packet), remote: Box::new(keys.remote.packet) },
    }
}

impl crypto::ServerConfig for ServerCrypto {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        match version {
            1 => Ok(keys_of(suite().keys(id, rustls::Side::Server, Version::V1))),
            _ => Err(UnsupportedVersion),
        }
    }

    fn retry_tag(&self, _version: u32, id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        super::retry::tag(id, packet)
    }

    fn start_session(
        self: Arc<Self>,
        _version: u32,
        parameters: &TransportParameters,
    ) -> Box<dyn crypto::Session> {
        let mut own = Vec::new();
        parameters.write(&mut own);
        Box::new(Session { crypto: self, state: State::Hello { read: Vec::new(), parameters: own } })
    }
}

/// The progress of a handshake.
enum State {
    /// The ClientHello is incomplete.
    Hello { read: Vec<u8>, parameters: Vec<u8> },
    /// The handshake runs, or has ended.
    Chosen(Box<Running>),
}

struct Running {
    connection: ServerConnection,
    chosen: Chosen,
    next: Option<Secrets>,
}

/// A session; see the module.
struct Session {
    crypto: Arc<ServerCrypto>,
    state: State,
}

impl Session {
    fn fail(&self, error: HandshakeError, alert: u8) -> TransportError {
        let _ = self.crypto.failure.set(error);
        TransportError { code: TransportErrorCode::crypto(alert), frame: None, reason: String::new() }
    }

    /// Begins the handshake if the ClientHello is complete.
    fn begin(&mut self) -> Result<bool, TransportError> {
        let State::Hello { read, parameters } = &mut self.state else { return Ok(false) };
        let length = match &read[..] {
            [1, a, b, c, ..] => 4 + u32::from_be_bytes([0, *a, *b, *c]) as usize,
            // Not a ClientHello: the library names the problem.
            [_, _, _, _, ..] => read.len(),
            _ => return Ok(false),
        };
        if length > self.crypto.hello_bytes {
            return Err(self.fail(HandshakeError::HelloTooLarge, DECODE_ERROR));
        }
        if read.len() < length {
            return Ok(false);
        }
        let (read, parameters) = (std::mem::take(read), std::mem::take(parameters));
        let crypto = &self.crypto;
        let early = crypto.early.as_ref();
        let offer = early.map(|early| &early.offer);
        let chosen = choose(&read[4..length], &crypto.alpn, &crypto.offer, offer, |name| {
            crypto.identities.choose(name)
        });
        let (config, chosen) = match chosen {
            Ok(chosen) => chosen,
            Err(error @ HandshakeError::NoVersion) => return Err(self.fail(error, PROTOCOL_VERSION)),
            Err(error @ HandshakeError::NoCertificate(_)) => {
                return Err(self.fail(error, UNRECOGNIZED_NAME));
            }
            Err(error) => return Err(self.fail(error, INTERNAL_ERROR)),
        };
        let is_rejected = early.is_some_and(|early| !early.is_accepted);
        let mut connection = ServerConnection::new(config, Version::V1, parameters)
            .map_err(|error| self.fail(HandshakeError::Protocol(error), INTERNAL_ERROR))?;
        if is_rejected {
            connection.reject_early_data();
        }
        self.state = State::Chosen(Box::new(Running { connection, chosen, next: None }));
        self.read(&read)?;
        Ok(true)
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        let State::Chosen(running) = &mut self.state else { return Ok(()) };
        let Err(error) = running.connection.read_hs(bytes) else { return Ok(()) };
        let alert = running.connection.alert().map_or(INTERNAL_ERROR, u8::from);
        Err(self.fail(HandshakeError::Protocol(error), alert))
    }

    fn running(&self) -> Option<&Running> {
        match &self.state {
            State::Chosen(running) => Some(running),
            State::Hello { .. } => None,
        }
    }
}

/// The result of a handshake, before the verdict about the client.
pub(super) struct Shaken {
    pub(super) facts: Facts,
    pub(super) chosen: Chosen,
}

impl crypto::Session for Session {
    fn initial_keys(&self, id: &ConnectionId, side: Side) -> Keys {
        let side = if side.is_client() { rustls::Side::Client } else { rustls::Side::Server };
        keys_of(suite().keys(id, side, Version::V1))
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
    }

    /// Returns [`Shaken`].
    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        let running = self.running()?;
        let facts = Facts::of_quic(&running.connection);
        Some(Box::new(Shaken { facts, chosen: running.chosen.clone() }))
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let keys = self.running()?.connection.zero_rtt_keys()?;
        Some((Box::new(keys.header), Box::new(keys.packet)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.running().is_none_or(|running| running.connection.is_handshaking())
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        if let State::Hello { read, .. } = &mut self.state {
            read.extend_from_slice(bytes);
            return self.begin();
        }
        self.read(bytes)?;
        Ok(false)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(bytes) = self.running().and_then(|running| running.connection.quic_transport_parameters())
        else {
            return Ok(None);
        };
        Ok(Some(TransportParameters::read(Side::Server, &mut Cursor::new(bytes))?))
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let State::Chosen(running) = &mut self.state else { return None };
        Some(match running.connection.write_hs(out)? {
            KeyChange::Handshake { keys } => keys_of(keys),
            KeyChange::OneRtt { keys, next } => {
                running.next = Some(next);
                keys_of(keys)
            }
        })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let State::Chosen(running) = &mut self.state else { return None };
        let keys = running.next.as_mut()?.next_packet_keys();
        Some(KeyPair { local: Box::new(keys.local), remote: Box::new(keys.remote) })
    }

    fn is_valid_retry(&self, _id: &ConnectionId, _header: &[u8], _payload: &[u8]) -> bool {
        // Only clients get one.
        false
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
