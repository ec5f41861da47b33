//! Real registries as configuration centres, and as registries in which the gateway registers itself.

use serde_json::{Value, json};
use sigma_testkit::{Gateway, until};

use super::{Consul, Eureka, Nacos, TOKEN, caller, status, token};
use crate::{PATIENCE, SIGMA};

/// A document whose only route responds with this word.
fn says(word: &str) -> Value {
    let plugins = json!({ "mocking": { "response_example": word } });
    json!({ "routes": [{ "id": "r", "uri": "/*", "plugins": plugins }] })
}

fn word(gateway: &Gateway) -> String {
    gateway.connect().unwrap().get("/").unwrap().text()
}

fn becomes(gateway: &Gateway, expected: &str) {
    assert!(
        until(PATIENCE, || word(gateway) == expected),
        "{expected}: {}\n{}",
        word(gateway),
        gateway.stderr()
    );
}

/// A gateway with these settings, which registers itself in a registry.
fn gateway(registry: &str, settings: &Value, more: &str) -> Gateway {
    let registration = json!({
        "registries": [registry], "name": "gateway", "address": "127.0.0.1", "port": 9080, "heartbeat_s": 1,
        "metadata": { "zone": "z1" }
    });
    let config = format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\ndiscovery: {settings}\nregistration: {registration}\n{more}"
    );
    Gateway::start(SIGMA, &config).unwrap()
}

#[test]
fn a_key_of_consul_is_the_configuration() {
    let mut consul = Consul::start();
    consul.put("/v1/kv/sigma/g.json", Some(&says("one")));
    let servers = json!([format!("http://127.0.0.1:{}", consul.ports[0])]);
    let sources = json!({ "consul": { "servers": servers, "token": TOKEN, "keys": ["sigma/g.json"] } });
    let gateway = gateway("consul", &consul.settings(), &format!("config_sources: {sources}\n"));
    assert_eq!(word(&gateway), "one");
    consul.put("/v1/kv/sigma/g.json", Some(&says("two")));
    becomes(&gateway, "two");
    let instances = |consul: &Consul| -> usize {
        let found =
            consul.operator().call_with("GET", "/v1/health/service/gateway?passing=true", &token(), None);
        found
            .ok()
            .and_then(|found| found.json().ok())
            .and_then(|all| all.as_array().map(Vec::len))
            .unwrap_or(0)
    };
    assert!(until(PATIENCE, || instances(&consul) == 1), "{}", gateway.stderr());
    // The key is gone, and so is the server for a while, which keeps nothing.
    assert_eq!(consul.call("DELETE", "/v1/kv/sigma/g.json", None), Some(200));
    gateway.await_log("Consul has no key `sigma/g.json`");
    consul.kill();
    gateway.await_log("cannot register this gateway, or send its heartbeat");
    assert_eq!(word(&gateway), "two");
    consul.run();
    consul.put("/v1/kv/sigma/g.json", Some(&says("three")));
    becomes(&gateway, "three");
    assert!(until(PATIENCE, || instances(&consul) == 1), "{}", gateway.stderr());
    assert!(!gateway.stderr().contains(TOKEN), "no secret is told");
    assert!(gateway.stop().unwrap().success());
    assert_eq!(instances(&consul), 0);
}

#[test]
fn eureka_lists_the_gateway() {
    let mut eureka = Eureka::start();
    let host = json!([format!("http://127.0.0.1:{}", eureka.port)]);
    let gateway = gateway("eureka", &json!({ "eureka": { "host": host } }), "routes: []\n");
    let is_listed = |eureka: &Eureka| status(eureka.port, "GET", "/eureka/apps/GATEWAY", None) == Some(200);
    assert!(until(PATIENCE, || is_listed(&eureka)), "{}", gateway.stderr());
    eureka.kill();
    gateway.await_log("cannot register this gateway, or send its heartbeat");
    eureka.run();
    assert!(until(PATIENCE, || is_listed(&eureka)), "{}", gateway.stderr());
    gateway.await_log("the registry does not know this gateway any more");
    assert!(gateway.stop().unwrap().success());
    assert!(until(PATIENCE, || !is_listed(&eureka)));
}

#[test]
fn nacos_lists_the_gateway() {
    let nacos = Nacos::start(false);
    let host = json!([format!("http://127.0.0.1:{}", nacos.port)]);
    let gateway = gateway("nacos", &json!({ "nacos": { "host": host } }), "routes: []\n");
    let instances = || -> usize {
        let target = "/nacos/v1/ns/instance/list?healthyOnly=true&serviceName=gateway&namespaceId=public";
        let found = caller(nacos.port).call_with("GET", target, "", None);
        let hosts = found.ok().and_then(|found| found.json().ok()).map(|all| all["hosts"].clone());
        hosts.and_then(|hosts| hosts.as_array().map(Vec::len)).unwrap_or(0)
    };
    assert!(until(PATIENCE, || instances() == 1), "{}", gateway.stderr());
    assert!(gateway.stop().unwrap().success());
    assert!(until(PATIENCE, || instances() == 0));
}
