//! `forward-client-cert`: the node gets data of the client's certificate.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::{HeaderId, Headers};
use sigma_plugin::client_chain::{ClientChain, escaped, pem, percent_encoded};
use sigma_plugin::context::Tls;
use sigma_plugin::{Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, Step};

/// The plugin.
pub(crate) static FORWARD_CLIENT_CERT: Descriptor = Descriptor {
    name: "forward-client-cert",
    priority: 1006,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite]),
    owned_fields: Some(|_| {
        let ids = [HeaderId::XForwardedClientCert, HeaderId::ClientCert, HeaderId::ClientCertChain];
        ids.map(|id| OwnedField::shared(id.name())).into()
    }),
    ..Descriptor::itself::<ForwardClientCert>()
};

/// Sends the client certificate to nodes, in `X-Forwarded-Client-Cert` as Envoy does, and in `Client-Cert` (RFC
/// 9440).
///
/// Sigma's own. Only verified certificates are sent. Nodes never get these fields from clients, with or without this
/// plugin. Only fields of a peer in `trusted_addresses` are kept.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct ForwardClientCert {
    /// Treatment of `X-Forwarded-Client-Cert`.
    #[schemars(extend("default" = "sanitize_set"))]
    forward_client_cert_details: Details,
    /// Parts of the certificate in the field, in addition to its hash.
    #[schemars(extend("default" = {}))]
    set_current_client_cert_details: CertificateParts,
    /// Whether `Client-Cert` has the client's certificate.
    #[schemars(extend("default" = false))]
    client_cert: bool,
    /// Whether `Client-Cert-Chain` has the certificates from the client's to its authority, as far as the client sent
    /// them.
    #[schemars(extend("default" = false))]
    client_cert_chain: bool,
}

/// Treatment of `X-Forwarded-Client-Cert`. A client without a verified certificate is not a proxy: its field is removed in all cases but the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Details {
    /// The field is removed.
    Sanitize,
    /// The field of a trusted peer is forwarded unchanged.
    ForwardOnly,
    /// The client's certificate is appended to the field of a trusted peer.
    AppendForward,
    /// The field has the client's certificate only.
    SanitizeSet,
    /// The field of a trusted peer is forwarded unchanged, even if the peer has sent no certificate.
    AlwaysForwardOnly,
}

/// Parts of the certificate.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
struct CertificateParts {
    /// The subject.
    subject: bool,
    /// The whole certificate, as escaped PEM.
    cert: bool,
    /// The certificate and its chain up to the authority, as escaped PEM.
    chain: bool,
    /// The DNS names.
    dns: bool,
    /// The URIs, such as a SPIFFE id.
    uri: bool,
}

impl Default for CertificateParts {
    fn default() -> Self {
        CertificateParts { subject: true, cert: false, chain: false, dns: true, uri: true }
    }
}

impl Configuration for ForwardClientCert {}

impl Plugin for ForwardClientCert {
    fn rewrite(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        let tls = ctx.client.tls.clone();
        let shown = tls.as_deref().filter(|tls| tls.client_verify == "SUCCESS");
        let shown = shown.and_then(|tls| Some((tls, tls.client_chain.as_deref()?)));
        let headers = &mut ctx.request.headers;
        self.forward(headers, shown);
        let sent = shown.map(|(_, chain)| chain);
        set_or_remove(headers, HeaderId::ClientCert, sent.filter(|_| self.client_cert).map(own_bytes));
        let chain = sent.filter(|chain| self.client_cert_chain && chain.certificates.len() > 1);
        set_or_remove(headers, HeaderId::ClientCertChain, chain.map(chain_bytes));
        Step::Next
    }
}

impl ForwardClientCert {
    fn forward(&self, headers: &mut Headers, shown: Option<(&Tls, &ClientChain)>) {
        const FIELD: HeaderId = HeaderId::XForwardedClientCert;
        let own = || shown.map(|(tls, chain)| self.set_current_client_cert_details.element(tls, chain));
        match self.forward_client_cert_details {
            Details::AlwaysForwardOnly => {}
            Details::ForwardOnly if shown.is_some() => {}
            Details::Sanitize | Details::ForwardOnly => headers.remove(FIELD),
            Details::SanitizeSet => set_or_remove(headers, FIELD, own()),
            Details::AppendForward => {
                let before: Vec<&[u8]> = headers.get_all(FIELD).collect();
                let before = String::from_utf8_lossy(&before.join(&b","[..])).into_owned();
                let all = own().map(|own| if before.is_empty() { own } else { format!("{before},{own}") });
                set_or_remove(headers, FIELD, all);
            }
        }
    }
}

