//! Rules between resources: references of a write, uniqueness, and use.

use serde_json::{Map, Value};
use sigma_config::kind::{Kind, ResourceKey};
use sigma_config::resources::Scheme;
use sigma_config::stored;
use sigma_schema::validation::is_secret_reference;

use super::AdminState;
use super::collection::{Class, ResourcePath};
use super::credentials;
use super::read::value_of;
use super::reply::Refusal;
use crate::store::{Condition, Record};
use axum::http::StatusCode;

/// Whether a write of this class looks at more than the resources that it names.
pub(crate) fn looks_around(class: Class) -> bool {
    matches!(class, Class::Resource(Kind::Consumer | Kind::Credential | Kind::GlobalRule) | Class::Decoration)
}

/// Returns an id as text; a number is converted to its digits: 1 and 1.0 are one number.
pub(crate) fn id_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if number.is_f64() => {
            let whole = number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9e15);
            Some(whole.map_or_else(|| number.to_string(), |n| (n as i64).to_string()))
        }
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Checks the references of a resource; returns the conditions that must still hold when it is written.
pub(crate) async fn on_write(
    state: &AdminState,
    place: &ResourcePath,
    key: &str,
    value: &Value,
) -> Result<Vec<Condition>, Refusal> {
    match place.collection.class {
        Class::Resource(kind) => {
            match kind {
                Kind::Consumer | Kind::Credential => unique_credentials(state, key, value).await?,
                Kind::GlobalRule => unique_global_plugins(state, key, value).await?,
                Kind::Upstream => {
                    if value.get("members").is_some() {
                        no_member(state, key).await?;
                    }
                    no_sessions(state, key, value).await?;
                }
                _ => {}
            }
            equal_groups(state, key, value).await?;
            let mut conditions = references(state, kind, key, value).await?;
            if kind == Kind::Credential {
                conditions.push(parent(state, place, Kind::Consumer, "consumer not found").await?);
            }
            Ok(conditions)
        }
        Class::Decoration => {
            let exists = parent(state, place, Kind::Service, "service not found").await?;
            unique_field_path(state, place, key, value).await?;
            Ok(vec![exists])
        }
    }
}

fn unchanged(record: &Record) -> Condition {
    Condition::ModifiedAt { key: record.key.clone(), revision: record.modified }
}

async fn parent(
    state: &AdminState,
    place: &ResourcePath,
    kind: Kind,
    missing: &str,
) -> Result<Condition, Refusal> {
    let name = place.parent.as_deref().unwrap_or_default();
    let record = state.store.get(&ResourceKey::new(kind, name).to_string()).await;
    let record = record.map_err(|error| {
        if kind == Kind::Consumer {
            return Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "failed to get the consumer");
        }
        Refusal::from(error)
    })?;
    record.as_ref().map(unchanged).ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, missing))
}

/// Every resource that is referred to must exist, and be of the right sort.
async fn references(
    state: &AdminState,
    kind: Kind,
    key: &str,
    value: &Value,
) -> Result<Vec<Condition>, Refusal> {
    let mut conditions = Vec::new();
    for reference in stored::references(kind, value) {
        let target = ResourceKey::new(reference.kind, reference.id.as_str()).to_string();
        let prefix = &reference.message_prefix;
        if target == key {
            return Err(Refusal::bad(match kind {
                Kind::StreamRoute => "stream route can not set itself as superior_id",
                _ => "an upstream can not fall back to itself",
            }));
        }
        let record = match state.store.get(&target).await {
            Ok(Some(record)) => record,
            Ok(None) => return Err(Refusal::bad(format_args!("{prefix}, response code: 404"))),
            Err(error) => return Err(Refusal::bad(format_args!("{prefix}: {error}"))),
        };
        match reference.kind {
            Kind::Ssl if value_of(&record)?.get("type").and_then(Value::as_str) != Some("client") => {
                return Err(Refusal::bad(stored::wrong_ssl_type(&reference.id)));
            }
            Kind::Upstream if kind == Kind::StreamRoute => {
                stream_scheme(reference.id.as_str(), &value_of(&record)?)?;
            }
            Kind::Upstream => {
                let upstream = value_of(&record)?;
                http_scheme(&reference.id, &upstream)?;
                if reference.is_to_member() && upstream.get("members").is_some() {
                    let text = stored::nested_members(&reference.id);
                    return Err(Refusal::bad(format_args!(
                        "{text}: list the members of that upstream instead"
                    )));
                }
            }
            Kind::StreamRoute => same_protocol(value, &value_of(&record)?)?,
            _ => {}
        }
        conditions.push(unchanged(&record));
    }
    Ok(conditions)
}

