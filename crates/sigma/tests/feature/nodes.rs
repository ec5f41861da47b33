//! Several gateways on one etcd, and everything that can go away.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use sigma_testkit::{EtcdServer, Gateway, Origin, Relay, until};

use crate::managed::{admin, answerer, await_answerer, etcd, revision, route, start, start_again, upstream};
use crate::{PATIENCE, SIGMA};

/// Three gateways on one etcd, the last of them by a wire that can be cut.
struct Cluster {
    nodes: [Gateway; 3],
    wire: Relay,
    etcd: EtcdServer,
    a: Origin,
    b: Origin,
}

impl Cluster {
    /// With a route `/stable` to the origin `a` and a route `/moving`, which tests change.
    fn start() -> Cluster {
        let etcd_server = EtcdServer::start().unwrap();
        let wire = Relay::to(etcd_server.port()).unwrap();
        let ports = [etcd_server.port(), etcd_server.port(), wire.port()];
        let nodes = ports.map(|port| start(&etcd(port)));
        let (a, b) = (Origin::echo("a").unwrap(), Origin::echo("b").unwrap());
        let cluster = Cluster { nodes, wire, etcd: etcd_server, a, b };
        let writer = admin(&cluster.nodes[0]);
        writer.put("upstreams/moving", &upstream(&cluster.a)).unwrap();
        writer.put("routes/stable", &route("/stable", &cluster.a)).unwrap();
        writer.put("routes/moving", &json!({"uri": "/moving", "upstream_id": "moving"})).unwrap();
        cluster.await_all("/stable", "a");
        cluster.await_all("/moving", "a");
        cluster
    }

    fn await_all(&self, target: &str, expected: &str) {
        self.nodes.iter().for_each(|node| await_answerer(node, target, expected));
    }

    /// Writes through one node, and waits until all serve it. A node that is just finding etcd again may refuse; it is
    /// queried until it does not.
    fn move_to(&self, writer: usize, origin: &Origin, name: &str) {
        let body = upstream(origin);
        let taken = || admin(&self.nodes[writer]).put("upstreams/moving", &body).is_ok();
        assert!(until(PATIENCE, taken), "node {writer} takes no write");
        self.await_all("/moving", name);
    }

    /// Waits until all nodes serve the same revision, and the one that etcd is at.
    fn await_agreement(&self) {
        let agree = || {
            let served: Vec<u64> =
                self.nodes.iter().filter_map(|node| revision(node)["revision"].as_u64()).collect();
            served.len() == self.nodes.len() && served.iter().all(|revision| *revision == served[0])
        };
        let shown: Vec<_> = self.nodes.iter().map(revision).collect();
        assert!(until(PATIENCE, agree), "the nodes serve different revisions: {shown:?}");
    }

    /// Runs `disturb` while every node that `watched` names is queried without a pause: `/stable` is answered by `a`,
    /// `/moving` by one of the origins, at all times.
    fn undisturbed<T>(&self, watched: &[usize], disturb: impl FnOnce() -> T) -> T {
        let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
        let watch = |node: &Gateway| {
            let mut client = node.connect().unwrap().with_deadline(PATIENCE);
            while !stop.load(Ordering::SeqCst) {
                for (target, allowed) in [("/stable", &["a"][..]), ("/moving", &["a", "b"])] {
                    let answer = client.get(target).unwrap();
                    let origin = answer.head.get("x-origin");
                    assert!(
                        origin.is_some_and(|name| allowed.contains(&name)),
                        "{target}: {} {origin:?}",
                        answer.status()
                    );
                    asked.fetch_add(1, Ordering::SeqCst);
                }
                // Leaves the machine to those who are disturbed.
                until(Duration::from_millis(2), || stop.load(Ordering::SeqCst));
            }
        };
        std::thread::scope(|scope| {
            let watch = &watch;
            let watchers: Vec<_> =
                watched.iter().map(|&node| scope.spawn(move || watch(&self.nodes[node]))).collect();
            let stopper = Stopper(&stop);
            let done = disturb();
            drop(stopper);
            watchers.into_iter().for_each(|watcher| watcher.join().unwrap());
            assert!(asked.load(Ordering::SeqCst) > 0);
            done
        })
    }
}

