//! Session resumption: session state at the server or the client, which saves a handshake.
//!
//! A resumed session has the client certificate of the first handshake. So a session is valid only under the demands
//! on client certificates of its handshake: the fingerprint of [`ClientAuth`](super::ClientAuth) is part of each
//! ticket and of each key in the cache. Otherwise a session from before the demand would give access without a
//! certificate.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use rustls::server::{
    NoServerSessionStorage, ProducesTickets, ServerSessionMemoryCache, StoresServerSessions,
};

use super::Unusable;
use crate::secret::SecretBytes;

/// The way of session resumption. Shared by all workers and identities.
#[derive(Debug, Clone, Default)]
pub enum Resumption {
    /// Every handshake is a full one.
    #[default]
    Off,
    /// Clients keep their session, encrypted under these keys.
    Tickets(Arc<TicketKeys>),
    /// Sessions are stored here.
    Cache(Arc<SessionCache>),
}

/// Identifies the demands on client certificates of a session.
type Fingerprint = [u8; 32];

/// The length of a key name, which precedes each ticket.
const NAME_BYTES: usize = 16;

/// Keys for encrypting tickets (RFC 5077 §5.5). Each period has a new one, and the last one still opens tickets for
/// one more.
pub struct TicketKeys {
    period: Duration,
    /// They come from outside; if that fails for a period, they are made here.
    are_given: bool,
    ring: RwLock<Ring>,
}

struct Ring {
    current: Key,
    previous: Option<Key>,
    since: Instant,
}

struct Key {
    name: [u8; NAME_BYTES],
    key: RandomizedNonceKey,
    /// For the handover to the next process.
    shared: SharedKey,
}

/// Bytes of a key: its name and its secret.
const KEY_BYTES: usize = NAME_BYTES + 32;

/// A key in its storage format, also for other gateways: its name and its secret.
#[derive(Clone)]
pub struct SharedKey(SecretBytes);

impl SharedKey {
    /// Returns a new key.
    ///
    /// # Errors
    /// Returns an error if the system has no random bytes.
    pub fn random() -> Result<SharedKey, Unusable> {
        let mut key = SharedKey(SecretBytes::zeroed(KEY_BYTES));
        // From the system: the library's own generator first gathers entropy for tens of milliseconds, which would
        // delay every start, with or without TLS.
        getrandom::fill(&mut key.0).map_err(|_| Unusable::new("cannot get random bytes for a ticket key"))?;
        Ok(key)
    }

    /// Parses a key from its [bytes](SharedKey::bytes); None if their number is wrong.
    pub fn read(bytes: &[u8]) -> Option<SharedKey> {
        (bytes.len() == KEY_BYTES).then(|| SharedKey(bytes.into()))
    }

    /// Returns its bytes, which are secret.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedKey")
    }
}

impl Key {
    fn random() -> Result<Key, Unusable> {
        Key::of(&SharedKey::random()?)
    }

    fn of(shared: &SharedKey) -> Result<Key, Unusable> {
        let (secret, mut name) = (&shared.0[NAME_BYTES..], [0; NAME_BYTES]);
        name.copy_from_slice(&shared.0[..NAME_BYTES]);
        let key = RandomizedNonceKey::new(&AES_256_GCM, secret);
        let key = key.map_err(|_| Unusable::new("a ticket key is invalid"))?;
        Ok(Key { name, key, shared: shared.clone() })
    }

    fn aad(&self, client_auth: &Fingerprint) -> Aad<[u8; NAME_BYTES + 32]> {
        let mut aad = [0; NAME_BYTES + 32];
        aad[..NAME_BYTES].copy_from_slice(&self.name);
        aad[NAME_BYTES..].copy_from_slice(client_auth);
        Aad::from(aad)
    }

    fn seal(&self, client_auth: &Fingerprint, plain: &[u8]) -> Option<Vec<u8>> {
        let mut sealed = plain.to_vec();
        let nonce = self.key.seal_in_place_append_tag(self.aad(client_auth), &mut sealed).ok()?;
        let mut ticket = Vec::with_capacity(NAME_BYTES + NONCE_LEN + sealed.len());
        ticket.extend_from_slice(&self.name);
        ticket.extend_from_slice(nonce.as_ref());
        ticket.extend_from_slice(&sealed);
        Some(ticket)
    }

    fn open(&self, client_auth: &Fingerprint, ticket: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = ticket.strip_prefix(&self.name)?.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut plain = sealed.to_vec();
        let len = self.key.open_in_place(nonce, self.aad(client_auth), &mut plain).ok()?.len();
        plain.truncate(len);
        Some(plain)
    }
}

