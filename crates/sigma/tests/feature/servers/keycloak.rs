//! A real Keycloak, at which users log in and programs get tokens.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use sigma_testkit::{Address, Gateway, Message, Origin, Peer, free_port, until};

use super::built;
use crate::{PATIENCE, SIGMA, nodes};

const VERSION: &str = "26.5.6";

/// The first start of a version builds it, on a machine that may be busy.
const START: std::time::Duration = std::time::Duration::from_secs(420);

struct Keycloak {
    port: u16,
    process: Child,
    _dir: tempfile::TempDir,
}

impl Keycloak {
    /// One with a realm `shop`, a client of that name and the user `jack`.
    fn start() -> Keycloak {
        let folder = built("keycloak", &format!("keycloak-{VERSION}"), |_, draft| fetch(draft));
        let (port, management) = (free_port(), free_port());
        let dir = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let mut command = Command::new(folder.join("bin/kc.sh"));
        command
            .args(["start-dev", "--http-host=127.0.0.1", "--cache=local", "--db=dev-mem"])
            .args([format!("--http-port={port}"), format!("--http-management-port={management}")])
            .envs([("KC_BOOTSTRAP_ADMIN_USERNAME", "admin"), ("KC_BOOTSTRAP_ADMIN_PASSWORD", "admin")])
            // The script starts a program that outlives it: they are ended together.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let keycloak = Keycloak { port, process: command.spawn().unwrap(), _dir: dir };
        let is_there =
            || try_ask(port, "GET /realms/master", "", "").is_some_and(|answer| answer.status() == 200);
        assert!(until(START, is_there), "Keycloak does not start");
        keycloak.set_up();
        keycloak
    }

    fn set_up(&self) {
        let form = "grant_type=password&client_id=admin-cli&username=admin&password=admin";
        let answer = self.post("/realms/master/protocol/openid-connect/token", form);
        let token = answer.json().unwrap()["access_token"].as_str().unwrap().to_owned();
        let client = json!({
            "clientId": "shop", "secret": "a-secret-of-the-shop", "publicClient": false,
            "redirectUris": ["http://shop.example/*"], "directAccessGrantsEnabled": true,
            "attributes": {"post.logout.redirect.uris": "http://shop.example/*"},
        });
        let user = json!({
            "username": "jack", "enabled": true, "email": "jack@shop.example", "emailVerified": true,
            "firstName": "Jack", "lastName": "Shop",
            "credentials": [{"type": "password", "value": "jacks-password", "temporary": false}],
        });
        let realm = json!({"realm": "shop", "enabled": true, "clients": [client], "users": [user]});
        let fields = format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
        let answer = ask(self.port, "POST /admin/realms", &fields, &realm.to_string());
        assert_eq!(answer.status(), 201, "{}", answer.text());
    }

    fn post(&self, target: &str, form: &str) -> Message {
        let fields = "Content-Type: application/x-www-form-urlencoded\r\n";
        ask(self.port, &format!("POST {target}"), fields, form)
    }

    fn issuer(&self) -> String {
        format!("http://127.0.0.1:{}/realms/shop", self.port)
    }

    /// A token that a program gets for jack.
    fn token(&self) -> String {
        let form = "grant_type=password&client_id=shop&client_secret=a-secret-of-the-shop\
            &username=jack&password=jacks-password&scope=openid";
        let answer = self.post("/realms/shop/protocol/openid-connect/token", form);
        answer.json().unwrap()["access_token"].as_str().unwrap().to_owned()
    }
}

