//! Requests that become calls of Dubbo.
//!
//! A plugin that puts a [`DubboCall`] into [`crate::Context::dubbo`] has the nodes of the upstream asked in Dubbo in
//! place of HTTP. Balancing, attempts, health, limits and pools are as for any other request.

use sigma_http::dubbo::Call;

/// What a request calls of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DubboCall {
    /// The call.
    pub call: Call,
    /// The time that a provider has, in place of the route's and the upstream's.
    pub patience: Option<Patience>,
}

/// How long a provider is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Connect timeout in milliseconds.
    pub connect_ms: u64,
    /// Milliseconds in which nothing of the call leaves.
    pub send_ms: u64,
    /// Milliseconds in which nothing of the answer comes.
    pub read_ms: u64,
}
