//! Names that other gateways use for fields and plugins, for hints about unknown names.

use crate::problem::closest;

/// Field names of nginx, HAProxy, Envoy, Traefik, Kong, Caddy and Spring Cloud Gateway, in lower case and without
/// separators, with the names here. The first name that exists at the place is suggested.
const FIELDS: &[(&str, &[&str])] = &[
    ("accesslog", &["access_log"]),
    ("adminapi", &["admin"]),
    ("addr", &["address"]),
    ("address", &["host"]),
    ("algorithm", &["type"]),
    ("allow", &["whitelist", "allowlist"]),
    ("allowlist", &["whitelist"]),
    ("attempts", &["retries"]),
    ("backend", &["upstream", "upstream_id", "nodes", "upstreams"]),
    ("backends", &["nodes", "upstreams"]),
    ("balance", &["type"]),
    ("balancer", &["type"]),
    ("bind", &["address", "listeners"]),
    ("cert", &["certificates"]),
    ("certificate", &["cert", "certificates"]),
    ("certificates", &["ssls"]),
    ("certificatesresolvers", &["acme"]),
    ("certresolver", &["acme"]),
    ("clientmaxbodysize", &["limits"]),
    ("code", &["rejected_code", "ret_code", "http_status", "status_code"]),
    ("credentials", &["plugins"]),
    ("clusters", &["upstreams"]),
    ("cluster", &["upstream", "upstream_id"]),
    ("connecttimeout", &["timeout"]),
    ("dashboard", &["admin"]),
    ("deny", &["blacklist", "denylist"]),
    ("denylist", &["blacklist"]),
    ("destination", &["upstream"]),
    ("domain", &["host", "sni"]),
    ("domains", &["hosts", "snis"]),
    ("endpoints", &["nodes"]),
    ("entrypoints", &["listeners"]),
    ("errorlog", &["error_log"]),
    ("expires", &["valid", "cache_ttl"]),
    ("failtimeout", &["checks"]),
    ("fall", &["unhealthy"]),
    ("file", &["path"]),
    ("filename", &["path"]),
    ("filters", &["plugins"]),
    ("frontend", &["listeners"]),
    ("frontends", &["listeners"]),
    ("healthcheck", &["checks"]),
    ("healthchecks", &["checks"]),
    ("hash", &["hash_on"]),
    ("hostname", &["host"]),
    ("httppath", &["active"]),
    ("hosts", &["nodes", "snis", "routes"]),
    ("hostnames", &["hosts", "snis"]),
    ("inter", &["healthy"]),
    ("ip", &["host", "address"]),
    ("keyauthcredentials", &["plugins"]),
    ("key", &["certificates"]),
    ("keepalive", &["keepalive_pool"]),
    ("lbpolicy", &["type"]),
    ("listen", &["listeners", "address"]),
    ("listener", &["listeners"]),
    ("loadbalancer", &["type"]),
    ("loadbalancing", &["type"]),
    ("loadassignment", &["nodes"]),
    ("log", &["access_log", "error_log"]),
    ("logging", &["access_log", "error_log"]),
    ("loglevel", &["error_log"]),
    ("location", &["uri", "routes"]),
    ("locations", &["uris", "routes"]),
    ("match", &["vars", "uri"]),
    ("method", &["methods"]),
    ("middleware", &["plugins"]),
    ("middlewares", &["plugins"]),
    ("login", &["username"]),
    ("maxfails", &["checks", "http_failures"]),
    ("name", &["username"]),
    ("maxretries", &["retries"]),
    ("nexttries", &["retries"]),
    ("numretries", &["retries"]),
    ("pass", &["password"]),
    ("outlierdetection", &["checks"]),
    ("path", &["uri", "http_path", "active"]),
    ("pathprefix", &["uri"]),
    ("paths", &["uris"]),
    ("pem", &["cert"]),
    ("period", &["time_window", "interval"]),
    ("port", &["address", "listeners", "server_port"]),
    ("ports", &["server_port"]),
    ("policy", &["type"]),
    ("prefix", &["uri"]),
    ("privatekey", &["key"]),
    ("proxyconnecttimeout", &["timeout"]),
    ("proxypass", &["upstream", "routes"]),
    ("proxyreadtimeout", &["timeout"]),
    ("proxysendtimeout", &["timeout"]),
    ("proxyprotocol", &["proxy_protocol"]),
    ("rate", &["count", "rate"]),
    ("requests", &["count"]),
    ("readtimeout", &["timeout"]),
    ("retry", &["retries", "retry_policy"]),
    ("return", &["ret_code"]),
    ("reverseproxy", &["upstream", "routes"]),
    ("rise", &["healthy"]),
    ("rule", &["uri", "vars"]),
    ("secret", &["password"]),
    ("server", &["upstream", "nodes", "listeners"]),
    ("servername", &["host", "sni"]),
    ("servers", &["nodes", "upstreams"]),
    ("services", &["nodes"]),
    ("ssl", &["ssls", "tls"]),
    ("status", &["http_status", "status_code", "ret_code"]),
    ("streams", &["stream_routes"]),
    ("sites", &["routes"]),
    ("sticky", &["session_affinity"]),
    ("target", &["upstream", "nodes"]),
    ("targets", &["nodes"]),
    ("timeouts", &["timeout"]),
    ("statuscode", &["rejected_code", "code", "ret_code", "http_status"]),
    ("statuscodes", &["http_statuses"]),
    ("threshold", &["http_failures", "count"]),
    ("tls", &["ssls"]),
    ("ttl", &["valid", "cache_ttl"]),
    ("upstreamurl", &["upstream"]),
    ("url", &["upstream", "uri", "nodes"]),
    ("user", &["username", "process"]),
    ("verbs", &["methods"]),
    ("upstreams", &["weighted_upstreams"]),
    ("vhost", &["host", "routes"]),
    ("vhosts", &["hosts", "routes"]),
    ("workerprocesses", &["workers"]),
    ("window", &["time_window"]),
    ("virtualhost", &["host"]),
    ("virtualhosts", &["routes"]),
];

