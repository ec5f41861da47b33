//! Ports for processes that cannot report which port they were given.

use std::io;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

use crate::{DEADLINE, until};

/// Below the ephemeral range of Linux (32768), so that no outgoing connection takes the port
/// between the moment it is chosen and the moment the gateway binds it, or while a gateway starts again.
const FIRST: u16 = 12_000;

/// A test program owns ports in blocks, so that two programs never choose the same.
const BLOCK: u16 = 100;
const BLOCKS: u16 = 200;

/// The ports of this program.
struct Ports {
    /// The sockets that prove to other programs that the blocks are taken; the kernel closes them with the program.
    blocks: Vec<UnixListener>,
    /// The next port, and the number of those that are left in its block.
    next: u16,
    left: u16,
}

static PORTS: Mutex<Ports> = Mutex::new(Ports { blocks: Vec::new(), next: FIRST, left: 0 });

impl Ports {
    /// Returns the next port of this program.
    fn take(&mut self) -> u16 {
        if self.left == 0 {
            // Programs that start together search from different blocks.
            let start = (std::process::id() % u32::from(BLOCKS)) as u16;
            let mut numbers = (start..BLOCKS).chain(0..start);
            let claimed = numbers.find_map(|number| Some((number, claim(number).ok()?)));
            let (number, block) = claimed.expect("test programs have all ports; end those that hang");
            self.blocks.push(block);
            (self.next, self.left) = (FIRST + number * BLOCK, BLOCK);
        }
        let port = self.next;
        self.next += 1;
        self.left -= 1;
        port
    }
}

/// Claims a block, by a name that only one socket of the machine can have.
fn claim(number: u16) -> io::Result<UnixListener> {
    let name = format!("sigma-testkit-ports-{number}");
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Returns a loopback TCP port without a listener, given out once among all test programs.
///
/// Each is probed with an exclusive bind: a gateway refuses one that is taken.
///
/// # Panics
/// When no port of the range is free.
pub fn free_port() -> u16 {
    let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..BLOCK * BLOCKS {
        let port = ports.take();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() && TcpListener::bind(("::", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + BLOCK * BLOCKS);
}

/// Binds a port of this program on 127.0.0.1.
///
/// Another thread may start a process at the same time. Until that process runs its program, it has a copy of the socket
/// that has probed the port, so a port in use is tried again until the deadline.
///
/// # Errors
/// Returns the error of the operating system.
pub(crate) fn bind(port: u16) -> io::Result<TcpListener> {
    let mut bound = TcpListener::bind(("127.0.0.1", port));
    until(DEADLINE, || match &bound {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            bound = TcpListener::bind(("127.0.0.1", port));
            false
        }
        _ => true,
    });
    bound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_bound_when_a_copy_of_its_socket_is_gone() {
        let port = free_port();
        let probe = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let (begun, waits) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            assert!(TcpListener::bind(("127.0.0.1", port)).is_err());
            begun.send(()).unwrap();
            bind(port)
        });
        waits.recv().unwrap();
        drop(probe);
        assert_eq!(waiting.join().unwrap().unwrap().local_addr().unwrap().port(), port);
    }

    #[test]
    fn a_block_has_one_owner() {
        free_port();
        let ports = PORTS.lock().unwrap();
        let number = (ports.next - FIRST) / BLOCK;
        assert_eq!(claim(number).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn ports_are_given_out_once() {
        let mut ports: Vec<u16> = (0..usize::from(BLOCK) * 2).map(|_| free_port()).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), usize::from(BLOCK) * 2);
    }
}
