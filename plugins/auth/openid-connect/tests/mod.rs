//! A provider, browsers, and those who attack them.

mod bearer;
mod login;
mod provider;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use sigma_plugin::{Entry, Phase, Reply};
use sigma_schema::plugins::PluginScope;

use self::provider::Provider;
use crate::shared::tokens::signing::{P256, RSA, Signer, p256_jwk};
use crate::testing::{Beside, Case, refusal, roster, warned};

/// A gateway with one route.
struct Gateway {
    beside: Arc<Beside>,
    entry: Entry,
}

impl Gateway {
    fn new(provider: &Provider, beside: &Arc<Beside>, more: Value) -> Gateway {
        let mut conf = json!({
            "discovery": format!("{}/.well-known/openid-configuration", provider.issuer()),
            "client_id": "shop", "client_secret": "the client's: secret", "timeout": 20,
            "session": {"secret": "a secret of the gateway"}, "jwk_cooldown": 600,
        });
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        conf.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        assert_eq!(refusal("openid-connect", &conf), "", "{conf}");
        let conf = Arc::new(conf);
        let resolved = Value::clone(&conf);
        let entry = roster().build("openid-connect", &conf, resolved, "r", &|_: &str| None, &beside.node);
        Gateway { beside: Arc::clone(beside), entry: entry.unwrap() }
    }
}

/// Somebody with cookies.
struct Browser {
    case: Case,
    cookies: BTreeMap<String, String>,
    /// The body of its next request.
    body: Vec<u8>,
    /// Attributes of the cookies that came last.
    attributes: Vec<String>,
}

/// The browser's view of a response.
#[derive(Debug)]
struct Seen {
    status: u16,
    location: String,
    body: String,
    challenge: String,
}

impl Browser {
    fn new(gateway: &Gateway) -> Browser {
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        case.node = Arc::clone(&gateway.beside.node);
        Browser { case, cookies: BTreeMap::new(), body: Vec::new(), attributes: Vec::new() }
    }

    /// A request for a path, with further fields. 0 if it forwards to the node.
    fn ask(&mut self, gateway: &Gateway, line: &str, fields: &str) -> Seen {
        let cookies: Vec<String> =
            self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let cookies = match cookies.is_empty() {
            true => String::new(),
            false => format!("Cookie: {}\n", cookies.join("; ")),
        };
        self.case.body = std::mem::take(&mut self.body);
        self.case.request(&format!("{line} HTTP/1.1\nHost: shop.example:8443\n{cookies}{fields}"));
        let reply = self.case.run(&gateway.entry, Phase::Rewrite);
        self.case.respond(200, "");
        self.case.header_filter(&gateway.entry);
        let of_node = self.case.ctx.response.headers.iter();
        let of_node: Vec<String> = of_node
            .filter(|(name, _)| name.eq_ignore_ascii_case(b"set-cookie"))
            .map(|(_, value)| String::from_utf8(value.to_vec()).unwrap())
            .collect();
        let reply = reply.unwrap_or_default();
        self.keep(&reply, of_node);
        let field = |name: &str| crate::testing::field(&reply, name).unwrap_or_default();
        Seen {
            status: reply.status,
            location: field("location"),
            challenge: field("www-authenticate"),
            body: reply
                .body
                .as_deref()
                .map(|body| String::from_utf8_lossy(body).into_owned())
                .unwrap_or_default(),
        }
    }

    fn get(&mut self, gateway: &Gateway, target: &str) -> Seen {
        self.ask(gateway, &format!("GET {target}"), "")
    }

    fn keep(&mut self, reply: &Reply, of_node: Vec<String>) {
        let own = reply.headers.iter().filter(|(name, _)| name == "Set-Cookie");
        let own = own.map(|(_, value)| String::from_utf8(value.clone()).unwrap());
        let lines: Vec<String> = own.chain(of_node).collect();
        for line in &lines {
            let (pair, attributes) = line.split_once(';').unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            match attributes.contains("Max-Age=0") {
                true => self.cookies.remove(name),
                false => self.cookies.insert(name.to_owned(), value.to_owned()),
            };
        }
        self.attributes = lines.iter().map(|line| line.split_once(';').unwrap().1.to_owned()).collect();
    }

    /// Logs in as this user; returns the gateway's response at the callback.
    fn log_in(&mut self, gateway: &Gateway, provider: &Provider, target: &str, claims: Value) -> Seen {
        let sent = self.get(gateway, target);
        assert_eq!(sent.status, 302, "{sent:?}");
        let back = provider.agree(&sent.location, claims);
        self.get(gateway, &back)
    }