impl TicketKeys {
    /// Returns keys that change every `period`; a ticket is valid for at least as long.
    ///
    /// # Errors
    /// Returns an error if the system has no random bytes.
    pub fn new(period: Duration) -> Result<TicketKeys, Unusable> {
        let ring = Ring { current: Key::random()?, previous: None, since: Instant::now() };
        let period = period.max(Duration::from_secs(1));
        Ok(TicketKeys { period, are_given: false, ring: RwLock::new(ring) })
    }

    /// Returns keys that [`give`](TicketKeys::give) sets each period. Until the first ones arrive, and if none arrive
    /// for two periods, they are made here as in [`TicketKeys::new`].
    ///
    /// # Errors
    /// Returns an error if the system has no random bytes.
    pub fn given(period: Duration) -> Result<TicketKeys, Unusable> {
        Ok(TicketKeys { are_given: true, ..TicketKeys::new(period)? })
    }

    /// Sets the keys: one with this age, and the one before it, which still opens tickets.
    ///
    /// # Errors
    /// Returns an error if they cannot be used; then the old ones stay.
    pub fn give(
        &self,
        current: &SharedKey,
        previous: Option<&SharedKey>,
        age: Duration,
    ) -> Result<(), Unusable> {
        let (current, previous) = (Key::of(current)?, previous.map(Key::of).transpose()?);
        let now = Instant::now();
        let since = now.checked_sub(age).unwrap_or(now);
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = Ring { current, previous, since };
        Ok(())
    }

    /// Returns the keys in force, the newest first, and its age, for the handover to the next process.
    pub fn in_force(&self) -> (Vec<SharedKey>, Duration) {
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        let keys = std::iter::once(&ring.current).chain(&ring.previous);
        (keys.map(|key| key.shared.clone()).collect(), ring.since.elapsed())
    }

    /// Returns the age at which the keys are replaced here.
    fn oldest(&self) -> Duration {
        if self.are_given { self.period * 2 } else { self.period }
    }

    fn seal(&self, client_auth: &Fingerprint, plain: &[u8], now: Instant) -> Option<Vec<u8>> {
        self.rotate(now)?;
        self.ring.read().unwrap_or_else(PoisonError::into_inner).current.seal(client_auth, plain)
    }

    fn open(&self, client_auth: &Fingerprint, ticket: &[u8], now: Instant) -> Option<Vec<u8>> {
        self.rotate(now)?;
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        ring.current
            .open(client_auth, ticket)
            .or_else(|| ring.previous.as_ref().and_then(|key| key.open(client_auth, ticket)))
    }

    /// Makes a new key if it is due. `None` on failure: no ticket is better than an old key.
    fn rotate(&self, now: Instant) -> Option<()> {
        let age = |ring: &Ring| now.saturating_duration_since(ring.since);
        let oldest = self.oldest();
        if age(&self.ring.read().unwrap_or_else(PoisonError::into_inner)) < oldest {
            return Some(());
        }
        let fresh = Key::random().ok()?;
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        // Another worker may have been faster.
        if age(&ring) >= oldest {
            let is_recent = age(&ring) < self.period * 2;
            let old = std::mem::replace(&mut ring.current, fresh);
            ring.previous = is_recent.then_some(old);
            ring.since = now;
        }
        Some(())
    }
}

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketKeys").field("period", &self.period).finish_non_exhaustive()
    }
}

/// Sessions in memory; the oldest are dropped first.
#[derive(Debug)]
pub struct SessionCache(Arc<ServerSessionMemoryCache>);

impl SessionCache {
    /// Returns a cache for this number of sessions, of about 1 KiB each.
    pub fn new(sessions: usize) -> SessionCache {
        SessionCache(ServerSessionMemoryCache::new(sessions))
    }

    /// Returns a part of the cache: its sessions are found under the same scope only.
    pub(super) fn scoped(self: &Arc<Self>, scope: Box<[u8]>) -> Arc<dyn StoresServerSessions> {
        Arc::new(ScopedCache { sessions: Arc::clone(self), scope })
    }
}

/// Tickets under the client authentication of one identity.
#[derive(Debug)]
struct ScopedTickets {
    keys: Arc<TicketKeys>,
    client_auth: Fingerprint,
}

impl ProducesTickets for ScopedTickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.keys.period.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.keys.seal(&self.client_auth, plain, Instant::now())
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.keys.open(&self.client_auth, cipher, Instant::now())
    }
}

/// Sessions of one scope: the client authentication of one identity.
#[derive(Debug)]
struct ScopedCache {
    sessions: Arc<SessionCache>,
    scope: Box<[u8]>,
}

