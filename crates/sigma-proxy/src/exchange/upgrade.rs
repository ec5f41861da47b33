//! Upgrades of the protocol of a connection (RFC 9110 §7.8): valid requests and matching responses.
//!
//! Routes, plugins and limits cannot see into a tunnel. It opens only for a protocol that the route names, and
//! only if the node confirms exactly that.

use sigma_http::{BodyLength, Fault, FaultKind, HeaderId, Method, RequestHead, ResponseHead, Version};

use crate::snapshot::Route;

const WEBSOCKET: &[u8] = b"websocket";

/// Returns true if the client requests exactly one protocol, in a request that can be upgraded: one without a body,
/// whose bytes could be mistaken for bytes of the tunnel.
pub(super) fn is_asked_for(head: &RequestHead, length: BodyLength) -> bool {
    head.version != Version::Http10
        && head.method == Method::Get
        && length.is_empty()
        && head.headers.has(HeaderId::Upgrade)
        && head.headers.has_token(HeaderId::Connection, b"upgrade")
}

/// Returns the one protocol that is requested.
fn offer(head: &RequestHead) -> Option<&[u8]> {
    let mut offers = head.headers.get_all(HeaderId::Upgrade);
    offers.next().filter(|_| offers.next().is_none())
}

/// Returns the protocol that is requested, if it is WebSocket.
pub(super) fn websocket(head: &RequestHead) -> Option<&[u8]> {
    // Without a key it is no handshake of RFC 6455 §4.2.1, even if a node accepts it.
    let shakes = head.headers.find(b"sec-websocket-key").is_some();
    offer(head).filter(|offer| shakes && offer.eq_ignore_ascii_case(WEBSOCKET))
}

/// Returns the protocol that is requested, if the route allows it.
pub(super) fn admitted<'h>(head: &'h RequestHead, route: &Route) -> Option<&'h [u8]> {
    let offer = offer(head)?;
    let named = |name: &str| offer.eq_ignore_ascii_case(name.as_bytes());
    if offer.eq_ignore_ascii_case(WEBSOCKET) {
        return websocket(head).filter(|_| route.websocket);
    }
    route.upgrades().iter().any(|name| named(name)).then_some(offer)
}

/// Checks that a 101 response confirms `protocol`; an empty one was not requested.
pub(super) fn check_agreement(head: &ResponseHead, protocol: &[u8]) -> Result<(), Fault> {
    if head.status != 101 {
        return Ok(());
    }
    let failed = |reason| Err(Fault::new(FaultKind::UpgradeFailed, reason));
    if protocol.is_empty() {
        return failed("the node changed the protocol, but the client did not request it");
    }
    let mut agreed = head.headers.get_all(HeaderId::Upgrade);
    match (agreed.next(), agreed.next()) {
        (Some(agreed), None) if agreed.eq_ignore_ascii_case(protocol) => {}
        _ => return failed("the node changed to a protocol that the client did not request"),
    }
    if protocol.eq_ignore_ascii_case(WEBSOCKET) && head.headers.find(b"sec-websocket-accept").is_none() {
        return failed("the node's 101 has no Sec-WebSocket-Accept");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_101_must_confirm_the_requested_protocol() {
        let check = |fields: &[(&str, &str)], protocol: Option<&str>, expected: bool| {
            let mut head = ResponseHead::default();
            head.start(101);
            fields.iter().for_each(|(name, value)| head.headers.append(name, value.as_bytes()));
            let result = check_agreement(&head, protocol.unwrap_or_default().as_bytes());
            assert_eq!(result.is_ok(), expected, "{fields:?} {protocol:?}");
        };
        let accept = ("Sec-WebSocket-Accept", "x");
        check(&[("Upgrade", "websocket"), accept], Some("websocket"), true);
        check(&[("Upgrade", "WebSocket"), accept], Some("websocket"), true);
        check(&[("Upgrade", "websocket")], Some("websocket"), false);
        check(&[("Upgrade", "websocket"), accept], None, false);
        check(&[accept], Some("websocket"), false);
        check(&[("Upgrade", "h2c"), accept], Some("websocket"), false);
        check(&[("Upgrade", "websocket, h2c"), accept], Some("websocket"), false);
        check(&[("Upgrade", "websocket"), ("Upgrade", "websocket"), accept], Some("websocket"), false);
        check(&[("Upgrade", "SPDY/3.1")], Some("SPDY/3.1"), true);
    }
}
