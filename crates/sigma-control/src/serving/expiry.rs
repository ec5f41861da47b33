//! Expiry of the certificates in force, with warnings in time.
//!
//! An expired certificate stays in use: peers that check refuse it anyway, and some do not check.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sigma_config::Config;
use sigma_config::resources::SslType;
use sigma_net::tls::CertificateDer;
use sigma_net::tls::certificate::{self, Validity};
use sigma_net::tls::pem;
use sigma_observe::Clock;
use sigma_proxy::Snapshot;
use sigma_proxy::snapshot::{Presented, Side};

use super::clock::unix_seconds;
use super::publisher::Publisher;

/// How soon certificates that have come into force are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often all are looked at. A certificate is good for days.
const PERIOD: Duration = Duration::from_secs(60);
const DAY_S: i64 = 86_400;

/// A certificate in force.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct InUse {
    /// Its place, such as `ssls/1`.
    pub(crate) place: String,
    /// The side that it is shown to.
    pub(crate) side: Side,
    /// The DNS names that it is for.
    pub(crate) names: Vec<String>,
    /// Its serial number.
    pub(crate) serial: String,
    /// When the first certificate of its chain expires, in Unix seconds; None if that cannot be read.
    pub(crate) ends: Option<i64>,
    /// From when all of them are good.
    pub(crate) begins: Option<i64>,
}

impl InUse {
    /// A certificate that is shown.
    pub(crate) fn of(presented: &Presented) -> InUse {
        let chain = presented.pair.chain();
        let times: Option<Vec<Validity>> = chain.iter().map(certificate::validity).collect();
        let times = times.unwrap_or_default();
        InUse {
            place: presented.place.clone(),
            side: presented.side,
            names: chain.first().map(certificate::dns_names).unwrap_or_default(),
            serial: chain.first().and_then(certificate::serial).unwrap_or_default(),
            ends: times.iter().map(|time| time.not_after).min(),
            begins: times.iter().map(|time| time.not_before).max(),
        }
    }

    /// Returns its state at `now`, in Unix seconds, where `days` are the thresholds of warnings before the
    /// end. No warning comes before the last third of its lifetime: one that is valid for 30 days is renewed
    /// after 20.
    pub(crate) fn standing(&self, days: &[u32], now: i64) -> Standing {
        let (Some(ends), Some(begins)) = (self.ends, self.begins) else { return Standing::Unreadable };
        let left = ends.saturating_sub(now);
        let third = ends.saturating_sub(begins) / 3;
        let near = days.iter().filter(|days| left <= third.min(i64::from(**days) * DAY_S)).min();
        match near {
            _ if left < 0 => Standing::Expired,
            _ if begins > now => Standing::NotYet,
            Some(days) => Standing::Within(Reverse(*days)),
            None => Standing::Good,
        }
    }
}

impl InUse {
    /// The names that it is for, of many the first ones.
    fn shown_names(&self) -> String {
        const MOST: usize = 3;
        match &self.names[..] {
            [] => "no names".to_owned(),
            names if names.len() <= MOST => names.join(", "),
            names => format!("{} and {} more", names[..MOST].join(", "), names.len() - MOST),
        }
    }

    /// The date of its end.
    fn end(&self) -> String {
        let seconds = self.ends.and_then(|ends| u64::try_from(ends).ok()).unwrap_or_default();
        let clock = Clock::new(seconds.saturating_mul(1000));
        // The date is the part before the time of day.
        let text = String::from_utf8_lossy(clock.time_iso8601()).into_owned();
        text.split('T').next().unwrap_or_default().to_owned()
    }
}

/// The state of a certificate, the most urgent last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// It is in force, and will be for a while.
    Good,
    /// It is not in force yet.
    NotYet,
    /// It expires within so many days.
    Within(Reverse<u32>),
    /// It has ended.
    Expired,
    /// Its time cannot be read.
    Unreadable,
}