    /// A field of the request as the node got it.
    fn told(&self, name: &str) -> Option<String> {
        self.case.sent(name)
    }

    /// The same, JSON in Base64.
    fn told_json(&self, name: &str) -> Value {
        use base64::Engine;
        let text = self.told(name).unwrap_or_else(|| panic!("the node does not get {name}"));
        serde_json::from_slice(&base64::engine::general_purpose::STANDARD.decode(text).unwrap()).unwrap()
    }
}

fn conf(more: Value) -> Value {
    let mut conf = json!({
        "discovery": "https://login.example/.well-known/openid-configuration",
        "client_id": "shop", "client_secret": "secret", "session": {"secret": "0123456789abcdef"},
    });
    conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    conf.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    conf
}

#[test]
fn bad_configurations_are_refused() {
    let check = |more: Value, expected: &str| {
        let told = refusal("openid-connect", &conf(more.clone()));
        assert!(told.contains(expected) && told.is_empty() == expected.is_empty(), "{more}: {told}");
    };
    check(json!({}), "");
    check(json!({"client_id": null}), "property \"client_id\" is required");
    check(json!({"discovery": null}), "property \"discovery\" is required");
    check(json!({"session": null}), "property \"session.secret\" is required when \"bearer_only\" is false");
    check(json!({"session": null, "bearer_only": true}), "");
    check(json!({"session": {}}), "property \"secret\" is required");
    check(json!({"session": {"secret": "short"}}), "string too short, expected at least 16, got 5");
    check(json!({"client_secret": null}), "property \"client_secret\" is required");
    check(json!({"client_secret": null, "use_pkce": true}), "");
    check(json!({"client_secret": null, "use_jwks": true}), "property \"client_secret\" is required");
    check(json!({"client_secret": null, "use_jwks": true, "bearer_only": true, "session": null}), "");
    check(json!({"client_secret": null, "bearer_only": true}), "property \"client_secret\" is required");
    check(json!({"discovery": "https://login.example/"}), "so that the issuer is unknown; set `issuer`");
    check(json!({"discovery": "https://login.example/x", "issuer": "https://login.example"}), "");
    check(json!({"discovery": "ftp://login.example/"}), "neither http nor https");
    check(json!({"claim_schema": {"type": 7}}), "check claim_schema failed: ");
    check(json!({"public_key": "x"}), "public_key: missing valid public key");
    check(json!({"public_key": "x", "use_jwks": true}), "only one of them can verify tokens");
    check(
        json!({"use_jwks": true, "token_signing_alg_values_expected": "HS256"}),
        "published keys are public; list public-key algorithms such as RS256 or ES256",
    );
    check(json!({"token_signing_alg_values_expected": "none"}), "matches none of the enum values");
    check(json!({"unauth_action": "allow"}), "matches none of the enum values");
    check(json!({"token_endpoint_auth_method": "tls_client_auth"}), "matches none of the enum values");
    check(json!({"force_reauthorize": true}), "");
    check(json!({"redirect_uri": "shop.example"}), "nor a path");
    check(json!({"redirect_uri": "//shop.example/x"}), "nor a path");
    check(json!({"logout_path": "https://shop.example/logout"}), "is not a path");
    check(json!({"backchannel_logout_path": "/bye"}), "set `session.storage` to redis");
    check(
        json!({"backchannel_logout_path": "/bye", "bearer_only": true}),
        "with `bearer_only` there are no sessions",
    );
    check(json!({"authorization_params": {"state": "x"}}), "the gateway itself sets `state`: remove it");
    check(json!({"authorization_params": {"ui_locales": "de"}}), "");
    check(json!({"introspection_addon_headers": ["a b"]}), "is not the name of a header field");
    let session = |more: Value| {
        let mut session = json!({"secret": "0123456789abcdef"});
        session.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "session": session })
    };
    check(session(json!({"storage": "redis"})), "session: property \"redis\" is required");
    check(session(json!({"storage": "redis", "redis": {}})), "");
    check(session(json!({"redis": {}})), "`redis` has no effect while `storage` is cookie");
    check(session(json!({"cookie_same_site": "None", "cookie_secure": false})), "over TLS only");
    check(session(json!({"cookie_name": "a b"})), "failed to match pattern");
    check(session(json!({"cookie_path": "/; Domain=example"})), "failed to match pattern");
}

