//! `apisix.consumer`: consumers of plugins in files that authenticate.

use std::rc::Rc;
use std::sync::Arc;

use mlua::{Lua, Table, Value};
use serde_json::{Map, Value as Json, json};
use sigma_plugin::{Consumer, Consumers, Identity};

use crate::core::to_lua;
use crate::engine::arguments::{Results, nothing, one};
use crate::engine::host::{Host, Stage};
use crate::engine::message_of;
use crate::engine::place::OwnPlugin;

/// The error of scripts that are no plugin which authenticates.
const REFUSED: &str = "scripts cannot authenticate consumers; use a plugin for authentication, or a plugin in a file with a `consumer_schema`, and read `ctx.consumer_name`";

/// The stages in which a request gets its consumer.
const STAGES: &[Stage] = &[Stage::Rewrite, Stage::Access];

/// Makes the module.
pub(super) fn module(lua: &Lua, host: &Rc<Host>) -> mlua::Result<Table> {
    let parts = lua.create_table()?;
    let has = host.raw(lua, "has", |host, arguments| {
        let name = arguments.text(1)?.to_string_lossy();
        own(host, &name)?;
        one(arguments.lua(), with(host, |consumers| consumers.has_any(&name))?)
    })?;
    let find = host.raw(lua, "find", |host, arguments| {
        let (name, field) = (arguments.text(1)?.to_string_lossy(), arguments.text(2)?.to_string_lossy());
        let own = own(host, &name)?;
        if own.identifying.as_deref() != Some(&*field) {
            let identifying = own.identifying.as_deref().unwrap_or_default();
            return Err(format!("consumers of {name} are found by `{identifying}`, not by `{field}`"));
        }
        let Value::String(key) = arguments.value(3) else { return nothing() };
        let key = key.to_string_lossy();
        let identity = with(host, |consumers| consumers.find(&name, &key).cloned())?;
        match identity {
            Some(identity) => shown(arguments.lua(), &identity, &key),
            None => nothing(),
        }
    })?;
    let list = host.raw(lua, "list", |host, arguments| {
        let name = arguments.text(1)?.to_string_lossy();
        let own = own(host, &name)?;
        let identities: Vec<Arc<Identity>> = with(host, |consumers| consumers.all(&name).cloned().collect())?;
        let list = arguments.lua().create_table().map_err(|error| message_of(&error))?;
        for identity in identities {
            let field = own.identifying.as_deref().unwrap_or_default();
            let Some(key) = identity.data::<Json>().and_then(|conf| conf.get(field)?.as_str()) else {
                continue;
            };
            let value = shown(arguments.lua(), &identity, key)?.pop_front().unwrap_or(Value::Nil);
            list.raw_push(value).map_err(|error| message_of(&error))?;
        }
        one(arguments.lua(), list)
    })?;
    let anonymous = host.raw(lua, "anonymous", |host, arguments| {
        let name = arguments.text(1)?.to_string_lossy();
        own_of_place(host)?;
        match with(host, |consumers| consumers.get(&name).cloned())? {
            Some(consumer) => {
                let mut fields = fields(&consumer);
                fields.insert("_anonymous".to_owned(), json!(name));
                let value = to_lua(arguments.lua(), &Json::Object(fields));
                one(arguments.lua(), value.map_err(|error| message_of(&error))?)
            }
            None => nothing(),
        }
    })?;
    let attach = host.raw(lua, "attach", |host, arguments| {
        let own = own_of_place(host)?;
        let text = |value: Value| value.as_string().map(|text| text.to_string_lossy());
        let (key, anonymous) = (text(arguments.value(1)), text(arguments.value(2)));
        host.within(STAGES, |seat| {
            let consumers = seat.consumers.as_ref().ok_or(REFUSED)?;
            // Only consumers that exist now, and are this plugin's own.
            let identity = key.as_deref().and_then(|key| consumers.find(&own.name, key));
            let consumer = anonymous.as_deref().and_then(|name| consumers.get(name));
            match (identity, consumer) {
                (Some(identity), _) => seat.ctx.attach(identity),
                (None, Some(consumer)) => seat.ctx.attach_anonymous(consumer),
                (None, None) => return Err("the consumer does not exist".to_owned()),
            }
            Ok(())
        })?;
        nothing()
    })?;
    for (name, part) in
        [("has", has), ("find", find), ("list", list), ("anonymous", anonymous), ("attach", attach)]
    {
        parts.raw_set(name, part)?;
    }
    lua.load(include_str!("lua/consumer.lua")).set_name("=gateway").call(parts)
}

/// The plugin whose script runs, if it authenticates consumers.
fn own_of_place(host: &Host) -> Result<Rc<OwnPlugin>, String> {
    let own = host.place().and_then(|place| place.plugin.clone());
    own.filter(|own| own.identifying.is_some()).ok_or_else(|| format!("apisix.consumer: {REFUSED}"))
}

/// The same, if it has this name: consumers of other plugins are out of reach.
fn own(host: &Host, name: &str) -> Result<Rc<OwnPlugin>, String> {
    let own = own_of_place(host)?;
    match *own.name == *name {
        true => Ok(own),
        false => Err(format!("apisix.consumer: plugin {} cannot read consumers of {name}", own.name)),
    }
}

fn with<R>(host: &Host, run: impl FnOnce(&Consumers) -> R) -> Result<R, String> {
    host.within(STAGES, |seat| Ok(run(seat.consumers.as_ref().ok_or(REFUSED)?)))
}

/// A consumer as scripts see it, with the configuration that identifies it.
fn shown(lua: &Lua, identity: &Identity, key: &str) -> Results {
    let mut fields = fields(&identity.consumer);
    fields.insert("_key".to_owned(), json!(key));
    if let Some(conf) = identity.data::<Json>() {
        fields.insert("auth_conf".to_owned(), conf.clone());
    }
    if let Some(credential) = &identity.credential {
        fields.insert("credential_id".to_owned(), json!(&**credential));
    }
    one(lua, to_lua(lua, &Json::Object(fields)).map_err(|error| message_of(&error))?)
}

fn fields(consumer: &Consumer) -> Map<String, Json> {
    let mut fields = Map::new();
    for name in ["consumer_name", "username", "id"] {
        fields.insert(name.to_owned(), json!(&*consumer.name));
    }
    for (name, value) in [("group_id", &consumer.group_id), ("custom_id", &consumer.custom_id)] {
        if let Some(value) = value {
            fields.insert(name.to_owned(), json!(&**value));
        }
    }
    let labels: Map<String, Json> =
        consumer.labels.iter().map(|(name, value)| (name.to_string(), json!(&**value))).collect();
    if !labels.is_empty() {
        fields.insert("labels".to_owned(), Json::Object(labels));
    }
    fields
}
