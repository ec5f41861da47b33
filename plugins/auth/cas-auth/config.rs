//! The configuration of a CAS server.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::Configuration;
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::outbound::Service;
use sigma_schema::Confidential;
use sigma_schema::Problem;

use crate::shared::pages::{PagePath, STOLEN_LOGIN};
use sigma_plugin_kit::service::cleartext;

/// The name of the server among the plugin's upstreams.
pub(super) const SERVER: &str = "server";

/// Timeout in milliseconds for the server's response.
pub(super) const TIMEOUT_MS: u64 = 10_000;

/// Logs users in at a CAS server (protocol 2 and 3).
///
/// A browser without a session is redirected to the server, and returns to `cas_callback_uri` with a ticket, which the
/// gateway verifies at the server within 10 s. Then the browser is redirected to the requested page. A session ends an
/// hour after its last request, at `logout_uri`, and by a POST of the server to the callback (single logout). Sessions
/// are in the memory of one gateway: several gateways need a load balancer with sticky sessions. The node does not get
/// the user.
///
/// **With a path as `cas_callback_uri` the service URL has the host of the request's `Host`. A client that chooses
/// `Host` can use a ticket of another service**: write the whole URL, or set `hosts` of the route.
///
/// A ticket names no browser. A page of another site can therefore log a user in under another account (login CSRF), as
/// everywhere with this protocol.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Config {
    /// The URL of the server.
    pub(super) idp_uri: ServerUrl,
    /// Return address of browsers: a path on this route, or a whole URL.
    pub(super) cas_callback_uri: Callback,
    /// The path that ends a session.
    pub(super) logout_uri: PagePath,
    /// The cookies.
    pub(super) cookie: Cookie,
    /// Largest body in bytes of a POST from the server.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    pub(super) max_req_body_size: usize,
}

/// The cookies of the gateway.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Cookie {
    /// Secret that signs the return address of a browser.
    #[schemars(length(min = 32))]
    pub(super) secret: Confidential,
    /// `Secure` of the cookies: browsers send them over HTTPS only.
    #[schemars(extend("default" = true))]
    pub(super) secure: bool,
    /// `SameSite` of the cookies: whether browsers send them with requests from other sites.
    #[schemars(extend("default" = "Lax"))]
    pub(super) samesite: SameSite,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub(super) enum SameSite {
    Lax,
    None,
}

impl SameSite {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            SameSite::Lax => "Lax",
            SameSite::None => "None",
        }
    }
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        if self.cookie.samesite == SameSite::None && !self.cookie.secure {
            return Err(r#"cookie.secure must be true when cookie.samesite is "None""#.to_owned());
        }
        if self.logout_uri.0 == self.cas_callback_uri.path {
            return Err("`logout_uri` is the path of `cas_callback_uri`: every login would end in a logout"
                .to_owned());
        }
        Ok(())
    }
}

/// The URL of the server.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub(super) struct ServerUrl {
    #[schemars(skip)]
    pub(super) text: String,
    #[schemars(skip)]
    pub(super) service: Service,
}

impl TryFrom<String> for ServerUrl {
    type Error = String;

    fn try_from(text: String) -> Result<ServerUrl, String> {
        let service = Service::parse(&text)?;
        if service.target.contains('?') {
            return Err(format!("`{text}` has a query: write the URL without it"));
        }
        Ok(ServerUrl { text, service })
    }
}

impl ServerUrl {
    /// Returns the beginning of the URLs of its pages.
    pub(super) fn base(&self) -> &str {
        self.text.trim_end_matches('/')
    }
}

/// Return address of browsers.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub(super) struct Callback {
    /// The text of the configuration.
    #[schemars(skip)]
    pub(super) text: String,
    #[schemars(skip)]
    pub(super) path: String,
    #[schemars(skip)]
    pub(super) is_absolute: bool,
}

impl TryFrom<String> for Callback {
    type Error = String;

    fn try_from(text: String) -> Result<Callback, String> {
        if text.starts_with('/') {
            let PagePath(path) = PagePath::try_from(text.clone())?;
            return Ok(Callback { text, path, is_absolute: false });
        }
        let service = Service::parse(&text)?;
        let path = service.target.split('?').next().unwrap_or_default().to_owned();
        Ok(Callback { text, path, is_absolute: true })
    }
}

/// The attributes of the plugin in `plugin_attr`.
#[derive(Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Attributes {
    /// Maximum bytes of all sessions of the gateway; one takes about 200. Beyond that the least recently used
    /// sessions end.
    #[schemars(range(min = 65_536))]
    pub(super) session_bytes: usize,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes { session_bytes: 10 << 20 }
    }
}

/// The server as an upstream.
pub(super) fn upstream(conf: &Value) -> Option<InlineUpstream> {
    let config = Config::deserialize(conf).ok()?;
    Some(InlineUpstream {
        name: SERVER.to_owned(),
        upstream: config.idp_uri.service.upstream(true, TIMEOUT_MS),
    })
}

pub(super) fn warnings(conf: &Value) -> Vec<Problem> {
    let mut found = Vec::from_iter(cleartext(conf, "idp_uri", STOLEN_LOGIN));
    if conf.get("cas_callback_uri").and_then(Value::as_str).is_some_and(|uri| uri.starts_with('/')) {
        let message = "clients choose the host of the service that CAS validates";
        let hint = "write the whole URL, or set `hosts` of the route";
        found.push(Problem::new("cas_callback_uri", "open_host", message).hint(hint));
    }
    if conf.pointer("/cookie/secure") == Some(&Value::Bool(false)) {
        let message = "browsers send the session in cleartext as well";
        found.push(Problem::new("cookie.secure", "cleartext", message).hint("remove it"));
    }
    found
}
