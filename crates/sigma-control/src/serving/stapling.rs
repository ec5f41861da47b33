//! OCSP responses for the gateway's certificates: fetched in time, verified, stapled, and kept for the next start.
//!
//! A responder that is unreachable, or gives an unusable response, leaves its last response in force until that
//! expires. Nothing that is over is stapled, and nothing that says that a certificate was revoked.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sigma_config::resources::SslStapling;
use sigma_config::tls::Stapling;
use sigma_net::tls::{CertificateDer, OcspQuestion, RevocationStatus, Signer, Staple, must_be_stapled};
use sigma_proxy::compile::StapleWish;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::clock::unix_seconds;
use super::published::{Folder, Request, shown};

/// How often is looked whether something is due, or used no longer.
const LOOK: Duration = Duration::from_secs(1);
/// No responder is asked more often than this while its responses are good, in seconds.
const ASK_MIN_S: i64 = 5;
/// By how much moments differ at random, so that gateways do not ask together.
const JITTER: f64 = 0.2;
/// The kind of stored responses.
const KIND: &str = "ocsp";
/// Messages that are logged once.
const TOLD_MAX: usize = 4_096;

/// The responses in use, by their purpose.
#[derive(Default)]
pub(crate) struct Staplings {
    runtime: Option<Handle>,
    folder: Option<Folder>,
    used: Vec<(StapleUse, Weak<Staple>)>,
    told: HashSet<String>,
}

/// The purpose of a response.
#[derive(Clone, PartialEq)]
struct StapleUse {
    certificate: [u8; 32],
    own: SslStapling,
    settings: Stapling,
}

impl Staplings {
    /// Returns answers that are fetched on `runtime`, for as long as they are in use, and kept in `folder`.
    pub(crate) fn followed_on(runtime: Handle, folder: Option<Folder>) -> Staplings {
        Staplings { runtime: Some(runtime), folder, ..Staplings::default() }
    }

    /// Returns the staple for the first certificate of a chain. A stored response is stapled when this returns.
    pub(crate) fn staple(
        &mut self,
        chain: &[CertificateDer<'static>],
        wish: &StapleWish<'_>,
    ) -> Option<Arc<Staple>> {
        let must = chain.first().is_some_and(must_be_stapled);
        let by_settings = || SslStapling { enabled: wish.settings.enabled, ..SslStapling::default() };
        let own = wish.own.cloned().unwrap_or_else(by_settings);
        if !own.enabled {
            if must {
                self.tell(wish.place, "this certificate requires stapling (must-staple), and clients may refuse it without: set `ocsp_stapling`");
            }
            return None;
        }
        let question = match OcspQuestion::about(chain) {
            Ok(question) if question.responder().is_some() => question,
            // Without a setting for this one in particular, it is not stapled.
            _ if wish.own.is_none() && !must => return None,
            Ok(_) => {
                self.tell(wish.place, "cannot staple this certificate: it names no OCSP responder");
                return None;
            }
            Err(error) => {
                self.tell(wish.place, &format!("cannot staple this certificate: {error}"));
                return None;
            }
        };
        let runtime = self.runtime.clone()?;
        let wanted = StapleUse { certificate: question.identity(), own, settings: wish.settings.clone() };
        self.used.retain(|(_, staple)| staple.strong_count() > 0);
        let known = self.used.iter().find(|(known, _)| *known == wanted);
        if let Some(staple) = known.and_then(|(_, staple)| staple.upgrade()) {
            return Some(staple);
        }
        let staple = Arc::<Staple>::default();
        self.used.push((wanted.clone(), Arc::downgrade(&staple)));
        let (place, folder) = (wish.place.to_owned(), self.folder.clone());
        let mut follower = Follower::new(place, question, wanted, must, folder, Arc::downgrade(&staple));
        follower.read_kept();
        runtime.spawn(follower.follow());
        Some(staple)
    }

    fn tell(&mut self, place: &str, text: &str) {
        if self.told.len() < TOLD_MAX && self.told.insert(format!("{place}: {text}")) {
            tracing::warn!(resource = place, "{text}");
        }
    }
}

/// The keeper of one response.
struct Follower {
    place: String,
    question: OcspQuestion,
    wanted: StapleUse,
    /// Clients may refuse the certificate without a response.
    must: bool,
    folder: Option<Folder>,
    staple: Weak<Staple>,
    /// When the newest response was made; an older one is a recording.
    last_update: i64,
    /// When that which is stapled has ended; None while nothing is.
    ends: Option<i64>,
    failures: u32,
    /// The last problem; it is logged once.
    fault: Option<String>,
}

impl Follower {
    fn new(
        place: String,
        question: OcspQuestion,
        wanted: StapleUse,
        must: bool,
        folder: Option<Folder>,
        staple: Weak<Staple>,
    ) -> Follower {
        let (last_update, ends, failures, fault) = (i64::MIN, None, 0, None);
        Follower { place, question, wanted, must, folder, staple, last_update, ends, failures, fault }
    }

