//! Tests with an installed Redis.

use sigma_testkit::Redis;

use super::*;

#[test]
fn redis_counts_exactly() {
    let redis = Redis::start(&[]).unwrap();
    for window_type in ["fixed", "sliding"] {
        // Windows of a year, so that none ends during the test.
        let conf = json!({
            "count": 150, "time_window": 31_536_000, "key": "arg_k", "window_type": window_type, "policy": "redis",
            "redis_host": "127.0.0.1", "redis_port": redis.port()
        });
        assert_eq!(passed_under_load(&conf, 50, 2), [150, 150], "{window_type}");
    }
    let keys = redis.ask(&["keys", "*"]).unwrap();
    assert!(keys.lines().all(|key| key.starts_with("plugin-limit-count:")), "{keys}");
    assert_eq!(
        keys.lines().filter(|key| key.starts_with("plugin-limit-count:v1:/apisix/routes/1:")).count(),
        2
    );
}

#[test]
fn windows_may_be_as_long_as_one_likes() {
    let redis = Redis::start(&[]).unwrap();
    let worker = Worker::new(&Arc::default());
    for window_type in ["fixed", "sliding"] {
        let conf = json!({
            "count": 1, "time_window": 9_007_199_254_740_991u64, "window_type": window_type, "policy": "redis",
            "redis_host": "127.0.0.1", "redis_port": redis.port()
        });
        let entry = entry("limit-count", conf).unwrap();
        let head = "GET / HTTP/1.1\nHost: h\n";
        let statuses = [(); 2].map(|()| worker.ask(&entry, head).map_or(200, |reply| reply.status));
        assert_eq!(statuses, [200, 503], "{window_type}");
    }
}

#[test]
fn a_redis_cluster_counts_exactly() {
    let nodes = Redis::cluster().unwrap();
    let places: Vec<String> = nodes.iter().take(2).map(|node| format!("127.0.0.1:{}", node.port())).collect();
    for window_type in ["fixed", "sliding"] {
        let conf = json!({
            "count": 50, "time_window": 31_536_000, "key": "arg_k", "window_type": window_type,
            "policy": "redis-cluster", "redis_cluster_nodes": places, "redis_cluster_name": "c"
        });
        assert_eq!(passed_under_load(&conf, 20, 6), [50; 6], "{window_type}");
    }
    let used = nodes.iter().filter(|node| node.ask(&["dbsize"]).unwrap() != "0").count();
    assert!(used >= 2, "the keys should be spread");
}

