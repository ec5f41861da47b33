//! Early data (0-RTT): bytes of a client before the end of its handshake (RFC 8446 §2.3).
//!
//! An attacker can send recorded early data again. So it is accepted only with a session from the cache, which each
//! ticket takes out once: the cache is shared by all workers, and no other process has it. Sessions with client
//! certificates never have early data.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use super::SessionCache;

/// Early data of QUIC has the windows of streams as its limit (RFC 9001 §4.6.1).
const OVER_QUIC: u32 = u32::MAX;

/// The early data that a listener accepts.
#[derive(Debug, Clone)]
pub struct EarlyOffer {
    /// The most bytes over TCP.
    bytes: u32,
    sessions: Arc<SessionCache>,
    /// The limits of QUIC that a client remembers: later ones may not be lower (RFC 9000 §7.4.1).
    remembered: [u32; 3],
}

impl PartialEq for EarlyOffer {
    fn eq(&self, other: &EarlyOffer) -> bool {
        (self.bytes, self.remembered) == (other.bytes, other.remembered)
            && Arc::ptr_eq(&self.sessions, &other.sessions)
    }
}

impl EarlyOffer {
    /// Returns an offer of this many bytes over TCP, with sessions from a cache.
    pub fn new(bytes: u32, sessions: Arc<SessionCache>) -> EarlyOffer {
        EarlyOffer { bytes, sessions, remembered: [0; 3] }
    }

    /// Returns the same offer for QUIC, with the limits that clients remember.
    pub(crate) fn over_quic(&self, remembered: [u32; 3]) -> EarlyOffer {
        EarlyOffer { bytes: OVER_QUIC, sessions: Arc::clone(&self.sessions), remembered }
    }

    /// Makes a configuration accept early data in sessions with these demands on clients.
    pub(super) fn apply(&self, config: &mut rustls::ServerConfig, client_auth: [u8; 32]) {
        let numbers = std::iter::once(self.bytes).chain(self.remembered);
        let scope = client_auth.into_iter().chain(numbers.flat_map(u32::to_be_bytes)).collect();
        config.session_storage = self.sessions.scoped(scope);
        config.max_early_data_size = self.bytes;
        config.send_half_rtt_data = true;
    }
}

/// The handshake of a connection with early data.
pub struct EarlyHandshake {
    is_complete: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl EarlyHandshake {
    /// Returns a handshake that is not complete.
    pub(crate) fn new() -> Arc<EarlyHandshake> {
        Arc::new(EarlyHandshake { is_complete: AtomicBool::new(false), waiting: Mutex::default() })
    }

    /// Returns true once the client has completed it: nothing that came before is a replay.
    pub fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Relaxed)
    }

    /// Ready once the client has completed it. The connection has to be read meanwhile.
    pub fn poll_complete(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_complete() {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Ends the wait of all requests.
    pub(crate) fn complete(&self) {
        self.is_complete.store(true, Ordering::Relaxed);
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for EarlyHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EarlyHandshake").field("is_complete", &self.is_complete()).finish_non_exhaustive()
    }
}
