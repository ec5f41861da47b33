//! The page that is scraped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sigma_plugin::Node;
use sigma_plugin::facts::{Facts, FactsBoard};
use sigma_plugin::traffic::{ListenerTraffic, TrafficBoard};

use super::cell::Cell;
use super::labels::write_label;
use super::latency::write_latency;
use super::page::Page;
use super::series::{Bandwidth, Registry, Series, SeriesList, WorkerSeries};
use super::settings::Metric;
use super::text::{Form, Look};
use sigma_plugin_kit::batch::{BatchLabels, Batches};
use sigma_plugin_kit::tallies::Families;

/// Everything, piece by piece; None at the end. A piece may take a while,
/// and holds no lock for long.
pub(super) fn pieces(
    registry: Arc<Registry>,
    node: Arc<Node>,
    look: Look,
) -> impl FnMut() -> Option<Vec<u8>> + Send {
    let mut page = Page::new(&registry, look);
    // None before the beginning and behind the end.
    let (mut sections, mut is_begun) = (None, false);
    move || {
        if !std::mem::replace(&mut is_begun, true) {
            sections = Some(all(&registry, &node, look.form));
        }
        let left = sections.as_mut()?;
        while !left.is_empty() {
            fill(&mut page, left);
            // Other threads may need the CPU more.
            std::thread::yield_now();
            let piece = page.text.settle();
            if piece.is_some() {
                return piece;
            }
        }
        sections = None;
        Some(page.text.finish()).filter(|last| !last.is_empty())
    }
}

/// A part of the page that is written a little at a time.
trait Section: Send {
    /// Writes the next lines. False at the end.
    fn write(&mut self, page: &mut Page) -> bool;
}

/// All sections, the last one first.
fn all(registry: &Arc<Registry>, node: &Arc<Node>, form: Form) -> Vec<Box<dyn Section>> {
    let rest = Rest { registry: Arc::clone(registry), node: Arc::clone(node) };
    let status = merged(registry, Metric::Status, |worker| &worker.status);
    let latency = merged(registry, Metric::Latency, |worker| &worker.latency);
    let bandwidth = merged(registry, Metric::Bandwidth, |worker| &worker.bandwidth);
    vec![
        Box::new(End(form)),
        Box::new(rest),
        Box::new(Rows {
            heading: ["stream_status", "counter", "Ended sessions of stream routes, by result"],
            series: joint(registry, 0, |worker| &worker.session_status),
            at: 0,
            types: &[""],
            write: |page, _, same| write_count(page, "stream_status", same),
        }),
        Box::new(Rows {
            heading: [
                "stream_connection_total",
                "counter",
                "Total number of connections handled per Stream Route in APISIX",
            ],
            series: joint(registry, 0, |worker| &worker.sessions),
            at: 0,
            types: &[""],
            write: |page, _, same| write_count(page, "stream_connection_total", same),
        }),
        Box::new(Rows {
            heading: [
                "http_latency",
                "histogram",
                "HTTP request latency in milliseconds per service in APISIX",
            ],
            series: latency,
            at: 0,
            types: &["apisix", "request", "upstream"],
            write: write_latency,
        }),
        Box::new(Rows {
            heading: ["bandwidth", "counter", "Total bandwidth in bytes consumed per service in APISIX"],
            series: bandwidth,
            at: 0,
            types: &["egress", "ingress"],
            write: write_bandwidth,
        }),
        Box::new(Rows {
            heading: ["http_status", "counter", "HTTP status codes per service in APISIX"],
            series: status,
            at: 0,
            types: &[""],
            write: |page, _, same| write_count(page, "http_status", same),
        }),
    ]
}

/// The last line, or the rest of the last family.
struct End(Form);

impl Section for End {
    fn write(&mut self, page: &mut Page) -> bool {
        match self.0 {
            Form::Text => {}
            Form::OpenMetrics => page.text.write(b"# EOF\n"),
            Form::Protobuf => page.families.leave(&mut page.text),
        }
        false
    }
}

/// Writes so much that the CPU is held for a fraction of a millisecond.
fn fill(page: &mut Page, sections: &mut Vec<Box<dyn Section>>) {
    /// Bytes of text.
    const TURN_BYTES: usize = 64 * 1024;
    while page.text.unsettled() < TURN_BYTES
        && let Some(section) = sections.last_mut()
    {
        if !section.write(page) {
            sections.pop();
        }
    }
}

