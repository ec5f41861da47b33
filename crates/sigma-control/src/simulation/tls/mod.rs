//! TLS of clients and nodes. Each peer uses the gateway's own TLS over a connection in memory. The seed does not choose
//! the bytes of a handshake, which are random.

mod certificates;
mod clients;
mod nodes;
mod postgres;

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use sigma_net::Stream;
use sigma_net::tls::pem::{Pair, parse_chain};
use sigma_net::tls::{
    AcceptOptions, Authorities, ClientAuth, ClientSettings, ClientTls, Demand, Handshakes, Identity, Offer,
    Resumption, ServerIdentity, Trust, Versions, accept,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::gateway::{ACCESS_LOG, Gateway, joined};
use super::peers::Node;
use super::{LISTEN, Simulation};

/// An authority that issues certificates.
pub(super) struct Authority {
    pub(super) issuer: Issuer<'static, KeyPair>,
    pub(super) pem: String,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub(super) struct Issued {
    pub(super) cert: String,
    pub(super) key: String,
}

impl Authority {
    pub(super) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    pub(super) fn issue(&self, name: &str) -> Issued {
        self.issue_within(name, 2001..2090)
    }

    /// A certificate that is valid in these years alone.
    pub(super) fn issue_within(&self, name: &str, years: std::ops::Range<i32>) -> Issued {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = rcgen::date_time_ymd(years.start, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.end, 1, 1);
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        Issued { cert: cert.pem(), key: key.serialize_pem() }
    }

    fn trust(&self) -> Trust {
        Trust::Authorities(Authorities::from_pem(&self.pem).unwrap())
    }

    /// A client that trusts this authority.
    pub(super) fn client(&self, own: Option<&Issued>) -> ClientTls {
        let pair = own.map(|own| Pair::parse(&own.cert, &own.key, None).unwrap());
        ClientTls::new(ClientSettings { trust: self.trust(), pair, ..ClientSettings::default() }).unwrap()
    }
}

impl Issued {
    /// As members of an ssl.
    pub(super) fn ssl(&self, rest: Value) -> Value {
        joined(rest, json!({ "cert": self.cert, "key": self.key }))
    }

    /// As files, in a listener's setting.
    pub(super) fn files(&self, dir: &Path, name: &str) -> Value {
        let path = |kind: &str| dir.join(format!("{name}.{kind}"));
        std::fs::write(path("crt"), &self.cert).unwrap();
        std::fs::write(path("key"), &self.key).unwrap();
        json!({ "cert": path("crt"), "key": path("key") })
    }

    /// As a server's identity, which accepts certificates of `clients`.
    fn identity(&self, clients: Option<&Authority>) -> Arc<ServerIdentity> {
        let identity = Identity {
            pairs: vec![Pair::parse(&self.cert, &self.key, None).unwrap()],
            versions: Versions::ALL,
            offer: Offer::default(),
            client_auth: clients.map(|ca| ClientAuth::new(&ca.pem, 1, Demand::Optional).unwrap()),
            resumption: Resumption::Off,
        };
        Arc::new(ServerIdentity::new(identity).unwrap())
    }

    fn der(&self) -> Vec<u8> {
        parse_chain(&self.cert).unwrap()[0].to_vec()
    }
}

/// A configuration with one TLS listener, and one route for everything.
pub(super) fn config(tls: Value, upstream: Value, rest: Value) -> Value {
    let whole = json!({
        "listeners": [{ "address": LISTEN.to_string(), "tls": tls }],
        "routes": [{ "id": "all", "uri": "/*", "upstream": upstream }],
    });
    joined(whole, rest)
}

/// A gateway in cleartext in front of an upstream.
fn in_cleartext(simulation: &Simulation, upstream: Value, rest: Value) -> Gateway {
    let access_log = json!({ "path": ACCESS_LOG, "format": "$status $upstream_scheme", "flush_ms": 100 });
    let route = json!({ "id": "all", "uri": "/*", "enable_websocket": true, "upstream": upstream });
    simulation.gateway(joined(json!({ "routes": [route], "access_log": access_log }), rest))
}

pub(super) fn to_node(node: &Node) -> Value {
    json!({ "nodes": { node.name(): 1 } })
}

/// Shakes hands with the gateway.
pub(super) async fn shake(gateway: &Gateway, client: &ClientTls, name: &str) -> Result<Stream, String> {
    client.shake(gateway.dial(), name).await.map_err(|error| error.to_string())
}

/// One request and its response, head and body.
async fn ask(stream: &mut Stream, host: &str, path: &str, fields: &str) -> io::Result<String> {
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
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => answer.extend_from_slice(&bytes[..n]),
        }
    }
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Returns the certificate for a name, or the error of the handshake if the gateway has no certificate for it.
async fn shown(gateway: &Gateway, root: &Authority, name: &str) -> Result<Vec<u8>, String> {
    let stream = shake(gateway, &root.client(None), name).await?;
    Ok(stream.tls().unwrap().peer_chain[0].to_vec())
}

/// A node over TLS that serves each of its streams so; it speaks HTTP/1.1 and HTTP/2.
fn encrypted<F>(
    simulation: &Simulation,
    issued: &Issued,
    clients: Option<&Authority>,
    serve: impl Fn(Stream) -> F + 'static,
) -> Node
where
    F: Future<Output = ()> + 'static,
{
    let (identity, serve) = (issued.identity(clients), Rc::new(serve));
    simulation.serve(move |client| {
        let (identity, serve) = (Arc::clone(&identity), Rc::clone(&serve));
        async move {
            let alpn = [&b"h2"[..], b"http/1.1"].map(<[u8]>::to_vec).into();
            let options = AcceptOptions { alpn, ..AcceptOptions::default() };
            let choose = |_: Option<&str>| Some(identity);
            let shaken = accept(client.into_stream(), b"", &options, &Handshakes::new(8), choose).await;
            if let Ok(stream) = shaken {
                serve(stream).await;
            }
        }
    })
}

/// A node over TLS that serves each of its streams so.
pub(super) fn over_tls<F>(
    simulation: &Simulation,
    issued: &Issued,
    serve: impl Fn(Stream) -> F + 'static,
) -> Node
where
    F: Future<Output = ()> + 'static,
{
    encrypted(simulation, issued, None, serve)
}

/// A node's view of one connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Seen {
    server_name: String,
    verified: &'static str,
    alpn: String,
}

/// A node over TLS that returns 200, and its view of its connections.
fn node(
    simulation: &Simulation,
    issued: &Issued,
    clients: Option<&Authority>,
) -> (Node, Rc<RefCell<Vec<Seen>>>) {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&seen);
    let node = encrypted(simulation, issued, clients, move |mut stream| {
        let facts = stream.tls().unwrap();
        let alpn = String::from_utf8_lossy(facts.alpn.as_deref().unwrap_or_default()).into_owned();
        let is_http2 = alpn == "h2";
        noted.borrow_mut().push(Seen {
            server_name: facts.server_name.as_deref().unwrap_or_default().to_owned(),
            verified: facts.client_certificate.as_str(),
            alpn,
        });
        async move {
            if is_http2 {
                return answer_streams(stream).await;
            }
            let mut bytes = [0; 4096];
            while stream.read(&mut bytes).await.is_ok_and(|n| n > 0) {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
                let _ = stream.flush().await;
            }
        }
    });
    (node, seen)
}

/// Responds to every request on an HTTP/2 connection.
async fn answer_streams(stream: Stream) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        assert_eq!(request.uri().scheme_str(), Some("https"));
        let _ = respond.send_response(http::Response::new(()), true);
    }
}
