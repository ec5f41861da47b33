//! The facts that a worker has about a node's HTTP/3: its announcements, and the ports that do not respond.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use super::target::Target;
use crate::alt_svc;
use crate::dial::{Dial, Http3Use};
use crate::endpoint::Address;
use crate::quic::QuicFault;

/// The ports of a node that are remembered. Announcements choose them, so there is a limit.
const PORTS_MAX: usize = 8;

/// The names of a node whose announcements are remembered. Clients may choose them.
const NAMES_MAX: usize = 32;

/// The facts about a node.
#[derive(Debug, Default)]
pub(super) struct Http3State {
    ports: RefCell<Vec<Port>>,
    announced: RefCell<Vec<Announced>>,
}

/// A UDP port that is being tried, or did not respond.
#[derive(Debug)]
struct Port {
    number: u16,
    is_tried: bool,
    /// Until then it is not tried again.
    silent_until_ms: u64,
}

/// An announcement.
#[derive(Debug)]
struct Announced {
    name: Box<str>,
    port: u16,
    until_ms: u64,
}

/// A connection over QUIC that is being opened. Only one to a port is opened at a time.
#[derive(Debug)]
pub(super) struct Attempt {
    state: Rc<Http3State>,
    pub(super) to: SocketAddr,
    retry_after_ms: u64,
}

impl Attempt {
    /// Records the result.
    pub(super) fn ended(self, fault: Option<QuicFault>, now_ms: u64) {
        if fault.is_some_and(|fault| fault.is_unreachable) {
            let until_ms = now_ms + self.retry_after_ms;
            self.state.with_port(self.to.port(), |port| port.silent_until_ms = until_ms);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.state.with_port(self.to.port(), |port| port.is_tried = false);
    }
}

impl Http3State {
    /// Returns the address for a connection over QUIC, if the target has one and it is worth a try.
    pub(super) fn wanted(&self, addr: &Address, dial: &Dial<'_>, now_ms: u64) -> Option<SocketAddr> {
        let http3 = dial.http3()?;
        let Address::Tcp(addr) = *addr else { return None };
        let port = match http3.when {
            Http3Use::Only => return Some(addr),
            Http3Use::First => addr.port(),
            Http3Use::Announced | Http3Use::Recorded => {
                self.announced_port(dial.tls?.name, now_ms).or(http3.recorded)?
            }
        };
        let is_open = |known: &Port| !known.is_tried && known.silent_until_ms <= now_ms;
        let may_try = self.ports.borrow().iter().find(|known| known.number == port).is_none_or(is_open);
        may_try.then_some(SocketAddr::new(addr.ip(), port))
    }

    /// Begins a connection over QUIC to an address, for which a port without a response is not tried again.
    pub(super) fn begin(self: &Rc<Self>, to: SocketAddr, retry_after_ms: u64) -> Attempt {
        self.with_port(to.port(), |port| port.is_tried = true);
        Attempt { state: Rc::clone(self), to, retry_after_ms }
    }

    fn with_port(&self, number: u16, act: impl FnOnce(&mut Port)) {
        let mut ports = self.ports.borrow_mut();
        let known = ports.iter().position(|port| port.number == number);
        let at = known.unwrap_or_else(|| {
            if ports.len() >= PORTS_MAX {
                let oldest =
                    ports.iter().enumerate().min_by_key(|(_, port)| (port.is_tried, port.silent_until_ms));
                let oldest = oldest.map_or(0, |(at, _)| at);
                ports.swap_remove(oldest);
            }
            ports.push(Port { number, is_tried: false, silent_until_ms: 0 });
            ports.len() - 1
        });
        act(&mut ports[at]);
    }

    fn announced_port(&self, name: &str, now_ms: u64) -> Option<u16> {
        let announced = self.announced.borrow();
        let found = announced.iter().find(|one| &*one.name == name && one.until_ms > now_ms)?;
        Some(found.port)
    }

    /// Takes the `Alt-Svc` of a response for the target; it replaces earlier ones.
    pub(super) fn announce(&self, target: &Target<'_>, value: &[u8], now_ms: u64) {
        let Some(tls) = &target.dial.tls else { return };
        if tls.quic.is_none_or(|quic| quic.when != Http3Use::Announced) {
            return;
        }
        let mut announced = self.announced.borrow_mut();
        announced.retain(|one| *one.name != *tls.name && one.until_ms > now_ms);
        let Some(found) = alt_svc::parse(value, tls.name) else { return };
        if announced.len() >= NAMES_MAX {
            announced.remove(0);
        }
        let age_ms = found.age_s.saturating_mul(1_000).min(target.dial.limits.quic.announcement_ms);
        announced.push(Announced { name: tls.name.into(), port: found.port, until_ms: now_ms + age_ms });
    }
}

#[cfg(test)]
mod tests {
    use sigma_http::{Fault, FaultKind};
    use sigma_net::tls::{ClientSettings, ClientTls};

