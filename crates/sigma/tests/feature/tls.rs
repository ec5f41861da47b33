//! TLS and the PROXY protocol on either side, with certificates made on the spot. The other side is
//! the gateway's own TLS, and OpenSSL where it must not be.

use std::cell::RefCell;
use std::future::Future;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use sigma_net::Stream;
use sigma_net::tls::pem::{Pair, parse_chain};
use sigma_net::tls::{
    AcceptOptions, Authorities, ClientAuth, ClientSettings, ClientTls, Demand, Handshakes, Identity,
    Resumption, ServerIdentity, Trust, Versions, accept,
};
use sigma_testkit::{Gateway, Origin, Peer, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::{PATIENCE, SIGMA};

/// Runs a test whose tasks stay on its thread; what takes longer than the patience has failed.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let test = async { tokio::time::timeout(PATIENCE, test).await.expect("the test takes too long") };
    runtime.block_on(local.run_until(test))
}

/// An authority that issues certificates.
pub(crate) struct Authority {
    pub(crate) issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub(crate) struct Issued {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    pub(crate) fn issue(&self, name: &str) -> Issued {
        self.issue_for(name, &rcgen::PKCS_ECDSA_P256_SHA256)
    }

    /// A certificate that is valid in these years alone.
    pub(crate) fn issue_within(&self, name: &str, years: std::ops::Range<i32>) -> Issued {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(years.start, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.end, 1, 1);
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        Issued { cert: cert.pem(), key: key.serialize_pem() }
    }

    pub(crate) fn issue_for(&self, name: &str, algorithm: &'static rcgen::SignatureAlgorithm) -> Issued {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        Issued { cert: cert.pem(), key: key.serialize_pem() }
    }

    pub(crate) fn trust(&self) -> Trust {
        Trust::Authorities(Authorities::from_pem(&self.pem).unwrap())
    }

    /// A client that trusts this authority.
    pub(crate) fn client(&self, own: Option<&Issued>) -> ClientTls {
        let pair = own.map(|own| Pair::parse(&own.cert, &own.key, None).unwrap());
        ClientTls::new(ClientSettings { trust: self.trust(), pair, ..ClientSettings::default() }).unwrap()
    }
}

impl Issued {
    /// As members of an ssl.
    pub(crate) fn ssl(&self, mut rest: Value) -> Value {
        rest["cert"] = self.cert.as_str().into();
        rest["key"] = self.key.as_str().into();
        rest
    }

    pub(crate) fn files(&self, dir: &std::path::Path, name: &str) -> Value {
        let path = |kind: &str| dir.join(format!("{name}.{kind}"));
        std::fs::write(path("crt"), &self.cert).unwrap();
        std::fs::write(path("key"), &self.key).unwrap();
        json!({ "cert": path("crt"), "key": path("key") })
    }
}

/// A configuration with one TLS listener, and one route for everything.
pub(crate) fn config(tls: Value, upstream: Value, rest: Value) -> String {
    let mut whole = json!({
        "workers": 2,
        "listeners": [{ "address": "{listen}", "tls": tls }],
        "routes": [{ "id": "all", "uri": "/*", "upstream": upstream }],
    });
    whole.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    whole.to_string()
}

pub(crate) fn to_origin(origin: &Origin) -> Value {
    json!({ "nodes": { format!("127.0.0.1:{}", origin.port()): 1 } })
}

/// Shakes hands with the gateway.
pub(crate) async fn shake(gateway: &Gateway, client: &ClientTls, name: &str) -> Result<Stream, String> {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], gateway.address().port().unwrap()));
    let socket = Stream::connect_tcp(address).await.map_err(|error| error.to_string())?;
    client.shake(socket, name).await.map_err(|error| error.to_string())
}

/// One request and its response, head and body.
pub(crate) async fn ask(
    stream: &mut Stream,
    host: &str,
    path: &str,
    fields: &str,
) -> std::io::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&answer).to_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.split_once("content-length: ").map_or("0", |(_, rest)| rest.lines().next().unwrap());
            if body.len() >= length.parse::<usize>().unwrap() {
                return Ok(String::from_utf8_lossy(&answer).into_owned());
            }
        }
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => answer.extend_from_slice(&bytes[..n]),
        }
    }
}

pub(crate) fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Returns the issuer of the certificate for a name; the error of the handshake if there is no certificate.
pub(crate) async fn shown(gateway: &Gateway, root: &Authority, name: &str) -> Result<Vec<u8>, String> {
    let stream = shake(gateway, &root.client(None), name).await?;
    Ok(stream.tls().unwrap().peer_chain[0].to_vec())
}

pub(crate) fn der(issued: &Issued) -> Vec<u8> {
    parse_chain(&issued.cert).unwrap()[0].to_vec()
}

