//! Common parts of the hooks of plugins with scripts.

use sigma_http::HeaderId;
use sigma_plugin::{Context, Reply, ResponseStep};

use crate::engine::exchange::Exchange;
use crate::engine::run::Outcome;
use crate::reply;

/// The reason of responses after an error.
pub(crate) const FAILED: &str = "a Lua function failed";

/// Logs an error outside a run; returns the response to it.
pub(crate) fn broken(place: &str, message: &str) -> Reply {
    tracing::error!("{place}: a Lua function failed: runtime error: {message}");
    Reply::new(500).because(FAILED)
}

/// Moves the response fields that scripts set before the response into it.
pub(crate) fn move_fields(ctx: &mut Context) {
    if let Some(exchange) = Exchange::known(ctx) {
        exchange.move_fields(&mut ctx.response.headers);
    }
}

/// The step after a run in a header filter.
pub(crate) fn after_filter(outcome: &Outcome, ctx: &mut Context) -> ResponseStep {
    if matches!(outcome, Outcome::Failed) {
        // As in nginx: no head has left, and none does.
        return ResponseStep::Replace(Box::new(Reply::silent().because(FAILED)));
    }
    exited(ctx).unwrap_or(ResponseStep::Next)
}

/// The step after `ngx.exit` in a header filter; None without one.
pub(crate) fn exited(ctx: &mut Context) -> Option<ResponseStep> {
    let exchange = Exchange::known(ctx)?;
    let status = exchange.exit_in_filter.take().filter(|status| *status >= 200)?;
    let mut reply = reply::page(status, &exchange);
    for name in exchange.set_in_filter.borrow().iter() {
        let id = HeaderId::of(name);
        let fields = ctx.response.headers.fields().filter(|(_, known, _)| known.eq_ignore_ascii_case(name));
        // The page has its own media type.
        for (_, name, value) in fields.filter(|_| id != HeaderId::ContentType) {
            reply = reply.header(String::from_utf8_lossy(name).into_owned(), value);
        }
    }
    Some(ResponseStep::Replace(Box::new(reply)))
}
