//! Explains the result of a request, by the configuration that this process serves now. Nothing is sent and
//! nothing counted; it runs in parallel with the control thread, and workers are not involved.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use sigma_config::Config;
use sigma_http::Fault;
use sigma_plugin::Phase;
use sigma_proxy::snapshot::Upstream;
use sigma_proxy::{Considered, Explained, ExplainedRequest, Met, explain_live};

use crate::operators::nodes::node_of;
use crate::operators::refused_call::RefusedCall;
use crate::operators::tap::Masks;
use crate::serving::publisher::Publisher;

/// Routes that are named with the reason why they do not serve it.
const ROUTES: usize = 50;
/// Nodes of an upstream that are named.
const NODES: usize = 500;
/// Fields that a request may have.
const FIELDS: usize = 100;
/// Bytes that a request may have.
const BYTES: usize = 64 << 10;
/// Phases in which a plugin may change the node's request, or answer itself.
const BEFORE_NODE: [Phase; 4] = [Phase::Rewrite, Phase::Access, Phase::BeforeProxy, Phase::RequestFilter];

/// Explains requests.
pub(crate) struct Explainer(Arc<Publisher>);

/// What is queried.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExplainQuery(Vec<(String, String)>);

impl ExplainQuery {
    /// The arguments of a query.
    pub(crate) fn read(arguments: Vec<(String, String)>) -> ExplainQuery {
        ExplainQuery(arguments)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    fn request(&self) -> Result<ExplainedRequest, String> {
        let url = self.get("url").ok_or("missing argument url: such as https://example.com/a?b=c")?;
        let bytes: usize = self.0.iter().map(|(name, value)| name.len() + value.len()).sum();
        let fields = self.0.iter().filter(|(name, _)| name == "header").map(|(_, value)| field(value));
        let mut fields: Vec<(String, String)> = fields.collect::<Result<_, _>>()?;
        if bytes > BYTES || fields.len() > FIELDS {
            return Err(format!("the request is too large: at most {FIELDS} fields and {BYTES} bytes"));
        }
        if self.0.iter().any(|(_, value)| value.contains(|letter: char| letter.is_control())) {
            return Err("the request contains a control character".to_owned());
        }
        let (is_over_tls, rest) = match url.split_once("://") {
            Some(("https" | "wss", rest)) => (true, rest),
            Some(("http" | "ws", rest)) => (false, rest),
            Some((scheme, _)) => {
                return Err(format!("the scheme of the url is {scheme}; write http or https"));
            }
            None => (false, url),
        };
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (host, target) = rest.split_at(at);
        let target = target.split('#').next().unwrap_or_default();
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        let own = fields.iter().position(|(name, _)| name.eq_ignore_ascii_case("host"));
        let host = own.map_or_else(|| host.to_owned(), |at| fields.remove(at).1);
        if host.is_empty() {
            return Err(
                "the request has no host: add it to the url, or add header=Host: example.com".to_owned()
            );
        }
        let client = self.get("client").map(|text| {
            let address = text.parse::<SocketAddr>().ok();
            let address = address.or_else(|| Some(SocketAddr::new(text.parse::<IpAddr>().ok()?, 0)));
            address.ok_or_else(|| format!("invalid argument client: {text} is not an IP address"))
        });
        Ok(ExplainedRequest {
            method: self.get("method").unwrap_or("GET").to_owned(),
            target,
            host,
            fields,
            client: client.transpose()?,
            listener: self.get("listener").map(str::to_owned),
            is_over_tls,
            consumer: self.get("consumer").map(str::to_owned),
            routes: ROUTES,
        })
    }
}

fn field(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| format!("invalid argument header: {text:?} is not in the form `Name: value`"))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

impl Explainer {
    /// One that looks at what this publisher has put into force.
    pub(crate) fn new(publisher: Arc<Publisher>) -> Explainer {
        Explainer(publisher)
    }

