//! The text that is scraped.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sigma_plugin::Node;
use sigma_plugin::facts::{Facts, FactsBoard};

use super::series::{Histogram, Registry, SeriesList, WorkerSeries, write_label};
use super::settings::Metric;
use crate::batch::Batches;

/// Everything, in the Prometheus text format. May take a while; holds no lock for long.
pub(super) fn text(registry: &Registry, node: &Node) -> String {
    let mut page = Page { prefix: &registry.settings.prefix, out: String::new() };
    let facts = node.part(FactsBoard::default).read();
    requests(&mut page, registry);
    gateway(&mut page, registry, node, &facts);
    upstreams(&mut page, &facts);
    let buffered = node.part(Batches::default).buffered();
    if !buffered.is_empty() {
        page.begin("batch_process_entries", "gauge", "batch process remaining entries");
        // Two configurations of one name on one route would be one series twice.
        let mut sums: BTreeMap<String, usize> = BTreeMap::new();
        for (labels, count) in buffered {
            let all = [
                ("name", &labels.name),
                ("route_id", &labels.route_id),
                ("server_addr", &labels.server_addr),
            ];
            *sums.entry(joined(&all.map(|(name, value)| (name, value.as_str())))).or_default() += count;
        }
        for (labels, count) in sums {
            page.line("batch_process_entries", &labels, count);
        }
    }
    page.out
}

struct Page<'p> {
    prefix: &'p str,
    out: String,
}

impl Page<'_> {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(self.out, "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let prefix = self.prefix;
        let _ = match labels {
            "" => writeln!(self.out, "{prefix}{name} {value}"),
            labels => writeln!(self.out, "{prefix}{name}{{{labels}}} {value}"),
        };
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.begin(name, "gauge", help);
        self.line(name, "", value);
    }
}

fn joined(labels: &[(&str, &str)]) -> String {
    let mut out = String::new();
    labels.iter().for_each(|(name, value)| write_label(&mut out, name, value));
    out
}

/// Sums over all workers by labels; the order of a map is the order of the lines.
fn merged<N, S: Default>(
    registry: &Registry,
    metric: Metric,
    list: impl Fn(&WorkerSeries) -> &SeriesList<N>,
    add: impl Fn(&mut S, &N),
) -> BTreeMap<Arc<str>, S> {
    let (now_ms, expire_ms) = (registry.now_ms(), registry.settings.expire_ms[metric as usize]);
    let mut sums: BTreeMap<Arc<str>, S> = BTreeMap::new();
    for worker in registry.workers() {
        for series in list(&worker).current(now_ms, expire_ms) {
            add(sums.entry(Arc::clone(&series.labels)).or_default(), &series.numbers);
        }
    }
    sums
}

/// The metrics of routes.
fn requests(page: &mut Page<'_>, registry: &Registry) {
    let status =
        merged(registry, Metric::Status, |worker| &worker.status, |sum: &mut u64, n| *sum += n.get());
    if !status.is_empty() {
        page.begin("http_status", "counter", "HTTP status codes per service in APISIX");
        status.iter().for_each(|(labels, count)| page.line("http_status", labels, count));
    }
    let bandwidth = merged(
        registry,
        Metric::Bandwidth,
        |worker| &worker.bandwidth,
        |sum: &mut [u64; 2], n| {
            *sum = [sum[0] + n.egress.get(), sum[1] + n.ingress.get()];
        },
    );
    if !bandwidth.is_empty() {
        page.begin("bandwidth", "counter", "Total bandwidth in bytes consumed per service in APISIX");
    }
    for (at, kind) in ["egress", "ingress"].into_iter().enumerate() {
        for (labels, sums) in &bandwidth {
            page.line("bandwidth", &format!("type=\"{kind}\",{labels}"), sums[at]);
        }
    }
    latency(page, registry);
}

/// A histogram's buckets and sum, added up over workers.
#[derive(Default)]
struct Summed {
    buckets: Vec<u64>,
    sum: f64,
}

impl Summed {
    fn add(&mut self, histogram: &Histogram) {
        self.buckets.resize(histogram.buckets.len(), 0);
        for (sum, cell) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *sum += cell.get();
        }
        self.sum += histogram.sum();
    }
}

fn latency(page: &mut Page<'_>, registry: &Registry) {
    let all = merged(
        registry,
        Metric::Latency,
        |worker| &worker.latency,
        |sums: &mut [Summed; 3], numbers| {
            for (sum, histogram) in
                sums.iter_mut().zip([&numbers.apisix, &numbers.request, &numbers.upstream])
            {
                sum.add(histogram);
            }
        },
    );
    if !all.is_empty() {
        page.begin("http_latency", "histogram", "HTTP request latency in milliseconds per service in APISIX");
    }
    for (at, kind) in ["apisix", "request", "upstream"].into_iter().enumerate() {
        for (labels, sums) in &all {
            histogram(page, registry, &format!("type=\"{kind}\",{labels}"), &sums[at]);
        }
    }
}

