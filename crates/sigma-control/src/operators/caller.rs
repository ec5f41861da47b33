//! Whether a call without a key is an operator's own, or one that a web page made in a browser.
//!
//! Browsers let any page send requests to any address, loopback included, and a page whose name is made to resolve to
//! an address of the operator (DNS rebinding) may read the responses too. Such calls are recognised by the called name
//! (`Host`), and by the browser's fields about the page (`Origin`, `Sec-Fetch-Site`).

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use sigma_config::settings::Operators;

/// The names and pages that an operator trusts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trusted {
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl From<&Operators> for Trusted {
    fn from(settings: &Operators) -> Trusted {
        let lower = |list: &[String]| list.iter().map(|text| text.to_ascii_lowercase()).collect();
        Trusted { hosts: lower(&settings.hosts), origins: lower(&settings.origins) }
    }
}

/// A service without keys, closed to what [`Trusted::check`] refuses.
pub(crate) fn guarded(router: Router, trusted: &Arc<Trusted>) -> Router {
    router.layer(from_fn_with_state(Arc::clone(trusted), only_trusted))
}

async fn only_trusted(State(trusted): State<Arc<Trusted>>, request: Request, next: Next) -> Response {
    match trusted.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(reason) => {
            let body = format!("{}\n", json!({ "error_msg": reason }));
            (StatusCode::FORBIDDEN, [(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
    }
}

fn text(headers: &HeaderMap, name: impl header::AsHeaderName) -> Option<String> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase())
}

impl Trusted {
    /// Refuses, with the reason, a name that a stranger may have made resolve to an address of the operator.
    pub(crate) fn check_host(&self, headers: &HeaderMap) -> Result<(), String> {
        match text(headers, header::HOST).filter(|host| !self.has_host(host)) {
            None => Ok(()),
            Some(host) => Err(format!(
                "requests without a key may not use the host name {host:?}: use an IP address, or add the name to `operators.hosts`"
            )),
        }
    }

    /// Refuses, with the reason, a call that a foreign page may have sent.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), String> {
        self.check_host(headers)?;
        if self.is_foreign(headers) {
            return Err(
                "web pages may not call this without a key: add their origins to `operators.origins`"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// The same for calls that change something even by GET.
    pub(crate) fn check_any_method(&self, method: &Method, headers: &HeaderMap) -> Result<(), String> {
        self.check(headers)?;
        if method.is_safe() && is_silent_browser(headers) {
            return Err(
                "browsers may not call this with GET, because any web page could: use another program, such as curl"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Whether a key in a cookie counts. Browsers add cookies to requests of foreign pages, so a browser has to say
    /// that the page is the operator's before it may change something.
    pub(crate) fn takes_cookie(&self, method: &Method, headers: &HeaderMap) -> bool {
        !self.is_foreign(headers) && (method.is_safe() || !is_silent_browser(headers))
    }

    /// Whether a browser sent it for a page that was not loaded from here, and that is not listed.
    pub(crate) fn is_foreign(&self, headers: &HeaderMap) -> bool {
        let origin = text(headers, header::ORIGIN);
        if let Some(origin) = &origin {
            if self.lists(origin) {
                return false;
            }
            // A page of one's own has the name that it calls; `null` has none.
            let own = origin.split_once("://").map(|(_, host)| host);
            if own != text(headers, header::HOST).as_deref() {
                return true;
            }
        }
        text(headers, "sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none")
    }

    /// Whether an origin is listed.
    pub(crate) fn lists(&self, origin: &str) -> bool {
        self.origins.iter().any(|listed| listed.eq_ignore_ascii_case(origin))
    }

    /// Whether a name with its port is listed, an address, or a name of this machine (RFC 6761). Other names without
    /// a dot, and those below `local` and `internal`, resolve as the network of the operator's browser says.
    fn has_host(&self, host: &str) -> bool {
        let name = without_port(host).trim_end_matches('.');
        if self.hosts.iter().any(|listed| listed == name || listed == host) {
            return true;
        }
        if name.starts_with('[') || name.parse::<std::net::Ipv4Addr>().is_ok() {
            return true;
        }
        name.is_empty() || name == "localhost" || name.ends_with(".localhost")
    }
}

/// Whether a browser sent it and says nothing of the page. Over plain HTTP to another machine browsers do not say it
/// of a GET. Pages cannot change the name that a browser gives itself.
fn is_silent_browser(headers: &HeaderMap) -> bool {
    let says_nothing = !headers.contains_key("sec-fetch-site") && !headers.contains_key(header::ORIGIN);
    says_nothing && text(headers, header::USER_AGENT).is_some_and(|agent| agent.starts_with("mozilla/"))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // The colons of an IPv6 address stand in brackets.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> HeaderMap {
        let pairs = text.split(", ").filter_map(|pair| pair.split_once(": "));
        pairs.map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value"))).collect()
    }

    fn trusted() -> Trusted {
        Trusted { hosts: vec!["gate.example.com".into()], origins: vec!["https://dash.example.com".into()] }
    }

    #[test]
    fn calls_of_strangers_are_known() {
        let check = |given: &str, holds: bool| {
            assert_eq!(trusted().check(&fields(given)).is_ok(), holds, "{given}");
        };
        for host in [
            "127.0.0.1:9180",
            "localhost",
            "LOCALHOST:1",
            "localhost.",
            "a.localhost",
            "[::1]:9180",
            "10.0.0.1",
            "gate.example.com:9180",
            "Gate.Example.com.",
            "",
        ] {
            check(&format!("host: {host}"), true);
        }
        for host in [
            "evil.com",
            "evil.com:9180",
            "127.0.0.1.evil.com",
            "x.gate.example.com",
            "1.2.3",
            "localhost.evil",
            "evillocalhost",
            "gate1:9180",
            "gate.local",
            "sigma.internal",
        ] {
            check(&format!("host: {host}"), false);
        }
        check("x-api-key: k", true);
        check("host: 10.0.0.1:1, origin: http://10.0.0.1:1", true);
        check("host: 10.0.0.1:1, origin: http://10.0.0.1:1", true);
        check("host: 10.0.0.1:1, origin: http://b:1", false);
        check("host: 10.0.0.1:1, origin: http://10.0.0.1:2", false);
        check("host: 10.0.0.1:1, origin: null", false);
        check("host: 10.0.0.1:1, origin: https://dash.example.com", true);
        check("host: 10.0.0.1:1, origin: https://dash.example.com, sec-fetch-site: cross-site", true);
        check("host: 10.0.0.1:1, origin: https://dash.example.com.evil", false);
        check("host: 10.0.0.1:1, sec-fetch-site: cross-site", false);
        check("host: 10.0.0.1:1, sec-fetch-site: same-site", false);
        check("host: 10.0.0.1:1, sec-fetch-site: same-origin", true);
        check("host: 10.0.0.1:1, sec-fetch-site: none", true);
    }

    #[test]
    fn cookie_counts_for_pages_of_the_operator() {
        let check = |method: Method, given: &str, holds: bool| {
            let got = trusted().takes_cookie(&method, &fields(given));
            assert_eq!(got, holds, "{method} {given}");
        };
        check(Method::PUT, "host: 10.0.0.1, user-agent: curl/8.0", true);
        check(Method::PUT, "host: 10.0.0.1, user-agent: Mozilla/5.0, origin: http://10.0.0.1", true);
        check(Method::PUT, "host: 10.0.0.1, user-agent: Mozilla/5.0, sec-fetch-site: same-origin", true);
        check(Method::PUT, "host: 10.0.0.1, user-agent: Mozilla/5.0", false);
        check(Method::PUT, "host: 10.0.0.1, user-agent: Mozilla/5.0, origin: http://evil", false);
        check(Method::GET, "host: 10.0.0.1, user-agent: Mozilla/5.0", true);
    }

    #[test]
    fn a_browser_changes_nothing_by_get() {
        let check = |method: Method, given: &str, holds: bool| {
            let got = trusted().check_any_method(&method, &fields(given));
            assert_eq!(got.is_ok(), holds, "{method} {given}");
        };
        check(Method::GET, "host: 10.0.0.1, user-agent: Mozilla/5.0 (X11)", false);
        check(Method::GET, "host: 10.0.0.1, user-agent: Mozilla/5.0 (X11), sec-fetch-site: none", true);
        check(Method::GET, "host: 10.0.0.1, user-agent: curl/8.0", true);
        check(Method::GET, "host: 10.0.0.1", true);
        check(Method::POST, "host: 10.0.0.1, user-agent: Mozilla/5.0 (X11)", true);
        check(Method::POST, "host: 10.0.0.1, user-agent: Mozilla/5.0, origin: http://evil", false);
    }
}