#[test]
fn behind_sentinels_the_new_master_is_found() {
    let mut master = Redis::start(&[]).unwrap();
    let port = master.port().to_string();
    let replica =
        Redis::start(&["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"]).unwrap();
    let synced = || replica.ask(&["info", "replication"]).unwrap().contains("master_link_status:up");
    assert!(sigma_testkit::until(Duration::from_secs(60), synced), "the replica does not follow");
    let sentinel = Redis::sentinel(&master, "").unwrap();
    let knows =
        || sentinel.ask(&["sentinel", "replicas", "mymaster"]).unwrap().contains(&replica.port().to_string());
    assert!(sigma_testkit::until(Duration::from_secs(60), knows), "the sentinel does not see the replica");
    let silent = sigma_testkit::free_port();
    let conf = json!({
        "count": 60, "time_window": 31_536_000, "key": "arg_k", "policy": "redis-sentinel",
        "redis_master_name": "mymaster",
        "redis_sentinels": [{"host": "127.0.0.1", "port": silent}, {"host": "127.0.0.1", "port": sentinel.port()}]
    });
    assert_eq!(passed_under_load(&conf, 20, 1), [60]);
    let entry = entry("limit-count", conf).unwrap();
    let worker = Worker::new(&Arc::default());
    let head = "GET /?k=other HTTP/1.1\nHost: h\n";
    assert!(worker.ask(&entry, head).is_none());
    master.kill().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Some(reply) = worker.ask(&entry, head) {
        assert_eq!(reply.status, 500);
        assert!(Instant::now() < deadline, "the new master is not found");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(replica.ask(&["role"]).unwrap().starts_with("master"));
}

/// A master, a replica of it that may be written to, and a sentinel with a password.
fn guarded() -> (Redis, Redis, Redis) {
    let master = Redis::start(&[]).unwrap();
    let port = master.port().to_string();
    let replicates = ["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"];
    let replica = Redis::start(&[&replicates[..], &["--replica-read-only", "no"]].concat()).unwrap();
    let synced = || replica.ask(&["info", "replication"]).unwrap().contains("master_link_status:up");
    assert!(sigma_testkit::until(Duration::from_secs(60), synced), "the replica does not follow");
    let sentinel = Redis::sentinel(&master, "requirepass word").unwrap();
    let port = replica.port().to_string();
    let knows = || {
        let known = sentinel.ask(&["-a", "word", "sentinel", "replicas", "mymaster"]);
        // A client takes only replicas that the sentinel has seen in step with their master.
        let in_step = |known: String| known.contains(&port) && known.contains("master-link-status\nok");
        known.is_ok_and(in_step)
    };
    assert!(sigma_testkit::until(Duration::from_secs(60), knows), "the sentinel does not see the replica");
    (master, replica, sentinel)
}

#[test]
fn sentinels_have_passwords_and_name_replicas() {
    let (master, replica, sentinel) = guarded();
    let check = |further: Value, status: u16, keys: [usize; 2]| {
        let mut conf = json!({"count": 5, "time_window": 31_536_000, "policy": "redis-sentinel",
            "redis_master_name": "mymaster", "redis_sentinels": [{"host": "127.0.0.1", "port": sentinel.port()}]});
        conf.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        let worker = Worker::new(&Arc::default());
        let reply = worker.ask(&entry("limit-count", conf).unwrap(), "GET / HTTP/1.1\nHost: h\n");
        assert_eq!(reply.map_or(200, |reply| reply.status), status, "{further}");
        let keys_of =
            |redis: &Redis| redis.ask(&["keys", "*"]).unwrap().lines().filter(|key| !key.is_empty()).count();
        let found = || [keys_of(&master), keys_of(&replica)] == keys;
        assert!(sigma_testkit::until(Duration::from_secs(10), found), "{further}");
    };
    check(json!({"sentinel_password": "wrong"}), 500, [0, 0]);
    check(json!({}), 500, [0, 0]);
    check(json!({"sentinel_password": "word", "redis_role": "slave"}), 200, [0, 1]);
    // The counts of the master reach its replica.
    check(json!({"sentinel_password": "word"}), 200, [1, 2]);
}

#[test]
fn without_redis_requests_fail_or_pass() {
    let mut redis = Redis::start(&[]).unwrap();
    let port = redis.port();
    let built = |allow: bool| {
        let conf = json!({"count": 5, "time_window": 600, "policy": "redis", "redis_host": "127.0.0.1",
            "redis_port": port, "allow_degradation": allow});
        entry("limit-count", conf).unwrap()
    };
    let (strict, lenient, worker) = (built(false), built(true), Worker::new(&Arc::default()));
    let head = "GET / HTTP/1.1\nHost: h\n";
    assert!(worker.ask(&strict, head).is_none() && worker.ask(&lenient, head).is_none());
    redis.kill().unwrap();
    for _ in 0..10 {
        let reply = worker.ask(&strict, head).unwrap();
        let text = b"{\"error_msg\":\"failed to limit count\"}\n";
        assert_eq!((reply.status, reply.body.as_deref()), (500, Some(&text[..])));
        assert!(worker.ask(&lenient, head).is_none());
    }
    let _redis = Redis::start_on(port, &[]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while worker.ask(&strict, head).is_some() {
        assert!(Instant::now() < deadline, "Redis is back and not used");
        std::thread::sleep(Duration::from_millis(20));
    }
    let passed = (0..10).filter(|_| worker.ask(&strict, head).is_none()).count();
    assert_eq!(passed, 4, "one was counted before");
}

#[test]
fn delayed_synchronisation_tells_redis_later() {
    let redis = Redis::start(&[]).unwrap();
    let conf = json!({"count": 100, "time_window": 600, "policy": "redis", "redis_host": "127.0.0.1",
        "redis_port": redis.port(), "sync_interval": 0.1, "key": "arg_k"});
    let entry = entry("limit-count", conf).unwrap();
    let control = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let node = Arc::new(Node::new(spawning(control.handle()), Value::Null, String::new()));
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let control = std::thread::spawn(move || control.block_on(ended));
    let worker = Worker::new(&node);
    let head = "GET /?k=x HTTP/1.1\nHost: h\n";
    let passed = (0..30).filter(|_| worker.ask(&entry, head).is_none()).count();
    assert_eq!(passed, 30);
    let told = || {
        let key = redis.ask(&["keys", "plugin-limit-count:v1:*"]).unwrap();
        redis.ask(&["get", &key]).unwrap() == "30"
    };
    assert!(sigma_testkit::until(Duration::from_secs(10), told), "Redis was not told");
    let passed = (0..100).filter(|_| worker.ask(&entry, head).is_none()).count();
    assert_eq!(passed, 70);
    drop(end);
    assert!(control.join().unwrap().is_err());
}
