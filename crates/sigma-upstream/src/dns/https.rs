//! HTTPS records (RFC 9460): the announcement of HTTP/3 for a name and a port.
//!
//! Only the port of a record counts. A node has only the addresses of its own name, so a record that leads elsewhere
//! does not count: an alias, or a service with another target. Address hints are not read.

use std::time::{Duration, Instant};

use hickory_resolver::proto::rr::rdata::HTTPS;
use hickory_resolver::proto::rr::rdata::svcb::{SvcParamKey, SvcParamValue};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};

use super::{DnsError, Resolver, owners};

/// The port whose records have the name itself (RFC 9460 §9.1).
const DEFAULT_PORT: u16 = 443;

/// The time until a name without an announcement is queried again.
const ABSENT: Duration = Duration::from_secs(60);

/// The announcement of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Http3Record {
    /// The UDP port; None if HTTP/3 is not announced.
    pub(crate) port: Option<u16>,
    /// The time of the next query.
    pub(crate) valid_until: Instant,
}

impl Resolver {
    /// Returns the announcement for `port` of `name`.
    ///
    /// # Errors
    /// Returns an error if no server responded, or if the response is malformed.
    pub(crate) async fn http3_record(&self, name: &str, port: u16) -> Result<Http3Record, DnsError> {
        let question = match port {
            DEFAULT_PORT => name.to_owned(),
            _ => format!("_{port}._https.{name}"),
        };
        let now = Instant::now();
        let bounded = |until: Instant| {
            let (least, most) = (self.times.ttl_min, self.times.ttl_max.max(self.times.ttl_min));
            until.clamp(now + least, now + most)
        };
        let absent = Http3Record { port: None, valid_until: bounded(now + ABSENT) };
        let lookup = match self.inner.lookup(question, RecordType::HTTPS).await {
            Ok(lookup) => lookup,
            Err(error) if error.is_no_records_found() => return Ok(absent),
            Err(error) => return Err(error.into()),
        };
        let owners = owners(&lookup);
        let of_name = |record: &&Record| owners.contains(&&record.name);
        let records = lookup.answers().iter().filter(of_name).filter_map(|record| match &record.data {
            RData::HTTPS(https) => Some(https),
            _ => None,
        });
        let records: Vec<&HTTPS> = records.collect();
        if records.is_empty() {
            return Ok(absent);
        }
        // The resolver may have added a search domain.
        let owner = lookup.query().name();
        let host = if port == DEFAULT_PORT { owner.clone() } else { owner.base_name().base_name() };
        let found = announced_port(&records, owner, &host, port).unwrap_or_else(|reason| {
            tracing::debug!(name, port, reason, "HTTPS records are ignored");
            None
        });
        Ok(Http3Record { port: found, valid_until: bounded(lookup.valid_until()) })
    }
}

/// A service of a name.
struct Service {
    priority: u16,
    /// The UDP port of HTTP/3, if it is offered.
    http3: Option<u16>,
}

/// Returns the UDP port of HTTP/3 that the records of `owner` announce for `port` of `host`.
///
/// # Errors
/// Returns the reason if the records do not count.
fn announced_port(
    records: &[&HTTPS],
    owner: &Name,
    host: &Name,
    port: u16,
) -> Result<Option<u16>, &'static str> {
    if records.iter().any(|record| record.svc_priority == 0) {
        return Err("they are an alias, and a node has only the addresses of its own name");
    }
    let mut services = Vec::new();
    for record in records {
        // One malformed record makes all of them invalid (RFC 9460 §2.2).
        let service = Service::read(record, port)?;
        let target = if record.target_name.is_root() { owner } else { &record.target_name };
        services.extend(service.filter(|_| target == host));
    }
    let first = services.iter().map(|service| service.priority).min();
    let first = first.ok_or("none has the name of the node as its target, and known keys and protocols")?;
    // A record with a lower number is preferred, even if it offers no HTTP/3.
    Ok(services.iter().filter(|service| service.priority == first).find_map(|service| service.http3))
}

