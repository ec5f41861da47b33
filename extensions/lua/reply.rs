//! The response that a script makes.

use sigma_plugin::{Reply, Step};

use crate::engine::exchange::Exchange;
use crate::engine::run::Outcome;

/// Statuses for which nginx closes the connection without a response.
const SILENT: &[i64] = &[-1, 444, 499];

/// Statuses above 300 for which nginx has no page.
const WITHOUT_PAGE: &[i64] = &[418, 599];

/// The status of a response for a number of a script. Numbers without a final response become 500.
pub(crate) fn status_of(number: i64) -> u16 {
    u16::try_from(number).ok().filter(|status| (200..=999).contains(status)).unwrap_or(500)
}

/// The step after a run in a request phase whose return values have no meaning of their own.
pub(crate) fn after(outcome: &Outcome, exchange: &Exchange) -> Step {
    match outcome {
        Outcome::Returned(_) => match written(exchange) {
            Some(reply) => reply.into(),
            None => Step::Next,
        },
        Outcome::Exited(status) => exited(*status, exchange),
        // A response that was begun is cut off.
        Outcome::Failed if exchange.output.borrow().is_some() => {
            Reply::silent().because("a Lua function failed").into()
        }
        Outcome::Failed => Reply::new(500).because("a Lua function failed").into(),
    }
}

/// The step after `ngx.exit`.
fn exited(status: i64, exchange: &Exchange) -> Step {
    if let Some(reply) = silent(status) {
        return reply.into();
    }
    if let Some(reply) = written(exchange) {
        if u16::try_from(status).is_ok_and(|status| status >= 200 && status != reply.status) {
            let sent = reply.status;
            tracing::error!(
                "attempt to set status {status} via ngx.exit after sending out the response status {sent}"
            );
        }
        return reply.into();
    }
    match status {
        // The phase ends, and the request continues.
        ..200 => Step::Next,
        status => page(status, exchange).into(),
    }
}

/// The reply to a status for which the connection is closed.
pub(crate) fn silent(status: i64) -> Option<Reply> {
    SILENT.contains(&status).then(|| Reply::silent().because("a Lua function closed the connection"))
}

/// The response of `ngx.exit` without output.
pub(crate) fn page(status: i64, exchange: &Exchange) -> Reply {
    let has_page = status >= 300 && !WITHOUT_PAGE.contains(&status);
    let status = match (status, exchange.status.get()) {
        (200, Some(set)) => i64::from(set),
        (status, _) => status,
    };
    let reply = Reply::new(status_of(status)).because("a Lua function responded");
    with_fields(if has_page { reply } else { reply.text("") }, exchange)
}

/// The response that scripts have written; None if they have written nothing.
pub(crate) fn written(exchange: &Exchange) -> Option<Reply> {
    let output = exchange.output.borrow_mut().take()?;
    let reply =
        Reply::new(exchange.status.get().unwrap_or(200)).text(output).because("a Lua function responded");
    Some(with_fields(reply, exchange))
}

/// The head of a response whose script continues.
pub(crate) fn head(exchange: &Exchange) -> Reply {
    let reply = Reply::new(exchange.status.get().unwrap_or(200)).because("a Lua function responded");
    with_fields(reply, exchange)
}

/// Adds the response fields that scripts have set.
fn with_fields(mut reply: Reply, exchange: &Exchange) -> Reply {
    for (name, value) in std::mem::take(&mut *exchange.fields.borrow_mut()).iter() {
        reply = reply.header(String::from_utf8_lossy(name).into_owned(), value);
    }
    reply
}
