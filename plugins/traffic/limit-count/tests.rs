//! Counts, here and in a real Redis.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sigma_plugin::roster::Lookup;
use sigma_plugin::{Consumers, Entry, Env, Local, Node, Phase, Reply, Roster, Step};
use sigma_schema::plugins::PluginScope;

use crate::testing::{Case, entry, entry_with, refusal, roster, spawning};

mod installed;

#[test]
fn configurations() {
    let check = |conf: Value, reason: &str| assert_eq!(refusal("limit-count", &conf), reason, "{conf}");
    let with = |further: Value| {
        let mut conf = json!({"count": 2, "time_window": 60});
        conf.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        conf
    };
    let rule = |key: &str| json!({"count": 1, "time_window": 10, "key": key});
    check(with(json!({})), "");
    check(with(json!({"count": "$http_count", "time_window": "${arg_window ?? 5}"})), "");
    check(json!({}), "object matches none of the required: [\"count\",\"time_window\"] or [\"rules\"]");
    check(
        with(json!({"rules": [rule("$uri")]})),
        "count/time_window and rules cannot be specified at the same time",
    );
    check(
        json!({"group": "g", "rules": [rule("$uri")]}),
        "group and rules cannot be specified at the same time",
    );
    check(json!({"rules": [rule("$uri"), rule("$host"), rule("$uri")]}), "duplicate key '$uri' in rules");
    check(
        with(json!({"rejected_code": 199})),
        "property \"rejected_code\" validation failed: expected 199 to be at least 200",
    );
    check(with(json!({"policy": "redis"})), "then clause did not match");
    check(with(json!({"policy": "redis-cluster"})), "else clause did not match");
    check(with(json!({"policy": "redis-sentinel"})), "else clause did not match");
    let redis = |further: Value| {
        let mut conf = with(json!({"policy": "redis", "redis_host": "127.0.0.1"}));
        conf.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        conf
    };
    check(redis(json!({})), "");
    check(redis(json!({"sync_interval": 0.5})), "");
    check(redis(json!({"sync_interval": 0.05})), "sync_interval should not be smaller than 0.1");
    check(redis(json!({"sync_interval": 60})), "sync_interval should be smaller than time_window");
    let text = redis(json!({"sync_interval": 60, "time_window": "60"}));
    check(text, "sync_interval should be smaller than time_window");
    let cluster = |node: &str| {
        with(json!({"policy": "redis-cluster", "redis_cluster_name": "c", "redis_cluster_nodes": [node]}))
    };
    check(cluster("[::1]:7000"), "");
    check(cluster("$ENV://NODE_0"), "");
    for bad in ["host", ":7000", "host:0", "host:x", "[]:1"] {
        check(cluster(bad), &format!("redis_cluster_nodes: `{bad}` is not of the form host:port"));
    }
    let worded = |field: &str, value: &str| {
        format!(
            "property \"{field}\" validation failed: {value} is not a whole number from 1 to 9007199254740991 or a variable"
        )
    };
    check(with(json!({"time_window": "1m"})), &worded("time_window", "\"1m\""));
    check(with(json!({"count": "0"})), &worded("count", "\"0\""));
    let rule = json!({"count": 1, "time_window": "an hour", "key": "$uri"});
    check(json!({"rules": [rule]}), &worded("rules[0].time_window", "\"an hour\""));
    let prefixed = json!({"count": 1, "time_window": 1, "key": "$uri", "header_prefix": "a: b\r\nc"});
    assert_ne!(refusal("limit-count", &json!({"rules": [prefixed]})), "");
}

#[test]
fn quotas_of_addresses_and_other_rules_stay_apart() {
    let conf = json!({"count": 1, "time_window": 60, "key": "http_x"});
    let own = entry("limit-count", conf).unwrap();
    let mut case = Case::new("GET / HTTP/1.1\nHost: h\nX: 127.0.0.1\n");
    assert!(case.run(&own, Phase::Access).is_none());
    assert!(case.run(&own, Phase::Access).is_some());
    case.request("GET / HTTP/1.1\nHost: h\n");
    assert!(case.run(&own, Phase::Access).is_none());
    let rule = |count: u64, key: &str| json!({"count": count, "time_window": 60, "key": key});
    let rules = entry("limit-count", json!({"rules": [rule(9, "$http_x"), rule(1, "$arg_user")]})).unwrap();
    case.request("GET / HTTP/1.1\nHost: h\nX: jack\n");
    assert!(case.run(&rules, Phase::Access).is_none());
    case.request("GET /?user=jack HTTP/1.1\nHost: h\n");
    assert!(case.run(&rules, Phase::Access).is_none());
}

