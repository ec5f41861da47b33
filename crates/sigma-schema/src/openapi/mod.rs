//! OpenAPI 3.0 and 3.1 documents: the requests of an API, and their schemas.
//!
//! References lead into the document only; nothing is fetched. [`template`] has its paths, and [`server`] their
//! prefixes. The crate `sigma-convert` makes a configuration of a document. The plugin `oas-validator` checks requests
//! with [`crate::validation`].

pub mod server;
pub mod template;

use serde_json::{Map, Value};

use crate::validation::{Dialect, Sender, percent_decoded};

/// Maximum length of a chain of references; a longer one is a cycle.
const MOST_HOPS: usize = 32;

/// The methods of a path.
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

/// The supported dialects of schemas: OpenAPI 3.1's own, and draft 2020-12, on which it is based.
const DIALECTS: [&str; 2] =
    ["https://spec.openapis.org/oas/3.1/dialect/base", "https://json-schema.org/draft/2020-12/schema"];

/// An OpenAPI document.
#[derive(Debug)]
pub struct OpenApi {
    root: Value,
    is_3_1: bool,
}

/// A part of a document with its JSON pointer.
#[derive(Debug, Clone)]
pub struct Part<'d> {
    /// The pointer.
    pub pointer: String,
    /// The part.
    pub value: &'d Value,
}

/// An operation: one method at one path.
#[derive(Debug)]
pub struct Operation<'d> {
    /// The path template as written.
    pub path: &'d str,
    /// The method, in capitals.
    pub method: String,
    /// The operation.
    pub operation: Part<'d>,
    /// The URLs of its servers, with a value for each of their variables.
    pub servers: Vec<String>,
    /// Its parameters, and those parameters of its path that it does not replace.
    pub parameters: Vec<Part<'d>>,
}

impl<'d> Part<'d> {
    /// Returns a member of the part.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<Part<'d>> {
        let value = self.value.get(name)?;
        let name = name.replace('~', "~0").replace('/', "~1");
        Some(Part { pointer: format!("{}/{name}", self.pointer), value })
    }

    /// Returns the members of an object part, without extensions (`x-…`).
    pub fn members(&self) -> impl Iterator<Item = (&'d str, Part<'d>)> {
        let names = self.value.as_object().into_iter().flat_map(Map::keys);
        let names = names.filter(|name| !name.starts_with("x-"));
        names.filter_map(|name| Some((name.as_str(), self.member(name)?)))
    }

    /// Returns the elements of a list part.
    pub fn elements(&self) -> impl Iterator<Item = Part<'d>> {
        let items = self.value.as_array().into_iter().flatten().enumerate();
        items.map(|(at, value)| Part { pointer: format!("{}/{at}", self.pointer), value })
    }

    /// Returns a text member of the part.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&'d str> {
        self.value.get(name)?.as_str()
    }

    /// Returns whether a boolean member of the part is true.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.value.get(name) == Some(&Value::Bool(true))
    }

    /// Returns the message for an error in this part.
    #[must_use]
    pub fn wrong(&self, reason: &str) -> String {
        format!("`{}` {reason}", self.pointer)
    }
}

impl OpenApi {
    /// Checks the version and the dialect of a parsed document.
    ///
    /// # Errors
    /// Returns a sentence if it is not OpenAPI 3.0 or 3.1.
    pub fn of(root: Value) -> Result<OpenApi, String> {
        let version = root.get("openapi").and_then(Value::as_str);
        let is_3_1 = match version {
            Some(version) if version.starts_with("3.0.") => false,
            Some(version) if version.starts_with("3.1.") => true,
            Some(version) => return Err(format!("OpenAPI {version} is not supported; write 3.0 or 3.1")),
            None if root.get("swagger").is_some() => {
                return Err("Swagger 2.0 is not supported; convert the document to OpenAPI 3".to_owned());
            }
            None => return Err("it has no `openapi` with the version, such as 3.0.3".to_owned()),
        };
        if let Some(dialect) = root.get("jsonSchemaDialect").filter(|_| is_3_1)
            && !dialect.as_str().is_some_and(|name| DIALECTS.contains(&name.trim_end_matches('#')))
        {
            return Err(format!("the schema dialect {dialect} is not supported"));
        }
        Ok(OpenApi { root, is_3_1 })
    }

