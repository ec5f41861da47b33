//! Weights, priorities and retries over several nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sigma_testkit::{Gateway, Origin, Peer, free_port, until};

use crate::{PATIENCE, SIGMA, catch_all, nodes};

fn one_worker(config: String) -> Gateway {
    Gateway::start(SIGMA, &config.replace("workers: 2", "workers: 1")).unwrap()
}

/// Sends `count` requests on one connection; answers how many each origin served.
fn spread(gateway: &Gateway, count: usize) -> BTreeMap<String, usize> {
    let mut client = gateway.connect().unwrap();
    let mut served = BTreeMap::new();
    for _ in 0..count {
        let answer = client.get("/").unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text());
        *served.entry(answer.head.get("x-origin").unwrap().to_string()).or_default() += 1;
    }
    served
}

#[test]
fn weights_are_exact_over_a_full_round() {
    let (a, b, c) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap(), Origin::echo("c").unwrap());
    let weighted = format!(
        "{{ \"127.0.0.1:{}\": 3, \"127.0.0.1:{}\": 1, \"127.0.0.1:{}\": 0 }}",
        a.port(),
        b.port(),
        c.port()
    );
    let gateway = one_worker(catch_all("", &weighted, "      type: roundrobin"));
    let served = spread(&gateway, 40);
    assert_eq!(served, BTreeMap::from([("a".to_string(), 30), ("b".to_string(), 10)]));
}

#[test]
fn a_lower_priority_serves_only_when_the_higher_cannot() {
    let spare = Origin::echo("spare").unwrap();
    let first = Origin::echo("first").unwrap();
    let listed = |port: u16| {
        format!(
            "\n        - {{ host: 127.0.0.1, port: {port}, weight: 1, priority: 1 }}\n        - {{ host: 127.0.0.1, port: {}, weight: 1 }}",
            spare.port()
        )
    };
    let gateway = one_worker(catch_all("", &listed(first.port()), ""));
    assert_eq!(spread(&gateway, 10), BTreeMap::from([("first".to_string(), 10)]));
    let gateway = one_worker(catch_all("", &listed(free_port()), ""));
    assert_eq!(spread(&gateway, 10), BTreeMap::from([("spare".to_string(), 10)]));
}

#[test]
fn consistent_hashing_keeps_a_key_on_its_node() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let config =
        catch_all("", &nodes(&[&a, &b]), "      type: chash\n      hash_on: header\n      key: X-User");
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    let mut used = BTreeMap::<String, usize>::new();
    for user in 0..20 {
        let node = |_: usize| {
            let mut client = gateway.connect().unwrap();
            let answer = client.ask(format!("GET / HTTP/1.1\r\nHost: h\r\nX-User: u{user}\r\n\r\n")).unwrap();
            answer.head.get("x-origin").unwrap().to_string()
        };
        let first = node(0);
        assert!((1..4).map(node).all(|other| other == first), "user {user} moved");
        *used.entry(first).or_default() += 1;
    }
    assert_eq!(used.len(), 2, "20 keys should reach both nodes: {used:?}");
}

/// From so many nodes on tables are made once for all workers.
#[test]
fn workers_share_the_tables_of_many_nodes() {
    let names: Vec<String> = (0..70).map(|n| format!("n{n}")).collect();
    let origins: Vec<Origin> = names.iter().map(|name| Origin::echo(name).unwrap()).collect();
    let all: Vec<&Origin> = origins.iter().collect();
    for balance in ["chash", "maglev", "rendezvous"] {
        let config = format!("      type: {balance}\n      hash_on: header\n      key: X-User");
        let gateway = Gateway::start(SIGMA, &catch_all("", &nodes(&all), &config)).unwrap();
        let node = |gateway: &Gateway, user: usize| {
            let mut client = gateway.connect().unwrap();
            let answer = client.ask(format!("GET / HTTP/1.1\r\nHost: h\r\nX-User: u{user}\r\n\r\n")).unwrap();
            answer.head.get("x-origin").unwrap().to_string()
        };
        let first: Vec<String> = (0..30).map(|user| node(&gateway, user)).collect();
        assert!((0..30).all(|user| node(&gateway, user) == first[user]), "{balance}");
        // Without the node of the first key the others stay; with Maglev a few may move.
        let left: Vec<&Origin> = all
            .iter()
            .zip(&names)
            .filter(|(_, name)| **name != first[0])
            .map(|(origin, _)| *origin)
            .collect();
        let fewer = Gateway::start(SIGMA, &catch_all("", &nodes(&left), &config)).unwrap();
        let moved =
            (0..30).filter(|&user| node(&fewer, user) != first[user] && first[user] != first[0]).count();
        assert!(moved <= if balance == "chash" { 0 } else { 6 }, "{balance}: {moved} keys moved");
    }
}

