//! Pairs of settings that are correct separately but harmful together. Each pair is a row of [`PAIRS`].

use serde_json::Value;

use crate::plugins::is_disabled;
use crate::rules::Object;
use sigma_schema::plugins::PluginSchemas;
use sigma_schema::problem::{Problem, member};

/// One half of a pair, found in a resource.
pub(super) struct Part<'v> {
    /// Its pointer.
    pub(super) place: String,
    /// The name of the plugin, or of the field.
    name: &'v str,
    value: &'v Value,
}

/// One side of a pair.
enum Side {
    /// A plugin with one of these names.
    Plugin(&'static [&'static str]),
    /// A cache of responses: `cache`, or a plugin.
    Cache,
    /// A plugin that identifies users.
    Persons,
    /// A plugin that identifies users without a name for the cache.
    NamelessPersons,
    /// A plugin that finds the consumer by a credential in the request.
    Consumers,
    /// A field of the resource; several names are a path to an inner field.
    Field(&'static [&'static str]),
    /// `methods` that leave PURGE out.
    WithoutPurge,
    /// None of these. Only the merged view of a route shows it, since each may come from another resource.
    Without(&'static [Side]),
}

/// A row of the table.
struct Pair {
    code: &'static str,
    one: Side,
    other: Side,
    /// Returns whether the two are harmful as configured.
    harms: fn(&Part<'_>, &Part<'_>, &dyn PluginSchemas) -> bool,
    /// The field of `other` that the warning names; empty for `other` itself.
    field: &'static str,
    /// The text, with `{one}` and `{other}` for the names.
    message: &'static str,
    hint: &'static str,
}

/// The plugins that store responses.
const CACHES: [&str; 2] = ["proxy-cache", "graphql-proxy-cache"];

/// Log clients in.
const LOGINS: &[Side] = &[Side::Persons, Side::Consumers];

/// Keep strangers from a method of a route.
const GUARDS: &[Side] = &[
    Side::Persons,
    Side::Consumers,
    Side::Plugin(&["ip-restriction", "rbac", "wolf-rbac", "chaitin-waf"]),
    Side::Field(&["remote_addr"]),
    Side::Field(&["remote_addrs"]),
    Side::Field(&["vars"]),
    Side::WithoutPurge,
];

/// Keep strangers from the tunnels of a route.
const PROXY_GUARDS: &[Side] = &[
    Side::Persons,
    Side::Consumers,
    Side::Plugin(&["ip-restriction", "rbac", "wolf-rbac"]),
    Side::Field(&["remote_addr"]),
    Side::Field(&["remote_addrs"]),
    Side::Field(&["vars"]),
];

/// The value of a part that is absent.
static NOTHING: Value = Value::Null;

const ALWAYS: fn(&Part<'_>, &Part<'_>, &dyn PluginSchemas) -> bool = |_, _, _| true;