#[test]
fn the_name_decides_which_certificate_is_shown() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let [exact, wildcard, own] = ["a.test", "*.a.test", "b.test"].map(|name| root.issue(name));
    let tls = json!({ "certificates": [own.files(dir.path(), "own")] });
    let ssls = json!([
        exact.ssl(json!({ "id": "exact", "sni": "a.test" })),
        wildcard.ssl(json!({ "id": "wild", "snis": ["*.a.test", "c.test"] })),
        own.ssl(json!({ "id": "off", "sni": "x.a.test", "status": 0 })),
    ]);
    let text = config(tls, to_origin(&origin), json!({ "ssls": ssls }));
    let gateway = Gateway::start(SIGMA, &text).unwrap();
    run(async {
        for (name, expected) in
            [("a.test", &exact), ("A.TEST", &exact), ("x.a.test", &wildcard), ("b.test", &own)]
        {
            assert_eq!(shown(&gateway, &root, name).await.as_ref(), Ok(&der(expected)), "{name}");
        }
        // The star matches exactly one label: the default is shown, and is not for this name.
        let refused = shown(&gateway, &root, "x.y.a.test").await.unwrap_err();
        assert!(refused.contains("certificate"), "{refused}");
    });
}

#[test]
fn the_name_decides_among_the_pairs_of_a_listener() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let [shop, blog] = ["shop.test", "blog.test"].map(|name| root.issue(name));
    let tls = json!({ "certificates": [shop.files(dir.path(), "shop"), blog.files(dir.path(), "blog")] });
    let gateway = Gateway::start(SIGMA, &config(tls, to_origin(&origin), json!({}))).unwrap();
    run(async {
        for (name, expected) in [("shop.test", &shop), ("blog.test", &blog), ("BLOG.test", &blog)] {
            assert_eq!(shown(&gateway, &root, name).await.as_ref(), Ok(&der(expected)), "{name}");
        }
        let refused = shown(&gateway, &root, "other.test").await.unwrap_err();
        assert!(refused.contains("certificate"), "{refused}");
    });
}

#[test]
fn a_listener_without_a_certificate_for_a_name_says_so() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let issued = root.issue("a.test");
    let rest = json!({
        "ssls": [issued.ssl(json!({ "id": "1", "sni": "a.test" }))],
        "tls": { "fallback_sni": "a.test" },
    });
    let gateway = Gateway::start(SIGMA, &config(json!(true), to_origin(&origin), rest)).unwrap();
    run(async {
        let refused = shown(&gateway, &root, "b.test").await.unwrap_err();
        assert!(refused.contains("unrecognised name"), "{refused}");
    });
    // Without a name the fallback is requested.
    let (ok, output) = openssl(&gateway, &["-noservername"]);
    assert!(ok && output.contains("CN = a.test"), "{output}");
}

/// Runs `openssl s_client`; returns whether the handshake succeeded, and its output.
pub(crate) fn openssl(gateway: &Gateway, options: &[&str]) -> (bool, String) {
    let address = format!("127.0.0.1:{}", gateway.address().port().unwrap());
    let output = Command::new("openssl")
        .args(["s_client", "-connect", &address])
        .args(options)
        .stdin(Stdio::null())
        .output()
        .expect("openssl is missing; `apt-get install openssl` brings it, and `make test` does so");
    let text =
        [output.stdout, output.stderr].map(|part| String::from_utf8_lossy(&part).into_owned()).concat();
    (!text.contains("Cipher is (NONE)"), text)
}

#[test]
fn old_versions_are_refused_and_both_kinds_of_keys_serve() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let ecdsa = root.issue("a.test").files(dir.path(), "ecdsa");
    let rsa = root.issue_for("a.test", &rcgen::PKCS_RSA_SHA256).files(dir.path(), "rsa");
    let tls = json!({ "certificates": [rsa, ecdsa], "alpn": ["http/1.1"] });
    let gateway = Gateway::start(SIGMA, &config(tls, to_origin(&origin), json!({}))).unwrap();
    let check = |options: &[&str], expected: Option<&str>| {
        let (ok, output) = openssl(&gateway, options);
        assert_eq!(ok, expected.is_some(), "{options:?}: {output}");
        assert!(output.contains(expected.unwrap_or_default()), "{options:?}: {output}");
    };
    let lax = "DEFAULT:@SECLEVEL=0";
    check(&["-tls1", "-cipher", lax], None);
    check(&["-tls1_1", "-cipher", lax], None);
    check(&["-tls1_2"], Some("TLSv1.2, Cipher is ECDHE-ECDSA-AES"));
    check(&["-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256"], Some("ECDHE-RSA-AES128-GCM-SHA256"));
    check(&["-tls1_2", "-cipher", "AES128-SHA:AES128-GCM-SHA256"], None);
    check(&["-tls1_3", "-sigalgs", "RSA-PSS+SHA256"], Some("Peer signature type: RSA-PSS"));
    check(&["-tls1_3", "-sigalgs", "ECDSA+SHA256"], Some("Peer signature type: ECDSA"));
    check(&["-alpn", "h2,http/1.1"], Some("ALPN protocol: http/1.1"));
}

