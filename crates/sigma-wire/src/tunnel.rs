//! Tunnels by extended CONNECT (RFC 8441, RFC 9220): WebSocket on a stream.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};
use sigma_http::{Fault, FaultKind, HeaderId, RequestHead, ResponseHead};

/// RFC 6455 §1.3
const WEBSOCKET_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The state of an extended CONNECT (RFC 8441, RFC 9220).
#[derive(Debug)]
pub(crate) enum Tunnel {
    /// The request is an ordinary one.
    None,
    /// A tunnel is requested; the value is the expected key response of an HTTP/1 node that accepts the WebSocket.
    Asked(Option<String>),
    /// The stream carries plain bytes.
    Open,
}

impl Tunnel {
    /// Returns the tunnel that a request asks for. RFC 8441 §5: these versions have no key and no key response, so the
    /// gateway makes them.
    pub(crate) fn ask(random: [u64; 2], head: &mut RequestHead) -> Tunnel {
        let mut accept = None;
        if head.headers.has_token(HeaderId::Upgrade, b"websocket") {
            let key = STANDARD.encode([random[0].to_ne_bytes(), random[1].to_ne_bytes()].concat());
            head.headers.remove_name(b"sec-websocket-key");
            head.headers.append("Sec-WebSocket-Key", key.as_bytes());
            let digest = Sha1::new().chain_update(key.as_bytes()).chain_update(WEBSOCKET_GUID).finalize();
            accept = Some(STANDARD.encode(digest));
        }
        Tunnel::Asked(accept)
    }

    /// Returns true if a success would mean an open tunnel to the client.
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self, Tunnel::Asked(_))
    }

    /// Checks that the final head of a node is a valid response to this client.
    pub(crate) fn check_answer(&self, head: &ResponseHead) -> Result<(), Fault> {
        let Tunnel::Asked(accept) = self else { return Ok(()) };
        let failed = |reason| Err(Fault::new(FaultKind::UpgradeFailed, reason));
        match (head.status, accept) {
            (101, Some(accept)) => match head.headers.find(b"sec-websocket-accept") {
                Some(got) if got == accept.as_bytes() => Ok(()),
                _ => failed("the node's Sec-WebSocket-Accept does not match the key"),
            },
            // A success would mean an open tunnel to the client.
            (200..=299, _) => failed("the node responded without opening a tunnel"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6455 §1.3.
    #[test]
    fn a_key_gets_its_response() {
        let digest =
            Sha1::new().chain_update(b"dGhlIHNhbXBsZSBub25jZQ==").chain_update(WEBSOCKET_GUID).finalize();
        assert_eq!(STANDARD.encode(digest), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
