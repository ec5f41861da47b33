//! The PROXY protocol: a header in which a load balancer names the client of a connection.
//!
//! Versions 1 (a line of text) and 2 (binary), as in HAProxy's `proxy-protocol.txt`. Parsing is strict in both
//! versions: the header decides the client's identity, so any deviation makes it invalid.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The start of a version 2 header; no other protocol begins like that.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// The start of a version 1 header.
const WORD: &[u8] = b"PROXY";

/// The longest version 1 header, its line end included (§2.1).
const LINE_BYTES: usize = 107;

/// Bytes of a version 2 header before its addresses.
const FIXED_BYTES: usize = 16;

/// Bytes of a Unix address in version 2.
const UNIX_BYTES: usize = 108;

/// The default limit of a version 2 header: a full one of Unix addresses and a few KiB for fields such as the
/// client's certificate names.
pub const HEADER_BYTES: usize = 4096;

/// The origin of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Header {
    /// The sender itself, such as a health check, or an unknown client: the addresses of the connection apply.
    Own,
    /// A client with an IP address
    Ip {
        /// The client.
        source: SocketAddr,
        /// The address that the client connected to.
        destination: SocketAddr,
        /// Its transport.
        transport: Transport,
    },
    /// A process on the sender's machine
    Unix {
        /// The client's socket path; often empty.
        source: Box<[u8]>,
        /// The path that the client connected to.
        destination: Box<[u8]>,
        /// Its transport.
        transport: Transport,
    },
}

/// The transport between the client and the sender of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP or a Unix stream.
    Stream,
    /// UDP or Unix datagrams.
    Datagram,
}

/// An invalid header; the text names the broken rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invalid(pub &'static str);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a PROXY protocol header: {}", self.0)
    }
}

impl std::error::Error for Invalid {}

/// Parses a header of either version at the front of `bytes`; returns the header and its size. Returns `None` if
/// `bytes` may be the beginning of one. A version 2 header may have up to `header_bytes` bytes.
///
/// # Errors
/// Returns an error if `bytes` is not a header, or exceeds its limit.
pub fn parse(bytes: &[u8], header_bytes: usize) -> Result<Option<(Header, usize)>, Invalid> {
    if begins(bytes, SIGNATURE) {
        parse_v2(bytes, header_bytes)
    } else if begins(bytes, WORD) {
        parse_v1(bytes)
    } else {
        Err(Invalid("it does not begin with PROXY or the signature of version 2"))
    }
}

/// Returns true if `bytes` begin with `prefix`, as far as they go.
fn begins(bytes: &[u8], prefix: &[u8]) -> bool {
    let n = bytes.len().min(prefix.len());
    bytes[..n] == prefix[..n]
}

fn parse_v1(bytes: &[u8]) -> Result<Option<(Header, usize)>, Invalid> {
    let window = &bytes[..bytes.len().min(LINE_BYTES)];
    let Some(end) = memchr::memchr(b'\n', window) else {
        return if window.len() < LINE_BYTES { Ok(None) } else { Err(Invalid("its line is too long")) };
    };
    let line = window[..end].strip_suffix(b"\r").ok_or(Invalid("its line does not end in CRLF"))?;
    let line = std::str::from_utf8(line).map_err(|_| Invalid("its line is not ASCII"))?;
    let mut words = line.split(' ').skip(1);
    let header = match words.next() {
        // The rest of the line is ignored (§2.1).
        Some("UNKNOWN") => Header::Own,
        Some("TCP4") => tcp(words, |text| text.parse().ok().map(IpAddr::V4))?,
        Some("TCP6") => tcp(words, |text| text.parse().ok().map(IpAddr::V6))?,
        _ => return Err(Invalid("its protocol is not TCP4, TCP6 or UNKNOWN")),
    };
    Ok(Some((header, end + 1)))
}

