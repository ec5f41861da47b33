//! `error-page`: pages in the place of the gateway's own errors.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_http::HeaderId;
use sigma_http::head::reason_phrase;
use sigma_plugin::record::Source;
use sigma_plugin::{Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, ResponseStep};

use super::fields::frames;

/// The plugin.
pub(crate) static ERROR_PAGE: Descriptor = Descriptor {
    name: "error-page",
    priority: 450,
    doc: "Shows pages in the place of errors that no node answered.\n\n\
        The pages stand in the plugin's metadata, by status. Errors of nodes pass untouched. In a global rule \
        it covers requests without a route too.",
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::HeaderFilter]),
    schema: || json!({"type": "object", "properties": {}, "additionalProperties": false}),
    metadata_schema: Some(metadata_schema),
    build: |build| Ok(Arc::new(ErrorPage::new(build.metadata)?)),
    ..Descriptor::BASE
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

/// The statuses that may have a page.
const STATUSES: [u16; 4] = [404, 500, 502, 503];

fn metadata_schema() -> Value {
    let page = |status: u16| {
        json!({
            "type": "object",
            "properties": {
                "body": {
                    "type": "string", "default": default_page(status),
                    "description": "The page; an empty one leaves the error as it is."
                },
                "content_type": {"type": "string", "default": "text/html", "description": "Its type."}
            },
            "description": format!("The page for {status}.")
        })
    };
    let enable =
        json!({"type": "boolean", "default": false, "description": "Whether pages are shown at all."});
    let mut properties = Map::from_iter([("enable".to_owned(), enable)]);
    properties.extend(STATUSES.map(|status| (format!("error_{status}"), page(status))));
    json!({"type": "object", "properties": properties})
}

/// APISIX's page.
fn default_page(status: u16) -> String {
    let title = format!("{status} {}", reason_phrase(status));
    format!(
        "<html>\n<head><title>{title}</title></head>\n<body>\n<center><h1>{title}</h1></center>\n\
         <hr><center>Apache APISIX</center>\n</body>\n</html>"
    )
}

#[derive(Deserialize)]
struct Page {
    body: String,
    content_type: String,
}

struct ErrorPage {
    pages: BTreeMap<u16, Page>,
}

impl ErrorPage {
    fn new(metadata: &Value) -> Result<ErrorPage, String> {
        let mut pages = BTreeMap::new();
        if metadata.get("enable") == Some(&Value::Bool(true)) {
            for status in STATUSES {
                if let Some(page) = metadata.get(format!("error_{status}")) {
                    let page = Page::deserialize(page).map_err(|error| error.to_string())?;
                    pages.insert(status, page);
                }
            }
        }
        pages.retain(|_, page| !page.body.is_empty());
        Ok(ErrorPage { pages })
    }
}

impl Plugin for ErrorPage {
    fn header_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        let page = self.pages.get(&ctx.response.status).filter(|_| ctx.record.source != Source::Upstream);
        let Some(page) = page else { return ResponseStep::Next };
        let mut reply = Reply::new(ctx.response.status).text(page.body.as_bytes());
        reply = reply.header(HeaderId::ContentType.name(), page.content_type.as_bytes());
        for (name, value) in ctx.response.headers.iter() {
            // What others have said of the error stays, such as how long to wait.
            let name = String::from_utf8_lossy(name).into_owned();
            let id = HeaderId::of(name.as_bytes());
            if !frames(&name) && !matches!(id, HeaderId::ContentType | HeaderId::Server) {
                reply = reply.header(name, value);
            }
        }
        ResponseStep::Replace(Box::new(reply))
    }
}

#[cfg(test)]
mod tests {
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
            case.cx.record.source = source;
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
