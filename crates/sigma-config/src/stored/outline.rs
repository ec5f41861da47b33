//! The outline of an invalid item: its place, and whether its last valid form may replace it.

use serde_json::Value;

use super::any::{AnyResource, typed};
use crate::resources::kind::{Kind, ResourceKey};
use crate::resources::{Plugins, Route, Ssl, StreamRoute, Upstream};
use crate::rules::Object;
use sigma_schema::id::Id;

/// Lists in which single elements may be unreadable.
const NAMES: [&str; 4] = ["uris", "hosts", "snis", "alpn"];

/// Returns whether resources of a kind get requests by themselves, or are required by others. Resources of other kinds
/// only provide texts to plugins, which refuse requests without them.
#[must_use]
pub fn has_place(kind: Kind) -> bool {
    !matches!(kind, Kind::PluginMetadata | Kind::Proto | Kind::Secret)
}

/// Returns the readable members of an invalid item: enough to know its requests. An unreadable condition is omitted, so
/// that the outline matches more requests than the item, never fewer. None if the item does not say which requests it
/// gets, and for kinds without requests of their own.
pub fn outline(key: &ResourceKey, value: &Value) -> Option<AnyResource> {
    if !has_place(key.kind) {
        return None;
    }
    let mut members = value.as_object().cloned().unwrap_or_default();
    for name in NAMES {
        if let Some(list) = members.get_mut(name).and_then(Value::as_array_mut) {
            list.retain(Value::is_string);
        }
    }
    let read = |members: &Object| typed(key.kind, &key.id, &Value::Object(members.clone())).ok();
    let outline = read(&members).or_else(|| {
        let mut readable = Object::new();
        for (name, member) in members {
            readable.insert(name.clone(), member);
            if read(&readable).is_none() {
                readable.shift_remove(&name);
            }
        }
        read(&readable)
    })?;
    let has_place = match &outline {
        AnyResource::Route(route) => route.uri.is_some() || !route.uris.is_empty(),
        AnyResource::Ssl(ssl) => ssl.names().next().is_some(),
        _ => true,
    };
    has_place.then_some(outline)
}

/// Returns whether an invalid item says which requests it gets. A global rule applies to all requests, so it must name
/// its plugins. A stream route without a condition would get all sessions.
#[must_use]
pub fn tells_whom(key: &ResourceKey, value: &Value) -> bool {
    const CONDITIONS: [&str; 7] =
        ["remote_addr", "server_addr", "server_port", "sni", "alpn", "tls", "protocol"];
    match key.kind {
        Kind::GlobalRule => value.get("plugins").is_some_and(Value::is_object),
        Kind::StreamRoute => {
            let is_readable = |name: &str, value: &Value| {
                let alone = Object::from_iter([(name.to_owned(), value.clone())]);
                typed(key.kind, &key.id, &Value::Object(alone)).is_ok()
            };
            value.is_object()
                && CONDITIONS.iter().all(|name| value.get(name).is_none_or(|value| is_readable(name, value)))
        }
        _ => true,
    }
}

/// Returns whether `last`, the last valid form, may replace the invalid form `written`. It must not get requests that
/// the new form would not get, and must not check them less. Configurations of plugins in both forms are not compared,
/// except a consumer's, which contain its keys.
pub fn may_stand_in(last: &AnyResource, written: &AnyResource) -> bool {
    match (last, written) {
        (AnyResource::Route(last), AnyResource::Route(written)) => route_may(last, written),
        (AnyResource::Service(last), AnyResource::Service(written)) => {
            has_plugins(&last.plugins, &written.plugins)
                && last.hosts == written.hosts
                && last.script == written.script
                && has_tls(last.upstream.as_deref(), written.upstream.as_deref())
        }
        (AnyResource::Upstream(last), AnyResource::Upstream(written)) => has_tls(Some(last), Some(written)),
        (AnyResource::Consumer(last), AnyResource::Consumer(written)) => {
            last.plugins == written.plugins && last.group_id == written.group_id
        }
        (AnyResource::Credential(last), AnyResource::Credential(written)) => last.plugins == written.plugins,
        (AnyResource::ConsumerGroup(last), AnyResource::ConsumerGroup(written)) => {
            has_plugins(&last.plugins, &written.plugins)
        }
        (AnyResource::GlobalRule(last), AnyResource::GlobalRule(written)) => {
            has_plugins(&last.plugins, &written.plugins)
        }
        (AnyResource::PluginConfig(last), AnyResource::PluginConfig(written)) => {
            has_plugins(&last.plugins, &written.plugins)
        }
        (AnyResource::Ssl(last), AnyResource::Ssl(written)) => ssl_may(last, written),
        (AnyResource::StreamRoute(last), AnyResource::StreamRoute(written)) => stream_may(last, written),
        _ => true,
    }
}

fn route_may(last: &Route, written: &Route) -> bool {
    let same_place = (&last.uri, &last.uris, &last.host, &last.hosts, last.priority, &last.listeners)
        == (&written.uri, &written.uris, &written.host, &written.hosts, written.priority, &written.listeners);
    let same_conditions = last.methods == written.methods
        && (&last.remote_addr, &last.remote_addrs) == (&written.remote_addr, &written.remote_addrs)
        && (&last.vars, &last.filter_func, &last.script)
            == (&written.vars, &written.filter_func, &written.script)
        && (&last.consumes, &last.produces) == (&written.consumes, &written.produces)
        && (last.internal, &last.set) == (written.internal, &written.set)
        && last.status == written.status;
    let names = |id: &Option<Id>, other: &Option<Id>| other.is_none() || id == other;
    same_place
        && same_conditions
        && names(&last.service_id, &written.service_id)
        && names(&last.plugin_config_id, &written.plugin_config_id)
        && has_plugins(&last.plugins, &written.plugins)
        && has_tls(last.upstream.as_deref(), written.upstream.as_deref())
}

fn stream_may(last: &StreamRoute, written: &StreamRoute) -> bool {
    let place = |route: &StreamRoute| {
        let StreamRoute { remote_addr, server_addr, server_port, sni, alpn, tls, .. } = route.clone();
        (remote_addr, server_addr, server_port, sni, alpn, tls.unwrap_or_default())
    };
    place(last) == place(written)
        && (written.service_id.is_none() || last.service_id == written.service_id)
        && has_plugins(&last.plugins, &written.plugins)
        && has_tls(last.upstream.as_deref(), written.upstream.as_deref())
}

fn ssl_may(last: &Ssl, written: &Ssl) -> bool {
    let names =
        |ssl: &Ssl| -> std::collections::BTreeSet<String> { ssl.names().map(str::to_owned).collect() };
    let asks_as_much = written.client.is_none() || last.client == written.client;
    let offers_as_little = written.ssl_protocols.is_empty() || last.ssl_protocols == written.ssl_protocols;
    asks_as_much
        && offers_as_little
        && (last.kind, last.status) == (written.kind, written.status)
        && names(last).is_superset(&names(written))
}

/// Returns whether a form has every plugin of the other form.
fn has_plugins(last: &Plugins, written: &Plugins) -> bool {
    written.keys().all(|name| last.contains_key(name))
}

/// Returns whether nodes must prove the same as in the other form.
fn has_tls(last: Option<&Upstream>, written: Option<&Upstream>) -> bool {
    let tls = |upstream: Option<&Upstream>| upstream.and_then(|upstream| upstream.tls.clone());
    let written = tls(written);
    written.is_none() || tls(last) == written
}