fn tcp<'a>(
    mut words: impl Iterator<Item = &'a str>,
    ip: impl Fn(&str) -> Option<IpAddr>,
) -> Result<Header, Invalid> {
    let mut ips = [IpAddr::V4(Ipv4Addr::UNSPECIFIED); 2];
    for slot in &mut ips {
        *slot = words.next().and_then(&ip).ok_or(Invalid("an address is malformed"))?;
    }
    let mut ports = [0; 2];
    for slot in &mut ports {
        *slot = words.next().and_then(port).ok_or(Invalid("a port is malformed"))?;
    }
    if words.next().is_some() {
        return Err(Invalid("extra bytes after the ports"));
    }
    Ok(Header::Ip {
        source: SocketAddr::new(ips[0], ports[0]),
        destination: SocketAddr::new(ips[1], ports[1]),
        transport: Transport::Stream,
    })
}

/// Parses decimal digits without a sign or leading zeros (§2.1).
fn port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if is_plain { text.parse().ok() } else { None }
}

fn parse_v2(bytes: &[u8], header_bytes: usize) -> Result<Option<(Header, usize)>, Invalid> {
    // A wrong byte is rejected as soon as it arrives.
    let command = match bytes.get(12) {
        None => return Ok(None),
        Some(0x20) => Command::Local,
        Some(0x21) => Command::Proxy,
        Some(byte) if byte >> 4 == 2 => return Err(Invalid("its command is not LOCAL or PROXY")),
        Some(_) => return Err(Invalid("its version is not 2")),
    };
    let Some(fixed) = bytes.get(13..FIXED_BYTES) else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([fixed[1], fixed[2]]));
    if FIXED_BYTES + len > header_bytes {
        return Err(Invalid("it is too long"));
    }
    let Some(body) = bytes.get(FIXED_BYTES..FIXED_BYTES + len) else { return Ok(None) };
    let header = match command {
        // Its family and addresses are ignored (§2.2).
        Command::Local => Header::Own,
        Command::Proxy => proxied(fixed[0], body)?,
    };
    Ok(Some((header, FIXED_BYTES + len)))
}

enum Command {
    Local,
    Proxy,
}

fn proxied(family: u8, body: &[u8]) -> Result<Header, Invalid> {
    let transport = match family & 0x0f {
        0 if family == 0 => return Ok(Header::Own),
        1 => Transport::Stream,
        2 => Transport::Datagram,
        _ => return Err(Invalid("its transport is unknown")),
    };
    let short = Invalid("it is too short for its addresses");
    let (header, rest) = match family >> 4 {
        1 => {
            let (a, rest) = body.split_first_chunk::<12>().ok_or(short)?;
            let ip = |at: usize| Ipv4Addr::new(a[at], a[at + 1], a[at + 2], a[at + 3]).into();
            (between(ip(0), ip(4), &a[8..], transport), rest)
        }
        2 => {
            let (a, rest) = body.split_first_chunk::<36>().ok_or(short)?;
            let ip = |at: usize| {
                let mut octets = [0; 16];
                octets.copy_from_slice(&a[at..at + 16]);
                Ipv6Addr::from(octets).into()
            };
            (between(ip(0), ip(16), &a[32..], transport), rest)
        }
        3 => {
            let (a, rest) = body.split_first_chunk::<{ 2 * UNIX_BYTES }>().ok_or(short)?;
            let (source, destination) = a.split_at(UNIX_BYTES);
            (Header::Unix { source: path(source), destination: path(destination), transport }, rest)
        }
        _ => return Err(Invalid("its address family is unknown")),
    };
    skip_fields(rest)?;
    Ok(header)
}

fn between(source: IpAddr, destination: IpAddr, ports: &[u8], transport: Transport) -> Header {
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    Header::Ip {
        source: SocketAddr::new(source, port(0)),
        destination: SocketAddr::new(destination, port(2)),
        transport,
    }
}

/// Returns a path, which ends at its first NUL; one that begins with NUL is abstract, or empty.
fn path(bytes: &[u8]) -> Box<[u8]> {
    let end = match bytes.first() {
        Some(0) => bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1),
        _ => memchr::memchr(0, bytes).unwrap_or(bytes.len()),
    };
    bytes[..end].into()
}

