//! Addresses as text, for every request: what the standard library's formatting takes longer for than
//! the rest of a hook.

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// An IP address as text, on the stack.
#[derive(Debug, Clone, Copy)]
pub struct IpText {
    bytes: [u8; IpText::LONGEST],
    len: u8,
}

impl IpText {
    /// Bytes of the longest IPv6 text.
    const LONGEST: usize = 45;

    /// The text of an address.
    pub fn of(addr: IpAddr) -> IpText {
        let mut text = IpText { bytes: [0; IpText::LONGEST], len: 0 };
        match addr {
            IpAddr::V4(addr) => {
                for (at, octet) in addr.octets().into_iter().enumerate() {
                    if at > 0 {
                        text.push(b'.');
                    }
                    if octet >= 100 {
                        text.push(b'0' + octet / 100);
                    }
                    if octet >= 10 {
                        text.push(b'0' + octet / 10 % 10);
                    }
                    text.push(b'0' + octet % 10);
                }
            }
            IpAddr::V6(addr) => {
                let mut room = &mut text.bytes[..];
                // There is room for the longest.
                let _ = write!(room, "{addr}");
                let left = room.len();
                text.len = (IpText::LONGEST - left) as u8;
            }
        }
        text
    }

    fn push(&mut self, byte: u8) {
        self.bytes[usize::from(self.len)] = byte;
        self.len += 1;
    }

    /// The text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // Digits, letters, dots and colons are all that was written.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

/// Where a node is. It becomes text only for those who ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeAddr {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
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
    fn texts_are_those_of_the_standard_library() {
        for text in ["0.0.0.0", "127.0.0.1", "255.255.255.255", "9.80.7.123", "::1", "2001:db8::a"] {
            let addr: IpAddr = text.parse().unwrap();
            assert_eq!(IpText::of(addr).as_str(), text);
        }
        let longest = std::net::Ipv6Addr::from([0xffff; 8]);
        assert_eq!(IpText::of(longest.into()).as_str(), longest.to_string());
    }
}