/// Ends the watchers even if a step fails: a scope waits for its threads.
struct Stopper<'s>(&'s AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn lost(node: &Gateway) -> bool {
    !revision(node)["store"]["lost"].is_null()
}

fn await_lost(node: &Gateway) {
    assert!(until(PATIENCE, || lost(node)), "etcd is not missed: {}", revision(node));
}

fn await_found(node: &Gateway) {
    assert!(until(PATIENCE, || !lost(node)), "etcd is not found again: {}", revision(node));
}

#[test]
fn a_write_through_any_node_is_served_by_all() {
    let cluster = Cluster::start();
    for (writer, node) in cluster.nodes.iter().enumerate() {
        for attempt in 0..3 {
            let path = format!("/{writer}/{attempt}");
            admin(node).put(&format!("routes/{writer}-{attempt}"), &route(&path, &cluster.b)).unwrap();
            let served = || cluster.nodes.iter().all(|node| answerer(node, &path) == "b");
            assert!(until(PATIENCE, served), "{path} is not served by all");
        }
    }
    let urls = cluster.nodes.each_ref().map(|node| format!("http://{}", node.control_address()));
    let mut table = String::new();
    // Records of gateways move the revision too, a moment after each change.
    let agree = until(PATIENCE, || {
        cluster.await_agreement();
        let served = revision(&cluster.nodes[0])["revision"].to_string();
        let output = Command::new(SIGMA).args(["ctl", "nodes"]).args(&urls).output().unwrap();
        table = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success()
            && urls.iter().all(|url| {
                let line = table.lines().find(|line| line.contains(url));
                line.is_some_and(|line| line.contains(&served) && line.contains("etcd"))
            })
    });
    assert!(agree, "{table}");
}

#[test]
fn a_killed_node_loses_nothing_and_comes_back() {
    let mut cluster = Cluster::start();
    admin(&cluster.nodes[1]).put("routes/last", &route("/last", &cluster.b)).unwrap();
    cluster.nodes[1].kill().unwrap();
    cluster.undisturbed(&[0, 2], || {
        await_answerer(&cluster.nodes[0], "/last", "b");
        admin(&cluster.nodes[2]).put("upstreams/moving", &upstream(&cluster.b)).unwrap();
        await_answerer(&cluster.nodes[0], "/moving", "b");
        await_answerer(&cluster.nodes[2], "/moving", "b");
    });
    start_again(&mut cluster.nodes[1]);
    // Changes that were written while it was away are served with its first response.
    assert_eq!(answerer(&cluster.nodes[1], "/moving"), "b");
    assert_eq!(answerer(&cluster.nodes[1], "/last"), "b");
    cluster.move_to(1, &cluster.a, "a");
    cluster.await_agreement();
}

#[test]
fn a_killed_etcd_is_done_without_and_found_again() {
    let mut cluster = Cluster::start();
    let mut server = std::mem::replace(&mut cluster.etcd, EtcdServer::absent().unwrap());
    cluster.undisturbed(&[0, 1, 2], || {
        server.kill().unwrap();
        cluster.nodes.iter().for_each(await_lost);
        let refused = admin(&cluster.nodes[0]).call(
            "PUT",
            "/apisix/admin/routes/new",
            Some(&route("/new", &cluster.a)),
        );
        assert_eq!(refused.unwrap().status(), 503);
        server.run().unwrap();
        cluster.nodes.iter().for_each(await_found);
        assert_eq!(answerer(&cluster.nodes[0], "/new"), "404");
        cluster.move_to(2, &cluster.b, "b");
    });
    cluster.await_agreement();
}

#[test]
fn a_paused_etcd_is_done_without_and_found_again() {
    let cluster = Cluster::start();
    cluster.undisturbed(&[0, 1, 2], || {
        cluster.etcd.pause().unwrap();
        cluster.nodes.iter().for_each(await_lost);
        cluster.etcd.resume().unwrap();
        cluster.nodes.iter().for_each(await_found);
        cluster.move_to(1, &cluster.b, "b");
    });
    cluster.await_agreement();
}

