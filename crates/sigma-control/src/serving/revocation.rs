//! Lists of revoked certificates, from files and from URLs, kept up to date.
//!
//! A list is not trusted without a check: one that cannot be used, or is older than the former one, does not
//! replace it. A source that is away leaves its last list in force, until that is past its time; what counts
//! then is for the settings of the ssl to say. The last content of a URL is kept in a folder, so that a
//! restart does not depend on it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sigma_config::resources::SslCrl;
use sigma_net::tls::{CertificateDer, Crl, RevocationLists};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::clock::unix_seconds;
use super::file_stamp::FileStamp;
use super::published::{Folder, Request, shown};

/// The interval of checks of files and due fetches.
const LOOK: Duration = Duration::from_secs(1);
/// The time for one list of a URL.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);
/// When a URL that did not respond is queried again; its interval, if that is shorter.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// A list is fetched so long before it runs out: two attempts, and some time of the clock.
const AHEAD_S: i64 = 120;
/// The kind of stored lists.
const KIND: &str = "crl";
/// How far the clock of who makes lists may be ahead.
const FUTURE_S: i64 = 3_600;

/// The lists in use, by their sources.
#[derive(Default)]
pub(crate) struct Revocations {
    runtime: Option<Handle>,
    folder: Option<Folder>,
    used: Vec<(Origin, Weak<RevocationLists>)>,
}

/// The source of lists.
#[derive(Clone, PartialEq)]
struct Origin {
    crl: SslCrl,
    authorities: Arc<[CertificateDer<'static>]>,
}

impl Revocations {
    /// Returns lists that are kept up to date on `runtime`, for as long as they are in use, and in `folder`.
    pub(crate) fn followed_on(runtime: Handle, folder: Option<Folder>) -> Revocations {
        Revocations { runtime: Some(runtime), folder, used: Vec::new() }
    }

    /// The lists that `crl` names. Files, and former downloads, are read when this returns, unless they
    /// cannot be.
    pub(crate) fn lists(
        &mut self,
        crl: &SslCrl,
        authorities: &[CertificateDer<'static>],
    ) -> Arc<RevocationLists> {
        let origin = Origin { crl: crl.clone(), authorities: authorities.into() };
        self.used.retain(|(_, lists)| lists.strong_count() > 0);
        let known = self.used.iter().find(|(known, _)| *known == origin);
        if let Some(lists) = known.and_then(|(_, lists)| lists.upgrade()) {
            return lists;
        }
        let lists = Arc::<RevocationLists>::default();
        self.used.push((origin.clone(), Arc::downgrade(&lists)));
        let sources = origin.crl.files.len() + origin.crl.urls.len();
        let kept = Mutex::new(vec![Vec::new(); sources]);
        let folder = self.folder.clone();
        let known = Arc::new(ListContents { origin, kept, folder, lists: Arc::downgrade(&lists) });
        let (files, urls) = (&known.origin.crl.files, &known.origin.crl.urls);
        for (slot, file) in files.iter().enumerate() {
            let mut source = Source::new(slot, file.clone());
            source.read_if_changed(&known);
            if let Some(runtime) = &self.runtime {
                runtime.spawn(source.follow_file(Arc::clone(&known)));
            }
        }
        for (slot, url) in urls.iter().enumerate() {
            let mut source = Source::new(files.len() + slot, url.clone());
            source.read_kept(&known);
            if let Some(runtime) = &self.runtime {
                runtime.spawn(source.follow_url(Arc::clone(&known)));
            }
        }
        lists
    }
}

/// The content of all sources of some lists.
struct ListContents {
    origin: Origin,
    /// By source.
    kept: Mutex<Vec<Vec<Arc<Crl>>>>,
    folder: Option<Folder>,
    lists: Weak<RevocationLists>,
}

impl ListContents {
    /// Puts the new content of a source into force.
    fn put(&self, slot: usize, lists: &[Arc<Crl>]) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept[slot] = lists.to_vec();
        if let Some(lists) = self.lists.upgrade() {
            lists.publish(kept.iter().flatten().cloned().collect());
        }
    }

    fn is_used(&self) -> bool {
        self.lists.strong_count() > 0
    }
}

/// One source.
struct Source<P> {
    slot: usize,
    place: P,
    kept: Vec<Arc<Crl>>,
    /// The stamp of the file when it was read.
    seen: Option<FileStamp>,
    /// The last problem; it is logged once.
    fault: Option<String>,
    is_stale: bool,
}

impl<P> Source<P> {
    fn new(slot: usize, place: P) -> Source<P> {
        Source { slot, place, kept: Vec::new(), seen: None, fault: None, is_stale: false }
    }

