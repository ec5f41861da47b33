//! Warnings about stream routes without a certificate.

use super::uncertified::covers;
use crate::resources::{Resources, Ssl, StreamTls};
use crate::settings::{Settings, StreamListener};
use sigma_schema::problem::Problem;

/// Warns about routes where TLS ends at the gateway and no certificate has their name.
pub(super) fn without_certificates(settings: &Settings, resources: &Resources, found: &mut Vec<Problem>) {
    let listeners = || settings.listeners.iter().filter(|one| one.stream == Some(StreamListener::Tls));
    // A listener may have its own certificates.
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
            // The route may be meant for other listeners.
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
