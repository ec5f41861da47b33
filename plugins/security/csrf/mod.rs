//! `csrf`: refuses requests that come from pages of other sites.

use std::time::{Duration, UNIX_EPOCH};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_http::Method;
use sigma_plugin::credentials::Credential;
use sigma_plugin::owned::texts;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::variables::cookie;
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, ResponseStep, Step};
use sigma_schema::Confidential;
use sigma_schema::Problem;
use sigma_schema::expr::{VarName, VarValue, Variables};

use sigma_plugin_kit::fields::is_name;

/// Refuses requests that pages of others made.
pub(crate) static CSRF: Descriptor = Descriptor {
    name: "csrf",
    priority: 2980,
    example: include_str!("example.md"),
    credentials: Some(|conf| texts(conf, "name").map(Credential::field).collect()),
    phases: PhaseSet::of(&[Phase::Access, Phase::HeaderFilter]),
    variables: &[VariableField::guard("session", VariableForm::Name)],
    warnings: Some(|_, conf| warnings(conf)),
    ..Descriptor::itself::<Csrf>()
};

/// Protects against cross-site request forgery with a token in a cookie and in a header field.
///
/// Every response has a cookie with a token. A page of this site reads it and sends it in the field with the same
/// name; a page of another site cannot read it. Safe methods (GET, HEAD, OPTIONS) need no token. Gateways with the
/// same `key` accept each other's tokens.
#[derive(Deserialize, JsonSchema)]
struct Csrf {
    /// The secret that signs tokens.
    key: Confidential,
    /// Lifetime of a token in seconds. With 0 or less the token never expires, and the cookie expires at once.
    #[schemars(extend("default" = 7200))]
    expires: i64,
    /// The variable that identifies the session, e.g. `cookie_sid`: a token is valid for this session only. Without it
    /// a token of one client is valid for all clients. Sigma's own.
    #[schemars(length(min = 1))]
    session: Option<VarName>,
    /// The name of the cookie and of the field.
    #[schemars(extend("default" = "apisix-csrf-token"))]
    name: String,
}

/// The last one that four digits of a year can name.
const LAST_SECOND: u64 = 253_402_300_799;

impl Configuration for Csrf {
    fn check(&self) -> Result<(), String> {
        if is_name(&self.name) {
            return Ok(());
        }
        Err(format!("`{}` is not a valid name of a cookie and a header field", self.name))
    }
}

/// The warning that a token is good for every session.
fn warnings(conf: &Value) -> Vec<Problem> {
    if conf.get("session").is_some() {
        return Vec::new();
    }
    let message = "tokens are not bound to sessions: a client that can set another client's cookie can use its own token for that client";
    let hint = "set `session` to the variable of the session, such as `cookie_sid`";
    vec![Problem::new("session", "unbound_token", message).hint(hint)]
}

impl Csrf {
    /// The key that the tokens of a request's session are signed with.
    fn key(&self, ctx: &Context) -> String {
        let key = self.key.reveal();
        let Some(session) = &self.session else { return key.to_owned() };
        let named = match ctx.get(session) {
            Some(VarValue::Text(text)) => text,
            _ => Default::default(),
        };
        // The length tells the session from the key.
        format!("{key},session:{}:{}", named.len(), String::from_utf8_lossy(&named))
    }
}

/// The content of a cookie, in Base64.
#[derive(Deserialize)]
struct Token {
    random: f64,
    /// When it was made, in Unix seconds.
    expires: f64,
    sign: String,
}

impl Token {
    fn new(random: f64, made: f64, key: &str) -> Token {
        Token { random, expires: made, sign: signature(random, made, key) }
    }

