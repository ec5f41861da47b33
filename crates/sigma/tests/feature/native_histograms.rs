//! Prometheus itself scrapes native histograms of the plugin `prometheus`.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use sigma_testkit::{Address, Gateway, Operator, Origin, Peer, free_port, until};

use crate::{PATIENCE, SIGMA};

/// A Prometheus of this test alone, which scrapes this port every few seconds: it takes a page that is later for none.
struct Prometheus {
    port: u16,
    process: Child,
    dir: tempfile::TempDir,
}

impl Prometheus {
    fn start(target: u16) -> Prometheus {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let config = format!(
            "global: {{ scrape_interval: 5s }}\nscrape_configs:\n  - job_name: sigma\n    metrics_path: /apisix/prometheus/metrics\n    \
             static_configs: [ {{ targets: [\"127.0.0.1:{target}\"] }} ]\n"
        );
        std::fs::write(dir.path().join("prometheus.yml"), config).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let process = Command::new("prometheus")
            .args(["--enable-feature=native-histograms", "--config.file=prometheus.yml"])
            .args(["--storage.tsdb.path=data", &format!("--web.listen-address=127.0.0.1:{port}")])
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let Ok(process) = process else {
            panic!("prometheus is missing: install it with `apt-get install -y prometheus` (make test does)");
        };
        Prometheus { port, process, dir }
    }

    /// The series that a query finds, and the number of each. Samples that were not scraped in time are
    /// missing for a while.
    fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let mut series = Vec::new();
        until(PATIENCE, || {
            series = self.found(query);
            !series.is_empty()
        });
        series
    }

    fn found(&self, query: &str) -> Vec<(Value, f64)> {
        let query: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let operator = Operator::new(Address::loopback(self.port));
        let Ok(answer) = operator.get(&format!("/api/v1/query?query={query}")) else { return Vec::new() };
        let result = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        let number = |one: &Value| one["value"][1].as_str().and_then(|number| number.parse().ok());
        result.iter().filter_map(|one| Some((one["metric"].clone(), number(one)?))).collect()
    }

    /// The only number that a query finds.
    fn number(&self, query: &str) -> Option<f64> {
        match &self.query(query)[..] {
            [(_, number)] => Some(*number),
            _ => None,
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(Path::new(self.dir.path()).join("log")).unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// More series than fit into one message.
const ROUTES: usize = 60;

#[test]
fn prometheus_scrapes_native_histograms() {
    let (origin, port) = (Origin::echo("a").unwrap(), free_port());
    let mut config = format!(
        "workers: 2\nlisteners:\n  - address: \"{{listen}}\"\nglobal_rules:\n  - {{ id: m, plugins: {{ prometheus: {{}} }} }}\n\
         plugin_attr:\n  prometheus: {{ native_histograms: true, export_addr: {{ ip: 127.0.0.1, port: {port} }} }}\n\
         upstreams: [ {{ id: \"1\", nodes: {{ \"{}\": 1 }} }} ]\nroutes:\n",
        origin.address()
    );
    for route in 0..ROUTES {
        config.push_str(&format!("  - {{ id: r{route}, uri: /r/{route}, upstream_id: \"1\" }}\n"));
    }
    let gateway = Gateway::start(SIGMA, &config).unwrap();
    // Both workers, as far as the kernel divides connections between them.
    for _ in 0..4 {
        let mut client = gateway.connect().unwrap();
        for route in 0..ROUTES {
            assert_eq!(client.get(&format!("/r/{route}")).unwrap().status(), 200);
        }
    }
    let prometheus = Prometheus::start(port);
    let requests = |kind: &str| {
        prometheus.number(&format!("sum(histogram_count(apisix_http_latency{{type=\"{kind}\"}}))"))
    };
    let all = 4.0 * ROUTES as f64;
    let is_scraped = || requests("request") == Some(all);
    assert!(until(PATIENCE * 2, is_scraped), "{:?}\n{}", requests("request"), prometheus.log());
    assert_eq!((requests("upstream"), requests("apisix")), (Some(all), Some(all)));
    // A histogram is one series there, and answers for any share of requests.
    let series = prometheus.query("histogram_quantile(0.9, apisix_http_latency{type=\"request\"})");
    assert_eq!(series.len(), ROUTES, "{series:?}");
    let slowest = prometheus.number("histogram_quantile(1, sum(apisix_http_latency{type=\"request\"}))");
    let middle = prometheus.number("histogram_quantile(0.5, sum(apisix_http_latency{type=\"request\"}))");
    assert!(middle > Some(0.0) && slowest >= middle, "{middle:?} {slowest:?}");

    // The text form has the same numbers.
    let page =
        Peer::connect(&Address::loopback(port)).unwrap().get("/apisix/prometheus/metrics").unwrap().text();
    let of_route = |line: &str| line.contains("route=\"r7\"") && line.contains("type=\"request\"");
    let line = |name: &str| {
        let line = page.lines().find(|line| line.starts_with(name) && of_route(line));
        line.unwrap_or_else(|| panic!("{name}: {page}")).rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    let of = |function: &str| {
        let query = format!("{function}(apisix_http_latency{{type=\"request\",route=\"r7\"}})");
        prometheus.number(&query)
    };
    assert_eq!(of("histogram_count"), Some(line("apisix_http_latency_count")));
    assert_eq!(of("histogram_sum"), Some(line("apisix_http_latency_sum")));
    // And every other series is there, once.
    let others =
        page.lines().filter(|line| !line.starts_with('#') && !line.starts_with("apisix_http_latency"));
    let known = prometheus.number("count({__name__=~\"apisix_.*\",__name__!=\"apisix_http_latency\"})");
    assert_eq!(known, Some(others.count() as f64), "{page}");
    let counted = prometheus.number("sum(apisix_http_status{code=\"200\"})");
    assert_eq!(counted, Some(all));
}
