//! The plugin that rejected a request.

use sigma_plugin::Context;
use sigma_plugin::record::Source;

/// Returns the plugin that rejected the request of this exchange, or failed it.
pub(crate) fn refuser(ctx: &Context) -> Option<&str> {
    let responder = || match ctx.record.source {
        Source::Upstream => None,
        _ => ctx.login.responder().map(|(entry, _)| entry),
    };
    let refuser = ctx.login.replacer().or_else(responder);
    refuser.filter(|_| ctx.record.status >= 400).map(|entry| entry.name())
}
