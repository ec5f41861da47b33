//! A real Keycloak, at which users log in and programs get tokens.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use sigma_testkit::{Address, Gateway, Message, Origin, free_port, until};

use super::{Cookies, ask, built, try_ask};
use crate::managed::{EMBEDDED, admin, start};
use crate::{PATIENCE, SIGMA};

const VERSION: &str = "26.5.6";

/// The key of the client `vault`.
const KEY: &str = "-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIJ7/YVjm4iW97XlIWrbxqT5fGjHCy64MvIpfGBHojQrNoAoGCCqGSM49
AwEHoUQDQgAEenIHgZPOi5oIiRoSIaJ7HcoM1CaG3PWMp6QtLIvfLKGBCbdcf4U9
nxCxlk9E1muXx5EHNy1tuzGIAb8V3XnxFg==
-----END EC PRIVATE KEY-----";

/// Its public half.
fn public_key() -> Value {
    json!({"kty": "EC", "crv": "P-256", "x": "enIHgZPOi5oIiRoSIaJ7HcoM1CaG3PWMp6QtLIvfLKE", "y": "gQm3XH-FPZ8QsZZPRNZrl8eRBzctbbsxiAG_Fd158RY"})
}

/// The first start of a version builds it, on a machine that may be busy.
const START: std::time::Duration = std::time::Duration::from_secs(420);

pub(super) struct Keycloak {
    pub(super) port: u16,
    process: Child,
    _dir: tempfile::TempDir,
}

impl Keycloak {
    /// One with a realm `shop`, the users `jack` and `jill`, and a client for each way to use it: `shop`, `vault`,
    /// and `guard`, whose orders are jack's.
    fn start() -> Keycloak {
        Keycloak::start_with(Vec::new())
    }

    /// The same, with more clients.
    pub(super) fn start_with(clients: Vec<Value>) -> Keycloak {
        let folder = built("keycloak", &format!("keycloak-{VERSION}"), |_, draft| fetch(draft));
        // The first start of a version writes into its folder.
        static STARTING: Mutex<()> = Mutex::new(());
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
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
        keycloak.set_up(clients);
        keycloak
    }

    fn set_up(&self, more: Vec<Value>) {
        let form = "grant_type=password&client_id=admin-cli&username=admin&password=admin";
        let answer = self.post("/realms/master/protocol/openid-connect/token", form);
        let token = answer.json().unwrap()["access_token"].as_str().unwrap().to_owned();
        let client = json!({
            "clientId": "shop", "secret": "a-secret-of-the-shop", "publicClient": false,
            "redirectUris": ["http://shop.example/*"], "directAccessGrantsEnabled": true,
            "attributes": {"post.logout.redirect.uris": "http://shop.example/*"},
        });
        // It says who it is by a signature, leaves questions before browsers come, and has its tokens bound.
        let mut own = public_key();
        own.as_object_mut().unwrap().extend([("kid".into(), "k".into()), ("use".into(), "sig".into())]);
        let vault = json!({
            "clientId": "vault", "publicClient": false, "clientAuthenticatorType": "client-jwt",
            "redirectUris": ["http://vault.example/*"],
            "attributes": {
                "use.jwks.string": "true", "jwks.string": json!({"keys": [own]}).to_string(),
                "token.endpoint.auth.signing.alg": "ES256", "require.pushed.authorization.requests": "true",
                "dpop.bound.access.tokens": "true", "post.logout.redirect.uris": "http://vault.example/*",
            },
        });
        let guard = json!({
            "clientId": "guard", "secret": "a-secret-of-the-guard", "publicClient": false,
            "serviceAccountsEnabled": true, "authorizationServicesEnabled": true,
            "authorizationSettings": {
                "policyEnforcementMode": "ENFORCING", "decisionStrategy": "UNANIMOUS",
                "resources": [{"name": "orders", "uris": ["/orders/*"], "scopes": [{"name": "GET"}]}],
                "scopes": [{"name": "GET"}],
                "policies": [
                    {"name": "jack alone", "type": "user", "logic": "POSITIVE", "config": {"users": "[\"jack\"]"}},
                    {"name": "orders are jacks", "type": "resource", "logic": "POSITIVE",
                     "config": {"resources": "[\"orders\"]", "applyPolicies": "[\"jack alone\"]"}},
                ],
            },
        });
        let user = |name: &str| {
            json!({
                "username": name, "enabled": true, "email": format!("{name}@shop.example"), "emailVerified": true,
                "firstName": name, "lastName": "Shop",
                "credentials": [{"type": "password", "value": format!("{name}s-password"), "temporary": false}],
            })
        };
        let clients = [vec![client, vault, guard], more].concat();
        let realm = json!({"realm": "shop", "enabled": true, "clients": clients, "users": [user("jack"), user("jill")]});
        let fields = format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
        let answer = ask(self.port, "POST /admin/realms", &fields, &realm.to_string());
        assert_eq!(answer.status(), 201, "{}", answer.text());
    }