    use super::*;
    use crate::dial::{DialQuic, DialTls, Owner};
    use crate::identity::EndpointIds;
    use crate::pool::tests::{endpoint, target};

    fn with_tls<'t>(plain: Target<'t>, client: &'t ClientTls, name: &'t str, when: Http3Use) -> Target<'t> {
        let tls = DialTls { client, name, quic: Some(DialQuic { client, when, recorded: None }) };
        Target { dial: Dial { tls: Some(tls), ..plain.dial }, ..plain }
    }

    fn fault(is_unreachable: bool) -> Option<QuicFault> {
        Some(QuicFault { fault: Fault::new(FaultKind::ConnectTimeout, ""), is_unreachable })
    }

    #[test]
    fn a_port_without_a_response_is_not_tried_for_a_while() {
        let (ids, client) =
            (EndpointIds::default(), ClientTls::new(ClientSettings::default()).expect("settings"));
        let addr: SocketAddr = "127.0.0.1:443".parse().expect("an address");
        let node = endpoint(&ids, "a", &Address::Tcp(addr));
        let target = with_tls(target(&node), &client, "a.test", Http3Use::First);
        let state = Rc::new(Http3State::default());
        let wanted = |now_ms| state.wanted(&node.addr, &target.dial, now_ms);
        assert_eq!(wanted(0), Some(addr));
        let attempt = state.begin(addr, 1_000);
        assert_eq!(wanted(0), None, "one at a time");
        attempt.ended(None, 0);
        assert_eq!(wanted(0), Some(addr));
        state.begin(addr, 1_000).ended(fault(false), 5);
        assert_eq!(wanted(5), Some(addr), "a certificate for another name says nothing about the port");
        state.begin(addr, 1_000).ended(fault(true), 5);
        assert_eq!((wanted(5), wanted(1_004), wanted(1_005)), (None, None, Some(addr)));
        let introduced = Dial { owner: Owner::Introduced(b"PROXY"), ..target.dial };
        assert_eq!(state.wanted(&node.addr, &introduced, 2_000), None);
        assert_eq!(state.wanted(&Address::Unix("/a".into()), &target.dial, 2_000), None);
        for port in 0..100 {
            drop(state.begin(SocketAddr::new(addr.ip(), port), 1_000));
        }
        assert_eq!(state.ports.borrow().len(), PORTS_MAX);
    }

    #[test]
    fn announcements_count_for_their_name_and_time() {
        let (ids, client) =
            (EndpointIds::default(), ClientTls::new(ClientSettings::default()).expect("settings"));
        let addr: SocketAddr = "127.0.0.1:443".parse().expect("an address");
        let node = endpoint(&ids, "a", &Address::Tcp(addr));
        let of = |name| with_tls(target(&node), &client, name, Http3Use::Announced);
        let state = Http3State::default();
        let port = |name, now_ms| state.wanted(&node.addr, &of(name).dial, now_ms).map(|addr| addr.port());
        assert_eq!(port("a.test", 0), None);
        state.announce(&of("a.test"), b"h3=\":444\"; ma=1", 0);
        assert_eq!((port("a.test", 999), port("a.test", 1_000), port("b.test", 0)), (Some(444), None, None));
        state.announce(&of("a.test"), b"h3=\":445\"", 0);
        assert_eq!((port("a.test", 86_399_999), port("a.test", 86_400_000)), (Some(445), None));
        state.announce(&of("a.test"), b"clear", 0);
        assert_eq!(port("a.test", 0), None);
        // An upstream that does not ask for announcements takes none.
        state.announce(&with_tls(target(&node), &client, "a.test", Http3Use::First), b"h3=\":446\"", 0);
        assert_eq!(port("a.test", 0), None);
        let names: Vec<String> = (0..100).map(|n| format!("{n}.test")).collect();
        for name in &names {
            state.announce(&with_tls(target(&node), &client, name, Http3Use::Announced), b"h3=\":1\"", 0);
        }
        assert_eq!(state.announced.borrow().len(), NAMES_MAX);
    }
}
