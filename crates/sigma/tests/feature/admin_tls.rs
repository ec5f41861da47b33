//! The Admin API over TLS, and the certificates of those who call it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use sigma_net::Stream;
use sigma_net::tls::ClientTls;
use sigma_testkit::{Gateway, Peer, free_port, until};

use crate::docs::{block, paste, text_of};
use crate::managed::KEY;
use crate::tls::{Authority, Issued, ask, der, run, status};
use crate::{PATIENCE, SIGMA};

const PAGE: &str = "docs/admin-api-security.md";
const ROUTES: &str = "/apisix/admin/routes";

#[test]
fn it_is_called_as_the_page_says() {
    let dir = tempfile::tempdir().unwrap();
    let made = paste(dir.path(), &block(PAGE, "sh", "CN=Operators"), &[]);
    assert!(made.status.success(), "{}", text_of(&made));
    let config = block(PAGE, "yaml", "client_ca").replace("127.0.0.1:9080", "{listen}");
    let config =
        config.replace("/etc/sigma", &dir.path().display().to_string()).replace("./data", "{dir}/data");
    let gateway = Gateway::start(SIGMA, &config.replace("127.0.0.1:9180", "{admin}")).unwrap();
    listens(&gateway);
    let port = gateway.admin_address().port().unwrap();
    let commands = block(PAGE, "sh", "--cacert operators.crt").replace("9180", &port.to_string());
    let told = paste(dir.path(), &commands, &[]);
    let text = text_of(&told);
    assert!(told.status.success() && text.contains("\"total\":0") && text.contains("ID"), "{text}");
    // By variables as well; without a certificate, with the key alone, and in cleartext, access is denied.
    let variables = [
        ("SIGMA_ADMIN", format!("https://127.0.0.1:{port}")),
        ("SIGMA_ADMIN_KEY", KEY.to_owned()),
        ("SIGMA_ADMIN_CA", "operators.crt".to_owned()),
        ("SIGMA_ADMIN_CERT", "alice.crt".to_owned()),
        ("SIGMA_ADMIN_CERT_KEY", "alice.key".to_owned()),
    ];
    let check = |command: &str, left_out: &[&str], expected: Option<&str>| {
        let given = variables.iter().filter(|(name, _)| !left_out.contains(name));
        let given: Vec<_> = given.map(|(name, value)| (*name, value.as_str())).collect();
        let told = paste(dir.path(), command, &given);
        let text = text_of(&told);
        assert_eq!(told.status.success(), expected.is_none(), "{command}: {text}");
        assert!(text.contains(expected.unwrap_or_default()), "{command}: {text}");
    };
    check("sigma ctl list routes", &[], None);
    check("sigma ctl list routes", &["SIGMA_ADMIN_CERT", "SIGMA_ADMIN_CERT_KEY"], Some("--cert-key match"));
    check("sigma ctl list routes", &["SIGMA_ADMIN_CERT_KEY"], Some("needs its key"));
    check("sigma ctl list routes", &["SIGMA_ADMIN_CA"], Some("cannot reach"));
    check("sigma ctl list routes", &["SIGMA_ADMIN_KEY"], Some("401"));
    let curl = format!("curl -sS -H 'X-API-KEY: {KEY}'");
    check(&format!("{curl} --cacert operators.crt https://127.0.0.1:{port}{ROUTES}"), &[], Some("curl: ("));
    check(&format!("{curl} http://127.0.0.1:{port}{ROUTES}"), &[], Some("curl: ("));
    let openssl =
        format!("openssl s_client -connect 127.0.0.1:{port} -CAfile operators.crt -tls1_2 < /dev/null");
    check(&openssl, &[], Some("alert certificate required"));
    check(&format!("{openssl} -cert alice.crt -key alice.key -verify_return_error"), &[], None);
}

fn listens(gateway: &Gateway) {
    let listens = until(PATIENCE, || Peer::connect(&gateway.admin_address()).is_ok());
    assert!(listens, "no Admin API: {}", gateway.stderr());
}

fn start(dir: &Path, own: &Issued, clients: &Authority, more: &str) -> Gateway {
    let mut tls = own.files(dir, "admin");
    tls["client_ca"] = json!(put(dir, clients));
    let config = format!(
        "listeners: [\"{{listen}}\"]\nstore: {{ kind: embedded, path: \"{{dir}}/data\" }}\n\
         admin: {{ address: \"{{admin}}\", keys: [{{ key: \"{KEY}\" }}], tls: {tls}{more} }}\n"
    );
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    listens(&gateway);
    gateway
}

/// Makes these the authorities of callers.
fn put(dir: &Path, clients: &Authority) -> std::path::PathBuf {
    let path = dir.join("clients.crt");
    std::fs::write(&path, &clients.pem).unwrap();
    path
}