    /// Staples the response that an earlier process has fetched. Blocks.
    fn read_kept(&mut self) {
        let most = u64::from(self.wanted.settings.max_bytes);
        let kept = self.folder.as_ref().and_then(|folder| folder.read(KIND, &self.wanted.certificate, most));
        if let Some(der) = kept
            && let Err(reason) = self.take(&der, unix_seconds(), None)
        {
            tracing::info!(resource = self.place, reason, "a stored OCSP response is not used");
        }
    }

    /// Takes over a response at `now`. One that says nothing of its end is good for a time from when it was `fetched`,
    /// or made.
    fn take(&mut self, der: &[u8], now: i64, fetched: Option<i64>) -> Result<RevocationStatus, String> {
        let own = &self.wanted.own;
        let signer = if own.skip_verify { Signer::Anybody } else { Signer::Verified };
        let answer = self.question.verify(der, now, signer).map_err(|error| error.to_string())?;
        if answer.this_update < self.last_update {
            return Err("the OCSP response is older than the previous one".to_owned());
        }
        let since = fetched.unwrap_or(answer.this_update);
        let ends = answer.next_update.unwrap_or(since.saturating_add(own.cache_ttl.into()));
        if ends <= now {
            return Err("the OCSP response is too old".to_owned());
        }
        if answer.status == RevocationStatus::Unknown && !own.skip_verify {
            return Err("the OCSP responder does not know this certificate".to_owned());
        }
        self.last_update = answer.this_update;
        let Some(staple) = self.staple.upgrade() else { return Ok(answer.status) };
        if answer.status == RevocationStatus::Revoked && !own.skip_verify {
            staple.clear();
            self.ends = None;
        } else {
            staple.put(der, ends);
            self.ends = Some(ends);
        }
        Ok(answer.status)
    }

    /// Queries at the right times, until the response is not in use any more.
    async fn follow(mut self) {
        let first = self.ends.map_or(0, |ends| until_next(unix_seconds(), ends, ASK_MIN_S, fastrand::f64()));
        let mut due = Instant::now() + seconds(first);
        loop {
            while Instant::now() < due {
                self.say_if_over(unix_seconds());
                tokio::time::sleep_until(due.min(Instant::now() + LOOK)).await;
                if self.staple.strong_count() == 0 {
                    return;
                }
            }
            let pause = match self.ask().await {
                Ok(status) => self.succeeded(status),
                Err(fault) => self.failed(fault),
            };
            due = Instant::now() + seconds(pause);
        }
    }

    async fn ask(&mut self) -> Result<RevocationStatus, String> {
        let settings = &self.wanted.settings;
        let request = Request {
            // It has one, see above.
            url: self.question.responder().unwrap_or_default(),
            body: Some(("application/ocsp-request", self.question.encoded())),
            timeout: Duration::from_millis(settings.timeout_ms.into()),
            max_bytes: settings.max_bytes as usize,
        };
        let der = request.ask().await?;
        let now = unix_seconds();
        let status = self.take(&der, now, Some(now))?;
        if let Some(folder) = &self.folder {
            folder.write(KIND, &self.wanted.certificate, der).await;
        }
        Ok(status)
    }

