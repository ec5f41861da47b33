//! `php_fastcgi` and the FastCGI settings of upstreams.

use serde_json::{Map, Value, json};

use super::parse::Line;
use super::proxy::{Settings, finish, option};
use super::run::{Item, Runner};
use super::state::Branch;

/// The FastCGI settings of an upstream.
pub(super) fn fastcgi(runner: &mut Runner<'_>, lines: &[Line], root: Option<&str>) -> Value {
    let mut conf = json!({});
    if let Some(root) = root {
        conf["root"] = root.into();
    }
    let mut params = Map::new();
    for line in lines {
        match line.name() {
            "root" => conf["root"] = line.arg(0).unwrap_or_default().into(),
            "env" => {
                let value = runner.text(line.place(), line.arg(1).unwrap_or_default());
                params.insert(line.arg(0).unwrap_or_default().to_owned(), value.into());
            }
            "split" => {
                let split = regex::escape(line.arg(0).unwrap_or(".php"));
                conf["split_path_info"] = format!("^(.+?{split})(/.*)?$").into();
            }
            _ => {}
        }
    }
    // Caddy sends this field of the request twice.
    params.entry("HTTP_CONTENT_TYPE").or_insert_with(|| "$content_type".into());
    params.entry("REMOTE_HOST").or_insert_with(|| "$remote_addr".into());
    params.entry("REQUEST_URI").or_insert_with(|| "$real_request_uri".into());
    params.entry("DOCUMENT_URI").or_insert_with(|| "$fastcgi_script_name".into());
    conf["params"] = Value::Object(params);
    conf
}

/// Applies `php_fastcgi`: scripts go to the application, other files are served, the rest is its main script.
pub(super) fn php_fastcgi(runner: &mut Runner<'_>, item: &Item, mut branch: Branch) -> Vec<Branch> {
    let mut settings = Settings { nodes: item.args.clone(), ..Settings::default() };
    let own = ["root", "split", "env", "index", "try_files", "resolve_root_symlink", "capture_stderr"];
    let lines = item.line.lines();
    let index =
        lines.iter().find(|line| line.name() == "index").and_then(|line| line.arg(0)).unwrap_or("index.php");
    let Some(root) = branch.files.root.clone() else {
        runner.remarks.closed(
            item.place(),
            "The folder of the scripts is unknown: set it with `root`. The route is closed.",
        );
        return vec![branch.close("php_fastcgi without a root")];
    };
    let mut conf = fastcgi(runner, lines, Some(&root));
    conf["index"] = index.into();
    if conf.get("split_path_info").is_none() {
        conf["split_path_info"] = "^(.+?\\.php)(/.*)?$".into();
    }
    settings.upstream.insert("fastcgi".to_owned(), conf);
    settings.upstream.insert("scheme".to_owned(), "fcgi".into());
    let mut branches = vec![branch.clone()];
    for line in lines.iter().filter(|line| !own.contains(&line.name())) {
        branches = option(runner, line, &mut settings, branches);
    }
    branch = branches.remove(0);
    if lines.iter().any(|line| line.name() == "try_files") {
        runner.remarks.differs(item.place(), "Files are tried by their path, then the main script runs.");
    }
    let text = "For a missing script, the application returns 404. Caddy forwards the field `Status` of the application, Sigma does not.";
    runner.remarks.differs(item.place(), text);
    let mut scripts = branch.clone();
    scripts.decision.conditions.push(json!(["uri", "~~", "\\.php(?:/|$)"]));
    let mut others = branch;
    // A folder with the main script gets a redirect to its path with a slash; one without it runs the main script.
    let files = json!({"root": root.trim_end_matches('/'), "index": [], "pass_index": [index], "hidden": true,
        "try": ["$uri", "$uri/"], "redirect_status": 308, "skip_bare_folders": true,
        "fallback": {"pass": format!("/{index}$is_args$args")}});
    others.decision.plugins.insert("static-files".to_owned(), files);
    finish(runner, item, settings, vec![scripts, others], "fcgi")
}
