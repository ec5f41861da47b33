//! Services that decide on requests, such as authorization services and directories, as the error log names them.

use sigma_plugin::Context;

use crate::log_throttle::LogThrottle;

/// A service whose decision a plugin needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionService {
    /// The plugin that calls it.
    pub plugin: &'static str,
    /// Its URL or address, without arguments.
    pub url: String,
}

impl DecisionService {
    /// Writes the line about a request for which the service returned no decision, at most once a second for each
    /// throttle.
    pub fn report(&self, error: &str, ctx: &Context, throttle: &LogThrottle) {
        let Some(left_out) = throttle.due() else { return };
        let resource = resource_of(ctx);
        tracing::error!(
            plugin = self.plugin,
            url = %self.url,
            error,
            resource = resource.as_deref(),
            client = ctx.client.addr.as_ref().map(tracing::field::display),
            request_id = ctx.request_id(),
            left_out,
            "the service returned no decision on a request"
        );
    }
}

/// Returns the resource that the request is for, such as `routes/1`.
fn resource_of(ctx: &Context) -> Option<String> {
    ctx.route.as_deref().map(|route| format!("routes/{}", route.id))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sigma_plugin::context::RouteFacts;

    use super::*;

    #[test]
    fn a_line_names_the_route() {
        let mut ctx = Context::default();
        assert_eq!(resource_of(&ctx), None);
        ctx.route = Some(Arc::new(RouteFacts { id: "shop".into(), ..RouteFacts::default() }));
        assert_eq!(resource_of(&ctx).as_deref(), Some("routes/shop"));
    }
}
