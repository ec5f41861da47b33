//! The description of a plugin in its file.

use mlua::{Table, Value as LuaValue};
use serde_json::{Value, json};
use sigma_plugin::descriptor::Endpoint;
use sigma_plugin::{Phase, PhaseSet, RunPolicy};
use sigma_schema::described::CONFIDENTIAL;
use sigma_schema::validation::Schema;

use super::endpoints::{self, Member};
use crate::core::schema::schema_of;
use crate::engine::arguments::type_name;
use crate::engine::{Engine, message_of};

/// The functions of phases, with the hook that calls them.
const HOOKS: &[(&str, Phase)] = &[
    ("rewrite", Phase::Rewrite),
    ("access", Phase::Access),
    ("before_proxy", Phase::BeforeProxy),
    ("header_filter", Phase::HeaderFilter),
    ("body_filter", Phase::BodyFilter),
    ("delayed_body_filter", Phase::BodyFilter),
    ("log", Phase::Log),
];

/// A plugin, as its file describes it.
#[derive(Debug)]
pub(super) struct Description {
    pub(super) version: String,
    pub(super) priority: i32,
    /// From the comment at the beginning of the file.
    pub(super) documentation: String,
    /// The functions of phases; empty for a plugin of sessions only.
    pub(super) phases: PhaseSet,
    pub(super) schema: Value,
    pub(super) consumer_schema: Option<Value>,
    pub(super) metadata_schema: Option<Value>,
    pub(super) attributes: Option<Value>,
    /// The field that identifies a consumer.
    pub(super) identifying: Option<String>,
    pub(super) identifies: bool,
    pub(super) run_policy: RunPolicy,
    pub(super) filters_last: bool,
    /// The file has a `check_schema`.
    pub(super) checks: bool,
    pub(super) endpoints: &'static [Endpoint],
    pub(super) control_endpoints: &'static [Endpoint],
}

impl Description {
    /// Reads the table of a plugin.
    ///
    /// # Errors
    /// Returns an error message, in APISIX's words where APISIX has any.
    pub(super) fn read(
        engine: &Engine,
        name: &str,
        module: &Table,
        text: &str,
    ) -> Result<Description, String> {
        let missing = |field: &str| format!("invalid plugin [{name}], missing field: {field}");
        let priority = match member(module, "priority")? {
            LuaValue::Nil => return Err(missing("priority")),
            value => whole_number(&value).ok_or("`priority` is not a whole number")?,
        };
        let version = match member(module, "version")? {
            LuaValue::Nil => return Err(missing("version")),
            value => value.to_string().map_err(|error| message_of(&error))?,
        };
        let schema = schema(module, "schema")?.ok_or_else(|| missing("schema"))?;
        let consumer_schema = self::schema(module, "consumer_schema")?;
        let is_auth = text_of(module, "type")?.as_deref() == Some("auth");
        let identifying = consumer_schema.as_ref().map(|schema| identifying(module, schema)).transpose()?;
        if is_auth && consumer_schema.is_none() {
            return Err("`type` is \"auth\", so the plugin needs a `consumer_schema`".to_owned());
        }
        let mut phases = PhaseSet::default();
        let (mut filters, mut delayed) = (false, false);
        for (hook, phase) in HOOKS {
            match member(module, hook)? {
                LuaValue::Nil => continue,
                LuaValue::Function(_) => phases = phases.and(PhaseSet::of(&[*phase])),
                other => return Err(format!("`{hook}` is a {}, not a function", type_name(&other))),
            }
            filters |= *hook == "body_filter";
            delayed |= *hook == "delayed_body_filter";
        }
        if [Phase::Rewrite, Phase::Access, Phase::BeforeProxy].iter().any(|phase| phases.contains(*phase)) {
            // Response fields that scripts set before the response are moved into it there.
            phases = phases.and(PhaseSet::of(&[Phase::HeaderFilter]));
        }
        Ok(Description {
            version,
            priority,
            documentation: documentation(text),
            phases,
            schema,
            consumer_schema,
            metadata_schema: self::schema(module, "metadata_schema")?,
            attributes: self::schema(module, "attr_schema")?,
            identifies: is_auth,
            identifying,
            run_policy: match text_of(module, "run_policy")?.as_deref() {
                Some("prefer_route") => RunPolicy::PreferRoute,
                _ => RunPolicy::Both,
            },
            filters_last: delayed && !filters,
            checks: is_function(module, "check_schema")?,
            endpoints: endpoints::of(engine, name, module, Member::Api)?,
            control_endpoints: endpoints::of(engine, name, module, Member::ControlApi)?,
        })
    }
}

