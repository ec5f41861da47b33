//! The metadata of an OpenID provider (OpenID Connect Discovery 1.0).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use sigma_plugin::{Env, Node};

use super::source::{Ages, KeySource, SourceSettings, Sources};
use sigma_plugin_kit::fetched::{Document, Fetched, Turn};
use sigma_plugin_kit::registry::Registry;
use sigma_plugin_kit::web::{Address, Web, WebSettings, object_of};

/// The suffix of an issuer in the address of its document.
const SUFFIX: &str = "/.well-known/openid-configuration";

/// How long a provider's document is used.
const MAX_AGE: Duration = Duration::from_secs(86_400);

/// All that tells one provider from another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ProviderSettings {
    /// Where its document is; None if it is never asked.
    pub(crate) discovery: Option<Address>,
    /// Its issuer.
    pub(crate) issuer: String,
    /// How it is reached.
    pub(crate) web: WebSettings,
    /// How long its keys are used.
    pub(crate) keys: Ages,
}

/// A provider. Equal settings have one, which outlives the configurations.
pub(crate) struct Provider {
    settings: ProviderSettings,
    /// The way to it.
    pub(crate) web: Web,
    document: Fetched<Metadata>,
    sources: Arc<Sources>,
}

/// The document.
pub(crate) struct Metadata {
    /// Who it is.
    pub(crate) issuer: String,
    /// Its keys; None if it publishes none.
    pub(crate) keys: Option<Arc<KeySource>>,
    /// Where browsers log in.
    pub(crate) authorization_endpoint: Option<Address>,
    /// Where the question with which browsers are sent to log in is left before (RFC 9126).
    pub(crate) pushed_authorization_request_endpoint: Option<Address>,
    /// Where codes become tokens.
    pub(crate) token_endpoint: Option<Address>,
    /// The endpoint with the user of a token.
    pub(crate) userinfo_endpoint: Option<Address>,
    /// The endpoint of token introspection.
    pub(crate) introspection_endpoint: Option<Address>,
    /// Where tokens are given back.
    pub(crate) revocation_endpoint: Option<Address>,
    /// Where browsers log out.
    pub(crate) end_session_endpoint: Option<Address>,
}

/// The result of a look-up of the provider's metadata.
pub(crate) enum MetadataLookup {
    /// It does.
    Metadata(Arc<Metadata>),
    /// The document has to be fetched; then [`Provider::look`] is to be requested the last time.
    Waits(Pin<Box<dyn Future<Output = ()>>>),
    /// The provider cannot be reached, or has another issuer.
    Away,
}

/// The providers of the gateway.
type Providers = Registry<ProviderSettings, Provider>;

impl Document for Metadata {
    type Holder = Provider;

    const NAME: &'static str = "the document of an OpenID provider";

    fn cell(provider: &Provider) -> &Fetched<Metadata> {
        &provider.document
    }

    async fn fetch(provider: Arc<Provider>) -> Result<Metadata, String> {
        let address = provider.settings.discovery.as_ref().ok_or("`discovery` is not set")?;
        let text = provider.web.get(address).await?;
        let read = Metadata::parse(&text, &provider.settings, &provider.sources);
        read.map_err(|fault| format!("{address}: {fault}"))
    }
}

impl Metadata {
    fn parse(text: &[u8], settings: &ProviderSettings, sources: &Sources) -> Result<Metadata, String> {
        let document = object_of(text).ok_or("it is not a JSON object")?;
        let issuer = document.get("issuer").and_then(Value::as_str).ok_or("it has no `issuer`")?;
        // A document with another issuer is refused (OpenID Connect Discovery 1.0 §4.3). The slash at the end
        // is removed before the rest of the address is added (§4.1).
        if issuer.strip_suffix('/').unwrap_or(issuer)
            != settings.issuer.strip_suffix('/').unwrap_or(&settings.issuer)
        {
            let expected = &settings.issuer;
            return Err(format!(
                "its issuer is {issuer:?} and not {expected:?}; if that is right, set `issuer` to it"
            ));
        }
        let endpoint = |name: &str| -> Result<Option<Address>, String> {
            // Some providers list an endpoint that they do not have, with nothing behind it.
            let value = document.get(name).filter(|value| !value.is_null() && *value != "");
            let Some(value) = value else { return Ok(None) };
            let text = value.as_str().ok_or_else(|| format!("`{name}` is not a string"))?;
            let address = Address::try_from(text.to_owned()).map_err(|fault| format!("{name}: {fault}"))?;
            let is_encrypted = settings.discovery.as_ref().is_some_and(Address::is_encrypted);
            if is_encrypted && !address.is_encrypted() {
                return Err(format!("{name}: {text} is not https, although the document is"));
            }
            Ok(Some(address))
        };
        let keys = endpoint("jwks_uri")?.map(|address| {
            let (web, ages) = (settings.web.clone(), settings.keys.clone());
            sources.get(SourceSettings { address, web, ages }, KeySource::new)
        });
        Ok(Metadata {
            issuer: issuer.to_owned(),
            keys,
            authorization_endpoint: endpoint("authorization_endpoint")?,
            pushed_authorization_request_endpoint: endpoint("pushed_authorization_request_endpoint")?,
            token_endpoint: endpoint("token_endpoint")?,
            userinfo_endpoint: endpoint("userinfo_endpoint")?,
            introspection_endpoint: endpoint("introspection_endpoint")?,
            revocation_endpoint: endpoint("revocation_endpoint")?,
            end_session_endpoint: endpoint("end_session_endpoint")?,
        })
    }
}