#[test]
fn a_session_goes_on_as_the_settings_say() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let own = root.issue("a.test").files(dir.path(), "own");
    for (resumption, expected) in [("tickets", true), ("cache", true), ("off", false)] {
        let rest = json!({ "tls": { "resumption": resumption } });
        let tls = json!({ "certificates": [own] });
        let gateway = Gateway::start(SIGMA, &config(tls, to_origin(&origin), rest)).unwrap();
        run(async {
            let client = root.client(None);
            for first in [true, false] {
                let mut stream = shake(&gateway, &client, "a.test").await.unwrap();
                assert_eq!(stream.tls().unwrap().is_resumed, expected && !first, "{resumption}");
                // The ticket comes with the response.
                assert_eq!(status(&ask(&mut stream, "a.test", "/", "").await.unwrap()), 200);
            }
        });
    }
}

/// One call of the Admin API: status and body.
pub(crate) fn admin(gateway: &Gateway, method: &str, path: &str, body: &Value) -> (u16, String) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    // It listens a little later than the data plane.
    let mut peer = None;
    until(PATIENCE, || {
        Peer::connect(&gateway.admin_address()).map(|connected| peer = Some(connected)).is_ok()
    });
    // On a busy machine a response takes its time.
    let mut peer = peer.unwrap().with_deadline(PATIENCE);
    let head = format!("{method} /apisix/admin/{path} HTTP/1.1\r\nHost: admin\r\nX-API-KEY: test-key\r\n");
    let answer = peer.ask(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len())).unwrap();
    (answer.status(), answer.text())
}

#[test]
fn certificates_change_through_the_admin_api_without_effect_on_others() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let [first, second, other] = ["a.test", "a.test", "b.test"].map(|name| root.issue(name));
    let text = json!({
        "workers": 2,
        "listeners": [{ "address": "{listen}", "tls": true }],
        "admin": { "address": "{admin}", "keys": [{ "key": "test-key" }] },
        "store": { "kind": "embedded", "path": "{dir}/data" },
    });
    let gateway = Gateway::start(SIGMA, &text.to_string()).unwrap();
    let route = json!({ "uri": "/*", "upstream": to_origin(&origin) });
    assert_eq!(admin(&gateway, "PUT", "routes/1", &route).0, 201);
    let put = |id: &str, name: &str, issued: &Issued| {
        let (status, answer) =
            admin(&gateway, "PUT", &format!("ssls/{id}"), &issued.ssl(json!({ "sni": name })));
        assert!(status < 300, "{answer}");
        assert!(!answer.contains("PRIVATE KEY"), "{answer}");
    };
    put("a", "a.test", &first);
    put("b", "b.test", &other);
    run(async {
        let settled = async |name: &str, expected: Option<&Issued>| {
            let expected = expected.map(der);
            // Each worker takes the change over by itself.
            let mut row = 0;
            while row < 8 {
                row = if shown(&gateway, &root, name).await.ok() == expected { row + 1 } else { 0 };
            }
        };
        settled("a.test", Some(&first)).await;
        settled("b.test", Some(&other)).await;
        let mut of_a = shake(&gateway, &root.client(None), "a.test").await.unwrap();
        let mut of_b = shake(&gateway, &root.client(None), "b.test").await.unwrap();
        put("a", "a.test", &second);
        settled("a.test", Some(&second)).await;
        let (code, answer) = admin(
            &gateway,
            "PUT",
            "ssls/a",
            &json!({
                "sni": "a.test", "cert": first.cert, "key": other.key,
            }),
        );
        // APISIX takes a pair that does not fit; here nothing is stored that could not be served.
        assert_eq!(code, 400, "{answer}");
        settled("a.test", Some(&second)).await;
        put("a", "a.test", &second);
        assert_eq!(admin(&gateway, "DELETE", "ssls/a", &Value::Null).0, 200);
        settled("a.test", None).await;
        for (stream, host) in [(&mut of_a, "a.test"), (&mut of_b, "b.test")] {
            assert_eq!(status(&ask(stream, host, "/", "").await.unwrap()), 200, "{host}");
        }
        settled("b.test", Some(&other)).await;
    });
    for path in ["ssls/b", "ssls"] {
        let (_, text) = admin(&gateway, "GET", path, &Value::Null);
        assert!(text.contains("b.test") && !text.contains("PRIVATE KEY"), "{text}");
    }
    let logged = gateway.stderr() + &gateway.stdout();
    assert!(!logged.contains("PRIVATE KEY") && !logged.contains(&first.key[40..80]), "{logged}");
}