impl CertificateParts {
    /// An element of the field. No value ends it or begins another one, with any certificate.
    fn element(self, tls: &Tls, chain: &ClientChain) -> String {
        let mut parts: Vec<String> =
            chain.gateway_uris.iter().map(|uri| format!("By={}", plain(uri))).collect();
        let hash = digest(&SHA256, chain.own());
        parts.push(format!("Hash={}", hash.as_ref().iter().map(|b| format!("{b:02x}")).collect::<String>()));
        if self.cert {
            parts.push(format!("Cert=\"{}\"", escaped(&pem(chain.own()))));
        }
        if self.chain {
            let all: String = chain.certificates.iter().map(|one| pem(one)).collect();
            parts.push(format!("Chain=\"{}\"", escaped(&all)));
        }
        if self.subject {
            parts.push(format!("Subject=\"{}\"", quoted(tls.client_subject.as_deref().unwrap_or_default())));
        }
        if self.uri && chain.uris.is_empty() {
            parts.push("URI=".to_owned());
        }
        if self.uri {
            parts.extend(chain.uris.iter().map(|uri| format!("URI={}", plain(uri))));
        }
        if self.dns {
            parts.extend(chain.dns_names.iter().map(|name| format!("DNS={}", plain(name))));
        }
        parts.join(";")
    }
}

/// A URI or name without a character that means something in the field.
fn plain(text: &str) -> String {
    percent_encoded(text, |b| b.is_ascii_graphic() && !b",;=\"\\".contains(&b))
}

/// A name of RFC 2253 for between quotes. Characters that may be escaped by a backslash there may be escaped
/// by their number as well, which leaves no quote that a reader could take for the end.
fn quoted(name: &str) -> String {
    name.replace("\\\\", "\\5C").replace("\\\"", "\\22")
}

fn set_or_remove(headers: &mut Headers, id: HeaderId, value: Option<String>) {
    match value {
        Some(value) => headers.set(id, value.as_bytes()),
        None => headers.remove(id),
    }
}

/// A byte sequence of RFC 8941.
fn bytes(certificate: &[u8]) -> String {
    format!(":{}:", STANDARD.encode(certificate))
}

fn own_bytes(chain: &ClientChain) -> String {
    bytes(chain.own())
}

