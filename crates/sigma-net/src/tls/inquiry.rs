//! The revocation status of client certificates (OCSP), from the view of handshakes.
//!
//! A worker sends no OCSP requests. It reads this table. For an unknown certificate it adds an inquiry for the asking
//! task, and its connection waits for a bounded time. Results stay for later connections, and are kept up to date
//! while they are used.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, PoisonError, RwLock};

use aws_lc_rs::digest::{SHA256, digest};
use tokio::sync::{mpsc, watch};

use super::ocsp::{OcspQuestion, issued_by};
use super::{CertificateDer, WithoutAnswer};
use crate::deadline::Deadline;

/// The status of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The first request to its responder is running
    Asked,
    /// It is not revoked
    Good,
    /// It is revoked, or unknown to its responder
    Refused,
    /// There is no usable response
    Unavailable,
}

/// A certificate with an OCSP inquiry.
#[derive(Debug)]
pub struct Inquiry {
    key: [u8; 32],
    question: OcspQuestion,
    standing: watch::Sender<Standing>,
    is_used: AtomicBool,
    /// A connection was judged before the first response.
    is_foregone: AtomicBool,
}

impl Inquiry {
    /// Returns the OCSP request.
    pub fn query(&self) -> &OcspQuestion {
        &self.question
    }

    /// Returns the current status.
    pub fn standing(&self) -> Standing {
        *self.standing.borrow()
    }

    /// Returns the current status, for a verdict. A connection that is accepted too early is judged again later.
    fn settled(&self) -> Standing {
        let standing = self.standing();
        if standing != Standing::Asked {
            return standing;
        }
        self.is_foregone.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // Either this is the new response, or its writer sees the mark.
        self.standing()
    }

    /// Returns true if a connection has needed it since the last call.
    pub fn was_used(&self) -> bool {
        self.is_used.swap(false, Ordering::AcqRel)
    }

    /// Waits until the status is known, at most for this time.
    async fn known_within(&self, wait_ms: u64) {
        let deadline = Deadline::new();
        deadline.set(wait_ms);
        let mut standing = self.standing.subscribe();
        let known = async {
            // The sender is here, and stays.
            let _ = standing.wait_for(|standing| *standing != Standing::Asked).await;
        };
        // The policy decides about an unknown status.
        let _ = deadline.bound(known).await;
    }
}

/// The inquiries about client certificates of some authorities. Shared by all workers.
#[derive(Debug)]
pub struct Inquiries {
    authorities: Vec<CertificateDer<'static>>,
    known: RwLock<HashMap<[u8; 32], Arc<Inquiry>>>,
    max: usize,
    revision: AtomicU64,
    fresh: mpsc::Sender<Arc<Inquiry>>,
}

impl Inquiries {
    /// Returns a table for at most about `max` certificates, issued by `authorities` or those below them. `fresh`
    /// passes new inquiries to the asking task.
    pub fn new(
        authorities: Vec<CertificateDer<'static>>,
        max: usize,
        fresh: mpsc::Sender<Arc<Inquiry>>,
    ) -> Inquiries {
        let (known, revision) = (RwLock::default(), AtomicU64::new(0));
        Inquiries { authorities, known, max, revision, fresh }
    }

    /// Returns a table that accepts no inquiries.
    pub fn unanswered() -> Inquiries {
        Inquiries::new(Vec::new(), 0, mpsc::channel(1).0)
    }

    /// Sets the status of a certificate. Only for the asking thread.
    pub fn set(&self, inquiry: &Inquiry, standing: Standing) {
        let before = inquiry.standing.send_replace(standing);
        fence(Ordering::SeqCst);
        let is_known = before != Standing::Asked || inquiry.is_foregone.load(Ordering::SeqCst);
        if before != standing && is_known {
            // Open connections are judged again.
            let next = self.revision.load(Ordering::Acquire) + 1;
            self.revision.store(next, Ordering::Release);
        }
    }

    /// Removes a certificate that only the table and the caller hold. Returns true if it was removed.
    pub fn forget(&self, inquiry: &Arc<Inquiry>) -> bool {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if Arc::strong_count(inquiry) > 2 {
            return false;
        }
        known.remove(&inquiry.key);
        true
    }

    /// Returns the inquiry about the first certificate of a verified chain. None if its issuer is missing, or too
    /// many inquiries are open.
    fn about(&self, chain: &[CertificateDer<'_>]) -> Option<Arc<Inquiry>> {
        let own = chain.first()?;
        let mut key = [0; 32];
        key.copy_from_slice(digest(&SHA256, own).as_ref());
        let found = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(inquiry) = found {
            inquiry.is_used.store(true, Ordering::Release);
            return Some(inquiry);
        }
        let above = chain[1..].iter().chain(&self.authorities);
        let issuer = above.clone().find(|issuer| issued_by(own, issuer))?;
        let question = OcspQuestion::about(&[own.clone(), issuer.clone()]).ok()?;
        let inquiry = Arc::new(Inquiry {
            key,
            question,
            standing: watch::Sender::new(Standing::Asked),
            is_used: AtomicBool::new(true),
            is_foregone: AtomicBool::new(false),
        });
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        // Another worker may have been faster.
        if let Some(other) = known.get(&key) {
            return Some(Arc::clone(other));
        }
        if known.len() >= self.max || self.fresh.try_send(Arc::clone(&inquiry)).is_err() {
            return None;
        }
        known.insert(key, Arc::clone(&inquiry));
        Some(inquiry)
    }
}

/// The settings of inquiries about client certificates.
#[derive(Debug, Clone)]
pub struct Inquiring {
    /// The inquiries.
    pub inquiries: Arc<Inquiries>,
    /// How long a connection waits for a first response.
    pub wait_ms: u64,
    /// The policy for a certificate without a usable response.
    pub when_missing: WithoutAnswer,
}

impl Inquiring {
    /// Identifies these settings.
    pub(super) fn settings(&self) -> [u8; 2] {
        [2, u8::from(self.when_missing == WithoutAnswer::Refuse)]
    }

