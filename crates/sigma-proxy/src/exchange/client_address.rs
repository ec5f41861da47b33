//! The client's address from the proxies in front (the setting `client_address`), before the route is chosen.

use std::cell::RefCell;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use sigma_config::settings::{AddressField, ClientAddress};
use sigma_http::{HeaderId, Headers};
use sigma_observe::throttle::{Allowance, Throttle};
use sigma_plugin::forwarded::{first_untrusted, forwarded, forwarded_for, parse};

use super::Exchange;
use crate::snapshot::Snapshot;

/// The rate of log lines about unreadable addresses, in each worker.
const LINES: Allowance = Allowance { burst: 5, pause: Duration::from_secs(10) };

/// A client's address and port; the port is 0 if it is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ForwardedAddress {
    pub(crate) addr: IpAddr,
    pub(crate) port: u16,
}

impl Exchange<'_, '_> {
    /// Sets the client's address, if a trusted peer sends it. With an unreadable address, the peer's stays.
    pub(super) fn learn_client_address(&mut self, snapshot: &Snapshot) {
        match forwarded_address(snapshot, &self.scratch.ctx.request.headers, self.down.origin().peer.ip()) {
            Ok(told) => self.scratch.told = told,
            Err(reason) => complain(&reason),
        }
    }
}

/// Returns the client's address in this peer's fields, if the settings trust the peer.
///
/// # Errors
/// Returns an error message if the peer is trusted and sends no valid address.
pub(super) fn forwarded_address(
    snapshot: &Snapshot,
    headers: &Headers,
    peer: Option<IpAddr>,
) -> Result<Option<ForwardedAddress>, String> {
    let Some(setting) = &snapshot.settings.client_address else { return Ok(None) };
    if !peer.is_some_and(|peer| snapshot.trusted().contains(peer)) {
        return Ok(None);
    }
    let Some(text) = element(setting, headers, |addr| snapshot.trusted().contains(addr))? else {
        return Ok(None);
    };
    let (addr, port) = parse(text)?;
    Ok(Some(ForwardedAddress { addr, port: port.unwrap_or(0) }))
}

/// Returns the text of the address; None without one.
fn element<'h>(
    setting: &ClientAddress,
    headers: &'h Headers,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> Result<Option<&'h [u8]>, String> {
    let chain: Vec<&[u8]> = match &setting.field {
        AddressField::XForwardedFor => {
            headers.get_all(HeaderId::XForwardedFor).flat_map(forwarded_for).collect()
        }
        AddressField::Forwarded => headers.get_all(HeaderId::Forwarded).flat_map(forwarded).collect(),
        AddressField::Single(name) => {
            let is_named = |field: &&[u8]| field.eq_ignore_ascii_case(name.as_bytes());
            let mut values = headers.iter().filter(|(field, _)| is_named(field)).map(|(_, value)| value);
            return match (values.next(), values.next()) {
                // It is unknown which one a proxy has set.
                (Some(_), Some(_)) => Err(format!("more than one {name}")),
                (value, _) => Ok(value.map(<[u8]>::trim_ascii)),
            };
        }
    };
    let mut chain = chain.into_iter();
    Ok(match setting.hops {
        Some(hops) => chain.nth_back(hops.get() as usize - 1),
        None => first_untrusted(chain, is_trusted),
    })
}

/// Clients decide how often this happens.
fn complain(reason: &str) {
    thread_local! {
        static THROTTLE: RefCell<Throttle> = RefCell::new(Throttle::new(LINES, Instant::now()));
    }
    if let Some(left_out) = THROTTLE.with_borrow_mut(|throttle| throttle.pass(LINES, Instant::now())) {
        tracing::warn!(left_out, "client_address: {reason}");
    }
}
