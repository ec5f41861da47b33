//! The health of nodes as a page for browsers, with APISIX's columns.

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

const HEAD: &str = "<!DOCTYPE html>\n<html>\n<head>\n<meta charset=\"utf-8\">\n<title>APISIX upstream check status</title>\n\
    </head>\n<body>\n<h1>APISIX upstream check status</h1>\n<table cellspacing=\"0\" cellpadding=\"3\" border=\"1\">\n\
    <tr><th>Index</th><th>Upstream</th><th>Check type</th><th>Host</th><th>Status</th><th>Success counts</th>\
    <th>TCP Failures</th><th>HTTP Failures</th><th>TIMEOUT Failures</th></tr>\n";
const TAIL: &str = "</table>\n</body>\n</html>\n";
/// The page is made of names that operators wrote, and runs nothing.
const POLICY: &str = "default-src 'none'";

/// Whether a reader wants a page: it names that kind of text before JSON.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kinds = accept.split(',').map(|kind| kind.split(';').next().unwrap_or_default().trim());
    kinds.into_iter().find(|kind| matches!(*kind, "text/html" | "application/json")) == Some("text/html")
}

/// The page of these reports.
pub(super) fn answer(reports: &[Value]) -> Response {
    let fields =
        [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, POLICY)];
    (StatusCode::OK, fields, page(reports)).into_response()
}

fn page(reports: &[Value]) -> String {
    let mut page = HEAD.to_owned();
    let mut index = 0;
    for report in reports {
        for node in report["nodes"].as_array().into_iter().flatten() {
            index += 1;
            let host = format!("{}:{}", cell(&node["ip"]), cell(&node["port"]));
            let counts = ["success", "tcp_failure", "http_failure", "timeout_failure"];
            page.push_str(&format!(
                "<tr><td>{index}</td><td>{}</td><td>{}</td><td>{host}</td><td>{}</td>",
                cell(&report["name"]),
                cell(&report["type"]),
                cell(&node["status"]),
            ));
            for count in counts {
                page.push_str(&format!("<td>{}</td>", cell(&node["counter"][count])));
            }
            page.push_str("</tr>\n");
        }
    }
    page.push_str(TAIL);
    page
}

/// A value as text of a page.
fn cell(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let mut safe = String::new();
    for letter in text.chars() {
        match letter {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_is_for_who_wants_one() {
        let check = |accept: &'static str, expected: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().expect("a value"));
            assert_eq!(is_wanted(&headers), expected, "{accept}");
        };
        check("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true);
        check("text/html;q=1", true);
        check("application/json, text/html", false);
        check("*/*", false);
        check("", false);
        assert!(!is_wanted(&HeaderMap::new()));
    }

    #[test]
    fn names_run_nothing() {
        let node = json!({"ip": "127.0.0.1", "port": 80, "status": "healthy",
            "counter": {"success": 1, "http_failure": 2, "tcp_failure": 3, "timeout_failure": 4}});
        let report = json!({"name": "/apisix/routes/<script>", "type": "http", "nodes": [node]});
        let page = page(&[report]);
        let row = "<tr><td>1</td><td>/apisix/routes/&lt;script&gt;</td><td>http</td><td>127.0.0.1:80</td><td>healthy</td>\
            <td>1</td><td>3</td><td>2</td><td>4</td></tr>";
        assert!(page.contains(row), "{page}");
        assert!(!page.contains("<script"), "{page}");
    }
}