const PAIRS: &[Pair] = &[
    Pair {
        code: "shared_cache",
        one: Side::Persons,
        other: Side::Cache,
        harms: |_, cache, _| !isolates(cache),
        field: "consumer_isolation",
        message: "responses for one user of {one} are served to other users",
        hint: "leave `consumer_isolation` out, unless responses are the same for all",
    },
    Pair {
        code: "shared_cache",
        one: Side::NamelessPersons,
        other: Side::Cache,
        harms: |_, cache, _| isolates(cache),
        field: "",
        message: "{one} does not name users: only responses with `public` or `s-maxage` are stored",
        hint: "let the node send them",
    },
    Pair {
        code: "shared_cache",
        one: Side::Plugin(&["traffic-split"]),
        other: Side::Cache,
        harms: |split, cache, _| !tells_versions_apart(cache, split.value),
        field: "",
        message: "the responses of one upstream of {one} are served to clients of the others: the key does not distinguish them",
        hint: "put the variables of the rules into the key, for example $http_x_canary; where weights decide, keep one of the two",
    },
    Pair {
        code: "shared_cache",
        one: Side::Field(&["upstream", "members"]),
        other: Side::Cache,
        harms: |members, _, _| have_weights(members.value),
        field: "",
        message: "the responses of one member of the upstream are served to clients of the others: the key does not distinguish them",
        hint: "keep one of the two, unless all members respond alike",
    },
    Pair {
        code: "shared_cookies",
        one: Side::Plugin(&["proxy-cache"]),
        other: Side::Field(&["plugins", "proxy-cache", "cache_set_cookie"]),
        harms: |_, cookies, _| cookies.value == &Value::Bool(true),
        field: "",
        message: "the cookies that a node sets for one client are given to others",
        hint: "leave `cache_set_cookie` out, unless the cookies are the same for all",
    },
    Pair {
        code: "two_logins",
        one: Side::Consumers,
        other: Side::Consumers,
        harms: ALWAYS,
        field: "",
        message: "a request needs the credentials of both {one} and {other}",
        hint: "put the two into the plugin multi-auth, if one is enough",
    },
    Pair {
        code: "preflight",
        one: Side::Plugin(&["cors"]),
        other: Side::Field(&["methods"]),
        harms: |_, methods, _| {
            let list = methods.value.as_array();
            list.is_some_and(|list| !list.is_empty() && !list.iter().any(|method| method == "OPTIONS"))
        },
        field: "",
        message: "preflight requests do not reach the plugin cors, so that browsers may not call the route",
        hint: "add OPTIONS",
    },
    Pair {
        code: "preflight",
        one: Side::Consumers,
        other: Side::Plugin(&["cors"]),
        harms: runs_before,
        field: "_meta",
        message: "{one} runs before cors and refuses preflight requests, which have no credentials",
        hint: "leave `_meta.priority` out, or give cors the higher one",
    },
    Pair {
        code: "lost_session",
        one: Side::Plugin(&["traffic-split"]),
        other: Side::Field(&["upstream", "session_affinity"]),
        harms: |split, _, _| has_weights(split.value),
        field: "",
        message: "sessions do not stay on one upstream: {one} chooses by weight for each request",
        hint: "choose the upstream by a field or a cookie of the client instead of by weight",
    },
    Pair {
        code: "lost_session",
        one: Side::Plugin(&["traffic-split"]),
        other: Side::Field(&["upstream", "stick_table"]),
        harms: |split, _, _| has_weights(split.value),
        field: "",
        message: "sessions do not stay on one upstream: {one} chooses by weight for each request",
        hint: "choose the upstream by a field or a cookie of the client instead of by weight",
    },
    Pair {
        code: "copied_credentials",
        one: Side::Consumers,
        other: Side::Plugin(&["proxy-mirror"]),
        harms: |login, _, _| login.value.get("hide_credentials") != Some(&Value::Bool(true)),
        field: "",
        message: "the mirror gets the credentials that {one} asks clients for",
        hint: "set `hide_credentials: true` there, unless the mirror may have them",
    },
    Pair {
        code: "no_effect",
        one: Side::Field(&["upstream", "pass_host"]),
        other: Side::Plugin(&["proxy-rewrite"]),
        harms: |pass_host, rewrite, _| pass_host.value != "pass" && rewrite.value.get("host").is_some(),
        field: "host",
        message: "`host` has no effect: `pass_host` of the upstream decides",
        hint: "set `pass_host: pass` there, or leave `host` out",
    },
    Pair {
        code: "refuses_all",
        one: Side::Plugin(&["grpc-transcode"]),
        other: Side::Plugin(&["grpc-web"]),
        harms: ALWAYS,
        field: "",
        message: "grpc-web responds 400 to requests for {one}",
        hint: "give each of the two its own route",
    },
    Pair {
        code: "refuses_all",
        one: Side::Plugin(&["graphql-limit-count", "graphql-proxy-cache"]),
        other: Side::Plugin(&["degraphql"]),
        harms: runs_before,
        field: "",
        message: "{one} runs before degraphql has made a GraphQL request, and answers 400",
        hint: "give degraphql a higher `_meta.priority` than the other one",
    },
    Pair {
        code: "carried_out_twice",
        one: Side::Field(&["retry_policy", "hedging"]),
        other: Side::Field(&["retry_policy", "methods"]),
        harms: |_, methods, _| changes_something(methods.value),
        field: "",
        message: "two nodes may execute the same request if the first one is only slow",
        hint: "leave POST and PATCH out, or `hedging`",
    },
    Pair {
        code: "carried_out_twice",
        one: Side::Field(&["upstream", "retry_policy", "hedging"]),
        other: Side::Field(&["upstream", "retry_policy", "methods"]),
        harms: |_, methods, _| changes_something(methods.value),
        field: "",
        message: "two nodes may execute the same request if the first one is only slow",
        hint: "leave POST and PATCH out, or `hedging`",
    },
    Pair {
        code: "no_login",
        one: Side::Without(LOGINS),
        other: Side::Plugin(&["limit-count", "limit-req", "limit-conn", "graphql-limit-count"]),
        harms: |_, limit, _| counts_consumers(limit.value),
        field: "",
        message: "{other} counts consumers, and no plugin logs clients in",
        hint: "add a login such as key-auth, or leave `key` out to count client addresses",
    },
    Pair {
        code: "no_login",
        one: Side::Without(LOGINS),
        other: Side::Plugin(&["consumer-restriction", "acl"]),
        harms: |_, rule, _| judges_consumers(rule.value),
        field: "",
        message: "{other} refuses every request: no plugin logs clients in",
        hint: "add a login such as key-auth",
    },
    Pair {
        code: "open_purge",
        one: Side::Without(GUARDS),
        other: Side::Cache,
        harms: |_, cache, _| {
            cache.name == "proxy-cache" || cache.value.get("purge") == Some(&Value::Bool(true))
        },
        field: "",
        message: "every client can remove stored responses with the method PURGE",
        hint: "list `methods` without PURGE, or admit operators alone, for example with ip-restriction",
    },
    Pair {
        code: "open_proxy",
        one: Side::Without(PROXY_GUARDS),
        other: Side::Plugin(&["forward-proxy"]),
        harms: |_, proxy, _| has_all_hosts(proxy.value),
        field: "hosts",
        message: "an open proxy: every client reaches any host in the name of this gateway",
        hint: "add a login such as basic-auth, or ip-restriction, or list the hosts",
    },
];