    fn encoded(&self) -> String {
        // With the digits that are signed.
        let (random, made) = (shown(self.random), shown(self.expires));
        STANDARD.encode(format!(r#"{{"random":{random},"expires":{made},"sign":"{}"}}"#, self.sign))
    }

    /// Why a token is not taken; None if it is.
    fn fault(encoded: &[u8], csrf: &Csrf, key: &str, now: f64) -> Option<&'static str> {
        let Ok(bytes) = STANDARD.decode(encoded) else { return Some("it is not Base64") };
        let Ok(token) = serde_json::from_slice::<Token>(&bytes) else { return Some("it is not a token") };
        if csrf.expires > 0 && now - token.expires > csrf.expires as f64 {
            return Some("it has expired");
        }
        let expected = signature(token.random, token.expires, key);
        match verify_slices_are_equal(expected.as_bytes(), token.sign.as_bytes()) {
            Ok(()) => None,
            Err(_) => Some("its signature is invalid"),
        }
    }
}

/// As APISIX signs: SHA-256 of the two numbers and the key, in hexadecimal.
fn signature(random: f64, made: f64, key: &str) -> String {
    let text = format!("{{expires:{},random:{},key:{key}}}", shown(made), shown(random));
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Digits of a number, as Lua shows it (`%.14g` of C).
const DIGITS: usize = 14;

/// A number as Lua shows it.
fn shown(number: f64) -> String {
    let scientific = format!("{number:.*e}", DIGITS - 1);
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let bare = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= DIGITS as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", bare(mantissa), exponent.abs());
    }
    let decimals = usize::try_from(DIGITS as i32 - 1 - exponent).unwrap_or(0);
    bare(&format!("{number:.decimals$}"))
}

impl Plugin for Csrf {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        if matches!(ctx.request.method, Method::Get | Method::Head | Method::Options) {
            return Step::Next;
        }
        let refuse = |reason: &str| Step::json(401, &json!({ "error_msg": reason }));
        let headers = &ctx.request.headers;
        let Some(sent) = headers.find(self.name.as_bytes()).filter(|sent| !sent.is_empty()) else {
            return refuse("no csrf token in headers");
        };
        let Some(kept) = cookie(headers, &self.name) else { return refuse("no csrf cookie") };
        if verify_slices_are_equal(sent, kept).is_err() {
            return refuse("csrf token mismatch");
        }
        match Token::fault(sent, self, &self.key(ctx), env.unix_time().as_secs_f64().floor()) {
            None => Step::Next,
            Some(fault) => {
                tracing::info!(fault, "csrf: a token was refused");
                refuse("Failed to verify the csrf token signature")
            }
        }
    }

    fn header_filter(&self, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        let mut bytes = [0; 8];
        if let Err(error) = env.machine.fill_random(&mut bytes) {
            tracing::error!(%error, "csrf: cannot create a token");
            return ResponseStep::Next;
        }
        // A fraction with the 53 bits that it can hold; tokens of APISIX have 14 digits of it.
        let random = (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64;
        let now = env.unix_time().as_secs();
        let token = Token::new(random, now as f64, &self.key(ctx)).encoded();
        let ends = now.saturating_add_signed(self.expires).min(LAST_SECOND);
        let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(ends));
        let field = format!("{}={token};path=/;SameSite=Lax;Expires={date}", self.name);
        ctx.response.headers.append("Set-Cookie", field.as_bytes());
        ResponseStep::Next
    }
}

#[cfg(test)]
mod tests {
    use sigma_plugin::Entry;

    use super::*;
    use crate::testing::{Case, entry, refusal, summary};

    fn plugin(more: &Value) -> Entry {
        let mut conf = json!({"key": "secret"});
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        entry("csrf", conf).unwrap()
    }

    fn post(plugin: &Entry, field: Option<&str>, cookie: Option<&str>) -> String {
        let line =
            |name: &str, value: Option<&str>| value.map_or(String::new(), |value| format!("\n{name}{value}"));
        let head = format!(
            "POST / HTTP/1.1\nHost: h{}{}",
            line("apisix-csrf-token: ", field),
            line("Cookie: a=1; apisix-csrf-token=", cookie)
        );
        summary(Case::new(&head).run(plugin, Phase::Access).as_ref())
    }

    fn now() -> f64 {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as f64
    }

    /// The token that a response brings.
    fn given(plugin: &Entry) -> String {
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        case.respond(500, "Set-Cookie: a=1");
        case.header_filter(plugin);
        let fields = case.answered("Set-Cookie");
        let field = fields.split("apisix-csrf-token=").nth(1).unwrap();
        let (token, rest) = field.split_once(';').unwrap();
        assert!(fields.starts_with("a=1"), "{fields}");
        assert!(rest.starts_with("path=/;SameSite=Lax;Expires=") && rest.ends_with(" GMT"), "{rest}");
        token.to_owned()
    }