/// The same for plugins.
const PLUGINS: &[(&str, &[&str])] = &[
    ("addprefix", &["proxy-rewrite"]),
    ("auth", &["key-auth"]),
    ("authrequest", &["forward-auth"]),
    ("basic", &["basic-auth"]),
    ("bodytransform", &["body-transformer"]),
    ("cache", &["proxy-cache"]),
    ("circuitbreaker", &["api-breaker"]),
    ("compress", &["gzip"]),
    ("compression", &["gzip"]),
    ("correlationid", &["request-id"]),
    ("digestauth", &["digest-auth"]),
    ("extauthz", &["forward-auth"]),
    ("cors", &["cors"]),
    ("faultinjection", &["fault-injection"]),
    ("gzip", &["gzip"]),
    ("headers", &["proxy-rewrite", "response-rewrite"]),
    ("ipallowlist", &["ip-restriction"]),
    ("ipwhitelist", &["ip-restriction"]),
    ("jwt", &["jwt-auth"]),
    ("ldap", &["ldap-auth"]),
    ("metrics", &["prometheus"]),
    ("mirror", &["proxy-mirror"]),
    ("oauth2", &["openid-connect"]),
    ("oidc", &["openid-connect"]),
    ("openid", &["openid-connect"]),
    ("opentracing", &["opentelemetry"]),
    ("ratelimit", &["limit-count"]),
    ("ratelimiting", &["limit-count"]),
    ("prometheus", &["prometheus"]),
    ("realip", &["real-ip"]),
    ("redirect", &["redirect"]),
    ("redirectscheme", &["redirect"]),
    ("replacepath", &["proxy-rewrite"]),
    ("requesttermination", &["fault-injection"]),
    ("requesttransformer", &["proxy-rewrite"]),
    ("responsetransformer", &["response-rewrite"]),
    ("rewrite", &["proxy-rewrite"]),
    ("rewritepath", &["proxy-rewrite"]),
    ("setpath", &["proxy-rewrite"]),
    ("strippath", &["proxy-rewrite"]),
    ("stripprefix", &["proxy-rewrite"]),
    ("tracing", &["opentelemetry"]),
];

/// Upstream fields that are often written next to the upstream by mistake.
const OF_UPSTREAM: [&str; 20] = [
    "nodes",
    "type",
    "checks",
    "retries",
    "retry_timeout",
    "timeout",
    "scheme",
    "pass_host",
    "upstream_host",
    "hash_on",
    "key",
    "keepalive_pool",
    "tls",
    "discovery_type",
    "service_name",
    "session_affinity",
    "outlier_detection",
    "slow_start",
    "members",
    "node_states",
];

