//! Users who log in at a real Keycloak by SAML, and out again: it signs, and verifies, with code of its own.

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Message, Origin};

use super::keycloak::{Keycloak, port};
use super::{Cookies, ask};
use crate::SIGMA;

const KEY: &str = include_str!("../../../../../plugins/auth/saml-auth/tests/fixtures/sp.key");
const CERTIFICATE: &str = include_str!("../../../../../plugins/auth/saml-auth/tests/fixtures/sp.pem");

/// A host, and its client at Keycloak.
struct Service {
    host: &'static str,
    binding: &'static str,
    attributes: Value,
}

/// One for each way that a response travels and is signed.
fn services() -> Vec<Service> {
    let service = |host, binding, attributes| Service { host, binding, attributes };
    vec![
        service("redirect.example", "HTTP-Redirect", json!({"saml.signature.algorithm": "RSA_SHA512"})),
        service(
            "form.example",
            "HTTP-POST",
            json!({"saml.force.post.binding": "true", "saml.onetimeuse.condition": "true"}),
        ),
        // Answer and assertion have a signature each.
        service(
            "both.example",
            "HTTP-POST",
            json!({"saml.force.post.binding": "true", "saml.assertion.signature": "true"}),
        ),
        service(
            "assertion.example",
            "HTTP-POST",
            json!({
                "saml.force.post.binding": "true", "saml.assertion.signature": "true", "saml.server.signature": "false",
                "saml.server.signature.keyinfo.ext": "false",
            }),
        ),
    ]
}

impl Service {
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.host)
    }

    /// The service as Keycloak knows it.
    fn client(&self) -> Value {
        let certificate: String = CERTIFICATE.lines().filter(|line| !line.starts_with('-')).collect();
        let mut attributes = json!({
            "saml.server.signature": "true", "saml.client.signature": "true", "saml.authnstatement": "true",
            "saml.signing.certificate": certificate, "saml.signature.algorithm": "RSA_SHA256",
            "saml_name_id_format": "username", "saml_force_name_id_format": "true",
            "saml.assertion.signature": "false", "saml.force.post.binding": "false",
            "saml_single_logout_service_url_redirect": self.url("/ended"),
            "saml_single_logout_service_url_post": self.url("/ended"),
        });
        attributes.as_object_mut().unwrap().extend(self.attributes.as_object().unwrap().clone());
        json!({
            "clientId": self.url("/"), "protocol": "saml", "redirectUris": [self.url("/*")],
            "frontchannelLogout": true, "attributes": attributes,
            "protocolMappers": [{
                "name": "mail", "protocol": "saml", "protocolMapper": "saml-user-property-mapper",
                "config": {"user.attribute": "email", "attribute.name": "mail", "attribute.nameformat": "Basic"},
            }],
        })
    }

    /// A route that only jack may use.
    fn route(&self, keycloak: &Keycloak, origin: &Origin) -> Value {
        let realm = format!("http://127.0.0.1:{}/realms/shop", keycloak.port);
        let plugins = json!({
            "saml-auth": {
                "sp_issuer": self.url("/"), "idp_uri": format!("{realm}/protocol/saml"), "idp_issuer": realm,
                "idp_cert": certificate_of(keycloak), "sp_cert": CERTIFICATE, "sp_private_key": KEY,
                "login_callback_uri": self.url("/acs"), "logout_uri": "/logout", "logout_callback_uri": "/ended",
                "logout_redirect_uri": self.url("/bye"), "auth_protocol_binding_method": self.binding,
                "secret": "a-secret-of-the-gateway",
            },
            "acl": {
                "allow_labels": {"mail": ["jack@shop.example"]}, "external_user_label_field": "$.attrs.mail",
                "external_user_label_field_key": "mail",
            },
        });
        let upstream = json!({"type": "roundrobin", "nodes": {format!("127.0.0.1:{}", origin.port()): 1}});
        json!({"host": self.host, "uri": "/*", "plugins": plugins, "upstream": upstream})
    }
}

