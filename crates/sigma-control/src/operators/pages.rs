//! Pages of enabled plugins, on listeners of their own, and the facts that they show.
//!
//! A plugin with endpoints gets a listener where its `plugin_attr` has an `export_addr` or says
//! `enable_export_server: true`. Answers are made on separate threads: a page of ten thousand routes takes a
//! while.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use sigma_config::kind::Kind;
use sigma_config::settings::Operators;
use sigma_http::RequestHead;
use sigma_observe::counters::{Counter, merge};
use sigma_plugin::facts::{Facts, FactsBoard, NodeHealth, Pulse, Websockets};
use sigma_plugin::step::{End, StreamBody};
use sigma_plugin::{Consumers, Context, Env, Local, Node, Reply};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_stream::Stream;

use super::entrances::Entrances;
use super::{OpenError, listen};
use crate::operators::control_api::Inspect;
use crate::operators::plugin_paths::{MAX_BODY_BYTES, head_of, response};
use crate::operators::running::Running;
use crate::serving::plugins::Plugins;
use crate::serving::quarantined::Quarantined;

/// APISIX's address for metrics.
const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9091);

/// Requests that are answered at a time. Each holds a thread that blocks while it waits, and needs another
/// one to continue: without a limit all could block forever.
static TURNS: Semaphore = Semaphore::const_new(64);

/// The age of facts without requests on a listener.
const DEFAULT_REFRESH: Duration = Duration::from_secs(15);
/// The shortest such pause: a collection takes some milliseconds of the control thread.
const LEAST_REFRESH: Duration = Duration::from_millis(100);

/// Opens the listeners, and keeps the facts up to date for endpoints that are reached otherwise.
pub(crate) async fn serve(
    running: &Arc<Running>,
    plugins: &Plugins,
    limits: &Arc<Operators>,
    entrances: &Arc<Entrances>,
) -> Result<(), OpenError> {
    let serving: Vec<&Arc<dyn sigma_plugin::Kind>> =
        plugins.enabled.kinds().filter(|kind| !kind.endpoints().is_empty()).collect();
    if serving.is_empty() {
        return Ok(());
    }
    let facts = Arc::new(FactsSource { running: Arc::clone(running), node: Arc::clone(&plugins.node) });
    let running_on = Arc::clone(running);
    plugins.node.part(FactsBoard::default).feel_by(move || pulse(&running_on));
    for &kind in &serving {
        let attribute = plugins.node.attribute(kind.name());
        if let Some(address) = address(kind.name(), attribute).map_err(OpenError::Pages)? {
            let pages = Pages { facts: Arc::clone(&facts), kind: Arc::clone(kind) };
            listen(address, Router::new().fallback(answer).with_state(pages), limits, entrances).await?;
        }
    }
    let refresh = serving.iter().filter_map(|kind| {
        let seconds = plugins.node.attribute(kind.name()).get("refresh_interval")?.as_f64()?;
        Duration::try_from_secs_f64(seconds).ok()
    });
    let period = refresh.min().unwrap_or(DEFAULT_REFRESH).max(LEAST_REFRESH);
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(period);
        loop {
            tick.tick().await;
            facts.publish();
        }
    });
    Ok(())
}

/// Where a plugin's endpoints are served, if they are.
pub(crate) fn address(plugin: &str, attribute: &Value) -> Result<Option<SocketAddr>, String> {
    let enabled = attribute.get("enable_export_server").and_then(Value::as_bool);
    let place = attribute.get("export_addr");
    if enabled == Some(false) || (enabled.is_none() && place.is_none()) {
        return Ok(None);
    }
    let mut address = DEFAULT_ADDRESS;
    if let Some(ip) = place.and_then(|place| place.get("ip")) {
        let parsed = ip.as_str().and_then(|ip| ip.parse().ok());
        address.set_ip(
            parsed
                .ok_or_else(|| format!("plugin_attr.{plugin}.export_addr.ip: {ip} is not an IP address"))?,
        );
    }
    if let Some(port) = place.and_then(|place| place.get("port")) {
        let parsed = port.as_u64().and_then(|port| u16::try_from(port).ok());
        address.set_port(
            parsed.ok_or_else(|| {
                format!("plugin_attr.{plugin}.export_addr.port: {port} is not a port number")
            })?,
        );
    }
    Ok(Some(address))
}

