//! The gateway's identity for a provider.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use sigma_plugin::system::{Host, System};
use sigma_schema::Confidential;

use super::client_config::AuthMethod;
use super::dpop::Dpop;
use super::random::unguessable;
use crate::shared::form::{Form, escaped};
use crate::shared::tokens::{Address, SigningKey, WebRequest};

/// The type of an assertion (RFC 7523 §2.2).
const ASSERTION: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// The gateway's identity for an endpoint.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) id: String,
    pub(super) secret: Option<Confidential>,
    pub(super) method: AuthMethod,
    /// For the methods that sign.
    pub(super) assertion: Option<Arc<Assertion>>,
    /// The key to which the provider binds tokens.
    pub(super) dpop: Option<Arc<Dpop>>,
}

/// How the gateway signs who it is (RFC 7523 §3).
pub(super) struct Assertion {
    pub(super) key: SigningKey,
    /// The provider's id of the key.
    pub(super) key_id: Option<String>,
    /// The audience; the endpoint itself, if it is not set.
    pub(super) audience: Option<String>,
    /// Seconds that it is good for.
    pub(super) lives_s: u64,
}

impl Assertion {
    fn token(&self, client: &str, endpoint: &Address) -> Result<String, String> {
        let now = Host.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let claims = json!({
            "iss": client, "sub": client, "aud": self.audience.as_deref().unwrap_or(endpoint.as_str()),
            "jti": unguessable(&Host)?, "iat": now, "exp": now.saturating_add(self.lives_s),
        });
        let header = match &self.key_id {
            Some(id) => json!({"typ": "JWT", "kid": id}),
            None => json!({"typ": "JWT"}),
        };
        self.key.token(header, &claims)
    }
}

impl Client {
    /// A form with these pairs for an endpoint, with who the gateway is.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if it cannot be signed.
    pub(super) fn web_request(
        &self,
        endpoint: &Address,
        pairs: &[(&str, &str)],
    ) -> Result<WebRequest, String> {
        let secret = self.secret.as_ref().map(Confidential::reveal);
        let mut form = pairs.iter().fold(Form::default(), |form, (name, value)| form.with(name, value));
        let mut fields = Vec::new();
        let mut is_named = pairs.iter().any(|(name, _)| *name == "client_id");
        match (self.method, secret, &self.assertion) {
            (AuthMethod::ClientSecretBasic, Some(secret), _) => {
                // Each of them as in a form (RFC 6749 §2.3.1).
                let [id, secret] = [&*self.id, secret].map(|text| escaped(text.as_bytes()));
                let login = STANDARD.encode(format!("{id}:{secret}"));
                fields.push(("Authorization".to_owned(), format!("Basic {login}").into_bytes()));
                is_named = true;
            }
            (AuthMethod::ClientSecretPost, Some(secret), _) => form = form.with("client_secret", secret),
            (AuthMethod::PrivateKeyJwt | AuthMethod::ClientSecretJwt, _, assertion) => {
                let assertion =
                    assertion.as_ref().ok_or("the gateway has no key for client authentication")?;
                form = form
                    .with("client_assertion_type", ASSERTION)
                    .with("client_assertion", assertion.token(&self.id, endpoint)?);
            }
            (_, None, _) => {}
        }
        if !is_named {
            form = form.with("client_id", &self.id);
        }
        Ok(WebRequest { form: Some(form.text()), fields })
    }
}