impl Standing {
    /// The word that operators see.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Standing::Good => "valid",
            Standing::NotYet => "not_yet_valid",
            Standing::Within(_) => "expires_soon",
            Standing::Expired => "expired",
            Standing::Unreadable => "unreadable",
        }
    }

    /// Returns the remedy, as a sentence; None if nothing is to be done.
    fn advice(self) -> Option<&'static str> {
        match self {
            Standing::Good => None,
            Standing::NotYet => Some("a certificate is not valid yet: check its dates and the clock"),
            Standing::Within(_) => Some("a certificate expires soon: renew it"),
            Standing::Expired => Some("a certificate has expired and peers refuse it: replace it"),
            Standing::Unreadable => Some("the dates of a certificate are unreadable: replace it"),
        }
    }
}

/// Past messages about the certificates in force.
#[derive(Default)]
struct SentWarnings(HashMap<InUse, Standing>);

impl SentWarnings {
    /// Returns the messages at `now` about `certificates`: each threshold once, and only the nearest of
    /// several.
    fn look(&mut self, certificates: Vec<InUse>, days: &[u32], now: i64) -> Vec<(InUse, Standing)> {
        let mut before = std::mem::take(&mut self.0);
        let mut news = Vec::new();
        for certificate in certificates {
            let standing = certificate.standing(days, now);
            let told = before.remove(&certificate).unwrap_or(Standing::Good);
            if standing > told && !self.0.contains_key(&certificate) {
                news.push((certificate.clone(), standing));
            }
            // A clock that is set back is no reason to say it again.
            self.0.insert(certificate, standing.max(told));
        }
        news
    }
}

