//! Middlewares of HTTP routers: the names, paths and redirects.

use serde_json::{Map, Value, json};

use super::super::decision::Target;
use super::super::source::SourceLine;
use super::super::tree::Tree;
use super::branch::{Branch, groups};
use super::fields::{field, is_true, text, texts};
use super::matching::regex;
use super::model::{Model, Named};
use super::{guards, headers, traffic};

/// Maximum nesting of chains.
const MAX_CHAINS: usize = 16;

/// Variables that redirects need, by name.
pub(super) type Variables = Map<String, Value>;

/// The additions of middlewares besides the branches.
#[derive(Debug, Default)]
pub(super) struct Added {
    /// Own variables of the document.
    pub(super) variables: Variables,
    /// Error pages: name of the middleware, its service and query.
    pub(super) pages: Vec<(Named, String)>,
    /// Middlewares that a router uses, by place.
    pub(super) used: std::collections::HashSet<SourceLine>,
}

/// Applies a list of middlewares in order.
pub(super) fn apply(
    model: &mut Model<'_>,
    added: &mut Added,
    branches: Vec<Branch>,
    names: &[String],
    from: &Named,
) -> Vec<Branch> {
    apply_nested(model, added, branches, names, from, 0)
}

fn apply_nested(
    model: &mut Model<'_>,
    added: &mut Added,
    mut branches: Vec<Branch>,
    names: &[String],
    from: &Named,
    depth: usize,
) -> Vec<Branch> {
    for name in names {
        let found = Model::find(&model.http.middlewares, name, from.provider).cloned();
        let Some(middleware) = found.filter(|_| depth <= MAX_CHAINS) else {
            let text = format!(
                "The middleware `{name}` is not in the files, so its routers are closed; add its file."
            );
            model.remarks.closed(from.field(&from.tree, "middlewares"), text);
            let reason = format!("the middleware {name} is missing");
            return map(branches, |branch| vec![branch.close(reason.clone())]);
        };
        added.used.insert(middleware.place);
        if let Some(chain) = field(&middleware.tree, "chain") {
            let names = texts(chain, "middlewares");
            branches = apply_nested(model, added, branches, &names, &middleware, depth + 1);
            continue;
        }
        branches = map(branches, |branch| one(model, added, &middleware, branch));
    }
    branches
}

/// Replaces each branch that continues.
fn map(branches: Vec<Branch>, mut change: impl FnMut(Branch) -> Vec<Branch>) -> Vec<Branch> {
    let mut out = Vec::with_capacity(branches.len());
    for branch in branches {
        match branch.is_finished {
            true => out.push(branch),
            false => out.extend(change(branch)),
        }
    }
    out
}

/// Applies one middleware to one branch.
fn one(model: &mut Model<'_>, added: &mut Added, middleware: &Named, mut branch: Branch) -> Vec<Branch> {
    let Some(member) = middleware.tree.members().first().cloned() else {
        model.remarks.closed(middleware.place, "This middleware has no kind, so its routers are closed.");
        return vec![branch.close("a middleware without a kind")];
    };
    let (kind, conf) = (member.key.to_ascii_lowercase(), &member.value);
    match kind.as_str() {
        "addprefix" => {
            branch.add_prefix(text(conf, "prefix").unwrap_or_default());
            vec![branch]
        }
        "stripprefix" => {
            model.unknown(middleware.place.file, conf, &["prefixes", "forceslash"]);
            let prefixes = texts(conf, "prefixes");
            let kept = branch.clone();
            or_gap(model, middleware, kept, branch.strip_prefixes(&prefixes, is_true(conf, "forceslash")))
        }
        "stripprefixregex" => {
            let patterns: Result<Vec<String>, String> =
                texts(conf, "regex").iter().map(|it| regex(it)).collect();
            let kept = branch.clone();
            or_gap(model, middleware, kept, patterns.and_then(|patterns| branch.strip_regexes(&patterns)))
        }
        "replacepath" => {
            branch.replace_path(text(conf, "path").unwrap_or("/"));
            vec![branch]
        }
        "replacepathregex" => {
            let kept = branch.clone();
            let pattern = regex(text(conf, "regex").unwrap_or_default());
            let template = text(conf, "replacement").unwrap_or_default();
            or_gap(
                model,
                middleware,
                kept,
                pattern.and_then(|pattern| branch.replace_regex(&pattern, template)),
            )
        }
        "redirectscheme" => redirect_scheme(model, middleware, conf, branch),
        "redirectregex" => redirect_regex(model, added, middleware, conf, branch),
        "headers" => headers::apply(model, middleware, conf, branch),
        "basicauth" | "digestauth" | "forwardauth" | "ipallowlist" | "ipwhitelist" | "ratelimit"
        | "inflightreq" | "buffering" => guards::apply(model, middleware, &kind, conf, branch),
        _ => traffic::apply(model, added, middleware, &kind, conf, branch),
    }
}

