//! Connection ids that name their worker, and the keys of an endpoint.
//!
//! An id is one AES block over the generation of the process, the number of the worker, a check word and a counter.
//! So nothing in it is readable or linkable without the key, and a worker that gets a foreign packet finds its owner.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::cipher::{AES_128, DecryptingKey, DecryptionContext, EncryptingKey, UnboundCipherKey};
use aws_lc_rs::{hkdf, hmac};
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

use super::steer::Steering;
use super::tokens::UsedTokens;
use crate::secret::SecretBytes;
use crate::tls::Unusable;

/// The length of our connection ids: one block of AES.
pub(super) const ID_BYTES: usize = 16;

/// A connection id of ours.
pub(super) type Id = [u8; ID_BYTES];

/// The bytes of all keys.
const KEY_BYTES: usize = 16 + 64 + 64;

/// The keys of an address: for connection ids, stateless resets and tokens of address validation. All workers have
/// the same, and so has the next process, so that it still knows the connections of the one before.
pub struct QuicKeys {
    bytes: SecretBytes,
    seal: EncryptingKey,
    open: DecryptingKey,
    /// The counter of the next id, for all workers.
    next: AtomicU64,
    /// The tokens that clients have used.
    used: Arc<UsedTokens>,
}

impl QuicKeys {
    /// Returns new keys.
    ///
    /// # Errors
    /// Returns an error if the system has no random bytes.
    pub fn random() -> Result<QuicKeys, Unusable> {
        let mut bytes = SecretBytes::zeroed(KEY_BYTES);
        getrandom::fill(&mut bytes).map_err(|_| Unusable::new("cannot get random bytes for QUIC keys"))?;
        QuicKeys::of(bytes)
    }

    /// Reads keys from their [bytes](QuicKeys::bytes).
    ///
    /// # Errors
    /// Returns an error if their number is wrong.
    pub fn read(bytes: &[u8]) -> Result<QuicKeys, Unusable> {
        if bytes.len() != KEY_BYTES {
            return Err(Unusable::new("the QUIC keys have the wrong length"));
        }
        QuicKeys::of(bytes.into())
    }

    fn of(bytes: SecretBytes) -> Result<QuicKeys, Unusable> {
        let failed = |_| Unusable::new("the QUIC keys are invalid");
        let key = || UnboundCipherKey::new(&AES_128, &bytes[..16]);
        let seal = key().and_then(EncryptingKey::ecb).map_err(failed)?;
        let open = key().and_then(DecryptingKey::ecb).map_err(failed)?;
        let mut start = [0; 8];
        getrandom::fill(&mut start)
            .map_err(|_| Unusable::new("cannot get random bytes for QUIC connection ids"))?;
        Ok(QuicKeys {
            bytes,
            seal,
            open,
            next: AtomicU64::new(u64::from_ne_bytes(start)),
            used: Arc::default(),
        })
    }

    /// Returns their bytes, which are secret.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the key of stateless resets.
    pub(super) fn reset(&self) -> Arc<hmac::Key> {
        Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &self.bytes[16..80]))
    }

    /// Returns the key of tokens.
    pub(super) fn tokens(&self) -> Arc<hkdf::Prk> {
        Arc::new(hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&self.bytes[80..]))
    }

    /// Returns the log of used tokens.
    pub(super) fn used_tokens(&self) -> Arc<UsedTokens> {
        Arc::clone(&self.used)
    }

    /// Returns a new id for a place.
    fn seal(&self, place: ConnectionOwner) -> [u8; ID_BYTES] {
        let mut id = [0; ID_BYTES];
        id[..2].copy_from_slice(&place.generation.to_be_bytes());
        id[2..4].copy_from_slice(&place.worker.to_be_bytes());
        // Relaxed: only the numbers have to differ.
        id[8..].copy_from_slice(&self.next.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        // A whole block always encrypts.
        let _ = self.seal.encrypt(&mut id);
        id
    }

    /// Returns the place in an id; None if the id is not one of ours.
    pub(super) fn open(&self, id: &[u8]) -> Option<ConnectionOwner> {
        let mut id: [u8; ID_BYTES] = id.try_into().ok()?;
        self.open.decrypt(&mut id, DecryptionContext::None).ok()?;
        let [a, b, c, d, 0, 0, 0, 0, ..] = id else { return None };
        Some(ConnectionOwner { generation: u16::from_be_bytes([a, b]), worker: u16::from_be_bytes([c, d]) })
    }
}

