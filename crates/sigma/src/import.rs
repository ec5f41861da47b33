//! `sigma import`: a configuration made of another gateway's, or of what describes an API.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use sigma_config::ParseOptions;
use sigma_convert::import::source::{DiskFiles, Files as _, Input, SourceFile};
use sigma_convert::import::{Format, Import, probe, yaml};
use sigma_convert::openapi::import::{self, ImportOptions};
use sigma_schema::document::Document;
use sigma_schema::openapi::OpenApi;

use crate::args::{Import as Command, ImportFiles, ImportOpenApi, ReportForm};
use crate::init::{create, write_new};
use crate::output::printed;

/// Most bytes of a document, as in the plugin that validates by it.
const MOST_BYTES: usize = 16 << 20;

/// Runs `sigma import`.
pub(crate) fn execute(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Openapi(args) => open_api(args),
        Command::Nginx(args) => files(Format::Nginx, args),
        Command::Spring(args) => files(Format::Spring, args),
        Command::Traefik(args) => files(Format::Traefik, args),
        Command::Haproxy(args) => files(Format::Haproxy, args),
        Command::Caddy(args) => files(Format::Caddy, args),
        Command::Envoy(args) => files(Format::Envoy, args),
        Command::Kong(args) => files(Format::Kong, args),
        Command::Krakend(args) => files(Format::Krakend, args),
        Command::Apisix(args) => files(Format::Apisix, args),
    }
}

/// Makes a configuration of an OpenAPI document.
fn open_api(args: &ImportOpenApi) -> Result<ExitCode> {
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
    let made = format!("# Converted from {} by `sigma import openapi`.\n{made}", plain(&name.to_string()));
    match &args.output {
        Some(path) => write_new(path, &made, "-o FILE"),
        None => Ok(printed(made.as_bytes())),
    }
}

/// Status of an import with closed routes.
const CLOSED_ROUTES: u8 = 2;

/// Makes a configuration of another gateway's files.
fn files(format: Format, args: &ImportFiles) -> Result<ExitCode> {
    let mut sources = Vec::new();
    for path in &args.files {
        let name = path.display().to_string();
        let text = DiskFiles.read(&name).map_err(|error| anyhow!("cannot read {name}: {error}"))?;
        sources.push(SourceFile { name, text });
    }
    let input = Input { files: &sources, access: &DiskFiles };
    let mut imported = sigma_convert::import::import(format, &input).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(located).collect();
        anyhow!(lines.join("\n"))
    })?;
    close_refused(&mut imported);
    let names: Vec<String> = sources.iter().map(|source| source.name.clone()).collect();
    let text =
        yaml::text(&imported.document, &names.join(", "), format.word()).map_err(|error| anyhow!(error))?;
    report(args, &imported);
    let has_gaps = imported.report.has_open_guards();
    if has_gaps && args.strict {
        eprintln!("no file was written: a guard of access cannot be converted (--strict)");
        return Ok(ExitCode::from(CLOSED_ROUTES));
    }
    if let Some(path) = &args.probe {
        create(path, &format!("{:#}\n", probe::json(&imported.probes)), "--probe FILE")?;
    }
    write_document(args.output.as_deref(), &text)?;
    if has_gaps && !args.accept_gaps {
        eprintln!("routes whose guard cannot be converted return 503; the report lists them");
        return Ok(ExitCode::from(CLOSED_ROUTES));
    }
    Ok(ExitCode::SUCCESS)
}

/// Rounds of checks: closing a route may show the problem of another one.
const MOST_CHECKS: usize = 4;

/// Closes the routes that the check of configurations refuses, so that the file can be served.
fn close_refused(imported: &mut Import) {
    let roster = crate::roster::roster();
    let options = ParseOptions { plugins: &*roster, ..ParseOptions::default() };
    for _ in 0..MOST_CHECKS {
        let problems = match sigma_config::parse(&imported.document.to_string(), &options) {
            Ok(_) => return,
            Err(problems) => problems,
        };
        let left = imported.close_refused(&problems);
        if left.len() == problems.len() {
            left.iter().for_each(|problem| eprintln!("{problem}"));
            return;
        }
    }
}

fn write_document(path: Option<&Path>, text: &str) -> Result<()> {
    let Some(path) = path else {
        printed(text.as_bytes());
        return Ok(());
    };
    create(path, text, "-o FILE")?;
    let name = path.display();
    eprintln!("wrote {name}; check it with `sigma check {name}`, serve it with `sigma run {name}`");
    Ok(())
}

/// Prints the report: to the standard output, unless the document goes there.
fn report(args: &ImportFiles, imported: &Import) {
    let text = match args.report {
        ReportForm::Text => imported.report.text(),
        ReportForm::Json => format!("{:#}\n", imported.report.json()),
    };
    if args.output.is_some() {
        printed(text.as_bytes());
    } else {
        eprint!("{text}");
    }
}

/// A problem of a source file as `FILE:LINE: message`.
fn located(problem: &sigma_schema::problem::Problem) -> String {
    let line = problem.line.map(|line| format!("{line}: ")).unwrap_or_default();
    let hint = problem.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{}:{line}{}{hint}", problem.pointer, problem.message)
}

/// A name that stays in its line.
fn plain(name: &str) -> String {
    name.chars().map(|char| if char.is_control() { '?' } else { char }).collect()
}