    #[test]
    fn numbers_are_shown_as_lua_shows_them() {
        for (number, expected) in [
            (0.0, "0"),
            (0.5, "0.5"),
            (1_700_000_000.0, "1700000000"),
            (0.123_456_789_012_345_67, "0.12345678901235"),
            (0.1 + 0.2, "0.3"),
            (0.000_123, "0.000123"),
            (0.000_012_3, "1.23e-05"),
            (1e14, "1e+14"),
            (99_999_999_999_999.0, "99999999999999"),
            (0.999_999_999_999_999_9, "1"),
        ] {
            assert_eq!(shown(number), expected, "{number}");
        }
    }

    /// Computed with `sha256sum` of the text that APISIX signs.
    #[test]
    fn signatures_equal_those_from_apisix() {
        assert_eq!(
            signature(0.5, 1_700_000_000.0, "secret"),
            "30a17de2715d3c3b0ff5617edfb397d04dc315fa4211901853e1fec4fd6b3252"
        );
    }

    #[test]
    fn tokens_pass_that_were_given() {
        let plugin = plugin(&json!({}));
        let token = given(&plugin);
        assert_ne!(token, given(&plugin));
        assert_eq!(post(&plugin, Some(&token), Some(&token)), "passed");
        for method in ["GET", "HEAD", "OPTIONS"] {
            let mut case = Case::new(&format!("{method} / HTTP/1.1\nHost: h"));
            assert!(case.run(&plugin, Phase::Access).is_none());
        }
    }

    #[test]
    fn others_do_not() {
        let plugin = plugin(&json!({}));
        let (token, other) = (given(&plugin), given(&plugin));
        let said = |reason: &str| format!(r#"401 {{"error_msg":"{reason}"}}"#);
        let missing = said("no csrf token in headers");
        assert_eq!(post(&plugin, None, Some(&token)), missing);
        assert_eq!(post(&plugin, Some(""), Some("")), missing);
        assert_eq!(post(&plugin, Some(&token), None), said("no csrf cookie"));
        assert_eq!(post(&plugin, Some(&token), Some(&other)), said("csrf token mismatch"));
        let unsigned = said("Failed to verify the csrf token signature");
        let forged = [
            "x".to_owned(),
            STANDARD.encode("{}"),
            STANDARD.encode(r#"{"random":0.5,"expires":9999999999,"sign":""}"#),
            STANDARD.encode(r#"{"random":null,"expires":1e999,"sign":""}"#),
            Token::new(0.5, now(), "other key").encoded(),
            Token::new(0.5, now() - 7_300.0, "secret").encoded(),
        ];
        for token in &forged {
            assert_eq!(post(&plugin, Some(token), Some(token)), unsigned, "{token}");
        }
    }

    #[test]
    fn tokens_are_of_their_session() {
        let plugin = plugin(&json!({"session": "cookie_sid"}));
        let given = |session: &str| {
            let mut case = Case::new(&format!("GET / HTTP/1.1\nHost: h{session}"));
            case.respond(200, "");
            case.header_filter(&plugin);
            let field = case.answered("Set-Cookie");
            field.split("apisix-csrf-token=").nth(1).unwrap().split(';').next().unwrap().to_owned()
        };
        let check = |token: &str, session: &str, passes: bool| {
            let cookie = format!("Cookie: apisix-csrf-token={token}{session}");
            let head = format!("POST / HTTP/1.1\nHost: h\napisix-csrf-token: {token}\n{cookie}");
            let reply = Case::new(&head).run(&plugin, Phase::Access);
            assert_eq!(reply.is_none(), passes, "{session}");
        };
        let (jacks, anonymous) = (given("\nCookie: sid=jack"), given(""));
        check(&jacks, "; sid=jack", true);
        check(&jacks, "; sid=jill", false);
        check(&jacks, "", false);
        check(&anonymous, "; sid=jack", false);
        check(&anonymous, "", true);
    }

    #[test]
    fn tokens_without_an_end_live_forever() {
        let plugin = plugin(&json!({"expires": 0}));
        let old = Token::new(0.25, 1.0, "secret").encoded();
        assert_eq!(post(&plugin, Some(&old), Some(&old)), "passed");
    }

    #[test]
    fn bad_configurations_are_refused() {
        let check = |conf: Value, expected: &str| {
            let refused = refusal("csrf", &conf);
            assert!(refused.contains(expected), "{conf}: {refused}");
        };
        check(json!({}), "property \"key\" is required");
        check(json!({"key": "k", "name": "a;b"}), "`a;b` is not a valid name of a cookie and a header field");
        check(json!({"key": "k", "name": ""}), "is not a valid name");
        check(json!({"key": "k", "expires": "1"}), "expires");
    }
}