fn variable(case: &Case, name: &str) -> String {
    match sigma_schema::expr::Variables::get(&case.ctx, &sigma_schema::expr::VarName::parse(name)) {
        Some(sigma_schema::expr::VarValue::Text(text)) => String::from_utf8(text.into_owned()).unwrap(),
        _ => String::new(),
    }
}

fn fields(case: &mut Case, entry: &Entry) -> String {
    case.respond(200, "");
    case.header_filter(entry);
    let fields = case.ctx.response.headers.iter();
    let fields = fields.filter(|(name, _)| !name.ends_with(b"Reset"));
    let fields = fields
        .map(|(name, value)| format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)));
    fields.collect::<Vec<_>>().join(" ")
}

/// The fields of the reply to the second request.
fn case_refusal(conf: Value) -> Vec<(String, String)> {
    let entry = entry("limit-count", conf).unwrap();
    let mut case = Case::new("GET / HTTP/1.1\nHost: h\n");
    assert!(case.run(&entry, Phase::Access).is_none());
    let reply = case.run(&entry, Phase::Access).unwrap();
    let text = |value: Vec<u8>| String::from_utf8(value).unwrap();
    reply.headers.into_iter().map(|(name, value)| (name.into_owned(), text(value))).collect()
}

#[test]
fn requests_over_the_quota_are_refused() {
    let conf = json!({"count": 2, "time_window": 60, "rejected_code": 429, "rejected_msg": "too \"many\"", "key": "http_x-key"});
    let entry = entry("limit-count", conf).unwrap();
    let mut case = Case::new("GET / HTTP/1.1\nHost: h\n");
    let mut ask = |head: &str| {
        case.request(head);
        let reply = case.run(&entry, Phase::Access);
        let info = variable(&case, "rate_limiting_info");
        (reply.map(|reply| (reply.status, reply.body)), fields(&mut case, &entry), info)
    };
    let bare = "GET / HTTP/1.1\nHost: h\n";
    let keyed = "GET / HTTP/1.1\nHost: h\nX-Key: a\n";
    assert_eq!(ask(bare).1, "X-RateLimit-Limit=2 X-RateLimit-Remaining=1");
    assert_eq!(ask(keyed).1, "X-RateLimit-Limit=2 X-RateLimit-Remaining=1");
    assert_eq!(ask(bare).1, "X-RateLimit-Limit=2 X-RateLimit-Remaining=0");
    let (reply, fields, info) = ask(bare);
    let told = case_refusal(json!({"count": 1, "time_window": 60, "rejected_code": 429}));
    assert_eq!(told, [("Retry-After".to_owned(), "60".to_owned())]);
    assert_eq!(case_refusal(json!({"count": 1, "time_window": 60})), told, "503 has it too");
    assert_eq!(case_refusal(json!({"count": 1, "time_window": 60, "rejected_code": 403})), []);
    assert_eq!(case_refusal(json!({"count": 1, "time_window": 60, "show_limit_quota_header": false})), []);
    assert_eq!(reply, Some((429, Some(b"{\"error_msg\":\"too \\\"many\\\"\"}\n".to_vec()))));
    assert_eq!(fields, "X-RateLimit-Limit=2 X-RateLimit-Remaining=0");
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!((&info["rate_limiting_limit"], &info["rate_limiting_remaining"]), (&json!(2), &json!(0)));
    assert!(info["rate_limiting_key"].as_str().unwrap().ends_with(":127.0.0.1"), "{info}");
}

