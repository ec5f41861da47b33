//! Whom nodes take the gateway for: `upstream-auth` with a server of tokens that can fail, and between two
//! gateways.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use sigma_testkit::{Gateway, Message, Origin, until};

use crate::{PATIENCE, SIGMA, nodes};

/// The next response of a token server; `N` is replaced by the number of the request.
struct Tokens {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
    answer: Arc<Mutex<(u16, String)>>,
}

impl Tokens {
    fn start() -> Tokens {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (asked, answer) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<Mutex<(u16, String)>>::default());
        let (seen, says) = (Arc::clone(&asked), Arc::clone(&answer));
        // It ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &seen, &says);
            }
        });
        Tokens { port, asked, answer }
    }

    fn says(&self, status: u16, body: &str) {
        *self.answer.lock().unwrap() = (status, body.to_owned());
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn settings(&self, more: &str) -> String {
        let port = self.port;
        format!(
            "token_endpoint: \"http://127.0.0.1:{port}/t\", client_id: \"g w\", client_secret: \"se:cret\"{more}"
        )
    }
}

/// Responds to one request, and closes the connection.
fn serve(mut stream: TcpStream, asked: &Mutex<Vec<String>>, answer: &Mutex<(u16, String)>) {
    let mut text = Vec::new();
    let mut bytes = [0; 4096];
    let whole = |text: &[u8]| {
        let text = String::from_utf8_lossy(text).into_owned();
        let (head, body) = text.split_once("\r\n\r\n")?;
        let length =
            head.to_lowercase().split("content-length: ").nth(1)?.lines().next()?.parse::<usize>().ok()?;
        (body.len() >= length).then_some(text.clone())
    };
    while whole(&text).is_none() {
        match stream.read(&mut bytes) {
            Ok(count) if count > 0 => text.extend_from_slice(&bytes[..count]),
            _ => return,
        }
    }
    let number = {
        let mut asked = asked.lock().unwrap();
        asked.push(whole(&text).unwrap_or_default());
        asked.len()
    };
    let (status, body) = answer.lock().unwrap().clone();
    let body = body.replace('N', &number.to_string());
    let length = body.len();
    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
}

fn document(origin: &Origin, routes: &[(&str, String)]) -> String {
    let route = |(path, plugin): &(&str, String)| {
        let (id, nodes) = (path.trim_start_matches('/'), nodes(&[origin]));
        format!(
            "  - {{ id: {id}, uri: {path}, plugins: {{ upstream-auth: {plugin} }}, upstream: {{ nodes: {nodes} }} }}\n"
        )
    };
    let routes: String = routes.iter().map(route).collect();
    format!("workers: 2\nlisteners:\n  - address: \"{{listen}}\"\nroutes:\n{routes}")
}

fn ask(gateway: &Gateway, path: &str, fields: &str) -> Message {
    let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    gateway.connect().unwrap().with_deadline(PATIENCE).ask(request).unwrap()
}

/// `Authorization` as the node got it; the status if it was not asked.
fn told(answer: &Message) -> String {
    if answer.status() != 200 {
        return answer.status().to_string();
    }
    let json = answer.json().unwrap();
    let fields = json["headers"].as_array().unwrap();
    let mut found =
        fields.iter().filter(|pair| pair[0].as_str().unwrap().eq_ignore_ascii_case("authorization"));
    let value = found.next().map_or("-", |pair| pair[1].as_str().unwrap()).to_owned();
    assert!(found.next().is_none(), "the node got two");
    value
}

const LIE: &str = "Authorization: Bearer of-the-client\r\n";

#[test]
fn a_token_of_the_gateways_own() {
    let (tokens, origin) = (Tokens::start(), Origin::echo("a").unwrap());
    let own = |more: &str| format!("{{ client_credentials: {{ {} }} }}", tokens.settings(more));
    let routes = [
        ("/own", own(", scope: \"read write\", audience: api")),
        ("/post", own(", client_auth: client_secret_post")),
        ("/short", own(", resource: \"http://short\", retry_interval: 1")),
    ];
    tokens.says(503, "{}");
    let gateway = Gateway::start(SIGMA, &document(&origin, &routes)).unwrap();
    // No token, no request; and a server that is queried again.
    assert_eq!(told(&ask(&gateway, "/own", LIE)), "503");
    tokens.says(200, r#"{"access_token":"tN","token_type":"Bearer","expires_in":300}"#);
    assert!(
        until(PATIENCE, || told(&ask(&gateway, "/own", LIE)).starts_with("Bearer t")),
        "{}",
        gateway.stderr()
    );
    let first = told(&ask(&gateway, "/own", LIE));
    let count = tokens.asked().len();
    // Many at once, on all workers: no further request is sent.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10).for_each(|_| assert_eq!(told(&ask(&gateway, "/own", LIE)), first)));
        }
    });
    assert_eq!(tokens.asked().len(), count);
    let asked = tokens.asked().pop().unwrap();
    assert!(asked.starts_with("POST /t HTTP/1.1\r\n"), "{asked}");
    // `g%20w:se%3Acret`, encoded as RFC 6749 wants it.
    assert!(asked.to_lowercase().contains("authorization: basic zyuymhc6c2ulm0fjcmv0"), "{asked}");
    assert!(
        asked.ends_with("\r\n\r\ngrant_type=client_credentials&scope=read%20write&audience=api"),
        "{asked}"
    );
    // Many at once who all need the first token: one asks.
    let count = tokens.asked().len();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(told(&ask(&gateway, "/post", LIE)).starts_with("Bearer t")));
        }
    });
    assert_eq!(tokens.asked().len(), count + 1);
    let asked = tokens.asked().pop().unwrap();
    assert!(
        asked.ends_with("\r\n\r\ngrant_type=client_credentials&client_id=g%20w&client_secret=se%3Acret"),
        "{asked}"
    );
    // A token that ends soon is followed by another one, and no request gets one that has ended.
    tokens.says(200, r#"{"access_token":"sN","expires_in":1}"#);
    let first = told(&ask(&gateway, "/short", LIE));
    assert!(first.starts_with("Bearer s"), "{first}");
    assert!(until(PATIENCE, || told(&ask(&gateway, "/short", LIE)) != first));
    tokens.says(500, "<html>");
    assert!(
        until(PATIENCE, || told(&ask(&gateway, "/short", LIE)) == "503"),
        "a token is sent after its end"
    );
    let logs = gateway.stderr();
    assert!(!logs.contains("se:cret") && !logs.contains("of-the-client"), "{logs}");
}