/// Checks the form of the fields behind the addresses (§2.2.1). Their contents are not used.
fn skip_fields(mut rest: &[u8]) -> Result<(), Invalid> {
    while !rest.is_empty() {
        let (head, tail) = rest.split_first_chunk::<3>().ok_or(Invalid("a field is truncated"))?;
        let len = usize::from(u16::from_be_bytes([head[1], head[2]]));
        rest = tail.get(len..).ok_or(Invalid("a field is truncated"))?;
    }
    Ok(())
}

/// Appends `header` in version 1, which supports only clients over TCP.
pub fn encode_v1(header: &Header, out: &mut Vec<u8>) {
    match header {
        Header::Ip { source, destination, transport: Transport::Stream } => {
            let (from, to) = one_family(source.ip(), destination.ip());
            let family = if from.is_ipv4() { "TCP4" } else { "TCP6" };
            let (source_port, destination_port) = (source.port(), destination.port());
            let line = format!("PROXY {family} {from} {to} {source_port} {destination_port}\r\n");
            out.extend_from_slice(line.as_bytes());
        }
        Header::Own | Header::Ip { .. } | Header::Unix { .. } => out.extend_from_slice(b"PROXY UNKNOWN\r\n"),
    }
}

/// Appends `header` in version 2. Paths longer than a socket address are cut.
pub fn encode_v2(header: &Header, out: &mut Vec<u8>) {
    out.extend_from_slice(SIGNATURE);
    let low = |transport: &Transport| match transport {
        Transport::Stream => 1,
        Transport::Datagram => 2,
    };
    match header {
        Header::Own => out.extend_from_slice(&[0x20, 0, 0, 0]),
        Header::Ip { source, destination, transport } => {
            match one_family(source.ip(), destination.ip()) {
                (IpAddr::V4(from), IpAddr::V4(to)) => {
                    out.extend_from_slice(&[0x21, 0x10 | low(transport), 0, 12]);
                    out.extend_from_slice(&from.octets());
                    out.extend_from_slice(&to.octets());
                }
                (from, to) => {
                    out.extend_from_slice(&[0x21, 0x20 | low(transport), 0, 36]);
                    out.extend_from_slice(&widened(from).octets());
                    out.extend_from_slice(&widened(to).octets());
                }
            }
            out.extend_from_slice(&source.port().to_be_bytes());
            out.extend_from_slice(&destination.port().to_be_bytes());
        }
        Header::Unix { source, destination, transport } => {
            out.extend_from_slice(&[0x21, 0x30 | low(transport), 0, 2 * UNIX_BYTES as u8]);
            for path in [source, destination] {
                let n = path.len().min(UNIX_BYTES);
                out.extend_from_slice(&path[..n]);
                out.resize(out.len() + UNIX_BYTES - n, 0);
            }
        }
    }
}

/// Converts both addresses to the family of a header: IPv6 unless both are IPv4.
fn one_family(a: IpAddr, b: IpAddr) -> (IpAddr, IpAddr) {
    if a.is_ipv4() == b.is_ipv4() { (a, b) } else { (widened(a).into(), widened(b).into()) }
}