#[test]
fn clients_show_their_certificates() {
    let (root, clients, origin) =
        (Authority::new("Root"), Authority::new("Clients"), Origin::echo("a").unwrap());
    let (open, strict, lax) = (root.issue("open.test"), root.issue("strict.test"), root.issue("lax.test"));
    let deep = root.issue("*.deep.test");
    let (known, stranger) = (clients.issue("known"), Authority::new("Others").issue("stranger"));
    let ssls = json!([
        open.ssl(json!({ "id": "open", "sni": "open.test" })),
        strict.ssl(json!({ "id": "strict", "sni": "strict.test", "client": { "ca": clients.pem } })),
        lax.ssl(json!({
            "id": "lax", "sni": "lax.test",
            "client": { "ca": clients.pem, "skip_mtls_uri_regex": ["^/open"] },
        })),
        deep.ssl(json!({ "id": "deep", "sni": "*.deep.test", "client": { "ca": clients.pem } })),
    ]);
    let format =
        "$uri $status $scheme $https $ssl_protocol $ssl_server_name $ssl_client_verify $ssl_client_s_dn";
    let rest = json!({ "ssls": ssls, "access_log": { "path": "stdout", "format": format, "flush_ms": 100 } });
    let gateway = Gateway::start(SIGMA, &config(json!(true), to_origin(&origin), rest)).unwrap();
    run(async {
        let answer = async |own: Option<&Issued>, name: &str, host: &str, path: &str| {
            let mut stream = shake(&gateway, &root.client(own), name).await?;
            ask(&mut stream, host, path, "")
                .await
                .map_err(|error| error.to_string())
                .map(|text| status(&text))
        };
        for (own, name, host, path, expected) in [
            (None, "open.test", "open.test", "/", Some(200)),
            (None, "strict.test", "strict.test", "/", None),
            (Some(&stranger), "strict.test", "strict.test", "/", None),
            (Some(&known), "strict.test", "strict.test", "/strict", Some(200)),
            (None, "lax.test", "lax.test", "/open", Some(200)),
            (None, "lax.test", "lax.test", "/closed", Some(400)),
            (Some(&stranger), "lax.test", "lax.test", "/stranger", Some(400)),
            (Some(&known), "lax.test", "lax.test:443", "/closed", Some(200)),
            // One name is no way to another one that requests more.
            (None, "open.test", "strict.test", "/", Some(421)),
            (None, "open.test", "LAX.test", "/open", Some(421)),
            (None, "open.test", "strict.test.", "/", Some(421)),
            (Some(&known), "strict.test", "lax.test", "/", Some(421)),
            (None, "lax.test", "open.test", "/closed", Some(400)),
            // A wildcard guards all names that it routes, at any depth.
            (Some(&known), "a.deep.test", "a.deep.test", "/", Some(200)),
            (None, "open.test", "a.deep.test", "/", Some(421)),
            (None, "open.test", "a.b.deep.test", "/", Some(421)),
            (Some(&known), "a.deep.test", "b.deep.test", "/", Some(421)),
            // Once any name has a guard, a session is for its own names.
            (None, "open.test", "elsewhere.test", "/", Some(421)),
            (None, "open.test", "open.test.", "/", Some(200)),
        ] {
            let got = answer(own, name, host, path).await;
            assert_eq!(got.as_ref().ok(), expected.as_ref(), "{name} {host} {path}: {got:?}");
        }
    });
    for line in [
        "/strict 200 https on TLSv1.3 strict.test SUCCESS CN=known",
        "/stranger 400 https on TLSv1.3 lax.test FAILED CN=stranger",
        "/open 200 https on TLSv1.3 lax.test NONE -",
    ] {
        assert!(until(PATIENCE, || gateway.stdout().contains(line)), "{line}\n{}", gateway.stdout());
    }
}

