//! HTTP/3 of nodes whose names announce it by HTTPS records in DNS.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::dns::{DnsError, Http3Record, Resolver};
use crate::feed::backoff;

/// The time after which a query without a result counts as lost. The resolver has shorter timeouts.
const LOST: Duration = Duration::from_secs(60);

/// A name and a port of nodes.
type Place = (String, u16);

/// The announcements of the names of one upstream.
#[derive(Debug, Default)]
pub(crate) struct Announcements {
    known: HashMap<Place, Announced>,
    queries: JoinSet<(Place, Result<Http3Record, DnsError>)>,
}

#[derive(Debug, Default)]
struct Announced {
    /// The UDP port of HTTP/3.
    port: Option<u16>,
    /// The time of the next query; None for at once.
    due: Option<Instant>,
    failures: u32,
}

impl Announcements {
    /// Follows these places only. Known ones keep their announcements.
    pub(crate) fn follow(&mut self, places: impl Iterator<Item = Place>) {
        let mut known = std::mem::take(&mut self.known);
        self.known = places
            .map(|place| known.remove_entry(&place).unwrap_or_else(|| (place, Announced::default())))
            .collect();
    }

    /// Sets the announcement of a place until there is a newer one.
    pub(crate) fn inherit(&mut self, name: &str, port: u16, announced: u16) {
        if let Some(known) = self.known.get_mut(&(name.to_owned(), port)) {
            known.port = Some(announced);
        }
    }

    /// Returns the UDP port of HTTP/3 of a place, if it is announced.
    pub(crate) fn port(&self, name: &str, port: u16) -> Option<u16> {
        if self.known.is_empty() {
            return None;
        }
        self.known.get(&(name.to_owned(), port))?.port
    }

    /// Queries the records that are due, until an announcement has changed. It can be dropped and called again.
    pub(crate) async fn changed(&mut self, resolver: &Resolver) {
        loop {
            let now = Instant::now();
            for (place, known) in &mut self.known {
                if known.due.is_none_or(|due| due <= now) {
                    known.due = Some(now + LOST);
                    let (resolver, place) = (resolver.clone(), place.clone());
                    self.queries.spawn(async move {
                        let record = resolver.http3_record(&place.0, place.1).await;
                        (place, record)
                    });
                }
            }
            let due = self.known.values().filter_map(|known| known.due).min();
            tokio::select! {
                Some(result) = self.queries.join_next(), if !self.queries.is_empty() => {
                    if let Ok((place, record)) = result
                        && self.learn(&place, record, Instant::now())
                    {
                        return;
                    }
                }
                () = tokio::time::sleep_until(due.unwrap_or(now).into()), if due.is_some() => {}
                else => std::future::pending().await,
            }
        }
    }

    /// Takes the result of a query; returns true if the announcement has changed. After an error the last one stays:
    /// a port that does not respond is noticed by its connections.
    fn learn(&mut self, place: &Place, record: Result<Http3Record, DnsError>, now: Instant) -> bool {
        let Some(known) = self.known.get_mut(place) else { return false };
        match record {
            Ok(Http3Record { port, valid_until }) => {
                known.due = Some(valid_until);
                known.failures = 0;
                std::mem::replace(&mut known.port, port) != port
            }
            Err(error) => {
                let (name, port) = place;
                tracing::debug!(name, port, %error, kept = known.port, "cannot query HTTPS records");
                known.due = Some(now + backoff(known.failures));
                known.failures = known.failures.saturating_add(1);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sigma_testkit::{Dns, HttpsRecord, RecordKind};

    use super::*;
    use crate::dns::Times;

    fn resolver(dns: &Dns) -> Resolver {
        let times =
            Times { ttl_max: Duration::from_secs(1), query: Duration::from_millis(200), ..Times::default() };
        Resolver::with_servers(&[dns.address()]).unwrap().timed(times).unwrap()
    }

    fn place(name: &str) -> Place {
        (name.to_owned(), 443)
    }

    #[tokio::test]
    async fn announcements_follow_the_records() {
        let dns = Dns::start().unwrap();
        let announce = |params: &[(u16, &[u8])]| {
            let record = HttpsRecord { priority: 1, target: "", params };
            dns.set_https("a.test", &[record]);
        };
        let (resolver, mut announcements) = (resolver(&dns), Announcements::default());
        announcements.follow([place("a.test"), place("b.test")].into_iter());
        announce(&[(1, b"\x02h3")]);
        announcements.changed(&resolver).await;
        assert_eq!((announcements.port("a.test", 443), announcements.port("b.test", 443)), (Some(443), None));
        announce(&[(1, b"\x02h3"), (3, &[0, 99])]);
        announcements.changed(&resolver).await;
        assert_eq!(announcements.port("a.test", 443), Some(99));
        // A change that is not waited for to its end is not lost.
        announce(&[(1, b"\x02h2")]);
        let waited = async {
            while tokio::time::timeout(Duration::from_millis(1), announcements.changed(&resolver))
                .await
                .is_err()
            {}
        };
        waited.await;
        assert_eq!(announcements.port("a.test", 443), None);
    }

    #[tokio::test]
    async fn an_announcement_stays_without_a_response() {
        let dns = Dns::start().unwrap();
        let (resolver, mut announcements) = (resolver(&dns), Announcements::default());
        dns.silence(&[RecordKind::Https]);
        announcements.follow([place("a.test")].into_iter());
        announcements.inherit("a.test", 443, 99);
        announcements.inherit("b.test", 443, 98);
        let failures = |announcements: &Announcements| announcements.known[&place("a.test")].failures;
        while failures(&announcements) == 0 {
            let _ = tokio::time::timeout(Duration::from_millis(50), announcements.changed(&resolver)).await;
        }
        assert_eq!((announcements.port("a.test", 443), announcements.port("b.test", 443)), (Some(99), None));
        // A name that is still followed keeps its announcement; other names lose theirs.
        announcements.follow([place("a.test"), place("b.test")].into_iter());
        assert_eq!(announcements.port("a.test", 443), Some(99));
        announcements.follow([place("b.test")].into_iter());
        assert_eq!(announcements.port("a.test", 443), None);
    }
}
