//! Traefik: static and dynamic files in YAML and TOML, and labels in compose files.

mod branch;
mod entries;
mod fields;
mod guards;
mod headers;
mod labels;
mod matching;
mod middlewares;
mod model;
mod probes;
mod routers;
mod rule;
mod services;
mod streams;
mod tls;
mod traffic;

use serde_json::{Map, json};
use sigma_schema::problem::Problem;

use super::Translated;
use super::decision::Plan;
use super::source::{Input, SourceFile, SourceLine};
use super::tree::{self, Tree};
use fields::{at, field, texts};
use model::{Located, Model};

/// Maximum number of files that one provider names.
const MAX_FILES: usize = 1000;

/// Keys of static files.
const STATIC: [&str; 17] = [
    "global",
    "serverstransport",
    "tcpserverstransport",
    "entrypoints",
    "providers",
    "api",
    "metrics",
    "ping",
    "log",
    "accesslog",
    "tracing",
    "hostresolver",
    "certificatesresolvers",
    "experimental",
    "core",
    "spiffe",
    "ocsp",
];

/// Fields that Traefik removes from requests of peers that it does not trust.
const FORWARDED: [&str; 13] = [
    "Proxy",
    "X-Forwarded-For",
    "X-Forwarded-Proto",
    "X-Forwarded-Host",
    "X-Forwarded-Port",
    "X-Forwarded-Server",
    "X-Forwarded-Uri",
    "X-Forwarded-Method",
    "X-Forwarded-Prefix",
    "X-Forwarded-Tls-Client-Cert",
    "X-Forwarded-Tls-Client-Cert-Info",
    "X-Replaced-Path",
    "X-Real-Ip",
];

/// Converts files of Traefik.
pub(super) fn translate(input: &Input<'_>) -> Result<Translated, Vec<Problem>> {
    let mut model = Model::new(input.access);
    let mut composes = Vec::new();
    let mut dynamics = Vec::new();
    for file in input.files {
        read(&mut model, file, &mut composes, &mut dynamics)?;
    }
    for (file, compose) in &composes {
        labels::statics(&mut model, *file, compose);
    }
    let named: Vec<String> = input.files.iter().map(|file| file.name.clone()).collect();
    for file in provided(&mut model, &named) {
        read(&mut model, &file, &mut composes, &mut dynamics)?;
    }
    let syntax = model.statics.iter().find_map(|located| at(&located.tree, &["core", "defaultrulesyntax"]));
    model.is_old |= syntax.and_then(Tree::text).is_some_and(|syntax| syntax.eq_ignore_ascii_case("v2"));
    for (file, tree) in dynamics {
        model.dynamic(file, "file", tree);
    }
    for (file, compose) in &composes {
        labels::dynamic(&mut model, *file, compose);
    }
    Ok(plan(model))
}

/// Makes the plan of a complete model.
fn plan(mut model: Model<'_>) -> Translated {
    let mut plan = Plan::default();
    let mut probes = Vec::new();
    let mut settings = Map::new();
    // Traefik cleans paths and sends them on cleaned; an encoded slash is no separator.
    settings
        .insert("router".to_owned(), json!({"forward_path": "canonical", "match_uri_encoded_slash": true}));
    settings.insert("untrusted_fields".to_owned(), json!(FORWARDED));
    let mut points = entries::entry_points(&mut model, &mut settings);
    entries::process(&mut model, &mut settings);
    plan.settings = settings;
    streams::convert(&mut model, &mut points, &mut plan);
    routers::convert(&mut model, &mut points, &mut plan, &mut probes);
    plan.listeners = points.iter().map(entries::EntryPoint::listener).collect();
    model.mark_rest();
    Translated { plan, report: model.remarks.finish(), probes }
}