/// The most common fields, for lists that cannot name all fields.
const COMMON: &[&str] = &[
    "listeners",
    "routes",
    "upstreams",
    "uri",
    "host",
    "methods",
    "upstream",
    "upstream_id",
    "service_id",
    "nodes",
    "type",
    "checks",
    "retries",
    "timeout",
    "scheme",
    "plugins",
    "consumers",
    "ssls",
    "global_rules",
    "admin",
    "store",
    "access_log",
    "username",
    "snis",
    "cert",
    "key",
    "address",
    "tls",
    "healthy",
    "unhealthy",
    "http_path",
    "interval",
    "count",
    "time_window",
    "rejected_code",
    "policy",
    "valid",
    "name",
    "id",
    "labels",
];

/// Values of other gateways: the field, the value without separators, and the value here.
const VALUES: &[(&str, &str, &str)] = &[
    ("type", "consistenthash", "chash"),
    ("type", "hash", "chash"),
    ("type", "iphash", "chash"),
    ("type", "leastconn", "least_conn"),
    ("type", "leastconnections", "least_conn"),
    ("type", "leastrequest", "least_conn"),
    ("type", "ringhash", "chash"),
    ("type", "rr", "roundrobin"),
    ("type", "source", "chash"),
    ("type", "urihash", "chash"),
    ("type", "weighted", "roundrobin"),
    ("type", "weightedroundrobin", "roundrobin"),
    ("type", "wrr", "roundrobin"),
    ("pass_host", "preserve", "pass"),
    ("pass_host", "upstream", "node"),
    ("scheme", "h2c", "grpc"),
    ("scheme", "ws", "http"),
    ("scheme", "wss", "https"),
];

/// The likely meaning of an unknown name.
#[derive(Debug, PartialEq, Eq)]
pub enum Nearest<'a> {
    /// A field of the same object with a similar name.
    Field(&'a str),
    /// A field of the same object with another name for the same thing.
    Meant(&'a str),
    /// A member of a field of the same object: both names.
    Within(&'static str, &'static str),
    /// A plugin, written at the top level of the file.
    Plugin(&'static str),
}

/// Returns the field among `known` that the writer of `written` most likely means.
pub fn nearest_field<'a>(written: &str, known: &[&'a str]) -> Option<Nearest<'a>> {
    let fields = || known.iter().copied();
    // `route` is nearer to `routes` than to `router`.
    if let Some(name) = fields().find(|name| name.strip_suffix('s') == Some(written)) {
        return Some(Nearest::Field(name));
    }
    let slip = closest(written, fields());
    if let Some(name) = slip.filter(|name| distance(written, name) <= 1) {
        return Some(Nearest::Field(name));
    }
    let has_upstream = known.contains(&"upstream") && !known.contains(&"nodes") && !known.contains(&"routes");
    let first = row(FIELDS, written).and_then(|names| names.first());
    let is_inner = first.is_some_and(|first| OF_UPSTREAM.contains(first) && !known.contains(first));
    let other = meant(FIELDS, written, known).filter(|_| !has_upstream || !is_inner);
    if let Some(name) = other {
        return Some(Nearest::Meant(name));
    }
    if has_upstream {
        let exact = OF_UPSTREAM.into_iter().find(|name| *name == written);
        let field = exact.or_else(|| slip.is_none().then(|| of_upstream(written)).flatten());
        if let Some(name) = field {
            return Some(Nearest::Within("upstream", name));
        }
    }
    if let Some(name) = slip {
        return Some(Nearest::Field(name));
    }
    // `memory` for `memory_bytes`.
    let has_word = |name: &&&str| written.len() > 2 && name.split('_').any(|part| part == written);
    if let [name] = known.iter().filter(has_word).collect::<Vec<_>>()[..] {
        return Some(Nearest::Meant(name));
    }
    let plugin = known.contains(&"plugins").then(|| row(PLUGINS, written)?.first()).flatten()?;
    Some(match known.contains(&"routes") {
        true => Nearest::Plugin(plugin),
        false => Nearest::Within("plugins", plugin),
    })
}

fn of_upstream(written: &str) -> Option<&'static str> {
    meant(FIELDS, written, &OF_UPSTREAM).or_else(|| closest(written, OF_UPSTREAM))
}

/// Returns the plugin among `known` that the writer of `written` most likely means.
pub fn nearest_plugin<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    // A word such as `rewrite` is not a misspelt name.
    meant(PLUGINS, written, known).or_else(|| closest(written, known.iter().copied()))
}

/// Returns up to `most` of the fields `known`, the most common first.
pub fn common<'a>(known: &[&'a str], most: usize) -> Vec<&'a str> {
    let is_known = |name: &&&str| known.contains(name);
    let mut names: Vec<&str> = COMMON.iter().filter(is_known).copied().collect();
    names.extend(known.iter().filter(|name| !COMMON.contains(name)));
    names.truncate(most);
    names
}

