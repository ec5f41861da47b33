//! Warnings about TLS listeners and hosts without a certificate.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::resources::{Resources, Route};
use crate::settings::Settings;
use crate::settings::acme::OnDemand;
use crate::settings::tls::ListenerTls;
use sigma_schema::problem::{Problem, element, member};

/// Warns about listeners of HTTP without any certificate. Listeners for TLS sessions are checked with their routes.
pub(super) fn listeners(settings: &Settings, resources: &Resources, found: &mut Vec<Problem>) {
    if on_demand(settings).is_some() || resources.ssls.iter().any(|ssl| ssl.is_for_clients()) {
        return;
    }
    for (index, listener) in settings.listeners.iter().enumerate().filter(|(_, one)| one.stream.is_none()) {
        if listener.tls.as_ref().is_some_and(|tls| tls.certificates.is_empty()) {
            let message = "there is no certificate: every handshake fails";
            let hint = "add one to `ssls`, or name files in `tls.certificates`";
            let place = member(&element("listeners", index), "tls");
            found.push(Problem::new(place, "no_certificate", message).hint(hint));
        }
    }
}

/// Warns about hosts of routes and services for which no certificate is, each host once.
pub(super) fn hosts(settings: &Settings, resources: &Resources, found: &mut Vec<Problem>) {
    let over_tls = || {
        let of_http = settings.listeners.iter().filter(|one| one.stream.is_none());
        of_http.filter_map(|one| one.tls.as_ref())
    };
    // Its own certificate is for unknown names, and the derivation of `tls: auto` reports the hosts that are left.
    let has_others = |tls: &ListenerTls| tls.auto || !tls.certificates.is_empty();
    let ssls = resources.ssls.iter().filter(|ssl| ssl.is_for_clients());
    let names: Vec<String> = ssls.flat_map(|ssl| ssl.names().map(str::to_ascii_lowercase)).collect();
    let on_demand = on_demand(settings);
    let is_reported_elsewhere = names.is_empty() && on_demand.is_none();
    if over_tls().next().is_none() || over_tls().any(has_others) || is_reported_elsewhere {
        return;
    }
    let mut told = BTreeSet::new();
    for (place, host) in hosts_over_tls(resources) {
        let host = host.to_ascii_lowercase();
        if !has_certificate(&host, &names, on_demand) && told.insert(host.clone()) {
            let message = format!("no certificate is for `{host}`: its handshakes fail");
            let hint = "add one to `ssls`; if the host is not for TLS, add `[scheme, ==, http]` to `vars`";
            found.push(Problem::new(place, "no_certificate", message).hint(hint));
        }
    }
}

fn on_demand(settings: &Settings) -> Option<&OnDemand> {
    settings.acme.as_ref()?.on_demand.as_ref()
}

/// Returns the hosts of routes that may serve requests over TLS, with their pointers.
fn hosts_over_tls(resources: &Resources) -> Vec<(String, &str)> {
    let (mut all, mut services) = (Vec::new(), BTreeSet::new());
    for route in resources.routes.iter().filter(|route| route.status.is_on() && may_be_over_tls(route)) {
        let own = written(&format!("routes/{}", route.id.as_str()), route.host.as_deref(), &route.hosts);
        if let (true, Some(service)) = (own.is_empty(), &route.service_id) {
            services.insert(service.as_str());
        }
        all.extend(own);
    }
    for service in resources.services.iter().filter(|service| services.contains(service.id.as_str())) {
        all.extend(written(&format!("services/{}", service.id.as_str()), None, &service.hosts));
    }
    all
}

/// Returns whether no condition of a route selects a listener.
fn may_be_over_tls(route: &Route) -> bool {
    let selects = |vars: String| ["\"scheme\"", "\"server_port\""].iter().any(|name| vars.contains(name));
    route.listeners.is_unset() && !serde_json::to_string(&*route.vars).is_ok_and(selects)
}

fn written<'r>(place: &str, host: Option<&'r str>, hosts: &'r [String]) -> Vec<(String, &'r str)> {
    let one = host.map(|host| (member(place, "host"), host));
    let list = member(place, "hosts");
    let several = hosts.iter().enumerate().map(|(at, host)| (element(&list, at), host.as_str()));
    one.into_iter().chain(several).collect()
}

