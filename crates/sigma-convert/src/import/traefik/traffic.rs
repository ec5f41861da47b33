//! Middlewares about responses and attempts: compression, retries, circuit breakers, error pages, and the rest.

use serde_json::{Map, Value, json};

use super::super::tree::Tree;
use super::branch::Branch;
use super::fields::{field, is_true, number, seconds, text, texts};
use super::guards::statuses;
use super::middlewares::Added;
use super::model::{Model, Named};

/// Applies a middleware.
pub(super) fn apply(
    model: &mut Model<'_>,
    added: &mut Added,
    middleware: &Named,
    kind: &str,
    conf: &Tree,
    mut branch: Branch,
) -> Vec<Branch> {
    match kind {
        "compress" => compress(model, middleware, conf, &mut branch),
        "retry" => retry(model, middleware, conf, &mut branch),
        "circuitbreaker" => circuit_breaker(model, middleware, conf, &mut branch),
        "errors" => errors(model, added, middleware, conf, &mut branch),
        "contenttype" => {
            model.remarks.no_effect(middleware.place, "Sigma does not guess the type of a response.");
        }
        "grpcweb" => {
            branch.decision.plugins.insert("grpc-web".to_owned(), json!({}));
            if !texts(conf, "alloworigins").is_empty() {
                model
                    .remarks
                    .gap(middleware.field(conf, "alloworigins"), "Add the plugin cors with these origins.");
            }
        }
        "passtlsclientcert" => client_certificate(model, middleware, conf, &mut branch),
        "encodedcharacters" => {
            let text =
                "Sigma decodes paths before it matches them; `router.ambiguous_paths` refuses unclear ones.";
            model.remarks.differs(middleware.place, text);
        }
        "plugin" => {
            let text =
                "Plugins of Traefik cannot run here, and this one may guard its routers: they are closed.";
            model.remarks.closed(middleware.place, text);
            return vec![branch.close(format!("the plugin of middleware {}", middleware.name))];
        }
        _ => {
            let text = format!("The importer does not know the middleware `{kind}`; its routers are closed.");
            model.remarks.closed(middleware.place, text);
            return vec![branch.close(format!("the middleware {}", middleware.name))];
        }
    }
    vec![branch]
}

fn compress(model: &mut Model<'_>, middleware: &Named, conf: &Tree, branch: &mut Branch) {
    let minimum = field(conf, "minresponsebodybytes").and_then(Tree::integer).filter(|bytes| *bytes > 0);
    let minimum = minimum.unwrap_or(1024);
    let included = texts(conf, "includedcontenttypes");
    let types = match included.is_empty() {
        true => json!("*"),
        false => json!(included),
    };
    if !texts(conf, "excludedcontenttypes").is_empty() {
        let text = "Sigma has a list of types to compress, not of types to exclude: set `types`.";
        model.remarks.differs(middleware.field(conf, "excludedcontenttypes"), text);
    }
    let codings = texts(conf, "encodings");
    let codings = if codings.is_empty() {
        vec!["gzip".to_owned(), "br".to_owned(), "zstd".to_owned()]
    } else {
        codings
    };
    for (coding, plugin) in [("gzip", "gzip"), ("br", "brotli"), ("zstd", "zstd")] {
        if let Some(at) = codings.iter().position(|other| other == coding) {
            let mut conf = json!({"types": types, "min_length": minimum, "vary": true});
            if codings.len() > 1 {
                // Of codings that a client wants alike, the first one of the list counts.
                conf["_meta"] = json!({"priority": MOST_PREFERRED - at});
            }
            branch.decision.plugins.insert(plugin.to_owned(), conf);
        }
    }
}

/// The priority of the preferred compression plugin.
const MOST_PREFERRED: usize = 998;

/// Fields of the service's upstream that this router's middleware changes.
fn upstream(branch: &mut Branch, middleware: &Named, fields: Value) {
    let Value::Object(fields) = fields else { return };
    branch.upstream_fields.push((middleware.name.clone(), fields));
}

fn retry(model: &mut Model<'_>, middleware: &Named, conf: &Tree, branch: &mut Branch) {
    let attempts = field(conf, "attempts").and_then(Tree::integer).unwrap_or(1).max(1);
    let mut policy = Map::new();
    policy.insert("retry_on".to_owned(), json!(["connect-failure", "reset"]));
    if is_true(conf, "disableretryonnetworkerror") {
        policy.remove("retry_on");
    }
    let mut codes = Vec::new();
    for status in field(conf, "status").map(statuses).unwrap_or_default() {
        match status.as_str() {
            Some("5xx") => codes.extend([500, 501, 502, 503, 504].map(Value::from)),
            Some(_) => codes.extend([408, 409, 425, 429].map(Value::from)),
            None => codes.push(status),
        }
    }
    if !codes.is_empty() {
        policy.insert("retriable_status_codes".to_owned(), Value::Array(codes));
    }
    if is_true(conf, "retrynonidempotentmethod") {
        let all = ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "POST", "PATCH"];
        policy.insert("methods".to_owned(), json!(all));
    }
    if let Some(pause) = seconds(conf, "initialinterval").filter(|pause| *pause > 0.0) {
        policy.insert("back_off".to_owned(), json!({"base_interval": pause}));
        model.remarks.differs(
            middleware.field(conf, "initialinterval"),
            "The backoff grows as in Envoy, with jitter.",
        );
    }
    upstream(branch, middleware, json!({"retries": attempts - 1, "retry_policy": policy}));
}

