//! A command that sends a request which a route of the configuration serves, to try a gateway with.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sigma_config::Config;
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::resources::Route;
use sigma_config::settings::{ListenPlace, Listener};

/// A segment that replaces a wildcard.
const SEGMENT: &str = "hello";

/// The command for the first route for which there is one.
pub(crate) fn command(config: &Config) -> Option<String> {
    config.resources.routes.iter().find_map(|route| of_route(config, route))
}

fn of_route(config: &Config, route: &Route) -> Option<String> {
    let is_conditional = !route.vars.is_unset()
        || route.remote_addr.is_some()
        || !route.remote_addrs.is_unset()
        || config.resources.is_closed(&ResourceKey::new(Kind::Route, route.id.as_str()));
    if is_conditional || !route.status.is_on() {
        return None;
    }
    let listener = listener(config, route)?;
    if route.internal {
        return None;
    }
    let mut patterns = route.uri.as_deref().into_iter().chain(route.uris.iter().map(String::as_str));
    // No path is made up for a regular expression.
    let pattern = patterns.find(|pattern| !pattern.starts_with('~'))?;
    let path = path(pattern, config.settings.router.http.has_parameters());
    let service = route.service_id.as_ref().and_then(|id| config.resources.services.get(id.as_str()));
    let own = route.host.as_deref().or_else(|| route.hosts.first().map(String::as_str));
    let host = own.or_else(|| service?.hosts.first().map(String::as_str)).map(host);
    let host = host.or_else(|| certified_host(config, listener));
    let method = match route.methods.iter().any(|method| method == "GET") {
        true => None,
        false => route.methods.first().map(String::as_str),
    };
    let mut words = vec!["curl".to_owned(), "-i".to_owned()];
    words.extend(method.map(|method| format!("-X {method}")));
    words.extend(place(listener, host.as_deref(), &path)?);
    let command = words.join(" ");
    (!command.contains(char::is_control)).then_some(command)
}

/// The first listener that serves the route, one in cleartext if there is one.
fn listener<'c>(config: &'c Config, route: &Route) -> Option<&'c Listener> {
    let serves = |listener: &&Listener| {
        let name = listener.name.as_ref();
        listener.stream.is_none()
            && listener.proxy_protocol.is_none()
            && (route.listeners.is_empty() || name.is_some_and(|name| route.listeners.contains(name)))
    };
    let all = || config.settings.listeners.iter().filter(serves);
    all().find(|listener| listener.over_tls().is_none()).or_else(|| all().next())
}

/// A host that has a certificate, for a listener over TLS that serves no other name.
fn certified_host(config: &Config, listener: &Listener) -> Option<String> {
    if !listener.over_tls()?.certificates.is_empty() {
        return None;
    }
    let mut ssls = config.resources.ssls.iter();
    let ssl = ssls.find(|ssl| ssl.is_for_clients() && ssl.client.is_none() && ssl.status.is_on())?;
    ssl.names().next().map(host)
}

/// A path that fits a pattern.
fn path(pattern: &str, has_parameters: bool) -> String {
    let path = match pattern {
        "*" | "/*" => format!("/{SEGMENT}"),
        pattern => pattern.strip_suffix('*').unwrap_or(pattern).replace('*', SEGMENT),
    };
    if !has_parameters {
        return path;
    }
    let value = |segment: &str| if segment.starts_with(':') { SEGMENT } else { segment }.to_owned();
    path.split('/').map(value).collect::<Vec<_>>().join("/")
}

/// A host that fits a pattern.
fn host(pattern: &str) -> String {
    match pattern.strip_prefix('*') {
        Some("") => "localhost".to_owned(),
        Some(rest) => format!("www{rest}"),
        None => pattern.to_owned(),
    }
}

