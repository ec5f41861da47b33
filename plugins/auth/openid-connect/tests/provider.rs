//! A provider of OpenID Connect, as far as a relying party sees it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};
use sigma_plugin::variables::pairs;
use sigma_testkit::{Message, Origin};

use crate::shared::tokens::signing::{Signer, set_of};
use crate::shared::tokens::{Key, Token};

pub(super) struct Provider {
    pub(super) origin: Origin,
    inside: Arc<Mutex<Inside>>,
}

/// The provider's state, and its behaviour in a test.
pub(super) struct Inside {
    pub(super) signer: Signer,
    /// Codes that can be exchanged, once.
    codes: HashMap<String, Grant>,
    next_code: u64,
    /// Members of the document that are not as they should be.
    pub(super) document: Map<String, Value>,
    /// Whole ID tokens instead of its own.
    pub(super) id_token: Option<String>,
    /// Its data about users.
    pub(super) user: Value,
    /// Its introspection responses.
    pub(super) introspection: Value,
    /// Members of responses of the token endpoint.
    pub(super) tokens: Map<String, Value>,
    /// The key with which its client says who it is, for whom, and since when.
    pub(super) client_key: Option<Key>,
    /// The values that it accepts once: assertions and proofs.
    seen: HashSet<String>,
    /// Questions that were left before a browser came with them.
    pushed: HashMap<String, String>,
    /// The key that proves who requests tokens, and the nonce that must stand in proofs.
    pub(super) dpop: Option<(Key, Value, Option<String>)>,
    /// Whether refresh tokens are refused.
    pub(super) refuses_refresh: bool,
    /// Paths that were requested, with their forms.
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
            client_key: None,
            seen: HashSet::new(),
            pushed: HashMap::new(),
            dpop: None,
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

    /// How often a path was requested.
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

    /// Lets a user agree to the request that a browser brings. Where the browser is sent back to: path and
    /// query.
    pub(super) fn agree(&self, location: &str, more: Value) -> String {
        let (at, query) = location.split_once('?').unwrap();
        assert_eq!(at, format!("{}/login", self.issuer()));
        let mut asked = arguments(query);
        if let Some(uri) = asked.get("request_uri") {
            assert_eq!(asked.keys().filter(|name| *name != "client_id").collect::<Vec<_>>(), ["request_uri"]);
            let pushed = self.with(|inside| inside.pushed.remove(uri)).expect("it is used once");
            asked = arguments(&pushed);
        }
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
                    "pushed_authorization_request_endpoint": at("/par"),
                });
                document.as_object_mut().unwrap().extend(self.document.clone());
                document.as_object_mut().unwrap().retain(|_, value| !value.is_null());
                answer(200, &document)
            }
            "/keys" => {
                let set = set_of(&[&self.signer.jwk]);
                answer(200, &serde_json::from_str(&set).unwrap())
            }
            "/user" => {
                let credential = message.head.get("authorization").unwrap_or_default();
                match (credential.split_once(' '), &self.dpop) {
                    (Some(("Bearer", token)), None) if token.starts_with("access-") => {
                        answer(200, &self.user)
                    }
                    (Some(("DPoP", token)), Some(_)) if token.starts_with("access-") => {
                        let token = token.to_owned();
                        let url = format!("{issuer}/user");
                        self.prove(message, "GET", &url, Some(&token))
                            .unwrap_or_else(|| answer(200, &self.user))
                    }
                    _ => answer(401, &json!({})),
                }
            }
            _ if !self.is_client(message, &format!("{issuer}{target}")) => {
                answer(401, &json!({"error": "invalid_client"}))
            }
            "/token" if self.dpop.is_some() => {
                let unproven = self.prove(message, "POST", &format!("{issuer}/token"), None);
                unproven.unwrap_or_else(|| self.give(&form))
            }
            "/token" => self.give(&form),
            "/par" => {
                let uri = format!("urn:ietf:params:oauth:request_uri:{}", self.asked.len());
                self.pushed.insert(uri.clone(), body);
                answer(201, &json!({"request_uri": uri, "expires_in": 60}))
            }
            "/introspect" => answer(200, &self.introspection),
            "/revoke" => answer(200, &json!({})),
            _ => answer(404, &json!({})),
        }
    }

    /// Whether it is the client: by an assertion where it has a key, else by its secret.
    fn is_client(&mut self, message: &Message, endpoint: &str) -> bool {
        let Some(key) = &self.client_key else { return knows_secret(message) };
        let form = arguments(&message.text());
        let Some(assertion) = form.get("client_assertion") else { return false };
        let token = Token::parse(assertion.clone().into_bytes()).unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let (made, ends) = (token.claims["iat"].as_u64().unwrap(), token.claims["exp"].as_u64().unwrap());
        assert!(
            (made, ends) == (now, now + 60) || ends - made == 60 && now - made < 60,
            "{:?}",
            token.claims
        );
        let is_first = self.seen.insert(token.text_claim("jti").unwrap().to_owned());
        let says = |name: &str, value: &str| token.text_claim(name) == Some(value);
        key.verify(&token).is_ok()
            && is_first
            && form["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            && form["client_id"] == "shop"
            && !form.contains_key("client_secret")
            && message.head.get("authorization").is_none()
            && says("iss", "shop")
            && says("sub", "shop")
            && (says("aud", endpoint) || says("aud", "the audience"))
    }

    /// The response where it is not proven who asks (RFC 9449 §4.3).
    fn prove(&mut self, message: &Message, method: &str, url: &str, access: Option<&str>) -> Option<Vec<u8>> {
        let (key, jwk, nonce) = self.dpop.as_ref().unwrap();
        let refused = Some(answer(400, &json!({"error": "invalid_dpop_proof"})));
        let Some(proof) = message.head.get("dpop") else { return refused };
        let token = Token::parse(proof.as_bytes().to_vec()).unwrap();
        let hash = access.map(|access| URL_SAFE_NO_PAD.encode(digest(&SHA256, access.as_bytes())));
        let is_good = key.verify(&token).is_ok()
            && token.header["typ"] == "dpop+jwt"
            && token.header["jwk"] == *jwk
            && token.text_claim("htm") == Some(method)
            && token.text_claim("htu") == Some(url)
            && token.text_claim("ath") == hash.as_deref()
            && self.seen.insert(token.text_claim("jti").unwrap().to_owned());
        if !is_good {
            return refused;
        }
        let nonce = nonce.as_deref().filter(|nonce| token.text_claim("nonce") != Some(nonce))?;
        let (status, body) = match access {
            None => (400, json!({"error": "use_dpop_nonce"}).to_string()),
            Some(_) => (401, String::new()),
        };
        let length = body.len();
        Some(
            format!("HTTP/1.1 {status} X\r\nDPoP-Nonce: {nonce}\r\nContent-Length: {length}\r\n\r\n{body}")
                .into_bytes(),
        )
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
fn knows_secret(message: &Message) -> bool {
    let form = arguments(&message.text());
    let by_form = form.get("client_secret").is_some_and(|secret| secret == "the client's: secret");
    let basic = message.head.get("authorization").and_then(|value| value.strip_prefix("Basic "));
    let basic = basic.map(|value| String::from_utf8(STANDARD.decode(value).unwrap()).unwrap());
    by_form || basic.as_deref() == Some("shop:the%20client%27s%3A%20secret")
}
