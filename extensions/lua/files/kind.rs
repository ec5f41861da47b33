//! A file as a kind of plugin.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use mlua::{MultiValue, Value as LuaValue};
use serde_json::{Value, json};
use sigma_plugin::descriptor::{Data, Endpoint};
use sigma_plugin::owned::OwnedField;
use sigma_plugin::scripts::FileSearch;
use sigma_plugin::{Build, Context, Env, FlowPlugin, Kind, PhaseSet, Plugin, RunPolicy, Step};
use sigma_schema::plugins::PluginScope;

use super::FOLDERS;
use super::bundle::Bundle;
use super::description::{Description, is_function};
use super::endpoints::{self, Member};
use super::flow::{FileFlow, FlowDescription};
use super::instance::{self, FilePlugin};
use super::library::Library;
use crate::core;
use crate::engine::{Engine, message_of};
use crate::state::with_checker;

/// The fields that carry a consumer to nodes.
const CONSUMER_FIELDS: [&str; 3] = ["X-Consumer-Username", "X-Credential-Identifier", "X-Consumer-Custom-ID"];

/// A plugin in a file.
pub(super) struct FileKind {
    name: Box<str>,
    bundle: Arc<Bundle>,
    /// Its part for requests and for sessions, or the reason why the file cannot be loaded.
    described: Result<Parts, String>,
}

/// The parts of a plugin; at least one is there.
#[derive(Debug)]
struct Parts {
    http: Option<Description>,
    flow: Option<FlowDescription>,
}

impl FileKind {
    /// Loads the file of a plugin in a state that only checks.
    pub(super) fn load(bundle: &Arc<Bundle>, name: &str, search: &FileSearch) -> FileKind {
        let described = with_checker(|engine| {
            let library = Library::of(engine, bundle)?;
            let [of_requests, of_sessions] = [0, 1].map(|at| {
                let module = format!("{}{name}", FOLDERS[at]);
                let is_enabled = search.enabled[at].as_ref().is_none_or(|names| names.contains(name));
                bundle.file(&module).filter(|_| is_enabled).map(|file| (module, file))
            });
            let within =
                |path: &std::path::Path, error: String| match error.contains(&*path.to_string_lossy()) {
                    true => error,
                    false => format!("{}: {error}", path.display()),
                };
            let http = of_requests.map(|(module, file)| {
                let table = library.module(engine, &module)?;
                Description::read(engine, name, &table, &file.text).map_err(|error| within(&file.path, error))
            });
            let flow = of_sessions.map(|(module, file)| {
                let table = library.module(engine, &module)?;
                FlowDescription::read(name, &table).map_err(|error| within(&file.path, error))
            });
            Ok(Parts { http: http.transpose()?, flow: flow.transpose()? })
        });
        FileKind { name: name.into(), bundle: Arc::clone(bundle), described }
    }

    /// Why the file cannot be loaded.
    pub(super) fn broken(&self) -> Option<&str> {
        self.described.as_ref().err().map(String::as_str)
    }

    fn http(&self) -> Option<&Description> {
        self.described.as_ref().ok()?.http.as_ref()
    }

    /// The error of every configuration of a broken file.
    fn refusal(&self) -> Option<String> {
        self.broken().map(|reason| format!("cannot load the file of plugin {}: {reason}", self.name))
    }

    /// Serves a path that a member of the plugin lists.
    fn serve(&self, member: Member, endpoint: &Endpoint, ctx: &mut Context, env: &Env<'_>) -> Step {
        let of = member.name();
        let find = |engine: &Rc<Engine>| {
            let library = Library::of(engine, &self.bundle)?;
            let own = instance::own(&self.name, LuaValue::Nil, None);
            let place = engine.place_in_file(
                &format!("{} {of} {}", self.name, endpoint.path),
                self.bundle.number,
                &Value::Null,
                &own,
            );
            let module = library.begun(engine, &place, &format!("{}{}", FOLDERS[0], self.name))?;
            let served = endpoints::served(engine, &self.name, &module, member)?.into_iter();
            let mut found = served.filter(|one| one.path == endpoint.path && one.method == endpoint.method);
            let served = found.next().ok_or_else(|| format!("`{of}` no longer has this path"))?;
            Ok(instance::Called { function: served.handler, place })
        };
        instance::serve_path(&self.name, find, ctx, env)
    }

    /// Runs `check_schema`.
    fn run_check(&self, folder: usize, conf: &Value, scope: Option<i64>) -> Result<(), String> {
        with_checker(|engine| {
            let library = Library::of(engine, &self.bundle)?;
            let module = library.module(engine, &format!("{}{}", FOLDERS[folder], self.name))?;
            if !is_function(&module, "check_schema")? {
                return Ok(());
            }
            let check = module.get("check_schema").map_err(|error| message_of(&error))?;
            let conf = core::to_lua(engine.lua(), conf).map_err(|error| message_of(&error))?;
            let scope = scope.map_or(LuaValue::Nil, LuaValue::Integer);
            let place = engine.place(&format!("{} check_schema", self.name), &[self.bundle.number]);
            let result = engine.call_at(&place, &check, MultiValue::from_iter([conf, scope]))?;
            verdict(&result)
        })
    }
}