#[test]
fn rules_count_each_for_itself() {
    let conf = json!({"rules": [
        {"count": 3, "time_window": 60, "key": "${arg_user}"},
        {"count": "${arg_most ?? 1}", "time_window": 60, "key": "$arg_user-$arg_p", "header_prefix": "path"},
        {"count": 1, "time_window": 60, "key": "constant"}
    ]});
    let metadata = json!({"limit_header": "L-RateLimit-Limit"});
    let entry = entry_with("limit-count", conf, Some(metadata)).unwrap();
    let mut case = Case::new("GET / HTTP/1.1\nHost: h\n");
    let mut check = |target: &str, status: u16, expected: &str| {
        case.request(&format!("GET {target} HTTP/1.1\nHost: h\n"));
        let reply = case.run(&entry, Phase::Access);
        assert_eq!(reply.map_or(200, |reply| reply.status), status, "{target}");
        assert_eq!(fields(&mut case, &entry), expected, "{target}");
    };
    let one = "L-1-RateLimit-Limit=3 X-1-RateLimit-Remaining";
    let two = "L-path-RateLimit-Limit=1 X-path-RateLimit-Remaining=0";
    check("/?p=a&user=x", 200, &format!("{one}=2 {two}"));
    check("/?p=a&user=x", 503, &format!("{one}=1 {two}"));
    check("/?p=b&user=x", 200, &format!("{one}=0 {two}"));
    check("/?p=c&user=x", 503, &format!("{one}=0"));
    // Neither an invalid amount, nor no rule at all.
    check("/?p=c&user=y&most=0", 400, "");
    check("/?p=c&user=y&most=1.5", 400, "");
    check("/", 500, "");
}

#[test]
fn invalid_numbers_of_clients_are_400() {
    let check = |more: Value, expected: u16| {
        let conf = crate::testing::merged(json!({"time_window": 60, "key": "server_port"}), &more);
        let entry = entry("limit-count", conf).unwrap();
        let mut case = Case::new("GET /a HTTP/1.1\nHost: h\nX: many\nCookie: c=1.5\n");
        assert_eq!(case.run(&entry, Phase::Access).map_or(200, |reply| reply.status), expected, "{more}");
    };
    for client in ["$http_x", "$http_absent", "$cookie_c", "$arg_n", "$uri", "1$request_uri", "$host"] {
        for allow_degradation in [false, true] {
            check(json!({"count": client, "allow_degradation": allow_degradation}), 400);
            check(json!({"count": 1, "time_window": client, "allow_degradation": allow_degradation}), 400);
        }
        check(json!({"count": client, "dry_run": true}), 200);
    }
    check(json!({"count": "$consumer_name"}), 500);
    check(json!({"count": "$consumer_name", "allow_degradation": true}), 200);
    check(json!({"count": "${arg_n ?? 5}"}), 200);
}

/// The configurations of `limit-count` of the resources that exist.
#[derive(Default)]
struct Written(RefCell<BTreeMap<String, Arc<Value>>>);

impl Lookup for Written {
    fn metadata(&self, _: &str) -> Option<Arc<Value>> {
        None
    }

    fn written(&self, resource: &str, plugin: &str) -> Option<Arc<Value>> {
        assert_eq!(plugin, "limit-count");
        self.0.borrow().get(resource).cloned()
    }
}

/// Resources with `limit-count` of the group `g`, and their instances.
struct Members {
    node: Arc<Node>,
    written: Written,
    roster: Roster,
}

impl Members {
    fn new() -> Members {
        Members { node: Arc::default(), written: Written::default(), roster: roster() }
    }

    fn write(&self, resource: &str, conf: Value) {
        self.written.0.borrow_mut().insert(resource.to_owned(), Arc::new(conf));
    }

    fn build(&self, resource: &str) -> Result<Entry, String> {
        let conf = Arc::clone(&self.written.0.borrow()[resource]);
        self.roster.build("limit-count", &conf, Value::clone(&conf), resource, &self.written, &self.node)
    }

    /// Writes one resource and makes its instance.
    fn put(&self, resource: &str, conf: Value) -> Result<Entry, String> {
        self.write(resource, conf);
        self.build(resource)
    }
}

fn member(count: u64) -> Value {
    json!({"count": count, "time_window": 60, "group": "g"})
}

#[test]
fn a_group_has_one_configuration_and_one_counter() {
    let members = Members::new();
    let one = members.put("/apisix/routes/1", member(2)).unwrap();
    let two = members.put("/apisix/routes/2", member(2)).unwrap();
    let mut case = Case::new("GET / HTTP/1.1\nHost: h\n");
    let passed: Vec<bool> =
        [&one, &two, &one, &two].map(|entry| case.run(entry, Phase::Access).is_none()).to_vec();
    assert_eq!(passed, [true, true, false, false]);
    let mismatched = members.put("/apisix/routes/3", member(3)).unwrap_err();
    assert_eq!(mismatched, "group conf mismatched");
}

