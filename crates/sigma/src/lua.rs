//! `sigma lua`: a Lua file against one request.

use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use sigma_config::settings::ErrorLog;
use sigma_plugin::scripts::ScriptTrial;

use crate::args::Lua;
use crate::errorlog;
use crate::output::printed;
use crate::roster::roster;

/// Runs a hook of a file, and prints the result.
pub(crate) fn execute(args: Lua) -> Result<ExitCode> {
    let (_log, _last_lines) = errorlog::start(&ErrorLog::default())?;
    let roster = roster();
    let scripts = roster.scripts().ok_or_else(|| anyhow!("this build has no Lua engine"))?;
    let json = |name: &str, text: Option<String>| -> Result<Value> {
        let parsed = text.map(|text| serde_json::from_str(&text)).transpose();
        parsed.map(Option::unwrap_or_default).with_context(|| format!("--{name} is not JSON"))
    };
    let trial = ScriptTrial {
        file: args.file,
        path: args.path.unwrap_or_default(),
        phase: args.phase,
        conf: json("config", args.config)?,
        metadata: json("metadata", args.metadata)?,
        attributes: json("attributes", args.attributes)?,
        method: args.method,
        target: args.target,
        fields: args.header,
        body: args.data.unwrap_or_default().into_bytes(),
        status: args.status,
        response: args.response.into_bytes(),
    };
    let text = scripts.try_out(&trial).map_err(|reason| anyhow!(reason))?;
    Ok(printed(text.as_bytes()))
}