    pub(super) fn revision(&self) -> u64 {
        self.inquiries.revision.load(Ordering::Acquire)
    }

    /// Starts an inquiry about the first certificate of a chain, and waits for its status. The returned inquiry keeps
    /// the status up to date.
    pub(super) async fn inquire(&self, chain: &[CertificateDer<'_>]) -> Option<Arc<Inquiry>> {
        let inquiry = self.inquiries.about(chain)?;
        inquiry.known_within(self.wait_ms).await;
        Some(inquiry)
    }

    /// Returns true if the first certificate of a verified chain is trusted under its current status.
    pub(super) fn trusts(&self, chain: &[CertificateDer<'_>]) -> bool {
        let standing = self.inquiries.about(chain).map(|inquiry| inquiry.settled());
        match standing {
            Some(Standing::Good) => true,
            Some(Standing::Refused) => false,
            Some(Standing::Asked | Standing::Unavailable) | None => self.when_missing == WithoutAnswer::Allow,
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use super::*;

    fn authority() -> (Issuer<'static, KeyPair>, CertificateDer<'static>) {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().clone();
        (Issuer::new(params, key), der)
    }

    fn leaf(issuer: &Issuer<'static, KeyPair>) -> CertificateDer<'static> {
        let params = CertificateParams::new(vec!["client.test".to_owned()]).unwrap();
        params.signed_by(&KeyPair::generate().unwrap(), issuer).unwrap().der().clone()
    }

    #[tokio::test]
    async fn a_connection_waits_for_its_status_and_open_ones_see_changes() {
        let ((issuer, der), (_, namesake)) = (authority(), authority());
        let (fresh, mut asked) = mpsc::channel(8);
        // Two authorities have one name; the key identifies them.
        let inquiries = Arc::new(Inquiries::new(vec![namesake, der], 2, fresh));
        let check =
            |when_missing| Inquiring { inquiries: Arc::clone(&inquiries), wait_ms: 60_000, when_missing };
        let (closed, open) = (check(WithoutAnswer::Refuse), check(WithoutAnswer::Allow));
        let chain = [leaf(&issuer)];
        let answered = async {
            let inquiry = asked.recv().await.unwrap();
            assert_eq!(inquiry.standing(), Standing::Asked);
            assert!(!closed.trusts(&chain) && open.trusts(&chain));
            inquiries.set(&inquiry, Standing::Good);
            inquiry
        };
        let (lease, inquiry) = tokio::join!(closed.inquire(&chain), answered);
        assert!(lease.is_some() && closed.trusts(&chain));
        // It was judged before.
        assert_eq!(closed.revision(), 1);
        for (standing, trusted) in [
            (Standing::Unavailable, [false, true]),
            (Standing::Refused, [false, false]),
            (Standing::Refused, [false, false]),
            (Standing::Good, [true, true]),
        ] {
            inquiries.set(&inquiry, standing);
            assert_eq!([closed.trusts(&chain), open.trusts(&chain)], trusted, "{standing:?}");
        }
        assert_eq!(closed.revision(), 4);
        // It is kept while a connection exists, and while it is used.
        assert!(inquiry.was_used() && !inquiry.was_used());
        assert!(!inquiries.forget(&inquiry));
        drop(lease);
        assert!(inquiries.forget(&inquiry));
    }

    /// Runs a test while the worker's clock runs.
    async fn driven<T>(test: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            result = test => result,
            () = crate::deadline::drive(|_| 1) => unreachable!("the wheel turns for ever"),
        }
    }

    #[tokio::test]
    async fn waits_and_inquiries_are_bounded() {
        let (issuer, der) = authority();
        let (fresh, mut asked) = mpsc::channel(2);
        let inquiries = Arc::new(Inquiries::new(vec![der], 3, fresh));
        let inquiring =
            Inquiring { inquiries: Arc::clone(&inquiries), wait_ms: 1, when_missing: WithoutAnswer::Refuse };
        let chains: Vec<_> = (0..5).map(|_| [leaf(&issuer)]).collect();
        for (at, chain) in chains.iter().enumerate() {
            // Two fit into the queue; after these are taken, one more fits into the table.
            if at == 3 {
                assert!(asked.recv().await.is_some());
            }
            assert_eq!(
                driven(inquiring.inquire(chain)).await.is_some(),
                [true, true, false, true, false][at],
                "{at}"
            );
            assert!(!inquiring.trusts(chain));
        }
        // A connection that waited for it and was not judged before needs no other verdict.
        let inquiry = asked.recv().await.unwrap();
        let first = inquiring.revision();
        inquiry.is_foregone.store(false, Ordering::SeqCst);
        inquiries.set(&inquiry, Standing::Good);
        assert_eq!(inquiring.revision(), first);
        // Without the issuer there is no inquiry.
        assert!(inquiring.inquire(&[leaf(&authority().0)]).await.is_none());
        assert!(inquiring.inquire(&[]).await.is_none());
    }
}