/// Instances of earlier configurations, which still serve requests, bind no later one.
#[test]
fn a_group_changes_with_its_members() {
    const MISMATCHED: &str = "group conf mismatched";
    let check = |before: &[(&str, Value)], after: &[(&str, Value)], expected: &[&str]| {
        let members = Members::new();
        let serving: Vec<Entry> =
            before.iter().map(|(resource, conf)| members.put(resource, conf.clone()).unwrap()).collect();
        members.written.0.borrow_mut().clear();
        after.iter().for_each(|(resource, conf)| members.write(resource, conf.clone()));
        let made: Vec<_> = after.iter().map(|(resource, _)| members.build(resource)).collect();
        let refused: Vec<_> =
            made.iter().map(|made| made.as_ref().err().map_or("", String::as_str)).collect();
        assert_eq!(refused, expected, "{before:?} {after:?}");
        drop(serving);
    };
    let (one, two, three) = ("/apisix/routes/1", "/apisix/services/2", "/apisix/global_rules/3");
    // The only member.
    check(&[(one, member(5))], &[(one, member(20))], &[""]);
    check(&[(one, member(20))], &[(one, member(5))], &[""]);
    let meta = json!({"count": 5, "time_window": 60, "group": "g", "_meta": {"priority": 1}});
    check(&[(one, member(5))], &[(one, meta.clone())], &[""]);
    let other = json!({"count": 5, "time_window": 60, "group": "other"});
    check(&[(one, member(5))], &[(one, other.clone())], &[""]);
    check(&[(one, other)], &[(one, member(7))], &[""]);
    // All members, by one reload.
    check(&[(one, member(5)), (two, member(5))], &[(one, member(20)), (two, member(20))], &["", ""]);
    // One of two, and the other is gone.
    check(&[(one, member(5)), (two, member(5))], &[(two, member(20))], &[""]);
    check(&[(one, member(5))], &[(two, member(20))], &[""]);
    // One of two, and the other stays.
    check(&[(one, member(5)), (two, member(5))], &[(one, member(20)), (two, member(5))], &[MISMATCHED, ""]);
    check(&[(one, member(5))], &[(one, member(5)), (two, member(6))], &["", MISMATCHED]);
    let rest = [(one, member(5)), (two, member(6)), (three, member(5))];
    check(&[], &rest, &["", MISMATCHED, ""]);
    // A default that is written, and `_meta`, make no difference.
    let written = json!({"count": 5, "time_window": 60, "group": "g", "key": "remote_addr"});
    check(&[(one, member(5))], &[(one, member(5)), (two, written), (three, meta)], &["", "", ""]);
}

/// One worker of a gateway: a thread's runtime and what belongs to it.
struct Worker {
    local: Rc<Local>,
    node: Arc<Node>,
    runtime: tokio::runtime::Runtime,
}

impl Worker {
    fn new(node: &Arc<Node>) -> Worker {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Worker { local: Rc::new(Local::new(0, 1)), node: Arc::clone(node), runtime }
    }

    /// Sends a request through the access phase.
    fn ask(&self, entry: &Entry, head: &str) -> Option<Reply> {
        let mut case = Case::new(head);
        let consumers = Consumers::default();
        let env = Env::new(&self.node, &self.local, &consumers);
        let mut step = entry.plugin.access(&mut case.ctx, &env);
        loop {
            step = match step {
                Step::Wait(future) => self.runtime.block_on(future)(&mut case.ctx, &env),
                Step::Reply(reply) => return Some(*reply),
                _ => return None,
            };
        }
    }
}

/// How many of the requests of four workers pass, for each of some keys.
fn passed_under_load(conf: &Value, requests: usize, keys: usize) -> Vec<usize> {
    let entry = entry("limit-count", conf.clone()).unwrap();
    let node = Arc::new(Node::default());
    let worker = || {
        let worker = Worker::new(&node);
        let passes = |key: usize| {
            let head = format!("GET /?k={key} HTTP/1.1\nHost: h\n");
            (0..requests).filter(|_| worker.ask(&entry, &head).is_none()).count()
        };
        (0..keys).map(passes).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .fold(vec![0; keys], |sum, each| sum.iter().zip(each).map(|(a, b)| a + b).collect())
    })
}