/// Returns the remedy for a value that another gateway uses.
pub fn value(field: &str, written: &str, allowed: &[&str]) -> Option<String> {
    let word = word_of(written);
    if field == "methods" && ["*", "any", "all"].contains(&word.as_str()) {
        return Some("leave `methods` out for all methods".to_owned());
    }
    let (_, _, name) =
        VALUES.iter().find(|(of, other, name)| *of == field && *other == word && allowed.contains(name))?;
    Some(match word.as_str() {
        "iphash" | "source" => format!("did you mean `{name}` with `key: remote_addr`?"),
        "urihash" => format!("did you mean `{name}` with `key: uri`?"),
        "ws" | "wss" => {
            format!("did you mean `{name}`? A route takes WebSocket with `enable_websocket: true`")
        }
        _ => format!("did you mean `{name}`?"),
    })
}

fn distance(one: &str, other: &str) -> usize {
    strsim::damerau_levenshtein(&one.to_ascii_lowercase(), &other.to_ascii_lowercase())
}

fn word_of(written: &str) -> String {
    written.chars().filter(|c| !"-_ ".contains(*c)).flat_map(char::to_lowercase).collect()
}

fn row(table: &[(&'static str, &'static [&'static str])], written: &str) -> Option<&'static [&'static str]> {
    let word = word_of(written);
    table.iter().find(|(other, _)| *other == word).map(|(_, names)| *names)
}

fn meant<'a>(
    table: &[(&'static str, &'static [&'static str])],
    written: &str,
    known: &[&'a str],
) -> Option<&'a str> {
    row(table, written)?.iter().find_map(|name| known.iter().find(|known| *known == name).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_other_gateways_are_known() {
        let route = ["uri", "uris", "host", "hosts", "methods", "plugins", "upstream", "upstream_id"];
        let upstream = ["type", "nodes", "checks", "retries", "retry_policy", "timeout"];
        let settings = ["listeners", "router", "routes", "upstreams", "plugins"];
        for (known, written, expected) in [
            (&route[..], "path", Some(Nearest::Meant("uri"))),
            (&route, "pathPrefix", Some(Nearest::Meant("uri"))),
            (&route, "backend", Some(Nearest::Meant("upstream"))),
            (&route, "middlewares", Some(Nearest::Meant("plugins"))),
            (&route, "server_name", Some(Nearest::Meant("host"))),
            (&route, "upstrem", Some(Nearest::Field("upstream"))),
            (&route, "retry", Some(Nearest::Within("upstream", "retries"))),
            (&upstream, "healthCheck", Some(Nearest::Meant("checks"))),
            (&upstream, "servers", Some(Nearest::Meant("nodes"))),
            (&upstream, "retry", Some(Nearest::Meant("retries"))),
            (&upstream, "lb_policy", Some(Nearest::Meant("type"))),
            (&upstream, "path", None),
            (&upstream, "url", Some(Nearest::Meant("nodes"))),
            (&["active", "passive"], "path", Some(Nearest::Meant("active"))),
            (&["process", "ssls"], "user", Some(Nearest::Meant("process"))),
            (&settings, "route", Some(Nearest::Field("routes"))),
            (&settings, "backend", Some(Nearest::Meant("upstreams"))),
            (&settings, "servers", Some(Nearest::Meant("upstreams"))),
            (&settings, "location", Some(Nearest::Meant("routes"))),
            (&settings, "frontend", Some(Nearest::Meant("listeners"))),
        ] {
            assert_eq!(nearest_field(written, known), expected, "{written}");
        }
        for (written, expected) in [
            ("health_check", ("upstream", "checks")),
            ("nodes", ("upstream", "nodes")),
            ("rateLimit", ("plugins", "limit-count")),
        ] {
            let expected = Nearest::Within(expected.0, expected.1);
            assert_eq!(nearest_field(written, &route), Some(expected), "{written}");
        }
        assert_eq!(nearest_field("metrics", &["routes", "plugins"]), Some(Nearest::Plugin("prometheus")));
        let plugins = ["limit-count", "proxy-rewrite", "response-rewrite", "openid-connect", "jwt-auth"];
        for (written, expected) in [
            ("rate-limit", Some("limit-count")),
            ("rate_limiting", Some("limit-count")),
            ("rewrite", Some("proxy-rewrite")),
            ("oidc", Some("openid-connect")),
            ("limit-cuont", Some("limit-count")),
            ("unheard-of", None),
        ] {
            assert_eq!(nearest_plugin(written, &plugins), expected, "{written}");
        }
    }
}
