//! `convert/{format}`: resources made of another gateway's configuration, or of an OpenAPI document. Nothing is stored:
//! the caller reviews the result and writes it.

use axum::http::{Method, StatusCode};
use serde_json::{Map, Value, json};
use sigma_config::kind::Kind;
use sigma_convert::import::source::{Files, Input, MemoryFiles, SourceFile};
use sigma_convert::import::{Format, import};
use sigma_convert::openapi::import::{self as openapi, ImportOptions};
use sigma_schema::document::Document;
use sigma_schema::openapi::OpenApi;
use sigma_schema::problem::Problem;

use super::call::Call;
use super::reply::{Outcome, Refusal, Reply};

/// The word of OpenAPI documents among the formats.
const OPENAPI: &str = "openapi";

/// Most files of a conversion.
const FILES_MAX: usize = 256;

/// Converts the files in the body: `{"files": [{"name": …, "text": …}]}`.
pub(super) async fn convert(format: &str, call: &Call) -> Outcome {
    let known = Format::ALL.into_iter().find(|known| known.word() == format);
    if call.method != Method::POST || known.is_none() && format != OPENAPI {
        return Err(Refusal::new(StatusCode::NOT_FOUND, "not found"));
    }
    let files = files(call.body.as_ref()).map_err(Refusal::bad)?;
    // A conversion may take a while, and the thread of this call also serves health checks.
    let converted = tokio::task::spawn_blocking(move || match known {
        Some(format) => of_gateway(format, &files),
        None => of_openapi(&files[0]),
    });
    let failed = || Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the conversion failed");
    let made = converted.await.map_err(|_| failed())?.map_err(Refusal::bad)?;
    Ok(Reply::json(StatusCode::OK, made))
}

/// Reads the files of a body.
fn files(body: Option<&Value>) -> Result<Vec<SourceFile>, String> {
    let items = body.and_then(|body| body.get("files")?.as_array()).map(Vec::as_slice).unwrap_or_default();
    if items.is_empty() || items.len() > FILES_MAX {
        return Err(format!("`files` needs 1 to {FILES_MAX} files, each with `name` and `text`"));
    }
    let file = |file: &Value| {
        let text = |field: &str| file.get(field).and_then(Value::as_str).map(str::to_owned);
        Some(SourceFile { name: text("name")?, text: text("text")? })
    };
    items.iter().map(file).collect::<Option<_>>().ok_or_else(|| "a file needs `name` and `text`".to_owned())
}

/// Converts the files of a gateway. The first one is the main file of a format with includes.
fn of_gateway(format: Format, files: &[SourceFile]) -> Result<Value, String> {
    let access = Uploaded(MemoryFiles {
        files: files.iter().map(|file| (base(&file.name).to_owned(), file.text.clone())).collect(),
        ..MemoryFiles::default()
    });
    let has_includes = matches!(format, Format::Nginx | Format::Caddy);
    let named = if has_includes { &files[..1] } else { files };
    let imported =
        import(format, &Input { files: named, access: &access }).map_err(|problems| listed(&problems))?;
    let (resources, settings) = split(imported.document);
    let has_open_guards = imported.report.has_open_guards();
    let report = imported.report.json();
    Ok(json!({
        "resources": resources, "settings": settings, "report": report, "has_closed_routes": has_open_guards,
    }))
}

/// Converts an OpenAPI document.
fn of_openapi(file: &SourceFile) -> Result<Value, String> {
    let read = Document::parse(&file.text, file.text.len()).map_err(|problems| listed(&problems))?;
    let document = OpenApi::of(read.value)?;
    let wish = ImportOptions { upstream: None, validate: None };
    let imported = openapi::configuration(&document, wish)?;
    let (resources, settings) = split(imported.configuration);
    let remark = |text: &String| {
        json!({
            "file": file.name, "line": 0, "source": "", "verdict": "done with a difference", "text": text,
            "guards": false,
        })
    };
    let remarks: Vec<Value> = imported.notes.iter().map(remark).collect();
    let report = json!({"files": [file.name], "summary": {}, "remarks": remarks});
    Ok(json!({"resources": resources, "settings": settings, "report": report, "has_closed_routes": false}))
}

/// Splits a document into the sections of resources and the settings.
fn split(document: Value) -> (Map<String, Value>, Map<String, Value>) {
    let Value::Object(members) = document else { return Default::default() };
    let sections = Kind::ALL.map(Kind::section);
    members.into_iter().partition(|(name, value)| sections.contains(&name.as_str()) && value.is_array())
}

fn listed(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The name of a file without its folders: a browser does not tell them.
fn base(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// The files of the call and no others: a conversion reads nothing of this machine.
struct Uploaded(MemoryFiles);

impl Files for Uploaded {
    fn read(&self, path: &str) -> Result<String, String> {
        self.0.read(base(path))
    }

    fn list(&self, pattern: &str) -> Vec<String> {
        self.0.list(base(pattern))
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.0.variable(name)
    }

    fn exists(&self, path: &str) -> bool {
        self.0.exists(base(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> SourceFile {
        SourceFile { name: name.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn only_files_of_the_call_are_included() {
        let main = "http { include /etc/nginx/conf.d/*.conf; include /etc/passwd; }";
        let site = "server { listen 80; location /a/ { proxy_pass http://127.0.0.1:9000; } }";
        let made = of_gateway(Format::Nginx, &[file("nginx.conf", main), file("site.conf", site)]).unwrap();
        assert!(made["resources"]["routes"].as_array().is_some_and(|routes| !routes.is_empty()), "{made:#}");
        assert!(made["settings"].get("listeners").is_some() && made["resources"].get("listeners").is_none());
        assert!(!made.to_string().contains("root:"), "{made:#}");
    }

    #[test]
    fn openapi_documents_become_routes() {
        let text = "openapi: 3.0.0\ninfo: { title: a, version: '1' }\nservers: [{ url: 'http://127.0.0.1:9000' }]\npaths: { /a: { get: { responses: { '200': { description: ok } } } } }\n";
        let made = of_openapi(&file("api.yaml", text)).unwrap();
        assert_eq!(made["resources"]["routes"].as_array().map(Vec::len), Some(1), "{made:#}");
        assert!(of_openapi(&file("api.yaml", "a: 1")).is_err());
    }

    #[test]
    fn bodies_without_files_are_refused() {
        for body in [json!(null), json!({}), json!({"files": []}), json!({"files": [{"name": "a"}]})] {
            assert!(files(Some(&body)).is_err(), "{body}");
        }
        assert!(files(None).is_err());
    }
}
