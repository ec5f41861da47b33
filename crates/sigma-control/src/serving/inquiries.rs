//! Queries to responders about certificates of clients (OCSP), for the handshakes that wait for it.
//!
//! Each certificate has one task, which queries at its first connection, and again before a response expires, as long
//! as it is in use. A responder that is away leaves the last response in force until that has ended. The settings of
//! the ssl decide then; a revoked certificate stays revoked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use sigma_config::resources::SslOcsp;
use sigma_net::tls::{CertificateDer, Inquiries, Inquiry, RevocationStatus, Signer, Standing};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

use super::clock::unix_seconds;
use super::published::{Request, shown};

/// Questions that wait; more of them count as not answered.
const QUEUE: usize = 1_024;
/// Responders that are queried at the same time.
const AT_ONCE: usize = 64;
/// No responder is queried about one certificate more often than this while its responses are good, in seconds.
const ASK_MIN_S: i64 = 5;
/// The longest pause after failures, in seconds.
const RETRY_MAX_S: i64 = 300;
/// By how much moments differ at random.
const JITTER: f64 = 0.2;

/// The inquiries in use, by their source.
#[derive(Default)]
pub(crate) struct Inquirers {
    runtime: Option<Handle>,
    used: Vec<(Origin, Weak<Inquiries>)>,
}

#[derive(Clone, PartialEq)]
struct Origin {
    ocsp: SslOcsp,
    authorities: Arc<[CertificateDer<'static>]>,
}

impl Inquirers {
    /// Inquiries that are answered on `runtime`.
    pub(crate) fn asking_on(runtime: Handle) -> Inquirers {
        Inquirers { runtime: Some(runtime), used: Vec::new() }
    }

    /// Returns the inquiries about clients whose certificates `authorities` have issued.
    pub(crate) fn inquiries(
        &mut self,
        ocsp: &SslOcsp,
        authorities: &[CertificateDer<'static>],
    ) -> Arc<Inquiries> {
        let origin = Origin { ocsp: ocsp.clone(), authorities: authorities.into() };
        self.used.retain(|(_, inquiries)| inquiries.strong_count() > 0);
        let known = self.used.iter().find(|(known, _)| *known == origin);
        if let Some(inquiries) = known.and_then(|(_, inquiries)| inquiries.upgrade()) {
            return inquiries;
        }
        let (fresh, asked) = mpsc::channel(QUEUE);
        let inquiries = Arc::new(Inquiries::new(authorities.to_vec(), ocsp.max_certificates as usize, fresh));
        if let Some(runtime) = &self.runtime {
            runtime.spawn(answer(asked, ocsp.clone(), Arc::downgrade(&inquiries)));
        }
        self.used.push((origin, Arc::downgrade(&inquiries)));
        inquiries
    }
}

/// Answers inquiries until all senders are gone.
async fn answer(mut asked: mpsc::Receiver<Arc<Inquiry>>, ocsp: SslOcsp, inquiries: Weak<Inquiries>) {
    let shared =
        Arc::new(Shared { ocsp, inquiries, places: Semaphore::new(AT_ONCE), fails: AtomicBool::new(false) });
    while let Some(inquiry) = asked.recv().await {
        let one =
            One { shared: Arc::clone(&shared), inquiry, last_update: i64::MIN, ends: None, failures: 0 };
        tokio::spawn(one.follow());
    }
}

/// The shared state of all certificates of some clients.
struct Shared {
    ocsp: SslOcsp,
    inquiries: Weak<Inquiries>,
    places: Semaphore,
    /// The last response could not be used; it is said once.
    fails: AtomicBool,
}

/// The task for one certificate.
struct One {
    shared: Arc<Shared>,
    inquiry: Arc<Inquiry>,
    /// When the newest response was made; an older one is a recording.
    last_update: i64,
    /// When the last response expires; None without a response.
    ends: Option<i64>,
    failures: u32,
}

impl One {
    async fn follow(mut self) {
        loop {
            let asked = self.ask().await;
            let now = unix_seconds();
            let (standing, pause) = self.judged(asked, now, fastrand::f64());
            let Some(inquiries) = self.shared.inquiries.upgrade() else { return };
            inquiries.set(&self.inquiry, standing);
            drop(inquiries);
            tokio::time::sleep(Duration::from_secs(u64::try_from(pause).unwrap_or(0))).await;
            let Some(inquiries) = self.shared.inquiries.upgrade() else { return };
            if !self.inquiry.was_used() && inquiries.forget(&self.inquiry) {
                return;
            }
        }
    }