/// The words that name the listener, the host and the path.
fn place(listener: &Listener, host: Option<&str>, path: &str) -> Option<Vec<String>> {
    let scheme = if listener.over_tls().is_some() { "https" } else { "http" };
    let mut words = Vec::new();
    // A certificate to try with is seldom one that curl trusts.
    words.extend((scheme == "https").then(|| "-k".to_owned()));
    match listener.place() {
        ListenPlace::Udp(_) => return None,
        ListenPlace::Unix(file) => {
            words.push(format!("--unix-socket {}", quoted(&file.display().to_string())));
            words.push(quoted(&format!("{scheme}://{}{path}", host.unwrap_or("localhost"))));
        }
        ListenPlace::Tcp(address) => {
            let address = reached(address);
            match (scheme, host) {
                // The name decides on the certificate too.
                ("https", Some(host)) => {
                    words.push(format!("--connect-to ::{address}"));
                    words.push(quoted(&format!("https://{host}:{}{path}", address.port())));
                }
                (_, host) => {
                    words.extend(host.map(|host| format!("-H {}", quoted(&format!("Host: {host}")))));
                    words.push(quoted(&format!("{scheme}://{address}{path}")));
                }
            }
        }
    }
    Some(words)
}

/// The address at which a client of this machine reaches a listener.
fn reached(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/:.-_[]@%+,~".contains(letter);
    // Brackets are patterns to the shell only where a file fits them.
    match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use sigma_config::ParseOptions;

    use super::*;

    fn check(text: &str, expected: Option<&str>) {
        let checked = sigma_config::parse(text, &ParseOptions::default());
        let checked = checked.map_err(|problems| format!("{problems:?}")).unwrap();
        assert_eq!(command(&checked.config).as_deref(), expected, "{text}");
    }

    #[test]
    fn the_first_route_that_can_be_asked_is_shown() {
        let routes = |listeners: &str, routes: &str| {
            format!(
                "listeners: [{listeners}]\nupstreams: [{{ id: u, nodes: {{ \"127.0.0.1:1\": 1 }} }}]\nroutes: [{routes}]\n"
            )
        };
        let plain = |route: &str| routes("\"127.0.0.1:9080\"", &format!("{{ upstream_id: u, {route} }}"));
        check(&plain("uri: /*"), Some("curl -i http://127.0.0.1:9080/hello"));
        check(&plain("uri: /shop/*"), Some("curl -i http://127.0.0.1:9080/shop/"));
        check(&plain("uris: [/a/*/b, /c]"), Some("curl -i http://127.0.0.1:9080/a/hello/b"));
        check(&plain("uri: \"/a b\""), Some("curl -i 'http://127.0.0.1:9080/a b'"));
        check(
            &plain("uri: /x, host: \"*.shop.test\", methods: [POST, PUT]"),
            Some("curl -i -X POST -H 'Host: www.shop.test' http://127.0.0.1:9080/x"),
        );
        check(&plain("uri: /x, methods: [POST, GET]"), Some("curl -i http://127.0.0.1:9080/x"));
        check(&plain("uri: /x, status: 0"), None);
        check(&plain("uri: /x, vars: [[arg_a, \"==\", \"1\"]]"), None);
        check("listeners: [\"127.0.0.1:9080\"]\n", None);
        let two = "{ upstream_id: u, uri: /x, remote_addr: 10.0.0.1 }, { upstream_id: u, uri: /y }";
        check(&routes("\":9080\"", two), Some("curl -i http://127.0.0.1:9080/y"));
        let own = "{ upstream_id: u, uri: /x, host: a.test }";
        check(
            &routes("{ address: \"0.0.0.0:9443\", tls: true }", own),
            Some("curl -i -k --connect-to ::127.0.0.1:9443 https://a.test:9443/x"),
        );
        let files = "cert_file: /a.crt, key_file: /a.key";
        let certified = format!("ssls: [{{ snis: [\"*.shop.test\"], {files} }}]\n");
        check(
            &(certified
                + &routes("{ address: \"127.0.0.1:9443\", tls: true }", "{ upstream_id: u, uri: /x }")),
            Some("curl -i -k --connect-to ::127.0.0.1:9443 https://www.shop.test:9443/x"),
        );
        check(&routes("\"unix:/run/g/s\"", own), Some("curl -i --unix-socket /run/g/s http://a.test/x"));
        check(
            &routes(
                "{ address: \"127.0.0.1:1\", stream: tcp }, { address: \"127.0.0.1:2\", name: in }, \"127.0.0.1:3\"",
                "{ upstream_id: u, uri: /x, listeners: [in] }",
            ),
            Some("curl -i http://127.0.0.1:2/x"),
        );
    }
}
