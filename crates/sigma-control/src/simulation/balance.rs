//! Weights, priorities, sessions and retries over several nodes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::gateway::{Gateway, catch_all, joined};
use super::peers::{Conversation, Message, Node, nodes_of, response};
use super::{Simulation, example};

fn gateway(simulation: &Simulation, nodes: Value, rules: Value) -> Gateway {
    simulation.gateway(catch_all(joined(json!({ "nodes": nodes }), rules)))
}

fn origin(message: &Message) -> String {
    message.get("x-origin").unwrap_or_default().to_owned()
}

/// Sends `count` requests on one connection; returns how many each node served.
fn spread(gateway: &Gateway, count: usize) -> BTreeMap<String, usize> {
    let mut client = gateway.connect();
    let mut served = BTreeMap::new();
    for _ in 0..count {
        let answer = client.get("/");
        assert_eq!(answer.status(), 200, "{}", answer.text());
        *served.entry(origin(&answer)).or_default() += 1;
    }
    served
}

fn served<const N: usize>(nodes: [(&str, usize); N]) -> BTreeMap<String, usize> {
    nodes.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}

/// A node of the configuration with a priority.
fn listed(address: std::net::SocketAddr, priority: i32) -> Value {
    json!({ "host": address.ip(), "port": address.port(), "weight": 1, "priority": priority })
}

#[test]
fn weights_are_exact_over_a_full_round() {
    example(|simulation| {
        let [a, b, c] = ["a", "b", "c"].map(|name| simulation.echo(name));
        let weighted = json!({ a.name(): 3, b.name(): 1, c.name(): 0 });
        let gateway = gateway(simulation, weighted, json!({ "type": "roundrobin" }));
        assert_eq!(spread(&gateway, 40), served([("a", 30), ("b", 10)]));
    });
}

#[test]
fn a_lower_priority_serves_only_when_the_higher_cannot() {
    for (is_there, name) in [(true, "first"), (false, "spare")] {
        example(move |simulation| {
            let (spare, first) = (simulation.echo("spare"), simulation.echo("first"));
            let higher = if is_there { first.address } else { simulation.free_address() };
            let nodes = json!([listed(higher, 1), listed(spare.address, 0)]);
            let gateway = gateway(simulation, nodes, json!({}));
            assert_eq!(spread(&gateway, 10), served([(name, 10)]));
        });
    }
}

/// The node of a key.
fn of_user(gateway: &Gateway, user: usize) -> String {
    origin(&gateway.ask(&format!("GET / HTTP/1.1\r\nHost: h\r\nX-User: u{user}\r\n\r\n")))
}

#[test]
fn consistent_hashing_keeps_a_key_on_its_node() {
    example(|simulation| {
        let (a, b) = (simulation.echo("a"), simulation.echo("b"));
        let rules = json!({ "type": "chash", "hash_on": "header", "key": "X-User" });
        let gateway = gateway(simulation, nodes_of(&[&a, &b]), rules);
        let mut used = BTreeSet::new();
        for user in 0..20 {
            let first = of_user(&gateway, user);
            assert!((1..4).all(|_| of_user(&gateway, user) == first), "user {user} moved");
            used.insert(first);
        }
        assert_eq!(used.len(), 2, "20 keys should reach both nodes: {used:?}");
    });
}

/// From so many nodes on tables are made ahead.
#[test]
fn few_keys_move_when_one_of_many_nodes_goes() {
    for balance in ["chash", "maglev", "rendezvous"] {
        example(move |simulation| {
            let names: Vec<String> = (0..70).map(|n| format!("n{n}")).collect();
            let nodes: Vec<Node> = names.iter().map(|name| simulation.echo(name)).collect();
            let config = |nodes: &[&Node]| {
                let rules = json!({ "type": balance, "hash_on": "header", "key": "X-User" });
                catch_all(joined(json!({ "nodes": nodes_of(nodes) }), rules))
            };
            let gateway = simulation.gateway(config(&nodes.iter().collect::<Vec<_>>()));
            let first: Vec<String> = (0..30).map(|user| of_user(&gateway, user)).collect();
            assert!((0..30).all(|user| of_user(&gateway, user) == first[user]), "{balance}");
            // Without the node of the first key the others stay; with Maglev a few may move.
            let left: Vec<&Node> = nodes
                .iter()
                .zip(&names)
                .filter(|(_, name)| **name != first[0])
                .map(|(node, _)| node)
                .collect();
            gateway.change(config(&left));
            let moved = (0..30)
                .filter(|&user| of_user(&gateway, user) != first[user] && first[user] != first[0])
                .count();
            assert!(moved <= if balance == "chash" { 0 } else { 6 }, "{balance}: {moved} keys moved");
        });
    }
}

/// A node that keeps `/held` unanswered until the gateway gives up, and answers all else.
fn holding(simulation: &Simulation, name: &'static str) -> Node {
    simulation.serve(move |mut client: Conversation| async move {
        while let Ok(Some(request)) = client.request().await {
            if request.target() == "/held" {
                client.rest().await;
                return;
            }
            let _ = client.send(response(200, &format!("X-Origin: {name}\r\n"), "")).await;
        }
    })
}