fn say(certificate: &InUse, standing: Standing, now: i64) {
    let Some(advice) = standing.advice() else { return };
    let InUse { place, serial, ends, .. } = certificate;
    let (names, until) = (certificate.shown_names(), certificate.end());
    let (side, days) = (certificate.side.name(), ends.map(|ends| ends.saturating_sub(now) / DAY_S));
    if standing >= Standing::Expired {
        tracing::error!(resource = place, names, r#type = side, serial, until, days_left = days, "{advice}");
    } else {
        tracing::warn!(resource = place, names, r#type = side, serial, until, days_left = days, "{advice}");
    }
}

/// Says in time which certificates expire, until the process ends.
pub(crate) async fn watch(publisher: Arc<Publisher>) {
    let (mut told, mut seen, mut looked) = (SentWarnings::default(), Weak::new(), Instant::now());
    loop {
        // Before the rest, so that the state is not locked while dates are read.
        let snapshot = publisher.state().snapshot.clone();
        if let Some(snapshot) = snapshot {
            let current = Arc::downgrade(&snapshot);
            if !Weak::ptr_eq(&current, &seen) || looked.elapsed() >= PERIOD {
                (seen, looked) = (current, Instant::now());
                let now = unix_seconds();
                let certificates = snapshot.presented().iter().map(InUse::of).collect();
                let days = &snapshot.settings.tls.expiry_warning_days;
                told.look(certificates, days, now)
                    .iter()
                    .for_each(|(certificate, standing)| say(certificate, *standing, now));
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Returns warnings about the certificates of a configuration that is checked and not served, in addition to
/// the warnings about dates of certificates within the document.
pub fn certificate_warnings(snapshot: &Snapshot, config: &Config) -> Vec<String> {
    let (now, presented) = (unix_seconds(), snapshot.presented());
    let certificates = presented.iter().map(InUse::of).collect();
    let news = SentWarnings::default().look(certificates, &snapshot.settings.tls.expiry_warning_days, now);
    let news = news.iter().filter(|(certificate, _)| !is_reported(config, certificate, now));
    let dates = news.filter_map(|(certificate, standing)| {
        let InUse { place, serial, .. } = certificate;
        let (names, until) = (certificate.shown_names(), certificate.end());
        let file = file_of(config, place);
        Some(format!("{place}: {} ({names}, {file}until {until}, serial {serial})", standing.advice()?))
    });
    dates.chain(presented.iter().filter_map(|one| misnamed(config, one))).collect()
}

/// Returns whether the check of the document has reported the dates of this certificate. It reads PEM texts
/// only: neither files nor secrets.
fn is_reported(config: &Config, in_use: &InUse, now: i64) -> bool {
    let ssl = in_use.place.strip_prefix("ssls/").and_then(|id| config.resources.ssls.get(id));
    let Some(ssl) = ssl else { return false };
    let mut leaves = ssl.pairs().filter_map(|(cert, _)| pem::parse_chain(cert).ok()?.into_iter().next());
    leaves.any(|leaf| {
        let is_over = |time: Validity| now < time.not_before || now > time.not_after;
        certificate::serial(&leaf).as_deref() == Some(in_use.serial.as_str())
            && certificate::validity(&leaf).is_some_and(is_over)
    })
}

/// Returns the warning that a certificate is not for a name of its ssl.
fn misnamed(config: &Config, presented: &Presented) -> Option<String> {
    let ssl = config.resources.ssls.get(presented.place.strip_prefix("ssls/")?)?;
    // The certificate of an `acme` ssl is a temporary one.
    if presented.side != Side::Server || ssl.kind == SslType::Acme {
        return None;
    }
    let in_use = InUse::of(presented);
    let missing: Vec<&str> = ssl.names().filter(|name| !is_for(&in_use.names, name)).collect();
    if missing.is_empty() {
        return None;
    }
    let (place, missing, names) = (&in_use.place, missing.join(", "), in_use.shown_names());
    let (file, serial) = (file_of(config, place), &in_use.serial);
    Some(format!(
        "{place}: the certificate is not for {missing}: clients refuse it; replace it, or correct `snis` ({names}, {file}serial {serial})"
    ))
}

/// Returns whether a certificate with the names `known` is for a server name. A wildcard is for one label. For a
/// pattern a certificate for one name below it is enough.
fn is_for(known: &[String], name: &str) -> bool {
    let parent = |name: &str| name.split_once('.').map(|(_, rest)| rest.to_ascii_lowercase());
    let is_pattern = |name: &str| name.starts_with("*.");
    let fits = |known: &String| {
        known.eq_ignore_ascii_case(name)
            || (is_pattern(known) || is_pattern(name)) && parent(known) == parent(name)
    };
    name == "*" || name.parse::<IpAddr>().is_ok() || known.iter().any(fits)
}

/// Returns the file of a certificate that is the only one of its listener or ssl, and a comma; or an empty text.
fn file_of(config: &Config, place: &str) -> String {
    let of_ssl = |id: &str| {
        let ssl = config.resources.ssls.get(id).filter(|ssl| ssl.certs.is_unset());
        ssl.and_then(|ssl| ssl.cert_file.as_deref())
    };
    let of_listener = |address: &str| {
        let listener = config.settings.listeners.iter().find(|one| one.place().to_string() == address);
        match &*listener?.tls.as_ref()?.certificates {
            [only] => Some(only.cert.as_path()),
            _ => None,
        }
    };
    let file = place.strip_prefix("ssls/").and_then(of_ssl);
    let file = file.or_else(|| place.strip_prefix("listeners/").and_then(of_listener));
    file.map(|file| format!("{}, ", file.display())).unwrap_or_default()
}

/// Returns the leaf of a shown certificate.
pub(crate) fn leaf(presented: &Presented) -> Option<&CertificateDer<'static>> {
    presented.pair.chain().first()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAYS: [u32; 3] = [30, 7, 1];

    fn one(serial: &str, begins: i64, ends: i64) -> InUse {
        let (begins, ends) = (Some(begins), Some(ends));
        let names = vec!["a.example".to_owned()];
        InUse { place: "ssls/1".into(), side: Side::Server, names, serial: serial.into(), ends, begins }
    }

    #[test]
    fn each_threshold_is_reported_once_and_only_the_nearest() {
        let mut told = SentWarnings::default();
        let ends = 100 * DAY_S;
        let mut said = Vec::new();
        // Hours of the clock, the last ones after the end; it is set back in between.
        let hours = (0..101 * 24).chain(98 * 24..102 * 24);
        for hour in hours {
            let news = told.look(vec![one("01", 0, ends)], &DAYS, hour * 3600);
            said.extend(news.into_iter().map(|(_, standing)| (hour, standing)));
        }
        let within = |days| Standing::Within(Reverse(days));
        let expected =
            [(70 * 24, within(30)), (93 * 24, within(7)), (99 * 24, within(1)), (2401, Standing::Expired)];
        assert_eq!(said, expected);
        // Its successor has thresholds of its own; where it is loaded late only the nearest is reported.
        let news = told.look(vec![one("02", 0, ends)], &DAYS, 95 * DAY_S);
        assert_eq!(news, [(one("02", 0, ends), within(7))]);
        // One that occurs twice at a place is one.
        assert_eq!(told.look(vec![one("03", 0, 0), one("03", 0, 0)], &DAYS, 5).len(), 1);
    }

    #[test]
    fn short_lives_have_warnings_in_their_last_third() {
        let day_of = |lifetime: i64| {
            let certificate = one("01", 0, lifetime * DAY_S);
            (0..=lifetime).find(|day| certificate.standing(&DAYS, day * DAY_S) != Standing::Good)
        };
        assert_eq!(day_of(398), Some(368));
        assert_eq!(day_of(90), Some(60));
        assert_eq!(day_of(30), Some(20), "it is not soon over on its first day");
        assert_eq!(day_of(6), Some(4));
    }

    #[test]
    fn names_and_dates_are_shown() {
        let mut certificate = one("01", 0, 1_800_000_000);
        assert_eq!((certificate.shown_names(), certificate.end()), ("a.example".into(), "2027-01-15".into()));
        certificate.names = ["a", "b", "c", "d", "e"].map(str::to_owned).to_vec();
        assert_eq!(certificate.shown_names(), "a, b, c and 2 more");
        certificate.names.clear();
        assert_eq!(certificate.shown_names(), "no names");
    }

    #[test]
    fn certificates_fit_the_names_of_their_ssl() {
        let check = |known: &[&str], name: &str, expected: bool| {
            let known: Vec<String> = known.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(is_for(&known, name), expected, "{known:?} {name}");
        };
        check(&["a.example"], "A.example", true);
        check(&["*.example"], "a.example", true);
        check(&["*.example"], "*.example", true);
        check(&["a.example"], "*.example", true);
        check(&["a.example"], "*", true);
        check(&["a.example"], "127.0.0.1", true);
        check(&["b.example", "a.example"], "a.example", true);
        check(&["b.example"], "a.example", false);
        check(&["*.example"], "b.a.example", false);
        check(&["*.example"], "example", false);
        check(&["a.test"], "*.example", false);
        check(&[], "a.example", false);
    }

    #[test]
    fn immediate_problems_are_reported_at_once() {
        let check = |certificate: InUse, now: i64, days: &[u32], expected: &[Standing]| {
            let news = SentWarnings::default().look(vec![certificate], days, now);
            assert_eq!(news.iter().map(|(_, standing)| *standing).collect::<Vec<_>>(), expected);
        };
        check(one("1", 0, 10), 11, &DAYS, &[Standing::Expired]);
        check(one("1", 0, 10), 11, &[], &[Standing::Expired]);
        check(one("1", 0, 10), 10, &[], &[]);
        check(one("1", 50, 400 * DAY_S), 49, &DAYS, &[Standing::NotYet]);
        check(one("1", 50, 400 * DAY_S), 50, &DAYS, &[]);
        check(InUse { ends: None, begins: None, ..one("1", 0, 0) }, 0, &DAYS, &[Standing::Unreadable]);
        check(one("1", i64::MIN, i64::MIN), i64::MAX, &DAYS, &[Standing::Expired]);
    }
}
