//! Lines of the error log about requests that failed: responses of the gateway itself with 5xx, and responses that it
//! could not send to their end.

use std::time::{Duration, Instant};

use sigma_http::{FaultKind, Side, fault};
use sigma_observe::throttle::{Allowance, Throttles};
use sigma_plugin::record::Source;

use super::{Exchange, PeerText};

/// Lines of one reason, in each worker.
const LINES: Allowance = Allowance { burst: 5, pause: Duration::from_secs(10) };

/// Characters of a path that a line shows.
const PATH_CHARS: usize = 200;

/// The index for a line whose reason is no fault: the reply of a plugin.
const PLUGIN: usize = FaultKind::ALL.len();

/// The reason of a failed request.
struct Cause<'e> {
    /// The word in the table of reasons.
    reason: &'static str,
    /// The plugin that responded.
    plugin: Option<&'e str>,
    detail: &'static str,
    /// The index of the reason's throttle.
    number: usize,
}

impl Exchange<'_, '_> {
    /// Writes the line about the exchange, if it failed and the reason has had less than its share of lines.
    #[cold]
    pub(super) fn report(&self) {
        let Some(cause) = self.cause() else { return };
        let Some(left_out) = pass(cause.number) else { return };
        let ctx = &self.scratch.ctx;
        let path = ctx.request.path_and_query().split(|byte| *byte == b'?').next().unwrap_or_default();
        let path: String = String::from_utf8_lossy(path).escape_debug().take(PATH_CHARS).collect();
        let route = self.stage.route(&self.view.snapshot).map(|route| &*route.facts);
        let [client, host] = [PeerText::of(self.client_addr()).as_bytes(), ctx.request.authority()]
            .map(|bytes| String::from_utf8_lossy(bytes).escape_debug().take(PATH_CHARS).collect::<String>());
        let what = match self.scratch.response.is_cut {
            true if ctx.record.status == 101 => "an upgraded connection was cut",
            true => "a response was cut",
            false => "a request failed",
        };
        tracing::warn!(
            status = ctx.record.status,
            reason = cause.reason,
            plugin = cause.plugin,
            client,
            request = format!("{} {path}", String::from_utf8_lossy(ctx.request.method_token())),
            host,
            route = route.map(|facts| &*facts.id),
            uri = route.and_then(|facts| facts.uris.first()).map(|uri| &**uri),
            node = self.scratch.attempt.failed_node.as_ref().map(tracing::field::display),
            request_id = ctx.request_id(),
            left_out,
            "{what}: {}",
            cause.detail
        );
    }

    /// Returns the plugin that rejected the request, or failed it: its response has a status from 400 on.
    pub(super) fn refuser(&self) -> Option<&str> {
        crate::attempt::refuser::refuser(&self.scratch.ctx)
    }

    /// Returns why the exchange failed, unless the client is the reason or a node responded.
    fn cause(&self) -> Option<Cause<'_>> {
        let ctx = &self.scratch.ctx;
        let is_own = ctx.record.status >= 500
            && (ctx.record.source != Source::Upstream || ctx.login.replacer().is_some());
        match (ctx.record.fault, self.refuser()) {
            (Some(fault), _)
                if (is_own || self.scratch.response.is_cut) && fault.side() != Side::Downstream =>
            {
                let (reason, number) = (fault.kind.error_type(), fault.kind as usize);
                // The texts of node faults are about responses, which a connection with a changed protocol does not
                // have.
                let is_upgraded = ctx.record.status == 101 && fault.side() == Side::Upstream;
                let detail = if is_upgraded { "the node broke it" } else { fault.reason };
                Some(Cause { reason, plugin: None, detail, number })
            }
            (None, plugin @ Some(_)) if is_own => {
                let detail = "a plugin responded";
                Some(Cause { reason: fault::PLUGIN.word, plugin, detail, number: PLUGIN })
            }
            _ => None,
        }
    }
}

/// Returns how many lines of this reason were left out before, if one may be written now.
fn pass(number: usize) -> Option<u64> {
    thread_local! {
        static THROTTLES: Throttles = const { Throttles::new() };
    }
    THROTTLES.with(|throttles| throttles.pass(number, LINES, Instant::now()))
}