/// A member of a plugin's table. Metatables count: plugins may inherit from each other.
fn member(module: &Table, name: &str) -> Result<LuaValue, String> {
    module.get(name).map_err(|error| message_of(&error))
}

pub(super) fn is_function(module: &Table, name: &str) -> Result<bool, String> {
    match member(module, name)? {
        LuaValue::Nil => Ok(false),
        LuaValue::Function(_) => Ok(true),
        other => Err(format!("`{name}` is a {}, not a function", type_name(&other))),
    }
}

fn text_of(module: &Table, name: &str) -> Result<Option<String>, String> {
    match member(module, name)? {
        LuaValue::Nil => Ok(None),
        LuaValue::String(text) => Ok(Some(text.to_string_lossy())),
        other => Err(format!("`{name}` is a {}, not a text", type_name(&other))),
    }
}

pub(super) fn whole_number(value: &LuaValue) -> Option<i32> {
    match value {
        LuaValue::Integer(number) => i32::try_from(*number).ok(),
        LuaValue::Number(number) if number.fract() == 0.0 => i32::try_from(*number as i64).ok(),
        _ => None,
    }
}

/// A schema of a plugin; None if it is missing.
fn schema(module: &Table, name: &str) -> Result<Option<Value>, String> {
    let value = match member(module, name)? {
        LuaValue::Nil => return Ok(None),
        value @ LuaValue::Table(_) => value,
        other => return Err(format!("`{name}` is a {}, not a table", type_name(&other))),
    };
    let mut schema = schema_of(&value).map_err(|error| format!("`{name}`: {error}"))?;
    let Some(members) = schema.as_object_mut() else {
        return Err(format!("`{name}` is a list, not a JSON schema"));
    };
    let encrypted = members.shift_remove("encrypt_fields").unwrap_or_default();
    members.entry("type").or_insert(json!("object"));
    for path in encrypted.as_array().into_iter().flatten().filter_map(Value::as_str) {
        mark_confidential(&mut schema, path);
    }
    Schema::compile(&schema).map_err(|error| format!("`{name}` is not a JSON schema: {error}"))?;
    Ok(Some(schema))
}

/// Marks a field, such as `auth.header`, as encrypted at rest.
fn mark_confidential(schema: &mut Value, path: &str) {
    let field = path.split('.').try_fold(schema, |schema, name| {
        // Lists do not count in paths.
        let schema = if schema.get("items").is_some() { schema.get_mut("items")? } else { schema };
        schema.get_mut("properties")?.get_mut(name)
    });
    if let Some(field) = field.and_then(Value::as_object_mut) {
        field.insert(CONFIDENTIAL.to_owned(), json!(true));
    }
}

/// The field that identifies a consumer: `consumer_key`, else the first required field.
fn identifying(module: &Table, schema: &Value) -> Result<String, String> {
    if let Some(field) = text_of(module, "consumer_key")? {
        return Ok(field);
    }
    let first = schema.pointer("/required/0").and_then(Value::as_str);
    first.map(str::to_owned).ok_or_else(|| {
        "`consumer_schema` has no required field: require the field that identifies a consumer, \
            or name it in `consumer_key`"
            .to_owned()
    })
}

/// The comment at the beginning of a file, without a licence.
fn documentation(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map_while(|line| line.trim().strip_prefix("--"))
        .map(|line| line.trim_start_matches('-').trim())
        .collect();
    let text = lines.join("\n").trim().to_owned();
    match text.is_empty() || text.contains("License") {
        true => "A plugin in a Lua file.".to_owned(),
        false => text,
    }
}
