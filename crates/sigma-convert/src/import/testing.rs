//! Conversions in short form, for tests with a corpus of files.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use sigma_config::{ParseOptions, parse};
use sigma_schema::plugins::{PluginRefusal, PluginSchemas, PluginScope};

use super::report::Verdict;
use super::source::{DiskFiles, Files as _, Input, SourceFile};
use super::{Format, Import, import};

/// Accepts all plugins: tests of the whole program check their configurations.
struct Any;

impl PluginSchemas for Any {
    fn names(&self) -> Vec<&str> {
        Vec::new()
    }

    fn schema(&self, _: &str, _: PluginScope) -> Option<&Value> {
        None
    }

    fn is_auth(&self, _: &str) -> bool {
        false
    }

    fn check(&self, _: &str, _: PluginScope, _: &Value) -> Result<(), PluginRefusal> {
        Ok(())
    }

    fn unique_attribute(&self, _: &str) -> Option<&str> {
        None
    }

    fn secret_fields(&self, _: &str, _: PluginScope) -> Vec<&str> {
        Vec::new()
    }
}

/// Returns the problems that the check of a configuration file finds in a document.
pub(super) fn problems(document: &Value) -> Vec<String> {
    let options = ParseOptions { plugins: &Any, ..ParseOptions::default() };
    let found = parse(&document.to_string(), &options).err().unwrap_or_default();
    found.iter().map(ToString::to_string).collect()
}

/// Converts the example of a page, the second block of it, as a file of this name; also returns the page.
pub(super) fn page_example(format: Format, page: &str, name: &str) -> (Import, String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let page = std::fs::read_to_string(path).expect("the page");
    let text = page.split("```").nth(3).and_then(|block| block.split_once('\n')).expect("a block").1;
    let files = [SourceFile { name: name.to_owned(), text: text.to_owned() }];
    (import(format, &Input { files: &files, access: &DiskFiles }).expect("a configuration"), page)
}

/// Compares each file of a corpus with its expected conversion: `NAME.conf` with `NAME.expected`.
///
/// `SIGMA_BLESS=1` writes the expected files.
pub(super) fn corpus(format: Format, folder: &str, extension: &str) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(folder);
    let mut names: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the corpus")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    names.sort();
    assert!(!names.is_empty(), "{} has no files", folder.display());
    let mut wrong = Vec::new();
    for path in names {
        let found = converted(format, &path);
        let expected = path.with_extension("expected");
        if std::env::var_os("SIGMA_BLESS").is_some() {
            std::fs::write(&expected, &found).expect("the expected file");
        } else if std::fs::read_to_string(&expected).unwrap_or_default() != found {
            wrong.push(format!("{}:\n{found}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn converted(format: Format, path: &Path) -> String {
    let text = DiskFiles.read(&path.display().to_string()).expect("a file");
    // Relative names are in the corpus's folder, which expected files do not name.
    let name = path.display().to_string();
    let files = [SourceFile { name: name.clone(), text }];
    match import(format, &Input { files: &files, access: &DiskFiles }) {
        Ok(imported) => {
            let problems = problems(&imported.document);
            assert!(problems.is_empty(), "{name}: {}", problems.join("\n"));
            short(&imported).replace(&format!("{}/", path.parent().expect("a folder").display()), "")
        }
        Err(problems) => {
            problems.iter().map(|problem| format!("{problem}\n")).collect::<String>().replace(&name, "")
        }
    }
}

/// Returns the remarks that are not plain, the settings, and a line for each resource.
pub(super) fn short(imported: &Import) -> String {
    let mut text = String::new();
    for remark in imported.report.remarks.iter().filter(|remark| remark.verdict != Verdict::Done) {
        let guard = if remark.guards { " guard" } else { "" };
        let _ = writeln!(
            text,
            "{}: {}{guard}: {}: {}",
            remark.place.line,
            remark.verdict.word(),
            remark.source,
            remark.text
        );
    }
    let empty = Map::new();
    for (key, value) in imported.document.as_object().unwrap_or(&empty) {
        match value {
            Value::Array(list) if key != "listeners" => {
                list.iter().for_each(|item| _ = writeln!(text, "{key}: {}", resource(item)));
            }
            value => _ = writeln!(text, "{key}: {value}"),
        }
    }
    text
}

/// A resource: its id, then its fields.
fn resource(value: &Value) -> String {
    let Some(fields) = value.as_object() else { return value.to_string() };
    let id = fields.get("id").and_then(Value::as_str).unwrap_or_default();
    let fields = fields.iter().filter(|(key, _)| !matches!(key.as_str(), "id" | "priority"));
    let fields: Vec<String> = fields.map(|(key, value)| format!("{key}={value}")).collect();
    format!("{id} {}", fields.join(" "))
}