/// Returns the certificate of the realm, from its metadata.
fn certificate_of(keycloak: &Keycloak) -> String {
    let described = ask(keycloak.port, "GET /realms/shop/protocol/saml/descriptor", "", "").text();
    let (_, rest) = described.split_once("X509Certificate>").unwrap();
    let certificate = rest.split('<').next().unwrap().trim();
    format!("-----BEGIN CERTIFICATE-----\n{certificate}\n-----END CERTIFICATE-----\n")
}

/// Brings the provider's message to the gateway: by a redirect, or by a form that the page sends off.
fn bring(sent: &Message, service: &Service) -> (String, String) {
    let path = |url: &str| url.strip_prefix(&service.url("")).unwrap_or_else(|| panic!("{url}")).to_owned();
    if let Some(location) = sent.head.get("location") {
        return (format!("GET {}", path(location)), String::new());
    }
    let page = sent.text();
    let of = |begin: &str| {
        let (_, rest) = page.split_once(begin)?;
        Some(rest.split('"').next()?.replace("&#43;", "+").replace("&#61;", "=").replace("&#x2b;", "+"))
    };
    let action = of("action=\"").unwrap_or_else(|| panic!("no form: {page}"));
    let fields = ["SAMLResponse", "RelayState"].into_iter().filter_map(|name| {
        let value = of(&format!("name=\"{name}\" value=\""))?;
        let value = value.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
        Some(format!("{name}={value}"))
    });
    (format!("POST {}", path(&action)), fields.collect::<Vec<_>>().join("&"))
}

/// A user logs in at a service, looks at a page, and logs out.
fn user(keycloak: &Keycloak, gateway: &Gateway, service: &Service, name: &str, expected: u16) {
    let shop = |line: &str, body: &str, cookies: &mut Cookies| {
        let kind = if body.is_empty() { "" } else { "Content-Type: application/x-www-form-urlencoded\r\n" };
        let fields = format!("Host: {}\r\n{kind}{}", service.host, cookies.field());
        let answer = ask(port(gateway), line, &fields, body);
        cookies.take(&answer);
        answer
    };
    let (mut own, mut there) = (Cookies::default(), Cookies::default());
    let sent = shop("GET /orders?a=1", "", &mut own);
    let agreed = keycloak.log_in(sent.head.get("location").unwrap(), name, &mut there);
    there.take(&agreed);
    let (line, body) = bring(&agreed, service);
    let returned = shop(&line, &body, &mut own);
    assert_eq!(returned.status(), 302, "{}: {}", service.host, gateway.stderr());
    assert_eq!(returned.head.get("location"), Some("/orders?a=1"));
    assert_eq!(shop("GET /orders?a=1", "", &mut own).status(), expected, "{name}: {}", gateway.stderr());
    assert_eq!(shop(&line, &body, &mut own).status(), 503, "nobody is on the way");
    let farewell = shop("GET /logout", "", &mut own);
    let target = keycloak.target(farewell.head.get("location").unwrap());
    let gone = ask(keycloak.port, &format!("GET {target}"), &there.field(), "");
    let (line, body) = bring(&gone, service);
    let ended = shop(&line, &body, &mut own);
    let told = (ended.status(), ended.head.get("location").map(str::to_owned));
    if service.attributes["saml.server.signature"] == "false" {
        assert_eq!(told, (400, None), "nobody has signed it");
        return;
    }
    assert_eq!(told, (302, Some(service.url("/bye"))), "{}: {}", service.host, gateway.stderr());
    assert!(own.0.is_empty());
    assert_eq!(shop("GET /orders", "", &mut own).status(), 302);
}

#[test]
fn users_of_a_keycloak_by_saml() {
    let services = services();
    let clients: Vec<Value> = services.iter().map(Service::client).collect();
    let keycloak = Keycloak::start_with(clients);
    let origin = Origin::echo("a").unwrap();
    let routes: Vec<Value> = services.iter().map(|service| service.route(&keycloak, &origin)).collect();
    let config = json!({"workers": 2, "listeners": [{"address": "{listen}"}], "routes": routes});
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    for service in &services {
        user(&keycloak, &gateway, service, "jack", 200);
        user(&keycloak, &gateway, service, "jill", 403);
    }
}