fn joined(labels: &[(&str, &str)]) -> String {
    let mut out = String::new();
    labels.iter().for_each(|(name, value)| write_label(&mut out, name, value));
    out
}

/// Returns the series of all workers; equal labels are adjacent.
fn merged<N>(
    registry: &Registry,
    metric: Metric,
    list: impl Fn(&WorkerSeries) -> &SeriesList<N>,
) -> Vec<Arc<Series<N>>> {
    joint(registry, registry.settings.expire_ms[metric as usize], list)
}

/// The same for series that are forgotten after so many milliseconds without news; 0 for never.
fn joint<N>(
    registry: &Registry,
    expire_ms: u64,
    list: impl Fn(&WorkerSeries) -> &SeriesList<N>,
) -> Vec<Arc<Series<N>>> {
    let now_ms = registry.now_ms();
    let workers = registry.workers();
    let mut all: Vec<_> = workers.iter().flat_map(|worker| list(worker).current(now_ms, expire_ms)).collect();
    if workers.len() > 1 {
        // Each worker's are in order, so this merges.
        all.sort_by(|one, other| one.labels.cmp(&other.labels));
    }
    all
}

/// A metric of routes: lines for each set of labels, one `type` after the other.
struct Rows<N> {
    /// Name, kind and help.
    heading: [&'static str; 3],
    series: Vec<Arc<Series<N>>>,
    /// The next of them.
    at: usize,
    /// The values of `type` that are left, the one at hand first.
    types: &'static [&'static str],
    /// Writes the lines of one `type` and one set of labels, which series of several workers may have.
    write: fn(&mut Page, &str, &[Arc<Series<N>>]),
}

impl<N: Send + Sync> Section for Rows<N> {
    fn write(&mut self, page: &mut Page) -> bool {
        let (Some(first), Some(kind)) = (self.series.get(self.at), self.types.first()) else { return false };
        let [name, of, help] = std::mem::take(&mut self.heading);
        if !name.is_empty() {
            page.begin(name, of, help);
        }
        let same = self.series[self.at..].iter().take_while(|series| series.labels == first.labels);
        let end = self.at + same.count();
        (self.write)(page, kind, &self.series[self.at..end]);
        self.at = end;
        if end == self.series.len() {
            (self.at, self.types) = (0, &self.types[1..]);
        }
        !self.types.is_empty()
    }
}

fn write_count(page: &mut Page, name: &str, same: &[Arc<Series<Cell>>]) {
    let count: u64 = same.iter().map(|series| series.numbers.get()).sum();
    page.line(name, &same[0].labels, count);
}

fn write_bandwidth(page: &mut Page, kind: &str, same: &[Arc<Series<Bandwidth>>]) {
    let of =
        |numbers: &Bandwidth| if kind == "egress" { numbers.egress.get() } else { numbers.ingress.get() };
    let bytes: u64 = same.iter().map(|series| of(&series.numbers)).sum();
    let labels = &same[0].labels;
    if page.form == Form::Protobuf {
        return page.families.number(&mut page.text, &format!("type=\"{kind}\",{labels}"), bytes);
    }
    page.head.set(&[&page.prefix, "bandwidth{type=\"", kind, "\",", labels, "} "]);
    page.text.repeat(&mut page.head);
    page.text.number(bytes);
    page.text.write(b"\n");
}

/// The metrics that are not of routes. There are so few of them that they are written at once.
struct Rest {
    registry: Arc<Registry>,
    node: Arc<Node>,
}

impl Section for Rest {
    fn write(&mut self, page: &mut Page) -> bool {
        let facts = self.node.part(FactsBoard::default).read();
        gateway(page, &self.registry, &self.node, &facts);
        streams(page, &self.node.part(TrafficBoard::default).read());
        upstreams(page, &facts);
        measures(page, &facts);
        pushes(page, &self.registry);
        buffered(page, self.node.part(Batches::default).buffered());
        tallied(page, &self.node.part(Families::default));
        false
    }
}

fn pushes(page: &mut Page, registry: &Registry) {
    let name = "otlp_pushes_total";
    if registry.settings.push.is_some() {
        page.begin(name, "counter", "Pushes of the metrics to a collector of OpenTelemetry");
        for (outcome, count) in ["taken", "failed"].into_iter().zip(&registry.pushes) {
            page.line(name, &joined(&[("outcome", outcome)]), count.get());
        }
    }
}

