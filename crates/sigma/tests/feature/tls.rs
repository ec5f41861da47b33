//! TLS of listeners as OpenSSL sees it, and of several listeners, with certificates made on the spot. Other rules of TLS
//! are in the simulation of `sigma-control`.

use std::future::Future;
use std::process::{Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use sigma_net::Stream;
use sigma_net::tls::pem::{Pair, parse_chain};
use sigma_net::tls::{Authorities, ClientSettings, ClientTls, Trust};
use sigma_testkit::{Gateway, Origin, Peer, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

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

/// One request in cleartext, off this thread's tasks; its status.
pub(crate) async fn plain(gateway: &Gateway, host: &str) -> u16 {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], gateway.address().port().unwrap()));
    let mut stream = Stream::connect_tcp(address).await.unwrap();
    status(&ask(&mut stream, host, "/", "").await.unwrap())
}