    fn post(&self, target: &str, form: &str) -> Message {
        let fields = "Content-Type: application/x-www-form-urlencoded\r\n";
        ask(self.port, &format!("POST {target}"), fields, form)
    }

    /// Returns the target of a URL that a browser is sent to.
    pub(super) fn target(&self, location: &str) -> String {
        location.strip_prefix(&format!("http://127.0.0.1:{}", self.port)).unwrap().to_owned()
    }

    /// Logs a user in who was sent here; returns the response.
    pub(super) fn log_in(&self, location: &str, user: &str, cookies: &mut Cookies) -> Message {
        let mut page = ask(self.port, &format!("GET {}", self.target(location)), "", "");
        cookies.take(&page);
        // It shows earlier messages on its own page.
        if page.status() == 302 {
            let location = self.target(page.head.get("location").unwrap());
            page = ask(self.port, &format!("GET {location}"), &cookies.field(), "");
            cookies.take(&page);
        }
        let text = page.text();
        let action = text.split("action=\"").nth(1).unwrap_or_else(|| panic!("no form: {text}"));
        let action = self.target(&action.split('"').next().unwrap().replace("&amp;", "&"));
        let fields = format!("Content-Type: application/x-www-form-urlencoded\r\n{}", cookies.field());
        let form = format!("username={user}&password={user}s-password&credentialId=");
        ask(self.port, &format!("POST {action}"), &fields, &form)
    }

    fn issuer(&self) -> String {
        format!("http://127.0.0.1:{}/realms/shop", self.port)
    }

    /// A token that a program gets for a user.
    fn token(&self, user: &str) -> String {
        let form = format!(
            "grant_type=password&client_id=shop&client_secret=a-secret-of-the-shop\
            &username={user}&password={user}s-password&scope=openid"
        );
        let answer = self.post("/realms/shop/protocol/openid-connect/token", &form);
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

/// Routes to an origin that echoes its request, by their names.
fn routes(keycloak: &Keycloak, origin: &Origin) -> Vec<(&'static str, Value)> {
    let plugin = |more: Value| {
        let mut conf = json!({
            "discovery": format!("{}/.well-known/openid-configuration", keycloak.issuer()),
            "client_id": "shop", "client_secret": "a-secret-of-the-shop", "timeout": 60,
        });
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "openid-connect": conf })
    };
    let login = |more: Value| {
        let mut conf = json!({
            "use_pkce": true, "use_nonce": true, "session": {"secret": "a-secret-of-the-gateway"},
            "required_scopes": ["openid"],
        });
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        plugin(conf)
    };
    let shop = login(json!({"post_logout_redirect_uri": "http://shop.example/bye"}));
    let vault = login(json!({
        "client_id": "vault", "token_endpoint_auth_method": "private_key_jwt", "client_rsa_private_key": KEY,
        "client_rsa_private_key_id": "k", "client_jwt_assertion_alg": "ES256", "par": {"enabled": true},
        "dpop": {"enabled": true, "private_key": KEY, "public_jwk": public_key()},
        "post_logout_redirect_uri": "http://vault.example/bye",
    }));
    let keys = plugin(json!({"bearer_only": true, "use_jwks": true, "required_scopes": ["email"]}));
    let asked = plugin(json!({"bearer_only": true}));
    let guard = |more: Value| {
        let mut conf = json!({
            "discovery": format!("{}/.well-known/uma2-configuration", keycloak.issuer()), "client_id": "guard",
            "client_secret": "a-secret-of-the-guard", "timeout": 60_000,
        });
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "authz-keycloak": conf })
    };
    let named = guard(json!({"permissions": ["orders#GET"]}));
    let by_path = guard(json!({"lazy_load_paths": true, "http_method_as_scope": true}));
    let route = |host: &str, uri: &str, plugins: Value| {
        let upstream = json!({"type": "roundrobin", "nodes": {format!("127.0.0.1:{}", origin.port()): 1}});
        json!({"host": host, "uri": uri, "plugins": plugins, "upstream": upstream})
    };
    vec![
        ("keys", route("shop.example", "/keys", keys)),
        ("asked", route("shop.example", "/asked", asked)),
        ("shop", route("shop.example", "/*", shop)),
        ("vault", route("vault.example", "/*", vault)),
        ("named", route("named.example", "/*", named)),
        ("by-path", route("by-path.example", "/*", by_path)),
    ]
}

