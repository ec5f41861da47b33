//! Plugins in files for sessions over TCP and UDP.

use std::rc::Rc;
use std::sync::Arc;

use mlua::{Function, Table, Value as LuaValue};
use serde_json::{Value, json};
use sigma_plugin::{Build, Env, FlowPlugin, FlowStep, Session};

use super::FOLDERS;
use super::bundle::Bundle;
use super::description::{is_function, whole_number};
use super::instance::own;
use super::library::Library;
use crate::core::schema::schema_of;
use crate::engine::arguments::type_name;
use crate::engine::place::ScriptPosition;
use crate::engine::{Engine, message_of};
use crate::loaded::Token;
use crate::{core, state};

/// The status of a session whose script failed.
const FAILED: u16 = 500;

/// A plugin for sessions, as its file describes it.
#[derive(Debug)]
pub(super) struct FlowDescription {
    pub(super) priority: i32,
    pub(super) schema: Value,
}

impl FlowDescription {
    /// Reads the table of a plugin.
    ///
    /// # Errors
    /// Returns an error message.
    pub(super) fn read(name: &str, module: &Table) -> Result<FlowDescription, String> {
        let text = |error: mlua::Error| message_of(&error);
        let missing = |field: &str| format!("invalid plugin [{name}], missing field: {field}");
        let priority = match module.get::<LuaValue>("priority").map_err(text)? {
            LuaValue::Nil => return Err(missing("priority")),
            value => whole_number(&value).ok_or("`priority` is not a whole number")?,
        };
        if module.get::<LuaValue>("version").map_err(text)?.is_nil() {
            return Err(missing("version"));
        }
        let schema = match module.get::<LuaValue>("schema").map_err(text)? {
            LuaValue::Nil => return Err(missing("schema")),
            value => schema_of(&value).map_err(|error| format!("`schema`: {error}"))?,
        };
        sigma_schema::validation::Schema::compile(&schema)
            .map_err(|error| format!("`schema` is not a JSON schema: {error}"))?;
        let mut hooks = 0;
        for hook in ["preread", "log"] {
            hooks += usize::from(is_function(module, hook)?);
        }
        if hooks == 0 {
            return Err(format!("invalid plugin [{name}], it has neither `preread` nor `log`"));
        }
        let schema = if schema.is_object() { schema } else { json!({"type": "object"}) };
        Ok(FlowDescription { priority, schema })
    }
}

/// An instance for stream routes.
pub(super) struct FileFlow {
    bundle: Arc<Bundle>,
    name: Box<str>,
    conf: Value,
    place: String,
    token: Token,
}

/// An instance in the state of a worker.
struct Loaded {
    module: Table,
    conf: LuaValue,
    place: Rc<ScriptPosition>,
}

impl FileFlow {
    pub(super) fn new(bundle: &Arc<Bundle>, build: &Build<'_>) -> FileFlow {
        FileFlow {
            bundle: Arc::clone(bundle),
            name: build.plugin.into(),
            conf: build.conf.clone(),
            place: format!("{} of {}", build.plugin, build.resource),
            token: Token::new(),
        }
    }

    fn loaded(&self, engine: &Rc<Engine>) -> Result<Rc<Loaded>, String> {
        engine.loaded::<Loaded>(&self.token, || {
            let library = Library::of(engine, &self.bundle)?;
            let place = engine.place_in_file(
                &self.place,
                self.bundle.number,
                &self.conf,
                &own(&self.name, LuaValue::Nil, None),
            );
            let module = library.begun(engine, &place, &format!("{}{}", FOLDERS[1], self.name))?;
            let conf = core::to_lua(engine.lua(), &self.conf).map_err(|error| message_of(&error))?;
            Ok(Loaded { module, conf, place })
        })
    }

    /// The status that a function returns; None without one.
    fn run(&self, phase: &str, session: &Session, env: &Env<'_>) -> Result<Option<u16>, String> {
        let engine = state::of_worker(env)?;
        let loaded = self.loaded(&engine)?;
        let function: Option<Function> = loaded.module.get(phase).map_err(|error| message_of(&error))?;
        let Some(function) = function else { return Ok(None) };
        match engine.with_variables(&loaded.place, &function, &loaded.conf, session)? {
            LuaValue::Nil => Ok(None),
            LuaValue::Integer(code) => Ok(Some(u16::try_from(code).unwrap_or(FAILED))),
            LuaValue::Number(code) => Ok(Some(code as u16)),
            other => Err(format!("a function returned {} instead of a status", type_name(&other))),
        }
    }
}

impl FlowPlugin for FileFlow {
    fn preread(&self, session: &mut Session, env: &Env<'_>) -> FlowStep {
        match self.run("preread", session, env) {
            Ok(None) => FlowStep::Next,
            Ok(Some(status)) => FlowStep::Close(status),
            Err(message) => {
                tracing::error!("{}: a Lua function failed: runtime error: {message}", self.place);
                FlowStep::Close(FAILED)
            }
        }
    }

    fn log(&self, session: &Session, env: &Env<'_>) {
        if let Err(message) = self.run("log", session, env) {
            tracing::error!("{}: a Lua function failed: runtime error: {message}", self.place);
        }
    }
}
