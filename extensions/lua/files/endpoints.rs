//! Paths that plugins in files serve themselves: `api` for clients, `control_api` for operators.

use std::sync::{Mutex, PoisonError};

use mlua::{Function, MultiValue, Table, Value};
use sigma_http::Method;
use sigma_plugin::descriptor::Endpoint;
use sigma_plugin::{Context, Env, Reply, Step};

use crate::engine::arguments::type_name;
use crate::engine::{Engine, message_of};

/// A path with a method, and the function that serves it.
pub(super) struct Served {
    pub(super) path: String,
    pub(super) method: Method,
    pub(super) handler: Function,
}

/// A member of a plugin that lists paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Member {
    Api,
    ControlApi,
}

impl Member {
    pub(super) fn name(self) -> &'static str {
        match self {
            Member::Api => "api",
            Member::ControlApi => "control_api",
        }
    }

    /// The paths of an entry: `uri` is one, `uris` is a list.
    fn paths(self, entry: &Table) -> mlua::Result<Vec<String>> {
        match self {
            Member::Api => Ok(vec![entry.get("uri")?]),
            Member::ControlApi => entry.get("uris"),
        }
    }
}

/// The endpoints of a plugin.
///
/// # Errors
/// Returns an error message if the member is wrong.
pub(super) fn of(
    engine: &Engine,
    name: &str,
    module: &Table,
    member: Member,
) -> Result<&'static [Endpoint], String> {
    let served = served(engine, name, module, member)?;
    if member == Member::ControlApi
        && let Some(other) = served.iter().find(|one| !one.path.starts_with("/v1/plugin/"))
    {
        return Err(format!("`control_api`: `{}` does not begin with `/v1/plugin/`", other.path));
    }
    Ok(interned(served.into_iter().map(|one| (one.path, one.method)).collect()))
}

/// Returns the paths that a member of a plugin lists.
///
/// # Errors
/// Returns an error message if the member is wrong.
pub(super) fn served(
    engine: &Engine,
    name: &str,
    module: &Table,
    member: Member,
) -> Result<Vec<Served>, String> {
    let of = member.name();
    let text = |error: mlua::Error| format!("`{of}`: {}", message_of(&error));
    let api = match module.get::<Value>(of).map_err(text)? {
        Value::Nil => return Ok(Vec::new()),
        Value::Function(api) => api,
        other => return Err(format!("`{of}` is a {}, not a function", type_name(&other))),
    };
    let place = engine.place::<&str>(&format!("{name} {of}"), &[]);
    let result =
        engine.call_at(&place, &api, MultiValue::new()).map_err(|error| format!("`{of}`: {error}"))?;
    let Some(Value::Table(list)) = result.into_iter().next() else {
        return Err(format!("`{of}` does not return a list of paths"));
    };
    let mut all = Vec::new();
    for entry in list.sequence_values::<Table>() {
        let entry = entry.map_err(text)?;
        let handler: Function = entry.get("handler").map_err(text)?;
        let methods: Vec<String> = entry.get("methods").map_err(text)?;
        for path in member.paths(&entry).map_err(text)? {
            if !path.starts_with('/') || path.contains(['*', ':']) {
                return Err(format!("`{of}`: `{path}` is not a path without patterns"));
            }
            for method in &methods {
                let method = Method::parse(method.as_bytes());
                if method == Method::Other {
                    return Err(format!("`{of}`: a method of `{path}` is unknown"));
                }
                all.push(Served { path: path.clone(), method, handler: handler.clone() });
            }
        }
    }
    Ok(all)
}

/// Endpoints that live as long as the process: descriptions of plugins refer to them. Equal lists are one list, so that
/// reloads do not take more memory each time.
fn interned(paths: Vec<(String, Method)>) -> &'static [Endpoint] {
    static ALL: Mutex<Vec<&'static [Endpoint]>> = Mutex::new(Vec::new());
    if paths.is_empty() {
        return &[];
    }
    // A panic under the lock leaves the list as it was.
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let is_same = |known: &&&'static [Endpoint]| {
        let known = known.iter().map(|endpoint| (endpoint.path, endpoint.method));
        known.eq(paths.iter().map(|(path, method)| (path.as_str(), *method)))
    };
    if let Some(known) = all.iter().find(is_same) {
        return known;
    }
    let made: Vec<Endpoint> = paths
        .iter()
        .map(|(path, method)| Endpoint {
            path: Box::leak(path.clone().into_boxed_str()),
            path_setting: "",
            method: *method,
            answer: unknown,
        })
        .collect();
    let made: &'static [Endpoint] = Box::leak(made.into_boxed_slice());
    all.push(made);
    made
}

/// Never called: the kind of a file serves its endpoints itself.
fn unknown(_: &mut Context, _: &Env<'_>) -> Step {
    Reply::new(404).into()
}