fn by_file(routes: &[(&str, Value)]) -> Gateway {
    let routes: Vec<&Value> = routes.iter().map(|(_, route)| route).collect();
    let config = json!({"workers": 2, "listeners": [{"address": "{listen}"}], "routes": routes});
    Gateway::start(SIGMA, &config.to_string()).unwrap()
}

fn by_operator(routes: &[(&str, Value)]) -> Gateway {
    let gateway = start(EMBEDDED);
    let operator = admin(&gateway);
    for (id, route) in routes {
        operator.put(&format!("routes/{id}"), route).unwrap();
    }
    let is_served = |host: &str| {
        let request = format!("GET /orders/1 HTTP/1.1\r\nHost: {host}\r\n\r\n");
        gateway.connect().is_ok_and(|mut peer| peer.ask(request).is_ok_and(|answer| answer.status() != 404))
    };
    for host in ["shop.example", "vault.example", "named.example", "by-path.example"] {
        assert!(until(PATIENCE, || is_served(host)), "{host} is not served");
    }
    gateway
}

fn told(answer: &Message, name: &str) -> Option<String> {
    let json = answer.json().unwrap();
    let fields = json["headers"].as_array().unwrap();
    let found = fields.iter().find(|pair| pair[0].as_str().unwrap().eq_ignore_ascii_case(name))?;
    Some(found[1].as_str().unwrap().to_owned())
}

/// Programs that bring tokens.
fn programs(keycloak: &Keycloak, gateway: &Gateway) {
    let token = keycloak.token("jack");
    for path in ["/keys", "/asked"] {
        let ask = |token: &str| {
            let fields =
                format!("Host: shop.example\r\nAuthorization: Bearer {token}\r\nX-Userinfo: lie\r\n");
            ask(port(gateway), &format!("GET {path}"), &fields, "")
        };
        let answer = ask(&token);
        assert_eq!(answer.status(), 200, "{path}: {}\n{}", answer.text(), gateway.stderr());
        assert_eq!(told(&answer, "x-access-token").as_deref(), Some(&*token));
        assert_ne!(told(&answer, "x-userinfo").as_deref(), Some("lie"));
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let forged = format!("{signed}.{}", sigma_testkit::damaged(signature, 2));
        assert_eq!(ask(&forged).status(), 401, "{path}");
    }
    let log = gateway.stderr();
    assert!(!log.contains(&token), "a token is in the log");
}

