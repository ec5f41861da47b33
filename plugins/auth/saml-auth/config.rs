//! The configuration of a provider of SAML.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_plugin::Configuration;
use sigma_plugin::outbound::Service;
use sigma_schema::Confidential;
use sigma_schema::Problem;

use super::keys::{OwnKey, ProviderKeys};
use crate::shared::pages::{PagePath, STOLEN_LOGIN};
use sigma_plugin_kit::service::cleartext;

/// Logs users in at a SAML 2.0 provider.
///
/// A browser without a session is redirected to `idp_uri` with a signed request, and returns to `login_callback_uri`
/// with a response, by a redirect or by a form. Its assertion must be signed with one of the keys of `idp_cert`, and be
/// valid for this gateway, this login and this time. It is accepted once. Then the browser returns to the requested
/// page; a posted body is lost. A login must be completed within ten minutes.
///
/// Accepted signatures are RSA of 2048 bits or more with SHA-256, SHA-384 or SHA-512, and ECDSA with P-256 and SHA-256
/// or P-384 and SHA-384. They sign the response or the assertion by its ID, with exclusive canonicalization, or the
/// query of a redirect. Encrypted assertions, SHA-1, and messages with comments or declarations are refused.
///
/// The session is in the cookie `saml_session`, encrypted with `secret`: all gateways with the same configuration
/// accept it. It ends 900 s after its last request (recorded once a minute), a day after the login, or at the time
/// that the provider sets. It also ends at `logout_uri` and by a logout at the provider. The node does not get the
/// cookie. For `acl` the user is an external user with its attributes in `attrs`.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Config {
    /// The name of the gateway at the provider (entity ID).
    #[schemars(length(min = 1))]
    pub(super) sp_issuer: String,
    /// The URL at the provider to which browsers are sent, to log in and out; without a query.
    pub(super) idp_uri: ProviderUrl,
    /// The name of the provider (entity ID). Default: every message signed with a key of `idp_cert` counts as the
    /// provider's.
    #[schemars(length(min = 1))]
    pub(super) idp_issuer: Option<String>,
    /// The certificate with the provider's signing key, PEM; several during a key rotation. Keys in messages and the
    /// expiry of the certificate are ignored.
    pub(super) idp_cert: String,
    /// The certificate of `sp_private_key` that is registered at the provider, PEM.
    pub(super) sp_cert: String,
    /// The RSA key that signs requests, with SHA-512; PEM.
    pub(super) sp_private_key: Confidential,
    /// Return address of browsers with the provider's response: a path on this route, or a whole URL.
    pub(super) login_callback_uri: Callback,
    /// The path that ends a session.
    pub(super) logout_uri: PagePath,
    /// The path for the provider's logout messages: browsers return to it after a logout, and the provider ends
    /// sessions there.
    pub(super) logout_callback_uri: PagePath,
    /// Redirect target after a logout.
    #[schemars(length(min = 1))]
    pub(super) logout_redirect_uri: String,
    /// Binding of the provider's response. A form (`HTTP-POST`) needs a cookie that browsers also send from other
    /// sites, and therefore TLS.
    #[schemars(extend("default" = "HTTP-Redirect"))]
    pub(super) auth_protocol_binding_method: Binding,
    /// Secret that encrypts sessions.
    #[schemars(length(min = 8, max = 32))]
    pub(super) secret: Confidential,
    /// Former values of `secret`; their sessions stay valid.
    #[serde(default)]
    #[schemars(inner(length(min = 8, max = 32)))]
    #[schemars(extend("own_default" = true))]
    pub(super) secret_fallbacks: Vec<Confidential>,
}

/// The SAML binding of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub(super) enum Binding {
    /// In the query of a redirect.
    #[serde(rename = "HTTP-Redirect")]
    Redirect,
    /// In a form.
    #[serde(rename = "HTTP-POST")]
    Post,
}

