//! Requests that plugins have turned into Dubbo calls: the upstreams for them, and their faults.

use sigma_config::resources::Scheme;
use sigma_http::dubbo::Form;
use sigma_http::{Fault, FaultKind};
use sigma_plugin::Context;

use super::Exchange;
use super::plan::Plan;
use crate::snapshot::Timeouts;

impl Exchange<'_, '_> {
    /// Prepares for a Dubbo call instead of an HTTP request, if it is one.
    ///
    /// # Errors
    /// Returns an error if the upstream does not support it, or the client wants a protocol upgrade.
    #[inline]
    pub(super) fn prepare_call(&mut self, plan: &mut Plan<'_>) -> Result<(), Fault> {
        let Some(dubbo) = &self.scratch.ctx.dubbo else { return Ok(()) };
        if !matches!(plan.upstream().config.scheme, Scheme::Http | Scheme::Https) {
            let reason = "Dubbo calls need an upstream with the scheme http or https";
            return Err(Fault::new(FaultKind::NoUpstream, reason));
        }
        if self.down.asks_tunnel() {
            let reason = "a Dubbo call cannot change the protocol";
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

/// Returns true if a request is a call with parameters in lines, for whose faults APISIX has its own format.
pub(super) fn is_in_lines(ctx: &Context) -> bool {
    ctx.dubbo.as_ref().is_some_and(|dubbo| matches!(dubbo.call.form, Form::Lines { .. }))
}
