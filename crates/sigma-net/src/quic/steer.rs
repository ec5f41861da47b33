//! The choice of a worker's socket by the kernel.
//!
//! The sockets of an address are a group (SO_REUSEPORT). By default the kernel spreads datagrams over a group by their
//! addresses, so a client that changes its address reaches another worker. A program of classic BPF chooses by the
//! connection id instead: by its first word modulo the sockets. It needs no right, and its result is the number of a
//! socket by the order of bind. [Ids](super::ids) are drawn so that the number is the one of their worker.

use std::io;
use std::os::fd::AsFd;

use libc::{
    BPF_A, BPF_ABS, BPF_ALU, BPF_B, BPF_JA, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LEN, BPF_MOD,
    BPF_RET, BPF_W, SO_ATTACH_REUSEPORT_CBPF, SO_DETACH_REUSEPORT_BPF, SOL_SOCKET, sock_filter,
};

use crate::socket_options::{NumberOption, set_program};

const ATTACH: NumberOption = NumberOption { level: SOL_SOCKET, name: SO_ATTACH_REUSEPORT_CBPF };
const DETACH: NumberOption = NumberOption { level: SOL_SOCKET, name: SO_DETACH_REUSEPORT_BPF };

/// How the kernel chooses a socket: by the first word of an id, modulo the sockets of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steering {
    /// The sockets of the group.
    pub sockets: u32,
    /// The socket of this worker.
    pub own: u32,
}

impl Steering {
    /// Returns true if the kernel passes packets with this id to the worker's own socket.
    pub(super) fn fits(self, id: &[u8]) -> bool {
        let word = id.first_chunk().map(|word| u32::from_be_bytes(*word));
        word.is_some_and(|word| word.checked_rem(self.sockets) == Some(self.own))
    }
}

/// Makes the kernel choose among a group of this many sockets by connection ids; it replaces an earlier program.
/// `socket` is one of them.
///
/// # Errors
/// Returns the error of the operating system, for example if a sandbox does not have the option.
pub fn attach(socket: &impl AsFd, sockets: u32) -> io::Result<()> {
    set_program(socket, ATTACH, &mut program(sockets))
}

