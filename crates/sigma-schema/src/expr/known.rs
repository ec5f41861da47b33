//! The list of variables. An unknown variable is always absent: a log shows an empty value, a condition is false, a
//! limit counts by another key. So every check of an operator's variable name looks it up here.

use super::VarName;

/// The variables with a fixed name. `docs/variables.md` describes their values.
pub const NAMES: &[&str] = &[
    "apisix_request_id",
    "args",
    "balancer_ip",
    "balancer_port",
    "binary_remote_addr",
    "body_bytes_sent",
    "bytes_sent",
    "connection",
    "connection_requests",
    "connection_time",
    "consumer_group_id",
    "consumer_name",
    "content_length",
    "content_type",
    "cookie",
    "document_uri",
    "geoip_asn",
    "geoip_asn_organization",
    "geoip_city",
    "geoip_continent_code",
    "geoip_country_code",
    "geoip_country_name",
    "geoip_region",
    "geoip_region_name",
    "graphql_name",
    "graphql_operation",
    "graphql_root_fields",
    "host",
    "hostname",
    "http2",
    "https",
    "internal_name",
    "is_args",
    "jwt_auth_payload",
    "method",
    "msec",
    "nginx_version",
    "opentelemetry_context_traceparent",
    "opentelemetry_span_id",
    "opentelemetry_trace_id",
    "other_route",
    "pid",
    "proxy_add_x_forwarded_for",
    "proxy_protocol_addr",
    "proxy_protocol_port",
    "proxy_protocol_server_addr",
    "proxy_protocol_server_port",
    "query_string",
    "rate_limiting_info",
    "real_request_uri",
    "realip_remote_addr",
    "realip_remote_port",
    "remote_addr",
    "remote_network",
    "remote_port",
    "remote_user",
    "request",
    "request_body",
    "request_completion",
    "request_id",
    "request_length",
    "request_method",
    "request_time",
    "request_uri",
    "resp_body",
    "response_source",
    "route_id",
    "route_name",
    "scheme",
    "server_addr",
    "server_name",
    "server_port",
    "server_protocol",
    "service_id",
    "service_name",
    "ssl_alpn_protocol",
    "ssl_cipher",
    "ssl_client_escaped_cert",
    "ssl_client_fingerprint",
    "ssl_client_i_dn",
    "ssl_client_raw_cert",
    "ssl_client_s_dn",
    "ssl_client_serial",
    "ssl_client_spiffe_id",
    "ssl_client_verify",
    "ssl_curve",
    "ssl_ja4",
    "ssl_protocol",
    "ssl_server_name",
    "ssl_session_reused",
    "status",
    "time_iso8601",
    "time_local",
    "upstream_addr",
    "upstream_attempts",
    "upstream_bytes_received",
    "upstream_bytes_sent",
    "upstream_cache_status",
    "upstream_connect_time",
    "upstream_header_time",
    "upstream_host",
    "upstream_protocol",
    "upstream_response_time",
    "upstream_scheme",
    "upstream_status",
    "upstream_unresolved_host",
    "upstream_uri",
    "uri",
    "zipkin_context_traceparent",
    "zipkin_span_id",
    "zipkin_trace_id",
];

/// The prefixes of variables whose names end with the name of a header, an argument and so on.
pub const PREFIXES: &[&str] = &[
    "arg_",
    "cookie_",
    "ext_authz_",
    "http_",
    "post_arg.",
    "post_arg_",
    "sent_http_",
    "upstream_cookie_",
    "upstream_http_",
    "uri_param_",
    "var_",
];

/// The variables of a TCP or UDP session, besides those that begin with `geoip_` and `ssl_`. `docs/variables.md`
/// describes their values.
pub const SESSION_NAMES: &[&str] = &[
    "binary_remote_addr",
    "bytes_received",
    "bytes_sent",
    "connection",
    "connection_time",
    "hostname",
    "mqtt_client_id",
    "msec",
    "nginx_version",
    "pid",
    "protocol",
    "proxy_protocol_addr",
    "proxy_protocol_port",
    "proxy_protocol_server_addr",
    "proxy_protocol_server_port",
    "realip_remote_addr",
    "realip_remote_port",
    "remote_addr",
    "remote_network",
    "remote_port",
    "route_id",
    "route_name",
    "server_addr",
    "server_port",
    "service_id",
    "service_name",
    "session_time",
    "ssl_preread_alpn_protocols",
    "ssl_preread_server_name",
    "status",
    "time_iso8601",
    "time_local",
    "upstream_addr",
    "upstream_attempts",
    "upstream_bytes_received",
    "upstream_bytes_sent",
    "upstream_connect_time",
];

/// The source of variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// An HTTP exchange.
    Exchange,
    /// A TCP or UDP session.
    Session,
}