/// Returns the warnings about pairs in a resource; `value` may also be the merged view of several resources. `are_told`
/// returns whether a pair of two places belongs here; the first is None if the pair is one with an absent part.
pub(super) fn harmful(
    value: &Object,
    plugins: &dyn PluginSchemas,
    are_told: &dyn Fn(Option<&str>, &str) -> bool,
) -> Vec<Problem> {
    let mut found = Vec::new();
    for pair in PAIRS {
        let is_absent = matches!(pair.one, Side::Without(_));
        let (ones, others) = (parts(&pair.one, value, plugins), parts(&pair.other, value, plugins));
        for (index, one) in ones.iter().enumerate() {
            // Two of the same kind are one pair, in either order.
            let is_same = matches!((&pair.one, &pair.other), (Side::Consumers, Side::Consumers));
            let others = if is_same { others.get(index + 1..).unwrap_or_default() } else { &others[..] };
            for other in others {
                let first = (!is_absent).then_some(one.place.as_str());
                if !are_told(first, &other.place) || !(pair.harms)(one, other, plugins) {
                    continue;
                }
                let place = match pair.field {
                    "" => other.place.clone(),
                    field => member(&other.place, field),
                };
                let message = pair.message.replace("{one}", one.name).replace("{other}", other.name);
                found.push(Problem::new(place, pair.code, message).hint(pair.hint));
            }
        }
    }
    found
}

fn parts<'v>(side: &Side, value: &'v Object, schemas: &dyn PluginSchemas) -> Vec<Part<'v>> {
    let all = value.get("plugins").and_then(Value::as_object).into_iter().flatten();
    let enabled = all.filter(|(_, conf)| !is_disabled(conf));
    let chosen = |is_one: &dyn Fn(&str) -> bool| -> Vec<Part<'v>> {
        let chosen = enabled.clone().filter(|(name, _)| is_one(name));
        chosen.map(|(name, conf)| Part { place: member("plugins", name), name, value: conf }).collect()
    };
    match side {
        Side::Plugin(names) => chosen(&|name| names.contains(&name)),
        Side::Persons => chosen(&|name| schemas.identifies(name)),
        Side::NamelessPersons => chosen(&|name| schemas.identifies(name) && !schemas.names_persons(name)),
        Side::Consumers => chosen(&|name| schemas.unique_attribute(name).is_some()),
        Side::Cache => {
            let mut parts = chosen(&|name| CACHES.contains(&name));
            let own = value.get("cache").filter(|cache| cache.is_object());
            parts.extend(own.map(|cache| Part { place: "cache".to_owned(), name: "cache", value: cache }));
            parts
        }
        Side::WithoutPurge => {
            let methods = value.get("methods").filter(|methods| leave_purge_out(methods));
            let part = |methods| Part { place: "methods".to_owned(), name: "methods", value: methods };
            methods.map(part).into_iter().collect()
        }
        Side::Without(sides) if sides.iter().all(|side| parts(side, value, schemas).is_empty()) => {
            vec![Part { place: String::new(), name: "", value: &NOTHING }]
        }
        Side::Without(_) => Vec::new(),
        Side::Field(names) => {
            let Some((first, inner)) = names.split_first() else { return Vec::new() };
            let found = inner.iter().try_fold(value.get(*first), |at, name| Some(at?.get(name)));
            let place = names.iter().fold(String::new(), |place, name| member(&place, name));
            let name = names.last().copied().unwrap_or_default();
            found.flatten().map(|value| Part { place, name, value }).into_iter().collect()
        }
    }
}

fn isolates(cache: &Part<'_>) -> bool {
    cache.value.get("consumer_isolation") != Some(&Value::Bool(false))
}

/// Returns whether `one` runs before `other`, with their configured priorities.
fn runs_before(one: &Part<'_>, other: &Part<'_>, plugins: &dyn PluginSchemas) -> bool {
    let priority = |part: &Part<'_>| {
        let written = part.value.get("_meta").and_then(|meta| meta.get("priority")?.as_i64());
        written.or_else(|| Some(plugins.standing(part.name)?.priority.into()))
    };
    matches!((priority(one), priority(other)), (Some(one), Some(other)) if one > other)
}

