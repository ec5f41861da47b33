//! `error-page`: pages that replace the gateway's own errors.

mod pages;

use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use sigma_http::HeaderId;
use sigma_http::head::reason_phrase;
use sigma_plugin::record::Source;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, ResponseStep};
use sigma_schema::described::schema_of;

use pages::StatusPage;
use sigma_plugin_kit::changed_body::describes_body;
use sigma_plugin_kit::fields::frames;

/// The plugin.
pub(crate) static ERROR_PAGE: Descriptor = Descriptor {
    name: "error-page",
    priority: 450,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::HeaderFilter]),
    metadata_schema: Some(schema_of::<Pages>),
    variables: &[
        VariableField::shown("pages.*.html", VariableForm::Template),
        VariableField::shown("pages.*.json", VariableForm::Template),
        VariableField::shown("pages.*.text", VariableForm::Template),
        VariableField::shown("pages.*.headers.*", VariableForm::Template),
        VariableField::shown("pages.*.uri", VariableForm::Template),
        VariableField::shown("pages.*.location", VariableForm::Template),
    ],
    build: |build| {
        let common = Option::<Pages>::deserialize(build.metadata).map_err(|error| error.to_string())?;
        Ok(Arc::new(ErrorPages { own: build.config()?, common: common.unwrap_or_default() }))
    },
    ..Descriptor::of::<ErrorPage>()
};

/// Shows pages instead of errors: a text by `Accept`, the response of another route, or a redirect.
///
/// `pages` of the configuration are Sigma's own; the first one with the status counts. The plugin metadata have pages
/// for all routes, which come after them. Errors of nodes pass unchanged without `intercept`. In a global rule the
/// plugin covers requests without a route too. Values of variables are escaped in `html` and `json`. A response from
/// another route is in memory until it is sent, up to 1 MiB.
#[derive(Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct ErrorPage {
    /// Pages by status.
    #[schemars(length(min = 1, max = 64))]
    pages: Option<Vec<StatusPage>>,
    /// Whether `pages` replace errors of nodes too.
    #[schemars(extend("default" = false, "own_default" = true))]
    #[serde(default)]
    intercept: bool,
}

impl Configuration for ErrorPage {
    fn check(&self) -> Result<(), String> {
        let mistakes = self.pages.iter().flatten().enumerate();
        match mistakes.filter_map(|(at, page)| Some((at, page.mistake()?))).next() {
            Some((at, mistake)) => Err(format!("pages[{at}]: {mistake}")),
            None => Ok(()),
        }
    }
}

#[derive(Default, Deserialize, JsonSchema)]
struct Pages {
    /// Whether pages are shown at all.
    #[schemars(extend("default" = false))]
    enable: bool,
    /// The page for 404.
    #[schemars(transform = default_page::<404>)]
    error_404: Option<Page>,
    /// The page for 500.
    #[schemars(transform = default_page::<500>)]
    error_500: Option<Page>,
    /// The page for 502.
    #[schemars(transform = default_page::<502>)]
    error_502: Option<Page>,
    /// The page for 503.
    #[schemars(transform = default_page::<503>)]
    error_503: Option<Page>,
}

#[derive(Deserialize, JsonSchema)]
struct Page {
    /// The page; empty: the error is unchanged.
    body: String,
    /// The media type of the page.
    #[schemars(extend("default" = "text/html"))]
    content_type: String,
}

/// APISIX's page.
fn default_page<const STATUS: u16>(schema: &mut Schema) {
    let title = format!("{STATUS} {}", reason_phrase(STATUS));
    let body = format!(
        "<html>\n<head><title>{title}</title></head>\n<body>\n<center><h1>{title}</h1></center>\n\
         <hr><center>Apache APISIX</center>\n</body>\n</html>"
    );
    if let Some(shown) = schema.pointer_mut("/properties/body") {
        shown["default"] = body.into();
    }
}

impl Pages {
    fn of(&self, status: u16) -> Option<&Page> {
        let page = match status {
            404 => &self.error_404,
            500 => &self.error_500,
            502 => &self.error_502,
            503 => &self.error_503,
            _ => &None,
        };
        page.as_ref().filter(|page| self.enable && !page.body.is_empty())
    }
}

struct ErrorPages {
    own: ErrorPage,
    common: Pages,
}

impl Plugin for ErrorPages {
    fn header_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        // A page has no page of its own: a route of error pages could lead to itself.
        if ctx.response.status < 400 || ctx.internal.is_some() {
            return ResponseStep::Next;
        }
        let is_own = ctx.record.source != Source::Upstream;
        let mut pages = self.own.pages.iter().flatten();
        let page = pages.find(|page| page.is_for(ctx.response.status));
        if let Some(page) = page.filter(|_| is_own || self.own.intercept) {
            return page.step(ctx);
        }
        let page = self.common.of(ctx.response.status).filter(|_| is_own);
        let Some(page) = page else { return ResponseStep::Next };
        let mut reply = Reply::new(ctx.response.status).text(page.body.as_bytes());
        reply = reply.header(HeaderId::ContentType.name(), page.content_type.as_bytes());
        for (name, value) in kept_fields(ctx) {
            reply = reply.header(name, value);
        }
        ResponseStep::Replace(Box::new(reply))
    }
}