/// Returns the branches, or a remark and the branch as it was.
fn or_gap(
    model: &mut Model<'_>,
    middleware: &Named,
    kept: Branch,
    result: Result<Vec<Branch>, String>,
) -> Vec<Branch> {
    result.unwrap_or_else(|reason| {
        model.remarks.gap(middleware.place, reason);
        vec![kept]
    })
}

/// Two decisions of a redirect: Go keeps the method of requests that are not GET.
pub(super) fn moved(branch: Branch, permanent: bool, to: &str) -> Vec<Branch> {
    let (get, other) = match permanent {
        true => (301, 308),
        false => (302, 307),
    };
    let methods = &branch.decision.methods;
    let to = |status| Target::Redirect { status, to: to.to_owned() };
    if methods.iter().all(|method| method == "GET") && !methods.is_empty() {
        return vec![branch.finish(to(get))];
    }
    if !methods.is_empty() && !methods.iter().any(|method| method == "GET") {
        return vec![branch.finish(to(other))];
    }
    let second = branch.clone();
    let mut first = branch;
    first.decision.methods = vec!["GET".to_owned()];
    vec![first.finish(to(get)), second.finish(to(other))]
}

fn redirect_scheme(model: &mut Model<'_>, middleware: &Named, conf: &Tree, branch: Branch) -> Vec<Branch> {
    let Some(scheme) = text(conf, "scheme") else {
        model.remarks.closed(middleware.place, "A target scheme is missing, so its routers are closed.");
        return vec![branch.close("a redirect without a scheme")];
    };
    let port = text(conf, "port").unwrap_or_default();
    let default = matches!((scheme, port), (_, "") | ("https", "443") | ("http", "80"));
    let port = if default { String::new() } else { format!(":{port}") };
    let is_target = (scheme == "https") == branch.is_tls;
    let permanent = is_true(conf, "permanent");
    let target = format!("{scheme}://$host{port}$request_uri");
    if !is_target {
        return moved(branch, permanent, &target);
    }
    // On a listener of the same scheme only another port is a reason to redirect.
    let own = if branch.is_tls { "443" } else { "80" };
    let wanted = match port.is_empty() {
        true => format!("^[^:]*(?::{own})?$"),
        false => format!("^.*{port}$"),
    };
    let (stays, moves) = branch.split(json!(["http_host", "~~", wanted]));
    let mut all = vec![stays];
    all.extend(moved(moves, permanent, &target));
    all
}

fn redirect_regex(
    model: &mut Model<'_>,
    added: &mut Added,
    middleware: &Named,
    conf: &Tree,
    branch: Branch,
) -> Vec<Branch> {
    let pattern = match regex(text(conf, "regex").unwrap_or_default()) {
        Ok(pattern) => pattern,
        Err(reason) => {
            model.remarks.closed(middleware.place, format!("Traefik or Sigma cannot use this: {reason}."));
            return vec![branch.close(reason)];
        }
    };
    if !branch.has_own_path() {
        model
            .remarks
            .differs(middleware.place, "The pattern sees the path before other middlewares changed it.");
    }
    // Text that the pattern does not match stays around the replacement.
    let anchored_start = pattern.starts_with('^');
    let anchored_end = pattern.ends_with('$') || pattern.ends_with("(.*)") || pattern.ends_with("(.+)");
    let count = regex::Regex::new(&pattern).map_or(1, |regex| regex.captures_len());
    let template = groups(text(conf, "replacement").unwrap_or_default());
    let (whole, value) = match (anchored_start, anchored_end) {
        (true, true) => (pattern.clone(), template),
        (true, false) => (format!("{pattern}(.*)$"), format!("{template}${{{count}}}")),
        (false, end) => {
            let shifted = shift(&template);
            let tail = if end { String::new() } else { format!("${{{}}}", count + 1) };
            let rest = if end { "" } else { "(.*)$" };
            (format!("^(.*?){pattern}{rest}"), format!("${{1}}{shifted}{tail}"))
        }
    };
    let variable = super::super::build::id(&format!("redirect_{}", middleware.name)).replace(['-', '.'], "_");
    let url = "$scheme://$http_host$real_request_uri";
    // In a text of variables, a dollar sign is escaped by a backslash.
    let value = value.replace("$$", "\\$");
    let map = json!({"map": url, "regex": [{"match": whole, "value": value}], "default": ""});
    added.variables.insert(variable.clone(), map);
    let (moves, stays) = branch.split(json!([format!("var_{variable}"), "~~", "."]));
    let mut all = moved(moves, is_true(conf, "permanent"), &format!("$var_{variable}"));
    all.push(stays);
    all
}

/// Adds one to the numbers of groups.
fn shift(template: &str) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("${") {
        let (number, tail) = after.split_once('}').unwrap_or((after, ""));
        let number = number.parse::<usize>().map_or(0, |number| if number == 0 { 0 } else { number + 1 });
        out.push_str(&format!("{before}${{{number}}}"));
        rest = tail;
    }
    out.push_str(rest);
    out
}