async fn shake(gateway: &Gateway, client: &ClientTls) -> Result<Stream, String> {
    let address = SocketAddr::from(([127, 0, 0, 1], gateway.admin_address().port().unwrap()));
    let socket = Stream::connect_tcp(address).await.map_err(|error| error.to_string())?;
    client.shake(socket, "admin.test").await.map_err(|error| error.to_string())
}

/// The status of a call; 0 if there is no response.
async fn call(stream: &mut Stream) -> u16 {
    let answer = ask(stream, "admin.test", ROUTES, &format!("X-API-KEY: {KEY}\r\n")).await;
    answer.map_or(0, |answer| status(&answer))
}

/// The same over its own connection. In TLS 1.3 a client learns only then that it was refused.
async fn called(gateway: &Gateway, client: &ClientTls) -> u16 {
    match shake(gateway, client).await {
        Ok(mut stream) => call(&mut stream).await,
        Err(_) => 0,
    }
}

#[test]
fn files_that_change_count_at_once_and_who_is_shut_out_does_not_stay() {
    let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
    let [clients, others] = ["Clients", "Others"].map(Authority::new);
    let [first, second] = [0, 1].map(|_| root.issue("admin.test"));
    let client = |authority: &Authority| root.client(Some(&authority.issue("alice")));
    let (alice, bob, nobody) = (client(&clients), client(&others), root.client(None));
    let gateway = start(dir.path(), &first, &clients, "");
    run(async {
        for (client, expected) in [(&alice, 200), (&bob, 0), (&nobody, 0)] {
            assert_eq!(called(&gateway, client).await, expected, "{}", gateway.stderr());
        }
        let mut open = shake(&gateway, &alice).await.unwrap();
        assert_eq!(call(&mut open).await, 200);
        assert_eq!(open.tls().unwrap().peer_chain[0].to_vec(), der(&first));
        // Half of a pair changes nothing, and is logged.
        std::fs::write(dir.path().join("admin.key"), &second.key).unwrap();
        gateway.await_log("those before stay");
        assert_eq!(called(&gateway, &alice).await, 200);
        std::fs::write(dir.path().join("admin.crt"), &second.cert).unwrap();
        while shake(&gateway, &alice).await.unwrap().tls().unwrap().peer_chain[0].to_vec() != der(&second) {}
        assert_eq!(call(&mut open).await, 200);
        put(dir.path(), &others);
        while called(&gateway, &bob).await != 200 {}
        assert_eq!(called(&gateway, &alice).await, 0);
        // A connection that was open before is refused, and closed.
        assert_eq!(call(&mut open).await, 403);
        assert_eq!(call(&mut open).await, 0);
    });
    assert!(!gateway.stderr().contains("PRIVATE KEY"));
}

#[test]
fn unwanted_callers_are_closed_before_the_handshake() {
    let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
    let clients = Authority::new("Clients");
    let gateway = start(dir.path(), &root.issue("admin.test"), &clients, ", allow: [127.9.9.9]");
    run(async {
        let refused = shake(&gateway, &root.client(Some(&clients.issue("alice")))).await;
        assert!(refused.is_err());
    });
}

#[test]
fn unusable_files_are_reported_before_and_at_the_start() {
    let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
    let own = root.issue("admin.test").files(dir.path(), "admin");
    let other = root.issue("admin.test").files(dir.path(), "other");
    let missing = dir.path().join("nowhere.crt");
    let check = |tls: serde_json::Value, expected: &str| {
        let file = dir.path().join("sigma.yaml");
        let config = json!({
            "listeners": [format!("127.0.0.1:{}", free_port())],
            "store": { "kind": "embedded", "path": dir.path().join("data") },
            "admin": { "address": format!("127.0.0.1:{}", free_port()), "keys": [{ "key": KEY }], "tls": tls },
        });
        std::fs::write(&file, config.to_string()).unwrap();
        for command in ["check", "run"] {
            let output = Command::new(SIGMA).arg(command).arg(&file).output().unwrap();
            let told = text_of(&output);
            assert!(!output.status.success() && told.contains(expected), "{command}: {told}");
        }
    };
    check(json!({ "cert": own["cert"], "key": other["key"] }), "admin.tls.cert: ");
    check(json!({ "cert": own["cert"], "key": other["key"] }), "the key does not belong to the certificate");
    check(json!({ "cert": missing, "key": own["key"] }), "there is no such file");
    check(
        json!({ "cert": own["cert"], "key": own["key"], "client_ca": own["key"] }),
        "admin.tls.client_ca: ",
    );
    check(json!({ "cert": own["cert"] }), "key");
}