/// The placeholder for the tenant of a token in the issuer of a provider with many.
const TENANT: &str = "{tenantid}";

impl Metadata {
    /// Whether a token with these claims is of this issuer. Of a provider with many tenants, whose document names
    /// `{tenantid}`, it is the issuer of the tenant in `tid`.
    pub(crate) fn has_issued(&self, claims: &Map<String, Value>) -> bool {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let Some(iss) = text("iss") else { return false };
        let Some((before, after)) = self.issuer.split_once(TENANT) else { return iss == self.issuer };
        let is_id =
            |tid: &&str| !tid.is_empty() && tid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        let tenant = iss.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        tenant.is_some_and(|tenant| text("tid").filter(is_id) == Some(tenant))
    }
}

impl Provider {
    /// The issuer whose document is at this address by the rules of OpenID; None if the address is no such one.
    pub(crate) fn issuer_of(discovery: &Address) -> Option<&str> {
        discovery.as_str().strip_suffix(SUFFIX)
    }

    /// The one provider with these settings. For instances to keep, not to be called per request.
    pub(crate) fn of(settings: ProviderSettings, node: &Node) -> Arc<Provider> {
        node.part(Providers::default).get(settings, |settings| Provider {
            web: Web::new(settings.web.clone()),
            document: Fetched::new(Ages { max_age: MAX_AGE, ..settings.keys.clone() }.rule()),
            settings,
            sources: node.part(Sources::default),
        })
    }