fn buffered(page: &mut Page, buffered: Vec<(BatchLabels, usize)>) {
    let name = "batch_process_entries";
    if !buffered.is_empty() {
        page.begin(name, "gauge", "batch process remaining entries");
    }
    // Two configurations of one name on one route would be one series twice.
    let mut sums: BTreeMap<String, usize> = BTreeMap::new();
    for (labels, count) in buffered {
        let all =
            [("name", &labels.name), ("route_id", &labels.route_id), ("server_addr", &labels.server_addr)];
        *sums.entry(joined(&all.map(|(name, value)| (name, value.as_str())))).or_default() += count;
    }
    for (labels, count) in sums {
        page.line(name, &labels, count as u64);
    }
}

/// Counters of plugins by the resource that configures them. APISIX has nothing like it.
fn tallied(page: &mut Page, families: &Families) {
    for (name, family) in families.all() {
        let all = family.all();
        if !all.is_empty() {
            page.begin(name, family.kind(), family.help());
        }
        for (labels, count) in all {
            let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, &**value)).collect();
            page.line(name, &joined(&labels), count);
        }
    }
}

/// The metrics of the gateway as a whole.
fn gateway(page: &mut Page, registry: &Registry, node: &Node, facts: &Facts) {
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
        page.gauge("etcd_reachable", help, u64::from(reachable));
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
fn websockets(page: &mut Page, facts: &Facts) {
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

/// Sessions of stream routes while they are open. Bytes read on one side are counted when they were written
/// on the other.
fn streams(page: &mut Page, listeners: &[ListenerTraffic]) {
    if listeners.is_empty() {
        return;
    }
    let name = "stream_active_connections";
    page.begin(name, "gauge", "Sessions open now, by listener");
    for traffic in listeners {
        page.line(name, &joined(&[("listen_addr", &traffic.listener)]), traffic.active);
    }
    let name = "stream_bandwidth";
    page.begin(name, "counter", "Bytes that passed in sessions, by listener, direction and side");
    for traffic in listeners {
        let (from_clients, to_clients) = (traffic.from_clients, traffic.to_clients);
        for (kind, side, bytes) in [
            ("egress", "downstream", to_clients),
            ("egress", "upstream", from_clients),
            ("ingress", "downstream", from_clients),
            ("ingress", "upstream", to_clients),
        ] {
            let labels = [("listen_addr", &*traffic.listener), ("type", kind), ("side", side)];
            page.line(name, &joined(&labels), bytes);
        }
    }
}

/// Kinds of resources that APISIX shows a revision of, whether there are some or not.
const KINDS: [&str; 8] =
    ["routes", "services", "ssls", "consumers", "global_rules", "upstreams", "stream_routes", "protos"];

/// Revisions of the store, under the names that etcd's have in APISIX.
fn revisions(page: &mut Page, facts: &Facts, revision: u64) {
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
fn quarantine(page: &mut Page, facts: &Facts) {
    let name = "quarantined_objects";
    page.begin(name, "gauge", "Objects that cannot be served as they were written, by kind");
    for (kind, count) in &facts.quarantined {
        page.line(name, &joined(&[("kind", kind)]), *count);
    }
}

/// Writes the control plane's own measurements.
fn measures(page: &mut Page, facts: &Facts) {
    for measure in facts.measures.iter().filter(|measure| !measure.series.is_empty()) {
        page.begin(measure.name, if measure.is_counter { "counter" } else { "gauge" }, measure.help);
        for (labels, number) in &measure.series {
            let labels: Vec<(&str, &str)> =
                labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
            page.line(measure.name, &joined(&labels), *number);
        }
    }
}

fn upstreams(page: &mut Page, facts: &Facts) {
    if facts.nodes.is_empty() {
        return;
    }
    page.begin("upstream_status", "gauge", "upstream status from health check");
    // A node that an upstream names twice is one series.
    let nodes: BTreeMap<String, (bool, &str)> = facts
        .nodes
        .iter()
        .map(|node| {
            let port = node.port.to_string();
            (
                joined(&[("name", node.resource.as_str()), ("ip", node.ip.as_str()), ("port", &port)]),
                (node.healthy, node.reason.as_str()),
            )
        })
        .collect();
    for (labels, (healthy, _)) in &nodes {
        page.line("upstream_status", labels, u64::from(*healthy));
    }
    page.begin("upstream_node_out", "gauge", "Whether a node gets no requests, and why");
    for (labels, (_, reason)) in &nodes {
        let labels = format!("{labels},{}", joined(&[("reason", reason)]));
        page.line("upstream_node_out", &labels, u64::from(!reason.is_empty()));
    }
}