/// An origin that keeps `/held` unanswered until the gateway gives up, and answers all else.
fn holding(name: &'static str) -> Origin {
    Origin::serve(move |mut peer| {
        while let Ok(request) = peer.read_request() {
            if request.head.line.contains("/held") {
                // However it ends, this connection has served its purpose.
                let _ = peer.read_to_close();
                return;
            }
            let answer = format!("HTTP/1.1 200 OK\r\nX-Origin: {name}\r\nContent-Length: 0\r\n\r\n");
            if peer.send(answer).is_err() {
                return;
            }
        }
    })
    .unwrap()
}

#[test]
fn least_connections_avoids_the_busy_node() {
    let (a, b) = (holding("a"), holding("b"));
    let gateway = one_worker(catch_all("", &nodes(&[&a, &b]), "      type: least_conn\n      retries: 0"));
    // Which of two idle nodes comes first is not promised; all that follow go to the other.
    let mut client = gateway.connect().unwrap();
    client.send("GET /held HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert!(until(PATIENCE, || a.connections() + b.connections() == 1), "no node got the request");
    let free = if a.connections() == 0 { "a" } else { "b" };
    assert_eq!(spread(&gateway, 10), BTreeMap::from([(free.to_string(), 10)]));
}

#[test]
fn a_dead_node_costs_no_request() {
    let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
    let three = format!(
        "{{ \"127.0.0.1:{}\": 1, \"127.0.0.1:{}\": 1, \"127.0.0.1:{}\": 1 }}",
        a.port(),
        free_port(),
        b.port()
    );
    let gateway = Gateway::start(SIGMA, &catch_all("", &three, "")).unwrap();
    let served = spread(&gateway, 30);
    assert_eq!(served.values().sum::<usize>(), 30);
    assert_eq!(served.len(), 2, "{served:?}");
}

/// A first node that closes without a response after a while, and one that responds.
#[test]
fn no_retry_starts_after_retry_timeout() {
    // The slow failure is tested here: it takes the time that retries may take.
    const FAILS_AFTER: Duration = Duration::from_millis(600);
    fn check(retry_timeout: &str, expected: u16) {
        let failing = Origin::serve(|mut peer: Peer| {
            if peer.read_request().is_ok() {
                // Nothing more is sent to it, so this ends at its deadline.
                let _ = peer.with_deadline(FAILS_AFTER).read_exactly(1);
            }
        })
        .unwrap();
        let spare = Origin::echo("spare").unwrap();
        let listed = format!(
            "\n        - {{ host: 127.0.0.1, port: {}, weight: 1, priority: 1 }}\n        - {{ host: 127.0.0.1, port: {}, weight: 1 }}",
            failing.port(),
            spare.port()
        );
        let gateway = one_worker(catch_all("", &listed, &format!("      retry_timeout: {retry_timeout}")));
        let answer = gateway.connect().unwrap().get("/").unwrap();
        assert_eq!(answer.status(), expected, "{retry_timeout}: {}", answer.text());
        assert_eq!(spare.requests(), usize::from(expected == 200), "{retry_timeout}");
    }
    check("0", 200);
    check("20", 200);
    check("0.2", 502);
}

/// The origin that answered, and the cookie that came with the response.
fn visit(gateway: &Gateway, cookie: &str) -> (u16, Option<String>, Option<String>) {
    let mut client = gateway.connect().unwrap();
    let answer = client.ask(format!("GET / HTTP/1.1\r\nHost: h\r\nCookie: a=b; {cookie}\r\n\r\n")).unwrap();
    let field = |name| answer.head.get(name).map(str::to_owned);
    (answer.status(), field("x-origin"), field("set-cookie"))
}

#[test]
fn a_session_stays_where_its_cookie_says() {
    let (a, b, c) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap(), Origin::echo("c").unwrap());
    let affinity = |rest: &str| {
        format!(
            "      session_affinity: {{ cookie: {{ name: node, max_age: 60 }}, secret: 0123456789abcdef{rest} }}"
        )
    };
    let config = catch_all("", &nodes(&[&a, &b, &c]), &affinity(""));
    // Two workers, and two gateways, agree on the meaning of a cookie.
    let gateways = [Gateway::start(SIGMA, &config).unwrap(), Gateway::start(SIGMA, &config).unwrap()];
    let (status, origin, cookie) = visit(&gateways[0], "");
    let cookie = cookie.expect("a cookie");
    assert_eq!(status, 200);
    assert!(cookie.starts_with("node=") && cookie.ends_with("; Path=/; Max-Age=60; HttpOnly"), "{cookie}");
    let node = cookie.split(';').next().unwrap();
    for gateway in gateways.iter().cycle().take(12) {
        assert_eq!(visit(gateway, node), (200, origin.clone(), None));
    }
    // A made-up value names no node, and is replaced.
    for forged in ["node=127.0.0.1:1", "node=00000000000000000000000000000000"] {
        let (status, _, cookie) = visit(&gateways[0], forged);
        assert!(status == 200 && cookie.is_some_and(|cookie| cookie != forged));
    }
    // The node is not part of the upstream any more.
    let left: Vec<&Origin> = [(&a, "a"), (&b, "b"), (&c, "c")]
        .into_iter()
        .filter(|(_, name)| origin.as_deref() != Some(name))
        .map(|(o, _)| o)
        .collect();
    let fewer = Gateway::start(SIGMA, &catch_all("", &nodes(&left), &affinity(""))).unwrap();
    let (status, other, cookie) = visit(&fewer, node);
    assert!(status == 200 && other != origin && cookie.is_some_and(|cookie| !cookie.starts_with(node)));
    let strict =
        Gateway::start(SIGMA, &catch_all("", &nodes(&left), &affinity(", on_gone: reject"))).unwrap();
    assert_eq!(visit(&strict, node).0, 503);
    assert_eq!(visit(&strict, "").0, 200);
}