#[test]
fn least_connections_avoids_the_busy_node() {
    example(|simulation| {
        let (a, b) = (holding(simulation, "a"), holding(simulation, "b"));
        let rules = json!({ "type": "least_conn", "retries": 0 });
        let gateway = gateway(simulation, nodes_of(&[&a, &b]), rules);
        // Which of two idle nodes comes first is not promised; all that follow go to the other.
        let mut client = gateway.connect();
        client.send("GET /held HTTP/1.1\r\nHost: h\r\n\r\n");
        assert!(simulation.until(|| a.connections() + b.connections() == 1), "no node got the request");
        let free = if a.connections() == 0 { "a" } else { "b" };
        assert_eq!(spread(&gateway, 10), served([(free, 10)]));
    });
}

#[test]
fn a_dead_node_costs_no_request() {
    example(|simulation| {
        let (a, b) = (simulation.echo("a"), simulation.echo("b"));
        let three = json!({ a.name(): 1, simulation.free_address().to_string(): 1, b.name(): 1 });
        let gateway = gateway(simulation, three, json!({}));
        let served = spread(&gateway, 30);
        assert_eq!((served.values().sum::<usize>(), served.len()), (30, 2), "{served:?}");
    });
}

/// A first node that closes without a response after a minute, and one that responds.
#[test]
fn no_retry_starts_after_retry_timeout() {
    for (retry_timeout, expected) in [(0, 200), (120, 200), (20, 502)] {
        example(move |simulation| {
            let failing = simulation.serve(async |mut client: Conversation| {
                if matches!(client.request().await, Ok(Some(_))) {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                }
            });
            let spare = simulation.echo("spare");
            let nodes = json!([listed(failing.address, 1), listed(spare.address, 0)]);
            let timeout = json!({ "connect": 60, "send": 60, "read": 90 });
            let rules = json!({ "retry_timeout": retry_timeout, "timeout": timeout });
            let gateway = gateway(simulation, nodes, rules);
            assert_eq!(gateway.get("/").status(), expected, "{retry_timeout}");
            assert_eq!(spare.requests(), usize::from(expected == 200), "{retry_timeout}");
        });
    }
}

/// The status, the node that answered, and the cookie that came with the response.
fn visit(gateway: &Gateway, cookie: &str) -> (u16, Option<String>, Option<String>) {
    let answer = gateway.ask(&format!("GET / HTTP/1.1\r\nHost: h\r\nCookie: a=b; {cookie}\r\n\r\n"));
    let field = |name| answer.get(name).map(str::to_owned);
    (answer.status(), field("x-origin"), field("set-cookie"))
}

fn affine(nodes: &[&Node], rest: Value) -> Value {
    let affinity =
        joined(json!({ "cookie": { "name": "node", "max_age": 60 }, "secret": "0123456789abcdef" }), rest);
    catch_all(json!({ "nodes": nodes_of(nodes), "session_affinity": affinity }))
}

#[test]
fn a_session_stays_where_its_cookie_says() {
    let names = ["a", "b", "c"];
    let (origin, cookie) = example(move |simulation| {
        let all = names.map(|name| simulation.echo(name));
        let gateway = simulation.gateway(affine(&all.each_ref(), json!({})));
        let (status, origin, cookie) = visit(&gateway, "");
        assert_eq!(status, 200);
        (origin, cookie.expect("a cookie"))
    });
    assert!(cookie.starts_with("node=") && cookie.ends_with("; Path=/; Max-Age=60; HttpOnly"), "{cookie}");
    // Two gateways agree on the meaning of a cookie.
    example(move |simulation| {
        let all = names.map(|name| simulation.echo(name));
        let gateway = simulation.gateway(affine(&all.each_ref(), json!({})));
        let node = cookie.split(';').next().unwrap();
        for _ in 0..12 {
            assert_eq!(visit(&gateway, node), (200, origin.clone(), None));
        }
        // A made-up value names no node, and is replaced.
        for forged in ["node=127.0.0.1:1", "node=00000000000000000000000000000000"] {
            let (status, _, cookie) = visit(&gateway, forged);
            assert!(status == 200 && cookie.is_some_and(|cookie| cookie != forged));
        }
        // The node is not part of the upstream any more.
        let is_left = |(_, name): &(&Node, &str)| origin.as_deref() != Some(name);
        let left: Vec<&Node> = all.iter().zip(names).filter(is_left).map(|(node, _)| node).collect();
        gateway.change(affine(&left, json!({})));
        let (status, other, cookie) = visit(&gateway, node);
        assert!(status == 200 && other != origin && cookie.is_some_and(|cookie| !cookie.starts_with(node)));
        gateway.change(affine(&left, json!({ "on_gone": "reject" })));
        assert_eq!((visit(&gateway, node).0, visit(&gateway, "").0), (503, 200));
    });
}