#[test]
fn name_with_client_certificates_is_not_served_without_tls() {
    let (root, clients, origin) =
        (Authority::new("Root"), Authority::new("Clients"), Origin::echo("a").unwrap());
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("gateway.sock");
    let guarded = |name: &str, mut client: Value| {
        client["ca"] = clients.pem.as_str().into();
        root.issue(name).ssl(json!({ "id": name.replace('*', "any"), "sni": name, "client": client }))
    };
    let rest = json!({
        "listeners": [
            { "address": "{listen}" },
            { "address": format!("unix:{}", socket.display()) },
            { "address": "127.0.0.1:0", "tls": true },
        ],
        "ssls": [
            root.issue("open.test").ssl(json!({ "id": "open", "sni": "open.test" })),
            guarded("strict.test", json!({})),
            guarded("lax.test", json!({ "skip_mtls_uri_regex": ["^/open"] })),
            guarded("*.deep.test", json!({})),
            guarded("behind.test", json!({ "cleartext": "allow" })),
        ],
        "access_log": { "path": "stdout", "format": "$host $uri $status", "flush_ms": 100 },
    });
    let gateway = Gateway::start(SIGMA, &config(json!(true), to_origin(&origin), rest)).unwrap();
    let cases = [
        ("open.test", "/", 200),
        ("elsewhere.test", "/", 200),
        ("strict.test", "/", 421),
        ("STRICT.test.", "/", 421),
        ("strict.test:80", "/", 421),
        ("lax.test", "/open", 200),
        ("lax.test", "/closed", 421),
        ("a.deep.test", "/", 421),
        ("a.b.deep.test", "/", 421),
        ("behind.test", "/", 200),
    ];
    for address in [gateway.address(), sigma_testkit::Address::Unix(socket)] {
        let mut peer = Peer::connect(&address).unwrap().with_deadline(PATIENCE);
        for (host, path, expected) in cases {
            let fields = "X-Forwarded-Proto: https\r\n";
            peer.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n")).unwrap();
            let answer = peer.read_response("GET").unwrap();
            assert_eq!(answer.status(), expected, "{host} {path}: {}", answer.text());
        }
        // The target's host counts, as it does for routes.
        peer.send("GET http://strict.test/ HTTP/1.1\r\nHost: open.test\r\n\r\n").unwrap();
        assert_ne!(peer.read_response("GET").unwrap().status(), 200);
    }
    crate::h2::within(async {
        let (sender, _driver) = crate::h2::connect(&gateway).await;
        for (host, path, expected) in cases.into_iter().filter(|(host, ..)| !host.ends_with('.')) {
            let request = http::Request::builder().uri(format!("http://{host}{path}")).body(()).unwrap();
            let (status, ..) = crate::h2::ask(&sender, request, None).await;
            assert_eq!(status, expected, "{host} {path}");
        }
    });
}

#[test]
fn nodes_get_facts_about_tls_and_the_end_is_sent() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let tls = json!({ "certificates": [root.issue("a.test").files(dir.path(), "own")] });
    let gateway = Gateway::start(SIGMA, &config(tls, to_origin(&origin), json!({}))).unwrap();
    run(async {
        let mut stream = shake(&gateway, &root.client(None), "a.test").await.unwrap();
        let answer = ask(&mut stream, "a.test", "/", "Connection: close\r\n").await.unwrap();
        assert!(answer.to_lowercase().contains("x-forwarded-proto") && answer.contains("https"), "{answer}");
        // A close without the closing alert would be an error here.
        assert_eq!(stream.read(&mut [0; 16]).await.unwrap(), 0);
    });
}

#[test]
fn a_slow_handshake_is_ended() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let files = root.issue("a.test").files(dir.path(), "own");
    let tls = json!({ "certificates": [files], "handshake_timeout_ms": 300, "hello_bytes": 1024 });
    let rest = json!({ "status": { "address": "{status}" } });
    let gateway = Gateway::start(SIGMA, &config(tls, to_origin(&origin), rest)).unwrap();
    for bytes in [&b""[..], &[22, 3, 1], &[&[22, 3, 1, 8, 0][..], &[1, 0, 7, 252], &[0; 1100]].concat()] {
        let mut peer = gateway.connect().unwrap();
        peer.send(bytes).unwrap();
        // After any alert the end follows.
        let _ = peer.read_to_close();
    }
    let failures = || {
        let text = Peer::connect(&gateway.status_address()).unwrap().get("/status/counters").unwrap().text();
        text.lines().any(|line| line.contains("tls_handshake_failures") && !line.contains(" 0"))
    };
    assert!(until(PATIENCE, failures));
}

/// A node's view of one connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) server_name: String,
    pub(crate) verified: &'static str,
    pub(crate) alpn: String,
}

