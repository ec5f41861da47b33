//! Configurations from API descriptions: each request has its own route, and validation is optional.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::Value;
use sigma_testkit::{Gateway, Origin, until};

use crate::{PATIENCE, SIGMA};

fn sigma(dir: &Path, args: &[&str]) -> Output {
    Command::new(SIGMA).args(args).current_dir(dir).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const V3_0: &str = include_str!("openapi/petstore_3_0.yaml");
const V3_1: &str = include_str!("openapi/petstore_3_1.json");

/// Imports a document and checks what came out.
fn imported(document: &str, options: &[&str]) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("api.yaml"), document).unwrap();
    let made = sigma(dir.path(), &[&["import", "openapi", "api.yaml", "-o", "made.yaml"], options].concat());
    assert!(made.status.success(), "{}", text(&made.stderr));
    let checked = sigma(dir.path(), &["check", "made.yaml"]);
    assert!(checked.status.success(), "{}{}", text(&checked.stdout), text(&checked.stderr));
    (dir, text(&made.stderr))
}

/// The route that serves a request; empty without one.
fn route_of(dir: &Path, method: &str, host: &str, path: &str) -> String {
    let found = sigma(dir, &["routes", method, host, path, "-c", "made.yaml"]);
    let found = text(&found.stdout);
    let serves = found.lines().find_map(|line| line.strip_suffix(": serves this request"));
    serves.unwrap_or_default().to_owned()
}

#[test]
fn every_operation_has_its_own_route() {
    let (dir, told) = imported(V3_0, &[]);
    assert_eq!(
        told,
        "api.yaml: the document lists 2 servers; the upstream is https://api.petstore.example/v2\n"
    );
    let check = |method: &str, host: &str, path: &str, expected: &str| {
        assert_eq!(route_of(dir.path(), method, host, path), expected, "{method} {host} {path}");
    };
    let api = "api.petstore.example";
    check("GET", api, "/v2/pets", "listPets");
    check("GET", "sandbox.petstore.example", "/v2/pets/", "listPets");
    check("POST", api, "/v2/pets", "createPet");
    check("GET", api, "/v2/pets/mine", "myPets");
    check("GET", api, "/v2/pets/7", "getPet");
    check("PUT", api, "/v2/pets/7", "replacePet");
    check("DELETE", api, "/v2/pets/7", "deletePet");
    check("GET", api, "/v2/pets/7.json", "get-pets-petId-.json");
    check("POST", api, "/v2/pets/7/photos", "addPhoto");
    check("GET", api, "/v2/owners/1/pets/7", "petOfOwner");
    for (method, host, path) in [
        ("GET", api, "/pets"),
        ("GET", "other.example", "/v2/pets"),
        ("PATCH", api, "/v2/pets/7"),
        ("GET", api, "/v2/pets/7/photos"),
        ("GET", api, "/v2/pets/7/other"),
    ] {
        check(method, host, path, "");
    }
    let (dir, told) = imported(V3_1, &["--upstream", "http://10.0.0.1:81"]);
    assert_eq!(
        told,
        "api.yaml: routes have no authentication: add a plugin for the security schemes key\n\
         api.yaml: webhooks are requests to other servers and have no route\n"
    );
    let check = |method: &str, host: &str, path: &str, expected: &str| {
        assert_eq!(route_of(dir.path(), method, host, path), expected, "{method} {host} {path}");
    };
    let host = "petstore.example";
    check("GET", host, "/api/pets", "pets");
    check("GET", "127.0.0.1", "/pets", "pets");
    check("POST", "anything.example", "/internal/pets", "pets-create");
    check("GET", host, "/api/pets/a", "get-pet");
    check("PATCH", host, "/api/pets/a", "get-pet-2");
    check("OPTIONS", host, "/api/pets/a", "options-pets-id");
    check("HEAD", host, "/pets/a", "head-pets-id");
    check("GET", host, "/api/cats/search", "search");
    check("POST", host, "/api/pets/a:adopt", "adopt");
    let upstream: Value = {
        let made = sigma(dir.path(), &["check", "--print", "made.yaml"]);
        serde_json::from_slice::<Value>(&made.stdout).unwrap()["upstreams"][0].clone()
    };
    assert_eq!(upstream["nodes"][0]["host"], "10.0.0.1", "{upstream}");
}

#[test]
fn imported_configurations_are_valid() {
    let origin = Origin::echo("pets").unwrap();
    let (dir, _) =
        imported(V3_0, &["--validate", "--upstream", &format!("http://127.0.0.1:{}", origin.port())]);
    let made = std::fs::read_to_string(dir.path().join("made.yaml")).unwrap();
    let made = made.replace(":9080", "\"{listen}\"");
    let gateway = Gateway::start(SIGMA, &made).unwrap();
    let ask = |request: &str| {
        let mut client = gateway.connect().unwrap();
        client.ask(request.replace("HOST", "HTTP/1.1\r\nHost: api.petstore.example")).unwrap().status()
    };
    assert_eq!(ask("GET /v2/pets/7 HOST\r\n\r\n"), 200);
    assert_eq!(ask("GET /v2/pets/0 HOST\r\n\r\n"), 400);
    assert_eq!(ask("GET /v2/pets?limit=101 HOST\r\n\r\n"), 400);
    let json = "HOST\r\nContent-Type: application/json";
    assert_eq!(ask(&format!("POST /v2/pets {json}\r\nContent-Length: 12\r\n\r\n{{\"name\":\"a\"}}")), 200);
    assert_eq!(ask(&format!("POST /v2/pets {json}\r\nContent-Length: 10\r\n\r\n{{\"name\":1}}")), 400);
    assert_eq!(ask("GET /v2/none HOST\r\n\r\n"), 404);
}

