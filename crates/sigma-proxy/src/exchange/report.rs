//! Lines of the error log about requests that failed: responses of the gateway itself with 5xx, and responses that it
//! could not send to their end.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use sigma_http::{FaultKind, Side};
use sigma_observe::throttle::{Allowance, Throttle};
use sigma_plugin::record::Source;

use super::{Exchange, PeerText};

/// Lines of one reason, in each worker.
const LINES: Allowance = Allowance { burst: 5, pause: Duration::from_secs(10) };

/// Characters of a path that a line shows.
const PATH_CHARS: usize = 200;

/// The reason of a line that no fault gives: the reply of a plugin.
const PLUGIN: usize = FaultKind::ALL.len();

/// Why a request failed.
struct Cause<'e> {
    /// The word for it, as in bodies and in `$fault`; of a reply of a plugin the plugin's name.
    reason: &'e str,
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
        let what = match self.scratch.is_cut {
            true if ctx.record.status == 101 => "an upgraded connection was cut",
            true => "a response was cut",
            false => "a request failed",
        };
        tracing::warn!(
            status = ctx.record.status,
            reason = cause.reason,
            client,
            request = format!("{} {path}", String::from_utf8_lossy(ctx.request.method_token())),
            host,
            route = route.map(|facts| &*facts.id),
            uri = route.and_then(|facts| facts.uris.first()).map(|uri| &**uri),
            node = self.scratch.failed_node.as_ref().map(tracing::field::display),
            request_id = ctx.request_id(),
            left_out,
            "{what}: {}",
            cause.detail
        );
    }

    /// Why the exchange failed, unless the client is the reason or a node responded.
    fn cause(&self) -> Option<Cause<'_>> {
        let ctx = &self.scratch.ctx;
        let is_own = ctx.record.status >= 500 && ctx.record.source != Source::Upstream;
        match (ctx.record.fault, ctx.login.responder()) {
            (Some(fault), _) if (is_own || self.scratch.is_cut) && fault.side() != Side::Downstream => {
                let (reason, number) = (fault.kind.error_type(), fault.kind as usize);
                // The faults of a node are worded for responses, and a connection that has changed its protocol has none.
                let is_upgraded = ctx.record.status == 101 && fault.side() == Side::Upstream;
                let detail = if is_upgraded { "the node broke it off" } else { fault.reason };
                Some(Cause { reason, detail, number })
            }
            (None, Some((entry, _))) if is_own => {
                Some(Cause { reason: entry.name(), detail: "a plugin responded", number: PLUGIN })
            }
            _ => None,
        }
    }
}

/// How many lines of this reason were left out before, if there may be one now.
fn pass(number: usize) -> Option<u64> {
    thread_local! {
        static THROTTLES: RefCell<Vec<Option<Throttle>>> = const { RefCell::new(Vec::new()) };
    }
    let now = Instant::now();
    THROTTLES.with_borrow_mut(|throttles| {
        throttles.resize_with(PLUGIN + 1, || None);
        throttles[number].get_or_insert_with(|| Throttle::new(LINES, now)).pass(LINES, now)
    })
}
