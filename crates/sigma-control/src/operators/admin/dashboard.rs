//! The page for browsers, below `/ui`: files of the folder `/dashboard` that the build has put into the program.
//!
//! It is loaded without a key, so it contains no data: it reads all data from the API, with the operator's
//! key. It obeys the same peers as the API, and names that an attacker could make resolve to this address are
//! refused whether or not keys are required, as the operator types a key into this page.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use aws_lc_rs::digest;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::AdminState;

/// The path that everything is below.
const ROOT: &str = "/ui/";

/// Every file, by its path below [`ROOT`].
macro_rules! files {
    ($($path:literal)*) => {
        [$(($path, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../dashboard/", $path)).as_slice()),)*]
    };
}

static FILES: &[(&str, &[u8])] = &files! {
    "api.js"
    "icon.svg"
    "index.html"
    "lib/configs.js"
    "lib/convert.js"
    "lib/curl.js"
    "lib/diff.js"
    "lib/errors.js"
    "lib/exchange.js"
    "lib/explain.js"
    "lib/extensions.js"
    "lib/format.js"
    "lib/history.js"
    "lib/labels.js"
    "lib/markdown.js"
    "lib/overview.js"
    "lib/path.js"
    "lib/plugins.js"
    "lib/pointer.js"
    "lib/resources.js"
    "lib/revision.js"
    "lib/schema.js"
    "lib/traffic.js"
    "lib/warnings.js"
    "main.js"
    "router.js"
    "store.js"
    "style.css"
    "ui/changes.js"
    "ui/chart.js"
    "ui/dialog.js"
    "ui/dom.js"
    "ui/form.js"
    "ui/page.js"
    "ui/shortcuts.js"
    "ui/table.js"
    "views/certificates.js"
    "views/errors.js"
    "views/gateway.js"
    "views/history.js"
    "views/live.js"
    "views/login.js"
    "views/members.js"
    "views/nodes.js"
    "views/overview.js"
    "views/plugins.js"
    "views/resource.js"
    "views/resources.js"
    "views/tester.js"
    "views/transfer.js"
};

/// Restrictions of all files: no calls to other hosts, no embedding, no foreign scripts, no sniffing of
/// types.
const POLICY: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    // Browsers ask again each time, and get 304.
    (header::CACHE_CONTROL, "no-cache"),
];

/// A file as it is sent.
struct Page {
    path: &'static str,
    content: &'static [u8],
    media_type: &'static str,
    tag: HeaderValue,
}

/// [`FILES`] with their derived data.
static PAGES: LazyLock<Vec<Page>> =
    LazyLock::new(|| FILES.iter().map(|&(path, content)| Page::of(path, content)).collect());

impl Page {
    fn of(path: &'static str, content: &'static [u8]) -> Page {
        let media_type = match path.rsplit_once('.') {
            Some((_, "html")) => "text/html; charset=utf-8",
            Some((_, "css")) => "text/css; charset=utf-8",
            Some((_, "js")) => "text/javascript; charset=utf-8",
            Some((_, "svg")) => "image/svg+xml",
            _ => "application/octet-stream",
        };
        let digest = digest::digest(&digest::SHA256, content);
        let hex: String = digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        // Hexadecimal digits in quotes are a field value.
        let tag = HeaderValue::try_from(format!("\"{hex}\"")).unwrap_or(HeaderValue::from_static("\"\""));
        Page { path, content, media_type, tag }
    }

    fn find(path: &str) -> Option<&'static Page> {
        let name = if path == ROOT { "index.html" } else { path.strip_prefix(ROOT)? };
        PAGES.iter().find(|page| page.path == name)
    }

    /// Whether the client has it already (RFC 9110 §13.1.2).
    fn is_known(&self, headers: &HeaderMap) -> bool {
        let lines = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|line| line.to_str().ok());
        let mut tags = lines.flat_map(|line| line.split(',')).map(str::trim);
        tags.any(|tag| tag == "*" || tag.trim_start_matches("W/").as_bytes() == self.tag.as_bytes())
    }

    fn answer(&self, headers: &HeaderMap) -> Response {
        let tag = (header::ETAG, self.tag.clone());
        if self.is_known(headers) {
            return (StatusCode::NOT_MODIFIED, [tag]).into_response();
        }
        let media_type = (header::CONTENT_TYPE, HeaderValue::from_static(self.media_type));
        (StatusCode::OK, [media_type, tag], Body::from(self.content)).into_response()
    }
}

/// Responds to a request below `/ui`. The response to HEAD loses its body where it is sent.
pub(crate) async fn serve(
    State(state): State<Arc<AdminState>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let mut response = answer(&state, peer, &request);
    for (name, value) in POLICY {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn answer(state: &AdminState, peer: SocketAddr, request: &Request) -> Response {
    let refuse = |status: StatusCode, reason: String| (status, reason).into_response();
    if !state.settings.allow.contains(peer.ip()) {
        let reason = "this address may not open the dashboard; add it to admin.allow".to_owned();
        return refuse(StatusCode::FORBIDDEN, reason);
    }
    if let Err(reason) = state.callers.trusted.check_host(request.headers()) {
        return refuse(StatusCode::FORBIDDEN, reason);
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, HEAD")]).into_response();
    }
    match request.uri().path() {
        // The resources of the page are relative to it.
        "/ui" => (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, ROOT)]).into_response(),
        path => match Page::find(path) {
            Some(page) => page.answer(request.headers()),
            None => refuse(StatusCode::NOT_FOUND, "the dashboard has no such file".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn files_below(folder: &Path, prefix: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = format!("{prefix}{}", entry.file_name().to_str().expect("a name"));
            match entry.path().is_dir() {
                // Tests are not for browsers.
                true if name == "test" => {}
                true => files_below(&entry.path(), &format!("{name}/"), found),
                false => found.push(name),
            }
        }
    }

    #[test]
    fn every_file_is_in_the_program() {
        let mut found = Vec::new();
        files_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboard"), "", &mut found);
        found.sort();
        let known: Vec<&str> = FILES.iter().map(|(path, _)| *path).collect();
        assert_eq!(known, found);
    }

    /// The policy forbids it, and a page that breaks it would only show in a browser.
    #[test]
    fn nothing_is_inline_and_nothing_comes_from_elsewhere() {
        for (path, content) in FILES {
            let text = std::str::from_utf8(content).expect("a text");
            for word in [
                "http://",
                "https://",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "eval(",
                "new Function",
                "style=",
            ] {
                // The namespace of SVG is a name that is never loaded.
                let found = text.replace("http://www.w3.org/2000/svg", "").contains(word);
                assert!(!found, "{path}: {word}");
            }
        }
        let index = FILES.iter().find(|(path, _)| *path == "index.html").expect("an index");
        let index = std::str::from_utf8(index.1).expect("a text");
        assert!(
            !index.contains("<style") && !index.contains("onload") && !index.contains("<script>"),
            "{index}"
        );
    }
}
