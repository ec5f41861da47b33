//! The groups of UDP sockets whose packets the kernel steers by connection ids.
//!
//! The kernel numbers the sockets of a group in the order of bind. A group is steered only if that order is certain.
//! Otherwise the kernel spreads packets by their addresses, and workers
//! forward packets of other workers.

use std::io;
use std::net::SocketAddr;

use sigma_config::settings::Listener;
use sigma_net::listen::Claim;
use sigma_net::quic::steer;
use sigma_net::{BoundSocket, Sockets};

/// The knowledge about the order of the sockets in their group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupOrder {
    /// This process has bound all of them, on an address that was free
    Bound,
    /// Another process has bound the first ones. If it was a gateway that steered them, it has passed them in order.
    Found,
    /// Sockets of other processes may be among them
    Unknown,
}

/// The sockets of an address.
pub(super) struct Group {
    pub(super) sockets: Vec<BoundSocket>,
    pub(super) order: GroupOrder,
}

impl Group {
    /// Returns the sockets that were found for a listener of datagrams, and binds one for each remaining worker.
    /// `claim` is how the first socket is bound if the address is in use.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub(super) fn bind(
        found: &Sockets,
        listener: &Listener,
        addr: SocketAddr,
        claim: Claim,
        workers: usize,
    ) -> io::Result<Group> {
        let mut sockets = found.udp(addr)?;
        let mut order = if listener.shared { GroupOrder::Unknown } else { GroupOrder::Found };
        if sockets.is_empty() {
            let bound = if listener.shared { None } else { Some(BoundSocket::udp(addr, Claim::First)) };
            sockets.push(match bound {
                Some(Ok(socket)) => {
                    order = GroupOrder::Bound;
                    socket
                }
                // A listener of this gateway may have the port on another address.
                Some(Err(error)) if error.kind() != io::ErrorKind::AddrInUse || claim == Claim::First => {
                    return Err(error);
                }
                Some(Err(_)) | None => {
                    order = GroupOrder::Unknown;
                    BoundSocket::udp(addr, Claim::Further)?
                }
            });
        }
        while sockets.len() < workers {
            sockets.push(BoundSocket::udp(addr, Claim::Further)?);
        }
        Ok(Group { sockets, order })
    }
}

/// Makes the kernel steer the packets of a group. Returns the numbers of its sockets in their order; None if the kernel
/// chooses by addresses.
pub(super) fn steer(addr: SocketAddr, sockets: &[BoundSocket], order: GroupOrder) -> Option<Vec<u64>> {
    // One socket gets all packets.
    let [first, _, ..] = sockets else { return None };
    let is_certain = match order {
        GroupOrder::Bound => true,
        // Only a gateway attaches a program, and only to sockets whose order it knows.
        GroupOrder::Found => steer::detach(first).unwrap_or(false),
        GroupOrder::Unknown => false,
    };
    if !is_certain {
        tracing::info!(
            %addr,
            "the kernel does not steer packets of HTTP/3: other processes may have sockets on this address; workers forward packets of clients that change their address"
        );
        return None;
    }
    let numbers: Vec<u64> = sockets.iter().filter_map(BoundSocket::number).collect();
    let count = u32::try_from(sockets.len()).ok().filter(|_| numbers.len() == sockets.len())?;
    match steer::attach(first, count) {
        Ok(()) => Some(numbers),
        Err(error) => {
            tracing::warn!(
                %addr, %error,
                "the kernel does not steer packets of HTTP/3; workers forward packets of clients that change their address"
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use sigma_config::settings::ListenAddress;

    use super::*;

    fn listener(addr: SocketAddr) -> Listener {
        Listener::new(ListenAddress::Tcp(addr))
    }

    fn bind(found: &Sockets, listener: &Listener, addr: SocketAddr, workers: usize) -> Group {
        Group::bind(found, listener, addr, Claim::First, workers).unwrap()
    }

    /// Returns handles of the sockets, as another process gets them.
    fn passed(group: &Group) -> Sockets {
        let mut sockets = Sockets::default();
        sockets.add(group.sockets.iter().map(|socket| socket.try_clone().unwrap().into()));
        sockets
    }

    #[test]
    fn a_group_is_steered_from_its_bind_to_the_next_process() {
        let addr = SocketAddr::from(([127, 0, 0, 1], sigma_testkit::free_port()));
        let listener = listener(addr);
        let first = bind(&Sockets::default(), &listener, addr, 2);
        assert_eq!((first.sockets.len(), first.order), (2, GroupOrder::Bound));
        // A process of a version without steering.
        let next = bind(&passed(&first), &listener, addr, 2);
        assert_eq!(next.order, GroupOrder::Found);
        assert_eq!(steer(addr, &next.sockets, next.order), None);
        let numbers = steer(addr, &first.sockets, first.order).unwrap();
        // With more workers, with fewer, and with a crash before: the kernel keeps the program.
        let next = bind(&passed(&first), &listener, addr, 3);
        let more = steer(addr, &next.sockets, next.order).unwrap();
        assert_eq!((more.len(), &more[..2]), (3, &numbers[..]));
        let last = bind(&passed(&next), &listener, addr, 1);
        assert_eq!(steer(addr, &last.sockets, last.order), Some(more));
    }

    #[test]
    fn an_order_that_is_not_certain_is_not_steered() {
        let addr = SocketAddr::from(([127, 0, 0, 1], sigma_testkit::free_port()));
        let shared = Listener { shared: true, ..listener(addr) };
        let one = bind(&Sockets::default(), &shared, addr, 2);
        assert_eq!((steer(addr, &one.sockets, one.order), one.order), (None, GroupOrder::Unknown));
        // The port is in use, for example by a listener on another address.
        let further = Group::bind(&Sockets::default(), &listener(addr), addr, Claim::Further, 2).unwrap();
        assert_eq!(further.order, GroupOrder::Unknown);
        assert!(Group::bind(&Sockets::default(), &listener(addr), addr, Claim::First, 2).is_err());
        // One socket needs no choice.
        let free = SocketAddr::from(([127, 0, 0, 1], sigma_testkit::free_port()));
        let alone = bind(&Sockets::default(), &listener(free), free, 1);
        assert_eq!((steer(free, &alone.sockets, alone.order), alone.order), (None, GroupOrder::Bound));
    }
}
