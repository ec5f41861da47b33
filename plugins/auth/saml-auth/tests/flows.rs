//! The way of a browser: to the provider, back, on, and out again.

use std::collections::BTreeMap;

use sigma_plugin::Consumers;

use super::attacks::{Provider, answer};
use super::*;
use crate::shared::form::Form;
use crate::testing::{Case, entry, field, summary};

const SHA256: &str = "http://www.w3.org/2001/04/xmlenc#sha256";

/// A browser, and the gateway that it speaks to.
struct Browser {
    case: Case,
    plugin: SamlAuth,
    cookies: BTreeMap<String, String>,
    now: u64,
    /// The last response.
    reply: Option<Reply>,
}

impl Browser {
    fn new(more: Value) -> Browser {
        let case = Case::new("GET / HTTP/1.1\nHost: shop.test");
        let conf = conf(more);
        let party = Party::new(&Build::new(NAME, &conf, "", &Value::Null, &case.node)).unwrap();
        let plugin = SamlAuth(Arc::new(party));
        Browser { case, plugin, cookies: BTreeMap::new(), now: at("12:00:00"), reply: None }
    }

    /// Returns the status of a response and its reason; `passed` if the request continues.
    fn ask(&mut self, line: &str, form: Option<Form>) -> String {
        let cookies: Vec<String> =
            self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        self.case.request(&format!("{line} HTTP/1.1\nHost: shop.test\nCookie: x=y; {}", cookies.join("; ")));
        self.case.body = form.map(Form::text).unwrap_or_default().into();
        let (node, local, consumers) =
            (self.case.node.clone(), self.case.local.clone(), Consumers::default());
        let machine = At(self.now);
        let env = Env { machine: &machine, ..Env::new(&node, &local, &consumers) };
        let step = self.plugin.rewrite(&mut self.case.ctx, &env);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let settled = step.settled(&mut self.case.ctx, &env, self.case.body.clone());
        self.reply = runtime.block_on(settled).unwrap();
        let kept = self.case.ctx.take_kept::<_, Cookies>(&self.plugin).map(|Cookies(kept)| kept);
        let replied = self.reply.iter().flat_map(|reply| &reply.headers);
        let replied = replied.filter(|(name, _)| name == "Set-Cookie");
        let replied = replied.map(|(_, value)| String::from_utf8(value.clone()).unwrap());
        for cookie in kept.into_iter().flatten().chain(replied).collect::<Vec<_>>() {
            let (pair, _) = cookie.split_once("; ").unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            match value {
                "" => drop(self.cookies.remove(name)),
                value => drop(self.cookies.insert(name.to_owned(), value.to_owned())),
            }
        }
        summary(self.reply.as_ref())
    }

    fn location(&self) -> String {
        self.reply.as_ref().and_then(|reply| field(reply, "Location")).unwrap_or_default()
    }

    /// Returns the gateway's message to the provider: the text, and RelayState.
    fn sent(&self) -> (String, Option<String>) {
        let location = self.location();
        let query = location.strip_prefix("https://idp.test/saml?").unwrap_or_else(|| panic!("{location}"));
        let message = of_query(query.as_bytes(), &ProviderKeys::of_pem(SP_CERT).unwrap(), 10_000).unwrap();
        (String::from_utf8(message.text).unwrap(), message.relay_state)
    }

    /// Begins a login; the ID of the request, and the state.
    fn begin(&mut self, target: &str) -> (String, String) {
        assert_eq!(self.ask(&format!("GET {target}"), None), "302");
        let (text, state) = self.sent();
        (value_of(&text, "ID"), state.unwrap())
    }

    fn come_back(&mut self, request: &str, state: &str) -> String {
        let query = provider().query(Kind::Response, &answer(request), Some(state));
        self.ask(&format!("GET /acs{query}"), None)
    }

    fn log_in(&mut self) {
        let (request, state) = self.begin("/orders?page=2");
        assert_eq!(self.come_back(&request, &state), "302");
        assert_eq!(self.location(), "/orders?page=2");
    }
}