    async fn ask(&mut self) -> Result<(RevocationStatus, i64), String> {
        let (ocsp, question) = (&self.shared.ocsp, self.inquiry.query());
        let url = ocsp.responder.as_deref().or(question.responder());
        let url = url.ok_or("the certificate names no responder, and `client.ocsp.responder` is not set")?;
        // It is never closed.
        let _place = self.shared.places.acquire().await.map_err(|error| error.to_string())?;
        let request = Request {
            url,
            body: Some(("application/ocsp-request", question.encoded())),
            timeout: Duration::from_millis(ocsp.timeout_ms.into()),
            max_bytes: ocsp.max_bytes as usize,
        };
        let failed = |reason: String| format!("{}: {reason}", shown(url));
        let der = request.ask().await.map_err(failed)?;
        let now = unix_seconds();
        let answer =
            question.verify(&der, now, Signer::Verified).map_err(|error| failed(error.to_string()))?;
        if answer.this_update < self.last_update {
            return Err(failed("the OCSP response is older than the previous one".to_owned()));
        }
        self.last_update = answer.this_update;
        let longest = now.saturating_add(ocsp.cache_ttl.into());
        Ok((answer.status, answer.next_update.unwrap_or(longest)))
    }

    /// Returns the status from now on, and the seconds until the next query.
    fn judged(
        &mut self,
        asked: Result<(RevocationStatus, i64), String>,
        now: i64,
        chance: f64,
    ) -> (Standing, i64) {
        match asked {
            Ok((status, ends)) => {
                if self.shared.fails.swap(false, Ordering::AcqRel) {
                    tracing::warn!("OCSP responses for client certificates are available again");
                }
                (self.ends, self.failures) = (Some(ends), 0);
                let standing = match status {
                    RevocationStatus::Good => Standing::Good,
                    RevocationStatus::Revoked | RevocationStatus::Unknown => Standing::Refused,
                };
                (standing, until_next(now, ends, self.shared.ocsp.cache_ttl.into(), chance))
            }
            Err(fault) => {
                self.failures = self.failures.saturating_add(1);
                if !self.shared.fails.swap(true, Ordering::AcqRel) {
                    tracing::error!(
                        "cannot check whether client certificates are revoked; `client.ocsp.when_missing` applies: {fault}"
                    );
                }
                let left = self.ends.map(|ends| ends.saturating_sub(now)).filter(|left| *left > 0);
                let standing = match (self.inquiry.standing(), left) {
                    (Standing::Refused, _) => Standing::Refused,
                    (Standing::Good, Some(_)) => Standing::Good,
                    _ => Standing::Unavailable,
                };
                let pause = backoff(self.shared.ocsp.retry_s.into(), self.failures, chance);
                // An expired response does not count until the next query.
                (standing, left.map_or(pause, |left| pause.min(left)))
            }
        }
    }
}

/// Returns seconds until a responder is queried again whose response `ends`: when half of its time has ended, and
/// after `ttl` at the latest. Chance is between 0 and 1.
fn until_next(now: i64, ends: i64, ttl: i64, chance: f64) -> i64 {
    let half = ends.saturating_sub(now) / 2;
    let longest = half.max(ASK_MIN_S).min(ttl).max(1);
    longest - (longest as f64 * JITTER * chance) as i64
}

/// Seconds until the next attempt after so many that failed in a row.
fn backoff(retry_s: i64, failures: u32, chance: f64) -> i64 {
    let doubled = (retry_s << failures.saturating_sub(1).min(20)).min(RETRY_MAX_S.max(retry_s));
    doubled + (doubled as f64 * JITTER * chance) as i64
}
