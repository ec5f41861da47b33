//! JA4: the fingerprint of a ClientHello as a short text (FoxIO's `ja4`).

use aws_lc_rs::digest::{SHA256, digest};

const SERVER_NAME: u16 = 0;
const SIGNATURE_ALGORITHMS: u16 = 13;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;

/// Counts have two digits.
const COUNT_MAX: usize = 99;

/// Returns the fingerprint of the ClientHello at the start of TLS records; None if it cannot be parsed.
pub(super) fn fingerprint(records: &[u8]) -> Option<Box<str>> {
    Hello::parse(&handshake(records)?).map(|hello| hello.fingerprint().into())
}

/// Parses the body of a ClientHello; None if that fails.
pub(super) fn read(body: &[u8]) -> Option<Hello> {
    Hello::parse(body)
}

/// Returns the bytes of the handshake message in the records.
pub(super) fn handshake(mut records: &[u8]) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    // Type, version and length of a record; 22 is a handshake.
    while let [22, _, _, high, low, rest @ ..] = records {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        message.extend_from_slice(rest.get(..length)?);
        records = &rest[length..];
        if let [1, a, b, c, body @ ..] = &message[..] {
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            if body.len() >= length {
                return Some(body[..length].to_vec());
            }
        }
    }
    None
}

/// The relevant parts of a ClientHello.
#[derive(Default)]
pub(super) struct Hello {
    version: u16,
    ciphers: Vec<u16>,
    extensions: Vec<u16>,
    signatures: Vec<u16>,
    /// The first offered protocol.
    alpn: Vec<u8>,
    /// The requested name, unchecked.
    name: Vec<u8>,
}

/// Returns true for values that must be ignored (RFC 8701).
fn is_grease(value: u16) -> bool {
    value & 0x0f0f == 0x0a0a && value >> 8 == value & 0xff
}

/// A byte reader.
struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<usize> {
        self.take(1).map(|bytes| usize::from(bytes[0]))
    }

    fn pair(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Returns the part after a length of two bytes.
    fn part(&mut self) -> Option<Bytes<'b>> {
        let length = usize::from(self.pair()?);
        self.take(length).map(Bytes)
    }

    fn pairs(mut self) -> Vec<u16> {
        std::iter::from_fn(|| self.pair()).filter(|value| !is_grease(*value)).collect()
    }
}

impl Hello {
    fn parse(body: &[u8]) -> Option<Hello> {
        let mut body = Bytes(body);
        let mut hello = Hello { version: body.pair()?, ..Hello::default() };
        body.take(32)?;
        let session = body.byte()?;
        body.take(session)?;
        hello.ciphers = body.part()?.pairs();
        let compressions = body.byte()?;
        body.take(compressions)?;
        // A hello may end here.
        let mut extensions = body.part().unwrap_or(Bytes(&[]));
        while !extensions.0.is_empty() {
            let (kind, mut content) = (extensions.pair()?, extensions.part()?);
            if is_grease(kind) {
                continue;
            }
            hello.extensions.push(kind);
            match kind {
                SERVER_NAME => {
                    // The only type is a host name. The library rejects a malformed list.
                    let name = content.part().and_then(|mut names| match names.byte() {
                        Some(0) => names.part(),
                        _ => None,
                    });
                    hello.name = name.map(|name| name.0.to_vec()).unwrap_or_default();
                }
                SUPPORTED_VERSIONS => {
                    let length = content.byte()?;
                    let versions = Bytes(content.take(length)?).pairs();
                    hello.version = versions.into_iter().max().unwrap_or(hello.version);
                }
                SIGNATURE_ALGORITHMS => hello.signatures = content.part()?.pairs(),
                ALPN => {
                    let mut protocols = content.part()?;
                    let length = protocols.byte()?;
                    hello.alpn = protocols.take(length)?.to_vec();
                }
                _ => {}
            }
        }
        Some(hello)
    }

    /// Returns the name that the client requests, if it is a DNS name (RFC 6066 §3).
    pub(super) fn server_name(&self) -> Option<&str> {
        let name = std::str::from_utf8(&self.name).ok()?;
        rustls::pki_types::DnsName::try_from(name).is_ok().then_some(name)
    }

    /// Returns the offered cipher suites.
    pub(super) fn ciphers(&self) -> &[u16] {
        &self.ciphers
    }

    /// Returns the fingerprint of a client that uses TLS over TCP.
    fn fingerprint(&self) -> String {
        self.fingerprint_over('t')
    }

    /// Returns the fingerprint of a client that uses QUIC.
    pub(super) fn fingerprint_over_quic(&self) -> String {
        self.fingerprint_over('q')
    }

