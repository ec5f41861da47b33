//! `sigma import`: a configuration made of what describes an API.

use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use sigma_convert::openapi::import::{self, ImportOptions};
use sigma_schema::document::Document;
use sigma_schema::openapi::OpenApi;

use crate::args::ImportOpenApi;
use crate::init::write_new;
use crate::output::printed;

/// Most bytes of a document, as in the plugin that validates by it.
const MOST_BYTES: usize = 16 << 20;

/// Makes a configuration of an OpenAPI document.
pub(crate) fn open_api(args: &ImportOpenApi) -> Result<ExitCode> {
    let name = args.file.display();
    let text = std::fs::read_to_string(&args.file).with_context(|| format!("cannot read {name}"))?;
    let read = Document::parse(&text, MOST_BYTES).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(|problem| format!("{name}: {problem}")).collect();
        anyhow!(lines.join("\n"))
    })?;
    let within = |error: String| anyhow!("{name}: {error}");
    let document = OpenApi::of(read.value).map_err(within)?;
    let wish = ImportOptions {
        upstream: args.upstream.as_deref(),
        validate: args.validate.then_some(text.as_str()),
    };
    let imported = import::configuration(&document, wish).map_err(within)?;
    for note in &imported.notes {
        eprintln!("{name}: {note}");
    }
    let made = serde_norway::to_string(&imported.configuration)?;
    let made = format!("# Made of {} by `sigma import openapi`.\n{made}", plain(&name.to_string()));
    match &args.output {
        Some(path) => write_new(path, &made, "-o FILE"),
        None => Ok(printed(made.as_bytes())),
    }
}

/// A name that stays in its line.
fn plain(name: &str) -> String {
    name.chars().map(|char| if char.is_control() { '?' } else { char }).collect()
}
