//! `error-page`: pages that replace the gateway's own errors.

use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use sigma_http::HeaderId;
use sigma_http::head::reason_phrase;
use sigma_plugin::record::Source;
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, ResponseStep};
use sigma_schema::described::schema_of;

use sigma_plugin_kit::changed_body::describes_body;
use sigma_plugin_kit::fields::frames;

/// The plugin.
pub(crate) static ERROR_PAGE: Descriptor = Descriptor {
    name: "error-page",
    priority: 450,
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::HeaderFilter]),
    metadata_schema: Some(schema_of::<Pages>),
    build: |build| {
        let pages = Option::<Pages>::deserialize(build.metadata).map_err(|error| error.to_string())?;
        Ok(Arc::new(pages.unwrap_or_default()))
    },
    ..Descriptor::of::<ErrorPage>()
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
plugin_metadata:
  - id: error-page
    enable: true
    error_404: { body: "<h1>There is nothing here</h1>" }
global_rules:
  - id: pages
    plugins: { error-page: {} }
routes:
  - { uri: /orders, upstream: "http://127.0.0.1:9000" }
```

```console
$ curl -i http://127.0.0.1:9080/nowhere
HTTP/1.1 404 Not Found
…
<h1>There is nothing here</h1>
```
"#;

/// Shows pages instead of errors that did not come from a node.
///
/// The plugin metadata have the pages, by status. Errors of nodes pass unchanged. In a global rule it covers requests
/// without a route too.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields, extend("properties" = {}))]
struct ErrorPage {}

impl Configuration for ErrorPage {}

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

impl Plugin for Pages {
    fn header_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        let page = self.of(ctx.response.status).filter(|_| ctx.record.source != Source::Upstream);
        let Some(page) = page else { return ResponseStep::Next };
        let mut reply = Reply::new(ctx.response.status).text(page.body.as_bytes());
        reply = reply.header(HeaderId::ContentType.name(), page.content_type.as_bytes());
        for (name, value) in ctx.response.headers.iter() {
            // Fields of other plugins stay, such as the time to wait.
            let name = String::from_utf8_lossy(name).into_owned();
            let id = HeaderId::of(name.as_bytes());
            if !frames(&name)
                && !describes_body(&name)
                && !matches!(id, HeaderId::ContentType | HeaderId::Server)
            {
                reply = reply.header(name, value);
            }
        }
        ResponseStep::Replace(Box::new(reply))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Case, entry_with, field};

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