impl Drop for Keycloak {
    fn drop(&mut self) {
        // Already ended is as good.
        let group = format!("-{}", self.process.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.process.wait();
    }
}

fn fetch(draft: &Path) {
    let folder = draft.with_extension("folder");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let done = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?} failed");
    done(
        Command::new("mvn")
            .args(["-q", "-B", "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"])
            .arg(format!("-Dartifact=org.keycloak:keycloak-quarkus-dist:{VERSION}:zip"))
            .arg(format!("-DoutputDirectory={}", folder.display())),
    );
    let archive = format!("keycloak-quarkus-dist-{VERSION}.zip");
    done(Command::new("jar").current_dir(&folder).args(["xf", &archive]));
    let unpacked = folder.join(format!("keycloak-{VERSION}"));
    done(Command::new("chmod").arg("+x").arg(unpacked.join("bin/kc.sh")));
    std::fs::rename(unpacked, draft).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

fn try_ask(port: u16, line: &str, fields: &str, body: &str) -> Option<Message> {
    let mut peer = Peer::connect(&Address::Tcp(([127, 0, 0, 1], port).into())).ok()?.with_deadline(PATIENCE);
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let host = if fields.contains("Host: ") { String::new() } else { format!("Host: 127.0.0.1:{port}\r\n") };
    peer.ask(format!("{line} HTTP/1.1\r\n{host}{fields}{length}\r\n{body}")).ok()
}

fn ask(port: u16, line: &str, fields: &str, body: &str) -> Message {
    try_ask(port, line, fields, body).unwrap_or_else(|| panic!("{line} is not answered"))
}

/// Somebody with cookies for one host.
#[derive(Default)]
struct Cookies(BTreeMap<String, String>);

impl Cookies {
    fn take(&mut self, answer: &Message) {
        for line in answer.head.all("set-cookie") {
            let (pair, attributes) = line.split_once(';').unwrap_or((line, ""));
            let (name, value) = pair.split_once('=').unwrap();
            match attributes.contains("Max-Age=0") {
                true => self.0.remove(name),
                false => self.0.insert(name.to_owned(), value.to_owned()),
            };
        }
    }

    fn field(&self) -> String {
        let pairs: Vec<String> = self.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if pairs.is_empty() { String::new() } else { format!("Cookie: {}\r\n", pairs.join("; ")) }
    }
}

/// A gateway whose routes are before an origin that says what it got.
fn gateway(keycloak: &Keycloak, origin: &Origin) -> Gateway {
    let common = json!({
        "discovery": format!("{}/.well-known/openid-configuration", keycloak.issuer()),
        "client_id": "shop", "client_secret": "a-secret-of-the-shop", "timeout": 60,
    });
    let plugin = |more: Value| {
        let mut conf = common.clone();
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "openid-connect": conf })
    };
    let login = plugin(json!({
        "use_pkce": true, "use_nonce": true, "session": {"secret": "a-secret-of-the-gateway"},
        "post_logout_redirect_uri": "http://shop.example/bye", "required_scopes": ["openid"],
    }));
    let keys = plugin(json!({"bearer_only": true, "use_jwks": true, "required_scopes": ["email"]}));
    let asked = plugin(json!({"bearer_only": true}));
    let route = |uri: &str, plugins: &Value| {
        format!("  - {{ uri: \"{uri}\", plugins: {plugins}, upstream: {{ nodes: {} }} }}\n", nodes(&[origin]))
    };
    let routes = [route("/keys", &keys), route("/asked", &asked), route("/*", &login)].concat();
    let config = format!("workers: 2\nlisteners:\n  - address: \"{{listen}}\"\nroutes:\n{routes}");
    Gateway::start(SIGMA, &config).unwrap()
}

fn told(answer: &Message, name: &str) -> Option<String> {
    let json = answer.json().unwrap();
    let fields = json["headers"].as_array().unwrap();
    let found = fields.iter().find(|pair| pair[0].as_str().unwrap().eq_ignore_ascii_case(name))?;
    Some(found[1].as_str().unwrap().to_owned())
}

