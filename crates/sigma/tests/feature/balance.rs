//! Weights, priorities and retries over several nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use sigma_testkit::{Gateway, Origin, until};

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

/// The origin that answered, and the cookie that came with the response.
fn visit(gateway: &Gateway, cookie: &str) -> (u16, Option<String>, Option<String>) {
    let mut client = gateway.connect().unwrap();
    let answer = client.ask(format!("GET / HTTP/1.1\r\nHost: h\r\nCookie: a=b; {cookie}\r\n\r\n")).unwrap();
    let field = |name| answer.head.get(name).map(str::to_owned);
    (answer.status(), field("x-origin"), field("set-cookie"))
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
