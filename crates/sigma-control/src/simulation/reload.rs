//! Reloads of the file: a good one comes into force as a whole, and a bad one changes nothing.

use serde_json::{Value, json};
use sigma_net::listen::Claim;

use super::example;
use super::gateway::{catch_all, joined};
use super::peers::nodes_of;

#[test]
fn an_invalid_file_keeps_the_old_configuration() {
    example(|simulation| {
        let node = simulation.echo("a");
        let upstream = || json!({ "nodes": nodes_of(&[&node]) });
        let gateway = simulation.gateway(catch_all(upstream()));
        // Problems of the document, of the compilation, and of binding and opening.
        let taken = "127.0.0.1:9999";
        let _other = sigma_net::simulation::bind(taken.parse().unwrap(), Claim::First).unwrap().unwrap();
        let with = |settings: Value| joined(catch_all(upstream()), settings).to_string();
        let bad = [
            "routes: [".to_owned(),
            "routes:\n  - uri: /a\n    upstrem: {}\n".to_owned(),
            String::new(),
            catch_all(joined(upstream(), json!({ "scheme": "tcp" }))).to_string(),
            with(json!({ "access_log": { "path": "a.log", "format": "$stats" } })),
            with(json!({ "access_log": { "path": "/" } })),
            with(json!({ "listeners": [taken] })),
        ];
        for bad in &bad {
            gateway.rewrite_text(bad);
            let refused = gateway.reload();
            assert!(refused.is_err(), "{bad:?} is not refused");
            assert_eq!(gateway.get("/").get("x-origin"), Some("a"), "after {bad:?}");
            assert!(gateway.log().contains("the old configuration stays in force"), "{bad:?}");
        }
    });
}

#[test]
fn new_routes_appear_and_old_ones_vanish() {
    example(|simulation| {
        let node = simulation.echo("a");
        let route = |uri: &str| json!({ "routes": [{ "id": "all", "uri": uri, "upstream": { "nodes": nodes_of(&[&node]) } }] });
        let gateway = simulation.gateway(route("/*"));
        let mut client = gateway.connect();
        assert_eq!(client.get("/other").status(), 200);
        gateway.change(route("/only"));
        assert_eq!((client.get("/other").status(), client.get("/only").status()), (404, 200));
    });
}

#[test]
fn a_listener_opens_and_closes_with_its_configuration() {
    example(|simulation| {
        let node = simulation.echo("a");
        let config = |listeners: Value| {
            joined(catch_all(json!({ "nodes": nodes_of(&[&node]) })), json!({ "listeners": listeners }))
        };
        let (first, second) = ("127.0.0.1:9080", "127.0.0.1:9081");
        let gateway = simulation.gateway(config(json!([first])));
        let accepts = |at: &str| simulation.connect(at.parse().unwrap()).is_ok();
        assert!(accepts(first) && !accepts(second));
        gateway.change(config(json!([first, second])));
        assert!(accepts(first) && accepts(second));
        gateway.change(config(json!([second])));
        assert!(simulation.until(|| !accepts(first) && accepts(second)));
    });
}
