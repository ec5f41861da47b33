//! Certificates that are ordered when the first client requests a name.

use super::*;

/// A gateway that orders on demand as `on_demand` says, and listens where the authority asks.
fn gateway(pebble: &Pebble, origin: &Origin, challenge: &str, on_demand: &Value) -> Gateway {
    let settings = json!({ "challenge": challenge, "on_demand": on_demand, "retry_s": 3_600 });
    let listeners = json!({ "listeners": [
        { "address": "{listen}", "tls": {} },
        { "address": format!("127.0.0.1:{}", pebble.tls), "tls": {} },
        { "address": format!("127.0.0.1:{}", pebble.http) },
    ]});
    Gateway::start(SIGMA, &config(pebble, origin, settings, json!({}), listeners)).unwrap()
}

fn is_refused(gateway: &Gateway, pebble: &Pebble, name: &str) {
    let error = ask_by(gateway, pebble, name).unwrap_err();
    assert!(error.contains("unrecognised name"), "{name}: {error}");
}

#[test]
fn the_first_handshake_has_a_certificate_ordered() {
    is_ordered_by("http-01");
}

#[test]
fn a_name_on_demand_is_proved_in_a_handshake() {
    is_ordered_by("tls-alpn-01");
}

/// The first handshake waits for it, and the ones after it see it, over restarts too.
fn is_ordered_by(challenge: &str) {
    let (pebble, origin) = (Pebble::start(json!({})), Origin::echo("a").unwrap());
    let names = json!({ "names": ["*.a.test", "blocked.test"], "wait_ms": 120_000 });
    let mut gateway = gateway(&pebble, &origin, challenge, &names);
    let serial = ask_by(&gateway, &pebble, "b.a.test");
    let serial = serial.unwrap_or_else(|error| panic!("{error}\n{}", gateway.stderr()));
    // In any spelling.
    assert_eq!(ask_by(&gateway, &pebble, "B.A.test").as_ref(), Ok(&serial));
    // A handshake may have it a moment before the order has ended.
    let order = await_state(&gateway, "~b.a.test", "valid");
    assert_eq!(order["names"], json!(["b.a.test"]), "{order}");
    // A name that is not in the list causes no order, and one that the authority refuses is not tried again
    // and again.
    for name in ["a.test", "x.b.a.test", "c.test", "localhost", "blocked.test", "blocked.test"] {
        is_refused(&gateway, &pebble, name);
    }
    let all = gateway.stderr();
    assert_eq!(all.matches("the order of a certificate failed").count(), 1, "{all}");
    gateway.kill().unwrap();
    gateway.start_again().unwrap();
    assert_eq!(ask_by(&gateway, &pebble, "b.a.test"), Ok(serial));
    is_refused(&gateway, &pebble, "blocked.test");
    assert_eq!(read(&kept(&gateway, "~blocked.test"))["failures"], 1, "{}", gateway.stderr());
}

/// A client that requests more names than may be ordered in an hour gets none of their certificates.
#[test]
fn orders_are_counted() {
    let (pebble, origin) = (Pebble::start(json!({})), Origin::echo("a").unwrap());
    let one = json!({ "names": ["*.a.test"], "orders_per_hour": 1, "wait_ms": 120_000 });
    let gateway = gateway(&pebble, &origin, "http-01", &one);
    let served = ask_by(&gateway, &pebble, "one.a.test");
    assert!(served.is_ok(), "{served:?}\n{}", gateway.stderr());
    is_refused(&gateway, &pebble, "two.a.test");
    assert!(ask_by(&gateway, &pebble, "one.a.test").is_ok());
    assert!(gateway.stderr().contains("(`acme.on_demand.orders_per_hour`)"), "{}", gateway.stderr());
}

/// A service of the operator's decides.
#[test]
fn a_service_decides() {
    let (pebble, origin) = (Pebble::start(json!({})), Origin::echo("a").unwrap());
    let service = Origin::answer(|request| {
        let asks_for = |start: &str| request.head.line.contains(&format!("?tenant=7&domain={start}"));
        let status = match () {
            () if asks_for("good") => "200 OK",
            () if asks_for("ill") => "503 Service Unavailable",
            () => "302 Found\r\nLocation: /may?tenant=7&domain=good.test",
        };
        format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").into_bytes()
    })
    .unwrap();
    let ask = format!("http://127.0.0.1:{}/may?tenant=7", service.port());
    let gateway = gateway(&pebble, &origin, "http-01", &json!({ "ask": ask, "wait_ms": 120_000 }));
    is_refused(&gateway, &pebble, "bad.test");
    let asked = service.requests();
    is_refused(&gateway, &pebble, "bad.test");
    assert_eq!(service.requests(), asked, "it is asked again and again");
    // Endless names take nothing from one that is permitted.
    (0..50).for_each(|n| is_refused(&gateway, &pebble, &format!("bad-{n}.test")));
    let served = ask_by(&gateway, &pebble, "good.test");
    assert!(served.is_ok(), "{served:?}\n{}", gateway.stderr());
    // A service that fails permits nothing.
    is_refused(&gateway, &pebble, "ill.test");
}
