//! Formats addresses as text for every request. The formatting of the standard library takes longer than the rest of
//! a hook.

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use sigma_observe::line::{Put, put_number};

/// Each octet as IPv4 text with a dot at the end, and the length of that text; built at compile time.
static OCTETS: [([u8; 4], u8); 256] = {
    let mut octets = [([b'.'; 4], 2); 256];
    let mut n = 0;
    while n < octets.len() {
        let digits = [b'0' + (n / 100) as u8, b'0' + (n / 10 % 10) as u8, b'0' + (n % 10) as u8];
        octets[n] = match n {
            0..10 => ([digits[2], b'.', 0, 0], 2),
            10..100 => ([digits[1], digits[2], b'.', 0], 3),
            _ => ([digits[0], digits[1], digits[2], b'.'], 4),
        };
        n += 1;
    }
    octets
};

/// Returns the network of one customer: an IPv4 address itself, the /64 network of an IPv6 address.
pub fn network_of(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(addr) => IpAddr::V6(Ipv6Addr::from(u128::from(addr) >> 64 << 64)),
        addr @ IpAddr::V4(_) => addr,
    }
}

/// Returns the network of one customer as text: `192.0.2.1`, `2001:db8:0:1::/64`.
pub(crate) fn network_text(addr: IpAddr) -> String {
    match network_of(addr) {
        IpAddr::V6(network) => format!("{network}/64"),
        addr @ IpAddr::V4(_) => addr.to_string(),
    }
}

/// The text of an IP address, on the stack.
#[derive(Debug, Clone, Copy)]
pub struct IpText {
    bytes: [u8; IpText::LONGEST],
    len: u8,
}

impl IpText {
    /// Bytes of the longest IPv6 text.
    const LONGEST: usize = 45;

    /// Formats an address.
    pub fn of(addr: IpAddr) -> IpText {
        let mut text = IpText { bytes: [0; IpText::LONGEST], len: 0 };
        match addr {
            IpAddr::V4(addr) => {
                let mut len = 0;
                for octet in addr.octets() {
                    let (digits, n) = &OCTETS[usize::from(octet)];
                    // The next octet overwrites the unused bytes. The mask changes nothing, and it saves a bounds
                    // check.
                    let at = len & 15;
                    text.bytes[at..at + 4].copy_from_slice(digits);
                    len += usize::from(*n);
                }
                // The text ends before the last dot.
                text.len = len as u8 - 1;
            }
            IpAddr::V6(addr) => {
                let mut room = &mut text.bytes[..];
                // The buffer has room for the longest address.
                let _ = write!(room, "{addr}");
                let left = room.len();
                text.len = (IpText::LONGEST - left) as u8;
            }
        }
        text
    }

    /// Returns the text as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        // The text has only digits, letters, dots and colons.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

/// Appends the text of an address.
#[inline]
pub fn put_ip(addr: IpAddr, out: &mut impl Put) {
    match addr {
        IpAddr::V4(addr) => {
            let [others @ .., last] = addr.octets().map(|octet| &OCTETS[usize::from(octet)]);
            for (digits, len) in others {
                out.put_some(digits, usize::from(*len));
            }
            // The last octet has no dot.
            out.put_some(&last.0, usize::from(last.1 - 1));
        }
        IpAddr::V6(_) => out.put(IpText::of(addr).as_bytes()),
    }
}

/// The address of a node. It becomes text only on demand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NodeAddr {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl NodeAddr {
    /// Appends the same text as [`fmt::Display`].
    pub fn put(&self, out: &mut impl Put) {
        match self {
            NodeAddr::Tcp(SocketAddr::V4(addr)) => {
                put_ip((*addr.ip()).into(), out);
                out.put(b":");
                put_number(addr.port().into(), out);
            }
            other => out.put(other.to_string().as_bytes()),
        }
    }
}

impl fmt::Display for NodeAddr {
    /// `address:port` or `unix:/path`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeAddr::Tcp(addr) => addr.fmt(f),
            NodeAddr::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_covers_one_customer() {
        for (addr, expected) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
            ("2001:db8:0:1::", "2001:db8:0:1::/64"),
            ("::1", "::/64"),
        ] {
            assert_eq!(network_text(addr.parse().unwrap()), expected, "{addr}");
        }
    }

    #[test]
    fn texts_match_the_standard_library() {
        for text in ["0.0.0.0", "127.0.0.1", "255.255.255.255", "9.80.7.123", "::1", "2001:db8::a"] {
            let addr: IpAddr = text.parse().unwrap();
            assert_eq!(IpText::of(addr).as_str(), text);
            let mut written = b"at ".to_vec();
            put_ip(addr, &mut written);
            assert_eq!(String::from_utf8(written).unwrap(), format!("at {text}"));
        }
        for text in ["0.0.0.0:0", "127.0.0.1:65535", "[::1]:80"] {
            let addr = NodeAddr::Tcp(text.parse().unwrap());
            let mut written = b"at ".to_vec();
            addr.put(&mut written);
            assert_eq!(String::from_utf8(written).unwrap(), format!("at {addr}"));
            assert_eq!(addr.to_string(), text);
        }
        let longest = std::net::Ipv6Addr::from([0xffff; 8]);
        assert_eq!(IpText::of(longest.into()).as_str(), longest.to_string());
    }
}
