//! Changes under full traffic, and that many of them end in the same state as a new start.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Operator, Origin, until};

use crate::managed::{
    EMBEDDED, KEY, admin, answerer, await_answerer, revision, route, start, start_again, upstream,
};
use crate::{PATIENCE, SIGMA};

/// Routes that are there all the time.
const ROUTES: usize = 20;

/// Calls `change` with 0, 1, 2 … at 100 a second while four clients ask every route without a pause; each response
/// must come from an origin. Returns the number of requests.
fn changed_under_load(gateway: &Gateway, changes: usize, change: impl Fn(&Operator, usize)) -> usize {
    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ask = || {
        let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
        while !stop.load(Ordering::SeqCst) {
            for number in 0..ROUTES {
                let answer = client.get(&format!("/{number}")).unwrap();
                let origin = answer.head.get("x-origin");
                assert!(
                    answer.status() == 200 && matches!(origin, Some("a" | "b")),
                    "/{number}: {} {origin:?} {}",
                    answer.status(),
                    answer.text()
                );
                asked.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        let (admin, began) = (admin(gateway), Instant::now());
        for number in 0..changes {
            change(&admin, number);
            let due = began + Duration::from_millis(10) * (number as u32 + 1);
            let failed = || clients.iter().any(|client| client.is_finished());
            if until(due.saturating_duration_since(Instant::now()), failed) {
                break;
            }
        }
        stop.store(true, Ordering::SeqCst);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    asked.into_inner()
}

/// A gateway with the routes `/0` … to the origin.
fn with_routes(origin: &Origin, value: impl Fn(usize) -> Value) -> Gateway {
    let gateway = start(EMBEDDED);
    let admin = admin(&gateway);
    admin.put("upstreams/u", &upstream(origin)).unwrap();
    admin.put("services/s", &json!({"upstream_id": "u"})).unwrap();
    for number in 0..ROUTES {
        admin.put(&format!("routes/{number}"), &value(number)).unwrap();
    }
    await_answerer(&gateway, &format!("/{}", ROUTES - 1), "a");
    gateway
}

#[test]
fn three_hundred_route_changes_fail_no_request() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let gateway = with_routes(&a, |number| route(&format!("/{number}"), &a));
    let asked = changed_under_load(&gateway, 300, |admin, number| {
        let (path, origin) = (format!("/{}", number % ROUTES), if number % 2 == 0 { &b } else { &a });
        match number % 3 {
            // Another route comes and goes next to the permanent ones.
            0 => admin.put("routes/other", &route("/other/*", origin)).unwrap(),
            1 => admin.put(&format!("routes/{}", number % ROUTES), &route(&path, origin)).unwrap(),
            _ => admin.delete("routes/other").unwrap(),
        }
    });
    assert!(asked > 300, "{asked} requests");
    await_revision(&gateway);
}

#[test]
fn changes_of_what_routes_refer_to_fail_no_request() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let gateway = with_routes(&a, |number| json!({"uri": format!("/{number}"), "service_id": "s"}));
    let both = json!({"nodes": {format!("127.0.0.1:{}", a.port()): 1, format!("127.0.0.1:{}", b.port()): 1}});
    changed_under_load(&gateway, 300, |admin, number| {
        let number = number as u64;
        match number % 6 {
            0 => admin.put("upstreams/u", &upstream(&b)).unwrap(),
            1 => admin.put("services/s", &json!({"upstream": upstream(&a)})).unwrap(),
            2 => admin.put("upstreams/u", &both).unwrap(),
            3 => admin.put("services/s", &json!({"upstream_id": "u", "desc": number.to_string()})).unwrap(),
            4 => {
                let plugins = json!({"request-id": {"header_name": format!("X-Id-{number}")}});
                admin.put("global_rules/g", &json!({"plugins": plugins})).unwrap();
            }
            _ => admin.delete("global_rules/g").unwrap(),
        }
    });
    await_revision(&gateway);
}

/// Waits until every worker serves the store's content.
fn await_revision(gateway: &Gateway) {
    let mut last = Value::Null;
    let current = until(PATIENCE, || {
        last = revision(gateway);
        last["revision"] == last["store"]["revision"]
    });
    assert!(current, "the workers are behind the store: {last}");
}

/// Numbers that are the same in every run (xorshift64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn is_one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

const PATHS: [&str; 5] = ["/0", "/1", "/2*", "/2/x", "/*"];
const HOSTS: [&str; 2] = ["test", "*.test"];

/// An upstream of one origin; unlike the nodes of an object, a patch replaces the nodes of a list.
fn listed(origin: &Origin) -> Value {
    json!({"nodes": [{"host": "127.0.0.1", "port": origin.port(), "weight": 1}]})
}

/// A resource, its references perhaps to nothing.
fn resource(dice: &mut Dice, kind: &str, number: u64, origins: &[Origin]) -> Value {
    let origin = &origins[dice.below(origins.len() as u64) as usize];
    let mut value = match kind {
        "upstreams" => listed(origin),
        "global_rules" => {
            json!({"plugins": {"request-id": {"header_name": format!("X-Id-{}", dice.below(3))}}})
        }
        "plugin_configs" => {
            json!({"plugins": {"mocking": {"response_example": format!("{}", dice.below(3))}}})
        }
        // Every priority is there once: which of two equal routes is first depends on their past.
        "routes" => json!({"uri": PATHS[dice.below(5) as usize], "priority": number}),
        _ => json!({}),
    };
    if matches!(kind, "routes" | "services") {
        match dice.below(4) {
            0 => value["upstream"] = listed(origin),
            1 if kind == "routes" => value["service_id"] = format!("{}", dice.below(3)).into(),
            _ => value["upstream_id"] = format!("{}", dice.below(3)).into(),
        }
    }
    if kind == "routes" {
        if dice.is_one_in(5) {
            value["host"] = HOSTS[dice.below(2) as usize].into();
        }
        if dice.is_one_in(5) {
            value["methods"] = json!(["GET", "POST"]);
        }
        if dice.is_one_in(6) {
            value["status"] = 0.into();
        }
        if dice.is_one_in(6) {
            value["plugin_config_id"] = format!("{}", dice.below(3)).into();
        }
    }
    value
}

/// One call at random; it may be refused, but must not fail.
fn write(dice: &mut Dice, admin: &Operator, origins: &[Origin]) {
    const KINDS: [&str; 8] = [
        "routes",
        "routes",
        "routes",
        "upstreams",
        "upstreams",
        "services",
        "global_rules",
        "plugin_configs",
    ];
    let kind = KINDS[dice.below(8) as usize];
    let number = dice.below(if kind == "routes" { 8 } else { 3 });
    let target = format!("/apisix/admin/{kind}/{number}");
    let value = resource(dice, kind, number, origins);
    let answer = match dice.below(8) {
        0 => admin.call("DELETE", &target, None),
        1 => admin.call("DELETE", &format!("{target}?force=true"), None),
        2 => admin.call("PATCH", &target, Some(&value)),
        _ => admin.call("PUT", &target, Some(&value)),
    };
    let answer = answer.unwrap();
    assert!(
        matches!(answer.status(), 200 | 201 | 400 | 404),
        "{target}: {} {}",
        answer.status(),
        answer.text()
    );
}

/// A gateway's responses to a number of requests, and the lists of its Admin API.
fn picture(gateway: &Gateway) -> BTreeMap<String, Value> {
    let mut picture = BTreeMap::new();
    let mut client = gateway.connect().unwrap().with_deadline(PATIENCE);
    for (host, target) in ["test", "a.test", "other"]
        .iter()
        .flat_map(|host| ["/0", "/1", "/2", "/2/x", "/2/y", "/3"].iter().map(move |target| (host, target)))
    {
        for method in ["GET", "PUT"] {
            let request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
            let answer = client.ask(request).unwrap();
            let mut ids: Vec<&str> = answer
                .head
                .fields
                .iter()
                .map(|(name, _)| name.as_str())
                .filter(|name| name.starts_with("X-Id"))
                .collect();
            ids.sort_unstable();
            let origin = answer.head.get("x-origin");
            // An origin echoes its request; other answers are the gateway's.
            let text = if origin.is_none() { answer.text() } else { String::new() };
            let seen = json!([answer.status(), origin, ids, text]);
            picture.insert(format!("{method} {host}{target}"), seen);
        }
    }
    let admin = admin(gateway);
    for kind in ["routes", "services", "upstreams", "global_rules", "plugin_configs"] {
        let list = admin.get(&format!("/apisix/admin/{kind}")).unwrap();
        for item in list["list"].as_array().unwrap() {
            let mut value = item["value"].clone();
            let object = value.as_object_mut().unwrap();
            object.remove("create_time");
            object.remove("update_time");
            picture.insert(item["key"].as_str().unwrap().to_owned(), value);
        }
    }
    picture
}

fn assert_same(seed: u64, what: &str, left: &BTreeMap<String, Value>, right: &BTreeMap<String, Value>) {
    let keys = left.keys().chain(right.keys());
    let differences: Vec<String> = keys
        .filter(|key| left.get(*key) != right.get(*key))
        .map(|key| format!("{key}: {:?} and {:?}", left.get(key), right.get(key)))
        .collect();
    assert!(differences.is_empty(), "seed {seed}, {what}:\n{}", differences.join("\n"));
}

fn ctl(gateway: &Gateway, args: &[&str]) -> Output {
    let url = format!("http://{}", gateway.admin_address());
    let mut command = Command::new(SIGMA);
    command.args(["ctl", "--admin", &url, "--key", KEY]).args(args);
    let output = command.current_dir(gateway.dir()).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Any sequence of writes serves what loading its outcome serves: by the same gateway after a
/// restart, and by another one to which it was dumped.
#[test]
fn changes_end_where_a_fresh_start_begins() {
    let origins = ["a", "b", "c"].map(|name| Origin::echo(name).unwrap());
    let fresh = start(EMBEDDED);
    for seed in 1..=6 {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let mut gateway = start(EMBEDDED);
        let writer = admin(&gateway);
        for _ in 0..60 {
            write(&mut dice, &writer, &origins);
        }
        await_revision(&gateway);
        let live = picture(&gateway);
        // A forced deletion leaves references to nothing, which `apply` would refuse.
        let dump = ctl(&gateway, &["dump", "-o", "json"]).stdout;
        let whole: Value = serde_json::from_slice(&dump).unwrap();
        let digest = format!("X-Digest: {seed}\r\n");
        let answer = admin(&fresh).call_with("PUT", "/apisix/admin/configs", &digest, Some(&whole)).unwrap();
        assert_eq!(answer.status(), 202, "{}", answer.text());
        await_revision(&fresh);
        assert_same(seed, "live and dumped elsewhere", &live, &picture(&fresh));
        gateway.kill().unwrap();
        start_again(&mut gateway);
        assert_same(seed, "live and restarted", &live, &picture(&gateway));
    }
}

/// A file by which `sigma ctl` carries a configuration from one gateway to another.
#[test]
fn a_dump_is_applied_elsewhere() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let (from, to) = (start(EMBEDDED), start(EMBEDDED));
    let writer = admin(&from);
    writer.put("upstreams/u", &upstream(&b)).unwrap();
    writer.put("routes/1", &route("/1", &a)).unwrap();
    writer.put("routes/2", &json!({"uri": "/2", "upstream_id": "u"})).unwrap();
    std::fs::write(to.dir().join("all.yaml"), ctl(&from, &["dump"]).stdout).unwrap();
    ctl(&to, &["apply", "-f", "all.yaml"]);
    await_answerer(&to, "/1", "a");
    await_answerer(&to, "/2", "b");
    assert_eq!(answerer(&to, "/3"), "404");
    await_revision(&from);
    assert_same(0, "the two", &picture(&from), &picture(&to));
}