/// A user with a browser, who logs in at this host and out again.
fn user(keycloak: &Keycloak, gateway: &Gateway, host: &str) {
    let shop = |target: &str, cookies: &mut Cookies| {
        let fields = format!("Host: {host}\r\n{}", cookies.field());
        let answer = ask(port(gateway), &format!("GET {target}"), &fields, "");
        cookies.take(&answer);
        answer
    };
    let (mut own, mut there) = (Cookies::default(), Cookies::default());
    let sent = shop("/orders?a=1", &mut own);
    assert_eq!(sent.status(), 302, "{}", gateway.stderr());
    let agreed = keycloak.log_in(sent.head.get("location").unwrap(), "jack", &mut there);
    assert_eq!(agreed.status(), 302, "{}", agreed.text());
    let back =
        agreed.head.get("location").unwrap().strip_prefix(&format!("http://{host}")).unwrap().to_owned();
    let returned = shop(&back, &mut own);
    assert_eq!(returned.status(), 302, "{}", gateway.stderr());
    assert_eq!(returned.head.get("location"), Some("/orders?a=1"));
    assert_eq!(own.0.keys().filter(|name| name.contains("login")).count(), 0);
    let answer = shop("/orders?a=1", &mut own);
    assert_eq!(answer.status(), 200);
    let decoded = |text: &str| -> Value {
        let engine = base64::engine::general_purpose::STANDARD;
        serde_json::from_slice(&base64::Engine::decode(&engine, text).unwrap()).unwrap()
    };
    assert_eq!(decoded(&told(&answer, "x-userinfo").unwrap())["preferred_username"], "jack");
    assert_eq!(told(&answer, "cookie"), None);
    // The same callback once more.
    assert_eq!(shop(&back, &mut own).status(), 500);
    let farewell = shop("/logout", &mut own);
    let location = keycloak.target(farewell.head.get("location").unwrap());
    assert!(location.starts_with("/realms/shop/protocol/openid-connect/logout?id_token_hint="), "{location}");
    let gone = ask(keycloak.port, &format!("GET {location}"), &there.field(), "");
    assert_eq!((gone.status(), gone.head.get("location")), (302, Some(&*format!("http://{host}/bye"))));
    assert_eq!(shop("/orders", &mut own).status(), 302);
}

/// Orders are jack's, as Keycloak says.
fn permissions(keycloak: &Keycloak, gateway: &Gateway) {
    for host in ["named.example", "by-path.example"] {
        let get = |line: &str, token: Option<&str>| {
            let credential =
                token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
            ask(port(gateway), line, &format!("Host: {host}\r\n{credential}"), "").status()
        };
        let (jack, jill) = (keycloak.token("jack"), keycloak.token("jill"));
        assert_eq!(get("GET /orders/1", Some(&jack)), 200, "{host}: {}", gateway.stderr());
        assert_eq!(get("GET /orders/1", Some(&jill)), 403, "{host}");
        assert_eq!(get("GET /orders/1", None), 401, "{host}");
        assert_eq!(get("GET /orders/1", Some("nonsense")), 401, "{host}");
    }
    // A path, and a method, of which Keycloak knows nothing.
    let jack = keycloak.token("jack");
    for line in ["GET /elsewhere", "DELETE /orders/1"] {
        let fields = format!("Host: by-path.example\r\nAuthorization: Bearer {jack}\r\n");
        let status = ask(port(gateway), line, &fields, "").status();
        assert!((400..500).contains(&status), "{line}: {status}");
    }
}

pub(super) fn port(gateway: &Gateway) -> u16 {
    let Address::Tcp(listening) = gateway.address() else { panic!("the gateway listens on TCP") };
    listening.port()
}

#[test]
fn users_and_programs_of_a_keycloak() {
    let keycloak = Keycloak::start();
    let origin = Origin::echo("a").unwrap();
    let routes = routes(&keycloak, &origin);
    let gateways = [by_file(&routes), by_operator(&routes)];
    for gateway in &gateways {
        programs(&keycloak, gateway);
        user(&keycloak, gateway, "shop.example");
        user(&keycloak, gateway, "vault.example");
        permissions(&keycloak, gateway);
    }
    let jack = keycloak.token("jack");
    drop(keycloak);
    for gateway in &gateways {
        for (host, target, expected) in [
            ("named.example", "/orders/1", 503),
            ("by-path.example", "/orders/1", 503),
            ("shop.example", "/asked", 401),
        ] {
            let fields = format!("Host: {host}\r\nAuthorization: Bearer {jack}x\r\n");
            let answer = ask(port(gateway), &format!("GET {target}"), &fields, "");
            assert_eq!(answer.status(), expected, "{host}");
        }
        let log = gateway.stderr();
        let secret_line = KEY.lines().nth(1).unwrap();
        for secret in [
            "a-secret-of-the-shop",
            "a-secret-of-the-gateway",
            "a-secret-of-the-guard",
            "jacks-password",
            secret_line,
            &jack,
        ] {
            assert!(!log.contains(secret), "a secret is in the log");
        }
    }
}
