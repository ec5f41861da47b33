//! Names of nodes whose name server does not respond: only what needs them waits.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::{Value, json};
use sigma_testkit::{Dns, Gateway, Operator, Origin, RecordKind, until};

use crate::PATIENCE;
use crate::managed::{EMBEDDED, admin, await_answerer, route, start};

fn silent() -> Dns {
    let names = Dns::start().unwrap();
    names.silence(&[RecordKind::A, RecordKind::Aaaa]);
    names
}

/// A gateway that waits for names for longer than any test.
fn waiting_for(names: &Dns) -> Gateway {
    let address = names.address();
    start(&format!("{EMBEDDED}\ndns: {{ servers: [\"{address}\"], change_wait_ms: 600000 }}"))
}

fn named(number: usize, origin: &Origin) -> Value {
    let node = format!("n{number}.sigma.test:{}", origin.port());
    json!({"nodes": {node: 1}})
}

/// Puts an upstream with a new name; returns when the name server was queried.
fn put_named(gateway: &Gateway, names: &Dns, number: usize, origin: &Origin) {
    let asked = names.asked();
    admin(gateway).put(&format!("upstreams/{number}"), &named(number, origin)).unwrap();
    assert!(until(PATIENCE, || names.asked() > asked), "nobody asks for n{number}");
}

#[test]
fn a_change_that_waits_for_names_keeps_no_operator_waiting() {
    let (names, origin) = (silent(), Origin::echo("a").unwrap());
    let gateway = waiting_for(&names);
    let (status, control) =
        (Operator::new(gateway.status_address()), Operator::new(gateway.control_address()));
    let mut number = 0;
    // A machine that is slow enough may see the change in force before it asks: then another one.
    let is_told_meanwhile = until(PATIENCE, || {
        number += 1;
        put_named(&gateway, &names, number, &origin);
        let shown = control.get("/v1/upstreams").unwrap().to_string();
        let told = status.get("/status").unwrap();
        let revision = |place: &str| told.pointer(place).and_then(Value::as_u64);
        let is_waiting = revision("/configuration/published") < revision("/configuration/store/revision");
        is_waiting && !shown.contains(&format!("n{number}.sigma.test"))
    });
    assert!(is_told_meanwhile, "operators are answered only once the change is in force");
    // Other writes are taken meanwhile, and come into force after it.
    admin(&gateway).put("routes/other", &route("/other", &origin)).unwrap();
    let by_name = json!({"uri": "/named", "upstream_id": number.to_string()});
    admin(&gateway).put("routes/named", &by_name).unwrap();
    names.set_addresses("*", &[IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    names.silence(&[]);
    await_answerer(&gateway, "/other", "a");
    await_answerer(&gateway, "/named", "a");
    assert!(gateway.stop().unwrap().success());
}

#[test]
fn a_change_that_waits_for_names_does_not_hold_up_the_end() {
    let (names, origin) = (silent(), Origin::echo("a").unwrap());
    let gateway = waiting_for(&names);
    put_named(&gateway, &names, 1, &origin);
    assert!(gateway.stop().unwrap().success());
}