#[test]
fn with_delayed_synchronisation_requests_are_counted_here_while_redis_is_gone() {
    let silent = sigma_testkit::free_port();
    let conf = json!({"count": 5, "time_window": 600, "policy": "redis", "redis_host": "127.0.0.1",
        "redis_port": silent, "sync_interval": 0.1});
    let (entry, worker) = (entry("limit-count", conf).unwrap(), Worker::new(&Arc::default()));
    let statuses: Vec<u16> = (0..7)
        .map(|_| worker.ask(&entry, "GET / HTTP/1.1\nHost: h\n").map_or(200, |reply| reply.status))
        .collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 503, 503]);
}

#[test]
fn standard_fields_tell_of_each_rule() {
    let rule = |key: &str, prefix: Value| json!({"count": 2, "time_window": 60, "key": key, "header_prefix": prefix});
    let rules = json!([rule("$uri", json!("path")), {"count": 5, "time_window": 10, "key": "$host"}]);
    let conf = json!({"rules": rules, "standard_fields": true, "show_limit_quota_header": false});
    let plugin = entry("limit-count", conf).unwrap();
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    assert!(case.run(&plugin, Phase::Access).is_none());
    case.respond(200, "RateLimit: \"node\";r=1");
    case.header_filter(&plugin);
    assert_eq!(case.answered("RateLimit-Policy"), "\"path\";q=2;w=60, \"2\";q=5;w=10");
    assert_eq!(case.answered("RateLimit"), "\"node\";r=1, \"path\";r=1;t=60, \"2\";r=4;t=10");
    assert_eq!(case.answered("X-path-RateLimit-Limit"), "");
}

#[test]
fn a_dry_run_counts_and_refuses_no_request() {
    let dry = |conf: Value| crate::testing::merged(conf, &json!({"dry_run": true}));
    let key = json!({"key": "remote_addr", "default_conn_delay": 60, "conn": 1, "burst": 1});
    for (name, conf) in [
        ("limit-count", json!({"count": 1, "time_window": 60})),
        ("limit-count", json!({"count": "$http_none", "time_window": 60})),
        ("limit-req", json!({"rate": 0.001, "burst": 1, "key": "remote_addr"})),
        ("limit-conn", key),
    ] {
        let plugin = entry(name, dry(conf)).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        for _ in 0..4 {
            assert!(case.run(&plugin, Phase::Access).is_none(), "{name}");
        }
    }
    // The counters continue as they would.
    let plugin = entry("limit-count", dry(json!({"count": 3, "time_window": 60}))).unwrap();
    let mut case = Case::new("GET / HTTP/1.1\nHost: h");
    for left in ["2", "1", "0", "0"] {
        assert!(case.run(&plugin, Phase::Access).is_none());
        case.respond(200, "");
        case.header_filter(&plugin);
        assert_eq!(case.answered("X-RateLimit-Remaining"), left);
    }
}

/// Returns the remaining quota after each response; each request is refused or responded with these fields.
fn learnt(more: &Value, answers: &[&str]) -> Vec<String> {
    let base = json!({"count": 10, "time_window": 600, "rejected_code": 429, "cost_header": "X-Cost"});
    let plugin = entry("limit-count", crate::testing::merged(base, more)).unwrap();
    let mut case = Case::new("GET / HTTP/1.1\nHost: h\n");
    let mut seen = Vec::new();
    for answer in answers {
        case.request("GET / HTTP/1.1\nHost: h\n");
        let reply = case.run(&plugin, Phase::Access);
        case.respond(200, if reply.is_some() { "" } else { answer });
        case.header_filter(&plugin);
        let left = case.answered("X-RateLimit-Remaining");
        seen.push(format!("{} {left} {}", reply.map_or(200, |reply| reply.status), case.answered("X-Cost")));
    }
    seen
}