#[test]
fn a_token_for_the_clients_token() {
    let (tokens, origin) = (Tokens::start(), Origin::echo("a").unwrap());
    let exchange = format!("{{ token_exchange: {{ {} }} }}", tokens.settings(", audience: api"));
    let gateway = Gateway::start(SIGMA, &document(&origin, &[("/a", exchange)])).unwrap();
    tokens
        .says(200, r#"{"access_token":"xN","issued_token_type":"y","token_type":"Bearer","expires_in":300}"#);
    assert_eq!(told(&ask(&gateway, "/a", "")), "401");
    assert_eq!(told(&ask(&gateway, "/a", "Authorization: Basic YTpi\r\n")), "401");
    assert!(tokens.asked().is_empty());
    let of = |subject: &str| told(&ask(&gateway, "/a", &format!("Authorization: Bearer {subject}\r\n")));
    let jack = of("jacks");
    assert!(jack.starts_with("Bearer x"), "{jack}");
    let asked = tokens.asked().pop().unwrap();
    assert!(
        asked.ends_with(
            "\r\n\r\ngrant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Atoken-exchange&subject_token=jacks\
            &subject_token_type=urn%3Aietf%3Aparams%3Aoauth%3Atoken-type%3Aaccess_token&audience=api"
        ),
        "{asked}"
    );
    // No client gets the token of another one, and each worker sends one request.
    let jill = of("jills");
    (0..20).for_each(|_| assert!(of("jacks") != jill));
    assert!(tokens.asked().len() <= 4, "{:?}", tokens.asked());
    tokens.says(400, r#"{"error":"invalid_grant"}"#);
    assert_eq!(of("nobodys"), "401");
    tokens.says(401, r#"{"error":"invalid_client"}"#);
    assert_eq!(of("nobodys"), "503");
    let logs = gateway.stderr();
    assert!(!["jacks", "jills", "nobodys", "se:cret"].iter().any(|secret| logs.contains(secret)), "{logs}");
}

/// One gateway accepts the other's signatures: the signed Host is the one that the node gets.
#[test]
fn a_signature_between_gateways() {
    let origin = Origin::echo("a").unwrap();
    let verifying = format!(
        "listeners:\n  - address: \"{{listen}}\"\nroutes:\n  - uri: /*\n    plugins: {{ hmac-auth: {{ validate_request_body: true, \
        message_signatures: {{ require_nonce: true }} }} }}\n    upstream: {{ nodes: {} }}\n\
        consumers: [ {{ username: gateway, plugins: {{ hmac-auth: {{ key_id: gw, secret_key: s3cret }} }} }} ]\n",
        nodes(&[&origin])
    );
    let verifying = Gateway::start(SIGMA, &verifying).unwrap();
    let node = verifying.address();
    let signing = |pass_host: &str| {
        format!(
            "listeners:\n  - address: \"{{listen}}\"\nroutes:\n  - uri: /*\n    plugins:\n      \
            proxy-rewrite: {{ regex_uri: [\"^/(.*)\", \"/new/$1\"] }}\n      upstream-auth: {{ message_signature: \
            {{ key_id: gw, secret_key: s3cret, content_digest: true }} }}\n    upstream: {{ nodes: {{ \"{node}\": 1 }}, \
            pass_host: {pass_host} }}\n"
        )
    };
    for pass_host in ["node", "pass", "rewrite, upstream_host: other.test"] {
        let signing = Gateway::start(SIGMA, &signing(pass_host)).unwrap();
        for _ in 0..2 {
            let request =
                "POST /a%20b?c HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nSignature: x=:AAAA:\r\n\r\nhello";
            let answer = signing.connect().unwrap().with_deadline(PATIENCE).ask(request).unwrap();
            assert_eq!(answer.status(), 200, "{pass_host}: {}", verifying.stderr());
            let json = answer.json().unwrap();
            assert!(json["target"].as_str().unwrap().starts_with("/new/"), "{json}");
            assert!(json["headers"].to_string().contains("\"gateway\""), "{json}");
        }
    }
    let bare = verifying.connect().unwrap().ask("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert_eq!(bare.status(), 401);
}
