//! The gateway registers itself in registries: servers of the test that speak like Consul, Eureka and Nacos.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use sigma_testkit::{Gateway, Message, Origin, Peer, until};

use crate::{PATIENCE, SIGMA};

/// A registry of the test.
#[derive(Default)]
struct Registry(Mutex<RegistryState>);

#[derive(Default)]
struct RegistryState {
    /// Method and path of all requests.
    requests: Vec<String>,
    is_registered: bool,
    /// Answers errors.
    is_ill: bool,
}

impl Registry {
    fn start() -> (Arc<Registry>, Origin) {
        let registry = Arc::new(Registry::default());
        let shared = Arc::clone(&registry);
        let origin = Origin::answer(move |request| shared.respond(request)).unwrap();
        (registry, origin)
    }

    fn respond(&self, request: &Message) -> Vec<u8> {
        let (method, target) = request.head.request_line().unwrap();
        let path = target.split('?').next().unwrap();
        let mut state = self.0.lock().unwrap();
        state.requests.push(format!("{method} {path}"));
        let is_heartbeat = path.contains("/check/pass/") || path.ends_with("/beat") || path.ends_with("9080");
        let (status, body) = match (method, is_heartbeat) {
            _ if state.is_ill => ("500 Internal Server Error", "ill"),
            ("DELETE", _) => {
                state.is_registered = false;
                ("200 OK", "ok")
            }
            ("PUT", _) if path.contains("/deregister/") => {
                state.is_registered = false;
                ("200 OK", "")
            }
            (_, true) if path.ends_with("/beat") && !state.is_registered => ("200 OK", "{\"code\": 20404}"),
            (_, true) if !state.is_registered => ("404 Not Found", "unknown"),
            (_, true) => ("200 OK", "{\"code\": 10200}"),
            _ => {
                state.is_registered = true;
                ("200 OK", "ok")
            }
        };
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }

    fn is_registered(&self) -> bool {
        self.0.lock().unwrap().is_registered
    }

    fn set_ill(&self, is_ill: bool) {
        self.0.lock().unwrap().is_ill = is_ill;
    }

    /// Loses all registrations, as in a restart.
    fn forget(&self) {
        self.0.lock().unwrap().is_registered = false;
    }

    fn count(&self, request: &str) -> usize {
        self.0.lock().unwrap().requests.iter().filter(|one| *one == request).count()
    }
}

fn status(gateway: &Gateway) -> Value {
    let page = Peer::connect(&gateway.status_address()).unwrap().get("/status").unwrap().text();
    serde_json::from_str::<Value>(&page).unwrap()["registration"].take()
}

const ID: &str = "10.0.0.9%3Agateway%3A9080";

/// The requests of a registration, a heartbeat and a deregistration.
fn requests_of(registry: &str) -> [String; 3] {
    match registry {
        "consul" => [
            "PUT /v1/agent/service/register".to_owned(),
            format!("PUT /v1/agent/check/pass/service:{ID}"),
            format!("PUT /v1/agent/service/deregister/{ID}"),
        ],
        "eureka" => [
            "POST /eureka/apps/GATEWAY".to_owned(),
            format!("PUT /eureka/apps/GATEWAY/{ID}"),
            format!("DELETE /eureka/apps/GATEWAY/{ID}"),
        ],
        _ => [
            "POST /nacos/v1/ns/instance".to_owned(),
            "PUT /nacos/v1/ns/instance/beat".to_owned(),
            "DELETE /nacos/v1/ns/instance".to_owned(),
        ],
    }
}

fn config(registry: &str, port: u16) -> String {
    let servers = if registry == "consul" { "servers" } else { "host" };
    format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\nstatus: {{ address: \"{{status}}\" }}\npid_file: \"{{dir}}/sigma.pid\"\ndiscovery:\n  {registry}: {{ {servers}: [\"http://127.0.0.1:{port}\"] }}\nregistration: {{ registries: [{registry}], name: gateway, address: 10.0.0.9, port: 9080, heartbeat_s: 1 }}\nroutes:\n- uri: /*\n  plugins: {{ mocking: {{ response_example: here }} }}\n"
    )
}

#[test]
fn a_gateway_is_registered_while_it_serves() {
    for name in ["consul", "eureka", "nacos"] {
        let (registry, origin) = Registry::start();
        let [register, renew, remove] = requests_of(name);
        let gateway = Gateway::start(SIGMA, &config(name, origin.port())).unwrap();
        assert!(until(PATIENCE, || registry.is_registered()), "{name}: {}", gateway.stderr());
        assert!(until(PATIENCE, || registry.count(&renew) >= 2), "{name}: {}", gateway.stderr());
        // The registry restarts, and then fails for a while.
        registry.forget();
        assert!(until(PATIENCE, || registry.count(&register) >= 2), "{name}: {}", gateway.stderr());
        registry.set_ill(true);
        let has_problem =
            || status(&gateway)[0]["problem"].as_str().is_some_and(|text| text.contains("status 500: ill"));
        assert!(until(PATIENCE, has_problem), "{name}: {}", status(&gateway));
        registry.set_ill(false);
        assert!(until(PATIENCE, || status(&gateway)[0]["problem"].is_null()), "{name}: {}", status(&gateway));
        assert_eq!(status(&gateway)[0]["registry"], name);
        let page = Peer::connect(&gateway.status_address()).unwrap().get("/status/counters").unwrap().text();
        assert!(page.contains(&format!("sigma_registration_registered{{registry=\"{name}\"}} 1")), "{page}");
        // At the end it leaves.
        assert_eq!(registry.count(&remove), 0);
        assert!(gateway.stop().unwrap().success());
        assert_eq!((registry.count(&remove), registry.is_registered()), (1, false), "{name}");
    }
}

#[test]
fn a_registry_that_is_away_prevents_neither_start_nor_stop() {
    let (registry, origin) = Registry::start();
    registry.set_ill(true);
    let gateway = Gateway::start(SIGMA, &config("eureka", origin.port())).unwrap();
    assert_eq!(gateway.connect().unwrap().get("/").unwrap().text(), "here");
    let [register, ..] = requests_of("eureka");
    assert!(until(PATIENCE, || registry.count(&register) >= 2), "{}", gateway.stderr());
    assert!(gateway.stop().unwrap().success());
}

#[test]
fn an_upgrade_keeps_the_registration() {
    let (registry, origin) = Registry::start();
    let gateway = Gateway::start(SIGMA, &config("eureka", origin.port())).unwrap();
    let [register, renew, remove] = requests_of("eureka");
    assert!(until(PATIENCE, || registry.count(&register) == 1), "{}", gateway.stderr());
    gateway.upgrade().unwrap();
    assert!(until(PATIENCE, || registry.count(&register) == 2), "{}", gateway.stderr());
    let renewed = registry.count(&renew);
    assert!(until(PATIENCE, || registry.count(&renew) > renewed + 1), "{}", gateway.stderr());
    assert_eq!((registry.count(&remove), registry.is_registered()), (0, true));
}