/// An upstream that is to have members may be no member itself.
async fn no_member(state: &AdminState, key: &str) -> Result<(), Refusal> {
    let id = key.rsplit('/').next().unwrap_or_default();
    let members = [
        (Kind::Upstream, Use::Member("/members")),
        (Kind::Route, Use::Member("/upstream/members")),
        (Kind::Service, Use::Member("/upstream/members")),
    ];
    for (kind, one) in members {
        for record in state.store.list(&format!("{}/", kind.section())).await? {
            if holds(&record.value, id) && value_of(&record).is_ok_and(|value| one.names(&value, id)) {
                return Err(Refusal::bad(format_args!(
                    "upstream [{id}] is a member of [{}], so it cannot have members: list them there instead",
                    record.key
                )));
            }
        }
    }
    Ok(())
}

/// An upstream that a stream route has keeps to a scheme that carries sessions.
async fn no_sessions(state: &AdminState, key: &str, value: &Value) -> Result<(), Refusal> {
    let id = key.rsplit('/').next().unwrap_or_default();
    let Err(refusal) = stream_scheme(id, value) else { return Ok(()) };
    for record in state.store.list(&format!("{}/", Kind::StreamRoute.section())).await? {
        let uses = |value: Value| Use::Field("upstream_id").names(&value, id);
        if holds(&record.value, id) && value_of(&record).is_ok_and(uses) {
            return Err(refusal);
        }
    }
    Ok(())
}

/// Stream routes are for sessions; an upstream of another kind would serve nothing there.
fn stream_scheme(id: &str, upstream: &Value) -> Result<(), Refusal> {
    let scheme = upstream.get("scheme").cloned().unwrap_or_default();
    match serde_json::from_value::<Scheme>(scheme.clone()) {
        Ok(known) if !known.carries_sessions() => {
            let scheme = scheme.as_str().unwrap_or_default();
            Err(Refusal::bad(format_args!(
                "upstream [{id}] has the scheme {scheme}: {}",
                Scheme::NO_SESSIONS
            )))
        }
        _ => Ok(()),
    }
}

/// Routes and services are for HTTP; an upstream of another kind would serve nothing there.
fn http_scheme(id: &str, upstream: &Value) -> Result<(), Refusal> {
    match upstream.get("scheme").and_then(Value::as_str) {
        Some(scheme @ ("tcp" | "udp" | "tls")) => Err(Refusal::bad(format_args!(
            "upstream [{id}] has the scheme {scheme}, which an HTTP route cannot use: choose an upstream with http, https, grpc, grpcs or kafka"
        ))),
        _ => Ok(()),
    }
}

fn same_protocol(subordinate: &Value, superior: &Value) -> Result<(), Refusal> {
    let name = |value: &Value| {
        let name = value.get("protocol").and_then(|protocol| protocol.get("name"));
        name.and_then(Value::as_str).unwrap_or("nil").to_owned()
    };
    let (subordinate, superior) = (name(subordinate), name(superior));
    if subordinate == superior {
        return Ok(());
    }
    Err(Refusal::bad(format_args!(
        "protocol mismatch: subordinate protocol [{subordinate}] does not match superior protocol [{superior}]"
    )))
}

