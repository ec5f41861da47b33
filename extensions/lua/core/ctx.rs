//! `ctx`, the second argument of functions, and `core.ctx`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use mlua::{Function, Lua, Table, Value as LuaValue};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sigma_config::resources::{Consumer, Route};
use sigma_plugin::context::RouteFacts;
use sigma_plugin::resource::AnyResource;
use sigma_plugin::{Context, Resource};
use sigma_schema::expr::{VarName, VarValue, Variables};

use super::to_lua;
use crate::engine::arguments::{nothing, one, several};
use crate::engine::host::{Host, Stage};
use crate::ngx::variables;

/// The name of the function in the registry that makes `ctx`.
const NEW: &str = "sigma.new_ctx";

/// The longest text that `ctx.var` gives to templates, in bytes.
const TEXT_BYTES: usize = 1 << 16;

/// The most variables that `ctx.var` gives to the templates of one exchange.
const MOST_TEXTS: usize = 256;

/// Members of `ctx` that stay as they are once they have a value.
const KEPT: [&str; 3] = ["consumer", "curr_req_matched", "matched_route"];

/// A member of `ctx` that APISIX has, and the reason why scripts do not get it.
const UPSTREAM_CONF: &str = "ctx.upstream_conf";
const NO_UPSTREAM_CONF: &str = "exchanges do not keep the configuration of the chosen upstream; `ctx.matched_route.value` has the route's, and `ctx.balancer_ip` the node";

/// Registers `core.ctx`.
pub(super) fn register(lua: &Lua, host: &Rc<Host>, core: &Table) -> mlua::Result<()> {
    let parts = lua.create_table()?;
    host.note_refusal(UPSTREAM_CONF, NO_UPSTREAM_CONF);
    host.function(lua, &parts, "read", |host, arguments| {
        variables::of_ctx(host, arguments.lua(), &arguments.text(1)?.to_string_lossy())
    })?;
    host.function(lua, &parts, "is_settable", |_, arguments| {
        one(arguments.lua(), variables::is_settable(&arguments.text(1)?.to_string_lossy()))
    })?;
    host.function(lua, &parts, "write", |host, arguments| {
        let name = arguments.text(1)?.to_string_lossy();
        let value = match arguments.value(2) {
            LuaValue::Nil => None,
            value => Some(value.to_string().map_err(|error| error.to_string())?.into_bytes()),
        };
        host.with(|seat| variables::write(seat, &name, value))?;
        nothing()
    })?;
    host.function(lua, &parts, "keep", |host, arguments| {
        let name = arguments.text(1)?.to_string_lossy();
        let value = match arguments.value(2) {
            LuaValue::String(text) => Some(text.as_bytes().to_vec()),
            LuaValue::Integer(_) | LuaValue::Number(_) => Some(arguments.text(2)?.as_bytes().to_vec()),
            LuaValue::Boolean(truth) => Some(truth.to_string().into_bytes()),
            _ => None,
        };
        let is_known = host.with(|seat| Ok(keep(&mut seat.ctx, &seat.exchange.texts, &name, value)))?;
        one(arguments.lua(), is_known)
    })?;
    host.function(lua, &parts, "member", |host, arguments| {
        let LuaValue::String(name) = arguments.value(1) else { return nothing() };
        let name = name.to_string_lossy();
        if name == "upstream_conf" {
            return Err(format!("{UPSTREAM_CONF}: {NO_UPSTREAM_CONF}"));
        }
        // A timer may hold `ctx` after its exchange.
        let value = host.with(|seat| Ok(member(&seat.ctx, &name))).unwrap_or(Value::Null);
        if value.is_null() {
            return nothing();
        }
        let value = to_lua(arguments.lua(), &value).map_err(|error| error.to_string())?;
        several(arguments.lua(), (value, KEPT.contains(&name.as_str())))
    })?;
    host.function(lua, &parts, "may_wait", |host, arguments| {
        one(arguments.lua(), matches!(host.stage(), Stage::Rewrite | Stage::Access))
    })?;
    host.function(lua, &parts, "choose", |host, arguments| {
        let id = match arguments.value(1) {
            LuaValue::Nil => None,
            _ => Some(arguments.text(1)?.to_string_lossy()),
        };
        choose_upstream(host, id.as_deref())?;
        nothing()
    })?;
    parts.raw_set("read_body", crate::ngx::table(lua)?.get::<Table>("req")?.get::<Function>("read_body")?)?;
    let made: Table = lua.load(include_str!("ctx.lua")).set_name("=gateway").call(parts)?;
    lua.set_named_registry_value(NEW, made.raw_get::<Function>("new_ctx")?)?;
    host.on_forget(made.raw_get("forget")?);
    let ctx = lua.create_table()?;
    ctx.raw_set("register_var", made.raw_get::<Function>("register_var")?)?;
    core.raw_set("ctx", ctx)
}

/// The longest id of an upstream.
const ID_BYTES: usize = 64;

/// Sets the upstream of the exchange by its id; None chooses the route's again.
///
/// # Errors
/// Returns the text of a Lua error if that is too late or no id.
pub(crate) fn choose_upstream(host: &Host, id: Option<&str>) -> Result<(), String> {
    host.within(&[Stage::Rewrite, Stage::Access], |seat| {
        if id.is_some_and(|id| id.is_empty() || id.len() > ID_BYTES) {
            return Err(format!("the id of an upstream has 1 to {ID_BYTES} characters"));
        }
        seat.ctx.upstream = id.map(|id| format!("upstreams/{id}").into_boxed_str());
        Ok(())
    })
}

