//! Requests that become calls of Dubbo.
//!
//! A plugin that sets [`crate::Context::dubbo`] to a [`DubboCall`] makes the gateway use Dubbo instead of HTTP for
//! the nodes of the upstream. Balancing, attempts, health, limits and pools are as for any other request.

use sigma_http::dubbo::Call;

/// The Dubbo call of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DubboCall {
    /// The call.
    pub call: Call,
    /// The timeouts for a provider, instead of the route's and the upstream's.
    pub patience: Option<Patience>,
}

/// Timeouts for a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Connect timeout in milliseconds.
    pub connect_ms: u64,
    /// Milliseconds without a sent byte of the call.
    pub send_ms: u64,
    /// Milliseconds without a received byte of the response.
    pub read_ms: u64,
}