impl Binding {
    /// Its name in messages.
    pub(super) fn urn(self) -> &'static str {
        match self {
            Binding::Redirect => "urn:oasis:names:tc:SAML:2.0:bindings:HTTP-Redirect",
            Binding::Post => "urn:oasis:names:tc:SAML:2.0:bindings:HTTP-POST",
        }
    }
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        let paths = [
            ("login_callback_uri", &self.login_callback_uri.path),
            ("logout_uri", &self.logout_uri.0),
            ("logout_callback_uri", &self.logout_callback_uri.0),
        ];
        for (at, (name, path)) in paths.iter().enumerate() {
            if let Some((other, _)) = paths[..at].iter().find(|(_, other)| other == path) {
                return Err(format!("`{name}` and `{other}` have the same path: give each its own path"));
            }
        }
        if !self.logout_redirect_uri.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("`logout_redirect_uri` has unencoded characters".to_owned());
        }
        let names = [Some(&self.sp_issuer), self.idp_issuer.as_ref()];
        if names.into_iter().flatten().any(|name| name.chars().any(char::is_control)) {
            return Err("`sp_issuer` and `idp_issuer` may not contain control characters".to_owned());
        }
        self.keys().map(drop)
    }
}

impl Config {
    /// The keys of both sides.
    ///
    /// # Errors
    /// Returns an error, which names the field, if one of them cannot be used.
    pub(super) fn keys(&self) -> Result<(ProviderKeys, OwnKey), String> {
        let provider = ProviderKeys::of_pem(&self.idp_cert).map_err(|fault| format!("idp_cert: {fault}"))?;
        Ok((provider, OwnKey::of_pem(self.sp_private_key.reveal(), &self.sp_cert)?))
    }
}

/// The URL of the provider.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub(super) struct ProviderUrl(#[schemars(skip)] pub(super) String);

impl TryFrom<String> for ProviderUrl {
    type Error = String;

    fn try_from(text: String) -> Result<ProviderUrl, String> {
        let service = Service::parse(&text)?;
        if service.target.contains('?') || text.contains('#') {
            return Err(format!("`{text}` has a query: write the URL without it"));
        }
        Ok(ProviderUrl(text))
    }
}

/// Return address of browsers.
#[derive(Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub(super) struct Callback {
    /// Scheme and host, if a whole URL is configured.
    #[schemars(skip)]
    pub(super) origin: Option<String>,
    #[schemars(skip)]
    pub(super) path: String,
}

impl TryFrom<String> for Callback {
    type Error = String;

    fn try_from(text: String) -> Result<Callback, String> {
        if text.starts_with('/') {
            return Ok(Callback { origin: None, path: PagePath::try_from(text)?.0 });
        }
        Service::parse(&text)?;
        let authority = text.find("://").map_or(0, |at| at + 3);
        let at = text[authority..].find('/').map(|at| authority + at);
        let at = at.ok_or_else(|| format!("`{text}` has no path: browsers could not come back to it"))?;
        Ok(Callback {
            origin: Some(text[..at].to_owned()),
            path: PagePath::try_from(text[at..].to_owned())?.0,
        })
    }
}

/// The attributes of the plugin in `plugin_attr`.
#[derive(Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Attributes {
    /// Maximum bytes of a message of the provider, decoded and inflated. A response with a hundred groups has about
    /// 20,000.
    #[schemars(range(min = 4096, max = 4_194_304))]
    pub(super) message_bytes: usize,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes { message_bytes: 128 << 10 }
    }
}

pub(super) fn warnings(conf: &Value) -> Vec<Problem> {
    let mut found = Vec::from_iter(cleartext(conf, "idp_uri", STOLEN_LOGIN));
    const CALLBACK: &str = "login_callback_uri";
    let text = |field: &str| conf.get(field).and_then(Value::as_str).unwrap_or_default();
    if text("auth_protocol_binding_method") != "HTTP-POST" {
        found.extend(cleartext(conf, CALLBACK, STOLEN_LOGIN));
    } else if text(CALLBACK).starts_with("http://") {
        let message = "browsers send the login cookie over TLS only, so every login fails";
        found.push(Problem::new(CALLBACK, "cleartext", message).hint("use https"));
    }
    found
}