    /// Returns its metadata.
    pub(crate) fn look(self: &Arc<Self>, env: &Env<'_>, is_last: bool) -> MetadataLookup {
        if self.settings.discovery.is_none() {
            return MetadataLookup::Away;
        }
        let read = self.document.read();
        match Fetched::<Metadata>::turn(self, &read, read.value.is_some(), is_last, env) {
            Turn::Use => read.value.map_or(MetadataLookup::Away, MetadataLookup::Metadata),
            Turn::Wait(fetched) => MetadataLookup::Waits(fetched),
            Turn::Refuse => MetadataLookup::Away,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(discovery: &str) -> ProviderSettings {
        let discovery = Address::try_from(discovery.to_owned()).unwrap();
        ProviderSettings {
            issuer: Provider::issuer_of(&discovery).unwrap().to_owned(),
            discovery: Some(discovery),
            web: WebSettings::new(MAX_AGE, true),
            keys: Ages { max_age: MAX_AGE, stale_if_error: MAX_AGE, cooldown: MAX_AGE },
        }
    }

    #[test]
    fn a_document_is_of_the_issuer_that_was_asked_for() {
        let check = |document: Value, fault: &str| {
            let settings = settings("https://login.example/realms/a/.well-known/openid-configuration");
            let read = Metadata::parse(document.to_string().as_bytes(), &settings, &Sources::default());
            let told = read.err().unwrap_or_default();
            assert!(told.contains(fault) && told.is_empty() == fault.is_empty(), "{document}: {told}");
        };
        let issuer = "https://login.example/realms/a";
        check(json!({"issuer": issuer}), "");
        check(json!({"issuer": issuer, "jwks_uri": "https://keys.example/"}), "");
        check(json!({}), "it has no `issuer`");
        check(json!({"issuer": "https://login.example/realms/a/"}), "");
        for other in
            ["https://login.example/realms/a//", "https://LOGIN.example/realms/a", "https://evil", ""]
        {
            check(json!({"issuer": other}), "its issuer is");
        }
        check(json!({"issuer": issuer, "jwks_uri": "http://login.example/"}), "is not https");
        check(json!({"issuer": issuer, "jwks_uri": "file:///etc/passwd"}), "neither http nor https");
        check(json!({"issuer": issuer, "token_endpoint": ["https://login.example"]}), "is not a string");
        for nothing in [Value::Null, json!("")] {
            check(json!({"issuer": issuer, "userinfo_endpoint": nothing}), "");
        }
        check(json!([]), "it is not a JSON object");
    }

    /// Documents of providers, as they differ, and tokens of each.
    #[test]
    fn providers_name_issuers_in_their_own_ways() {
        let check = |discovery: &str, issuer: Option<&str>, document: &str, claims: Value, expected: bool| {
            let discovery = Address::try_from(discovery.to_owned()).unwrap();
            let issuer = issuer.or(Provider::issuer_of(&discovery)).unwrap().to_owned();
            let settings = ProviderSettings { issuer, ..settings(discovery.as_str()) };
            let read = Metadata::parse(document.as_bytes(), &settings, &Sources::default());
            let has_issued = read.is_ok_and(|read| read.has_issued(claims.as_object().unwrap()));
            assert_eq!(has_issued, expected, "{discovery} {claims}");
        };
        let iss = |iss: &str| json!({"iss": iss});
        // Auth0 and Authentik: a slash at the end, in the document and in tokens.
        let auth0 = "https://shop.eu.auth0.com/.well-known/openid-configuration";
        let document = r#"{"issuer": "https://shop.eu.auth0.com/",
            "authorization_endpoint": "https://shop.eu.auth0.com/authorize",
            "token_endpoint": "https://shop.eu.auth0.com/oauth/token",
            "jwks_uri": "https://shop.eu.auth0.com/.well-known/jwks.json",
            "end_session_endpoint": "https://shop.eu.auth0.com/oidc/logout"}"#;
        check(auth0, None, document, iss("https://shop.eu.auth0.com/"), true);
        check(auth0, None, document, iss("https://shop.eu.auth0.com"), false);
        check(auth0, None, document, iss("https://other.eu.auth0.com/"), false);
        let authentik = "https://auth.example/application/o/shop/.well-known/openid-configuration";
        let document = r#"{"issuer": "https://auth.example/application/o/shop/"}"#;
        check(authentik, None, document, iss("https://auth.example/application/o/shop/"), true);
        check(authentik, None, document, iss("https://auth.example/application/o/bank/"), false);
        // Keycloak, Okta, Google and Cognito: none.
        let keycloak = "https://kc.example/realms/shop/.well-known/openid-configuration";
        let document = r#"{"issuer": "https://kc.example/realms/shop", "tls_client_certificate_bound_access_tokens": true,
            "mtls_endpoint_aliases": {"token_endpoint": "https://kc.example/mtls"}}"#;
        check(keycloak, None, document, iss("https://kc.example/realms/shop"), true);
        check(keycloak, None, document, iss("https://kc.example/realms/shop/"), false);
        let okta = "https://dev-1.okta.com/oauth2/default/.well-known/openid-configuration";
        let document = r#"{"issuer": "https://dev-1.okta.com/oauth2/default"}"#;
        check(okta, None, document, iss("https://dev-1.okta.com/oauth2/default"), true);
        let google = "https://accounts.google.com/.well-known/openid-configuration";
        let document = r#"{"issuer": "https://accounts.google.com", "device_authorization_endpoint":
            "https://oauth2.googleapis.com/device/code"}"#;
        check(google, None, document, iss("https://accounts.google.com"), true);
        check(google, None, document, iss("accounts.google.com"), false);
        let cognito =
            "https://cognito-idp.eu-west-1.amazonaws.com/eu-west-1_Ab/.well-known/openid-configuration";
        let document = r#"{"issuer": "https://cognito-idp.eu-west-1.amazonaws.com/eu-west-1_Ab"}"#;
        check(cognito, None, document, iss("https://cognito-idp.eu-west-1.amazonaws.com/eu-west-1_Ab"), true);
        // Entra: one tenant, and many, which the operator has to say.
        let tenant = "11112222-3333-4444-5555-666677778888";
        let one = format!("https://login.microsoftonline.com/{tenant}/v2.0");
        let entra = format!("{one}/.well-known/openid-configuration");
        check(&entra, None, &json!({"issuer": one}).to_string(), iss(&one), true);
        let common = "https://login.microsoftonline.com/common/v2.0/.well-known/openid-configuration";
        let template = "https://login.microsoftonline.com/{tenantid}/v2.0";
        let document = json!({"issuer": template}).to_string();
        let of = |tid: &str| json!({"iss": one, "tid": tid});
        check(common, None, &document, of(tenant), false);
        check(common, Some(template), &document, of(tenant), true);
        check(common, Some(template), &document, of("99992222-3333-4444-5555-666677778888"), false);
        check(common, Some(template), &document, iss(&one), false);
        check(common, Some(template), &document, json!({"iss": template, "tid": "{tenantid}"}), false);
        let elsewhere = "https://login.microsoftonline.com/a/b/v2.0";
        check(common, Some(template), &document, json!({"iss": elsewhere, "tid": "a/b"}), false);
        check(
            common,
            Some(template),
            &document,
            json!({"iss": "https://login.microsoftonline.com//v2.0", "tid": ""}),
            false,
        );
    }
}
