//! Certificates that the gateway orders by itself, from Pebble: Let's Encrypt's own server for tests. It refuses
//! one nonce in twenty, as the real one may.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sigma_net::tls::certificate;
use sigma_testkit::{Address, Gateway, Origin, Peer, Socket, free_port, until};
use tempfile::TempDir;

use super::{Running, tool};
use crate::docs::{block, paste, text_of};
use crate::tls::{Authority, ask, run, shake};
use crate::{PATIENCE, SIGMA};

mod dns;
mod on_demand;
mod shared;

const PEBBLE: &str = "github.com/letsencrypt/pebble/v2/cmd/pebble@v2.10.1";
const NAMES: &str = "github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv@v2.10.1";

/// An authority that requests every name at 127.0.0.1.
pub(crate) struct Pebble {
    dir: TempDir,
    port: u16,
    management: u16,
    /// Where it requests proofs.
    http: u16,
    tls: u16,
    /// Where names are queried of, and where they are set.
    dns: SocketAddr,
    names: u16,
    _name_server: Running,
    authority: Running,
}

impl Pebble {
    pub(crate) fn start(more: Value) -> Pebble {
        Pebble::asking(None, more)
    }

    /// One that asks a name server of the test.
    pub(crate) fn asking(server: Option<SocketAddr>, more: Value) -> Pebble {
        let dir = tempfile::tempdir().unwrap();
        let root = Authority::new("Directory");
        root.issue("127.0.0.1").files(dir.path(), "own");
        std::fs::write(dir.path().join("ca.pem"), &root.pem).unwrap();
        let [port, management, http, tls, dns, names] = [(); 6].map(|()| free_port());
        let local = |port: u16| format!("127.0.0.1:{port}");
        let asked = server.unwrap_or(SocketAddr::from(([127, 0, 0, 1], dns)));
        let mut config = json!({
            "listenAddress": local(port), "managementListenAddress": local(management),
            "certificate": dir.path().join("own.crt"), "privateKey": dir.path().join("own.key"),
            "httpPort": http, "tlsPort": tls, "ocspResponderURL": "", "keyAlgorithm": "ecdsa",
            "retryAfter": {"authz": 1, "order": 1},
            "domainBlocklist": ["blocked.test"],
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let file = dir.path().join("pebble.json");
        std::fs::write(&file, json!({ "pebble": config }).to_string()).unwrap();
        let set_names = start(Command::new(tool(NAMES, "pebble-challtestsrv")).args([
            "-management",
            &local(names),
            "-dnsserver",
            &local(dns),
            "-defaultIPv6",
            "",
            "-http01",
            "",
            "-https01",
            "",
            "-tlsalpn01",
            "",
            "-doh",
            "",
        ]));
        let pebble = start(
            Command::new(tool(PEBBLE, "pebble"))
                // It refuses one nonce in twenty by default, and thus all tries of a request once in a while.
                .env("PEBBLE_WFE_NONCEREJECT", "1")
                .arg("-config")
                .arg(&file)
                .args(["-dnsserver", &asked.to_string()])
                .env("PEBBLE_VA_NOSLEEP", "1"),
        );
        let address = Address::Tcp(SocketAddr::from(([127, 0, 0, 1], port)));
        assert!(
            until(PATIENCE, || Socket::connect(&address, PATIENCE).is_ok()),
            "the authority does not listen"
        );
        Pebble {
            dir,
            port,
            management,
            http,
            tls,
            dns: asked,
            names,
            _name_server: set_names,
            authority: pebble,
        }
    }

    /// Stops the authority in the middle of its work (`STOP`), or continues it (`CONT`).
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.authority.0), signal).unwrap();
    }

    /// The setting `acme` for it.
    fn settings(&self, more: Value) -> Value {
        let mut acme = json!({
            "directory": format!("https://127.0.0.1:{}/dir", self.port),
            "ca": self.dir.path().join("ca.pem"),
            "terms_agreed": true,
            "email": "ops@example.com",
            "storage": "{dir}/acme",
            "retry_s": 1,
        });
        acme.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        acme
    }

    /// Returns a client that trusts its certificates.
    fn client(&self) -> sigma_net::tls::ClientTls {
        let url = format!("https://127.0.0.1:{}/roots/0", self.management);
        let root = Command::new("curl").args(["-sSk", &url]).output().unwrap();
        let authorities =
            sigma_net::tls::Authorities::from_pem(&String::from_utf8(root.stdout).unwrap()).unwrap();
        let trust = sigma_net::tls::Trust::Authorities(authorities);
        let settings = sigma_net::tls::ClientSettings { trust, ..Default::default() };
        sigma_net::tls::ClientTls::new(settings).unwrap()
    }
}