    /// Returns the whole document as a part.
    #[must_use]
    pub fn root(&self) -> Part<'_> {
        Part { pointer: String::new(), value: &self.root }
    }

    /// Returns the dialect of its schemas for values from `sender`.
    #[must_use]
    pub fn dialect(&self, sender: Sender) -> Dialect {
        Dialect::OpenApi { is_3_1: self.is_3_1, sender }
    }

    /// Returns the part itself, or the part that it refers to.
    ///
    /// # Errors
    /// Returns a sentence if the reference leads to another document, to nothing, or to itself.
    pub fn resolved<'d>(&'d self, part: Part<'d>) -> Result<Part<'d>, String> {
        let mut part = part;
        for _ in 0..MOST_HOPS {
            let Some(reference) = part.text("$ref") else { return Ok(part) };
            let lost = |reason| format!("`{}/$ref`: `{reference}` {reason}", part.pointer);
            let pointer = reference.strip_prefix('#').ok_or_else(|| lost("is outside this document"))?;
            let pointer = percent_decoded(pointer);
            let value = self.root.pointer(&pointer).ok_or_else(|| lost("leads nowhere"))?;
            part = Part { pointer, value };
        }
        Err(part.wrong("refers to itself"))
    }

    /// Returns all operations in the order of the document.
    ///
    /// # Errors
    /// Returns a sentence if one of them is invalid.
    pub fn operations(&self) -> Result<Vec<Operation<'_>>, String> {
        let mut found = Vec::new();
        let Some(paths) = self.root().member("paths") else { return Ok(found) };
        for (path, item) in paths.members() {
            let item = self.resolved(item)?;
            for method in METHODS {
                let Some(operation) = item.member(method) else { continue };
                if !operation.value.is_object() {
                    return Err(operation.wrong("is not an operation"));
                }
                let servers =
                    [&operation, &item, &self.root()].into_iter().find_map(|at| at.member("servers"));
                found.push(Operation {
                    path,
                    method: method.to_ascii_uppercase(),
                    servers: server::urls(servers.as_ref())?,
                    parameters: self.parameters(&item, &operation)?,
                    operation,
                });
            }
        }
        Ok(found)
    }

    fn parameters<'d>(&'d self, item: &Part<'d>, operation: &Part<'d>) -> Result<Vec<Part<'d>>, String> {
        let mut found: Vec<Part<'_>> = Vec::new();
        for list in [operation, item].into_iter().filter_map(|at| at.member("parameters")) {
            let begin = found.len();
            for parameter in list.elements() {
                let parameter = self.resolved(parameter)?;
                let key =
                    |part: &Part<'_>| Some((part.text("in")?.to_owned(), part.text("name")?.to_owned()));
                let own = key(&parameter).ok_or_else(|| parameter.wrong("has no `name` or no `in`"))?;
                let is_same = |other: &Part<'_>| key(other).as_ref() == Some(&own);
                if found[begin..].iter().any(is_same) {
                    return Err(parameter.wrong("is a duplicate of another parameter in this list"));
                }
                if !found[..begin].iter().any(is_same) {
                    found.push(parameter);
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(paths: Value) -> OpenApi {
        OpenApi::of(json!({"openapi": "3.1.0", "paths": paths, "components": {
            "parameters": {"id": {"name": "id", "in": "path"}, "a": {"$ref": "#/components/parameters/b"},
                "b": {"$ref": "#/components/parameters/a"}},
            "pathItems": {"shared": {"get": {"operationId": "shared"}}},
        }}))
        .unwrap()
    }

    #[test]
    fn versions() {
        let check = |document: Value, expected: &str| {
            assert_eq!(OpenApi::of(document).err().unwrap_or_default(), expected);
        };
        check(json!({"openapi": "3.0.3"}), "");
        check(json!({"openapi": "3.1.1", "jsonSchemaDialect": DIALECTS[1]}), "");
        check(json!({"openapi": "3.2.0"}), "OpenAPI 3.2.0 is not supported; write 3.0 or 3.1");
        check(json!({"swagger": "2.0"}), "Swagger 2.0 is not supported; convert the document to OpenAPI 3");
        check(json!([]), "it has no `openapi` with the version, such as 3.0.3");
        let other = json!({"openapi": "3.1.0", "jsonSchemaDialect": "urn:x"});
        check(other, "the schema dialect \"urn:x\" is not supported");
    }

    #[test]
    fn operations_have_the_parameters_of_their_path() {
        let document = document(json!({
            "/a/{id}": {
                "parameters": [{"$ref": "#/components/parameters/id"}, {"name": "q", "in": "query", "required": true}],
                "get": {"parameters": [{"name": "q", "in": "query"}, {"name": "q", "in": "header"}]},
                "x-own": {}, "summary": "s",
            },
            "/b": {"$ref": "#/components/pathItems/shared"},
            "x-path": {},
        }));
        let operations = document.operations().unwrap();
        let shown: Vec<String> = operations
            .iter()
            .map(|operation| {
                let pointers = operation.parameters.iter().map(|part| part.pointer.as_str());
                let pointers = pointers.collect::<Vec<_>>().join(" ");
                format!("{} {} {}: {pointers}", operation.method, operation.path, operation.operation.pointer)
            })
            .collect();
        let get = "/paths/~1a~1{id}/get";
        assert_eq!(
            shown,
            [
                format!(
                    "GET /a/{{id}} {get}: {get}/parameters/0 {get}/parameters/1 /components/parameters/id"
                ),
                "GET /b /components/pathItems/shared/get: ".to_owned(),
            ]
        );
    }

    #[test]
    fn documents_that_are_refused() {
        let check = |item: Value, expected: &str| {
            let document = document(json!({ "/a": item }));
            assert_eq!(document.operations().unwrap_err(), expected);
        };
        let with = |parameter: Value| json!({"get": {"parameters": [parameter]}});
        check(json!({"get": 7}), "`/paths/~1a/get` is not an operation");
        check(json!({"$ref": "other.yaml"}), "`/paths/~1a/$ref`: `other.yaml` is outside this document");
        check(json!({"$ref": "#/x"}), "`/paths/~1a/$ref`: `#/x` leads nowhere");
        // The message names the reference of the cycle at which the limit is reached.
        check(
            with(json!({"$ref": "#/components/parameters/a"})),
            "`/components/parameters/b` refers to itself",
        );
        check(with(json!({"name": "a"})), "`/paths/~1a/get/parameters/0` has no `name` or no `in`");
        let twice =
            json!({"get": {"parameters": [{"name": "a", "in": "query"}, {"name": "a", "in": "query"}]}});
        check(twice, "`/paths/~1a/get/parameters/1` is a duplicate of another parameter in this list");
    }
}