/// A node over TLS on a free port, and its view.
pub(crate) async fn node(issued: &Issued, clients: Option<&Authority>) -> (u16, Rc<RefCell<Vec<Seen>>>) {
    let identity = Identity {
        pairs: vec![Pair::parse(&issued.cert, &issued.key, None).unwrap()],
        versions: Versions::ALL,
        offer: sigma_net::tls::Offer::default(),
        client_auth: clients.map(|ca| ClientAuth::new(&ca.pem, 1, Demand::Optional).unwrap()),
        resumption: Resumption::Off,
    };
    let identity = Arc::new(ServerIdentity::new(identity).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, seen) = (listener.local_addr().unwrap().port(), Rc::new(RefCell::new(Vec::new())));
    let noted = Rc::clone(&seen);
    tokio::task::spawn_local(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (identity, noted) = (Arc::clone(&identity), Rc::clone(&noted));
            tokio::task::spawn_local(async move {
                let alpn = [&b"h2"[..], b"http/1.1"].map(<[u8]>::to_vec).into();
                let options = AcceptOptions { alpn, ..AcceptOptions::default() };
                let turns = Handshakes::new(8);
                let choose = |_: Option<&str>| Some(identity);
                let Ok(mut stream) = accept(Stream::Tcp(socket), b"", &options, &turns, choose).await else {
                    return;
                };
                let facts = stream.tls().unwrap();
                noted.borrow_mut().push(Seen {
                    server_name: facts.server_name.as_deref().unwrap_or_default().to_owned(),
                    verified: facts.client_certificate.as_str(),
                    alpn: String::from_utf8_lossy(facts.alpn.as_deref().unwrap_or_default()).into_owned(),
                });
                if facts.alpn.as_deref() == Some(b"h2") {
                    return answer_streams(stream).await;
                }
                let mut bytes = [0; 4096];
                while stream.read(&mut bytes).await.is_ok_and(|n| n > 0) {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
                    let _ = stream.flush().await;
                }
            });
        }
    });
    (port, seen)
}

/// Responds to every request on an HTTP/2 connection.
async fn answer_streams(stream: Stream) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        assert_eq!(request.uri().scheme_str(), Some("https"));
        let _ = respond.send_response(http::Response::new(()), true);
    }
}

/// One request in cleartext, off this thread's tasks; its status.
pub(crate) async fn plain(gateway: &Gateway, host: &str) -> u16 {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], gateway.address().port().unwrap()));
    let mut stream = Stream::connect_tcp(address).await.unwrap();
    status(&ask(&mut stream, host, "/", "").await.unwrap())
}

/// A gateway in cleartext in front of an upstream.
pub(crate) fn in_cleartext(upstream: Value, rest: Value) -> Gateway {
    let mut whole: Value = serde_json::from_str(&config(json!(true), upstream, rest)).unwrap();
    whole["listeners"] = json!(["{listen}"]);
    whole["access_log"] = json!({ "path": "stdout", "format": "$status $upstream_scheme", "flush_ms": 100 });
    Gateway::start(SIGMA, &whole.to_string()).unwrap()
}

#[test]
fn nodes_over_tls_are_verified_and_shown_a_certificate() {
    let (root, clients) = (Authority::new("Root"), Authority::new("Clients"));
    let own = clients.issue("gateway");
    run(async {
        let (port, seen) = node(&root.issue("node.test"), Some(&clients)).await;
        let nodes = json!({ format!("127.0.0.1:{port}"): 1 });
        let upstream = |tls: Value| {
            json!({
                "nodes": nodes, "scheme": "https", "tls": tls,
                "pass_host": "rewrite", "upstream_host": "node.test",
            })
        };
        let shown = json!({ "client_cert": own.cert, "client_key": own.key });
        let by_id = json!({ "ssls": [own.ssl(json!({ "id": "c", "type": "client" }))] });
        for (tls, rest, expected, verified) in [
            (json!({}), json!({}), 200, "NONE"),
            (json!({ "verify": true, "ca": root.pem }), json!({}), 200, "NONE"),
            (json!({ "verify": true, "ca": clients.pem }), json!({}), 502, ""),
            (shown, json!({}), 200, "SUCCESS"),
            (json!({ "client_cert_id": "c" }), by_id, 200, "SUCCESS"),
        ] {
            seen.borrow_mut().clear();
            let gateway = in_cleartext(upstream(tls.clone()), rest);
            for _ in 0..2 {
                assert_eq!(plain(&gateway, "client.test").await, expected, "{tls}");
            }
            if expected == 200 {
                // Each worker has connections of its own; on each the facts are the same.
                let seen = seen.borrow();
                let alpn = "http/1.1".to_owned();
                let wanted = Seen { server_name: "node.test".into(), verified, alpn };
                assert!(!seen.is_empty() && seen.iter().all(|seen| *seen == wanted), "{tls}: {seen:?}");
            }
            assert!(until(PATIENCE, || gateway.stdout().contains(&format!("{expected} https"))));
        }
        // The client's own host is requested, and verified, where it is forwarded.
        let tls = json!({ "verify": true, "ca": root.pem });
        let gateway = in_cleartext(json!({ "nodes": nodes, "scheme": "https", "tls": tls }), json!({}));
        assert_eq!(plain(&gateway, "node.test").await, 200);
        assert_eq!(plain(&gateway, "other.test").await, 502);
        // HTTP/2 is no way around it.
        let gateway = in_cleartext(json!({ "nodes": nodes, "scheme": "grpcs", "tls": tls }), json!({}));
        assert_eq!(plain(&gateway, "node.test").await, 200);
        assert_eq!(plain(&gateway, "other.test").await, 502);
    });
}