    /// Explains a request.
    ///
    /// # Errors
    /// Returns an error if it is invalid, or the consumer or listener that it names does not exist.
    pub(crate) async fn explain(&self, wish: ExplainQuery) -> Result<Value, RefusedCall> {
        let question = wish.request().map_err(RefusedCall::bad)?;
        let (snapshot, config, is_known) = {
            let state = self.0.state();
            let resources = &state.desired.config.resources;
            let mut config = Config::default();
            // The rest is in the snapshot.
            config.resources.global_rules = resources.global_rules.clone();
            config.resources.consumer_groups = resources.consumer_groups.clone();
            let is_known =
                question.consumer.as_ref().is_none_or(|name| resources.consumers.get(name).is_some());
            (state.snapshot.clone(), config, is_known)
        };
        let snapshot = snapshot.ok_or_else(|| {
            let message = "the gateway has no configuration yet; repeat the call";
            RefusedCall::new(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
        if let Some(name) = question.consumer.as_ref().filter(|_| !is_known) {
            return Err(RefusedCall::bad(format!("unknown consumer {name}")));
        }
        if let Some(name) = &question.listener
            && !snapshot.settings.listeners.iter().any(|listener| listener.name.as_ref() == Some(name))
        {
            return Err(RefusedCall::bad(format!("unknown listener {name}")));
        }
        let asked = question.clone();
        let served = snapshot.revision;
        // Its time grows with the number of routes.
        let explained = tokio::task::spawn_blocking(move || explain_live(&snapshot, &config, &asked)).await;
        let explained = explained
            .map_err(|error| RefusedCall::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        let explained = explained.map_err(|reason| RefusedCall::bad(format!("no such request: {reason}")))?;
        Ok(shown(&question, &explained, served))
    }
}

fn shown(question: &ExplainedRequest, explained: &Explained, served: u64) -> Value {
    let route = explained.route.as_ref().map(|route| {
            json!({"key": format!("routes/{}", route.id), "name": route.name, "priority": route.priority})
        });
    let service = explained.service.as_ref();
    let service =
        service.map(|service| json!({"key": format!("services/{}", service.id), "name": service.name}));
    let routes: Vec<Value> = explained.considered.iter().map(considered).collect();
    let plugins: Vec<Value> = explained.plugins.iter().map(met).collect();
    let upstream = explained.upstream.as_ref().map(|upstream| shown_upstream(upstream));
    json!({
        "request": {
            "method": question.method,
            "host": question.host,
            "path": explained.path,
            "tls": question.is_over_tls,
            "client": question.client.map_or_else(|| "127.0.0.1".to_owned(), |client| client.ip().to_string()),
            "listener": question.listener,
            "consumer": question.consumer,
        },
        "revision": served,
        "routes": routes,
        "other_routes": explained.others + explained.unlisted,
        "routes_with_other_paths": explained.others,
        "route": route,
        "service": service,
        "refused": refusal(explained),
        "plugins": plugins,
        "phases": phases(&explained.plugins),
        "may_be_refused_by": explained.may_be_refused_by().collect::<Vec<_>>(),
        "upstream": upstream,
        "to_node": to_node(question, explained),
    })
}

/// Returns the status and the reason of the gateway's own response, plugins aside.
fn refusal(explained: &Explained) -> Option<String> {
    let of_nodes = |fault: Fault| match fault.kind.row().status {
        Some(status) => format!("{status} {fault}"),
        None => fault.to_string(),
    };
    explained.refused.map(str::to_owned).or_else(|| explained.unavailable.map(of_nodes))
}

fn shown_upstream(upstream: &Upstream) -> Value {
    let set = upstream.cell.load();
    let is_checked = upstream.checks.as_ref().is_some_and(|plan| plan.judges());
    let nodes = set.endpoints.iter().take(NODES).map(|endpoint| {
        let mut node = node_of(endpoint, is_checked);
        if let Some((now, most)) = upstream.in_flight_of(endpoint) {
            node["in_flight"] = json!({"now": now, "max": most});
        }
        if let Some(host) = upstream.host_of(endpoint) {
            node["host"] = host.into();
        }
        node
    });
    let nodes: Vec<Value> = nodes.collect();
    let mut shown = json!({
        "key": upstream.key,
        "type": upstream.config.balance,
        "scheme": upstream.config.scheme,
        "nodes": nodes,
        "more_nodes": set.endpoints.len().saturating_sub(NODES),
    });
    if let Some(use_of_http3) = upstream.http3() {
        shown["http3"] = use_of_http3.into();
    }
    let members: Vec<&str> = upstream.member_keys().collect();
    if !members.is_empty() {
        shown["members"] = members.into();
    }
    if let Some(state) = upstream.breaker() {
        shown["circuit_breaker"] = state.into();
    }
    if let Some((now, most)) = upstream.in_flight() {
        shown["in_flight"] = json!({"now": now, "max": most});
    }
    shown
}

fn considered(one: &Considered) -> Value {
    json!({"id": one.id, "name": one.name, "matched": one.reason.is_none(), "reason": one.reason})
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Rewrite => "rewrite",
        Phase::Access => "access",
        Phase::BeforeProxy => "before_proxy",
        Phase::RequestFilter => "request_filter",
        Phase::HeaderFilter => "header_filter",
        Phase::BodyFilter => "body_filter",
        Phase::Log => "log",
    }
}

fn met(one: &Met) -> Value {
    let reason = one.left_out.or((one.filter == Some(false)).then_some("_meta.filter does not match"));
    let phases: Vec<&str> = one.phases.iter().copied().map(phase_name).collect();
    let mut shown = json!({
        "name": one.name,
        "source": one.source,
        "global": one.is_global,
        "runs": one.runs(),
        "phases": phases,
    });
    if one.left_out.is_none() {
        shown["priority"] = one.priority.into();
    }
    if let Some(filter) = one.filter {
        shown["filter"] = filter.into();
    }
    if let Some(reason) = reason {
        shown["reason"] = reason.into();
    }
    if let Some(would) = &one.would {
        shown["would"] = masked(would.clone());
    }
    if !one.instead_of.is_empty() {
        shown["instead_of"] = one.instead_of.clone().into();
    }
    shown
}

/// Returns a plugin's changes, without values of credential fields.
fn masked(mut would: Value) -> Value {
    let masks = Masks::default();
    if let Some(uri) = would.get_mut("uri") {
        *uri = uri.as_str().map(|uri| masks.link(uri).into_owned()).into();
    }
    for field in would.pointer_mut("/headers/set").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some([name, value]) = field.as_array().map(Vec::as_slice)
            && let (Some(name), Some(value)) = (name.as_str(), value.as_str())
        {
            *field = json!([name, masks.field(name, value)]);
        }
    }
    would
}

/// The names of those that run, by phase, in order.
fn phases(plugins: &[Met]) -> Value {
    let of = |phase: Phase| -> Value {
        let running = plugins.iter().filter(|one| one.runs() && one.phases.contains(&phase));
        running.map(|one| one.name.as_str()).collect()
    };
    let all: Map<String, Value> = Phase::ALL
        .into_iter()
        .map(|phase| (phase_name(phase).to_owned(), of(phase)))
        .filter(|(_, names)| names.as_array().is_some_and(|names| !names.is_empty()))
        .collect();
    Value::Object(all)
}

/// Returns the request as a node would get it with the changes of plugins that can predict them, and the
/// plugins that may change more.
fn to_node(question: &ExplainedRequest, explained: &Explained) -> Value {
    if explained.upstream.is_none() || explained.unavailable.is_some() {
        return Value::Null;
    }
    let path = explained.sent.rewritten.clone().unwrap_or_else(|| question.target.clone());
    let path = Masks::default().link(&path).into_owned();
    let method = explained.sent.method.as_ref().unwrap_or(&question.method);
    let mut headers = Map::new();
    if let Some(host) = &explained.sent.host {
        headers.insert("Host".to_owned(), host.as_str().into());
    }
    for (name, value) in &explained.sent.forwarded {
        headers.insert((*name).to_owned(), value.as_str().into());
    }
    let mut told = HashSet::new();
    let may_change: Vec<&str> = explained
        .plugins
        .iter()
        .filter(|one| one.runs() && one.phases.iter().any(|phase| BEFORE_NODE.contains(phase)))
        .map(|one| one.name.as_str())
        .filter(|name| told.insert(*name))
        .collect();
    json!({"method": method, "path": path, "headers": headers, "may_be_changed_by": may_change})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(query: &str) -> Result<ExplainedRequest, String> {
        ExplainQuery::read(form_urlencoded::parse(query.as_bytes()).into_owned().collect()).request()
    }

    #[test]
    fn requests_are_read() {
        let check = |query: &str, host: &str, target: &str, is_over_tls: bool| {
            let question = wish(query).expect(query);
            assert_eq!(
                (&*question.host, &*question.target, question.is_over_tls),
                (host, target, is_over_tls)
            );
        };
        check("url=https://a.com:81/b?c%23d", "a.com:81", "/b?c", true);
        check("url=http://a.com", "a.com", "/", false);
        check("url=http://a.com?x", "a.com", "/?x", false);
        check("url=/b&header=host:%20a.com", "a.com", "/b", false);
        check("url=a.com/b", "a.com", "/b", false);
        let question =
            wish("method=PUT&url=http://a/&header=X-A:%201&header=X-A:2&client=10.0.0.1").expect("one");
        assert_eq!(question.fields, [("X-A".into(), "1".into()), ("X-A".into(), "2".into())]);
        assert_eq!((question.method.as_str(), question.client), ("PUT", Some(([10, 0, 0, 1], 0).into())));
        let refused = |query: &str, words: &str| {
            let error = wish(query).expect_err(query);
            assert!(error.contains(words), "{query}: {error}");
        };
        refused("", "missing argument url");
        refused("url=/a", "no host");
        refused("url=ftp://a/", "the scheme of the url is ftp");
        refused("url=http://a/&header=X", "is not in the form `Name: value`");
        refused("url=http://a/&header=X:%0d%0aY:%201", "control character");
        refused("url=http://a/&client=b", "not an IP address");
    }
}