    /// Takes a list that was read or fetched, if it can be used. Returns whether it changed.
    fn take(&mut self, shown: &str, found: Result<Vec<Crl>, String>, known: &ListContents) -> bool {
        match found.and_then(|found| succeeded(&self.kept, found, unix_seconds())) {
            Ok(found) => {
                if self.fault.take().is_some() {
                    tracing::warn!(source = shown, "the revocation list is available again");
                }
                let is_same = |(old, new): (&Arc<Crl>, &Arc<Crl>)| old.is_same(new);
                let is_new = self.kept.len() != found.len() || !self.kept.iter().zip(&found).all(is_same);
                // An unchanged list needs no new verdicts.
                if is_new {
                    self.kept = found;
                    known.put(self.slot, &self.kept);
                }
                is_new
            }
            Err(fault) => {
                if self.fault.as_ref() != Some(&fault) {
                    let kept = self.kept.len();
                    tracing::error!(source = shown, kept, "cannot get a new revocation list: {fault}");
                    self.fault = Some(fault);
                }
                false
            }
        }
    }

    fn say_if_stale(&mut self, shown: &str, now: i64) {
        let is_stale = self.kept.iter().any(|crl| crl.next_update() <= now);
        if is_stale && !self.is_stale {
            tracing::error!(
                source = shown,
                "a revocation list has expired: `client.crl.when_stale` applies until there is a newer list"
            );
        }
        self.is_stale = is_stale;
    }
}

/// Returns the lists in force after `found` replaced `kept`. A replayed old list would accept certificates
/// that were revoked since; one of the future would block all later ones.
fn succeeded(kept: &[Arc<Crl>], found: Vec<Crl>, now: i64) -> Result<Vec<Arc<Crl>>, String> {
    for new in &found {
        if kept.iter().any(|old| new.is_of_the_same(old) && old.this_update() > new.this_update()) {
            return Err("the list is older than the previous one, which stays in use".to_owned());
        }
        if new.this_update() > now.saturating_add(FUTURE_S) {
            return Err("the list has a date in the future: check the clocks".to_owned());
        }
    }
    Ok(found.into_iter().map(Arc::new).collect())
}

/// Whether a URL still covers all authorities that it covered. An attacker in between has genuine lists of
/// other authorities, which do not cover the ones in question.
fn complete(kept: &[Arc<Crl>], found: Vec<Crl>) -> Result<Vec<Crl>, String> {
    match kept.iter().all(|old| found.iter().any(|new| new.is_of_the_same(old))) {
        true => Ok(found),
        false => Err("the URL returns the list of another authority than before".to_owned()),
    }
}

impl Source<PathBuf> {
    /// Reads the file if it is not the one that was read last. Blocks.
    fn read_if_changed(&mut self, known: &ListContents) {
        let stamp = FileStamp::read(&self.place).map_err(|error| format!("cannot read the file: {error}"));
        if self.seen.is_some() && self.seen == stamp.as_ref().ok().copied() {
            return;
        }
        self.seen = stamp.as_ref().ok().copied();
        let found = stamp.and_then(|stamp| read(&self.place, stamp.len(), &known.origin));
        let shown = self.place.display().to_string();
        self.take(&shown, found, known);
    }

    /// Reads the file when it changes, until it is not in use any more.
    async fn follow_file(mut self, known: Arc<ListContents>) {
        while known.is_used() {
            let shown = self.place.display().to_string();
            self.say_if_stale(&shown, unix_seconds());
            tokio::time::sleep(LOOK).await;
            let known = Arc::clone(&known);
            let read = tokio::task::spawn_blocking(move || {
                self.read_if_changed(&known);
                self
            });
            // It does not panic, and is not aborted but at the end of the process.
            let Ok(source) = read.await else { return };
            self = source;
        }
    }
}

impl Source<String> {
    /// Tells it from all other sources, and from this one for other authorities.
    fn name(&self, origin: &Origin) -> Vec<u8> {
        let mut name = self.place.clone().into_bytes();
        origin.authorities.iter().for_each(|authority| name.extend_from_slice(authority));
        name
    }

    /// Reads its content from before the start. Blocks.
    fn read_kept(&mut self, known: &ListContents) {
        let most = u64::from(known.origin.crl.max_bytes);
        let kept =
            known.folder.as_ref().and_then(|folder| folder.read(KIND, &self.name(&known.origin), most));
        if let Some(bytes) = kept {
            let found = Crl::parse(&bytes, &known.origin.authorities).map_err(|error| error.to_string());
            let shown = format!("{} (kept)", shown(&self.place));
            self.take(&shown, found, known);
        }
    }