fn chain_bytes(chain: &ClientChain) -> String {
    chain.certificates.iter().skip(1).map(|one| bytes(one)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Case, entry};

    /// SHA-256 of `leaf`.
    const HASH: &str = "Hash=9f91161f43433e49a6de6db680d79f60159f2e4ac9172621a12846428158440b";

    fn tls(verify: &str, subject: &str, uris: &[&str], dns: &[&str]) -> Tls {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let certificates = vec![(*b"leaf").into(), (*b"issuer").into()];
        let (uris, dns_names, gateway_uris) = (texts(uris), texts(dns), texts(&["spiffe://a.b/gw"]));
        let chain = ClientChain { certificates, uris, dns_names, gateway_uris };
        Tls {
            client_verify: verify.to_owned(),
            client_subject: Some(subject.to_owned()),
            client_chain: Some(Box::new(chain)),
            ..Tls::default()
        }
    }

    /// Returns the node's fields for a client with these fields.
    fn told(conf: Value, tls: Option<Tls>, fields: &str) -> [Option<String>; 3] {
        let plugin = entry("forward-client-cert", conf).unwrap();
        let mut case = Case::new(&format!("GET / HTTP/1.1\nHost: h{fields}"));
        case.ctx.client.tls = tls.map(Rc::new);
        assert!(case.run(&plugin, Phase::Rewrite).is_none());
        [HeaderId::XForwardedClientCert, HeaderId::ClientCert, HeaderId::ClientCertChain].map(|id| {
            let values: Vec<_> = case.ctx.request.headers.get_all(id).map(String::from_utf8_lossy).collect();
            (!values.is_empty()).then(|| values.join("|"))
        })
    }

    #[test]
    fn the_mode_decides_on_fields_of_trusted_peers() {
        let sent = "\nX-Forwarded-Client-Cert: Hash=1\nX-Forwarded-Client-Cert: Hash=2";
        let check = |mode: &str, verify: &str, expected: Option<&str>| {
            let details = json!({"subject": false, "uri": false, "dns": false});
            let conf = json!({
                "forward_client_cert_details": mode, "set_current_client_cert_details": details,
            });
            let got = told(conf, Some(tls(verify, "", &[], &[])), sent)[0].clone();
            assert_eq!(got.as_deref(), expected, "{mode} {verify}");
        };
        let own = &*format!("By=spiffe://a.b/gw;{HASH}");
        let both = &*format!("Hash=1,Hash=2,{own}");
        for (mode, with, without) in [
            ("sanitize", None, None),
            ("forward_only", Some("Hash=1|Hash=2"), None),
            ("append_forward", Some(both), None),
            ("sanitize_set", Some(own), None),
            ("always_forward_only", Some("Hash=1|Hash=2"), Some("Hash=1|Hash=2")),
        ] {
            check(mode, "SUCCESS", with);
            check(mode, "FAILED", without);
            check(mode, "NONE", without);
        }
        assert_eq!(told(json!({}), None, sent), [None, None, None]);
    }

    #[test]
    fn nothing_in_a_certificate_ends_its_element() {
        let check = |subject: &str, uris: &[&str], dns: &[&str], expected: &str| {
            let got = told(json!({}), Some(tls("SUCCESS", subject, uris, dns)), "")[0].clone().unwrap();
            assert_eq!(got, format!("By=spiffe://a.b/gw;{HASH};{expected}"));
        };
        check(
            "CN=web,O=A",
            &["spiffe://a.b/web"],
            &["w.test"],
            "Subject=\"CN=web,O=A\";URI=spiffe://a.b/web;DNS=w.test",
        );
        check("", &[], &[], "Subject=\"\";URI=");
        check(
            "CN=a\\\",By=b\\\\",
            &["spiffe://a.b/x,By=spiffe://evil;Hash=1", "u:a\r\nX: \"1\" é"],
            &[],
            "Subject=\"CN=a\\22,By=b\\5C\";URI=spiffe://a.b/x%2CBy%3Dspiffe://evil%3BHash%3D1;URI=u:a%0D%0AX:%20%221%22%20%C3%A9",
        );
    }

    #[test]
    fn whole_certificates_are_sent_on_request() {
        let all = json!({
            "set_current_client_cert_details": {"cert": true, "chain": true, "subject": false, "uri": false, "dns": false},
            "client_cert": true, "client_cert_chain": true,
        });
        let forged = "\nClient-Cert: :forged:\nClient-Cert-Chain: :forged:";
        let [field, cert, chain] = told(all.clone(), Some(tls("SUCCESS", "", &[], &[])), forged);
        let leaf = "-----BEGIN%20CERTIFICATE-----%0AbGVhZg%3D%3D%0A-----END%20CERTIFICATE-----%0A";
        let issuer = "-----BEGIN%20CERTIFICATE-----%0AaXNzdWVy%0A-----END%20CERTIFICATE-----%0A";
        let expected = format!("By=spiffe://a.b/gw;{HASH};Cert=\"{leaf}\";Chain=\"{leaf}{issuer}\"");
        assert_eq!(field.as_deref(), Some(&*expected));
        assert_eq!((cert.as_deref(), chain.as_deref()), (Some(":bGVhZg==:"), Some(":aXNzdWVy:")));
        assert_eq!(told(all, Some(tls("FAILED", "", &[], &[])), forged), [None, None, None]);
    }

    #[test]
    fn bad_configurations_are_refused() {
        let refused =
            entry("forward-client-cert", json!({"forward_client_cert_details": "all"})).err().unwrap();
        assert!(refused.contains("forward_client_cert_details"), "{refused}");
        let conf = json!({"set_current_client_cert_details": {"hash": true}});
        assert!(entry("forward-client-cert", conf).is_err());
    }
}