/// The fields of other plugins that stay, such as the time to wait.
fn kept_fields(ctx: &Context) -> impl Iterator<Item = (String, Vec<u8>)> {
    ctx.response.headers.iter().filter_map(|(name, value)| {
        let name = String::from_utf8_lossy(name).into_owned();
        let id = HeaderId::of(name.as_bytes());
        let is_of_body =
            frames(&name) || describes_body(&name) || matches!(id, HeaderId::ContentType | HeaderId::Server);
        (!is_of_body).then(|| (name, value.to_vec()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Case, assert_refusal, entry, entry_with, field};

    #[test]
    fn pages_follow_status_source_and_preference() {
        let conf = json!({"pages": [
            {"status": [404], "text": "none at $uri"},
            {"status": [401, "5xx"], "response_status": 500, "json": "{\"e\": $status, \"u\": \"$uri\"}", "html": "<b>$uri</b>"},
            {"status": ["4xx"], "location": "/login?to=$uri"},
        ]});
        let check = |conf: &Value, head: &str, status: u16, source: Source, expected: Option<&str>| {
            let entry = entry("error-page", conf.clone()).unwrap();
            let mut case = Case::new(&format!("GET /%3Cx%3E HTTP/1.1\nHost: h{head}"));
            case.respond(status, "Retry-After: 7\nContent-Length: 3");
            case.ctx.record.source = source;
            let found = match case.response_step(&entry) {
                ResponseStep::Replace(reply) => {
                    let body = String::from_utf8(reply.body.clone().unwrap()).unwrap();
                    let shown = |name: &str| field(&reply, name).unwrap_or_default();
                    Some(format!("{} {} {}{body}", reply.status, shown("Content-Type"), shown("Location")))
                }
                _ => None,
            };
            assert_eq!(found.as_deref(), expected, "{head} {status}");
        };
        check(&conf, "", 404, Source::Gateway, Some("404 text/plain; charset=utf-8 none at /<x>"));
        check(&conf, "", 502, Source::Fault, Some(r#"500 application/json {"e": 502, "u": "/<x>"}"#));
        let html = Some("500 text/html; charset=utf-8 <b>/&lt;x&gt;</b>");
        check(&conf, "\nAccept: text/html,*/*;q=0.8", 401, Source::Gateway, html);
        check(
            &conf,
            "\nAccept: image/png",
            401,
            Source::Gateway,
            Some(r#"500 application/json {"e": 401, "u": "/<x>"}"#),
        );
        check(&conf, "", 403, Source::Gateway, Some("302  /login?to=/%3Cx%3E"));
        check(&conf, "", 404, Source::Upstream, None);
        check(&conf, "", 200, Source::Gateway, None);
        let intercept = crate::testing::merged(conf, &json!({"intercept": true}));
        check(&intercept, "", 404, Source::Upstream, Some("404 text/plain; charset=utf-8 none at /<x>"));
    }

    #[test]
    fn fields_of_the_replaced_response_stay_or_go() {
        let check = |page: Value, status: u16, expected: &[&str]| {
            let entry = entry("error-page", json!({"intercept": true, "pages": [page]})).unwrap();
            let mut case = Case::new("GET /x HTTP/1.1\nHost: h");
            case.respond(status, "X-Node: 1\nWWW-Authenticate: Basic");
            case.ctx.record.source = Source::Upstream;
            let ResponseStep::Replace(reply) = case.response_step(&entry) else { panic!("no page") };
            let names: Vec<String> = reply
                .headers
                .iter()
                .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value)))
                .collect();
            assert_eq!(names, expected, "{:?}", reply.headers);
        };
        let text = "Content-Type: text/plain; charset=utf-8";
        check(json!({"status": [401], "text": ""}), 401, &[text, "X-Node: 1", "WWW-Authenticate: Basic"]);
        let kept = json!({"status": [401], "text": "", "keep_fields": ["www-authenticate"]});
        check(kept, 401, &[text, "WWW-Authenticate: Basic"]);
        let own = json!({"status": [401], "text": "", "keep_fields": [],
            "headers": {"Content-Type": "text/x-own", "X-Of": "$uri"}});
        check(own, 401, &["Content-Type: text/x-own", "X-Of: /x"]);
        let redirect = json!({"status": [401], "location": "/login"});
        check(redirect, 401, &["Location: /login"]);
        let redirect = json!({"status": [401], "location": "/login", "keep_fields": ["WWW-Authenticate"]});
        check(redirect, 401, &["Location: /login", "WWW-Authenticate: Basic"]);
    }

    #[test]
    fn named_routes_get_the_request_again() {
        let entry =
            entry("error-page", json!({"pages": [{"status": [502, 413], "named": "@spare"}]})).unwrap();
        let call = |status: u16, has_body: bool| {
            let mut case = Case::new("PUT /x%2Fy?a HTTP/1.1\nHost: h\nX-A: 1");
            case.respond(status, "");
            case.ctx.record.source = Source::Gateway;
            case.ctx.has_request_body = has_body;
            match case.response_step(&entry) {
                ResponseStep::Ask { mut calls, .. } => calls.pop(),
                _ => None,
            }
        };
        let found = call(502, false).expect("a call");
        assert_eq!(sigma_plugin::outbound::internal_name(&found.upstream), Some("@spare"));
        assert_eq!((found.method, &found.target[..]), (sigma_http::Method::Put, &b"/x%2Fy?a"[..]));
        // The body is gone, and the request is not the same without it.
        assert!(call(502, true).is_none());
        assert!(call(413, true).is_some());
    }

    #[test]
    fn a_page_of_another_route_replaces_the_response() {
        let entry =
            entry("error-page", json!({"pages": [{"status": [502], "uri": "/e/$status$uri?a"}]})).unwrap();
        let check = |answer: Option<u16>, expected: Option<&str>| {
            let mut case = Case::new("GET /x HTTP/1.1\nHost: h\nRange: bytes=0-1\nX-A: 1");
            case.respond(502, "Retry-After: 7");
            case.ctx.record.source = Source::Gateway;
            let ResponseStep::Ask { calls, then } = case.response_step(&entry) else { panic!("no call") };
            let [call] = &calls[..] else { panic!("one call") };
            assert_eq!(
                (&*call.upstream, &call.target[..]),
                (sigma_plugin::outbound::GATEWAY_INTERNAL, &b"/e/502/x?a"[..])
            );
            assert!(call.headers.find(b"Range").is_none() && call.headers.find(b"X-A").is_some());
            let answer = match answer {
                Some(status) => Ok(sigma_plugin::outbound::ServiceResponse {
                    status,
                    body: b"page".to_vec(),
                    ..Default::default()
                }),
                None => Err(sigma_plugin::outbound::CallError("none".into())),
            };
            let env = Env::new(&case.node, &case.local, &case.consumers);
            let found = match then(&mut case.ctx, &env, vec![answer]) {
                ResponseStep::Replace(reply) => {
                    let body = String::from_utf8(reply.body.clone().unwrap()).unwrap();
                    Some(format!("{} {body} {}", reply.status, field(&reply, "retry-after").unwrap()))
                }
                _ => None,
            };
            assert_eq!(found.as_deref(), expected);
        };
        check(Some(200), Some("502 page 7"));
        check(Some(404), None);
        check(None, None);
        let mut case = Case::new("GET /x HTTP/1.1\nHost: h");
        case.respond(502, "");
        case.ctx.internal = Some(Box::default());
        assert!(matches!(case.response_step(&entry), ResponseStep::Next));
    }

    #[test]
    fn configurations() {
        let check = |page: Value, expected: &str| {
            assert_refusal("error-page", &json!({ "pages": [page] }), expected);
        };
        check(json!({"status": [404], "text": ""}), "");
        check(json!({"status": [404]}), "pages[0]: a page needs exactly one of texts");
        check(json!({"status": [404], "text": "", "uri": "/a"}), "exactly one of");
        check(json!({"status": [200], "text": ""}), "status");
        check(json!({"status": [404], "text": "", "use_page_status": true}), "needs a `uri`");
        check(json!({"status": [404], "text": "", "named": "spare"}), "exactly one of");
    }

    #[test]
    fn which_errors_have_a_page() {
        let metadata = json!({"enable": true, "error_404": {}, "error_502": {"body": "down", "content_type": "text/plain"},
            "error_503": {"body": ""}});
        let check = |metadata: Option<Value>, status: u16, source: Source, expected: Option<&str>| {
            let entry = entry_with("error-page", json!({}), metadata).unwrap();
            let mut case = Case::new("GET / HTTP/1.1\nHost: h");
            case.respond(status, "Retry-After: 7\nContent-Type: application/json\nContent-Length: 3");
            case.ctx.record.source = source;
            let step = case.response_step(&entry);
            match (step, expected) {
                (ResponseStep::Next, None) => {}
                (ResponseStep::Replace(reply), Some(expected)) => {
                    let body = String::from_utf8(reply.body.clone().unwrap()).unwrap();
                    assert!(body.contains(expected), "{body}");
                    assert_eq!((reply.status, field(&reply, "retry-after").as_deref()), (status, Some("7")));
                    assert_eq!(reply.headers.len(), 2);
                }
                _ => panic!("{status}: {expected:?}"),
            }
        };
        let with = |status, source, expected| check(Some(metadata.clone()), status, source, expected);
        with(404, Source::Gateway, Some("<h1>404 Not Found</h1></center>\n<hr><center>Apache APISIX"));
        with(502, Source::Fault, Some("down"));
        with(404, Source::Upstream, None);
        with(503, Source::Gateway, None);
        with(500, Source::Gateway, None);
        with(405, Source::Gateway, None);
        check(None, 404, Source::Gateway, None);
        check(Some(json!({"error_404": {}})), 404, Source::Gateway, None);
    }
}