impl ScopedCache {
    fn key(&self, id: &[u8]) -> Vec<u8> {
        [&self.scope, id].concat()
    }
}

impl StoresServerSessions for ScopedCache {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.sessions.0.put(self.key(&key), value)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.sessions.0.get(&self.key(key))
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.sessions.0.take(&self.key(key))
    }

    fn can_cache(&self) -> bool {
        true
    }
}

impl Resumption {
    /// Makes `config` resume sessions made under `client_auth`.
    pub(super) fn apply(&self, config: &mut rustls::ServerConfig, client_auth: Fingerprint) {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        match self {
            Resumption::Off => config.send_tls13_tickets = 0,
            Resumption::Tickets(keys) => {
                config.ticketer = Arc::new(ScopedTickets { keys: Arc::clone(keys), client_auth });
            }
            Resumption::Cache(sessions) => {
                config.session_storage = sessions.scoped(client_auth.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_open_under_their_terms_for_one_to_two_periods() {
        const PERIOD: Duration = Duration::from_secs(3600);
        let start = Instant::now();
        let client_auth = [7; 32];
        let check = |elapsed: f64, expected: bool| {
            let keys = TicketKeys::new(PERIOD).unwrap();
            let ticket = keys.seal(&client_auth, b"session", start).unwrap();
            let opened = keys.open(&client_auth, &ticket, start + PERIOD.mul_f64(elapsed));
            assert_eq!(opened.as_deref(), expected.then_some(&b"session"[..]), "after {elapsed} periods");
        };
        check(0.0, true);
        check(0.9, true);
        check(1.5, true);
        check(2.5, false);
        check(1000.0, false);
        let keys = TicketKeys::new(PERIOD).unwrap();
        let ticket = keys.seal(&client_auth, b"session", start).unwrap();
        assert!(keys.open(&[8; 32], &ticket, start).is_none(), "other client authentication");
        for at in 0..ticket.len() {
            let mut forged = ticket.clone();
            forged[at] ^= 1;
            assert!(keys.open(&client_auth, &forged, start).is_none(), "byte {at} changed");
            assert!(keys.open(&client_auth, &ticket[..at], start).is_none(), "cut at {at}");
        }
        // Two rotations, each in use: the first key is gone.
        assert!(keys.seal(&client_auth, b"", start + PERIOD.mul_f64(1.1)).is_some());
        assert!(keys.open(&client_auth, &ticket, start + PERIOD.mul_f64(1.2)).is_some());
        assert!(keys.open(&client_auth, &ticket, start + PERIOD.mul_f64(2.2)).is_none());
    }

    #[test]
    fn given_keys_open_tickets_of_others_until_they_are_old() {
        const PERIOD: Duration = Duration::from_secs(3600);
        let client_auth = [7; 32];
        let [here, there] = [0, 1].map(|_| TicketKeys::given(PERIOD).unwrap());
        let [first, second] = [0, 1].map(|_| SharedKey::random().unwrap());
        let own = here.seal(&client_auth, b"own", Instant::now()).unwrap();
        assert!(there.open(&client_auth, &own, Instant::now()).is_none());
        for keys in [&here, &there] {
            keys.give(&first, None, Duration::ZERO).unwrap();
        }
        let now = Instant::now();
        let ticket = here.seal(&client_auth, b"session", now).unwrap();
        let opened = |at: Instant| there.open(&client_auth, &ticket, at).is_some();
        assert!(opened(now) && there.open(&[8; 32], &ticket, now).is_none());
        // The next one is a little late; until then the first is used.
        assert!(opened(now + PERIOD.mul_f64(1.5)));
        there.give(&second, Some(&first), Duration::ZERO).unwrap();
        assert!(opened(now));
        assert!(here.open(&client_auth, &there.seal(&client_auth, b"", now).unwrap(), now).is_none());
        // No more keys arrive.
        assert!(!opened(now + PERIOD.mul_f64(2.5)));
        let read = SharedKey::read(first.bytes()).unwrap();
        assert!(read.bytes() == first.bytes() && SharedKey::read(&first.bytes()[1..]).is_none());
        there.give(&read, None, PERIOD * 3).unwrap();
        assert!(!opened(now), "a key that is given too late");
    }

    #[test]
    fn nothing_secret_is_printed() {
        assert_eq!(format!("{:?}", SharedKey::random().unwrap()), "SharedKey");
        let keys = TicketKeys::new(Duration::from_secs(60)).unwrap();
        assert_eq!(format!("{keys:?}"), "TicketKeys { period: 60s, .. }");
    }
}