fn provider() -> Provider {
    Provider::new(RSA_KEY, RSA_CERT)
}

/// The value of an attribute of a message.
fn value_of(text: &str, name: &str) -> String {
    let (_, rest) = text.split_once(&format!(" {name}=\"")).unwrap_or_else(|| panic!("{text}"));
    rest.split_once('"').unwrap().0.to_owned()
}

#[test]
fn a_login_by_redirects() {
    let mut browser = Browser::new(json!({}));
    assert_eq!(browser.ask("GET /acs?SAMLResponse=a", None), "401");
    assert_eq!(browser.ask("GET /logout", None), "401");
    assert_eq!(browser.ask("GET /ended?SAMLResponse=a", None), "401");
    let (request, state) = browser.begin("/orders?page=2");
    let (text, _) = browser.sent();
    assert_eq!(
        text,
        format!(
            "<samlp:AuthnRequest xmlns:samlp=\"urn:oasis:names:tc:SAML:2.0:protocol\" \
            xmlns:saml=\"urn:oasis:names:tc:SAML:2.0:assertion\" ID=\"{request}\" Version=\"2.0\" \
            IssueInstant=\"2026-11-23T12:00:00Z\" Destination=\"https://idp.test/saml\" \
            ProtocolBinding=\"urn:oasis:names:tc:SAML:2.0:bindings:HTTP-Redirect\" \
            AssertionConsumerServiceURL=\"https://shop.test/acs\">\
            <saml:Issuer>https://shop.test/</saml:Issuer></samlp:AuthnRequest>"
        )
    );
    assert_eq!(browser.ask("PUT /acs", None), "405");
    assert_eq!(browser.ask("GET /acs", None), "400");
    assert_eq!(browser.ask("GET /acs?SAMLResponse=a", None), "400");
    assert_eq!(browser.come_back(&request, "guessed"), "401");
    assert_eq!(browser.come_back("_other", &state), "401");
    let failed = answer(&request).replace("status:Success", "status:Responder");
    let query = provider().query(Kind::Response, &failed, Some(&state));
    assert_eq!(browser.ask(&format!("GET /acs{query}"), None), "403");
    let query = provider().query(Kind::Request, &answer(&request), Some(&state));
    assert_eq!(browser.ask(&format!("GET /acs{query}"), None), "400");
    let stranger = Provider::new(SP_KEY, SP_CERT).query(Kind::Response, &answer(&request), Some(&state));
    assert_eq!(browser.ask(&format!("GET /acs{stranger}"), None), "400");
    // Another page of the same browser does not end the login.
    assert_eq!(browser.ask("GET /favicon.ico", None), "302");
    let before = browser.cookies.clone();
    assert_eq!(browser.come_back(&request, &state), "302");
    assert_eq!(browser.location(), "/orders?page=2");
    assert_eq!(browser.ask("GET /orders?page=2", None), "passed");
    assert_eq!(
        browser.case.ctx.request.headers.find(b"cookie"),
        Some(&b"x=y"[..]),
        "the node gets no session"
    );
    let admitted = |browser: &mut Browser, field: &str, value: &str| {
        let rule = json!({
            "allow_labels": {"label": [value]}, "external_user_label_field": field,
            "external_user_label_field_key": "label",
        });
        let acl = entry("acl", rule).unwrap();
        browser.case.run(&acl, Phase::Access).is_none()
    };
    assert!(admitted(&mut browser, "$.attrs.groups", "staff") && admitted(&mut browser, "$.name_id", "jack"));
    assert!(admitted(&mut browser, "$.issuer", "https://idp.test/"));
    assert!(!admitted(&mut browser, "$.attrs.groups", "admins"));
    assert_eq!(browser.come_back(&request, &state), "401", "nobody is on the way");
    browser.cookies = before;
    assert_eq!(browser.come_back(&request, &state), "401", "the response was already used");
}

