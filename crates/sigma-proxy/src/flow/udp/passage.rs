//! Sessions that are handed over to the process that replaces this one.
//!
//! A session is its way, its node and the socket to it: a process that has these can continue it, and the node's
//! datagrams wait in that socket meanwhile. The two processes have the same listening sockets, so the client's
//! datagrams wait there. A session without a node stays, and ends here.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sigma_net::datagram::{DatagramAddresses, DatagramSocket};
use sigma_net::deadline;
use sigma_plugin::Session;
use sigma_plugin::flow::Transport;

use super::session::{Opened, serve};
use super::table::{Reached, Seat};
use super::{Hall, enter, introduced};
use crate::worker::Worker;

/// The facts about a session that the next process needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpSession {
    /// The listening socket that receives its datagrams, by the number that all handles of it have.
    pub listening: u64,
    /// The client.
    pub peer: SocketAddr,
    /// The address that the client sends to, where the listener has several.
    pub local: Option<IpAddr>,
    /// The node.
    pub node: SocketAddr,
    /// Datagrams of the client so far.
    pub asked: u64,
    /// Datagrams of the node so far.
    pub answered: u64,
    /// Milliseconds without a datagram.
    pub quiet_ms: u64,
}

/// A session with its socket to the node.
#[derive(Debug)]
pub struct Passing {
    /// The facts about it.
    pub session: UdpSession,
    /// The socket that is connected to the node.
    pub socket: OwnedFd,
}

impl Hall {
    /// Returns the number of the socket that it receives from.
    pub(crate) fn number(&self) -> Option<u64> {
        self.socket.number()
    }

    /// Gives away all sessions that have a node. They end here without another datagram.
    pub(crate) fn pass(&self, passing: &mut Vec<Passing>) {
        let Some(listening) = self.number() else { return };
        let now_ms = deadline::now_ms();
        for seat in self.table.borrow().seats() {
            let Some((node, (asked, answered))) = seat.standing() else { continue };
            // It stays if there is no descriptor for it.
            let Ok(socket) = node.socket.another_handle() else { continue };
            let DatagramAddresses { peer, local } = seat.way;
            let quiet_ms = seat.quiet_ms(now_ms);
            let session = UdpSession { listening, peer, local, node: node.addr, asked, answered, quiet_ms };
            passing.push(Passing { session, socket });
            seat.pass();
        }
    }
}

/// Continues a session of the process before, if there are a permit and a route for it.
pub(crate) fn go_on(worker: &Rc<Worker>, hall: &Rc<Hall>, Passing { session, socket }: Passing) {
    let view = worker.view();
    let UdpSession { peer, local, node: addr, asked, answered, quiet_ms, .. } = session;
    let way = DatagramAddresses { peer, local };
    let socket = DatagramSocket::connected(socket, addr);
    let (Ok(socket), None) = (socket, hall.table.borrow().find(&way)) else { return };
    let Some(place) = enter(worker, hall, &view, peer) else { return };
    let (origin, client, route) = introduced(worker, hall, &view, way);
    // A client whose route is gone starts over, as it would after a restart.
    let Some(route) = route else { return };
    let mut session = Session::default();
    (session.client, session.transport) = (client, Transport::Udp);
    session.traffic = Arc::clone(&hall.traffic);
    let since_ms = deadline::now_ms().saturating_sub(quiet_ms);
    let seat = Rc::new(Seat::going_on(way, place, route.udp, asked, answered, since_ms));
    hall.table.borrow_mut().insert(&seat);
    let reached = Some(Box::new(Reached { addr, socket: Rc::new(socket) }));
    let opened = Box::new(Opened { session, origin, route, reached });
    tokio::task::spawn_local(serve(Rc::clone(worker), Rc::clone(hall), seat, opened));
}