impl Service {
    /// Reads a record; returns None if it demands a key, or has only protocols, that the gateway does not know.
    /// `port` is the port without another one in the record.
    ///
    /// # Errors
    /// Returns the reason if the record is malformed.
    fn read(record: &HTTPS, port: u16) -> Result<Option<Service>, &'static str> {
        let (mut protocols, mut has_default, mut at, mut demanded) = (None, true, port, &[][..]);
        for (_, value) in &record.svc_params {
            match value {
                SvcParamValue::Alpn(ids) => protocols = Some(&ids.0),
                SvcParamValue::NoDefaultAlpn => has_default = false,
                SvcParamValue::Port(other) => at = *other,
                SvcParamValue::Mandatory(keys) => demanded = &keys.0,
                _ => {}
            }
        }
        let has = |key: &SvcParamKey| record.svc_params.iter().any(|(known, _)| known == key);
        if demanded.iter().any(|key| *key == SvcParamKey::Mandatory || !has(key)) {
            return Err("`mandatory` names itself or a key that the record does not have");
        }
        if !demanded.is_sorted_by(|one, next| one < next) {
            return Err("`mandatory` names a key twice, or not in order");
        }
        if protocols.is_none() && !has_default {
            return Err("`no-default-alpn` without `alpn` leaves no protocol");
        }
        let protocols = protocols.map_or(&[][..], Vec::as_slice);
        let offers = |wanted: &str| protocols.iter().any(|id| id == wanted);
        let is_usable = has_default || offers("h2") || offers("http/1.1") || offers("h3");
        let is_known = demanded.iter().all(|key| KNOWN.contains(key)) && at > 0 && is_usable;
        let http3 = offers("h3").then_some(at);
        Ok(is_known.then_some(Service { priority: record.svc_priority, http3 }))
    }
}

/// The keys that a record may demand. Hints may be ignored by their definition; Encrypted Client Hello is not
/// supported.
const KNOWN: [SvcParamKey; 5] = [
    SvcParamKey::Alpn,
    SvcParamKey::NoDefaultAlpn,
    SvcParamKey::Port,
    SvcParamKey::Ipv4Hint,
    SvcParamKey::Ipv6Hint,
];

#[cfg(test)]
mod tests {
    use sigma_testkit::{Dns, HttpsRecord, RecordKind};

    use super::super::Times;
    use super::*;

    /// Returns the port that these records announce for a port of `a.test`.
    async fn announced(dns: &Dns, port: u16) -> Result<Option<u16>, DnsError> {
        // Without the cache of an earlier query.
        let resolver = Resolver::with_servers(&[dns.address()]).unwrap();
        resolver.http3_record("a.test", port).await.map(|record| record.port)
    }

