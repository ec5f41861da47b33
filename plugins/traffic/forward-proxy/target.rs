//! The target of a tunnel: its form in requests, and the configured hosts.

use std::net::{IpAddr, Ipv6Addr};

use sigma_http::{Method, RequestHead};

/// A host and a port that a client requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Destination {
    /// A name in lower case, or an address without brackets.
    pub(super) host: Box<str>,
    pub(super) port: u16,
}

/// The content of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carries {
    /// Bytes over TCP: CONNECT (RFC 9110 §9.3.6).
    Bytes,
    /// Datagrams over UDP: CONNECT-UDP (RFC 9298).
    Datagrams,
}

impl Destination {
    /// Returns the destination of a CONNECT, or of a request to `…/HOST/PORT/` (RFC 9298 §3); None if it has no
    /// valid one.
    pub(super) fn of(head: &RequestHead, carries: Carries) -> Option<Destination> {
        let (host, port) = match carries {
            Carries::Bytes => {
                let (host, port) = std::str::from_utf8(head.authority()).ok()?.rsplit_once(':')?;
                (host.to_owned(), port.to_owned())
            }
            Carries::Datagrams => {
                let path = std::str::from_utf8(head.raw_path()).ok()?;
                let mut segments = path.strip_suffix('/').unwrap_or(path).rsplit('/');
                let (port, host) = (segments.next()?, segments.next()?);
                (decoded(host)?, decoded(port)?)
            }
        };
        Destination::new(&host, &port)
    }

    fn new(host: &str, port: &str) -> Option<Destination> {
        let digits = !port.is_empty() && port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| digits && *port != 0)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bare {
            Some(bare) => bare.parse::<Ipv6Addr>().ok()?.to_string(),
            None => match host.parse::<IpAddr>() {
                Ok(ip) => ip.to_string(),
                Err(_) => {
                    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
                    Some(host).filter(|host| sigma_net::tls::is_server_name(host))?
                }
            },
        };
        Some(Destination { host: host.into(), port })
    }
}

/// Returns the kind of tunnel that a request asks for; None if it asks for none.
pub(super) fn asked(head: &RequestHead) -> Option<Carries> {
    if head.method == Method::Connect {
        return Some(Carries::Bytes);
    }
    let mut offers = head.headers.get_all(sigma_http::HeaderId::Upgrade);
    let offer = offers.next().filter(|_| offers.next().is_none())?;
    offer.eq_ignore_ascii_case(b"connect-udp").then_some(Carries::Datagrams)
}

fn decoded(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'%' => {
                let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &rest[2..];
            }
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// Hosts that clients may reach.
#[derive(Debug)]
pub(super) struct Hosts(Box<[Pattern]>);

#[derive(Debug)]
enum Pattern {
    Any,
    /// All names below this one.
    Below(Box<str>),
    One(Box<str>),
}

impl Hosts {
    /// Reads patterns.
    ///
    /// # Errors
    /// Returns an error if one is invalid.
    pub(super) fn new(texts: &[String]) -> Result<Hosts, String> {
        let pattern = |text: &String| {
            let invalid = || format!("hosts: `{text}` is not a host name, `*.NAME`, an IP address or `*`");
            match text.strip_prefix("*.") {
                _ if text == "*" => Ok(Pattern::Any),
                Some(name) => {
                    let name = Destination::new(name, "1").ok_or_else(invalid)?.host;
                    Ok(Pattern::Below(format!(".{name}").into()))
                }
                None => Destination::new(text, "1").map(|one| Pattern::One(one.host)).ok_or_else(invalid),
            }
        };
        texts.iter().map(pattern).collect::<Result<_, _>>().map(Hosts)
    }

    /// Returns true if a host is one of them.
    pub(super) fn contain(&self, host: &str) -> bool {
        self.0.iter().any(|pattern| match pattern {
            Pattern::Any => true,
            Pattern::Below(name) => host.len() > name.len() && host.ends_with(&**name),
            Pattern::One(name) => host == &**name,
        })
    }
}

#[cfg(test)]
mod tests {
    use sigma_http::h1::{HeadLimits, Tolerance, parse_request};

    use super::*;

    fn of(request: &str) -> Option<(String, u16)> {
        const LIMITS: HeadLimits =
            HeadLimits { line_bytes: 1_000, head_bytes: 1_000, fields: 10, tolerance: Tolerance::NONE };
        let mut head = RequestHead::default();
        parse_request(request.as_bytes(), &LIMITS, &mut head).unwrap().unwrap();
        let carries = asked(&head)?;
        Destination::of(&head, carries).map(|found| (found.host.into(), found.port))
    }

    #[test]
    fn targets_are_hosts_with_a_port() {
        let udp = |path: &str| {
            of(&format!(
                "GET {path} HTTP/1.1\r\nHost: p\r\nConnection: upgrade\r\nUpgrade: connect-udp\r\n\r\n"
            ))
        };
        let found = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(udp("/.well-known/masque/udp/Dns.test/53/"), found("dns.test", 53));
        assert_eq!(udp("/.well-known/masque/udp/2001%3Adb8%3A%3A42/443/"), found("2001:db8::42", 443));
        assert_eq!(udp("/p/192.0.2.1/443"), found("192.0.2.1", 443));
        for path in
            ["/p/a.test/0/", "/p/a.test/65536/", "/p/a.test/+1/", "/p//1/", "/p/a%2/1/", "/1", "/p/a%2Fb/1/"]
        {
            assert_eq!(udp(path), None, "{path}");
        }
        assert_eq!(of("GET /p/a.test/1/ HTTP/1.1\r\nHost: p\r\n\r\n"), None);
    }

    #[test]
    fn hosts_are_names_and_all_names_below() {
        let hosts =
            |texts: &[&str]| Hosts::new(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        let some = hosts(&["a.test", "*.b.test", "192.0.2.1"]).unwrap();
        for host in ["a.test", "x.b.test", "x.y.b.test", "192.0.2.1"] {
            assert!(some.contain(host), "{host}");
        }
        for host in ["b.test", "xa.test", "xb.test", "192.0.2.2"] {
            assert!(!some.contain(host), "{host}");
        }
        assert!(hosts(&["*"]).unwrap().contain("anything.test"));
        for text in ["", "*.", "a*", "http://a.test", "a.test:443", "10.0.0.0/8"] {
            assert!(hosts(&[text]).is_err(), "{text}");
        }
    }
}