#[test]
fn a_login_by_a_form() {
    let mut browser = Browser::new(json!({"auth_protocol_binding_method": "HTTP-POST"}));
    let (request, state) = browser.begin("/");
    let cookie = browser.reply.as_ref().and_then(|reply| field(reply, "Set-Cookie")).unwrap();
    assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=None; Secure"), "{cookie}");
    assert!(browser.sent().0.contains("bindings:HTTP-POST"));
    let form = |document: &str| {
        use base64::Engine;
        let text = base64::engine::general_purpose::STANDARD.encode(document);
        Some(Form::default().with("SAMLResponse", text).with("RelayState", &state))
    };
    let text = answer(&request);
    assert_eq!(browser.ask("POST /acs", form(&text)), "400");
    assert_eq!(browser.ask("POST /acs", None), "400");
    let large = format!("{text}{}", " ".repeat(300_000));
    assert_eq!(browser.ask("POST /acs", form(&large)), "400");
    let signed = provider().signed(&text, "_a1", SHA256);
    assert_eq!(browser.ask("POST /acs", form(&signed.replace("jack", "jill"))), "400");
    assert_eq!(browser.ask("POST /acs", form(&signed)), "302");
    assert_eq!(browser.location(), "/");
    assert_eq!(browser.ask("GET /", None), "passed");
}

#[test]
fn a_login_takes_ten_minutes_and_five_pages() {
    let mut browser = Browser::new(json!({}));
    let (first, first_state) = browser.begin("/first");
    let mut last = (String::new(), String::new());
    for _ in 0..5 {
        last = browser.begin("/last");
    }
    assert_eq!(browser.come_back(&first, &first_state), "401");
    browser.now += 600;
    assert_eq!(browser.come_back(&last.0, &last.1), "401");
    let mut browser = Browser::new(json!({}));
    let (request, state) = browser.begin("//evil.test/%5Cevil.test");
    assert_eq!(browser.come_back(&request, &state), "302");
    assert_eq!(browser.location(), "/evil.test/%5Cevil.test", "no redirect leads elsewhere");
}

#[test]
fn a_session_ends() {
    let mut browser = Browser::new(json!({}));
    let mut lasts = |pause: u64, ends: Option<&str>| {
        browser.cookies.clear();
        browser.now = at("12:00:00");
        let (request, state) = browser.begin("/");
        let ends =
            ends.map(|ends| format!(" SessionNotOnOrAfter=\"2026-11-23T{ends}Z\"")).unwrap_or_default();
        let text = answer(&request).replace("SessionIndex=\"_s1\"", &ends);
        let text = text.replace("\"_a1\"", &format!("\"_a{pause}\""));
        let query = provider().query(Kind::Response, &text, Some(&state));
        assert_eq!(browser.ask(&format!("GET /acs{query}"), None), "302");
        let began = browser.now;
        while browser.ask("GET /", None) == "passed" {
            browser.now += pause;
        }
        browser.now - began
    };
    assert_eq!(lasts(900, None), 900);
    assert_eq!(lasts(899, None), 899 * 97, "a day at the latest");
    assert_eq!(lasts(30, Some("12:10:00")), 600);
    let mut browser = Browser::new(json!({"secret": "0123456789", "secret_fallbacks": ["0123456789abcdef"]}));
    let mut former = Browser::new(json!({}));
    former.log_in();
    browser.cookies = former.cookies.clone();
    assert_eq!(browser.ask("GET /", None), "passed", "an older secret");
    let mut other = Browser::new(json!({"sp_issuer": "https://bank.test/"}));
    other.cookies = former.cookies;
    assert_eq!(other.ask("GET /", None), "302", "a session of another service");
}

