//! `Proxy-Status` of requests to names, with a name server. Other failures are in the simulation of `sigma-control`.

use serde_json::{Value, json};
use sigma_testkit::{Dns, Gateway, RecordKind, until};

use crate::{PATIENCE, SIGMA};

/// The status and the gateway's own field of a response.
fn told(gateway: &Gateway) -> (u16, String) {
    let answer = gateway.connect().unwrap().get("/here").unwrap();
    (answer.status(), answer.head.get("proxy-status").unwrap_or_default().to_owned())
}

/// The response, the access line and the counters of a request that reached no node.
fn unreached(upstream: Value, settings: Value, status: u16, error: &str) {
    let mut whole = json!({
        "workers": 1, "listeners": ["{listen}"], "status": { "address": "{status}" },
        "access_log": { "path": "stdout", "format": "fault=$fault", "flush_ms": 100 }, "proxy_status": "edge",
        "routes": [{ "id": "all", "uri": "/*", "upstream": upstream }],
    });
    whole.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    let gateway = Gateway::start(SIGMA, &whole.to_string()).unwrap();
    // The records are missing at first; a silent name server is still waited for then.
    let is_told = || {
        let (found, field) = told(&gateway);
        assert_eq!(found, status, "{field}");
        field.starts_with(&format!("edge; error={error}; details=\""))
    };
    assert!(until(PATIENCE, is_told), "{error}: {:?}", told(&gateway));
    assert!(until(PATIENCE, || gateway.stdout().contains(&format!("fault={error}\n"))), "{error}");
    assert!(gateway.counter(&format!("sigma_faults_total{{kind=\"{error}\"}}")) > 0);
}

#[test]
fn a_name_without_an_address_differs_from_no_node() {
    let settings = |names: &Dns| json!({ "dns": { "servers": [names.address().to_string()] } });
    let named = json!({ "nodes": { "node.sigma.test:80": 1 } });
    let without = Dns::start().unwrap();
    unreached(named.clone(), settings(&without), 503, "dns_error");
    let silent = Dns::start().unwrap();
    silent.silence(&[RecordKind::A, RecordKind::Aaaa]);
    unreached(named, settings(&silent), 503, "dns_timeout");
    // A service in DNS lacks its records; a registry has services, not names.
    let service = json!({ "discovery_type": "dns", "service_name": "service.sigma.test:80" });
    let registry =
        |names: &Dns| json!({ "discovery": { "dns": { "servers": [names.address().to_string()] } } });
    unreached(service.clone(), registry(&without), 503, "dns_error");
    unreached(service, registry(&silent), 503, "dns_timeout");
    // An upstream without a node lacks no name.
    unreached(json!({ "nodes": {} }), settings(&without), 503, "destination_unavailable");
}