    fn fingerprint_over(&self, transport: char) -> String {
        let version = match self.version {
            0x0304 => "13",
            0x0303 => "12",
            0x0302 => "11",
            0x0301 => "10",
            0x0300 => "s3",
            0x0002 => "s2",
            _ => "00",
        };
        let name = if self.extensions.contains(&SERVER_NAME) { 'd' } else { 'i' };
        let (ciphers, extensions) = (self.ciphers.len().min(COUNT_MAX), self.extensions.len().min(COUNT_MAX));
        let alpn = alpn(&self.alpn);
        let mut sorted = self.ciphers.clone();
        sorted.sort_unstable();
        let first = hashed(&listed(&sorted));
        let mut sorted: Vec<u16> =
            self.extensions.iter().copied().filter(|kind| !matches!(*kind, SERVER_NAME | ALPN)).collect();
        sorted.sort_unstable();
        let mut second = listed(&sorted);
        if !self.signatures.is_empty() && !second.is_empty() {
            // In the client's order.
            second.push('_');
            second.push_str(&listed(&self.signatures));
        }
        format!("{transport}{version}{name}{ciphers:02}{extensions:02}{alpn}_{first}_{}", hashed(&second))
    }
}

/// Returns the first and the last character of a protocol; in hexadecimal if one is not a letter or digit.
fn alpn(protocol: &[u8]) -> String {
    let (Some(first), Some(last)) = (protocol.first(), protocol.last()) else { return "00".to_owned() };
    if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() {
        return [char::from(*first), char::from(*last)].iter().collect();
    }
    let digits = format!("{first:02x}{last:02x}");
    [&digits[..1], &digits[3..]].concat()
}

fn listed(values: &[u16]) -> String {
    values.iter().map(|value| format!("{value:04x}")).collect::<Vec<_>>().join(",")
}

/// Returns the first twelve digits of a digest; zeros for an empty text.
fn hashed(text: &str) -> String {
    if text.is_empty() {
        return "000000000000".to_owned();
    }
    digest(&SHA256, text.as_bytes()).as_ref()[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &(content.len() as u16).to_be_bytes(), content].concat()
    }

    fn pairs(values: &[u16]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_be_bytes()).collect()
    }

    fn part(content: &[u8]) -> Vec<u8> {
        [&(content.len() as u16).to_be_bytes()[..], content].concat()
    }

    /// Returns a ClientHello in records of at most `record` bytes.
    fn hello(ciphers: &[u16], extensions: &[Vec<u8>], record: usize) -> Vec<u8> {
        let mut body = [&[3, 3][..], &[7; 32], &[0]].concat();
        body.extend(part(&pairs(ciphers)));
        body.extend([1, 0]);
        body.extend(part(&extensions.concat()));
        let message = [&[1][..], &(body.len() as u32).to_be_bytes()[1..], &body].concat();
        let records = message.chunks(record).map(|piece| [&[22, 3, 1][..], &part(piece)].concat());
        records.collect::<Vec<_>>().concat()
    }

    /// The example of the specification: Chrome's hello, `t13d1516h2_8daaf6152771_e5627efa2ab1`.
    fn chrome() -> (Vec<u16>, Vec<Vec<u8>>) {
        let ciphers = vec![
            0x1a1a, 0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013, 0xc014,
            0x009c, 0x009d, 0x002f, 0x0035,
        ];
        let signatures = [0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601];
        let versions = [&[6][..], &pairs(&[0x2a2a, 0x0304, 0x0303])].concat();
        let kinds: [u16; 17] = [
            0x3a3a, 0x001b, 0x0000, 0x0033, 0x0010, 0x4469, 0x0017, 0x002d, 0x000d, 0x0005, 0x0023, 0x0012,
            0x002b, 0xff01, 0x000b, 0x000a, 0x0015,
        ];
        let content = |kind: u16| match kind {
            SIGNATURE_ALGORITHMS => part(&pairs(&signatures)),
            SUPPORTED_VERSIONS => versions.clone(),
            ALPN => part(b"\x02h2\x08http/1.1"),
            _ => Vec::new(),
        };
        (ciphers, kinds.iter().map(|kind| extension(*kind, &content(*kind))).collect())
    }

    #[test]
    fn the_example_of_the_specification() {
        let (ciphers, mut extensions) = chrome();
        let expected = Some("t13d1516h2_8daaf6152771_e5627efa2ab1");
        for record in [1, 100, 1 << 14] {
            assert_eq!(fingerprint(&hello(&ciphers, &extensions, record)).as_deref(), expected);
        }
        // Browsers shuffle their extensions.
        extensions.reverse();
        assert_eq!(fingerprint(&hello(&ciphers, &extensions, 1 << 14)).as_deref(), expected);
    }

    #[test]
    fn short_hellos() {
        let check = |ciphers: &[u16], extensions: &[Vec<u8>], expected: &str| {
            assert_eq!(fingerprint(&hello(ciphers, extensions, 1 << 14)).as_deref(), Some(expected));
        };
        check(&[], &[], "t12i000000_000000000000_000000000000");
        let odd = extension(ALPN, &part(b"\x03\xab\x01\xcd"));
        check(&[], &[odd], "t12i0001ad_000000000000_000000000000");
    }

    #[test]
    fn other_messages_have_no_fingerprint() {
        let (ciphers, extensions) = chrome();
        let whole = hello(&ciphers, &extensions, 1 << 14);
        for length in 0..whole.len() {
            assert_eq!(fingerprint(&whole[..length]), None, "{length} bytes");
        }
        for at in 5..whole.len() {
            let mut broken = whole.clone();
            broken[at] ^= 0xff;
            // The result does not matter, but there must be no panic.
            let _ = fingerprint(&broken);
        }
        assert_eq!(fingerprint(b"GET / HTTP/1.1\r\n\r\n"), None);
    }
}
