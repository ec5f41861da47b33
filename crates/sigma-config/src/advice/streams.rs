//! Stream routes whose clients are shown no certificate.

use crate::resources::{Resources, Ssl, StreamTls};
use crate::settings::{Settings, StreamListener};
use sigma_schema::problem::Problem;

/// The warnings about routes on which TLS ends here, and no certificate has their name.
pub(super) fn without_certificates(settings: &Settings, resources: &Resources, found: &mut Vec<Problem>) {
    let listeners = || settings.listeners.iter().filter(|one| one.stream == Some(StreamListener::Tls));
    // A listener may have certificates of its own.
    let has_own =
        |one: &crate::settings::Listener| one.tls.as_ref().is_some_and(|tls| !tls.certificates.is_empty());
    if listeners().next().is_none() || listeners().any(has_own) {
        return;
    }
    let ends_here = |tls: Option<StreamTls>| tls.unwrap_or_default() == StreamTls::Terminate;
    let ssls: Vec<&Ssl> =
        resources.ssls.iter().map(AsRef::as_ref).filter(|ssl| ssl.is_for_clients()).collect();
    for route in resources.stream_routes.iter().filter(|route| ends_here(route.tls) && route.udp.is_none()) {
        let message = match &route.sni {
            Some(name) if !ssls.iter().any(|ssl| ssl.names().any(|pattern| covers(pattern, name))) => {
                format!("no certificate is for `{name}`: every handshake fails")
            }
            // It may be meant for other listeners.
            None if ssls.is_empty()
                && route.server_port.is_none()
                && listeners().count() == settings.listeners.len() =>
            {
                "there is no certificate: every handshake fails".to_owned()
            }
            _ => continue,
        };
        let field = if route.sni.is_some() { ".sni" } else { "" };
        let place = format!("stream_routes/{}{field}", route.id.as_str());
        let hint = "add one to `ssls`, or write `tls: passthrough` where the node has it";
        found.push(Problem::new(place, "no_certificate", message).hint(hint));
    }
}

/// Whether a certificate with the name pattern is shown to clients that ask for `name`, which may be a pattern too.
fn covers(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.to_ascii_lowercase(), name.to_ascii_lowercase());
    pattern == "*"
        || pattern == name
        || pattern.strip_prefix('*').is_some_and(|suffix| name.ends_with(suffix))
}