fn histogram(page: &mut Page<'_>, registry: &Registry, labels: &str, summed: &Summed) {
    let (bounds, mut count) = (&registry.settings.buckets, 0);
    if summed.buckets.iter().all(|count| *count == 0) {
        // No node answered under these labels.
        return;
    }
    for (at, of_bucket) in summed.buckets.iter().enumerate() {
        count += of_bucket;
        match bounds.get(at) {
            Some(bound) => page.line("http_latency_bucket", &format!("{labels},le=\"{bound}\""), count),
            None => page.line("http_latency_bucket", &format!("{labels},le=\"+Inf\""), count),
        }
    }
    page.line("http_latency_count", labels, count);
    page.line("http_latency_sum", labels, summed.sum);
}

/// The metrics of the gateway as a whole.
fn gateway(page: &mut Page<'_>, registry: &Registry, node: &Node, facts: &Facts) {
    page.gauge(
        "http_requests_total",
        "The total number of client requests since APISIX started",
        facts.requests,
    );
    let name = "nginx_http_current_connections";
    page.begin(name, "gauge", "Number of HTTP connections");
    let busy = facts.requests_active.min(facts.connections_active);
    let states = [
        ("accepted", facts.connections_accepted),
        ("active", facts.connections_active),
        ("handled", facts.connections_accepted),
        ("reading", 0),
        ("waiting", facts.connections_active - busy),
        ("writing", busy),
    ];
    for (state, count) in states {
        page.line(name, &joined(&[("state", state)]), count);
    }
    websockets(page, facts);
    let name = "nginx_metric_errors_total";
    page.begin(name, "counter", "Number of requests that are missing here because there are too many series");
    page.line(name, "", registry.errors.load(Ordering::Relaxed));
    if let Some(reachable) = facts.store_reachable {
        let help = "Config server etcd reachable from APISIX, 0 is unreachable";
        page.gauge("etcd_reachable", help, u8::from(reachable));
    }
    if let Some(revision) = facts.revision {
        revisions(page, facts, revision);
        quarantine(page, facts);
    }
    page.begin("node_info", "gauge", "Info of APISIX node");
    let labels = joined(&[("hostname", node.hostname()), ("version", env!("CARGO_PKG_VERSION"))]);
    page.line("node_info", &labels, 1);
}

/// WebSockets by how clients opened them. APISIX has nothing like it.
fn websockets(page: &mut Page<'_>, facts: &Facts) {
    let kinds = [("upgrade", facts.websockets_by_upgrade), ("connect", facts.websockets_by_connect)];
    let name = "websocket_connections";
    page.begin(name, "gauge", "WebSockets open now, by how they were opened");
    for (by, sockets) in kinds {
        page.line(name, &joined(&[("by", by)]), sockets.active);
    }
    let name = "websocket_connections_total";
    page.begin(name, "counter", "WebSockets opened since the start, by how they were opened");
    for (by, sockets) in kinds {
        page.line(name, &joined(&[("by", by)]), sockets.opened);
    }
    let name = "websocket_bytes_total";
    page.begin(name, "counter", "Bytes that passed in WebSockets");
    for (kind, bytes) in [("egress", facts.websocket_bytes_out), ("ingress", facts.websocket_bytes_in)] {
        page.line(name, &joined(&[("type", kind)]), bytes);
    }
}

/// Kinds of resources that APISIX shows a revision of, whether there are some or not.
const KINDS: [&str; 8] =
    ["routes", "services", "ssls", "consumers", "global_rules", "upstreams", "stream_routes", "protos"];

/// Revisions of the store, under the names that etcd's have in APISIX.
fn revisions(page: &mut Page<'_>, facts: &Facts, revision: u64) {
    let name = "etcd_modify_indexes";
    page.begin(name, "gauge", "Etcd modify index for APISIX keys");
    let highest = facts.modified.iter().map(|(_, revision)| *revision).max().unwrap_or_default();
    let totals = [("max_modify_index", highest), ("prev_index", revision), ("x_etcd_index", revision)];
    let none = KINDS.into_iter().map(|kind| (kind, 0));
    let keys: BTreeMap<&str, u64> = none.chain(facts.modified.iter().copied()).chain(totals).collect();
    for (key, revision) in keys {
        page.line(name, &joined(&[("key", key)]), revision);
    }
}

/// Objects of the store that are not served as they were written.
fn quarantine(page: &mut Page<'_>, facts: &Facts) {
    let name = "quarantined_objects";
    page.begin(name, "gauge", "Objects that cannot be served as they were written, by kind");
    for (kind, count) in &facts.quarantined {
        page.line(name, &joined(&[("kind", kind)]), *count);
    }
}

fn upstreams(page: &mut Page<'_>, facts: &Facts) {
    if facts.nodes.is_empty() {
        return;
    }
    page.begin("upstream_status", "gauge", "upstream status from health check");
    // A node that an upstream names twice is one series.
    let nodes: BTreeMap<String, bool> = facts
        .nodes
        .iter()
        .map(|node| {
            let port = node.port.to_string();
            (
                joined(&[("name", node.resource.as_str()), ("ip", node.ip.as_str()), ("port", &port)]),
                node.healthy,
            )
        })
        .collect();
    for (labels, healthy) in nodes {
        page.line("upstream_status", &labels, u8::from(healthy));
    }
}