/// The pages of one listener.
#[derive(Clone)]
struct Pages {
    facts: Arc<FactsSource>,
    kind: Arc<dyn sigma_plugin::Kind>,
}

async fn answer(State(pages): State<Pages>, request: Request) -> Response {
    let attribute = pages.facts.node.attribute(pages.kind.name());
    let (asked, method) = (request.uri().path(), request.method().as_str());
    let at = pages
        .kind
        .endpoints()
        .iter()
        .position(|endpoint| endpoint.path_in(attribute) == asked && endpoint.method.as_str() == method);
    let Some(at) = at else {
        let mut text = "not found; this listener has these paths:\n".to_owned();
        for endpoint in pages.kind.endpoints() {
            text.push_str(&format!("{} {}\n", endpoint.method.as_str(), endpoint.path_in(attribute)));
        }
        return (StatusCode::NOT_FOUND, text).into_response();
    };
    pages.facts.publish();
    let Some(head) = head_of(&request) else { return StatusCode::BAD_REQUEST.into_response() };
    let body = match axum::body::to_bytes(request.into_body(), MAX_BODY_BYTES).await {
        Ok(body) => Vec::from(body),
        Err(_) => return StatusCode::PAYLOAD_TOO_LARGE.into_response(),
    };
    let Ok(turn) = TURNS.acquire().await else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    let (delivery, answered) = oneshot::channel();
    let runtime = tokio::runtime::Handle::current();
    // A waiting hook blocks its own thread, and this one is shared by all operators.
    tokio::task::spawn_blocking(move || {
        runtime.block_on(pages.deliver(at, head, body, delivery));
        drop(turn);
    });
    answered.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

impl Pages {
    /// Responses from one endpoint, which is called as workers call it; it can send no requests from here. Stays until
    /// the last piece of a body that is made while it is sent.
    async fn deliver(self, at: usize, head: RequestHead, body: Vec<u8>, answered: oneshot::Sender<Response>) {
        let (local, consumers) = (Rc::new(Local::default()), Consumers::default());
        let env = Env::new(&self.facts.node, &local, &consumers);
        let mut ctx = Context::default();
        ctx.uri = head.raw_path().to_vec();
        ctx.request = head;
        let step = self.kind.respond(&self.kind.endpoints()[at], &mut ctx, &env);
        match step.ended(&mut ctx, &env, body).await {
            End::Next => drop(answered.send(response(Reply::new(404)))),
            End::Reply(reply) => drop(answered.send(response(*reply))),
            // There is no connection that it could have.
            End::Takeover(..) => drop(answered.send(response(Reply::new(501)))),
            End::Stream(reply, body) => {
                let (pieces, sent) = mpsc::channel(1);
                let body_sent = Body::from_stream(Pieces { sent, is_whole: false });
                if answered.send(response(*reply).map(|_| body_sent)).is_ok() {
                    send_all(body, &mut ctx, &pieces).await;
                }
            }
        }
    }
}

/// A piece of a body, None at its end.
type Piece = io::Result<Option<Bytes>>;

/// Sends a body as it is made, as fast as it is read; until its reader has gone.
async fn send_all(mut body: StreamBody, ctx: &mut Context, pieces: &mpsc::Sender<Piece>) {
    loop {
        let next = tokio::select! {
            next = poll_fn(|task| body.source.poll_piece_with(ctx, task)) => next,
            () = pieces.closed() => return,
        };
        let is_last = !matches!(next, Ok(Some(_)));
        let next = next.map(|piece| piece.map(|piece| Bytes::copy_from_slice(&piece)));
        if pieces.send(next).await.is_err() || is_last {
            return;
        }
    }
}

/// The body as it arrives from the thread that makes it.
struct Pieces {
    sent: mpsc::Receiver<Piece>,
    is_whole: bool,
}

impl Stream for Pieces {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.is_whole {
            return Poll::Ready(None);
        }
        let piece = task::ready!(self.sent.poll_recv(task));
        // A thread that panics says nothing: the body must not look whole.
        let piece = piece.unwrap_or_else(|| Err(io::Error::other("the body is incomplete")));
        self.is_whole = matches!(piece, Ok(None));
        Poll::Ready(piece.transpose())
    }
}

/// Collects facts and posts them for plugins.
struct FactsSource {
    running: Arc<Running>,
    node: Arc<Node>,
}

