//! Failed logins of requests that pass a guard and a login plugin, as the gateway runs them.

use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sigma_plugin::record::Source;
use sigma_plugin::{Consumer, Entry};

use super::*;
use crate::testing::{Case, assert_refusal, entry};

/// A guard before a login plugin.
struct Gate {
    case: Case,
    guard: Entry,
    login: Arc<Entry>,
}

impl Gate {
    fn new(guard: Value, login: &str, conf: Value) -> Gate {
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        case.consumer("jack", "basic-auth", &json!({"username": "jack", "password": "p"}));
        case.consumer("jill", "key-auth", &json!({"key": "jills"}));
        case.consumers.put(Arc::new(Consumer { name: "anyone".into(), ..Consumer::default() }));
        let (guard, login) = (entry("login-guard", guard).unwrap(), entry(login, conf).unwrap());
        Gate { case, guard, login: Arc::new(login) }
    }

    fn basic(guard: Value) -> Gate {
        Gate::new(guard, "basic-auth", json!({}))
    }

    /// The guard's part of a request; a refusal.
    fn enter(&mut self, addr: &str, request: &str) -> Option<Reply> {
        self.case.request(request);
        self.case.ctx.client.addr = addr.parse().ok();
        self.case.run(&self.guard, Phase::Rewrite)
    }

    /// The status of the response to a request, as the gateway makes it: 200 if it passes.
    fn send(&mut self, addr: &str, request: &str) -> u16 {
        if let Some(reply) = self.enter(addr, request) {
            return reply.status;
        }
        let status = self.case.run(&self.login, Phase::Rewrite).map_or(200, |reply| {
            self.case.ctx.login.set_responder(Arc::clone(&self.login), reply.status);
            reply.status
        });
        self.case.respond(status, "");
        self.case.header_filter(&self.guard);
        status
    }

    fn get(&mut self, addr: &str, fields: &str) -> u16 {
        self.send(addr, &format!("GET / HTTP/1.1\nHost: h\n{fields}"))
    }
}

fn basic(credentials: &str) -> String {
    format!("Authorization: Basic {}", STANDARD.encode(credentials))
}

#[test]
fn address_with_failed_logins_is_blocked() {
    let mut gate = Gate::basic(json!({"max_failures": 3, "rejected_code": 403, "rejected_msg": "no"}));
    let wrong = basic("jack:wrong");
    for (addr, same, other) in [
        ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"),
        ("2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"),
        ("", "", "192.0.2.3"),
    ] {
        assert_eq!([&wrong, &wrong, &wrong].map(|field| gate.get(addr, field)), [401; 3], "{addr}");
        assert_eq!(gate.get(other, &wrong), 401);
        let reply = gate.enter(same, &format!("GET / HTTP/1.1\nHost: h\n{}", basic("jack:p"))).unwrap();
        assert_eq!((reply.status, &*reply.body.unwrap()), (403, &b"{\"error_msg\":\"no\"}\n"[..]));
        assert_eq!(reply.headers[0], ("Retry-After".into(), b"300".to_vec()), "{addr}");
        assert_eq!(gate.get(same, ""), 403);
        assert_eq!(gate.get(other, &basic("jack:p")), 200);
    }
}

#[test]
fn only_requests_with_a_credential_are_logins() {
    let mut gate = Gate::basic(json!({"max_failures": 1, "credentials": ["cookie_sid", "$http_x_token"]}));
    for fields in ["", "Cookie: other=1", "apikey: 1", "X-Token:", "Signature: 1"] {
        assert_eq!([gate.get("192.0.2.1", fields), gate.get("192.0.2.1", fields)], [401, 401], "{fields}");
    }
    for (at, fields) in [
        "Authorization: Bearer a",
        "Authorization: ",
        "Proxy-Authorization: Basic eA==",
        "Cookie: sid=1",
        "X-Token: 1",
    ]
    .into_iter()
    .enumerate()
    {
        let addr = format!("198.51.100.{at}");
        assert_eq!([gate.get(&addr, fields), gate.get(&addr, "")], [401, 429], "{fields}");
    }
}

/// The key is gone from the request when the response passes.
#[test]
fn declared_credentials_count_although_the_login_plugin_hides_them() {
    let conf = json!({"header": "X_Key", "query": "key", "hide_credentials": true});
    let mut gate = Gate::new(json!({"max_failures": 1}), "key-auth", conf);
    for (at, (request, expected)) in [
        ("GET / HTTP/1.1\nHost: h", 401),
        ("GET /?apikey=1 HTTP/1.1\nHost: h\napikey: 1", 401),
        ("GET /?a&k%65y=1 HTTP/1.1\nHost: h", 429),
        ("GET / HTTP/1.1\nHost: h\nX-Key: 1", 429),
    ]
    .into_iter()
    .enumerate()
    {
        let addr = format!("192.0.2.{at}");
        assert_eq!([gate.send(&addr, request), gate.get(&addr, "")], [401, expected], "{request}");
    }
}