#[test]
fn parts_that_cannot_be_imported_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let check = |document: &str, expected: &str| {
        std::fs::write(dir.path().join("api.yaml"), document).unwrap();
        let made = sigma(dir.path(), &["import", "openapi", "api.yaml"]);
        assert_eq!(
            (made.status.code(), text(&made.stderr), &*made.stdout),
            (Some(1), expected.to_owned(), &b""[..])
        );
    };
    check("openapi: 3.2.0", "api.yaml: OpenAPI 3.2.0 is not supported; write 3.0 or 3.1\n");
    check("openapi: 3.0.0", "api.yaml: the document has no operation\n");
    check(
        "a: 1\na: 2",
        "api.yaml: line 2: a: this key exists twice (the first one is in line 1; remove one of them)\n",
    );
    let outside = "{openapi: 3.0.0, paths: {/a: {$ref: 'file:///etc/passwd'}}}";
    check(outside, "api.yaml: `/paths/~1a/$ref`: `file:///etc/passwd` is outside this document\n");
    std::fs::write(dir.path().join("made.yaml"), "kept").unwrap();
    std::fs::write(dir.path().join("api.yaml"), V3_1).unwrap();
    let made = sigma(dir.path(), &["import", "openapi", "api.yaml", "-o", "made.yaml"]);
    assert!(text(&made.stderr).contains("made.yaml exists and was not changed"), "{}", text(&made.stderr));
    assert_eq!(std::fs::read_to_string(dir.path().join("made.yaml")).unwrap(), "kept");
}

/// A document from a URL: requests are denied before it is there, the last one stays in force while its
/// server fails, and a new one is taken over in the background.
#[test]
fn documents_are_fetched() {
    const NONE: u8 = 0;
    let described = Arc::new(AtomicU8::new(NONE));
    let state = Arc::clone(&described);
    let server = Origin::answer(move |request| {
        let key = request.head.get("x-key").unwrap_or_default().to_owned();
        let paths = match (state.load(Ordering::Relaxed), &*key) {
            (1, "secret") => r#"{"/one": {"get": {}}}"#,
            (2, "secret") => r#"{"/two": {"get": {}}}"#,
            _ => return b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n".to_vec(),
        };
        let body = format!(r#"{{"openapi": "3.1.0", "paths": {paths}}}"#);
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    })
    .unwrap();
    let node = Origin::echo("a").unwrap();
    let config = format!(
        "listeners: [\"{{listen}}\"]\nplugin_metadata: [{{ id: oas-validator, spec_url_ttl: 1 }}]\nroutes:\n  - uri: /*\n    plugins:\n      oas-validator: {{ spec_url: \"http://127.0.0.1:{}/spec\", spec_url_request_headers: {{ X-Key: secret }} }}\n    upstream: \"http://127.0.0.1:{}\"\n",
        server.port(),
        node.port()
    );
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    let status = |path: &str| gateway.connect().unwrap().get(path).unwrap().status();
    assert_eq!((status("/one"), status("/two")), (500, 500));
    described.store(1, Ordering::Relaxed);
    assert!(until(PATIENCE, || status("/one") == 200), "{}", gateway.stderr());
    assert_eq!(status("/two"), 400);
    described.store(NONE, Ordering::Relaxed);
    let asked = server.requests();
    // It is fetched again, and its last content stays.
    assert!(until(PATIENCE, || status("/one") == 200 && server.requests() > asked), "{}", gateway.stderr());
    assert_eq!((status("/one"), status("/two")), (200, 400));
    described.store(2, Ordering::Relaxed);
    assert!(until(PATIENCE, || status("/two") == 200), "{}", gateway.stderr());
    assert_eq!(status("/one"), 400);
}

#[test]
fn probes_compare_servers_over_tls() {
    let authority = crate::tls::Authority::new("probes");
    let issued = authority.issue("shop.test");
    let config = |text: &str| {
        serde_json::json!({
            "listeners": [{ "address": "{listen}", "tls": { "certificates": [{ "cert": "shop.crt", "key": "shop.key" }] } }],
            "routes": [{ "id": "all", "uri": "/*", "plugins": { "respond": { "status": 200, "text": text } } }],
        })
        .to_string()
    };
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("shop.crt", &issued.cert), ("shop.key", &issued.key), ("ca.pem", &authority.pem)] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let within = |text: &str| {
        let path = |name: &str| folder.path().join(name).display().to_string();
        config(text).replace("shop.crt", &path("shop.crt")).replace("shop.key", &path("shop.key"))
    };
    let (left, right) =
        (Gateway::start(SIGMA, &within("one")).unwrap(), Gateway::start(SIGMA, &within("two")).unwrap());
    let probes = r#"{"probes": [{"name": "start", "method": "GET", "host": "shop.test", "target": "/", "port": 443}]}"#;
    std::fs::write(folder.path().join("probes.json"), probes).unwrap();
    let url = |gateway: &Gateway| format!("https://{}", gateway.address());
    let (left, right) = (url(&left), url(&right));
    let probe = |right: &str, more: &[&str]| {
        let args = ["probe", "--left", &left, "--right", right, "-f", "probes.json"];
        sigma(folder.path(), &[&args, more].concat())
    };
    let same = probe(&left, &["--cacert", "ca.pem"]);
    assert_eq!(text(&same.stdout), "1 probes, 0 different\n", "{}", text(&same.stderr));
    let other = probe(&right, &["--insecure"]);
    assert_eq!(other.status.code(), Some(1));
    assert!(text(&other.stdout).contains("body: left `one`, right `two`"), "{}", text(&other.stdout));
    let refused = probe(&left, &[]);
    assert!(text(&refused.stderr).contains("--cacert FILE"), "{}", text(&refused.stderr));
}