/// Makes the kernel choose by addresses again. Returns true if a program was attached.
///
/// # Errors
/// Returns the error of the operating system.
pub fn detach(socket: &impl AsFd) -> io::Result<bool> {
    match DETACH.set(socket, 0) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The bit of the first byte that a long header has (RFC 9000 §17.2).
const LONG: u32 = 0x80;

/// The offsets of the destination id in both forms of header. The length of the id does not matter: a client's first id
/// has another one than ours, and all packets with it reach the same socket.
const ID_IN_LONG: u32 = 6;
const ID_IN_SHORT: u32 = 1;

/// No packet of QUIC is as short as a long header with four bytes of an id.
const SHORTEST: u32 = ID_IN_LONG + 4;

/// A result without a socket: the kernel chooses by addresses.
const BY_ADDRESS: u32 = u32::MAX;

/// Returns the program for a group of this many sockets. It reads from the first byte of the datagram's content.
fn program(sockets: u32) -> [sock_filter; 10] {
    let step = |code: u32, jumps: [u8; 2], k: u32| sock_filter {
        // The codes are sums of bytes.
        code: code as u16,
        jt: jumps[0],
        jf: jumps[1],
        k,
    };
    [
        step(BPF_LD | BPF_W | BPF_LEN, [0, 0], 0),
        step(BPF_JMP | BPF_JGE | BPF_K, [0, 7], SHORTEST),
        step(BPF_LD | BPF_B | BPF_ABS, [0, 0], 0),
        step(BPF_JMP | BPF_JSET | BPF_K, [0, 2], LONG),
        step(BPF_LD | BPF_W | BPF_ABS, [0, 0], ID_IN_LONG),
        step(BPF_JMP | BPF_JA, [0, 0], 1),
        step(BPF_LD | BPF_W | BPF_ABS, [0, 0], ID_IN_SHORT),
        step(BPF_ALU | BPF_MOD | BPF_K, [0, 0], sockets.max(1)),
        step(BPF_RET | BPF_A, [0, 0], 0),
        step(BPF_RET | BPF_K, [0, 0], BY_ADDRESS),
    ]
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};
    use std::time::Duration;

    use super::*;
    use crate::BoundSocket;
    use crate::listen::Claim;

    /// Returns sockets that share a port, in the order of bind.
    fn group(count: usize) -> (Vec<UdpSocket>, SocketAddr) {
        let mut sockets: Vec<UdpSocket> = Vec::new();
        let mut addr = SocketAddr::from(([127, 0, 0, 1], 0));
        for number in 0..count {
            let claim = if number == 0 { Claim::First } else { Claim::Further };
            let socket = UdpSocket::from(std::os::fd::OwnedFd::from(BoundSocket::udp(addr, claim).unwrap()));
            addr = socket.local_addr().unwrap();
            socket.set_nonblocking(false).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            sockets.push(socket);
        }
        (sockets, addr)
    }

    /// Sends a packet from a new address, and checks that a socket receives it.
    #[track_caller]
    fn reaches(sockets: &[UdpSocket], at: usize, packet: &[u8]) {
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        from.send_to(packet, sockets[at].local_addr().unwrap()).unwrap();
        let mut got = [0; 100];
        let (length, source) = sockets[at].recv_from(&mut got).unwrap();
        assert_eq!((&got[..length], source), (packet, from.local_addr().unwrap()));
    }

    fn short(word: u32) -> Vec<u8> {
        [&[0x41][..], &word.to_be_bytes(), &[7; 20]].concat()
    }

    fn long(word: u32, id_bytes: u8) -> Vec<u8> {
        [&[0xc3, 0, 0, 0, 1, id_bytes][..], &word.to_be_bytes(), &[7; 20]].concat()
    }

    #[test]
    fn the_kernel_chooses_by_the_first_word_of_the_id() {
        let (sockets, _) = group(3);
        attach(&sockets[1], 3).unwrap();
        for word in [0, 1, 2, 3, 0x0100_0000, 0x8000_0001, u32::MAX - 1, u32::MAX] {
            let at = (word % 3) as usize;
            for packet in [short(word), long(word, 16), long(word, 8), long(word, 20)] {
                reaches(&sockets, at, &packet);
            }
            let steering = Steering { sockets: 3, own: at as u32 };
            assert!(steering.fits(&short(word)[1..17]));
            assert!(!Steering { own: (at as u32 + 1) % 3, ..steering }.fits(&short(word)[1..17]));
        }
    }

    #[test]
    fn packets_without_an_id_reach_a_socket_by_their_addresses() {
        let (sockets, addr) = group(2);
        attach(&sockets[0], 2).unwrap();
        for packet in [&[][..], &[0x41], &[0xc0, 0, 0, 0, 1, 16, 0, 0, 0]] {
            let from = UdpSocket::bind("127.0.0.1:0").unwrap();
            from.send_to(packet, addr).unwrap();
            sockets.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
            let mut got = [0; 100];
            let end = std::time::Instant::now() + Duration::from_secs(20);
            while !sockets
                .iter()
                .any(|socket| socket.recv(&mut got).is_ok_and(|length| length == packet.len()))
            {
                assert!(std::time::Instant::now() < end, "{packet:?} is lost");
                std::thread::yield_now();
            }
        }
    }

    /// A group with more sockets than the program knows, and with fewer, loses nothing.
    #[test]
    fn a_program_is_replaced_and_removed() {
        let (sockets, addr) = group(2);
        assert!(!detach(&sockets[0]).unwrap());
        attach(&sockets[0], 2).unwrap();
        let third =
            UdpSocket::from(std::os::fd::OwnedFd::from(BoundSocket::udp(addr, Claim::Further).unwrap()));
        reaches(&sockets, 0, &short(2));
        attach(&third, 3).unwrap();
        reaches(&sockets, 1, &short(1));
        third.set_nonblocking(false).unwrap();
        third.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let all = [sockets[0].try_clone().unwrap(), sockets[1].try_clone().unwrap(), third];
        reaches(&all, 2, &short(2));
        assert!(detach(&sockets[1]).unwrap());
        assert!(!detach(&sockets[1]).unwrap());
    }

    /// A socket without a group cannot have one, which is not an error of the caller.
    #[test]
    fn a_refusal_is_an_error() {
        let alone = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(attach(&alone, 2).is_err());
        assert!(!Steering { sockets: 0, own: 0 }.fits(&[0; 16]));
    }
}