/// The result of `check_schema`: true, or false and a reason.
fn verdict(result: &MultiValue) -> Result<(), String> {
    match result.front() {
        Some(LuaValue::Nil | LuaValue::Boolean(false)) | None => {
            let reason = result.get(1).and_then(|reason| reason.to_string().ok());
            Err(reason.unwrap_or_else(|| "check_schema of the plugin refuses the configuration".to_owned()))
        }
        Some(_) => Ok(()),
    }
}

impl Kind for FileKind {
    fn name(&self) -> &str {
        &self.name
    }

    fn group(&self) -> &str {
        "lua"
    }

    fn version(&self) -> &str {
        self.http().map_or("0", |description| &description.version)
    }

    fn priority(&self) -> i32 {
        let flow = || self.described.as_ref().ok()?.flow.as_ref().map(|flow| flow.priority);
        self.http().map(|description| description.priority).or_else(flow).unwrap_or_default()
    }

    fn phases(&self) -> PhaseSet {
        self.http().map(|description| description.phases).unwrap_or_default()
    }

    fn filters_last(&self) -> bool {
        self.http().is_some_and(|description| description.filters_last)
    }

    fn run_policy(&self) -> RunPolicy {
        self.http().map(|description| description.run_policy).unwrap_or_default()
    }

    fn documentation(&self) -> Cow<'_, str> {
        match (self.http(), self.broken()) {
            (Some(description), _) => Cow::Borrowed(&description.documentation),
            (None, Some(reason)) => format!("An invalid Lua file: {reason}").into(),
            (None, None) => Cow::Borrowed("A plugin of stream routes in a Lua file."),
        }
    }

    fn schema(&self, scope: PluginScope) -> Option<Value> {
        let Ok(Parts { http, flow }) = &self.described else {
            // Every configuration gets the reason, from `check`.
            return (scope != PluginScope::Metadata).then(|| json!({"type": "object"}));
        };
        match scope {
            PluginScope::Http => http.as_ref().map(|http| http.schema.clone()),
            PluginScope::Consumer => http.as_ref()?.consumer_schema.clone(),
            PluginScope::Metadata => http.as_ref()?.metadata_schema.clone(),
            PluginScope::Stream => flow.as_ref().map(|flow| flow.schema.clone()),
        }
    }

    fn attributes(&self) -> Option<Value> {
        self.http()?.attributes.clone()
    }

    fn guards(&self) -> bool {
        use sigma_plugin::Phase::{Access, BeforeProxy, Rewrite};
        // A broken file may have been a guard.
        let may_refuse =
            |phases: PhaseSet| [Rewrite, Access, BeforeProxy].iter().any(|phase| phases.contains(*phase));
        self.http().is_none_or(|description| may_refuse(description.phases))
    }

    fn identifies(&self) -> bool {
        self.http().is_some_and(|description| description.identifies || description.identifying.is_some())
    }

    fn identifying_field(&self) -> Option<&str> {
        self.http()?.identifying.as_deref()
    }

    fn identity(&self, conf: &Value) -> Result<Data, String> {
        if self.http().is_some_and(|description| description.checks) {
            self.run_check(0, conf, Some(1))?;
        }
        Ok(Arc::new(conf.clone()))
    }

    fn check(&self, scope: PluginScope, conf: &Value) -> Result<(), String> {
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        match scope {
            PluginScope::Stream => self.run_check(1, conf, None),
            PluginScope::Http | PluginScope::Consumer => self.run_check(0, conf, None),
            PluginScope::Metadata => Ok(()),
        }
    }

    fn check_metadata(&self, metadata: &Value) -> Result<(), String> {
        match self.http() {
            Some(description) if description.metadata_schema.is_some() => {
                self.run_check(0, metadata, Some(2))
            }
            _ => Ok(()),
        }
    }

    fn owned_fields(&self, _: &Value) -> Vec<OwnedField> {
        match self.authenticates() {
            true => CONSUMER_FIELDS.map(OwnedField::sole).into(),
            false => Vec::new(),
        }
    }

    fn endpoints(&self) -> &[Endpoint] {
        self.http().map_or(&[], |description| description.endpoints)
    }

    fn respond(&self, endpoint: &Endpoint, ctx: &mut Context, env: &Env<'_>) -> Step {
        self.serve(Member::Api, endpoint, ctx, env)
    }

    fn control_endpoints(&self) -> &[Endpoint] {
        self.http().map_or(&[], |description| description.control_endpoints)
    }

    fn respond_control(&self, endpoint: &Endpoint, ctx: &mut Context, env: &Env<'_>) -> Step {
        self.serve(Member::ControlApi, endpoint, ctx, env)
    }

    fn build(&self, build: &Build<'_>) -> Result<Arc<dyn Plugin>, String> {
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        let identifying = self.identifying_field().map(Box::from);
        Ok(Arc::new(FilePlugin::new(&self.bundle, build, identifying)))
    }

    fn build_flow(&self, build: &Build<'_>) -> Result<Arc<dyn FlowPlugin>, String> {
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        Ok(Arc::new(FileFlow::new(&self.bundle, build)))
    }
}
