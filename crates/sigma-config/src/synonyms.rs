//! The words of other gateways for fields and plugins, for hints about unknown names.

use crate::problem::closest;

/// Words of nginx, HAProxy, Envoy, Traefik, Kong, Caddy and Spring Cloud Gateway for a field, without separators and in
/// lower case, and the names here, of which the first that exists at the place is meant.
const FIELDS: &[(&str, &[&str])] = &[
    ("algorithm", &["type"]),
    ("attempts", &["retries"]),
    ("backend", &["upstream", "upstream_id", "nodes"]),
    ("backends", &["nodes", "upstreams"]),
    ("balancer", &["type"]),
    ("bind", &["address", "listeners"]),
    ("certificate", &["cert", "certificates"]),
    ("clusters", &["upstreams"]),
    ("cluster", &["upstream", "upstream_id"]),
    ("connecttimeout", &["timeout"]),
    ("destination", &["upstream"]),
    ("domain", &["host", "sni"]),
    ("domains", &["hosts", "snis"]),
    ("endpoints", &["nodes"]),
    ("filters", &["plugins"]),
    ("frontends", &["listeners"]),
    ("healthcheck", &["checks"]),
    ("healthchecks", &["checks"]),
    ("hostname", &["host"]),
    ("hostnames", &["hosts", "snis"]),
    ("keepalive", &["keepalive_pool"]),
    ("lbpolicy", &["type"]),
    ("listen", &["listeners", "address"]),
    ("listener", &["listeners"]),
    ("loadbalancer", &["type"]),
    ("loadbalancing", &["type"]),
    ("location", &["uri"]),
    ("locations", &["uris", "routes"]),
    ("match", &["vars", "uri"]),
    ("method", &["methods"]),
    ("middleware", &["plugins"]),
    ("middlewares", &["plugins"]),
    ("numretries", &["retries"]),
    ("outlierdetection", &["checks"]),
    ("path", &["uri"]),
    ("pathprefix", &["uri"]),
    ("paths", &["uris"]),
    ("policy", &["type"]),
    ("prefix", &["uri"]),
    ("privatekey", &["key"]),
    ("proxypass", &["upstream"]),
    ("readtimeout", &["timeout"]),
    ("retry", &["retries", "retry_policy"]),
    ("rule", &["uri", "vars"]),
    ("server", &["upstream", "nodes"]),
    ("servername", &["host", "sni"]),
    ("servers", &["nodes"]),
    ("services", &["nodes"]),
    ("sticky", &["session_affinity"]),
    ("target", &["upstream", "nodes"]),
    ("targets", &["nodes"]),
    ("timeouts", &["timeout"]),
    ("tls", &["ssls"]),
    ("url", &["upstream", "uri"]),
    ("verbs", &["methods"]),
];

/// The same for plugins.
const PLUGINS: &[(&str, &[&str])] = &[
    ("addprefix", &["proxy-rewrite"]),
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
    ("headers", &["proxy-rewrite", "response-rewrite"]),
    ("ipallowlist", &["ip-restriction"]),
    ("ipwhitelist", &["ip-restriction"]),
    ("jwt", &["jwt-auth"]),
    ("ldap", &["ldap-auth"]),
    ("mirror", &["proxy-mirror"]),
    ("oauth2", &["openid-connect"]),
    ("oidc", &["openid-connect"]),
    ("openid", &["openid-connect"]),
    ("opentracing", &["opentelemetry"]),
    ("ratelimit", &["limit-count"]),
    ("ratelimiting", &["limit-count"]),
    ("realip", &["real-ip"]),
    ("redirectscheme", &["redirect"]),
    ("replacepath", &["proxy-rewrite"]),
    ("requesttermination", &["fault-injection"]),
    ("requesttransformer", &["proxy-rewrite"]),
    ("responsetransformer", &["response-rewrite"]),
    ("rewrite", &["proxy-rewrite"]),
    ("rewritepath", &["proxy-rewrite"]),
    ("setpath", &["proxy-rewrite"]),
    ("stripprefix", &["proxy-rewrite"]),
    ("tracing", &["opentelemetry"]),
];

/// The field among `known` that the writer of `written` most likely means.
pub(crate) fn nearest_field<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    closest(written, known.iter().copied()).or_else(|| meant(FIELDS, written, known))
}

/// The plugin among `known` that the writer of `written` most likely means.
pub(crate) fn nearest_plugin<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    // A word such as `rewrite` is no slip of a name.
    meant(PLUGINS, written, known).or_else(|| closest(written, known.iter().copied()))
}

fn meant<'a>(table: &[(&str, &[&str])], written: &str, known: &[&'a str]) -> Option<&'a str> {
    let word: String = written.chars().filter(|c| !"-_ ".contains(*c)).flat_map(char::to_lowercase).collect();
    let (_, names) = table.iter().find(|(other, _)| *other == word)?;
    names.iter().find_map(|name| known.iter().find(|known| *known == name).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_other_gateways_are_known() {
        let route = ["uri", "uris", "host", "hosts", "methods", "plugins", "upstream", "upstream_id"];
        let upstream = ["type", "nodes", "checks", "retries", "retry_policy", "timeout"];
        for (known, written, expected) in [
            (&route[..], "path", Some("uri")),
            (&route, "pathPrefix", Some("uri")),
            (&route, "backend", Some("upstream")),
            (&route, "middlewares", Some("plugins")),
            (&route, "server_name", Some("host")),
            (&route, "upstrem", Some("upstream")),
            (&route, "health_check", None),
            (&upstream, "healthCheck", Some("checks")),
            (&upstream, "servers", Some("nodes")),
            (&upstream, "retry", Some("retries")),
            (&upstream, "lb_policy", Some("type")),
            (&upstream, "path", None),
        ] {
            assert_eq!(nearest_field(written, known), expected, "{written}");
        }
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
