//! The middleware `headers`: fields of requests and responses, CORS, and fields for the security of browsers.

use serde_json::{Value, json};

use super::super::decision::Target;
use super::super::logic::group;
use super::super::tree::Tree;
use super::branch::Branch;
use super::fields::{field, is_true, text, texts};
use super::matching::regex;
use super::model::{Model, Named};

const KNOWN: [&str; 32] = [
    "customrequestheaders",
    "customresponseheaders",
    "accesscontrolallowcredentials",
    "accesscontrolallowheaders",
    "accesscontrolallowmethods",
    "accesscontrolalloworiginlist",
    "accesscontrolalloworiginlistregex",
    "accesscontrolexposeheaders",
    "accesscontrolmaxage",
    "addvaryheader",
    "allowedhosts",
    "hostsproxyheaders",
    "sslproxyheaders",
    "stsseconds",
    "stsincludesubdomains",
    "stspreload",
    "forcestsheader",
    "framedeny",
    "customframeoptionsvalue",
    "contenttypenosniff",
    "browserxssfilter",
    "custombrowserxssvalue",
    "contentsecuritypolicy",
    "contentsecuritypolicyreportonly",
    "publickey",
    "referrerpolicy",
    "permissionspolicy",
    "isdevelopment",
    "featurepolicy",
    "sslredirect",
    "ssltemporaryredirect",
    "sslhost",
];

/// Applies the middleware.
pub(super) fn apply(model: &mut Model<'_>, middleware: &Named, conf: &Tree, branch: Branch) -> Vec<Branch> {
    model.unknown(middleware.place.file, conf, &KNOWN);
    if is_true(conf, "sslredirect") {
        let text = "Traefik 3 ignores it; use the middleware redirectScheme.";
        model.remarks.no_effect(middleware.field(conf, "sslredirect"), text);
    }
    let mut branches = Vec::new();
    let Some(branch) = allowed_hosts(model, middleware, conf, branch, &mut branches) else { return branches };
    let Some(mut branch) = preflight(model, middleware, conf, branch, &mut branches) else { return branches };
    for member in field(conf, "customrequestheaders").map(Tree::members).unwrap_or_default() {
        let value = member.value.text().unwrap_or_default();
        if value.contains('$') {
            let place = middleware.at(&member.value);
            model.remarks.differs(place, "In Sigma, `$` begins a variable; check the value.");
        }
        match value {
            "" => branch.request_field(&member.key, None),
            host if member.key.eq_ignore_ascii_case("host") => branch.host = Some(host.to_owned()),
            value => branch.request_field(&member.key, Some(value.to_owned())),
        }
    }
    responses(conf, &mut branch);
    branches.extend(origins(conf, branch));
    branches
}

/// Refuses other hosts, before the rest.
fn allowed_hosts(
    model: &mut Model<'_>,
    middleware: &Named,
    conf: &Tree,
    branch: Branch,
    branches: &mut Vec<Branch>,
) -> Option<Branch> {
    let hosts = texts(conf, "allowedhosts");
    if hosts.is_empty() || is_true(conf, "isdevelopment") {
        return Some(branch);
    }
    if field(conf, "hostsproxyheaders").is_some() {
        let text =
            "Sigma reads the host from X-Forwarded-Host of trusted proxies only; its routers are closed.";
        model.remarks.closed(middleware.field(conf, "hostsproxyheaders"), text);
        branches.push(branch.close("hosts in other fields"));
        return None;
    }
    let hosts: Vec<String> = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
    let (known, mut other) = branch.split(json!(["host", "in", hosts]));
    // It comes first, so its condition has to say the opposite.
    other.decision.conditions.push(json!(["host", "!", "in", hosts]));
    let body = Some("Bad Host\n".to_owned());
    branches.push(other.finish(Target::Respond { status: 500, body, headers: plain() }));
    Some(known)
}

fn plain() -> Vec<(String, String)> {
    vec![("Content-Type".to_owned(), "text/plain; charset=utf-8".to_owned())]
}

fn has_cors(conf: &Tree) -> bool {
    [
        "accesscontrolallowheaders",
        "accesscontrolallowmethods",
        "accesscontrolalloworiginlist",
        "accesscontrolalloworiginlistregex",
        "accesscontrolexposeheaders",
    ]
    .iter()
    .any(|name| field(conf, name).is_some_and(|list| !list.items().is_empty()))
        || is_true(conf, "accesscontrolallowcredentials")
        || is_true(conf, "addvaryheader")
}

/// Responds to preflight requests.
fn preflight(
    model: &mut Model<'_>,
    middleware: &Named,
    conf: &Tree,
    branch: Branch,
    branches: &mut Vec<Branch>,
) -> Option<Branch> {
    if !has_cors(conf) {
        return Some(branch);
    }
    for pattern in texts(conf, "accesscontrolalloworiginlistregex") {
        if let Err(reason) = regex(&pattern) {
            model.remarks.gap(middleware.field(conf, "accesscontrolalloworiginlistregex"), reason);
        }
    }
    let conditions =
        ["http_origin", "http_access_control_request_method"].map(|name| json!([name, "~~", "."]));
    let mut asks = branch.clone();
    let answers =
        asks.decision.methods.is_empty() || asks.decision.methods.iter().any(|method| method == "OPTIONS");
    if answers {
        asks.decision.methods = vec!["OPTIONS".to_owned()];
        asks.decision.conditions.extend(conditions);
        let headers = preflight_fields(conf);
        for (condition, origin) in origin_cases(conf) {
            let mut case = asks.clone();
            case.decision.conditions.push(condition);
            let mut headers = headers.clone();
            headers.push(("Access-Control-Allow-Origin".to_owned(), origin));
            branches.push(case.finish(Target::Respond { status: 200, body: None, headers }));
        }
        branches.push(asks.finish(Target::Respond { status: 200, body: None, headers }));
    }
    Some(branch)
}

