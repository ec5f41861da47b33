//! Bridges to upstreams without HTTP: a plugin makes the response instead of a node.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::{Context, Env, Step};

/// A plugin that serves all requests to upstreams with its scheme. It runs instead of balancing, after all plugins of
/// the request phases. It runs on every route with such an upstream, even where the plugin is not configured.
#[derive(Debug, Clone, Copy)]
pub struct Bridge {
    /// The scheme.
    pub scheme: &'static str,
    /// Responds to a request. A [`Step::Takeover`] to WebSocket needs no permission of the route: the scheme implies
    /// it. [`Step::Next`] is not allowed. Must not block.
    pub open: fn(&Far, &mut Context, &Env<'_>) -> Step,
}

/// The upstream side of a bridge.
#[derive(Debug, Clone)]
pub struct Far {
    /// The upstream's key.
    pub key: Box<str>,
    /// The configured upstream.
    pub read_timeout: Option<Duration>,
    /// Hosts and ports of its nodes, from any source; each once.
    pub nodes: Vec<(Box<str>, u16)>,
    /// TLS for connections to the nodes: the `ClientTls` of `sigma-net`, a type unknown to this crate. None for
    /// cleartext.
    pub tls: Option<Arc<dyn Any + Send + Sync>>,
}