/// Returns an IPv4 address as IPv6.
fn widened(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream(source: &str, destination: &str) -> Header {
        Header::Ip {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            transport: Transport::Stream,
        }
    }

    #[test]
    fn lines_of_version_1() {
        let check = |line: &str, expected: Result<Option<Header>, &'static str>| {
            let parsed = parse(line.as_bytes(), HEADER_BYTES);
            let parsed =
                parsed.map(|found| found.map(|(header, _)| header)).map_err(|Invalid(reason)| reason);
            assert_eq!(parsed, expected, "{line:?}");
        };
        check("PROXY TCP4 1.2.3.4 5.6.7.8 1 65535\r\nGET /", Ok(Some(stream("1.2.3.4:1", "5.6.7.8:65535"))));
        check("PROXY TCP6 ::1 2001:db8::2 0 443\r\n", Ok(Some(stream("[::1]:0", "[2001:db8::2]:443"))));
        check("PROXY UNKNOWN\r\n", Ok(Some(Header::Own)));
        check("PROXY UNKNOWN ::1 who knows\r\n", Ok(Some(Header::Own)));
        check("", Ok(None));
        check("PRO", Ok(None));
        check("PROXY TCP4 1.2.3.4 5.6.7.8 1 65535\r", Ok(None));
        let address = Err("an address is malformed");
        check("PROXY TCP4 1.2.3.4 ::1 1 2\r\n", address.clone());
        check("PROXY TCP6 1.2.3.4 ::1 1 2\r\n", address.clone());
        check("PROXY TCP4 01.2.3.4 5.6.7.8 1 2\r\n", address.clone());
        check("PROXY TCP4  1.2.3.4 5.6.7.8 1 2\r\n", address.clone());
        check("PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n", address.clone());
        check("PROXY TCP4 1.2.3.4\r\n", address);
        let port = Err("a port is malformed");
        for bad in ["65536 2", "+1 2", "01 2", "-1 2", "1", "1 ", "x 2", "1\t2"] {
            check(&format!("PROXY TCP4 1.2.3.4 5.6.7.8 {bad}\r\n"), port.clone());
        }
        check("PROXY TCP4 1.2.3.4 5.6.7.8 1 2 \r\n", Err("extra bytes after the ports"));
        check("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n", Err("its line does not end in CRLF"));
        let protocol = Err("its protocol is not TCP4, TCP6 or UNKNOWN");
        check("PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n", protocol.clone());
        check("PROXY\r\n", protocol.clone());
        check("PROXYTCP4 1.2.3.4 5.6.7.8 1 2\r\n", protocol);
        check("GET / HTTP/1.1\r\n", Err("it does not begin with PROXY or the signature of version 2"));
        check("proxy TCP4", Err("it does not begin with PROXY or the signature of version 2"));
        let fits = format!("PROXY UNKNOWN {}\r\n", "x".repeat(LINE_BYTES - 16));
        check(&fits, Ok(Some(Header::Own)));
        check(&fits.replace("\r\n", "x\r\n"), Err("its line is too long"));
        assert_eq!(parse(b"PROXY UNKNOWN \xff\r\n", HEADER_BYTES), Err(Invalid("its line is not ASCII")));
    }

    #[test]
    fn headers_of_version_2() {
        let check = |rest: &[u8], expected: Result<Option<Header>, &'static str>| {
            let bytes = [SIGNATURE, rest].concat();
            let parsed = parse(&bytes, 300).map_err(|Invalid(reason)| reason);
            assert_eq!(parsed.map(|found| found.map(|(header, _)| header)), expected, "{rest:?}");
        };
        let v4 = [1, 2, 3, 4, 5, 6, 7, 8, 0, 80, 1, 187];
        let header = stream("1.2.3.4:80", "5.6.7.8:443");
        let with = |head: [u8; 4], tail: &[u8]| [&head[..], &v4, tail].concat();
        check(&with([0x21, 0x11, 0, 12], b""), Ok(Some(header.clone())));
        check(&with([0x21, 0x11, 0, 12], b"GET /"), Ok(Some(header.clone())));
        check(&with([0x21, 0x11, 0, 17], &[4, 0, 2, 9, 9]), Ok(Some(header.clone())));
        check(&with([0x21, 0x11, 0, 15], &[4, 0, 0]), Ok(Some(header)));
        check(&with([0x21, 0x11, 0, 14], &[4, 0]), Err("a field is truncated"));
        check(&with([0x21, 0x11, 0, 16], &[4, 0, 2, 9]), Err("a field is truncated"));
        check(&with([0x21, 0x11, 0, 11], b""), Err("it is too short for its addresses"));
        check(&[0x20, 0, 0, 0], Ok(Some(Header::Own)));
        check(&[0x20, 0xff, 0, 2, 9, 9], Ok(Some(Header::Own)));
        check(&[0x21, 0, 0, 2, 9, 9], Ok(Some(Header::Own)));
        check(&[0x21, 0x21, 0, 0], Err("it is too short for its addresses"));
        check(&[0x21, 0x41, 0, 0], Err("its address family is unknown"));
        check(&[0x21, 0x01, 0, 0], Err("its address family is unknown"));
        check(&[0x21, 0x10, 0, 0], Err("its transport is unknown"));
        check(&[0x21, 0x13, 0, 0], Err("its transport is unknown"));
        check(&[0x22], Err("its command is not LOCAL or PROXY"));
        check(&[0x11], Err("its version is not 2"));
        check(&[0x20, 0, 1, 28], Ok(None));
        check(&[0x20, 0, 1, 29], Err("it is too long"));
        check(&[0x20, 0, 0xff, 0xff], Err("it is too long"));
    }

    fn transport() -> impl Strategy<Value = Transport> {
        prop_oneof![Just(Transport::Stream), Just(Transport::Datagram)]
    }

    fn header() -> impl Strategy<Value = Header> {
        let path = || proptest::collection::vec(1u8.., 0..=UNIX_BYTES).prop_map(Vec::into_boxed_slice);
        prop_oneof![
            Just(Header::Own),
            (any::<[u8; 4]>(), any::<[u8; 4]>(), any::<[u16; 2]>(), transport()).prop_map(
                |(a, b, p, transport)| {
                    let at = |ip: [u8; 4], port| SocketAddr::new(IpAddr::from(ip), port);
                    Header::Ip { source: at(a, p[0]), destination: at(b, p[1]), transport }
                }
            ),
            (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<[u16; 2]>(), transport()).prop_map(
                |(a, b, p, transport)| {
                    let at = |ip: [u8; 16], port| SocketAddr::new(IpAddr::from(ip), port);
                    Header::Ip { source: at(a, p[0]), destination: at(b, p[1]), transport }
                }
            ),
            (path(), path(), transport()).prop_map(|(source, destination, transport)| Header::Unix {
                source,
                destination,
                transport
            }),
        ]
    }

    proptest! {
        #[test]
        fn written_headers_are_read_back(header in header(), tail in proptest::collection::vec(any::<u8>(), 0..20)) {
            let says_all = matches!(header, Header::Own | Header::Ip { transport: Transport::Stream, .. });
            for (encode, expected) in [
                (encode_v2 as fn(&Header, &mut Vec<u8>), header.clone()),
                (encode_v1, if says_all { header.clone() } else { Header::Own }),
            ] {
                let mut bytes = Vec::new();
                encode(&header, &mut bytes);
                let len = bytes.len();
                for cut in 0..len {
                    prop_assert_eq!(parse(&bytes[..cut], HEADER_BYTES), Ok(None), "cut at {}", cut);
                }
                bytes.extend_from_slice(&tail);
                prop_assert_eq!(parse(&bytes, HEADER_BYTES), Ok(Some((expected, len))));
            }
        }

        #[test]
        fn families_are_never_mixed(a in any::<[u8; 4]>(), b in any::<[u8; 16]>(), ports in any::<[u16; 2]>()) {
            let v4 = SocketAddr::new(IpAddr::from(a), ports[0]);
            let v6 = SocketAddr::new(IpAddr::from(b), ports[1]);
            let transport = Transport::Stream;
            for (source, destination) in [(v4, v6), (v6, v4)] {
                for encode in [encode_v1, encode_v2] {
                    let mut bytes = Vec::new();
                    encode(&Header::Ip { source, destination, transport }, &mut bytes);
                    let Ok(Some((Header::Ip { source: from, destination: to, .. }, _))) = parse(&bytes, HEADER_BYTES)
                    else {
                        return Err(TestCaseError::fail("no addresses"));
                    };
                    prop_assert_eq!(from.ip().to_canonical(), source.ip().to_canonical());
                    prop_assert_eq!(to.ip().to_canonical(), destination.ip().to_canonical());
                    prop_assert_eq!((from.port(), to.port()), (source.port(), destination.port()));
                }
            }
        }

        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), signed in any::<bool>()) {
            let bytes = if signed { [SIGNATURE, &[0x21][..], &bytes].concat() } else { [b"PROXY ", &bytes[..]].concat() };
            if let Ok(Some((_, len))) = parse(&bytes, HEADER_BYTES) {
                prop_assert!(len <= bytes.len());
            }
        }
    }
}
