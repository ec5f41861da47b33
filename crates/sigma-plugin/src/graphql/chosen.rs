//! What a request asks a GraphQL server to execute, for conditions: `graphql_name`, `graphql_operation` and
//! `graphql_root_fields`.

use std::collections::HashSet;

use serde_json::Value;
use sigma_config::expr::VarValue;

use super::{Document, NoDocument, Operation, SelectionKind};
use crate::form::pairs;

/// Selections, arguments and variables of a document in a body: a document with more is not looked at.
const MOST: u32 = 10_000;

/// The operation that is executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    name: Box<str>,
    operation: Operation,
    root_fields: Vec<Box<str>>,
}

impl Chosen {
    /// That of a query string; None if there is none.
    ///
    /// # Errors
    /// Returns an error if the document stands deeper than is looked at.
    pub fn of_query(query: &[u8]) -> Result<Option<Chosen>, NoDocument> {
        let argument = |of: &str| {
            let value = pairs(query).find(|(name, _)| **name == *of.as_bytes())?.1?;
            String::from_utf8(value.into()).ok()
        };
        let Some(document) = argument("query") else { return Ok(None) };
        // The head of a request has its own limit.
        Chosen::of_document(&document, argument("operationName").as_deref(), u32::MAX)
    }

    /// Whether a query string has a document. Beside a body, servers differ in which of the two they execute.
    pub fn is_in_query(query: &[u8]) -> bool {
        pairs(query).any(|(name, _)| *name == *b"query")
    }