/// Returns whether a request with one of these methods must not be executed twice.
fn changes_something(methods: &Value) -> bool {
    methods.as_array().is_some_and(|list| list.iter().any(|method| method == "POST" || method == "PATCH"))
}

/// Returns whether a proxy opens tunnels to any host.
fn has_all_hosts(proxy: &Value) -> bool {
    proxy.get("hosts").and_then(Value::as_array).is_some_and(|hosts| hosts.iter().any(|host| host == "*"))
}

/// Returns whether methods are listed, and PURGE is not one of them.
fn leave_purge_out(methods: &Value) -> bool {
    methods.as_array().is_some_and(|list| !list.is_empty() && !list.iter().any(|method| method == "PURGE"))
}

/// Returns whether the key of a limit is the consumer. With a `key_type` of combinations and in `rules` it is a text
/// with variables.
fn counts_consumers(limit: &Value) -> bool {
    const NAME: &str = "consumer_name";
    let key = |limit: &Value| limit.get("key").and_then(Value::as_str).unwrap_or_default().to_owned();
    let has_variable = |key: String| key.contains("$consumer_name") || key.contains("${consumer_name");
    let of_rules = limit.get("rules").and_then(Value::as_array).into_iter().flatten();
    let is_key = match limit.get("key_type").and_then(Value::as_str) {
        None | Some("var") => key(limit) == NAME,
        Some("var_combination") => has_variable(key(limit)),
        Some(_) => false,
    };
    is_key || of_rules.map(key).any(has_variable)
}

/// Returns whether a rule is about consumers, and not about services or routes.
fn judges_consumers(rule: &Value) -> bool {
    !matches!(rule.get("type").and_then(Value::as_str), Some("service_id" | "route_id"))
}

fn rules(split: &Value) -> impl Iterator<Item = &Value> {
    split.get("rules").and_then(Value::as_array).into_iter().flatten()
}

/// Returns the entries of a rule that get requests.
fn entries(rule: &Value) -> Vec<&Value> {
    let entries = rule.get("weighted_upstreams").and_then(Value::as_array).into_iter().flatten();
    entries.filter(|entry| entry.get("weight").and_then(Value::as_i64) != Some(0)).collect()
}

fn has_weights(split: &Value) -> bool {
    rules(split).any(|rule| entries(rule).len() > 1)
}

/// Returns whether several members of an upstream share requests by weight.
fn have_weights(members: &Value) -> bool {
    let list = members.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter(|member| member.get("weight").and_then(Value::as_i64) != Some(0)).count() > 1
}

/// Returns whether the key of a cache contains every variable of a traffic-split. An upstream that gets another Host
/// than the client's is in every key.
fn tells_versions_apart(cache: &Part<'_>, split: &Value) -> bool {
    let has_own_host = |entry: &Value| {
        let pass_host = entry.get("upstream").and_then(|upstream| upstream.get("pass_host")?.as_str());
        matches!(pass_host, Some("node" | "rewrite"))
    };
    let all: Vec<&Value> = rules(split).flat_map(entries).collect();
    // An entry without an upstream means the route's own.
    let is_other = |entry: &&Value| entry.get("upstream").is_some() || entry.get("upstream_id").is_some();
    if !all.iter().any(is_other)
        || all.iter().filter(|entry| is_other(entry)).all(|entry| has_own_host(entry))
    {
        return true;
    }
    let name = if cache.name == "cache" { "key" } else { "cache_key" };
    let written = cache.value.get(name).and_then(Value::as_array);
    let key: Vec<&str> = match written {
        Some(parts) => parts.iter().filter_map(Value::as_str).collect(),
        None => vec!["$host", "$request_uri"],
    };
    let mut variables = Vec::new();
    rules(split).for_each(|rule| rule.get("match").into_iter().for_each(|all| named(all, &mut variables)));
    let has = |variable: &&str| {
        let is_in = |part: &str| key.iter().any(|own| own.strip_prefix('$') == Some(part));
        let of_target = *variable == "uri" || *variable == "request_uri" || variable.starts_with("arg_");
        // Every key has the request target and the Host.
        of_target || *variable == "host" || is_in(variable)
    };
    !has_weights(split) && variables.iter().all(has)
}

/// Collects the variables of conditions.
fn named<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
    match value {
        Value::Array(items) => match items.first() {
            Some(Value::String(name)) if !["AND", "OR", "!AND", "!OR"].contains(&name.as_str()) => {
                found.push(name);
            }
            _ => items.iter().for_each(|item| named(item, found)),
        },
        Value::Object(map) => map.values().for_each(|item| named(item, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