#[test]
fn a_node_that_slept_through_a_compaction_catches_up() {
    let cluster = Cluster::start();
    cluster.undisturbed(&[0, 2], || {
        admin(&cluster.nodes[0]).put("routes/gone", &route("/gone", &cluster.a)).unwrap();
        cluster.await_all("/gone", "a");
        cluster.nodes[1].pause().unwrap();
        let writer = admin(&cluster.nodes[0]);
        writer.delete("routes/gone").unwrap();
        for number in 0..50 {
            writer.put(&format!("routes/{number}"), &route(&format!("/{number}"), &cluster.b)).unwrap();
        }
        writer.put("upstreams/moving", &upstream(&cluster.b)).unwrap();
        // The node's connection may break as well while it sleeps; both ways it has to read again.
        cluster.etcd.compact().unwrap();
        cluster.nodes[1].resume().unwrap();
        cluster.await_all("/moving", "b");
        cluster.await_all("/gone", "404");
        cluster.await_all("/49", "b");
    });
    cluster.move_to(1, &cluster.a, "a");
    cluster.await_agreement();
}

#[test]
fn a_partitioned_node_serves_its_state_and_catches_up() {
    let cluster = Cluster::start();
    let (far, near) = (&cluster.nodes[2], &cluster.nodes[0]);
    cluster.undisturbed(&[0, 1, 2], || {
        cluster.wire.cut();
        await_lost(far);
        admin(near).put("upstreams/moving", &upstream(&cluster.b)).unwrap();
        admin(near).put("routes/new", &route("/new", &cluster.b)).unwrap();
        await_answerer(near, "/new", "b");
        // The other side continues with its state, all of it from one time.
        assert_eq!((answerer(far, "/moving"), answerer(far, "/new")), ("a".to_owned(), "404".to_owned()));
        let refused = admin(far).call("PUT", "/apisix/admin/routes/far", Some(&route("/far", &cluster.a)));
        assert_eq!(refused.unwrap().status(), 503);
        // History is forgotten meanwhile: it has to read everything.
        cluster.etcd.compact().unwrap();
        cluster.wire.mend();
        cluster.await_all("/new", "b");
        cluster.await_all("/moving", "b");
        await_found(far);
    });
    cluster.move_to(2, &cluster.a, "a");
    cluster.await_agreement();
    assert_eq!(answerer(near, "/far"), "404");
}

#[test]
fn a_node_that_starts_while_etcd_is_away_serves_its_copy_and_says_so() {
    let origin = Origin::echo("a").unwrap();
    let mut server = EtcdServer::start().unwrap();
    let mut node = start(&etcd(server.port()));
    admin(&node).put("routes/1", &route("/1", &origin)).unwrap();
    await_answerer(&node, "/1", "a");
    let copy = node.dir().join("data/etcd.copy");
    let holds = |text: &str| {
        std::fs::read(&copy).is_ok_and(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
    };
    assert!(until(PATIENCE, || holds("routes/1")), "there is no copy");
    server.kill().unwrap();
    node.kill().unwrap();
    start_again(&mut node);
    assert_eq!(answerer(&node, "/1"), "a");
    let shown = revision(&node);
    assert!(shown["store"]["copied"].as_u64().is_some_and(|time| time > 1_600_000_000), "{shown}");
    await_lost(&node);
    let refused = admin(&node).call("DELETE", "/apisix/admin/routes/1", None).unwrap();
    assert_eq!(refused.status(), 503, "{}", refused.text());
    // Nor does reading everything pretend that the copy is what etcd holds.
    assert_eq!(admin(&node).call("GET", "/apisix/admin/configs", None).unwrap().status(), 503);
    server.run().unwrap();
    server.delete("/apisix/routes/1").unwrap();
    server.put("/apisix/routes/2", &route("/2", &origin).to_string()).unwrap();
    await_answerer(&node, "/2", "a");
    await_answerer(&node, "/1", "404");
    let shown = revision(&node);
    assert!(shown["store"]["copied"].is_null() && shown["store"]["lost"].is_null(), "{shown}");
}