/// An application that keeps sessions: it makes a new one for a client without one of its own.
fn keeping(name: &'static str) -> Origin {
    let made = AtomicUsize::new(0);
    Origin::answer(move |request| {
        let asked = request.head.get("cookie").unwrap_or_default();
        let cookie = match asked.contains(&format!("SID={name}-")) {
            true => String::new(),
            false => {
                let number = made.fetch_add(1, Ordering::Relaxed);
                format!("Set-Cookie: SID={name}-{number}; Path=/; HttpOnly\r\n")
            }
        };
        format!("HTTP/1.1 200 OK\r\nX-Origin: {name}\r\n{cookie}Content-Length: 0\r\n\r\n").into_bytes()
    })
    .unwrap()
}

#[test]
fn sessions_stay_on_the_node_that_has_named_them() {
    let (a, b, c) = (keeping("a"), keeping("b"), keeping("c"));
    let config = |origins: &[&Origin], rest: &str| {
        catch_all("", &nodes(origins), &format!("      stick_table: {{ cookie: SID{rest} }}"))
    };
    let gateway = Gateway::start(SIGMA, &config(&[&a, &b, &c], "")).unwrap();
    let reload = |config: &str| {
        let reloads = || gateway.stderr().matches("configuration reloaded").count();
        let before = reloads();
        gateway.rewrite(config).unwrap();
        gateway.reload().unwrap();
        assert!(until(PATIENCE, || reloads() > before), "{}", gateway.stderr());
    };
    // Each on its own connection, of one worker or the other.
    let mut sessions: Vec<(String, String)> = (0..12)
        .map(|_| {
            let (status, origin, cookie) = visit(&gateway, "");
            assert_eq!(status, 200);
            (origin.unwrap(), cookie.unwrap().split(';').next().unwrap().to_owned())
        })
        .collect();
    let stay = |sessions: &[(String, String)]| {
        for (origin, cookie) in sessions.iter().cycle().take(sessions.len() * 3) {
            assert_eq!(visit(&gateway, cookie), (200, Some(origin.clone()), None), "{cookie}");
        }
    };
    stay(&sessions);
    assert!(sessions.iter().any(|(origin, _)| *origin != sessions[0].0));
    // A name that a client makes up is never learnt: its requests go around.
    let forged: BTreeSet<_> = (0..12).map(|_| visit(&gateway, "SID=forged").1).collect();
    assert!(forged.len() > 1, "{forged:?}");
    // The upstream changes: its sessions are known, but not the sessions of the node that is gone.
    reload(&config(&[&b, &c], ", size: 5000"));
    let gone: Vec<_> = sessions.extract_if(.., |(origin, _)| origin == "a").collect();
    stay(&sessions);
    let (status, origin, cookie) = visit(&gateway, &gone[0].1);
    assert!(status == 200 && origin.is_some_and(|origin| origin != "a") && cookie.is_some());
    reload(&config(&[&a, &b], ", size: 5000, on_gone: reject"));
    for (origin, cookie) in &sessions {
        assert_eq!(visit(&gateway, cookie).0, if origin == "c" { 503 } else { 200 });
    }
    // The node is back, and so are its sessions that were not used meanwhile.
    stay(&gone[1..]);
}

