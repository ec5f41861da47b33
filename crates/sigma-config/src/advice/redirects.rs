//! Warnings about redirects to HTTPS that no request can follow.

use super::plugin_holders;
use crate::plugins::is_disabled;
use crate::resources::Resources;
use crate::settings::Settings;
use sigma_schema::problem::{Problem, member};

/// Warns about redirects to HTTPS of a gateway that serves none and believes no proxy in front: a proxy that ends TLS
/// sends the followed redirect in cleartext again.
pub(super) fn without_https(settings: &Settings, resources: &Resources, found: &mut Vec<Problem>) {
    let serves_https = settings.listeners.iter().any(|one| one.stream.is_none() && one.tls.is_some());
    if serves_https || !settings.trusted_addresses.is_empty() {
        return;
    }
    for (section, id, plugins) in plugin_holders(resources) {
        let mut redirects =
            plugins.iter().filter(|(name, conf)| &***name == "redirect" && !is_disabled(conf));
        if redirects.any(|(_, conf)| conf.get("http_to_https").is_some_and(|on| on == true)) {
            let place = member(&member(&format!("{section}/{id}.plugins"), "redirect"), "http_to_https");
            let message = "no listener has TLS: behind a proxy that ends TLS, clients are redirected forever";
            let hint = "name the proxy in `trusted_addresses`, so that its X-Forwarded-Proto counts, or give a listener `tls`";
            found.push(Problem::new(place, "endless_redirect", message).hint(hint));
        }
    }
}