    /// That of a body: `fields` if it has any, else all of it is the document. None if there is none.
    ///
    /// # Errors
    /// Returns an error if there are several, as in a batch, or none that is text; if there is more in it than is looked
    /// at, or it stands deeper.
    pub fn of_body(fields: Option<&Value>, body: &[u8]) -> Result<Option<Chosen>, NoDocument> {
        let Some(fields) = fields else {
            let document = std::str::from_utf8(body).ok();
            return document.map_or(Ok(None), |document| Chosen::of_document(document, None, MOST));
        };
        // An upload has the request in a field of its own (GraphQL multipart request specification).
        let carried = fields.get("operations").and_then(Value::as_str).map(serde_json::from_str::<Value>);
        let fields = match &carried {
            Some(Ok(carried)) => carried,
            Some(Err(_)) => return Err(NoDocument::TooLarge),
            None => fields,
        };
        match fields.get("query") {
            _ if fields.is_array() => Err(NoDocument::TooLarge),
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(document)) => {
                Chosen::of_document(document, fields.get("operationName").and_then(Value::as_str), MOST)
            }
            Some(_) => Err(NoDocument::TooLarge),
        }
    }

    fn of_document(text: &str, name: Option<&str>, most: u32) -> Result<Option<Chosen>, NoDocument> {
        let document = match Document::parse(text, most) {
            Ok(document) => document,
            Err(NoDocument::TooLarge) => return Err(NoDocument::TooLarge),
            Err(NoDocument::Syntax(_)) => return Ok(None),
        };
        let all = document.operations();
        let named = all.iter().find(|one| name.is_some() && one.name == name);
        let Some(defined) = named.or(all.first()) else { return Ok(None) };
        let (mut sets, mut seen) = (vec![defined.selections.clone()], HashSet::new());
        let mut root_fields = Vec::new();
        // Who asks for a field through a fragment asks for it as well.
        while let Some(set) = sets.pop() {
            for (selection, within) in document.selections(set) {
                match selection.kind {
                    SelectionKind::Field(name) => root_fields.push(name.into()),
                    SelectionKind::Inline(_) => sets.push(within),
                    SelectionKind::Spread(name) => {
                        let fragment = document.fragment(name).filter(|_| seen.insert(name));
                        sets.extend(fragment.map(|fragment| fragment.selections.clone()));
                    }
                }
            }
        }
        let name = defined.name.unwrap_or_default().into();
        Ok(Some(Chosen { name, operation: defined.operation, root_fields }))
    }

    /// The value of a variable.
    pub fn get(&self, variable: &str) -> Option<VarValue<'_>> {
        Some(match variable {
            "graphql_name" => VarValue::text(&*self.name),
            "graphql_operation" => VarValue::text(match self.operation {
                Operation::Query => "query",
                Operation::Mutation => "mutation",
                Operation::Subscription => "subscription",
            }),
            "graphql_root_fields" => {
                VarValue::List(self.root_fields.iter().map(|name| name.as_bytes().into()).collect())
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use serde_json::json;

    use super::*;

    /// Name, operation and root fields.
    fn shown(chosen: Option<Chosen>) -> String {
        chosen.map_or("none".to_owned(), |chosen| {
            format!("{} {:?} {}", chosen.name, chosen.operation, chosen.root_fields.join(","))
        })
    }

    #[test]
    fn operations_of_requests() {
        let body = |fields: Option<Value>, body: &str| {
            shown(Chosen::of_body(fields.as_ref(), body.as_bytes()).unwrap())
        };
        assert_eq!(body(None, "{a x: b}"), " Query a,b");
        assert_eq!(body(None, "mutation M {a} query Q {b}"), "M Mutation a");
        let spread = "query {a ...F ... {b}} fragment F on T {c ...F ...None}";
        assert_eq!(body(None, spread), " Query a,b,c");
        for none in ["", "{a", "fragment F on T {a}", "a=b"] {
            assert_eq!(body(None, none), "none", "{none}");
        }
        let two = json!({"query": "query A {a} subscription B {b}", "operationName": "B"});
        assert_eq!(body(Some(two), ""), "B Subscription b");
        assert_eq!(body(Some(json!({"query": "query A {a}", "operationName": "C"})), ""), "A Query a");
        assert_eq!(body(Some(json!({"variables": {}})), "{a}"), "none");
        let carried = json!({"operations": "{\"query\": \"mutation {a}\"}", "map": "{}"});
        assert_eq!(body(Some(carried), ""), " Mutation a");
        // What another server might make operations of must not pass for none.
        for untold in [
            json!([{"query": "mutation {a}"}]),
            json!({"query": ["mutation {a}"]}),
            json!({"operations": "[{\"query\": \"mutation {a}\"}]"}),
            json!({"operations": "no JSON"}),
        ] {
            assert_eq!(Chosen::of_body(Some(&untold), b""), Err(NoDocument::TooLarge), "{untold}");
        }
        assert!(Chosen::is_in_query(b"a&query=x") && !Chosen::is_in_query(b"query2=x"));
        let query = |query: &str| Chosen::of_query(query.as_bytes());
        let asked = |text: &str| shown(query(text).unwrap());
        assert_eq!(asked("x=1&query=query+Q%7Ba%7D"), "Q Query a");
        assert_eq!(asked("query=query A{a} query B{b}&operationName=B"), "B Query b");
        assert_eq!(asked("x=1&query"), "none");
        // Who wraps an operation deeper than is read must not pass for somebody who asks for none.
        let deep = format!("mutation{}a{}", "{a".repeat(101), "}".repeat(101));
        assert_eq!(query(&format!("query={deep}")), Err(NoDocument::TooLarge));
        assert_eq!(Chosen::of_body(None, deep.as_bytes()), Err(NoDocument::TooLarge));
        let many = format!("{{{}}}", "a ".repeat(10_000));
        assert_eq!(Chosen::of_body(None, many.as_bytes()), Err(NoDocument::TooLarge));
        let most = format!("{{{}}}", "a ".repeat(9_999));
        assert!(Chosen::of_body(None, most.as_bytes()).is_ok_and(|chosen| chosen.is_some()));
    }

    #[test]
    fn variables() {
        let chosen = Chosen::of_query(b"query=mutation M{a b}").unwrap().unwrap();
        assert_eq!(chosen.get("graphql_name"), Some(VarValue::text("M")));
        assert_eq!(chosen.get("graphql_operation"), Some(VarValue::text("mutation")));
        let fields = VarValue::List(vec![Cow::Borrowed(&b"a"[..]), Cow::Borrowed(&b"b"[..])]);
        assert_eq!(chosen.get("graphql_root_fields"), Some(fields));
        assert_eq!(chosen.get("graphql_other"), None);
    }
}