#[test]
fn the_user_ends_a_session() {
    let mut browser = Browser::new(json!({}));
    browser.log_in();
    let unasked = "<samlp:LogoutResponse xmlns:samlp=\"urn:oasis:names:tc:SAML:2.0:protocol\" Version=\"2.0\" \
        ID=\"_l1\" InResponseTo=\"_q\" Destination=\"https://shop.test/ended\"><samlp:Status>\
        <samlp:StatusCode Value=\"urn:oasis:names:tc:SAML:2.0:status:Success\"/></samlp:Status></samlp:LogoutResponse>";
    let tell = |browser: &mut Browser, text: &str| {
        let query = provider().query(Kind::Response, text, None);
        browser.ask(&format!("GET /ended{query}"), None)
    };
    assert_eq!(tell(&mut browser, unasked), "401");
    assert_eq!(browser.ask("GET /logout", None), "302");
    let (text, state) = browser.sent();
    assert_eq!(state, None);
    let tail =
        "<saml:NameID>jack</saml:NameID><samlp:SessionIndex>_s1</samlp:SessionIndex></samlp:LogoutRequest>";
    assert!(text.starts_with("<samlp:LogoutRequest") && text.ends_with(tail), "{text}");
    assert_eq!(browser.ask("GET /", None), "passed", "until the provider says so");
    let asked = unasked.replace("\"_q\"", &format!("\"{}\"", value_of(&text, "ID")));
    assert_eq!(browser.ask("PUT /ended", None), "405");
    assert_eq!(browser.ask("GET /ended", None), "400");
    assert_eq!(tell(&mut browser, unasked), "401");
    assert_eq!(tell(&mut browser, &asked.replace("shop.test/ended", "bank.test/ended")), "401");
    assert_eq!(tell(&mut browser, &asked.replace("status:Success", "status:Requester")), "500");
    assert_eq!(tell(&mut browser, &answer("_q")), "400");
    let unsigned = {
        use base64::Engine;
        Form::default().with("SAMLResponse", base64::engine::general_purpose::STANDARD.encode(&asked))
    };
    assert_eq!(browser.ask("POST /ended", Some(unsigned)), "400");
    assert_eq!(tell(&mut browser, &asked), "302");
    assert_eq!((browser.location().as_str(), browser.cookies.len()), ("/bye", 0));
    assert_eq!(browser.ask("GET /", None), "302");
}

#[test]
fn the_provider_ends_a_session() {
    let mut browser = Browser::new(json!({}));
    browser.log_in();
    let text = "<samlp:LogoutRequest xmlns:samlp=\"urn:oasis:names:tc:SAML:2.0:protocol\" \
        xmlns:saml=\"urn:oasis:names:tc:SAML:2.0:assertion\" Version=\"2.0\" ID=\"_l1\" \
        NotOnOrAfter=\"2026-11-23T12:05:00Z\"><saml:Issuer>https://idp.test/</saml:Issuer>\
        <saml:NameID>jack</saml:NameID></samlp:LogoutRequest>";
    let tell = |browser: &mut Browser, text: &str| {
        let query = provider().query(Kind::Request, text, Some("r"));
        browser.ask(&format!("GET /ended{query}"), None)
    };
    assert_eq!(tell(&mut browser, &text.replace("12:05", "11:58")), "401");
    assert_eq!(tell(&mut browser, text), "302");
    let (sent, state) = browser.sent();
    assert_eq!((state.as_deref(), browser.cookies.len()), (Some("r"), 0));
    assert!(sent.starts_with("<samlp:LogoutResponse") && sent.contains("InResponseTo=\"_l1\""), "{sent}");
    assert!(sent.contains("status:Success"), "{sent}");
}

#[test]
fn the_callback_is_where_the_browser_is() {
    let mut browser = Browser::new(json!({"login_callback_uri": "/acs"}));
    let (request, state) = browser.begin("/");
    assert_eq!(value_of(&browser.sent().0, "AssertionConsumerServiceURL"), "http://shop.test/acs");
    assert_eq!(browser.come_back(&request, &state), "401", "the assertion is for another recipient");
    let text = answer(&request).replace("https://shop.test/acs", "http://shop.test/acs");
    let query = provider().query(Kind::Response, &text, Some(&state));
    assert_eq!(browser.ask(&format!("GET /acs{query}"), None), "302");
}