/// Returns whether clients can have a certificate for a lower-case host. Addresses are not sent as a server name.
fn has_certificate(host: &str, names: &[String], on_demand: Option<&OnDemand>) -> bool {
    if host == "*" || host.contains(':') || host.parse::<IpAddr>().is_ok() {
        return true;
    }
    // Names below a wildcard may have certificates of their own.
    let base = host.strip_prefix('*');
    let below = |base: &str| on_demand.is_some() || names.iter().any(|name| name.ends_with(base));
    names.iter().any(|pattern| covers(pattern, host))
        || base.is_some_and(below)
        || on_demand.is_some_and(|on_demand| on_demand.allows(host))
}

/// Returns whether a certificate with this name pattern is used for `name`, which may be a pattern too. A wildcard is
/// for one label.
pub(super) fn covers(pattern: &str, name: &str) -> bool {
    let is_below = |base: &str| name.split_once('.').is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(base));
    pattern == "*" || pattern.eq_ignore_ascii_case(name) || pattern.strip_prefix("*.").is_some_and(is_below)
}

#[cfg(test)]
mod tests {
    use super::super::tests::parts;
    use super::*;

    #[track_caller]
    fn check(listeners: &str, rest: &str, expected: &[&str]) {
        let text = format!("listeners: [{listeners}]\n{rest}");
        let (settings, resources) = parts(&text);
        let mut found = Vec::new();
        super::listeners(&settings, &resources, &mut found);
        hosts(&settings, &resources, &mut found);
        let places: Vec<&str> = found.iter().map(|problem| problem.pointer.as_str()).collect();
        assert_eq!(places, expected, "{text}");
    }

    const TLS: &str = "{ address: \"127.0.0.1:1\", tls: true }";

    fn route(fields: &str) -> String {
        format!("routes: [{{ id: r, uri: /a, upstream: {{ nodes: {{ \"h:1\": 1 }} }}, {fields} }}]\n")
    }

    fn ssl(name: &str) -> String {
        format!("ssls: [{{ id: s, sni: \"{name}\", cert: a, key: a }}]\n")
    }

    #[test]
    fn hosts_need_a_certificate() {
        let hosted = |fields: &str, name: &str, expected: &[&str]| {
            check(TLS, &format!("{}{}", route(fields), ssl(name)), expected);
        };
        hosted("host: a.example", "a.example", &[]);
        hosted("host: A.example", "*.Example", &[]);
        hosted("host: a.example", "*", &[]);
        hosted("host: a.example", "b.example", &["routes/r.host"]);
        hosted("hosts: [b.example, a.example]", "b.example", &["routes/r.hosts[1]"]);
        hosted("host: b.a.example", "*.example", &["routes/r.host"]);
        hosted("host: \"*.example\"", "a.example", &[]);
        hosted("host: \"*.example\"", "a.test", &["routes/r.host"]);
        hosted("host: \"10.0.0.1\"", "a.test", &[]);
        hosted("host: a.example, status: 0", "b.example", &[]);
        hosted("host: a.example, vars: [[scheme, ==, http]]", "b.example", &[]);
        // A host is reported once.
        hosted("hosts: [a.example, A.example]", "b.example", &["routes/r.hosts[0]"]);
        let service = format!(
            "{}services: [{{ id: s, hosts: [a.example] }}]\n{}",
            route("service_id: s"),
            ssl("b.example")
        );
        check(TLS, &service, &["services/s.hosts[0]"]);
        let others = format!("{}{}", route("host: a.example"), ssl("b.example"));
        check("{ address: \"127.0.0.1:1\" }", &others, &[]);
        let own = "{ address: \"127.0.0.1:1\", tls: { certificates: [{ cert: a, key: b }] } }";
        check(own, &others, &[]);
    }

    #[test]
    fn certificates_on_demand_count() {
        let acme = "acme: { terms_agreed: true, on_demand: { names: [\"*.example\"] } }\n";
        check(TLS, &route("host: a.example"), &["listeners[0].tls"]);
        check(TLS, &format!("{acme}{}", route("host: a.example")), &[]);
        check(TLS, &format!("{acme}{}", route("host: a.test")), &["routes/r.host"]);
        check(TLS, &format!("{acme}{}{}", route("host: a.test"), ssl("a.test")), &[]);
    }
}
