//! Static files: `file_server` with `root`, `try_files` and hidden names.

use serde_json::{Map, Value, json};

use super::super::decision::Target;
use super::rewriting::Rewrite;
use super::run::{Item, Runner};
use super::state::{Branch, Change, glob};

/// Serves files, below hidden names 404.
pub(super) fn file_server(runner: &mut Runner<'_>, item: &Item, mut branch: Branch) -> Vec<Branch> {
    let mut hidden: Vec<String> = Vec::new();
    let mut conf = Map::new();
    let mut listing = item.args.iter().any(|arg| arg == "browse");
    let mut status = None;
    for line in item.line.lines() {
        match line.name() {
            "root" => branch.files.root = line.arg(0).map(str::to_owned).filter(|path| !path.contains('{')),
            "hide" => hidden.extend(line.args()),
            "index" => {
                conf.insert("index".to_owned(), json!(line.args()));
            }
            "browse" => listing = true,
            "precompressed" => {
                let codings = if line.args().is_empty() {
                    vec!["br".into(), "zstd".into(), "gzip".into()]
                } else {
                    line.args()
                };
                conf.insert("precompressed".to_owned(), json!(codings));
            }
            "status" => status = line.arg(0).and_then(|arg| arg.parse::<u16>().ok()),
            "pass_thru" => {
                runner.remarks.gap(line.place(), "Use `fallback: { pass: \"\" }` of static-files.")
            }
            _ => runner.remarks.differs(line.place(), "Sigma redirects folders to their path with a slash."),
        }
    }
    let Some(root) = branch.files.root.clone().or_else(|| default_root(runner)) else {
        runner.remarks.gap(item.place(), "Name a folder with `root`: Sigma serves no working directory.");
        return vec![branch.finish(Target::Respond { status: 404, body: None, headers: Vec::new() })];
    };
    conf.insert("root".to_owned(), root.trim_end_matches('/').into());
    if root == "/" {
        conf.insert("root".to_owned(), "/".into());
    }
    conf.entry("index").or_insert_with(|| json!(["index.html", "index.txt"]));
    conf.insert("hidden".to_owned(), true.into());
    conf.insert("redirect_status".to_owned(), 308.into());
    conf.insert("redirect_files".to_owned(), true.into());
    // Go's server leaves the date out of a 304 that has a tag.
    let date = json!({"map": "$status", "exact": {"304": ""}, "default": "$sent_http_last_modified"});
    runner.variables.own.insert("last_modified".to_owned(), date);
    branch.response.push(("Last-Modified".to_owned(), Change::Set("$var_last_modified".to_owned())));
    if listing {
        conf.insert("listing".to_owned(), true.into());
        runner.remarks.differs(item.place(), "Folder listings have Sigma's own form.");
    }
    attempts(runner, item, &mut branch, &mut conf);
    if let Some(status) = status {
        branch.decision.plugins.insert("response-rewrite".to_owned(), json!({"status_code": status}));
    }
    let mut out = Vec::new();
    if let Some(pattern) = hidden_pattern(&hidden, &root) {
        let mut secret = branch.clone();
        secret.decision.conditions.push(json!(["uri", "~~", pattern]));
        out.push(secret.finish(Target::Respond { status: 404, body: None, headers: Vec::new() }));
    }
    out.push(branch.finish(Target::Files(conf)));
    out
}

fn default_root(runner: &Runner<'_>) -> Option<String> {
    let folder = runner.folder.trim_end_matches('/');
    (!folder.is_empty()).then(|| folder.to_owned())
}

/// Candidates of try_files and the changed path as `try` and `fallback`.
fn attempts(runner: &mut Runner<'_>, item: &Item, branch: &mut Branch, conf: &mut Map<String, Value>) {
    match &branch.target.rewrite {
        Rewrite::Prefix { known, lead } if known.is_empty() && lead.is_empty() => {}
        Rewrite::Prefix { known, lead } if lead.is_empty() => {
            conf.insert("prefix".to_owned(), known.clone().into());
        }
        Rewrite::Fixed(path) => {
            conf.insert("try".to_owned(), json!([path]));
            return;
        }
        Rewrite::Template(text) => {
            // The address of the request has its query too.
            let path = text.replace("${request_uri}", "${uri}");
            conf.insert("try".to_owned(), json!([path.split('?').next().unwrap_or_default()]));
            return;
        }
        _ => {
            runner.remarks.gap(item.place(), "Files below a changed path are looked up by the client's path.")
        }
    }
    let candidates = std::mem::take(&mut branch.files.candidates);
    let below = branch.files.below_root.clone().unwrap_or_default();
    let Some((last, first)) = candidates.split_last() else {
        if !below.is_empty() {
            conf.insert("try".to_owned(), json!([format!("{below}${{uri}}")]));
        }
        return;
    };
    let mut tries: Vec<String> = Vec::new();
    // Files have no query.
    let file = |text: &str| text.replace("{?query}", "").split('?').next().unwrap_or_default().to_owned();
    for candidate in first {
        let text = runner.text(item.place(), &file(candidate));
        tries.push(format!("{below}{}", text.replace("${uri}", "$uri")));
    }
    let text = runner.text(item.place(), &file(last)).replace("${uri}", "$uri");
    if let Some(status) = last.strip_prefix('=').and_then(|status| status.parse::<u16>().ok()) {
        conf.insert("fallback".to_owned(), json!({"status": status}));
    } else if text.contains('$') || !below.is_empty() {
        tries.push(format!("{below}{text}"));
        conf.insert("fallback".to_owned(), json!({"status": 404}));
    } else {
        let slash = if text.starts_with('/') { "" } else { "/" };
        conf.insert("fallback".to_owned(), json!({"file": format!("{slash}{text}")}));
    }
    if !tries.is_empty() {
        conf.insert("try".to_owned(), json!(tries));
    }
}

/// The paths of hidden names: a name without a slash hides each part of a path.
fn hidden_pattern(hidden: &[String], root: &str) -> Option<String> {
    let mut parts = Vec::new();
    let mut whole = Vec::new();
    for name in hidden {
        match name.contains('/') {
            false => parts.push(glob(name, false)),
            true => {
                let path =
                    name.strip_prefix(root.trim_end_matches('/')).unwrap_or(name).trim_start_matches("./");
                let slash = if path.starts_with('/') { "" } else { "/" };
                whole.push(format!("^{slash}{}(?:/|$)", glob(path.trim_end_matches('/'), false)));
            }
        }
    }
    if !parts.is_empty() {
        whole.push(format!("(?:^|/)(?:{})(?:/|$)", parts.join("|")));
    }
    (!whole.is_empty()).then(|| whole.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_names_are_parts_of_paths() {
        let pattern = hidden_pattern(&[".git".to_owned(), "*.bak".to_owned()], "/srv").unwrap();
        let regex = regex::Regex::new(&pattern).unwrap();
        for (path, hides) in
            [("/.git/config", true), ("/a/x.bak", true), ("/x.bakery", false), ("/git", false)]
        {
            assert_eq!(regex.is_match(path), hides, "{path}");
        }
    }
}
