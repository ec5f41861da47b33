//! Serving upstreams that speak no HTTP: a plugin answers in the place of a node.

use std::any::Any;
use std::sync::Arc;

use sigma_config::resources::{Scheme, Upstream};

use crate::{Context, Env, Step};

/// What a plugin does for requests whose upstream has a scheme of its own. It takes the turn of balancing: after
/// all plugins of the request phases, on every route that leads to such an upstream, whether the plugin is
/// configured there or not.
#[derive(Debug, Clone, Copy)]
pub struct Bridge {
    /// The scheme.
    pub scheme: Scheme,
    /// Answers a request. A [`Step::Takeover`] to WebSocket needs no leave of the route here: the scheme is one.
    /// [`Step::Next`] is no answer. Must not block.
    pub open: fn(&Far, &mut Context, &Env<'_>) -> Step,
}

/// What is on the other side of a bridge.
#[derive(Debug, Clone)]
pub struct Far {
    /// The upstream's key.
    pub key: Box<str>,
    /// The upstream as it is configured.
    pub upstream: Arc<Upstream>,
    /// Hosts and ports of its nodes, wherever they are known from; each once.
    pub nodes: Vec<(Box<str>, u16)>,
    /// How connections to them are encrypted: the `ClientTls` of `sigma-net`, which this crate does not know. None for
    /// cleartext.
    pub tls: Option<Arc<dyn Any + Send + Sync>>,
}