/// Reads one file: static settings, dynamic ones, or a compose file.
fn read(
    model: &mut Model<'_>,
    file: &SourceFile,
    composes: &mut Vec<(u16, Tree)>,
    dynamics: &mut Vec<(u16, Tree)>,
) -> Result<(), Vec<Problem>> {
    let named = |problem: Problem| problem.within(&file.name);
    let index = model.remarks.file(&file.name, &file.text);
    let index = index.map_err(|reason| vec![Problem::new(&file.name, "too_large", reason)])?;
    let text = environment(model, &file.text);
    let extension = file.name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    let parsed = match extension.as_str() {
        "toml" => tree::toml(&text).map(|tree| vec![tree]),
        "json" => tree::json(&text).map(|tree| vec![tree]),
        _ => tree::yaml(&text),
    };
    let documents = parsed.map_err(|problems| problems.into_iter().map(named).collect::<Vec<_>>())?;
    for tree in documents {
        if labels::is_compose(&tree) {
            composes.push((index, tree));
            continue;
        }
        let is_static = STATIC.iter().any(|key| field(&tree, key).is_some());
        let is_dynamic = ["http", "tcp", "udp", "tls"].iter().any(|key| field(&tree, key).is_some());
        match (is_static, is_dynamic) {
            (true, true) => {
                let (own, other) = split(tree);
                model.statics.push(Located { file: index, tree: own });
                dynamics.push((index, other));
            }
            (true, false) => model.statics.push(Located { file: index, tree }),
            (false, _) => dynamics.push((index, tree)),
        }
    }
    Ok(())
}

/// Parts a file that has static and dynamic settings.
fn split(tree: Tree) -> (Tree, Tree) {
    let (mut own, mut other) = (Tree::map(tree.line), Tree::map(tree.line));
    for member in tree.members() {
        let is_static = STATIC.iter().any(|key| member.key.eq_ignore_ascii_case(key));
        let target = if is_static { &mut own } else { &mut other };
        *target.entry(&member.key, member.line) = member.value.clone();
    }
    (own, other)
}

/// The files that the file provider names and the command line does not.
fn provided(model: &mut Model<'_>, named: &[String]) -> Vec<SourceFile> {
    let mut paths = Vec::new();
    for Located { file, tree } in model.statics.clone() {
        let Some(provider) = at(&tree, &["providers", "file"]) else { continue };
        let place = SourceLine { file, line: provider.line };
        paths.extend(texts(provider, "filename").into_iter().map(|path| (path, place)));
        for folder in texts(provider, "directory") {
            for pattern in ["*.yml", "*.yaml", "*.toml"] {
                let found = model.access.list(&format!("{}/{pattern}", folder.trim_end_matches('/')));
                paths.extend(found.into_iter().map(|path| (path, place)));
            }
        }
    }
    paths.truncate(MAX_FILES);
    let mut files: Vec<SourceFile> = Vec::new();
    for (path, place) in paths {
        let known = named.iter().any(|other| same(other, &path))
            || files.iter().any(|other| same(&other.name, &path));
        if known {
            continue;
        }
        // Paths in a container differ from those here: the files are named on the command line then.
        match model.access.read(&path) {
            Ok(text) => files.push(SourceFile { name: path, text }),
            Err(reason) => {
                let by_name = path.rsplit('/').next().unwrap_or(&path);
                if !named.iter().any(|other| other.rsplit('/').next() == Some(by_name)) {
                    model
                        .remarks
                        .gap(place, format!("`{path}` cannot be read ({reason}): name the file as well."));
                }
            }
        }
    }
    files
}

/// Whether two paths name one file.
fn same(one: &str, two: &str) -> bool {
    let clean = |path: &str| path.trim_start_matches("./").replace("//", "/");
    let (one, two) = (clean(one), clean(two));
    one == two || one.ends_with(&format!("/{two}")) || two.ends_with(&format!("/{one}"))
}

/// Inserts environment variables of templates: `{{ env "NAME" }}`.
fn environment(model: &Model<'_>, text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("{{") {
        let Some(length) = rest[start..].find("}}") else { break };
        let inner = rest[start + 2..start + length].trim().trim_matches('-').trim();
        out.push_str(&rest[..start]);
        match inner.strip_prefix("env ").map(|name| name.trim().trim_matches(['"', '`'])) {
            Some(name) => out.push_str(&model.access.variable(name).unwrap_or_default()),
            None => out.push_str(&rest[start..start + length + 2]),
        }
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests;