#[test]
fn probes_go_over_tls() {
    let root = Authority::new("Root");
    run(async {
        let (port, seen) = node(&root.issue("node.test"), None).await;
        for (verify, ca, expected) in
            [(false, None, "healthy"), (true, Some(&root.pem), "healthy"), (true, None, "unhealthy")]
        {
            seen.borrow_mut().clear();
            let active = json!({
                "type": "https", "https_verify_certificate": verify, "host": "node.test",
                "healthy": { "interval": 1, "successes": 1 },
                "unhealthy": { "interval": 1, "tcp_failures": 1 },
            });
            let other = Authority::new("Other").pem;
            let upstream = json!({
                "nodes": { format!("127.0.0.1:{port}"): 1 }, "scheme": "https",
                "tls": { "ca": ca.unwrap_or(&other) }, "checks": { "active": active },
            });
            let rest = json!({ "control": { "address": "{control}" } });
            let gateway = in_cleartext(upstream, rest);
            loop {
                let address = gateway.control_address();
                let answer = tokio::task::spawn_blocking(move || {
                    Peer::connect(&address).unwrap().get("/v1/healthcheck").unwrap().text()
                });
                let answer = answer.await.unwrap();
                let probed = expected == "unhealthy" || !seen.borrow().is_empty();
                if probed && answer.contains(&format!("\"{expected}\"")) {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            assert!(seen.borrow().iter().all(|seen| seen.server_name == "node.test"));
        }
    });
}

#[test]
fn a_trusted_balancer_says_whose_connection_it_is() {
    let origin = Origin::echo("a").unwrap();
    let listener = |trusted: Value| {
        let mut whole: Value =
            serde_json::from_str(&config(json!(true), to_origin(&origin), json!({}))).unwrap();
        let proxy_protocol = json!({ "trusted": trusted, "timeout_ms": 300 });
        whole["listeners"] = json!([{ "address": "{listen}", "proxy_protocol": proxy_protocol }]);
        Gateway::start(SIGMA, &whole.to_string()).unwrap()
    };
    let request = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    let v1 = b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 443\r\n";
    let v2 =
        [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &[203, 0, 113, 8, 192, 0, 2, 1, 0x12, 0x67, 1, 0xbb]]
            .concat();
    let own = &b"PROXY UNKNOWN\r\n"[..];
    let gateway = listener(json!(["127.0.0.0/8"]));
    for (header, client) in [(&v1[..], "203.0.113.7"), (&v2, "203.0.113.8"), (own, "127.0.0.1")] {
        let answer = gateway.connect().unwrap().ask_after(header, request);
        assert!(answer.contains(&format!("\"x-real-ip\",\"{client}\"")), "{client}: {answer}");
    }
    // A trusted peer that does not begin with a header is not served at all.
    for bad in [&request[..], b"PROXY TCP4 bad\r\n", b"PRO"] {
        let mut peer = gateway.connect().unwrap();
        peer.send(bad).unwrap();
        assert_eq!(peer.read_to_close().unwrap(), b"", "{bad:?}");
    }
    // From others a header is nothing but a malformed request.
    let gateway = listener(json!(["192.0.2.0/24"]));
    let answer = gateway.connect().unwrap().ask_after(v1, request);
    assert!(answer.starts_with("http/1.1 400"), "{answer}");
    let answer = gateway.connect().unwrap().ask_after(b"", request);
    assert!(answer.contains("\"x-real-ip\",\"127.0.0.1\""), "{answer}");
}

/// A step of a client: a header, then a request; the response in lower case.
trait AskAfter {
    fn ask_after(&mut self, header: &[u8], request: &[u8]) -> String;
}

impl AskAfter for Peer {
    fn ask_after(&mut self, header: &[u8], request: &[u8]) -> String {
        // In two writes, so that the header may come alone.
        self.send(header).unwrap();
        self.send(request).unwrap();
        let answer = self.read_response("GET").unwrap();
        format!("HTTP/1.1 {}\n{}", answer.status(), answer.text()).to_lowercase()
    }
}

#[test]
fn the_header_comes_before_the_handshake() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let tls = json!({ "certificates": [root.issue("a.test").files(dir.path(), "own")] });
    let mut whole: Value = serde_json::from_str(&config(tls, to_origin(&origin), json!({}))).unwrap();
    whole["listeners"][0]["proxy_protocol"] = json!({ "trusted": ["127.0.0.1"] });
    let gateway = Gateway::start(SIGMA, &whole.to_string()).unwrap();
    run(async {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], gateway.address().port().unwrap()));
        let mut socket = Stream::connect_tcp(address).await.unwrap();
        socket.write_all(b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 443\r\n").await.unwrap();
        let mut stream = root.client(None).shake(socket, "a.test").await.unwrap();
        let answer = ask(&mut stream, "a.test", "/", "").await.unwrap().to_lowercase();
        assert!(answer.contains("2001:db8::7") && answer.contains("https"), "{answer}");
    });
}

