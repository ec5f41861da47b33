//! APISIX's own Go runner, version 0.5.0, with its example plugins: `make test-servers`.

use serde_json::json;
use sigma_testkit::{Gateway, Origin, until};

use super::server;
use crate::{PATIENCE, SIGMA};

#[test]
fn the_go_runner_of_apisix_runs_its_plugins() {
    let origin = Origin::answer(|request| {
        let body = format!("{} says hello", request.head.get("host").unwrap_or_default());
        format!("HTTP/1.1 200 OK\r\nX-Node: 1\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    });
    let origin = origin.unwrap();
    let route = |uri: &str, plugin: &str, name: &str, value: serde_json::Value| {
        json!({
            "id": &uri[1..], "uri": uri, "upstream": { "nodes": { origin.address().to_string(): 1 } },
            "plugins": { plugin: { "conf": [{ "name": name, "value": value.to_string() }] } },
        })
    };
    let fault = json!({ "http_status": 400, "body": "no", "percentage": 100 });
    let filters = json!([{ "regex": "hello", "scope": "global", "replace": "goodbye" }]);
    let config = json!({
        "workers": 2,
        "listeners": [{ "address": "{listen}" }],
        "ext-plugin": { "cmd": [server("go-runner", "")] },
        "routes": [
            route("/say", "ext-plugin-pre-req", "say", json!({ "body": "hello" })),
            route("/fault", "ext-plugin-post-req", "fault-injection", fault),
            route("/limit", "ext-plugin-pre-req", "limit-req", json!({ "rate": 1000, "burst": 1000 })),
            route("/changed", "ext-plugin-post-resp", "response-rewrite", json!({ "body": "new" })),
            route("/filtered", "ext-plugin-post-resp", "response-rewrite", json!({ "filters": filters })),
        ],
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    let mut client = gateway.connect().unwrap();
    assert!(until(PATIENCE, || client.get("/say").unwrap().status() == 200), "{}", gateway.stderr());
    for _ in 0..20 {
        assert_eq!(client.get("/say").unwrap().text(), "hello");
        let response = client.get("/fault").unwrap();
        assert_eq!((response.status(), &*response.text()), (400, "no"));
        let response = client.get("/limit").unwrap();
        assert!(response.text().ends_with(" says hello"), "{}", response.text());
        let response = client.get("/changed").unwrap();
        assert_eq!((&*response.text(), response.head.get("x-resp-a6-runner")), ("new", Some("Go")));
        let response = client.get("/filtered").unwrap();
        assert!(response.text().ends_with(" says goodbye"), "{}", response.text());
        assert_eq!(response.head.get("x-resp-a6-runner"), Some("Go"));
    }
}
