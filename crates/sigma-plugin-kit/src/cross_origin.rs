//! The cross-origin fields of a request, for the plugin that decides on them and those that must not respond again.

use sigma_plugin::Context;

/// The fields of a request that request access from another origin, as the client sent them. A plugin that decides
/// about them keeps this value for the exchange.
#[derive(Clone, Default)]
pub struct CrossOrigin {
    /// The value of `Origin`, if it is text.
    pub origin: Option<String>,
    /// The value of `Access-Control-Request-Headers`.
    pub headers: Option<Vec<u8>>,
}

impl CrossOrigin {
    /// Returns the fields of the request as it is now.
    #[must_use]
    pub fn of(ctx: &Context) -> CrossOrigin {
        let find = |name: &[u8]| ctx.request.headers.find(name);
        CrossOrigin {
            // Bytes that are not text are not an origin that a list could hold.
            origin: find(b"origin").and_then(|origin| String::from_utf8(origin.to_vec()).ok()),
            headers: find(b"access-control-request-headers").map(<[u8]>::to_vec),
        }
    }
}