#[test]
fn nodes_get_the_address_of_the_client() {
    for version in ["v1", "v2"] {
        let origin = Origin::scripted().unwrap();
        let mut whole: Value =
            serde_json::from_str(&config(json!(true), to_origin(&origin), json!({}))).unwrap();
        whole["listeners"] = json!(["{listen}"]);
        whole["routes"][0]["upstream"]["proxy_protocol"] = version.into();
        let gateway = Gateway::start(SIGMA, &whole.to_string()).unwrap();
        let mut clients = [gateway.connect().unwrap(), gateway.connect().unwrap()];
        for client in &mut clients {
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            // Never the connection of another client, idle or not.
            let mut node = origin.accept().unwrap();
            if version == "v1" {
                let port = client.local_port();
                let line = node.read_line().unwrap();
                assert!(
                    line.starts_with("PROXY TCP4 127.0.0.1 127.0.0.1 ")
                        && line.contains(&format!(" {port} ")),
                    "{line}"
                );
            } else {
                let header = node.read_exactly(28).unwrap();
                assert!(header.starts_with(b"\r\n\r\n\0\r\nQUIT\n\x21\x11"), "{header:?}");
                assert_eq!(header[24..26], client.local_port().to_be_bytes());
            }
            // The same client's next request may continue with it.
            for _ in 0..2 {
                node.read_request().unwrap();
                node.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
                assert_eq!(client.read_response("GET").unwrap().status(), 200);
                client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            }
            node.read_request().unwrap();
            node.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
            assert_eq!(client.read_response("GET").unwrap().status(), 200);
        }
    }
}

#[test]
fn a_node_that_agrees_on_http2_is_spoken_to_in_it() {
    let root = Authority::new("Root");
    run(async {
        let (port, seen) = node(&root.issue("node.test"), None).await;
        for (scheme, tls, upgrade, expected) in [
            ("https", json!({}), "", "http/1.1"),
            ("https", json!({ "alpn": ["h2", "http/1.1"] }), "", "h2"),
            (
                "https",
                json!({ "alpn": ["h2", "http/1.1"] }),
                "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a2V5\r\n",
                "http/1.1",
            ),
            ("grpcs", json!({}), "", "h2"),
        ] {
            seen.borrow_mut().clear();
            let nodes = json!({ format!("127.0.0.1:{port}"): 1 });
            let upstream = json!({ "nodes": nodes, "scheme": scheme, "tls": tls });
            let route = json!({ "id": "all", "uri": "/*", "enable_websocket": true, "upstream": upstream });
            let gateway = in_cleartext(upstream.clone(), json!({ "routes": [route] }));
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], gateway.address().port().unwrap()));
            let mut stream = Stream::connect_tcp(address).await.unwrap();
            assert_eq!(
                status(&ask(&mut stream, "node.test", "/", upgrade).await.unwrap()),
                200,
                "{scheme} {tls}"
            );
            let seen = seen.borrow();
            assert!(
                !seen.is_empty() && seen.iter().all(|seen| seen.alpn == expected),
                "{scheme} {tls}: {seen:?}"
            );
        }
    });
}

#[test]
fn a_certificate_for_nodes_changes_with_its_ssl() {
    let (root, clients, others) =
        (Authority::new("Root"), Authority::new("Clients"), Authority::new("Others"));
    run(async {
        let (port, seen) = node(&root.issue("node.test"), Some(&clients)).await;
        let text = json!({
            "workers": 1,
            "listeners": ["{listen}"],
            "admin": { "address": "{admin}", "keys": [{ "key": "test-key" }] },
            "store": { "kind": "embedded", "path": "{dir}/data" },
        });
        let gateway = Gateway::start(SIGMA, &text.to_string()).unwrap();
        let upstream = json!({
            "nodes": { format!("127.0.0.1:{port}"): 1 }, "scheme": "https", "tls": { "client_cert_id": "c" },
        });
        for (issued, expected) in [(clients.issue("gateway"), "SUCCESS"), (others.issue("gateway"), "FAILED")]
        {
            let (code, answer) = admin(&gateway, "PUT", "ssls/c", &issued.ssl(json!({ "type": "client" })));
            assert!(code < 300, "{answer}");
            let route = json!({ "uri": "/*", "upstream": upstream });
            if expected == "SUCCESS" {
                assert_eq!(admin(&gateway, "PUT", "routes/1", &route).0, 201);
            }
            // The change reaches the worker soon; connections made before it serve on no longer.
            while seen.borrow().last().is_none_or(|seen| seen.verified != expected) {
                plain(&gateway, "node.test").await;
            }
        }
    });
}