fn plugins(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.get("plugins").and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

/// Checks that the identity of a consumer is unique.
async fn unique_credentials(state: &AdminState, key: &str, value: &Value) -> Result<(), Refusal> {
    let username = |id: &str| id.split('/').next().unwrap_or_default().to_owned();
    let own_name = ResourceKey::parse(key).map(|key| username(&key.id));
    for (plugin, attribute, own) in credentials::identities(value, &*state.plugins) {
        if is_secret_reference(own) {
            continue;
        }
        let owners =
            state.callers.credentials.owners(&state.store, &state.callers.reader, plugin, own).await?;
        let Some(other) = owners.into_iter().find(|owner| Some(username(&owner.id)) != own_name) else {
            continue;
        };
        let whose = match other.id.rsplit_once("/credentials/") {
            Some((name, id)) => format!("credential: {id} of consumer: {name}"),
            None => format!("consumer: {}", other.id),
        };
        return Err(Refusal::bad(format_args!(
            "duplicate {attribute} of plugin {plugin} found with {whose}"
        )));
    }
    Ok(())
}

/// A plugin may stand in one global rule only.
async fn unique_global_plugins(state: &AdminState, key: &str, value: &Value) -> Result<(), Refusal> {
    for record in state.store.list("global_rules/").await? {
        let Some(other) = ResourceKey::parse(&record.key).filter(|_| record.key != key) else { continue };
        let Ok(present) = value_of(&record) else { continue };
        let shared = plugins(value).find(|(name, _)| plugins(&present).any(|(other, _)| other == *name));
        if let Some((name, _)) = shared {
            return Err(Refusal::bad(stored::duplicate_global_plugin(name, &other.id)));
        }
    }
    Ok(())
}

/// The kinds whose plugins run, and may count for a group.
const WITH_PLUGINS: [Kind; 6] =
    [Kind::Route, Kind::Service, Kind::PluginConfig, Kind::ConsumerGroup, Kind::GlobalRule, Kind::Consumer];

/// All configurations of a plugin that name one group are equal.
async fn equal_groups(state: &AdminState, key: &str, value: &Value) -> Result<(), Refusal> {
    for (name, conf) in plugins(value) {
        let Some(own) = state.plugins.group(name, conf) else { continue };
        let field = state.plugins.group_field(name).unwrap_or_default();
        for kind in WITH_PLUGINS {
            for record in state.store.list(&format!("{}/", kind.section())).await? {
                // Credentials have keys below their consumer's key, and no groups.
                if record.key == key || !holds(&record.value, name) {
                    continue;
                }
                let Ok(mut other) = value_of(&record) else { continue };
                state.open(kind, &mut other);
                let conf = other.get("plugins").and_then(|plugins| plugins.get(name));
                let other = conf.and_then(|conf| state.plugins.group(name, conf));
                if other.is_some_and(|other| other.get(field) == own.get(field) && other != own) {
                    return Err(Refusal::bad(format_args!(
                        "failed to check the configuration of plugin {name} err: group conf mismatched"
                    )));
                }
            }
        }
    }
    Ok(())
}

async fn unique_field_path(
    state: &AdminState,
    place: &ResourcePath,
    key: &str,
    value: &Value,
) -> Result<(), Refusal> {
    let own = value.get("field_path");
    for record in state.store.list(&place.prefix()).await? {
        if record.key == key || value_of(&record)?.get("field_path") != own {
            continue;
        }
        let path = own.and_then(Value::as_str).unwrap_or_default();
        let id = record.key.rsplit('/').next().unwrap_or_default();
        return Err(Refusal::bad(format_args!(
            "field_path {path} is already decorated on this service by [{id}]"
        )));
    }
    Ok(())
}

/// How one resource uses another.
#[derive(Clone, Copy)]
enum Use {
    /// A field of the resource.
    Field(&'static str),
    /// A rule of `traffic-split`; the text is the message's word.
    TrafficSplit(&'static str),
    /// A field of a plugin.
    Plugin(&'static str, &'static str),
    /// `protocol.superior_id`.
    Superior,
    /// A field within it, by its pointer.
    At(&'static str),
    /// A member of the list with this pointer.
    Member(&'static str),
}

impl Use {
    fn names(self, value: &Value, id: &str) -> bool {
        let is = |value: Option<&Value>| value.and_then(id_text).is_some_and(|text| text == id);
        let plugin = |name: &str| value.get("plugins")?.get(name);
        match self {
            Use::Field(field) => is(value.get(field)),
            Use::At(pointer) => is(value.pointer(pointer)),
            Use::Member(pointer) => {
                let list = value.pointer(pointer).and_then(Value::as_array);
                list.into_iter().flatten().any(|member| is(member.get("upstream_id")))
            }
            Use::Superior => is(value.get("protocol").and_then(|protocol| protocol.get("superior_id"))),
            Use::Plugin(name, field) => is(plugin(name).and_then(|conf| conf.get(field))),
            Use::TrafficSplit(_) => {
                let list = |value: Option<&Value>, key: &str| {
                    value.and_then(|value| value.get(key)?.as_array().cloned()).unwrap_or_default()
                };
                let rules = list(plugin("traffic-split"), "rules");
                let mut choices = rules.iter().flat_map(|rule| list(Some(rule), "weighted_upstreams"));
                choices.any(|choice| is(choice.get("upstream_id")))
            }
        }
    }

    fn message(self, what: &str, user: &str, id: &str) -> String {
        match self {
            Use::TrafficSplit(word) => {
                format!("can not delete this {what}, plugin in {word} [{id}] is still using it now")
            }
            Use::Superior => {
                format!("can not delete this {what}, stream route [{id}] is still using it as superior_id")
            }
            _ => format!("can not delete this {what}, {user} [{id}] is still using it now"),
        }
    }
}

/// A kind that may use another: the kind, the word for it, how.
type User = (Kind, &'static str, &'static [Use]);

/// Returns the possible users of a kind of resource: their name, then the users, in the order of the search.
fn users(kind: Kind) -> (&'static str, &'static [User]) {
    const UPSTREAM: Use = Use::Field("upstream_id");
    /// Of the upstream within a route or a service.
    const INLINE: [Use; 2] =
        [Use::Member("/upstream/members"), Use::At("/upstream/circuit_breaker/fallback/upstream_id")];
    const PROTO: Use = Use::Plugin("grpc-transcode", "proto_id");
    match kind {
        Kind::Upstream => (
            "upstream",
            &[
                (Kind::Route, "route", &[UPSTREAM, Use::TrafficSplit("route"), INLINE[0], INLINE[1]]),
                (Kind::Service, "service", &[UPSTREAM, Use::TrafficSplit("service"), INLINE[0], INLINE[1]]),
                (
                    Kind::Upstream,
                    "upstream",
                    &[Use::Member("/members"), Use::At("/circuit_breaker/fallback/upstream_id")],
                ),
                (Kind::PluginConfig, "plugin_config", &[Use::TrafficSplit("plugin_config")]),
                (Kind::Consumer, "consumer", &[Use::TrafficSplit("consumer")]),
                (Kind::ConsumerGroup, "consumer_group", &[Use::TrafficSplit("consumer_group")]),
                (Kind::GlobalRule, "global_rules", &[Use::TrafficSplit("global_rules")]),
            ],
        ),
        Kind::Service => (
            "service directly",
            &[
                (Kind::Route, "route", &[Use::Field("service_id")]),
                (Kind::StreamRoute, "stream_route", &[Use::Field("service_id")]),
            ],
        ),
        Kind::PluginConfig => ("plugin config", &[(Kind::Route, "route", &[Use::Field("plugin_config_id")])]),
        Kind::ConsumerGroup => ("consumer group", &[(Kind::Consumer, "consumer", &[Use::Field("group_id")])]),
        Kind::Ssl => (
            "ssl",
            &[
                (Kind::Upstream, "upstream", &[Use::At("/tls/client_cert_id")]),
                (Kind::Route, "route", &[Use::At("/upstream/tls/client_cert_id")]),
                (Kind::Service, "service", &[Use::At("/upstream/tls/client_cert_id")]),
            ],
        ),
        Kind::Proto => ("proto", &[(Kind::Route, "route", &[PROTO]), (Kind::Service, "service", &[PROTO])]),
        Kind::StreamRoute => {
            ("stream route directly", &[(Kind::StreamRoute, "stream route", &[Use::Superior])])
        }
        _ => ("", &[]),
    }
}

/// Refuses the deletion of what another resource uses.
pub(crate) async fn on_delete(state: &AdminState, place: &ResourcePath, id: &str) -> Result<(), Refusal> {
    let Some(kind) = place.collection.kind() else { return Ok(()) };
    let (what, users) = users(kind);
    for (user, word, uses) in users {
        for record in state.store.list(&format!("{}/", user.section())).await? {
            // Most records do not even hold the text of the id.
            if !holds(&record.value, id) {
                continue;
            }
            let Some(other) = ResourceKey::parse(&record.key).filter(|key| key.kind == *user) else {
                continue;
            };
            let Ok(value) = value_of(&record) else { continue };
            if let Some(found) = uses.iter().find(|one| one.names(&value, id)) {
                return Err(Refusal::bad(found.message(what, word, &other.id)));
            }
        }
    }
    Ok(())
}

/// Whether a text occurs in JSON; ids have no character that JSON would escape.
fn holds(json: &[u8], id: &str) -> bool {
    id.is_empty() || memchr::memmem::find(json, id.as_bytes()).is_some()
}

/// The keys of what disappears together with a resource.
pub(crate) async fn dependents(
    state: &AdminState,
    place: &ResourcePath,
    id: &str,
) -> Result<Vec<String>, Refusal> {
    let below = match place.collection.class {
        Class::Resource(Kind::Consumer) => format!("consumers/{id}/credentials/"),
        Class::Resource(Kind::Service) => format!("services/{id}/{}/", super::collection::DECORATIONS),
        _ => return Ok(Vec::new()),
    };
    Ok(state.store.list(&below).await?.into_iter().map(|record| record.key).collect())
}