impl FactsSource {
    fn publish(&self) {
        self.node.part(FactsBoard::default).post(self.facts());
    }

    fn facts(&self) -> Facts {
        let (health, revisions) = (self.running.health(), self.running.revisions());
        let stored = revisions.store.kind != "file";
        let modified = if stored { self.running.newest() } else { Vec::new() };
        let totals = merge(self.running.counters());
        let nodes = health.iter().flat_map(|report| {
            let resource = format!("/apisix/{}", report.key);
            report.nodes.iter().filter_map(move |node| node_health(&resource, node))
        });
        let pulse = pulse(&self.running);
        Facts {
            requests: pulse.requests,
            requests_active: pulse.requests_active,
            connections_active: pulse.connections_active,
            connections_accepted: pulse.connections_accepted,
            websockets_by_upgrade: Websockets {
                opened: totals.get(Counter::WebsocketsByUpgrade),
                active: totals.get(Counter::WebsocketsByUpgradeActive),
            },
            websockets_by_connect: Websockets {
                opened: totals.get(Counter::WebsocketsByConnect),
                active: totals.get(Counter::WebsocketsByConnectActive),
            },
            websocket_bytes_in: totals.get(Counter::WebsocketBytesIn),
            websocket_bytes_out: totals.get(Counter::WebsocketBytesOut),
            revision: stored.then_some(revisions.published),
            modified: modified.into_iter().map(|(kind, revision)| (label_of(kind), revision)).collect(),
            store_reachable: stored.then_some(revisions.store.lost.is_none()),
            quarantined: quarantined_by_kind(&revisions.quarantined),
            measures: self.running.measures(),
            nodes: nodes.collect(),
        }
    }
}

/// Returns the current counts of clients.
fn pulse(running: &Running) -> Pulse {
    let totals = merge(running.counters());
    let requests = totals.get(Counter::Requests);
    Pulse {
        id: Arc::clone(running.members().id()),
        requests,
        requests_active: requests.saturating_sub(totals.get(Counter::ExchangesEnded)),
        connections_active: totals.get(Counter::ConnectionsActive),
        connections_accepted: totals.get(Counter::ConnectionsAccepted),
    }
}

/// How many objects of each kind are quarantined; all kinds, so that a series does not come and go.
pub(crate) fn quarantined_by_kind(quarantine: &[Quarantined]) -> Vec<(&'static str, u64)> {
    let of = |kind: Kind| {
        let is_of = |one: &&Quarantined| one.key.kind == kind;
        (label_of(kind), quarantine.iter().filter(is_of).count() as u64)
    };
    Kind::ALL.map(of).into()
}

/// The key that APISIX's metric has for a kind.
fn label_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Credential => "credentials",
        kind => kind.section(),
    }
}

fn node_health(resource: &str, node: &Value) -> Option<NodeHealth> {
    let status = node.get("status")?.as_str()?;
    Some(NodeHealth {
        resource: resource.to_owned(),
        ip: node.get("ip")?.as_str()?.to_owned(),
        port: u16::try_from(node.get("port")?.as_u64()?).ok()?,
        healthy: matches!(status, "healthy" | "mostly_healthy"),
        reason: node.get("reason").and_then(Value::as_str).unwrap_or_default().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_listener_is_opened_only_where_it_was_asked_for() {
        let check = |attribute: Value, expected: Result<Option<&str>, &str>| {
            let got = address("p", &attribute).map(|address| address.map(|address| address.to_string()));
            let expected = expected.map(|some| some.map(str::to_owned)).map_err(str::to_owned);
            assert_eq!(got, expected, "{attribute}");
        };
        check(Value::Null, Ok(None));
        check(json!({"metric_prefix": "a_"}), Ok(None));
        check(json!({"enable_export_server": true}), Ok(Some("127.0.0.1:9091")));
        check(json!({"export_addr": {"ip": "0.0.0.0", "port": 9000}}), Ok(Some("0.0.0.0:9000")));
        check(json!({"export_addr": {"port": 9000}, "enable_export_server": false}), Ok(None));
        check(
            json!({"export_addr": {"ip": "x"}}),
            Err("plugin_attr.p.export_addr.ip: \"x\" is not an IP address"),
        );
        check(
            json!({"export_addr": {"port": 70000}}),
            Err("plugin_attr.p.export_addr.port: 70000 is not a port number"),
        );
    }
}