#[test]
fn answers_say_what_requests_have_cost() {
    for kind in ["fixed", "sliding"] {
        let check = |more: Value, answers: &[&str], expected: &[&str]| {
            let seen = learnt(&crate::testing::merged(json!({"window_type": kind}), &more), answers);
            let seen: Vec<&str> = seen.iter().map(|line| line.trim_end()).collect();
            assert_eq!(seen, expected, "{kind} {more}");
        };
        check(json!({}), &["X-Cost: 3", "", "X-Cost: 0"], &["200 7 3", "200 6", "200 5 0"]);
        // The remaining quota cannot be negative, but the window can.
        check(json!({}), &["X-Cost: 25", "X-Cost: 1"], &["200 0 25", "429 0"]);
        check(
            json!({"cost_default": 2, "cost_most": 4, "hide_cost_header": true}),
            &["X-Cost: 1", "X-Cost: x", "X-Cost: 99999999999999999999999"],
            &["200 8", "200 6", "200 2"],
        );
        check(
            json!({"cost_default": 4}),
            &["X-Cost: 1\nX-Cost: 2", "X-Cost: -9", "X-Cost: 4"],
            &["200 6 1, 2", "200 2 -9", "429 0"],
        );
        check(json!({"dry_run": true}), &["X-Cost: 11", "X-Cost: 2"], &["200 0 11", "200 0 2"]);
    }
}

#[test]
fn settings_of_answers() {
    let conf = |more: Value| {
        crate::testing::merged(json!({"count": 1, "time_window": 1, "rejected_code": 429}), &more)
    };
    let check =
        |more: Value, expected: &str| crate::testing::assert_refusal("limit-count", &conf(more), expected);
    check(
        json!({"cost_header": "X-Cost", "cost_default": 5, "cost_most": 4}),
        "cost_most should not be smaller",
    );
    check(json!({"cost_header": "a b"}), "property \"cost_header\" validation failed");
    check(
        json!({"cost_header": "X", "cost_default": 0}),
        "property \"cost_default\" validation failed: expected 0",
    );
    let warned = crate::testing::warned("limit-count", PluginScope::Http, &conf(json!({"cost_most": 5})));
    assert_eq!(warned, ["cost_most"]);
}

#[test]
fn a_sync_interval_without_redis_is_warned_of() {
    let check = |more: Value, expected: &[&str]| {
        let base = json!({"count": 1, "time_window": 1, "key": "server_port", "rejected_code": 429});
        let conf = crate::testing::merged(base, &more);
        assert_eq!(crate::testing::warned("limit-count", PluginScope::Http, &conf), expected, "{more}");
    };
    check(json!({"sync_interval": 5}), &["sync_interval"]);
    check(json!({"sync_interval": -1}), &[]);
    check(json!({"sync_interval": 0.5, "policy": "redis", "redis_host": "127.0.0.1"}), &[]);
}

#[test]
fn a_limit_without_a_status_is_warned_of() {
    for (name, conf) in [
        ("limit-count", json!({"count": 1, "time_window": 1})),
        ("graphql-limit-count", json!({"count": 1, "time_window": 1})),
        ("limit-req", json!({"rate": 1, "burst": 0, "key": "remote_addr"})),
        ("limit-conn", json!({"conn": 1, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr"})),
    ] {
        assert_eq!(crate::testing::warned(name, PluginScope::Http, &conf), ["rejected_code"], "{name}");
        let chosen = crate::testing::merged(conf.clone(), &json!({"rejected_code": 503}));
        assert_eq!(crate::testing::warned(name, PluginScope::Http, &chosen), [""; 0], "{name}");
        if name == "limit-conn" {
            assert_eq!(crate::testing::warned(name, PluginScope::Stream, &conf), [""; 0]);
        }
    }
}

#[test]
fn limits_by_what_clients_choose_are_warned_of() {
    for name in ["limit-count", "limit-req", "limit-conn"] {
        let check = |key: &str, key_type: &str, expected: &[&str]| {
            let conf = match name {
                "limit-count" => json!({"count": 1, "time_window": 1}),
                "limit-req" => json!({"rate": 1, "burst": 0}),
                _ => json!({"conn": 1, "burst": 0, "default_conn_delay": 0.1}),
            };
            let more = json!({"key": key, "key_type": key_type, "rejected_code": 429});
            let conf = crate::testing::merged(conf, &more);
            let warned = crate::testing::warned(name, sigma_schema::plugins::PluginScope::Http, &conf);
            assert_eq!(warned, expected, "{name} {key}");
        };
        for chosen in ["http_x_forwarded_for", "arg_user", "cookie_session"] {
            check(chosen, "var", &["key"]);
        }
        check("remote_addr", "var", &[]);
        check("consumer_name", "var", &[]);
        check("$remote_addr $http_host", "var_combination", &[]);
    }
}
