//! WebSockets, counted while they are open and as their bytes pass: one may last for days, and the
//! counters of exchanges get to know of it when it ends.

use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use sigma_http::{HeaderId, ResponseHead};
use sigma_observe::counters::{Counter, WorkerCounters};
use sigma_plugin::context::Tls;
use sigma_wire::Downstream;

use crate::connection::{ConnectionInfo, Origin, TlsSession};

/// The client's side of an exchange, and where it is counted once it is a WebSocket.
pub(super) struct Client<'c> {
    down: Downstream<'c>,
    info: &'c ConnectionInfo,
    counters: &'c WorkerCounters,
    /// The node has agreed to a WebSocket, and not to some other protocol.
    agreed: bool,
}

impl<'c> Client<'c> {
    pub(super) fn new(
        info: &'c ConnectionInfo,
        down: Downstream<'c>,
        counters: &'c WorkerCounters,
    ) -> Client<'c> {
        Client { down, info, counters, agreed: false }
    }

    pub(super) fn origin(&self) -> &'c Origin {
        &self.info.origin
    }

    /// The TLS session that it came in.
    pub(super) fn tls_session(&self) -> Option<&'c TlsSession> {
        self.info.session.as_deref()
    }

    /// What plugins and logs see of it.
    pub(super) fn tls(&self) -> Option<Rc<Tls>> {
        self.tls_session().map(|session| Rc::clone(&session.tls))
    }

    /// Queues an interim response.
    pub(super) fn send_interim(&mut self, head: &mut ResponseHead) {
        self.agreed = opens_websocket(head);
        self.down.send_interim(head);
    }

    /// After a 101: from here on the connection carries plain bytes in both directions. What is
    /// given back counts a WebSocket until it is dropped; none for other protocols.
    pub(super) fn upgrade(&mut self) -> Option<OpenSocket<'c>> {
        self.down.upgrade();
        self.agreed.then(|| OpenSocket::new(self.counters, self.opened_by()))
    }

    /// Where it is counted: all that were opened, and those open now.
    fn opened_by(&self) -> (Counter, Counter) {
        match self.down.upgrades_by_connect() {
            false => (Counter::WebsocketsByUpgrade, Counter::WebsocketsByUpgradeActive),
            true => (Counter::WebsocketsByConnect, Counter::WebsocketsByConnectActive),
        }
    }
}

impl<'c> Deref for Client<'c> {
    type Target = Downstream<'c>;

    fn deref(&self) -> &Downstream<'c> {
        &self.down
    }
}

impl DerefMut for Client<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.down
    }
}

/// Whether a node's answer is the one of RFC 6455 §4.2.2.
fn opens_websocket(head: &ResponseHead) -> bool {
    let protocol = head.headers.get(HeaderId::Upgrade);
    head.status == 101 && protocol.is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"websocket"))
}

/// A WebSocket that is open as long as this lives.
pub(super) struct OpenSocket<'c> {
    counters: &'c WorkerCounters,
    active: Counter,
}

impl<'c> OpenSocket<'c> {
    fn new(counters: &'c WorkerCounters, (opened, active): (Counter, Counter)) -> OpenSocket<'c> {
        counters.add(opened, 1);
        counters.add(active, 1);
        OpenSocket { counters, active }
    }

    /// Counts bytes from the client.
    pub(super) fn received(&self, bytes: usize) {
        self.counters.add(Counter::WebsocketBytesIn, bytes as u64);
    }

    /// Counts bytes for the client.
    pub(super) fn sent(&self, bytes: usize) {
        self.counters.add(Counter::WebsocketBytesOut, bytes as u64);
    }
}

impl Drop for OpenSocket<'_> {
    fn drop(&mut self) {
        self.counters.lower(self.active, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_websockets_are_taken_for_one() {
        let check = |status: u16, protocol: &str, expected: bool| {
            let mut head = ResponseHead::default();
            head.start(status);
            head.headers.append("Upgrade", protocol.as_bytes());
            assert_eq!(opens_websocket(&head), expected, "{status} {protocol:?}");
        };
        check(101, "websocket", true);
        check(101, "WebSocket ", true);
        check(101, "x", false);
        check(101, "websocket2", false);
        check(103, "websocket", false);
    }

    #[test]
    fn a_websocket_is_open_until_it_is_dropped() {
        let counters = WorkerCounters::default();
        let kinds = (Counter::WebsocketsByConnect, Counter::WebsocketsByConnectActive);
        let open = |_| OpenSocket::new(&counters, kinds);
        let [first, second] = [0, 1].map(open);
        first.received(3);
        second.sent(5);
        drop(first);
        let counts = [
            Counter::WebsocketsByConnect,
            Counter::WebsocketsByConnectActive,
            Counter::WebsocketBytesIn,
            Counter::WebsocketBytesOut,
        ];
        assert_eq!(counts.map(|counter| counters.get(counter)), [2, 1, 3, 5]);
    }
}