#[test]
fn users_and_programs_of_a_keycloak() {
    let keycloak = Keycloak::start();
    let origin = Origin::echo("a").unwrap();
    let gateway = gateway(&keycloak, &origin);
    let Address::Tcp(listening) = gateway.address() else { panic!("the gateway listens on TCP") };
    let port = listening.port();
    let shop = |target: &str, cookies: &mut Cookies, fields: &str| {
        let fields = format!("Host: shop.example\r\n{}{fields}", cookies.field());
        let answer = ask(port, &format!("GET {target}"), &fields, "");
        cookies.take(&answer);
        answer
    };
    // Programs.
    let (token, mut nobody) = (keycloak.token(), Cookies::default());
    for path in ["/keys", "/asked"] {
        let answer =
            shop(path, &mut nobody, &format!("Authorization: Bearer {token}\r\nX-Userinfo: lie\r\n"));
        assert_eq!(answer.status(), 200, "{path}: {}\n{}", answer.text(), gateway.stderr());
        assert_eq!(told(&answer, "x-access-token").as_deref(), Some(&*token));
        assert_ne!(told(&answer, "x-userinfo").as_deref(), Some("lie"));
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let forged = format!("{signed}.{}", signature.chars().rev().collect::<String>());
        let answer = shop(path, &mut nobody, &format!("Authorization: Bearer {forged}\r\n"));
        assert_eq!(answer.status(), 401, "{path}");
    }
    // A user.
    let (mut own, mut there) = (Cookies::default(), Cookies::default());
    let sent = shop("/orders?a=1", &mut own, "");
    assert_eq!(sent.status(), 302, "{}", gateway.stderr());
    let to = |location: &str| {
        location.strip_prefix(&format!("http://127.0.0.1:{}", keycloak.port)).unwrap().to_owned()
    };
    let page = ask(keycloak.port, &format!("GET {}", to(sent.head.get("location").unwrap())), "", "");
    there.take(&page);
    let text = page.text();
    let action = text.split("action=\"").nth(1).unwrap_or_else(|| panic!("no form: {text}"));
    let action = action.split('"').next().unwrap().replace("&amp;", "&");
    let fields = format!("Content-Type: application/x-www-form-urlencoded\r\n{}", there.field());
    let agreed = ask(
        keycloak.port,
        &format!("POST {}", to(&action)),
        &fields,
        "username=jack&password=jacks-password&credentialId=",
    );
    assert_eq!(agreed.status(), 302, "{}", agreed.text());
    let back = agreed.head.get("location").unwrap().strip_prefix("http://shop.example").unwrap().to_owned();
    let returned = shop(&back, &mut own, "");
    assert_eq!(returned.status(), 302, "{}", gateway.stderr());
    assert_eq!(returned.head.get("location"), Some("/orders?a=1"));
    assert_eq!(own.0.keys().filter(|name| name.contains("login")).count(), 0);
    let answer = shop("/orders?a=1", &mut own, "");
    assert_eq!(answer.status(), 200);
    let user = told(&answer, "x-userinfo").unwrap();
    let user = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, user).unwrap();
    let user: Value = serde_json::from_slice(&user).unwrap();
    assert_eq!(user["preferred_username"], "jack");
    assert_eq!(told(&answer, "cookie"), None);
    // The same callback once more.
    assert_eq!(shop(&back, &mut own, "").status(), 500);
    let farewell = shop("/logout", &mut own, "");
    let location = to(farewell.head.get("location").unwrap());
    assert!(location.starts_with("/realms/shop/protocol/openid-connect/logout?id_token_hint="), "{location}");
    let gone = ask(keycloak.port, &format!("GET {location}"), &there.field(), "");
    assert_eq!((gone.status(), gone.head.get("location")), (302, Some("http://shop.example/bye")));
    assert_eq!(shop("/orders", &mut own, "").status(), 302);
    let log = gateway.stderr();
    for secret in ["a-secret-of-the-shop", "a-secret-of-the-gateway", "jacks-password", &*token] {
        assert!(!log.contains(secret), "a secret is in the log");
    }
}
