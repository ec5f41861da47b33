//! A provider of OpenID Connect, as far as a relying party sees it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};
use sigma_plugin::variables::pairs;
use sigma_testkit::{Message, Origin};

use crate::auth::tokens::signing::{Signer, set_of};

pub(super) struct Provider {
    pub(super) origin: Origin,
    inside: Arc<Mutex<Inside>>,
}

/// What the provider knows, and what a test has it do.
pub(super) struct Inside {
    pub(super) signer: Signer,
    /// Codes that can be exchanged, once.
    codes: HashMap<String, Grant>,
    next_code: u64,
    /// Members of the document that are not as they should be.
    pub(super) document: Map<String, Value>,
    /// Whole ID tokens in place of its own.
    pub(super) id_token: Option<String>,
    /// What it says of users.
    pub(super) user: Value,
    /// What it says of tokens that it is asked about.
    pub(super) introspection: Value,
    /// Members of answers of the token endpoint.
    pub(super) tokens: Map<String, Value>,
    /// Whether refresh tokens are refused.
    pub(super) refuses_refresh: bool,
    /// Paths that were asked for, with their forms.
    pub(super) asked: Vec<String>,
}

struct Grant {
    redirect_uri: String,
    challenge: Option<String>,
    claims: Value,
}

/// The arguments of a form or query.
pub(super) fn arguments(text: &str) -> HashMap<String, String> {
    let text = text.replace('+', "%20");
    let owned = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    pairs(text.as_bytes()).map(|(name, value)| (owned(&name), owned(&value.unwrap_or_default()))).collect()
}

fn answer(status: u16, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

impl Provider {
    pub(super) fn new() -> Provider {
        let inside = Arc::new(Mutex::new(Inside {
            signer: Signer::new("k", "ES256"),
            codes: HashMap::new(),
            next_code: 0,
            document: Map::new(),
            id_token: None,
            user: json!({"sub": "jack", "email": "jack@example"}),
            introspection: json!({"active": false}),
            tokens: Map::new(),
            refuses_refresh: false,
            asked: Vec::new(),
        }));
        let shared = Arc::clone(&inside);
        let origin = Origin::answer(move |message| shared.lock().unwrap().answer(message)).unwrap();
        Provider { origin, inside }
    }

    pub(super) fn issuer(&self) -> String {
        format!("http://127.0.0.1:{}/realm", self.origin.port())
    }

    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Inside) -> R) -> R {
        change(&mut self.inside.lock().unwrap())
    }

    /// How often a path was asked for.
    pub(super) fn count(&self, path: &str) -> usize {
        self.with(|inside| inside.asked.iter().filter(|asked| asked.starts_with(path)).count())
    }

    /// The claims of a good token, and others.
    pub(super) fn claims(&self, more: &Value) -> Value {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let mut claims =
            json!({"iss": self.issuer(), "aud": "shop", "sub": "jack", "iat": now, "exp": now + 600});
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        claims
    }

    /// A token with these claims.
    pub(super) fn token(&self, more: &Value) -> String {
        let claims = self.claims(more);
        self.with(|inside| inside.signer.token(&claims))
    }

    /// A user agrees to what a browser was sent with. Where the browser is sent back to: path and query.
    pub(super) fn agree(&self, location: &str, more: Value) -> String {
        let (at, query) = location.split_once('?').unwrap();
        assert_eq!(at, format!("{}/login", self.issuer()));
        let asked = arguments(query);
        assert_eq!((&*asked["client_id"], &*asked["response_type"]), ("shop", "code"));
        let mut claims = self.claims(&json!({"nonce": asked.get("nonce")}));
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let redirect_uri = asked["redirect_uri"].clone();
        let path = redirect_uri.splitn(4, '/').nth(3).unwrap().to_owned();
        let challenge = asked.get("code_challenge").cloned();
        let code = self.with(|inside| {
            inside.next_code += 1;
            let code = format!("code-{}", inside.next_code);
            inside.codes.insert(code.clone(), Grant { redirect_uri, challenge, claims });
            code
        });
        format!("/{path}?code={code}&state={}", asked["state"])
    }
}

impl Inside {
    fn answer(&mut self, message: &Message) -> Vec<u8> {
        let (_, target) = message.head.request_line().unwrap();
        let (body, target) = (message.text(), target.strip_prefix("/realm").unwrap_or(target).to_owned());
        self.asked.push(format!("{target} {body}"));
        let form = arguments(&body);
        let issuer = format!("http://{}/realm", message.head.get("host").unwrap());
        match &*target {
            "/.well-known/openid-configuration" => {
                let at = |path: &str| format!("{issuer}{path}");
                let mut document = json!({
                    "issuer": issuer, "authorization_endpoint": at("/login"), "token_endpoint": at("/token"),
                    "jwks_uri": at("/keys"), "userinfo_endpoint": at("/user"),
                    "introspection_endpoint": at("/introspect"), "end_session_endpoint": at("/end"),
                    "revocation_endpoint": at("/revoke"),
                });
                document.as_object_mut().unwrap().extend(self.document.clone());
                document.as_object_mut().unwrap().retain(|_, value| !value.is_null());
                answer(200, &document)
            }
            "/keys" => {
                let set = set_of(&[&self.signer.jwk]);
                answer(200, &serde_json::from_str(&set).unwrap())
            }
            "/user" => match message.head.get("authorization") {
                Some(token) if token.starts_with("Bearer access-") => answer(200, &self.user),
                _ => answer(401, &json!({})),
            },
            _ if !is_client(message) => answer(401, &json!({"error": "invalid_client"})),
            "/token" => self.give(&form),
            "/introspect" => answer(200, &self.introspection),
            "/revoke" => answer(200, &json!({})),
            _ => answer(404, &json!({})),
        }
    }

    fn give(&mut self, form: &HashMap<String, String>) -> Vec<u8> {
        let mut given = json!({"access_token": format!("access-{}", self.asked.len()), "token_type": "Bearer",
            "refresh_token": format!("refresh-{}", self.asked.len())});
        match &*form["grant_type"] {
            "authorization_code" => {
                let proves = |challenge: &String, verifier: &String| {
                    *challenge == URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()))
                };
                let grant = self.codes.remove(&form["code"]).filter(|grant| {
                    let proven = match (&grant.challenge, form.get("code_verifier")) {
                        (None, None) => true,
                        (Some(challenge), Some(verifier)) => proves(challenge, verifier),
                        _ => false,
                    };
                    grant.redirect_uri == form["redirect_uri"] && proven
                });
                let Some(grant) = grant else { return answer(400, &json!({"error": "invalid_grant"})) };
                let own = self.signer.token(&grant.claims);
                given["id_token"] = json!(self.id_token.clone().unwrap_or(own));
            }
            "refresh_token" if !self.refuses_refresh => {}
            _ => return answer(400, &json!({"error": "invalid_grant"})),
        }
        given.as_object_mut().unwrap().extend(self.tokens.clone());
        given.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        answer(200, &given)
    }
}

/// Whether it is the client, by Basic credentials that are encoded as RFC 6749 §2.3.1 says, or by the form.
fn is_client(message: &Message) -> bool {
    let form = arguments(&message.text());
    let by_form = form.get("client_secret").is_some_and(|secret| secret == "the client's: secret");
    let basic = message.head.get("authorization").and_then(|value| value.strip_prefix("Basic "));
    let basic = basic.map(|value| String::from_utf8(STANDARD.decode(value).unwrap()).unwrap());
    by_form || basic.as_deref() == Some("shop:the%20client%27s%3A%20secret")
}
