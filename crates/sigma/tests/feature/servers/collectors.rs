//! The real collector of OpenTelemetry and the real Zipkin accept the gateway's spans: `make test-servers`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sigma_testkit::{Address, Gateway, Origin, Peer, free_port, until};

use super::{Running, built, server, try_ask};
use crate::policies::seen;
use crate::{PATIENCE, SIGMA};

const ZIPKIN: &str = "3.5.1";

/// Java needs its time.
const START: Duration = Duration::from_secs(180);

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn gateway(plugin: &str, metadata: &str, origin: &Origin) -> Gateway {
    let config = format!(
        "listeners: [\"{{listen}}\"]\n{metadata}\nroutes:\n  - uri: /orders/*\n    plugins: {plugin}\n    \
         upstream: http://127.0.0.1:{}\n",
        origin.port()
    );
    Gateway::start(SIGMA, &config).unwrap()
}

/// A collector that writes these signals to `log` in its folder.
fn collector(program: &Path, dir: &Path, protocol: &str, signals: &str, port: u16) -> Running {
    let (config, log) = (dir.join("config.yaml"), dir.join("log"));
    let text = format!(
        "receivers:\n  otlp:\n    protocols: {{ {protocol}: {{ endpoint: \"127.0.0.1:{port}\" }} }}\n\
         exporters:\n  debug: {{ verbosity: detailed }}\n\
         service:\n  telemetry: {{ metrics: {{ level: none }} }}\n  pipelines:\n    {signals}: {{ receivers: [otlp], exporters: [debug] }}\n"
    );
    fs::write(&config, text).unwrap();
    let running = Running::start(Command::new(program).arg("--config").arg(&config), &log);
    let told = || fs::read_to_string(&log).unwrap_or_default();
    assert!(until(PATIENCE, || Peer::connect(&Address::loopback(port)).is_ok()), "{}", told());
    running
}

#[test]
fn a_real_collector_of_opentelemetry_is_pushed_metrics() {
    let (dir, port, origin) = (tempfile::tempdir().unwrap(), free_port(), Origin::echo("a").unwrap());
    let _collector = collector(&server("otelcol", ""), dir.path(), "http", "metrics", port);
    let settings = format!(
        "plugin_attr:\n  prometheus:\n    otlp: {{ endpoint: \"http://127.0.0.1:{port}\", interval: 1, resource: {{ service.name: edge }} }}"
    );
    let gateway = gateway("{ prometheus: {} }", &settings, &origin);
    assert_eq!(gateway.connect().unwrap().get("/orders/1").unwrap().status(), 200);
    let shown = [
        "service.name: Str(edge)",
        "-> Name: apisix_http_status",
        "-> matched_uri: Str(/orders/*)",
        "-> Name: apisix_http_latency",
        "-> DataType: Histogram",
        "ExplicitBounds #14: 60000.000000",
        "-> Name: apisix_node_info",
        "-> DataType: Gauge",
        "-> IsMonotonic: true",
        "-> AggregationTemporality: Cumulative",
    ];
    let told = || fs::read_to_string(dir.path().join("log")).unwrap_or_default();
    let missing = || shown.into_iter().find(|text| !told().contains(text));
    assert!(until(PATIENCE, || missing().is_none()), "{:?}\n{}\n{}", missing(), told(), gateway.stderr());
}

#[test]
fn a_real_collector_of_opentelemetry_accepts_both_protocols() {
    let program = server("otelcol", "");
    let origin = Origin::echo("a").unwrap();
    for protocol in ["http", "grpc"] {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let _collector = collector(&program, dir.path(), protocol, "traces", port);
        let told = || fs::read_to_string(dir.path().join("log")).unwrap_or_default();
        let speaks = if protocol == "grpc" { ", protocol: grpc" } else { "" };
        let metadata = format!(
            "plugin_metadata:\n  - id: opentelemetry\n    resource: {{ service.name: edge }}\n    \
             collector: {{ address: \"127.0.0.1:{port}\"{speaks} }}\n    batch_span_processor: {{ inactive_timeout: 0.2 }}"
        );
        let gateway = gateway("{ opentelemetry: { sampler: { name: always_on } } }", &metadata, &origin);
        let head =
            format!("GET /orders/1 HTTP/1.1\r\nHost: h\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\n\r\n");
        assert_eq!(gateway.connect().unwrap().ask(head).unwrap().status(), 200);
        let shown = [
            &format!("Trace ID       : {TRACE}"),
            &format!("Parent ID      : {PARENT}"),
            "Name           : GET /orders/*",
            "Kind           : Server",
            "Kind           : Client",
            "service.name: Str(edge)",
            "http.response.status_code: Int(200)",
            "-> Name: connected",
        ];
        let missing = || shown.into_iter().find(|text| !told().contains(text));
        assert!(until(PATIENCE, || missing().is_none()), "{:?}\n{}\n{}", missing(), told(), gateway.stderr());
    }
}

/// The program, which Maven fetches.
fn zipkin() -> PathBuf {
    built("zipkin", &format!("zipkin-{ZIPKIN}.jar"), |_, draft| {
        let folder = draft.with_extension("folder");
        let mut fetch = Command::new("mvn");
        fetch.args(["-q", "-B", "dependency:copy", "-Dmdep.stripVersion=true"]);
        fetch.arg(format!("-Dartifact=io.zipkin:zipkin-server:{ZIPKIN}:jar:exec"));
        let status = fetch.arg(format!("-DoutputDirectory={}", folder.display())).status();
        assert!(status.expect("Maven is there").success(), "`mvn dependency:copy` failed");
        fs::rename(folder.join("zipkin-server-exec.jar"), draft).unwrap();
        fs::remove_dir_all(folder).unwrap();
    })
}

#[test]
fn a_real_zipkin_shows_the_way_of_a_request() {
    let (dir, port, origin) = (tempfile::tempdir().unwrap(), free_port(), Origin::echo("a").unwrap());
    let log = dir.path().join("log");
    let mut command = Command::new("java");
    command.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-jar"]).arg(zipkin());
    let _zipkin = Running::start(command.env("QUERY_PORT", port.to_string()), &log);
    let is_there = || try_ask(port, "GET /health", "", "").is_some_and(|answer| answer.status() == 200);
    assert!(until(START, is_there), "{}", fs::read_to_string(&log).unwrap_or_default());
    let plugin = format!(
        "{{ zipkin: {{ endpoint: \"http://127.0.0.1:{port}/api/v2/spans\", sample_ratio: 1, service_name: edge }} }}"
    );
    let gateway = gateway(&plugin, "", &origin);
    let answer = gateway.connect().unwrap().get("/orders/1").unwrap();
    let trace = seen(&answer, "x-b3-traceid");
    let shown = || {
        let answer = try_ask(port, &format!("GET /api/v2/trace/{trace}"), "", "")?;
        let spans = answer.json().ok()?.as_array()?.clone();
        let mut names: Vec<String> =
            spans.iter().filter_map(|span| Some(span["name"].as_str()?.to_owned())).collect();
        names.sort();
        Some(names)
    };
    let expected = ["apisix.attempt", "apisix.proxy", "apisix.request", "apisix.response_span"];
    let all = || shown().is_some_and(|names| names == expected);
    assert!(until(PATIENCE, all), "{:?}\n{}", shown(), gateway.stderr());
    let services = try_ask(port, "GET /api/v2/services", "", "").unwrap().text();
    assert!(services.contains("\"edge\""), "{services}");
}