    /// Fetches the URL at its interval, until it is not in use any more.
    async fn follow_url(mut self, known: Arc<ListContents>) {
        let interval = Duration::from_secs(known.origin.crl.interval.into());
        let (shown, mut due) = (shown(&self.place), Instant::now());
        while known.is_used() {
            if due <= Instant::now() {
                let fetched = fetch(&self.place, &known.origin).await;
                let (found, bytes) = match fetched {
                    Ok(bytes) => (parsed(bytes.clone(), &known.origin).await, bytes),
                    Err(fault) => (Err(fault), Vec::new()),
                };
                let found = found.and_then(|found| complete(&self.kept, found));
                let is_answered = found.is_ok();
                if self.take(&shown, found, &known)
                    && let Some(folder) = &known.folder
                {
                    folder.write(KIND, &self.name(&known.origin), bytes).await;
                }
                let next = until_next(&self.kept, interval, unix_seconds());
                due = Instant::now() + if is_answered { next } else { ASK_AGAIN.min(interval) };
            }
            self.say_if_stale(&shown, unix_seconds());
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// How long lists are good for, at most an interval. Expired lists are fetched like lists of an unreachable
/// source.
fn until_next(kept: &[Arc<Crl>], interval: Duration, now: i64) -> Duration {
    let next = kept.iter().map(|crl| crl.next_update()).min().unwrap_or(i64::MAX);
    let left = next.saturating_sub(now).saturating_sub(AHEAD_S);
    Duration::from_secs(u64::try_from(left).unwrap_or(0)).max(ASK_AGAIN).min(interval)
}

fn read(place: &Path, len: u64, origin: &Origin) -> Result<Vec<Crl>, String> {
    let limit = origin.crl.max_bytes;
    if len > u64::from(limit) {
        return Err(format!("the file is larger than `max_bytes`, {limit}"));
    }
    let bytes = std::fs::read(place).map_err(|error| format!("cannot read the file: {error}"))?;
    Crl::parse(&bytes, &origin.authorities).map_err(|error| error.to_string())
}

async fn fetch(url: &str, origin: &Origin) -> Result<Vec<u8>, String> {
    let max_bytes = origin.crl.max_bytes as usize;
    Request { url, body: None, timeout: FETCH_TIMEOUT, max_bytes }.ask().await
}

/// Parses a download. A list of many thousands takes a while.
async fn parsed(bytes: Vec<u8>, origin: &Origin) -> Result<Vec<Crl>, String> {
    let authorities = Arc::clone(&origin.authorities);
    let parsed = tokio::task::spawn_blocking(move || Crl::parse(&bytes, &authorities)).await;
    parsed.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer, KeyIdMethod,
        KeyPair, KeyUsagePurpose, SerialNumber,
    };

    use super::*;

    /// 2024-01-01.
    const NOW: i64 = 1_704_067_200;

    fn issuer(name: &str) -> Issuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::CrlSign, KeyUsagePurpose::KeyCertSign];
        Issuer::new(params, KeyPair::generate().expect("a key"))
    }

    /// A list that was made on a day of January 2024.
    fn list(issuer: &Issuer<'_, KeyPair>, day: u8) -> Crl {
        let params = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2024, 1, day),
            next_update: rcgen::date_time_ymd(2024, 2, 1),
            crl_number: SerialNumber::from(u64::from(day)),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let der = params.signed_by(issuer).expect("a list");
        Crl::parse(der.der(), &[]).expect("a list").remove(0)
    }

    #[test]
    fn newer_lists_must_not_be_older_nor_of_the_future() {
        let (one, other) = (issuer("One"), issuer("Other"));
        let kept = [Arc::new(list(&one, 10))];
        let check = |found: Vec<Crl>, now: i64, expected: &str| {
            let said = succeeded(&kept, found, now).err().unwrap_or_default();
            assert!(said.contains(expected) && said.is_empty() == expected.is_empty(), "{said}");
        };
        let late = NOW + 30 * 86_400;
        check(vec![list(&one, 10)], late, "");
        check(vec![list(&one, 11)], late, "");
        check(vec![list(&one, 9)], late, "older");
        check(vec![list(&other, 1), list(&one, 9)], late, "older");
        check(vec![list(&other, 1)], late, "");
        check(vec![list(&one, 11)], NOW + 9 * 86_400, "future");
        check(vec![list(&one, 11)], NOW + 10 * 86_400 - FUTURE_S, "");
        let answered = complete(&kept, vec![list(&other, 1)]).err().unwrap_or_default();
        assert!(answered.contains("another authority"), "{answered}");
        assert!(complete(&kept, vec![list(&other, 1), list(&one, 1)]).is_ok());
        assert!(complete(&[], Vec::new()).is_ok());
    }

    #[test]
    fn a_list_is_asked_for_before_it_runs_out() {
        let kept = [Arc::new(list(&issuer("One"), 1))];
        let (hour, ends) = (Duration::from_secs(3_600), kept[0].next_update());
        let check = |left_s: i64, expected_s: u64| {
            assert_eq!(until_next(&kept, hour, ends - left_s).as_secs(), expected_s, "{left_s} s left");
        };
        check(10 * 3_600, 3_600);
        check(1_000, 1_000 - 120);
        check(130, 30);
        check(-5, 30);
        assert_eq!(until_next(&[], hour, 0), hour);
        assert_eq!(until_next(&kept, Duration::from_secs(2), ends), Duration::from_secs(2));
    }
}
