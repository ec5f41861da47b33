//! Plugins that answer one request with what several requests to this gateway itself bring.

use sigma_http::{HeaderId, Headers};
use sigma_plugin::Context;

/// Fields that frame a message, or name its client and its path to the gateway: the gateway's own values are
/// kept.
const OWN: [&str; 17] = [
    "cdn-loop",
    "client-cert",
    "client-cert-chain",
    "connection",
    "content-length",
    "expect",
    "forwarded",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-forwarded-client-cert",
    "x-forwarded-for",
    "x-real-ip",
];

/// Whether a composed request may set this field.
pub(crate) fn may_be_set(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    !OWN.contains(&&*name) && !name.starts_with("x-forwarded-")
}

/// Returns the fields of the client's request that an internal request inherits: all but those about its body, its
/// connection, and the form of its response.
pub(crate) fn fields_of_client(ctx: &Context) -> Headers {
    let mut fields = ctx.request.headers.clone();
    fields.remove_hop_by_hop();
    fields.remove_where(|id, name| {
        matches!(id, HeaderId::Host | HeaderId::AcceptEncoding | HeaderId::Expect | HeaderId::CdnLoop)
            || name.len() >= 8 && name[..8].eq_ignore_ascii_case(b"content-")
    });
    fields.remove(HeaderId::XRealIp);
    if let Some(addr) = ctx.client.addr {
        fields.set(HeaderId::XRealIp, addr.to_canonical().to_string().as_bytes());
    }
    fields
}