#[test]
fn the_client_needs_complete_credentials() {
    let check = |more: Value, expected: &str| {
        let told = refusal("openid-connect", &conf(more.clone()));
        assert!(told.contains(expected) && told.is_empty() == expected.is_empty(), "{more}: {told}");
    };
    let private = |more: Value| {
        let mut conf =
            json!({"token_endpoint_auth_method": "private_key_jwt", "client_rsa_private_key": RSA});
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        conf
    };
    check(private(json!({})), "");
    check(private(json!({"client_secret": null})), "");
    check(
        private(json!({"client_rsa_private_key": null})),
        "property \"client_rsa_private_key\" is required with private_key_jwt",
    );
    check(
        private(json!({"client_rsa_private_key": P256})),
        "property \"client_jwt_assertion_alg\" \"RS256\" requires an RSA \"client_rsa_private_key\"",
    );
    check(private(json!({"client_rsa_private_key": P256, "client_jwt_assertion_alg": "ES256"})), "");
    check(
        private(json!({"client_rsa_private_key": P256, "client_jwt_assertion_alg": "ES512"})),
        "not a private key for ES512",
    );
    check(private(json!({"client_rsa_private_key": "$env://KEY"})), "");
    check(
        private(json!({"client_jwt_assertion_alg": "HS256"})),
        "property \"client_jwt_assertion_alg\" \"HS256\" is symmetric and cannot be used with the private_key_jwt \
            selected by \"token_endpoint_auth_method\"",
    );
    check(private(json!({"client_jwt_assertion_alg": "PS256"})), "matches none of the enum values");
    let shared = json!({"token_endpoint_auth_method": "client_secret_jwt"});
    check(shared.clone(), "");
    check(
        json!({"token_endpoint_auth_method": "client_secret_jwt", "client_secret": null, "use_pkce": true}),
        "\"client_secret\" is required",
    );
    check(
        json!({"token_endpoint_auth_method": "client_secret_jwt", "client_jwt_assertion_alg": "RS256"}),
        "\"RS256\" is asymmetric and cannot be used with the client_secret_jwt selected by",
    );
    // Of endpoints that are not asked nothing is needed.
    check(json!({"introspection_endpoint_auth_method": "private_key_jwt"}), "");
    check(
        json!({"introspection_endpoint_auth_method": "private_key_jwt", "bearer_only": true, "client_secret": null}),
        "property \"client_rsa_private_key\" is required",
    );
    check(
        json!({"par": {"enabled": true, "endpoint_auth_method": "private_key_jwt"}}),
        "property \"par.endpoint_auth_method\" \"private_key_jwt\" requires \"client_rsa_private_key\" when \
            \"par.enabled\" is true",
    );
    check(
        private(json!({"client_jwt_assertion_alg": "ES256"})),
        "property \"client_jwt_assertion_alg\" \"ES256\" requires an EC \"client_rsa_private_key\"",
    );
    check(
        private(json!({"client_rsa_private_key": "no key"})),
        "property \"client_rsa_private_key\" is not a valid key (it is not a PEM text",
    );
    check(json!({"par": {"enabled": false, "endpoint_auth_method": "private_key_jwt"}}), "");
    check(json!({"par": {"enabled": true, "endpoint": "login"}}), "is not a URL");
    check(json!({"par": {"required": true}}), "additional properties");
    for (flat, own) in [("use_par", "par.enabled"), ("dpop_public_jwk", "dpop.public_jwk")] {
        check(json!({flat: true}), &format!("property \"{flat}\" is not allowed, use \"{own}\" instead"));
    }
    let dpop = |more: Value| {
        let mut dpop = json!({"enabled": true, "private_key": P256, "public_jwk": p256_jwk()});
        dpop.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        dpop.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        json!({ "dpop": dpop })
    };
    check(dpop(json!({})), "");
    check(dpop(json!({"private_key": null})), "dpop: property \"private_key\" is required");
    check(dpop(json!({"public_jwk": null})), "dpop: property \"public_jwk\" is required");
    check(dpop(json!({"enabled": false, "public_jwk": null})), "");
    let invalid = "property \"dpop.private_key\" is not a valid key";
    check(dpop(json!({"private_key": RSA})), &format!("{invalid} (it is not a private key for ES256)"));
    check(dpop(json!({"private_key": "no key"})), invalid);
    let of_jwk = |jwk: Value, expected: &str| check(dpop(json!({ "public_jwk": jwk })), expected);
    check(
        dpop(json!({"private_key": RSA, "signing_alg": "PS256"})),
        "property \"dpop.signing_alg\" \"PS256\" requires an RSA \"dpop.public_jwk\"",
    );
    of_jwk(
        json!({"kty": "RSA", "e": "AQAB", "n": "AAAA"}),
        "property \"dpop.signing_alg\" \"ES256\" requires an EC \"dpop.public_jwk\"",
    );
    let requires = |kty: &str, members: &str| {
        format!("property \"dpop.public_jwk\" validation failed: kty \"{kty}\" requires {members}")
    };
    of_jwk(json!({"kty": "EC", "crv": "P-256", "x": "", "y": ""}), &requires("EC", "crv, x, y"));
    of_jwk(json!({"kty": "RSA"}), &requires("RSA", "e, n"));
    of_jwk(json!({"kty": "oct"}), "it is not a public key for ES256");
    let mut whole = p256_jwk();
    whole["d"] = json!("AAAA");
    check(dpop(json!({ "public_jwk": whole })), "it is not a public key for ES256");
    let other = Signer::new("k", "ES256").jwk;
    check(dpop(json!({ "public_jwk": other })), "it is not the public half of `dpop.private_key`");
    let proxy = |proxy: Value| json!({ "proxy_opts": proxy });
    check(proxy(json!({"http_proxy": "http://proxy.example:3128", "no_proxy": "localhost"})), "");
    check(proxy(json!({})), "proxy_opts: write `http_proxy` or `https_proxy`, or remove it");
    check(proxy(json!({"http_proxy": "proxy.example:3128"})), "neither http nor https");
    check(
        proxy(json!({"http_proxy": "http://a.test", "https_proxy_authorization": "Basic x"})),
        "proxy_opts.https_proxy_authorization: it has no effect without `https_proxy`",
    );
    check(
        proxy(json!({"http_proxy": "http://a.test", "http_proxy_authorization": "a\r\nb"})),
        "proxy_opts.http_proxy_authorization: it contains a character that a header field cannot carry",
    );
}

