//! The real OpenSearch takes entries of `elasticsearch-logger`, is killed meanwhile, and comes back.

use std::time::Duration;

use super::numbered::{Numbered, dropped, lose};
use super::*;

const VERSION: &str = "2.19.3";

/// Java needs its time.
const START: Duration = Duration::from_secs(180);

/// The folder with its jars, which Maven fetches.
fn jars() -> PathBuf {
    built("opensearch", &format!("opensearch-{VERSION}"), |project, draft| {
        let target = format!("-DoutputDirectory={}", draft.display());
        let mut fetch = Command::new("mvn");
        fetch.current_dir(project).args(["-q", "-B", "dependency:copy-dependencies", &target]);
        assert!(
            fetch.status().expect("Maven is there").success(),
            "`mvn dependency:copy-dependencies` failed"
        );
    })
}

/// A node of one test alone, which keeps its data over a restart.
struct OpenSearch {
    dir: tempfile::TempDir,
    ports: [u16; 2],
    process: Option<Running>,
}

impl OpenSearch {
    fn start() -> OpenSearch {
        let ports = [(); 2].map(|()| free_port());
        let mut server = OpenSearch { dir: tempfile::tempdir().unwrap(), ports, process: None };
        server.run();
        server
    }

    fn run(&mut self) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers/opensearch/OpenSearch.java");
        let mut command = Command::new("java");
        command.args(["-Xms128m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dlog4j2.disable.jmx=true", "-cp"]);
        command.arg(format!("{}/*", jars().display())).arg(source).arg(self.dir.path());
        command.args(self.ports.map(|port| port.to_string()));
        let log = self.dir.path().join("log");
        self.process = Some(Running::start(&mut command, &log));
        let is_up =
            || status(self.ports[0], "GET", "/_cluster/health?wait_for_status=yellow", None) == Some(200);
        assert!(until(START, is_up), "{}", std::fs::read_to_string(&log).unwrap());
    }

    fn kill(&mut self) {
        self.process = None;
    }

    /// All entries of an index; none if there is no such index.
    fn entries(&self, index: &str) -> Vec<Value> {
        let operator = caller(self.ports[0]);
        let _ = operator.call("POST", &format!("/{index}/_refresh"), None);
        let Ok(found) = operator.get(&format!("/{index}/_search?size=10000")) else { return Vec::new() };
        let hits = found["hits"]["hits"].as_array().cloned().unwrap_or_default();
        hits.into_iter().map(|hit| hit["_source"].clone()).collect()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

#[test]
fn elasticsearch_logger_fills_an_index_over_a_kill() {
    let (mut server, origin) = (OpenSearch::start(), Origin::echo("a").unwrap());
    let url = format!("http://127.0.0.1:{}", server.ports[0]);
    let route = |id: &str, retries: u32| {
        json!({
            "id": id, "uri": format!("/{id}/*"), "upstream": {"nodes": {origin.address().to_string(): 1}},
            "plugins": {"elasticsearch-logger": {
                "endpoint_addrs": [url], "field": {"index": format!("{id}-{{%Y}}")}, "max_retry_count": retries,
                "log_format": {"uri": "$request_uri", "status": "$status", "client": "$remote_addr", "agent": "$http_user_agent"},
                "batch_max_size": BATCH, "inactive_timeout": 1
            }}
        })
    };
    let config = json!({
        "listeners": [{"address": "{listen}"}], "status": {"address": "{status}"}, "workers": 1,
        "routes": [route("kept", 1000), route("once", 0)]
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    let odd = "/kept/x?a=%22%7D%0A&b=%C3%BC";
    gateway.connect().unwrap().get(odd).unwrap();
    let has_come = || server.entries("kept-*").len() == 1;
    assert!(until(PATIENCE, has_come), "{}\n{}", gateway.stderr(), server.log());
    let entry = server.entries("kept-*").remove(0);
    let of = |name: &str| entry[name].to_string();
    assert_eq!(
        [of("uri"), of("status"), of("client"), of("route_id")],
        [json!(odd).to_string(), "200".into(), "\"127.0.0.1\"".into(), "\"kept\"".into()]
    );

    // Killed while requests come, and away for some more of them: no request waits.
    let kept = Numbered::begin(&gateway, "/kept");
    assert!(until(PATIENCE, || server.entries("kept-*").len() > 3 * BATCH), "{}", gateway.stderr());
    server.kill();
    kept.wait_for(kept.answered() + 2 * BATCH);
    lose(&gateway, "/once", 2 * BATCH);
    assert!(gateway.stderr().contains("exceeded the max_retry_count[0]"), "{}", gateway.stderr());
    server.run();
    let answered = kept.end();
    let numbers = || -> Vec<usize> {
        let entries = server.entries("kept-*");
        let uris = entries.iter().filter_map(|entry| entry["uri"].as_str()?.strip_prefix("/kept/n"));
        uris.filter_map(|number| number.parse().ok()).collect()
    };
    let distinct = || numbers().into_iter().collect::<std::collections::BTreeSet<_>>();
    let are_there = || distinct().len() == answered;
    assert!(until(PATIENCE * 2, are_there), "{} of {answered}\n{}", distinct().len(), gateway.stderr());
    assert_eq!(dropped(&gateway), 2 * BATCH as u64, "nothing of the others is lost");
    // Twice is there at most the batch that it had taken when it died.
    let twice = numbers().len() - answered;
    assert!(twice <= BATCH, "{twice}");
    assert!(server.entries("once-*").is_empty());
}

/// Entries of a batch.
const BATCH: usize = 20;