impl fmt::Debug for QuicKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QuicKeys")
    }
}

/// The owner of a connection: a worker of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionOwner {
    /// The number of the process among its predecessors.
    pub generation: u16,
    /// The number of the worker.
    pub worker: u16,
}

/// The most draws for an id that the kernel steers; then any id serves, and the packet is forwarded.
const DRAWS_MAX: u32 = 4096;

/// Makes the ids of one endpoint.
pub(super) struct IdGenerator {
    pub(super) keys: Arc<QuicKeys>,
    pub(super) place: ConnectionOwner,
    pub(super) steering: Option<Steering>,
}

impl ConnectionIdGenerator for IdGenerator {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = self.keys.seal(self.place);
        if let Some(steering) = self.steering.filter(|steering| steering.sockets > 1) {
            for _ in 0..DRAWS_MAX {
                if steering.fits(&id) {
                    break;
                }
                id = self.keys.seal(self.place);
            }
        }
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        self.keys.open(id).map(|_| ()).ok_or(InvalidCid)
    }

    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

/// Returns the destination id of a packet, if it has the length of ours.
pub(super) fn destination(packet: &[u8]) -> Option<&[u8]> {
    match packet.first()? & 0x80 {
        0 => packet.get(1..=ID_BYTES),
        _ if usize::from(*packet.get(5)?) == ID_BYTES => packet.get(6..6 + ID_BYTES),
        _ => None,
    }
}

/// Returns the destination id of a packet with a short header: only such a packet gets a stateless reset.
pub(super) fn short_destination(packet: &[u8]) -> Option<Id> {
    let is_short = packet.first()? & 0x80 == 0;
    packet.get(1..=ID_BYTES).filter(|_| is_short)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_their_worker_only_with_the_key() {
        let keys = Arc::new(QuicKeys::random().unwrap());
        let place = ConnectionOwner { generation: 3, worker: 700 };
        let mut ids = IdGenerator { keys: Arc::clone(&keys), place, steering: None };
        let (one, other) = (ids.generate_cid(), ids.generate_cid());
        assert!(one != other && one.len() == ids.cid_len());
        assert_eq!(keys.open(&one), Some(place));
        assert_eq!(QuicKeys::read(keys.bytes()).unwrap().open(&other), Some(place));
        assert_eq!(QuicKeys::random().unwrap().open(&one), None);
        assert!(ids.validate(&ConnectionId::new(&[7; 16])).is_err() && ids.validate(&one).is_ok());
        assert_eq!(keys.open(&one[..15]), None);
        assert!(QuicKeys::read(&keys.bytes()[1..]).is_err());
        assert_eq!(format!("{keys:?}"), "QuicKeys");
    }

    #[test]
    fn ids_fit_the_socket_of_their_worker() {
        let keys = Arc::new(QuicKeys::random().unwrap());
        for own in 0..3 {
            let steering = Some(Steering { sockets: 3, own });
            let place = ConnectionOwner { generation: 0, worker: own as u16 };
            let mut ids = IdGenerator { keys: Arc::clone(&keys), place, steering };
            for _ in 0..20 {
                let id = ids.generate_cid();
                assert_eq!(u32::from_be_bytes([id[0], id[1], id[2], id[3]]) % 3, own);
            }
        }
    }

    #[test]
    fn the_destination_is_read_from_both_forms_of_header() {
        let id: Vec<u8> = (1..=16).collect();
        let short = [&[0x41], &id[..], &[9; 4]].concat();
        let long = [&[0xc0, 0, 0, 0, 1, 16], &id[..], &[0]].concat();
        for packet in [&short, &long] {
            assert_eq!(destination(packet), Some(&id[..]));
        }
        let eight = [&[0xc0, 0, 0, 0, 1, 8], &id[..]].concat();
        assert_eq!(destination(&eight), None);
        for packet in [&short[..16], &long[..21], &[]] {
            assert_eq!(destination(packet), None);
        }
    }
}
