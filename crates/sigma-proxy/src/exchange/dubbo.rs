//! Requests that plugins have made calls of Dubbo of: which upstreams take them, and what becomes of their faults.

use sigma_config::resources::Scheme;
use sigma_http::dubbo::Form;
use sigma_http::{Fault, FaultKind};
use sigma_plugin::Context;

use super::Exchange;
use super::plan::Plan;
use crate::snapshot::Timeouts;

impl Exchange<'_, '_> {
    /// Makes ready for a call in place of a request in HTTP, if it is one.
    ///
    /// # Errors
    /// Returns an error if the upstream takes none, or the client wants another protocol of the node.
    #[inline]
    pub(super) fn prepare_call(&mut self, plan: &mut Plan<'_>) -> Result<(), Fault> {
        let Some(dubbo) = &self.scratch.ctx.dubbo else { return Ok(()) };
        if !matches!(plan.upstream().config.scheme, Scheme::Http | Scheme::Https) {
            let reason = "an upstream of another scheme than http and https takes no calls of Dubbo";
            return Err(Fault::new(FaultKind::NoUpstream, reason));
        }
        if self.down.asks_tunnel() {
            let reason = "a call of Dubbo changes to no other protocol";
            return Err(Fault::new(FaultKind::NotImplemented, reason));
        }
        if let Some(patience) = dubbo.patience {
            plan.rare.get_or_insert_default().timeouts = Some(Timeouts {
                connect_ms: patience.connect_ms,
                send_ms: patience.send_ms,
                read_ms: patience.read_ms,
            });
        }
        self.scratch.upgrade.clear();
        self.scratch.ctx.record.upstream_scheme = Some("dubbo");
        Ok(())
    }
}

/// Whether a request is a call with parameters in lines, whose faults APISIX answers in a way of its own.
pub(super) fn is_in_lines(ctx: &Context) -> bool {
    ctx.dubbo.as_ref().is_some_and(|dubbo| matches!(dubbo.call.form, Form::Lines { .. }))
}
