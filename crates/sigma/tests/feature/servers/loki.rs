//! The real Loki takes entries of `loki-logger`, is killed meanwhile, and comes back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::numbered::{Numbered, dropped, lose};
use super::*;

/// Reading its data takes a while.
const START: Duration = Duration::from_secs(120);

/// Entries of a batch.
const BATCH: usize = 20;

/// Of whom the entries are: Loki keeps its tenants apart.
const TENANT: &str = "shop";

/// Loki in one process for one test alone, which keeps its data over a restart.
struct Loki {
    dir: tempfile::TempDir,
    port: u16,
    process: Option<Running>,
}

impl Loki {
    fn start() -> Loki {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let config = json!({
            "auth_enabled": true,
            "analytics": {"reporting_enabled": false},
            "server": {
                "http_listen_address": "127.0.0.1", "http_listen_port": port,
                "grpc_listen_address": "127.0.0.1", "grpc_listen_port": free_port(), "log_level": "warn"
            },
            "common": {
                "instance_addr": "127.0.0.1", "path_prefix": dir.path(), "replication_factor": 1,
                "storage": {"filesystem": {
                    "chunks_directory": dir.path().join("chunks"), "rules_directory": dir.path().join("rules")
                }},
                "ring": {"instance_addr": "127.0.0.1", "kvstore": {"store": "inmemory"}}
            },
            "ingester": {"lifecycler": {"min_ready_duration": "0s"}},
            "schema_config": {"configs": [{
                "from": "2024-01-01", "store": "tsdb", "object_store": "filesystem", "schema": "v13",
                "index": {"prefix": "index_", "period": "24h"}
            }]}
        });
        std::fs::write(dir.path().join("loki.yaml"), config.to_string()).unwrap();
        let mut server = Loki { dir, port, process: None };
        server.run();
        server
    }

    fn run(&mut self) {
        let mut command = Command::new(server("loki", ""));
        command.arg(format!("-config.file={}", self.dir.path().join("loki.yaml").display()));
        self.process = Some(Running::start(&mut command, &self.dir.path().join("log")));
        let is_up = || try_ask(self.port, "GET /ready", "", "").is_some_and(|answer| answer.status() == 200);
        assert!(until(START, is_up), "{}", self.log());
    }

    fn kill(&mut self) {
        self.process = None;
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Each stream that has this label `job`: its labels, and its entries with their times, the oldest first.
    fn streams(&self, tenant: &str, job: &str) -> Vec<(Value, Vec<(u128, Value)>)> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let line = format!(
            "GET /loki/api/v1/query_range?query=%7Bjob%3D%22{job}%22%7D&limit=5000&direction=forward\
            &start={}&end={}",
            now - 3000,
            now + 60
        );
        let Some(answer) = try_ask(self.port, &line, &format!("X-Scope-OrgID: {tenant}\r\n"), "") else {
            return Vec::new();
        };
        let Ok(found) = answer.json() else { return Vec::new() };
        let streams = found["data"]["result"].as_array().cloned().unwrap_or_default();
        let entry = |value: &Value| {
            let entry = serde_json::from_str(value[1].as_str()?).ok()?;
            Some((value[0].as_str()?.parse().ok()?, entry))
        };
        let of = |stream: &Value| stream["values"].as_array().unwrap().iter().filter_map(entry).collect();
        streams.iter().map(|stream| (stream["stream"].clone(), of(stream))).collect()
    }

    fn entries(&self, job: &str) -> Vec<Value> {
        let streams = self.streams(TENANT, job).into_iter();
        streams.flat_map(|(_, entries)| entries.into_iter().map(|(_, entry)| entry)).collect()
    }
}

#[test]
fn loki_logger_fills_streams_over_a_kill() {
    let (mut server, origin) = (Loki::start(), Origin::echo("a").unwrap());
    let route = |id: &str, retries: u32| {
        json!({
            "id": id, "uri": format!("/{id}/*"), "upstream": {"nodes": {origin.address().to_string(): 1}},
            "plugins": {"loki-logger": {
                "endpoint_addrs": [format!("http://127.0.0.1:{}", server.port)], "tenant_id": TENANT,
                "log_labels": {"job": id, "method": "$request_method"}, "max_retry_count": retries,
                "log_format": {"uri": "$request_uri", "status": "$status", "agent": "$http_user_agent"},
                "batch_max_size": BATCH, "inactive_timeout": 1
            }}
        })
    };
    let config = json!({
        "listeners": [{"address": "{listen}"}], "status": {"address": "{status}"}, "workers": 1,
        "routes": [route("kept", 1000), route("once", 0)]
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    labels_and_times_are_right(&gateway, &server);

    // Killed while requests come, and away for some more of them: no request waits.
    let kept = Numbered::begin(&gateway, "/kept");
    assert!(until(PATIENCE, || server.entries("kept").len() > 3 * BATCH), "{}", gateway.stderr());
    server.kill();
    kept.wait_for(kept.answered() + 2 * BATCH);
    lose(&gateway, "/once", 2 * BATCH);
    server.run();
    let answered = kept.end();
    let numbers = || -> Vec<usize> {
        let entries = server.entries("kept");
        let uris = entries.iter().filter_map(|entry| entry["uri"].as_str()?.strip_prefix("/kept/n"));
        uris.filter_map(|number| number.parse().ok()).collect()
    };
    let are_there = || numbers().len() >= answered;
    assert!(until(PATIENCE * 2, are_there), "{} of {answered}\n{}", numbers().len(), gateway.stderr());
    // A batch that it had taken when it died comes again, with its times: Loki keeps one of each.
    let mut found = numbers();
    found.sort_unstable();
    assert_eq!(found, (0..answered).collect::<Vec<_>>());
    assert_eq!(dropped(&gateway), 2 * BATCH as u64, "nothing of the others is lost");
    assert!(server.entries("once").is_empty());
}

/// Labels are filled in, an entry has the time of its request, and no tenant sees another's.
fn labels_and_times_are_right(gateway: &Gateway, server: &Loki) {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let (odd, before) = ("/kept/x?a=%22%7D%0A&b=%C3%BC", now());
    gateway.connect().unwrap().get(odd).unwrap();
    let after = now();
    let has_come = || !server.streams(TENANT, "kept").is_empty();
    assert!(until(PATIENCE, has_come), "{}\n{}", gateway.stderr(), server.log());
    let (labels, entries) = server.streams(TENANT, "kept").remove(0);
    assert_eq!((&labels["job"], &labels["method"]), (&json!("kept"), &json!("GET")));
    let [(time, entry)] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((entry["uri"].as_str(), entry["route_id"].as_str()), (Some(odd), Some("kept")));
    // Milliseconds, so the first one may be cut.
    assert!((before - 1_000_000..=after).contains(time), "{before} {time} {after}");
    assert!(server.streams("somebody", "kept").is_empty());
}