/// Understands the usual forms of the expression: one condition or several joined by `||`.
fn circuit_breaker(model: &mut Model<'_>, middleware: &Named, conf: &Tree, branch: &mut Branch) {
    let expression = text(conf, "expression").unwrap_or_default();
    let mut breaker = Map::new();
    for part in expression.split("||").map(str::trim) {
        let compact: String = part.chars().filter(|char| !char.is_whitespace()).collect();
        let Some((name, value)) = compact.split_once('>') else { continue };
        let Ok(value) = value.trim_start_matches('=').parse::<f64>() else { continue };
        if name.starts_with("NetworkErrorRatio") || name.starts_with("ResponseCodeRatio(500") {
            breaker.insert("failure_rate_threshold".to_owned(), number((value * 100.0).clamp(1.0, 100.0)));
        } else if name.starts_with("LatencyAtQuantileMS") {
            breaker.insert("slow_call_duration_threshold".to_owned(), number(value / 1000.0));
            breaker.insert("slow_call_rate_threshold".to_owned(), 50.into());
        }
    }
    if breaker.is_empty() {
        let text = "Sigma's circuit breaker has rates of failed and slow requests: set `circuit_breaker`.";
        model.remarks.gap(middleware.place, text);
        return;
    }
    if !expression.contains("ResponseCodeRatio") {
        breaker.insert("failure_status_codes".to_owned(), json!([502, 504]));
    }
    let open = seconds(conf, "fallbackduration").filter(|open| *open > 0.0).unwrap_or(10.0);
    breaker.insert("wait_duration_in_open_state".to_owned(), number(open));
    let status = field(conf, "responsecode").and_then(Tree::integer).filter(|status| *status != 503);
    if let Some(status) = status {
        breaker.insert("fallback".to_owned(), json!({"status": status}));
    }
    let text = "The window and the trial requests are Sigma's: see circuit breakers in the documents.";
    model.remarks.differs(middleware.place, text);
    upstream(branch, middleware, json!({"circuit_breaker": breaker}));
}

fn errors(model: &mut Model<'_>, added: &mut Added, middleware: &Named, conf: &Tree, branch: &mut Branch) {
    let mut status = field(conf, "status").map(statuses).unwrap_or_default();
    let all = status.len();
    status.retain(|status| status.as_u64().is_none_or(|status| status >= 400));
    if status.len() < all {
        model
            .remarks
            .differs(middleware.field(conf, "status"), "Pages replace responses of 400 and above only.");
    }
    let (Some(service), false) = (text(conf, "service"), status.is_empty()) else {
        model.remarks.gap(middleware.place, "An error page needs statuses and a service.");
        return;
    };
    if field(conf, "statusrewrites").is_some() {
        let text = "Set `response_status` of the page.";
        model.remarks.gap(middleware.field(conf, "statusrewrites"), text);
    }
    let query = text(conf, "query").unwrap_or("/");
    if query.contains("{url}") {
        let text = "The page gets the path and query of the request instead of its whole URL.";
        model.remarks.differs(middleware.field(conf, "query"), text);
    }
    let slash = if query.starts_with('/') { "" } else { "/" };
    let query = query.replace("{status}", "${status}").replace("{originalStatus}", "${status}");
    let query = query.replace("{url}", "${request_uri}");
    let uri = format!("{}{slash}{query}", page_path(&middleware.name));
    if !added.pages.iter().any(|(known, _)| known.place == middleware.place) {
        added.pages.push((middleware.clone(), service.to_owned()));
    }
    let page = json!({"status": status, "uri": uri});
    let known = branch.decision.plugins.entry("error-page".to_owned());
    let plugin = known.or_insert_with(|| json!({"intercept": true, "pages": []}));
    if let Some(Value::Array(pages)) = plugin.get_mut("pages") {
        pages.push(page);
    }
}

/// The path of the internal route to the service of an error page.
pub(super) fn page_path(name: &str) -> String {
    format!("/.traefik-errors/{}", super::super::build::id(name))
}

fn client_certificate(model: &mut Model<'_>, middleware: &Named, conf: &Tree, branch: &mut Branch) {
    if is_true(conf, "pem") {
        branch.request_field("X-Forwarded-Tls-Client-Cert", Some("$ssl_client_escaped_cert".to_owned()));
        let text = "The field has the whole PEM text, percent-encoded.";
        model.remarks.differs(middleware.field(conf, "pem"), text);
    }
    if field(conf, "info").is_some() {
        branch.request_field(
            "X-Forwarded-Tls-Client-Cert-Info",
            Some("Subject=\"$ssl_client_s_dn\";Issuer=\"$ssl_client_i_dn\"".to_owned()),
        );
        let text = "The field has the whole subject and issuer; single parts cannot be selected.";
        model.remarks.differs(middleware.field(conf, "info"), text);
    }
}