    /// Seconds until it is queried again.
    fn succeeded(&mut self, status: RevocationStatus) -> i64 {
        let place = &self.place;
        self.failures = 0;
        if self.ends.is_none() && status == RevocationStatus::Revoked {
            let fault = "this certificate is revoked, and the gateway no longer staples it: replace it";
            if self.fault.as_deref() != Some(fault) {
                tracing::error!(resource = place, "{fault}");
                self.fault = Some(fault.to_owned());
            }
        } else if self.fault.take().is_some() {
            tracing::warn!(resource = place, "this certificate is stapled again");
        }
        let (now, ttl) = (unix_seconds(), i64::from(self.wanted.own.cache_ttl));
        until_next(now, self.ends.unwrap_or(i64::MAX), ttl, fastrand::f64())
    }

    /// The same.
    fn failed(&mut self, fault: String) -> i64 {
        self.failures = self.failures.saturating_add(1);
        if self.fault.as_ref() != Some(&fault) {
            let (place, url) = (&self.place, shown(self.question.responder().unwrap_or_default()));
            if self.must && self.ends.is_none() {
                tracing::error!(
                    resource = place,
                    responder = url,
                    "cannot staple this certificate, which requires stapling (must-staple), so clients may refuse it: {fault}"
                );
            } else {
                tracing::warn!(
                    resource = place,
                    responder = url,
                    "cannot get a new OCSP response for this certificate: {fault}"
                );
            }
            self.fault = Some(fault);
        }
        backoff(&self.wanted.settings, self.failures, fastrand::f64())
    }

    fn say_if_over(&mut self, now: i64) {
        if self.ends.is_some_and(|ends| ends <= now) {
            self.ends = None;
            tracing::error!(
                resource = self.place,
                "the last OCSP response has expired, and this certificate is not stapled until there is a new one"
            );
        }
    }
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// Returns seconds until a responder is queried again whose response `ends`: when half of its time has ended, and
/// after `ttl` at the latest. Chance is between 0 and 1.
fn until_next(now: i64, ends: i64, ttl: i64, chance: f64) -> i64 {
    let half = ends.saturating_sub(now) / 2;
    let longest = half.min(ttl).max(ASK_MIN_S);
    longest - (longest as f64 * JITTER * chance) as i64
}

/// Seconds until the next attempt after so many that failed in a row.
fn backoff(settings: &Stapling, failures: u32, chance: f64) -> i64 {
    let doubled = i64::from(settings.retry_s) << failures.saturating_sub(1).min(20);
    let pause = doubled.min(settings.retry_max_s.max(settings.retry_s).into());
    pause + (pause as f64 * JITTER * chance) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_responder_is_asked_before_its_answer_is_over() {
        let check = |left: i64, ttl: i64, chance: f64, expected: i64| {
            assert_eq!(until_next(1_000, 1_000 + left, ttl, chance), expected, "{left} {ttl} {chance}");
        };
        check(7 * 86_400, 3_600, 0.0, 3_600);
        check(7 * 86_400, 3_600, 1.0, 2_880);
        check(600, 3_600, 0.0, 300);
        check(8, 3_600, 0.0, 5);
        check(-8, 3_600, 0.0, 5);
        assert_eq!(until_next(1_000, i64::MAX, 60, 0.0), 60);
        // However a response runs out, it is requested in time unless it is almost over.
        for left in (20..100_000).step_by(7) {
            for chance in [0.0, 0.5, 0.999] {
                let next = until_next(0, left, 3_600, chance);
                assert!(next > 0 && next <= left / 2, "{left} {chance}: {next}");
            }
        }
    }

    #[test]
    fn each_failure_doubles_the_pause() {
        let settings = Stapling::default();
        let check = |failures: u32, chance: f64, expected: i64| {
            assert_eq!(backoff(&settings, failures, chance), expected, "{failures} {chance}");
        };
        check(1, 0.0, 30);
        check(1, 1.0, 36);
        check(2, 0.0, 60);
        check(7, 0.0, 1_920);
        check(8, 0.0, 3_600);
        check(u32::MAX, 1.0, 4_320);
        let short = Stapling { retry_s: 100, retry_max_s: 1, ..settings };
        assert_eq!(backoff(&short, 9, 0.0), 100);
    }
}