impl VarName {
    /// Does the same as [`VarName::unknown`] for this subject.
    #[must_use]
    pub fn unknown_of(&self, subject: Subject) -> Option<String> {
        if subject == Subject::Exchange {
            return self.unknown();
        }
        let known = match self {
            VarName::RemoteAddr
            | VarName::RemotePort
            | VarName::RealipRemoteAddr
            | VarName::ServerAddr
            | VarName::ServerPort
            | VarName::RouteId
            | VarName::RouteName
            | VarName::ServiceId
            | VarName::ServiceName
            | VarName::Hostname => true,
            VarName::Other(name) => {
                let of_both = |name: &str| name.starts_with("geoip_") || name.starts_with("ssl_");
                SESSION_NAMES.binary_search(&name.as_str()).is_ok()
                    || of_both(name) && NAMES.binary_search(&name.as_str()).is_ok()
            }
            _ => false,
        };
        if known {
            return None;
        }
        Some(match self {
            VarName::Other(name) => format!("a TCP or UDP session has no variable `{name}`"),
            _ => "a TCP or UDP session has no variables of a request".to_owned(),
        })
    }

    /// Returns why no exchange can have this variable: a sentence with the nearest name. None if the variable exists.
    #[must_use]
    pub fn unknown(&self) -> Option<String> {
        let VarName::Other(name) = self else { return None };
        if let Some(reason) = self.why_absent() {
            return Some(reason);
        }
        let is_known = NAMES.binary_search(&name.as_str()).is_ok()
            || PREFIXES.iter().any(|prefix| name.len() > prefix.len() && name.starts_with(prefix));
        if is_known {
            return None;
        }
        Some(match nearest(name) {
            Some(meant) => format!("unknown variable `{name}`; did you mean `{meant}`?"),
            None => format!("unknown variable `{name}`"),
        })
    }
}

/// Returns the known name nearest to `name`, if it is near enough to be a misspelling.
fn nearest(name: &str) -> Option<String> {
    let lower = name.to_ascii_lowercase();
    // `http-x-api` and `httpx_api` are misspelt headers, not other variables.
    for prefix in PREFIXES {
        let begun = lower.get(..prefix.len()).is_some_and(|begin| begin.replace('-', "_") == **prefix);
        if begun && lower.len() > prefix.len() {
            return Some(format!("{prefix}{}", lower[prefix.len()..].replace('-', "_")));
        }
    }
    let distance = |known: &&&str| strsim::damerau_levenshtein(known, &lower);
    let meant = NAMES.iter().min_by_key(distance)?;
    // Up to a third of the letters may differ.
    (distance(&meant) <= name.len().div_ceil(3)).then(|| (*meant).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order() {
        assert!(NAMES.is_sorted() && PREFIXES.is_sorted());
        assert!(SESSION_NAMES.is_sorted());
        for names in [NAMES, SESSION_NAMES] {
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        }
    }

    #[test]
    fn the_documentation_lists_them_all() {
        let documented = include_str!("../../../../docs/variables.md");
        let prefixed = PREFIXES.iter().map(|prefix| format!("{prefix}NAME"));
        for name in NAMES.iter().chain(SESSION_NAMES).map(|name| (*name).to_owned()).chain(prefixed) {
            assert!(documented.contains(&format!("`{name}`")), "docs/variables.md lacks `{name}`");
        }
    }

    #[test]
    fn unknown_variables_get_a_suggestion() {
        let check = |name: &str, expected: Option<&str>| {
            let found = VarName::parse(name).unknown();
            assert_eq!(found.as_deref(), expected, "{name}");
        };
        for name in NAMES {
            check(name, None);
        }
        for prefix in PREFIXES {
            check(&format!("{prefix}x"), None);
        }
        check("remote_adr", Some("unknown variable `remote_adr`; did you mean `remote_addr`?"));
        check("http-x-api", Some("unknown variable `http-x-api`; did you mean `http_x_api`?"));
        check("HTTP_X_Api", Some("unknown variable `HTTP_X_Api`; did you mean `http_x_api`?"));
        check("arg_", Some("unknown variable `arg_`; did you mean `args`?"));
        check("x", Some("unknown variable `x`"));
        check("ssl_nonsense_of_mine", Some("unknown variable `ssl_nonsense_of_mine`"));
        check("post_arg.a", None);
        check(
            "post_arg.a[",
            Some("the variable `post_arg.a[` needs a path like `a.b`, `a[0].b`, `a[*]` or `..b`, not `a[`"),
        );
        check(
            "post_arg.",
            Some("the variable `post_arg.` needs a path like `a.b`, `a[0].b`, `a[*]` or `..b`, not ``"),
        );
    }
}