fn start(command: &mut Command) -> Running {
    Running(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// A gateway that listens in cleartext where `pebble` requests proofs, and for TLS at `{listen}`.
pub(crate) fn config(pebble: &Pebble, origin: &Origin, acme: Value, tls: Value, rest: Value) -> String {
    let mut whole = json!({
        "workers": 2,
        "control": { "address": "{control}" },
        "acme": pebble.settings(acme),
        "listeners": [
            { "address": "{listen}", "tls": tls },
            { "address": format!("127.0.0.1:{}", pebble.http) },
        ],
        "global_rules": [{ "id": "1", "plugins": { "redirect": { "http_to_https": true } } }],
        "routes": [{ "id": "all", "uri": "/*", "upstream": { "nodes": { format!("127.0.0.1:{}", origin.port()): 1 } } }],
    });
    whole.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    whole.to_string()
}

/// Returns the state of the order for an ssl.
fn standing(gateway: &Gateway, ssl: &str) -> Value {
    let answer = Peer::connect(&gateway.control_address()).and_then(|mut peer| peer.get("/v1/acme"));
    let all: Value = serde_json::from_slice(&answer.unwrap().body).unwrap();
    all.as_array().unwrap().iter().find(|one| one["ssl"] == ssl).cloned().unwrap_or_default()
}

/// Waits until the order for an ssl has this state.
pub(crate) fn await_state(gateway: &Gateway, ssl: &str, state: &str) -> Value {
    let reached = until(PATIENCE, || standing(gateway, ssl)["state"] == state);
    assert!(reached, "{}\n{}", standing(gateway, ssl), gateway.stderr());
    standing(gateway, ssl)
}

/// Asks over TLS by a name; the serial number of the certificate that was shown.
pub(crate) fn ask_by(gateway: &Gateway, pebble: &Pebble, name: &str) -> Result<String, String> {
    run(async {
        let mut stream = shake(gateway, &pebble.client(), name).await?;
        let answer = ask(&mut stream, name, "/", "").await.map_err(|error| error.to_string())?;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let shown = stream.tls().unwrap().peer_chain[0].clone();
        Ok(certificate::serial(&shown).unwrap())
    })
}

/// The serial number of the certificate that was shown.
fn serial_of(stream: sigma_net::stream::Stream) -> String {
    certificate::serial(&stream.tls().unwrap().peer_chain[0]).unwrap()
}

fn kept(gateway: &Gateway, ssl: &str) -> std::path::PathBuf {
    gateway.dir().join("acme/certificates").join(format!("{ssl}.json"))
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The certificate comes by itself, lasts over a restart, and is renewed when its time has come; the one before
/// is shown until then.
#[test]
fn a_certificate_is_ordered_kept_and_renewed() {
    let (pebble, origin) = (Pebble::start(json!({})), Origin::echo("a").unwrap());
    let ssls = json!({ "ssls": [{ "id": "1", "type": "acme", "snis": ["a.test", "B.test"] }] });
    let config = config(&pebble, &origin, json!({}), json!({}), ssls);
    let mut gateway = Gateway::start(SIGMA, &config).unwrap();
    let order = await_state(&gateway, "1", "valid");
    assert_eq!((&order["names"], &order["failures"]), (&json!(["a.test", "b.test"]), &json!(0)));
    let mut first = String::new();
    assert!(until(PATIENCE, || ask_by(&gateway, &pebble, "a.test").map(|serial| first = serial).is_ok()));
    assert_eq!(ask_by(&gateway, &pebble, "b.test").as_ref(), Ok(&first));
    assert!(ask_by(&gateway, &pebble, "c.test").unwrap_err().contains("unrecognised name"));
    // It is in a private file.
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(kept(&gateway, "1")).unwrap().permissions().mode() & 0o777, 0o600);
    gateway.kill().unwrap();
    gateway.start_again().unwrap();
    assert_eq!(ask_by(&gateway, &pebble, "a.test").as_ref(), Ok(&first));
    // The authority has been requested the time to renew: it is within the window that Pebble suggests.
    let soon = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 60;
    assert!(until(PATIENCE, || read(&kept(&gateway, "1"))["ask_at"].as_u64().unwrap() > soon));
    // Its time has come.
    gateway.kill().unwrap();
    let mut record = read(&kept(&gateway, "1"));
    record["renew_at"] = 7.into();
    record["ask_at"] = 9_999_999_999_i64.into();
    std::fs::write(kept(&gateway, "1"), record.to_string()).unwrap();
    gateway.start_again().unwrap();
    let renewed = until(PATIENCE, || ask_by(&gateway, &pebble, "a.test").unwrap() != first);
    assert!(renewed, "{}", gateway.stderr());
}

/// The routes of a file say for which names.
#[test]
fn an_automatic_listener_orders_for_the_hosts_of_routes() {
    let (pebble, origin) = (Pebble::start(json!({})), Origin::echo("a").unwrap());
    let nodes = json!({ format!("127.0.0.1:{}", origin.port()): 1 });
    let routes = json!({ "routes": [
        { "id": "1", "uri": "/*", "host": "one.test", "upstream": { "nodes": nodes } },
        { "id": "2", "uri": "/*", "hosts": ["two.test", "*.two.test"], "upstream": { "nodes": nodes } },
    ]});
    let rsa = json!({ "key_type": "rsa_2048" });
    let gateway = Gateway::start(SIGMA, &config(&pebble, &origin, rsa, json!("auto"), routes)).unwrap();
    for name in ["one.test", "two.test"] {
        await_state(&gateway, &format!("auto-{name}"), "valid");
        assert!(until(PATIENCE, || ask_by(&gateway, &pebble, name).is_ok()), "{}", gateway.stderr());
    }
    assert!(ask_by(&gateway, &pebble, "x.two.test").is_err());
    assert!(
        gateway.stderr().contains("`tls: auto` orders no certificate for `*.two.test`"),
        "{}",
        gateway.stderr()
    );
}

const KEY: &str = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";

/// An authority that wants a binding refuses an account without, and takes one with.
#[test]
fn an_account_is_bound_to_one_elsewhere() {
    let wanted =
        json!({ "externalAccountBindingRequired": true, "externalAccountMACKeys": { "kid-1": KEY } });
    let (pebble, origin) = (Pebble::start(wanted), Origin::echo("a").unwrap());
    let ssls = json!({ "ssls": [{ "id": "1", "type": "acme", "sni": "a.test" }] });
    let gateway =
        Gateway::start(SIGMA, &config(&pebble, &origin, json!({}), json!({}), ssls.clone())).unwrap();
    let order = await_state(&gateway, "1", "failed");
    assert!(order["last_error"].as_str().unwrap().contains("externalAccountRequired"), "{order}");
    gateway.stop().unwrap();
    let account = json!({ "external_account": { "key_id": "kid-1", "hmac_key": KEY } });
    let gateway = Gateway::start(SIGMA, &config(&pebble, &origin, account, json!({}), ssls)).unwrap();
    await_state(&gateway, "1", "valid");
    assert!(!gateway.stderr().contains(KEY));
}

/// A refused order is tried again later and later, over restarts too; clients see no other certificate
/// meanwhile.
#[test]
fn refused_orders_are_remembered() {
    let (pebble, origin) = (Pebble::start(json!({})), Origin::echo("a").unwrap());
    let ssls = json!({ "ssls": [
        { "id": "bad", "type": "acme", "sni": "blocked.test" },
        { "id": "good", "type": "acme", "sni": "good.test" },
    ]});
    let slowly = json!({ "retry_s": 3_600 });
    let mut gateway = Gateway::start(SIGMA, &config(&pebble, &origin, slowly, json!({}), ssls)).unwrap();
    let order = await_state(&gateway, "bad", "failed");
    assert!(order["last_error"].as_str().unwrap().contains("rejectedIdentifier"), "{order}");
    await_state(&gateway, "good", "valid");
    assert!(ask_by(&gateway, &pebble, "blocked.test").unwrap_err().contains("unrecognised name"));
    // However often it is started, it does not try before its time.
    for _ in 0..2 {
        gateway.kill().unwrap();
        gateway.start_again().unwrap();
        await_state(&gateway, "good", "valid");
        let again = standing(&gateway, "bad");
        assert_eq!((&again["failures"], &again["next_attempt"]), (&json!(1), &order["next_attempt"]));
    }
}

/// The commands of the page about certificates work as described.
#[test]
fn the_page_is_true() {
    const PAGE: &str = "docs/certificates.md";
    let (pebble, origin) = (Pebble::start(json!({})), Origin::echo("a").unwrap());
    let stored =
        json!({ "store": { "kind": "embedded", "path": "{dir}/data" }, "admin": { "address": "{admin}" } });
    let mut whole: Value =
        serde_json::from_str(&config(&pebble, &origin, json!({ "retry_s": 3_600 }), json!({}), stored))
            .unwrap();
    for section in ["routes", "global_rules"] {
        whole.as_object_mut().unwrap().remove(section);
    }
    let gateway = Gateway::start(SIGMA, &whole.to_string()).unwrap();
    let key = std::fs::read_to_string(gateway.dir().join("data/admin.key")).unwrap();
    let admin = format!("http://{}", gateway.admin_address());
    let variables = [("SIGMA_ADMIN", admin.as_str()), ("SIGMA_ADMIN_KEY", key.trim())];
    let put = paste(gateway.dir(), &block(PAGE, "sh", "sigma ctl put"), &variables);
    assert!(put.status.success(), "{}", text_of(&put));
    await_state(&gateway, "shop", "valid");
    let view =
        block(PAGE, "sh", "/v1/acme").replace("127.0.0.1:9090", &gateway.control_address().to_string());
    let shown =
        r#"{"ssl":"shop","names":["shop.example.com"],"state":"valid","failures":0,"last_error":null}"#;
    assert_eq!(text_of(&paste(gateway.dir(), &view, &[])).trim(), shown);
    let handshake =
        || run(async { shake(&gateway, &pebble.client(), "shop.example.com").await.map(serial_of) });
    let at_control = |command: &str| {
        let command = command.replace("127.0.0.1:9090", &gateway.control_address().to_string());
        text_of(&paste(gateway.dir(), &command, &[]))
    };
    let listed = at_control(&block(PAGE, "sh", "sigma ctl acme --control"));
    assert!(listed.contains("shop.example.com") && listed.contains("valid"), "{listed}");
    assert!(until(PATIENCE, || handshake().is_ok()), "{}", gateway.stderr());
    let (former, order) = (handshake(), block(PAGE, "sh", "sigma ctl acme order"));
    assert!(at_control(&order).contains("ssls/shop: ordering"));
    assert!(until(PATIENCE, || handshake() != former), "{}", gateway.stderr());
    assert!(at_control(&order).contains("429: the certificate was ordered a moment ago"));
    assert!(
        at_control("sigma ctl acme order other.test --control http://127.0.0.1:9090")
            .contains("orders no certificate")
    );
    // The key is in no response, nor in the gateway's messages.
    let kept = read(&kept(&gateway, "shop"));
    let secret = kept["key"].as_str().unwrap().lines().nth(1).unwrap();
    let dump = paste(gateway.dir(), "sigma ctl get ssls shop; sigma ctl dump", &variables);
    assert!(!text_of(&dump).contains(secret) && !gateway.stderr().contains(secret));
}

/// Where nothing is ordered, an ssl that wants it is refused at once.
#[test]
fn an_ssl_without_an_authority_is_refused() {
    let config = json!({
        "listeners": ["{listen}"],
        "store": { "kind": "embedded", "path": "{dir}/data" },
        "admin": { "address": "{admin}" },
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    let key = std::fs::read_to_string(gateway.dir().join("data/admin.key")).unwrap();
    let admin = format!("http://{}", gateway.admin_address());
    let variables = [("SIGMA_ADMIN", admin.as_str()), ("SIGMA_ADMIN_KEY", key.trim())];
    let put = paste(gateway.dir(), &block("docs/certificates.md", "sh", "sigma ctl put"), &variables);
    let text = text_of(&put);
    assert!(
        !put.status.success() && text.contains("this process orders no certificates: set `acme`"),
        "{text}"
    );
}

/// A name is proved by a handshake, to who requests that alone, and only while it is ordered.
#[test]
fn a_name_is_proved_by_a_handshake() {
    let (pebble, origin) = (Pebble::start(json!({})), Origin::echo("a").unwrap());
    let rest = json!({
        "listeners": [
            { "address": "{listen}", "tls": {} },
            { "address": format!("127.0.0.1:{}", pebble.tls), "tls": {} },
        ],
        "ssls": [{
            "id": "1", "type": "acme", "snis": ["A.test", "b.test"], "acme": { "challenge": "tls-alpn-01" },
        }],
    });
    let gateway = Gateway::start(SIGMA, &config(&pebble, &origin, json!({}), json!({}), rest)).unwrap();
    await_state(&gateway, "1", "valid");
    for name in ["a.test", "b.test"] {
        assert!(until(PATIENCE, || ask_by(&gateway, &pebble, name).is_ok()), "{}", gateway.stderr());
    }
    // Nothing is under way any more: who requests a proof is refused, and sees no certificate.
    let command = format!(
        "openssl s_client -connect {} -servername a.test -alpn acme-tls/1 </dev/null",
        gateway.address()
    );
    let text = text_of(&paste(gateway.dir(), &format!("{command} || true"), &[]));
    assert!(
        text.contains("no peer certificate available") && text.contains("no application protocol"),
        "{text}"
    );
}