    fn record<'r>(priority: u16, target: &'r str, params: &'r [(u16, &'r [u8])]) -> HttpsRecord<'r> {
        HttpsRecord { priority, target, params }
    }

    const H3: (u16, &[u8]) = (1, b"\x02h3\x02h2");
    const H2: (u16, &[u8]) = (1, b"\x02h2");
    const PORT: (u16, &[u8]) = (3, &[0x11, 0x5c]);

    #[tokio::test]
    async fn the_first_service_decides() {
        let dns = Dns::start().unwrap();
        let check = async |records: &[HttpsRecord<'_>], want: Option<u16>| {
            dns.set_https("a.test", records);
            assert_eq!(announced(&dns, 443).await.unwrap(), want, "{records:?}");
        };
        check(&[], None).await;
        check(&[record(1, "", &[H3])], Some(443)).await;
        check(&[record(1, "a.test", &[H3, PORT])], Some(4444)).await;
        check(&[record(1, "", &[H2])], None).await;
        check(&[record(1, "", &[])], None).await;
        // By priority, not by order; among equals, one with HTTP/3.
        check(&[record(2, "", &[H3]), record(1, "", &[H3, PORT])], Some(4444)).await;
        check(&[record(2, "", &[H3]), record(1, "", &[H2])], None).await;
        check(&[record(1, "", &[H2]), record(1, "", &[H3])], Some(443)).await;
        // Only protocols that the gateway does not speak: the next one counts.
        check(&[record(1, "", &[(1, b"\x03foo"), (2, b"")]), record(2, "", &[H3])], Some(443)).await;
        check(&[record(1, "", &[(1, b"\x02h3"), (2, b"")])], Some(443)).await;
        check(&[record(1, "", &[H3, (3, &[0, 0])])], None).await;
        // Address hints and Encrypted Client Hello change nothing.
        check(&[record(1, "", &[H3, (4, &[10, 0, 0, 1]), (5, b"\0\x01x")])], Some(443)).await;
    }

    #[tokio::test]
    async fn records_that_lead_elsewhere_do_not_count() {
        let dns = Dns::start().unwrap();
        let check = async |records: &[HttpsRecord<'_>], want: Option<u16>| {
            dns.set_https("a.test", records);
            assert_eq!(announced(&dns, 443).await.unwrap(), want, "{records:?}");
        };
        dns.set_https("b.test", &[record(1, "", &[H3])]);
        check(&[record(0, "b.test", &[])], None).await;
        check(&[record(0, "b.test", &[]), record(1, "", &[H3])], None).await;
        check(&[record(1, "b.test", &[H3])], None).await;
        check(&[record(1, "localhost", &[H3]), record(2, "", &[H3, PORT])], Some(4444)).await;
    }

    #[tokio::test]
    async fn unknown_demands_and_malformed_records_do_not_count() {
        let dns = Dns::start().unwrap();
        let check = async |params: &[(u16, &[u8])], want: Option<u16>| {
            dns.set_https("a.test", &[record(1, "", params), record(2, "", &[H3])]);
            assert_eq!(announced(&dns, 443).await.ok().flatten(), want, "{params:?}");
        };
        check(&[(0, &[0, 1, 0, 3]), H3, PORT], Some(4444)).await;
        // The record is left out: the other one has the default port.
        check(&[(0, &[0x02, 0x9a]), H3, (0x029a, b"x")], Some(443)).await;
        check(&[(0, &[0, 5]), H3, (5, b"\0\x01x")], Some(443)).await;
        // All are left out.
        for params in [
            &[(0, &[0, 3][..]), H3][..],
            &[(0, &[0, 0]), H3],
            &[(0, &[0, 3, 0, 1]), H3, PORT],
            &[(0, &[0, 1, 0, 1]), H3],
            &[(0, &[]), H3],
            &[(2, b"")],
            &[PORT, H3],
            &[H3, H3],
            &[(1, b"")],
            &[(1, b"\x09h3")],
            &[(1, b"\x02\xff\xfe")],
            &[H3, (3, &[1])],
        ] {
            check(params, None).await;
        }
    }

    #[tokio::test]
    async fn another_port_has_records_of_its_own() {
        let dns = Dns::start().unwrap();
        dns.set_https("a.test", &[record(1, "", &[H3])]);
        assert_eq!(announced(&dns, 8443).await.unwrap(), None);
        dns.set_https("_8443._https.a.test", &[record(1, "a.test", &[H3])]);
        assert_eq!(announced(&dns, 8443).await.unwrap(), Some(8443));
        // The name with the prefix has no addresses.
        dns.set_https("_8443._https.a.test", &[record(1, "", &[H3])]);
        assert_eq!(announced(&dns, 8443).await.unwrap(), None);
    }

    #[tokio::test]
    async fn records_are_queried_again_within_bounds() {
        let dns = Dns::start().unwrap();
        dns.set_https("a.test", &[record(1, "", &[H3])]);
        let times =
            Times { ttl_min: Duration::from_secs(30), ttl_max: Duration::from_secs(40), ..Times::default() };
        let resolver = Resolver::with_servers(&[dns.address()]).unwrap().timed(times).unwrap();
        // The name server says one second.
        for (name, port) in [("a.test", Some(443)), ("b.test", None)] {
            let (before, record) = (Instant::now(), resolver.http3_record(name, 443).await.unwrap());
            let after = record.valid_until.duration_since(before).as_secs();
            assert!((29..=41).contains(&after) && record.port == port, "{name} {after} {record:?}");
        }
        dns.silence(&[RecordKind::Https]);
        let hasty = Times { query: Duration::from_millis(100), ..times };
        let resolver = resolver.timed(hasty).unwrap();
        assert!(resolver.http3_record("a.test", 443).await.is_err());
    }
}
