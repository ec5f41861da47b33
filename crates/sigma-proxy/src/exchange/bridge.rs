//! Upstreams without HTTP, whose requests a plugin serves.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use sigma_http::{Fault, FaultKind};
use sigma_plugin::{Bridge, Far};

use super::Exchange;
use super::tunnel::Leave;
use crate::snapshot::{Snapshot, Upstream};
use crate::worker::View;

impl Snapshot {
    /// Returns the bridge that serves an upstream instead of its nodes.
    pub(super) fn bridge_of(&self, upstream: &Upstream) -> Option<Bridge> {
        self.bridges.iter().find(|bridge| bridge.scheme == upstream.scheme_name()).copied()
    }
}

/// Returns the other side.
///
/// # Errors
/// Returns an error if no node is known.
fn far(upstream: &Upstream) -> Result<Far, Fault> {
    let (set, mut nodes) = (upstream.cell.load(), Vec::new());
    for endpoint in &set.endpoints {
        let node = (Box::from(&*endpoint.host), endpoint.port);
        // A name has an endpoint for each of its addresses.
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    if nodes.is_empty() {
        let nobody = Fault::new(FaultKind::NoUpstream, "the upstream has no node");
        return Err(set.unresolved.unwrap_or(nobody));
    }
    let tls = upstream.over_tls().map(|tls| Arc::new(tls.any.clone()) as Arc<dyn Any + Send + Sync>);
    let timeout = upstream.config.timeout.as_ref();
    let read_timeout = timeout.and_then(|timeout| Duration::try_from_secs_f64(timeout.read).ok());
    Ok(Far { key: upstream.key.as_str().into(), read_timeout, nodes, tls })
}

impl Exchange<'_, '_> {
    /// Serves a request by a plugin instead of the nodes of `upstream`.
    pub(super) async fn cross(
        &mut self,
        view: &View,
        upstream: &Upstream,
        bridge: Bridge,
    ) -> Result<(), Fault> {
        self.scratch.ctx.record.upstream_scheme = Some(upstream.scheme_name());
        let step = (bridge.open)(&far(upstream)?, &mut self.scratch.ctx, &self.worker.env(view));
        let Some(mut draft) = self.settle(step, view).await? else {
            return Err(Fault::new(FaultKind::Internal, "a bridge returned no response"));
        };
        match draft.peer.take() {
            Some(peer) => Box::pin(self.hand_over(draft.reply, peer, Leave::OfUpstream)).await,
            None => self.reply(draft).await,
        }
    }
}