#[test]
fn blocked_account_is_open_to_known_addresses_alone() {
    let conf = json!({"max_failures": 100, "account_max_failures": 4});
    let mut gate = Gate::basic(conf);
    let right = basic("jack:p");
    assert_eq!(gate.get("192.0.2.1", &right), 200);
    // All of these are taken for one account.
    let spellings = [
        basic("jack:1"),
        basic("JA ck:2"),
        format!("Authorization: Custom bASIC\t{}", STANDARD.encode("jack:3")),
        basic("jack\u{b}:4"),
    ];
    for (at, field) in spellings.iter().enumerate() {
        assert_eq!(gate.get(&format!("198.51.100.{at}"), field), 401, "{field}");
    }
    assert_eq!(gate.get("203.0.113.1", &right), 429);
    assert_eq!(gate.get("203.0.113.1", &basic("jill:wrong")), 401, "another account");
    assert_eq!(gate.get("203.0.113.1", ""), 401, "no account");
    assert_eq!(gate.get("192.0.2.1", &basic("jack:wrong")), 401, "its user may err");
    assert_eq!(gate.get("192.0.2.1", &right), 200);
}

#[test]
fn user_names_are_found_wherever_a_login_plugin_finds_them() {
    let of = |value: &str| user_name(value.as_bytes()).map(|name| String::from_utf8(name).unwrap());
    let jack = STANDARD.encode("jack:p:q");
    for value in ["Basic ", "bASIC\t", "Custom basic ", "ldap basic ", "LDAP ", "basicbasic  "] {
        assert_eq!(of(&format!("{value}{jack} ")).as_deref(), Some("jack"), "{value}");
    }
    for value in ["", "Basic", "Basic ", &jack, &format!("Basic{jack}"), "Bearer basic", "Basic amFjaw=="] {
        assert_eq!(of(value), None, "{value}");
    }
}

#[test]
fn failed_login_makes_no_address_known() {
    let mut gate = Gate::basic(json!({"max_failures": 100, "account_max_failures": 2}));
    assert_eq!([1, 2].map(|_| gate.get("192.0.2.1", &basic("jack:wrong"))), [401, 401]);
    assert_eq!(gate.get("192.0.2.1", &basic("jack:p")), 429);
    let mut gate = Gate::basic(json!({"max_failures": 100, "account_max_failures": 0}));
    (0..20).for_each(|_| assert_eq!(gate.get("192.0.2.1", &basic("jack:wrong")), 401));
}

#[test]
fn account_is_a_template_and_may_be_absent() {
    let conf = json!({"max_failures": 3, "account_max_failures": 2, "account": "${http_x_user}@$host"});
    let mut gate = Gate::basic(conf);
    let user = |name: &str| format!("X-User: {name}\n{}", basic("x:y"));
    assert_eq!(gate.get("192.0.2.1", &user("Ann")), 401);
    assert_eq!(gate.get("192.0.2.2", &user("ann")), 401);
    assert_eq!(gate.get("192.0.2.3", &user("ann")), 429);
    assert_eq!(gate.get("192.0.2.3", &user("bob")), 401);
    let conf = json!({"max_failures": 3, "account_max_failures": 1, "account": "$http_x_user"});
    let mut gate = Gate::basic(conf);
    let wrong = basic("jack:wrong");
    let statuses = [1, 2, 3, 4].map(|_| gate.get("192.0.2.1", &wrong));
    assert_eq!(statuses, [401, 401, 401, 429], "without a value the address counts alone");
}

#[test]
fn several_ways_to_log_in_are_one_login() {
    let ways = json!({"auth_plugins": [{"key-auth": {}}, {"basic-auth": {}}]});
    let mut gate = Gate::new(json!({"max_failures": 2}), "multi-auth", ways);
    let both = format!("apikey: no\n{}", basic("jack:no"));
    assert_eq!([1, 2, 3].map(|_| gate.get("192.0.2.1", &both)), [401, 401, 429]);
    // A wrong key with the right password is no failure, a wrong key alone is one.
    let right = format!("apikey: no\n{}", basic("jack:p"));
    assert_eq!([1, 2, 3].map(|_| gate.get("192.0.2.2", &right)), [200; 3]);
    assert_eq!([1, 2, 3].map(|_| gate.get("192.0.2.3", "apikey: no")), [401, 401, 429]);
}

#[test]
fn wrong_credentials_of_the_anonymous_consumer_count() {
    let anyone = json!({"anonymous_consumer": "anyone"});
    let mut gate = Gate::new(json!({"max_failures": 2}), "basic-auth", anyone.clone());
    for fields in ["", "Authorization: Bearer for-the-node"] {
        assert_eq!([1, 2, 3].map(|_| gate.get("192.0.2.1", fields)), [200; 3], "{fields}");
    }
    assert_eq!([1, 2, 3].map(|_| gate.get("192.0.2.1", &basic("jack:wrong"))), [200, 200, 429]);
    let ways = json!({"auth_plugins": [{"key-auth": {}}, {"basic-auth": anyone}]});
    let mut gate = Gate::new(json!({"max_failures": 2}), "multi-auth", ways);
    assert_eq!([1, 2, 3].map(|_| gate.get("192.0.2.1", "")), [200; 3]);
    assert_eq!([1, 2, 3].map(|_| gate.get("192.0.2.1", "apikey: no")), [200, 200, 429]);
}