#[test]
fn doubtful_settings_have_warnings() {
    let check = |more: Value, expected: &[&str]| {
        // Each of these is without the warnings that are tested below.
        let mut safe = json!({"use_pkce": true, "required_scopes": ["a"]});
        safe.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(warned("openid-connect", PluginScope::Http, &conf(safe)), expected);
    };
    check(json!({}), &[]);
    check(json!({"discovery": "http://login.example/.well-known/openid-configuration"}), &["discovery"]);
    check(json!({"discovery": "http://127.0.0.1:9003/.well-known/openid-configuration"}), &[]);
    check(json!({"ssl_verify": false}), &["ssl_verify"]);
    check(json!({"jwt_verification_cache_ignore": true}), &["jwt_verification_cache_ignore"]);
    check(json!({"bearer_only": true}), &["session"]);
    check(
        json!({"session": {"secret": "0123456789abcdef", "cookie": {"lifetime": 60}}}),
        &["session.cookie"],
    );
    check(json!({"client_rsa_private_key": "k"}), &["client_rsa_private_key"]);
    check(json!({"client_jwt_assertion_alg": "RS256"}), &["client_jwt_assertion_alg"]);
    check(json!({"bearer_only": true, "session": null, "par": {"enabled": true}}), &["par"]);
}

#[test]
fn tokens_of_other_applications_and_stolen_codes_are_warned_of() {
    let check = |more: Value, expected: &[&str]| {
        assert_eq!(warned("openid-connect", PluginScope::Http, &conf(more)), expected);
    };
    check(json!({}), &["use_pkce"]);
    check(json!({"use_nonce": true}), &[]);
    check(json!({"use_pkce": true}), &[]);
    let bearer = |more: Value| {
        let mut bearer = json!({"bearer_only": true, "session": null, "use_jwks": true});
        bearer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        bearer
    };
    check(bearer(json!({})), &["claim_validator"]);
    check(
        bearer(json!({"claim_validator": {"audience": {"match_with_client_id": true}}})),
        &["claim_validator"],
    );
    check(bearer(json!({"required_scopes": []})), &["claim_validator"]);
    let audience = json!({"claim_validator": {"audience": {"required": true, "match_with_client_id": true}}});
    for remedy in
        [audience, json!({"required_scopes": ["orders"]}), json!({"claim_schema": {"type": "object"}})]
    {
        check(bearer(remedy), &[]);
    }
    check(json!({"use_pkce": true, "use_jwks": true}), &["claim_validator"]);
}