fn preflight_fields(conf: &Tree) -> Vec<(String, String)> {
    let credentials = is_true(conf, "accesscontrolallowcredentials");
    let mut fields = Vec::new();
    let mut add = |name: &str, value: String| fields.push((name.to_owned(), value));
    if credentials {
        add("Access-Control-Allow-Credentials", "true".to_owned());
    }
    let lists = [
        ("accesscontrolallowheaders", "Access-Control-Allow-Headers", "$http_access_control_request_headers"),
        ("accesscontrolallowmethods", "Access-Control-Allow-Methods", "$http_access_control_request_method"),
    ];
    for (name, header, asked) in lists {
        let list = texts(conf, name);
        if credentials && list.iter().any(|item| item == "*") {
            add(header, asked.to_owned());
        } else if !list.is_empty() {
            add(header, list.join(","));
        }
    }
    if let Some(age) = text(conf, "accesscontrolmaxage") {
        add("Access-Control-Max-Age", age.to_owned());
    }
    if let Some(exposed) = exposed(conf) {
        add("Access-Control-Expose-Headers", exposed);
    }
    fields
}

fn exposed(conf: &Tree) -> Option<String> {
    let list = texts(conf, "accesscontrolexposeheaders");
    let any = list.iter().any(|item| item == "*") && is_true(conf, "accesscontrolallowcredentials");
    (!list.is_empty() && !any).then(|| list.join(","))
}

/// Conditions on the origin with the value of Access-Control-Allow-Origin.
fn origin_cases(conf: &Tree) -> Vec<(Value, String)> {
    let origins = texts(conf, "accesscontrolalloworiginlist");
    let credentials = is_true(conf, "accesscontrolallowcredentials");
    if origins.iter().any(|origin| origin == "*") {
        let value = if credentials { "$http_origin" } else { "*" };
        return vec![(json!(["uri", "~~", "^/"]), value.to_owned())];
    }
    let mut alternatives = Vec::new();
    if !origins.is_empty() {
        alternatives.push(json!(["http_origin", "in", origins]));
    }
    let patterns = texts(conf, "accesscontrolalloworiginlistregex");
    let patterns = patterns.iter().filter_map(|pattern| regex(pattern).ok());
    alternatives.extend(patterns.map(|pattern| json!(["http_origin", "~~", pattern])));
    match alternatives.is_empty() {
        true => Vec::new(),
        false => vec![(group("OR", alternatives), "$http_origin".to_owned())],
    }
}

/// Sets the fields of CORS that depend on the origin.
fn origins(conf: &Tree, mut branch: Branch) -> Vec<Branch> {
    if is_true(conf, "accesscontrolallowcredentials") {
        branch.response_field("Access-Control-Allow-Credentials", Some("true".to_owned()));
    }
    if let Some(exposed) = exposed(conf) {
        branch.response_field("Access-Control-Expose-Headers", Some(exposed));
    }
    if is_true(conf, "addvaryheader") {
        branch.response_additions.push("Vary: Origin".to_owned());
    }
    let origins = texts(conf, "accesscontrolalloworiginlist");
    if origins.iter().any(|origin| origin == "*") && !is_true(conf, "accesscontrolallowcredentials") {
        branch.response_field("Access-Control-Allow-Origin", Some("*".to_owned()));
        return vec![branch];
    }
    let mut branches = Vec::new();
    for (condition, value) in origin_cases(conf) {
        let (mut allowed, other) = branch.split(condition);
        allowed.response_field("Access-Control-Allow-Origin", Some(value));
        branches.push(allowed);
        branch = other;
    }
    branches.push(branch);
    branches
}

/// Sets the fields of responses that depend on nothing.
fn responses(conf: &Tree, branch: &mut Branch) {
    for member in field(conf, "customresponseheaders").map(Tree::members).unwrap_or_default() {
        let value = member.value.text().unwrap_or_default();
        branch.response_field(&member.key, (!value.is_empty()).then(|| value.to_owned()));
    }
    let development = is_true(conf, "isdevelopment");
    let sts = field(conf, "stsseconds").and_then(Tree::integer).unwrap_or(0);
    if sts > 0 && !development && (branch.is_tls || is_true(conf, "forcestsheader")) {
        let mut value = format!("max-age={sts}");
        for (name, word) in [("stsincludesubdomains", "; includeSubDomains"), ("stspreload", "; preload")] {
            if is_true(conf, name) {
                value.push_str(word);
            }
        }
        branch.response_field("Strict-Transport-Security", Some(value));
    }
    let frame = text(conf, "customframeoptionsvalue").or(is_true(conf, "framedeny").then_some("DENY"));
    let xss =
        text(conf, "custombrowserxssvalue").or(is_true(conf, "browserxssfilter").then_some("1; mode=block"));
    let nosniff = is_true(conf, "contenttypenosniff").then_some("nosniff");
    let key = text(conf, "publickey").filter(|_| !development);
    for (name, value) in [
        ("X-Frame-Options", frame),
        ("X-Content-Type-Options", nosniff),
        ("X-XSS-Protection", xss),
        ("Public-Key-Pins", key),
        ("Content-Security-Policy", text(conf, "contentsecuritypolicy")),
        ("Content-Security-Policy-Report-Only", text(conf, "contentsecuritypolicyreportonly")),
        ("Referrer-Policy", text(conf, "referrerpolicy")),
        ("Permissions-Policy", text(conf, "permissionspolicy")),
    ] {
        if let Some(value) = value {
            branch.response_field(name, Some(value.to_owned()));
        }
    }
}