/// The result of one request with Basic credentials after `change`: whether it counts.
fn counts(guard: Value, change: impl Fn(&mut Context)) -> bool {
    let mut gate = Gate::basic(crate::testing::merged(json!({"max_failures": 1}), &guard));
    let request = format!("GET / HTTP/1.1\nHost: h\n{}", basic("jack:wrong"));
    assert!(gate.enter("192.0.2.1", &request).is_none());
    change(&mut gate.case.ctx);
    gate.case.header_filter(&gate.guard);
    // Another node's response to the same request is not another login.
    gate.case.header_filter(&gate.guard);
    gate.enter("192.0.2.1", &request).is_some()
}

#[test]
fn replies_of_login_plugins_with_one_of_the_statuses_count() {
    let replied = |plugin: &str, conf: Value, status: u16| {
        let responder = Arc::new(entry(plugin, conf).unwrap());
        move |ctx: &mut Context| {
            ctx.login.set_responder(Arc::clone(&responder), status);
            // Another plugin has changed the response.
            ctx.response.start(302);
        }
    };
    let central = json!({"server": "http://127.0.0.1:1"});
    let check = |guard: Value, plugin: &str, conf: Value, status: u16, expected: bool| {
        assert_eq!(counts(guard, replied(plugin, conf, status)), expected, "{plugin} {status}");
    };
    check(json!({}), "basic-auth", json!({}), 401, true);
    check(json!({}), "wolf-rbac", central.clone(), 401, true);
    check(json!({}), "wolf-rbac", central.clone(), 403, false);
    check(json!({"statuses": [403]}), "wolf-rbac", central.clone(), 403, true);
    check(json!({"statuses": [403]}), "wolf-rbac", central, 401, false);
    let names = json!({"whitelist": ["jack"]});
    check(json!({"statuses": [401, 403]}), "consumer-restriction", names, 403, false);
    let unjudged = |ctx: &mut Context| {
        replied("basic-auth", json!({}), 401)(ctx);
        ctx.mark_unjudged_credential();
    };
    assert!(!counts(json!({}), unjudged), "a directory that is down");
}

#[test]
fn responses_of_nodes_count_where_that_is_configured() {
    let answered = |ctx: &mut Context| {
        ctx.record.upstream_statuses.push(0);
        ctx.record.answered(401);
        ctx.response.start(200);
    };
    assert!(!counts(json!({}), answered));
    assert!(counts(json!({"count_upstream": true}), answered));
    assert!(!counts(json!({"count_upstream": true, "statuses": [403]}), answered));
    let stored = |ctx: &mut Context| {
        ctx.record.source = Source::Upstream;
        ctx.response.start(401);
    };
    assert!(!counts(json!({"count_upstream": true}), stored), "no node was asked");
    let failed = |ctx: &mut Context| {
        answered(ctx);
        ctx.record.source = Source::Fault;
    };
    assert!(!counts(json!({"count_upstream": true}), failed));
}

/// A guard of a changed configuration, or of another place, begins with no counts.
#[test]
fn configurations_have_counts_of_their_own() {
    let mut gate = Gate::basic(json!({"max_failures": 1}));
    let node = Arc::clone(&gate.case.node);
    let mut guard = |resource: &str, conf: Value| {
        let conf = Arc::new(conf);
        let resolved = crate::testing::merged(
            json!({"max_failures": 1, "time_window": 60, "block_time": 300, "known_for": 60,
                "statuses": [401], "credentials": [], "count_upstream": false, "rejected_code": 429}),
            &conf,
        );
        let built =
            crate::testing::roster().build("login-guard", &conf, resolved, resource, &|_: &str| None, &node);
        gate.guard = built.unwrap();
        gate.get("192.0.2.1", &basic("jack:wrong"))
    };
    assert_eq!([1, 2].map(|_| guard("/apisix/routes/1", json!({}))), [401, 429]);
    assert_eq!([1, 2].map(|_| guard("/apisix/routes/2", json!({}))), [401, 429]);
    assert_eq!([1, 2].map(|_| guard("/apisix/routes/1", json!({"time_window": 61}))), [401, 429]);
}

#[test]
fn bad_configurations_are_refused() {
    let check = |conf: Value, expected: &str| assert_refusal("login-guard", &conf, expected);
    check(json!({}), "");
    check(json!({"account": "jack"}), "account: `jack` has no variable");
    check(json!({"account": "$http_x_user"}), "");
    check(json!({"account": "$no_such_variable"}), "unknown variable `no_such_variable`");
    check(json!({"credentials": ["no_such_variable"]}), "unknown variable `no_such_variable`");
    check(json!({"max_failures": 0}), "expected 0 to be at least 1");
    check(json!({"statuses": []}), "expect array to have at least 1 items");
    check(json!({"statuses": [302]}), "expected 302 to be at least 400");
    check(json!({"rejected_code": 200}), "expected 200 to be at least 400");
}