/// An application that keeps sessions: it makes a new one for a client without one of its own.
fn keeping(simulation: &Simulation, name: &'static str) -> Node {
    let made = Cell::new(0);
    simulation.answer(move |request| {
        let asked = request.get("cookie").unwrap_or_default();
        let cookie = match asked.contains(&format!("SID={name}-")) {
            true => String::new(),
            false => format!("Set-Cookie: SID={name}-{}; Path=/; HttpOnly\r\n", made.replace(made.get() + 1)),
        };
        response(200, &format!("X-Origin: {name}\r\n{cookie}"), "")
    })
}

#[test]
fn sessions_stay_on_the_node_that_has_named_them() {
    example(|simulation| {
        let [a, b, c] = ["a", "b", "c"].map(|name| keeping(simulation, name));
        let config = |nodes: &[&Node], rest: Value| {
            let table = joined(json!({ "cookie": "SID" }), rest);
            catch_all(json!({ "nodes": nodes_of(nodes), "stick_table": table }))
        };
        let gateway = simulation.gateway(config(&[&a, &b, &c], json!({})));
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
        gateway.change(config(&[&b, &c], json!({ "size": 5000 })));
        let gone: Vec<_> = sessions.extract_if(.., |(origin, _)| origin == "a").collect();
        stay(&sessions);
        let (status, origin, cookie) = visit(&gateway, &gone[0].1);
        assert!(status == 200 && origin.is_some_and(|origin| origin != "a") && cookie.is_some());
        gateway.change(config(&[&a, &b], json!({ "size": 5000, "on_gone": "reject" })));
        for (origin, cookie) in &sessions {
            assert_eq!(visit(&gateway, cookie).0, if origin == "c" { 503 } else { 200 });
        }
        // The node is back, and so are its sessions that were not used meanwhile.
        stay(&gone[1..]);
    });
}

#[test]
fn a_header_or_a_parameter_may_name_the_session() {
    example(|simulation| {
        let echoing = |name: &'static str| {
            simulation.answer(move |request| {
                // It repeats the client's session, and names a new one otherwise.
                let named = request.get("mcp-session-id").map(str::to_owned);
                let named = named.unwrap_or_else(|| format!("{name}-{}", request.target().len()));
                response(200, &format!("X-Origin: {name}\r\nMcp-Session-Id: {named}\r\n"), "")
            })
        };
        let (a, b) = (echoing("a"), echoing("b"));
        let rule = json!({ "header": "Mcp-Session-Id", "match": ["$http_mcp_session_id", "$arg_session"] });
        let gateway = gateway(simulation, nodes_of(&[&a, &b]), json!({ "stick_table": rule }));
        let ask = |path: &str, fields: &str| {
            let answer = gateway.ask(&format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
            (origin(&answer), answer.get("mcp-session-id").unwrap().to_owned())
        };
        let (origin, session) = ask("/", "");
        for _ in 0..6 {
            assert_eq!(ask("/", &format!("Mcp-Session-Id: {session}\r\n")).0, origin);
            assert_eq!(ask(&format!("/?session={session}"), "").0, origin);
        }
        let forged: BTreeSet<_> = (0..12).map(|_| ask("/", "Mcp-Session-Id: forged\r\n").0).collect();
        assert_eq!(forged.len(), 2);
    });
}

#[test]
fn metadata_and_zone_choose_the_node() {
    example(|simulation| {
        let [a, b, c] = ["a", "b", "c"].map(|name| simulation.echo(name));
        let node = |node: &Node, version: &str, zone: &str| {
            joined(listed(node.address, 0), json!({ "metadata": { "version": version, "zone": zone } }))
        };
        let nodes = json!([node(&a, "1", "east"), node(&b, "2", "east"), node(&c, "2", "west")]);
        let selectors = json!([
            { "keys": ["version"] },
            { "keys": ["version", "stage"], "fallback": "keys_subset", "fallback_keys_subset": ["version"] },
        ]);
        let criteria = json!({ "version": "$http_x_version", "stage": "$http_x_stage" });
        let upstream = json!({
            "nodes": nodes, "zone_aware": { "min_cluster_size": 1 },
            "subsets": { "selectors": selectors, "criteria": criteria },
        });
        let gateway = simulation.gateway(joined(catch_all(upstream), json!({ "zone": "west" })));
        let ask = |fields: &str| {
            let answer = gateway.ask(&format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
            (answer.status(), origin(&answer))
        };
        let by = |name: &str| (200, name.to_owned());
        let refused = (503, String::new());
        for _ in 0..6 {
            assert_eq!(ask("X-Version: 1\r\n"), by("a"));
            // Both have the version, and one is in the zone of the gateway.
            assert_eq!(ask("X-Version: 2\r\n"), by("c"));
            assert_eq!(ask("X-Version: 3\r\n"), refused);
            // No node has the stage: the version decides.
            assert_eq!(ask("X-Version: 1\r\nX-Stage: test\r\n"), by("a"));
            assert_eq!(ask("X-Version: 3\r\nX-Stage: test\r\n"), refused);
            assert_eq!(ask(""), refused);
        }
    });
}