/// The function that makes `ctx` for one exchange.
pub(super) fn maker(lua: &Lua) -> mlua::Result<Function> {
    lua.named_registry_value(NEW)
}

/// Sets a variable for templates; None empties it. Returns whether templates know the name from scripts.
fn keep(ctx: &mut Context, texts: &std::cell::Cell<usize>, name: &str, value: Option<Vec<u8>>) -> bool {
    let is_known = ctx.set_by_plugin(name).is_some();
    let Some(value) = value.filter(|value| value.len() <= TEXT_BYTES) else {
        if is_known {
            ctx.set_variable(name, "");
        }
        return is_known;
    };
    if is_known || texts.get() < MOST_TEXTS {
        texts.set(texts.get() + usize::from(!is_known));
        ctx.set_variable(name, value);
        return true;
    }
    false
}

/// A member of `ctx` that the gateway knows; null without a value.
fn member(ctx: &Context, name: &str) -> Value {
    let route = ctx.route.as_deref();
    match name {
        "matched_route" => route.map_or(Value::Null, matched_route),
        "curr_req_matched" => route.map_or(Value::Null, |route| matched(ctx, route)),
        "route_id" => route.map_or(Value::Null, |route| json!(&*route.id)),
        "route_name" => json!(route.and_then(|route| route.name.as_deref())),
        "service_id" => json!(route.and_then(|route| route.service_id.as_deref())),
        "service_name" => json!(route.and_then(|route| route.service_name.as_deref())),
        "consumer" => consumer(ctx),
        "consumer_name" => json!(ctx.consumer().map(|consumer| &*consumer.name)),
        "consumer_group_id" => json!(ctx.consumer().and_then(|consumer| consumer.group_id.as_deref())),
        "consumer_ver" => {
            json!(ctx.consumer().map(|consumer| hash(&written::<Consumer>(&consumer.resource))))
        }
        "conf_type" => json!(joined(ctx, ["route", "service", "consumer"].map(Some))),
        "conf_id" => json!(joined(ctx, ids(ctx))),
        "conf_version" => route.map_or(Value::Null, |route| {
            json!(hash(&format!("{:?} {:?}", route.resources, ctx.consumer().map(|one| &one.name))))
        }),
        "balancer_ip" | "balancer_port" | "upstream_scheme" => match ctx.get(&VarName::parse(name)) {
            Some(VarValue::Text(text)) if name == "balancer_port" => {
                json!(String::from_utf8_lossy(&text).parse::<u16>().ok())
            }
            Some(VarValue::Text(text)) => json!(String::from_utf8_lossy(&text)),
            _ => Value::Null,
        },
        _ => Value::Null,
    }
}

fn ids(ctx: &Context) -> [Option<&str>; 3] {
    let route = ctx.route.as_deref();
    [
        route.map(|route| &*route.id),
        route.and_then(|route| route.service_id.as_deref()),
        ctx.consumer().map(|consumer| &*consumer.name),
    ]
}

/// The texts of the configurations that apply.
fn joined(ctx: &Context, texts: [Option<&str>; 3]) -> Option<String> {
    ctx.route.as_ref()?;
    let present = ids(ctx).map(|id| id.is_some());
    let texts = texts.into_iter().zip(present).filter(|(_, is_present)| *is_present);
    Some(texts.filter_map(|(text, _)| text).collect::<Vec<_>>().join("&"))
}

fn hash(value: &impl Hash) -> u32 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish() as u32
}

fn written<T: AnyResource + Serialize>(resource: &Option<Resource>) -> Option<Value> {
    serde_json::to_value(resource.as_ref()?.get::<T>()?).ok()
}

fn matched_route(route: &RouteFacts) -> Value {
    let value = written::<Route>(&route.resources.route).unwrap_or_else(|| json!({"id": &*route.id}));
    json!({
        "key": format!("/apisix/routes/{}", route.id),
        "modifiedIndex": hash(&value),
        "value": value,
    })
}

/// The path pattern of the route, and the values of its parameters.
fn matched(ctx: &Context, route: &RouteFacts) -> Value {
    let mut matched = Map::new();
    for pattern in &route.uris {
        let names = pattern.split('/').filter_map(|segment| segment.strip_prefix([':', '*']));
        for name in names.filter(|name| !name.is_empty()) {
            if let Some(value) = ctx.params.get(name) {
                matched.insert(name.to_owned(), json!(String::from_utf8_lossy(value)));
            }
        }
    }
    // The gateway does not keep which of several patterns has matched.
    if let Some(pattern) = route.uris.first() {
        matched.insert("_path".to_owned(), json!(&**pattern));
    }
    Value::Object(matched)
}

/// The consumer, without the configurations of its plugins: these have credentials.
fn consumer(ctx: &Context) -> Value {
    let Some(identity) = &ctx.identity else { return Value::Null };
    let consumer = &identity.consumer;
    let labels: Map<String, Value> =
        consumer.labels.iter().map(|(name, value)| (name.to_string(), json!(&**value))).collect();
    let mut shown = Map::new();
    for (name, value) in [
        ("username", json!(&*consumer.name)),
        ("consumer_name", json!(&*consumer.name)),
        ("group_id", json!(consumer.group_id.as_deref())),
        ("custom_id", json!(consumer.custom_id.as_deref())),
        ("credential_id", json!(identity.credential.as_deref())),
    ] {
        if !value.is_null() {
            shown.insert(name.to_owned(), value);
        }
    }
    if !labels.is_empty() {
        shown.insert("labels".to_owned(), Value::Object(labels));
    }
    Value::Object(shown)
}