#[test]
fn a_header_or_a_parameter_may_name_the_session() {
    let echoing = |name: &'static str| {
        Origin::answer(move |request| {
            // It repeats the client's session, and names a new one otherwise.
            let named = request.head.get("mcp-session-id").map(str::to_owned);
            let named = named.unwrap_or_else(|| format!("{name}-{}", request.head.line.len()));
            format!(
                "HTTP/1.1 200 OK\r\nX-Origin: {name}\r\nMcp-Session-Id: {named}\r\nContent-Length: 0\r\n\r\n"
            )
            .into_bytes()
        })
        .unwrap()
    };
    let (a, b) = (echoing("a"), echoing("b"));
    let rule = "      stick_table: { header: Mcp-Session-Id, match: [$http_mcp_session_id, $arg_session] }";
    let gateway = Gateway::start(SIGMA, &catch_all("", &nodes(&[&a, &b]), rule)).unwrap();
    let ask = |path: &str, fields: &str| {
        let mut client = gateway.connect().unwrap();
        let answer = client.ask(format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).unwrap();
        let field = |name| answer.head.get(name).unwrap().to_owned();
        (field("x-origin"), field("mcp-session-id"))
    };
    let (origin, session) = ask("/", "");
    for _ in 0..6 {
        assert_eq!(ask("/", &format!("Mcp-Session-Id: {session}\r\n")).0, origin);
        assert_eq!(ask(&format!("/?session={session}"), "").0, origin);
    }
    let forged: BTreeSet<_> = (0..12).map(|_| ask("/", "Mcp-Session-Id: forged\r\n").0).collect();
    assert_eq!(forged.len(), 2);
}

#[test]
fn metadata_and_zone_choose_the_node() {
    let (a, b, c) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap(), Origin::echo("c").unwrap());
    let node = |origin: &Origin, version: u8, zone: &str| {
        format!(
            "\n        - {{ host: 127.0.0.1, port: {}, weight: 1, metadata: {{ version: \"{version}\", zone: {zone} }} }}",
            origin.port()
        )
    };
    let listed = [node(&a, 1, "east"), node(&b, 2, "east"), node(&c, 2, "west")].concat();
    let rules = "      zone_aware: { min_cluster_size: 1 }\n      subsets: { selectors: [{ keys: [version] }, \
                 { keys: [version, stage], fallback: keys_subset, fallback_keys_subset: [version] }], \
                 criteria: { version: $http_x_version, stage: $http_x_stage } }";
    let gateway = Gateway::start(SIGMA, &catch_all("zone: west", &listed, rules)).unwrap();
    let ask = |version: &str| {
        let mut client = gateway.connect().unwrap();
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{version}\r\n");
        let answer = client.ask(request).unwrap();
        (answer.status(), answer.head.get("x-origin").map(str::to_owned))
    };
    for _ in 0..6 {
        assert_eq!(ask("X-Version: 1\r\n"), (200, Some("a".into())));
        // Both have the version, and one is in the zone of the gateway.
        assert_eq!(ask("X-Version: 2\r\n"), (200, Some("c".into())));
        assert_eq!(ask("X-Version: 3\r\n"), (503, None));
        // No node has the stage: the version decides.
        assert_eq!(ask("X-Version: 1\r\nX-Stage: test\r\n"), (200, Some("a".into())));
        assert_eq!(ask("X-Version: 3\r\nX-Stage: test\r\n"), (503, None));
        assert_eq!(ask(""), (503, None));
    }
}
