//! Control messages and socket addresses of the kernel, read and written as bytes.

use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::c_int;

/// The buffer for the only control message: the local address of a datagram.
const BYTES: usize = 64;

/// The unit of lengths of control messages: `size_t` of the kernel.
const UNIT: usize = size_of::<usize>();

/// The bytes before the data of a message: its length, its level and its type.
const HEAD: usize = (UNIT + 2 * size_of::<c_int>()).next_multiple_of(UNIT);

/// Control messages, with the alignment of their header.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control(pub(super) [u8; BYTES]);

impl Control {
    /// No message.
    pub(super) const EMPTY: Control = Control([0; BYTES]);

    /// Writes the source address of a datagram; returns the number of bytes.
    pub(super) fn write_local(&mut self, local: IpAddr) -> usize {
        match local {
            // `in_pktinfo`: the interface, the source, and the destination of received ones.
            IpAddr::V4(ip) => {
                let [a, b, c, d] = ip.octets();
                self.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &[0, 0, 0, 0, a, b, c, d, 0, 0, 0, 0])
            }
            // `in6_pktinfo`: the source, and the interface.
            IpAddr::V6(ip) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&ip.octets());
                self.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info)
            }
        }
    }

    fn put(&mut self, level: c_int, kind: c_int, data: &[u8]) -> usize {
        let length = HEAD + data.len();
        let head = [&length.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes()].concat();
        self.0[..head.len()].copy_from_slice(&head);
        self.0[HEAD..length].copy_from_slice(data);
        length.next_multiple_of(UNIT)
    }

    /// Returns the destination address of a datagram, if the kernel reports it in the first `length` bytes.
    pub(super) fn local(&self, length: usize) -> Option<IpAddr> {
        let mut rest = self.0.get(..length)?;
        loop {
            let length = usize::from_ne_bytes(rest.get(..UNIT)?.try_into().ok()?);
            let level = number(rest.get(UNIT..)?)?;
            let kind = number(rest.get(UNIT + size_of::<c_int>()..)?)?;
            let data = rest.get(HEAD..length)?;
            match (level, kind) {
                // For a broadcast it is the address of the interface, which can be the source of a response.
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let octets: [u8; 4] = data.get(4..8)?.try_into().ok()?;
                    return Some(Ipv4Addr::from(octets).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let octets: [u8; 16] = data.get(..16)?.try_into().ok()?;
                    let addr = Ipv6Addr::from(octets);
                    // A multicast address cannot be a source.
                    return (!addr.is_multicast()).then_some(addr.into());
                }
                _ => rest = rest.get(length.next_multiple_of(UNIT)..)?,
            }
        }
    }
}

fn number(bytes: &[u8]) -> Option<c_int> {
    bytes.first_chunk().map(|number| c_int::from_ne_bytes(*number))
}

/// A buffer for the address of a sender, with the alignment of `sockaddr_storage`.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Name(pub(super) [u8; size_of::<libc::sockaddr_storage>()]);

impl Name {
    /// No address.
    pub(super) const EMPTY: Name = Name([0; size_of::<libc::sockaddr_storage>()]);

    /// Returns the address in the first `length` bytes. None if it is no address of the Internet.
    pub(super) fn addr(&self, length: usize) -> Option<SocketAddr> {
        let bytes = self.0.get(..length)?;
        let family = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
        let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        match c_int::from(family) {
            libc::AF_INET => {
                let octets: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
                Some(SocketAddr::new(octets.into(), port))
            }
            libc::AF_INET6 => {
                let octets: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
                Some(SocketAddrV6::new(octets.into(), port, word(4)?, word(24)?).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn layouts_are_the_kernels() {
        assert_eq!((HEAD, offset_of!(libc::cmsghdr, cmsg_level)), (size_of::<libc::cmsghdr>(), UNIT));
        assert_eq!((offset_of!(libc::in_pktinfo, ipi_spec_dst), size_of::<libc::in_pktinfo>()), (4, 12));
        assert_eq!((offset_of!(libc::in6_pktinfo, ipi6_addr), size_of::<libc::in6_pktinfo>()), (0, 20));
        assert_eq!(offset_of!(libc::sockaddr_in, sin_addr), 4);
        assert_eq!(offset_of!(libc::sockaddr_in6, sin6_addr), 8);
        assert_eq!(offset_of!(libc::sockaddr_in6, sin6_scope_id), 24);
        assert!(align_of::<Name>() >= align_of::<libc::sockaddr_storage>());
    }

    #[test]
    fn a_written_address_is_read_back() {
        for local in ["127.0.0.1", "::1", "2001:db8::7"].map(|text| text.parse().unwrap()) {
            let mut control = Control::EMPTY;
            let length = control.write_local(local);
            assert_eq!(control.local(length), Some(local));
            assert_eq!(control.local(length - 8), None);
        }
        let mut control = Control::EMPTY;
        let length = control.write_local("ff02::1".parse().unwrap());
        assert_eq!(control.local(length), None);
        assert_eq!(Control::EMPTY.local(BYTES), None);
        assert_eq!(Control([0xff; BYTES]).local(BYTES), None);
        assert_eq!(Control::EMPTY.local(BYTES + 1), None);
    }

    #[test]
    fn an_address_follows_another_message() {
        let mut control = Control::EMPTY;
        let first = control.put(libc::SOL_SOCKET, 1, &[7; 3]);
        let mut second = Control::EMPTY;
        let length = second.write_local("127.0.0.2".parse().unwrap());
        control.0[first..first + length].copy_from_slice(&second.0[..length]);
        assert_eq!(control.local(first + length), Some("127.0.0.2".parse().unwrap()));
    }

    #[test]
    fn only_addresses_of_the_internet_are_names() {
        for addr in ["127.0.0.1:80", "[2001:db8::7]:53"].map(|text| text.parse::<SocketAddr>().unwrap()) {
            let mut name = Name::EMPTY;
            let length = match addr {
                SocketAddr::V4(v4) => {
                    name.0[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                    name.0[4..8].copy_from_slice(&v4.ip().octets());
                    16
                }
                SocketAddr::V6(v6) => {
                    name.0[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                    name.0[8..24].copy_from_slice(&v6.ip().octets());
                    28
                }
            };
            name.0[2..4].copy_from_slice(&addr.port().to_be_bytes());
            assert_eq!(name.addr(length), Some(addr));
            assert_eq!(name.addr(3), None);
        }
        assert_eq!((Name::EMPTY.addr(0), Name::EMPTY.addr(16)), (None, None));
    }
}
