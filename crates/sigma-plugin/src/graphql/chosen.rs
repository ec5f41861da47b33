//! The operation that a GraphQL server would execute for a request, for conditions: `graphql_name`,
//! `graphql_operation` and `graphql_root_fields`.

use std::collections::HashSet;

use sigma_http::Headers;
use sigma_schema::expr::VarValue;

use super::message::MOST_PARTS;
use super::{Document, Message, NoDocument, NoMessage, Operation, SelectionKind};

/// The operation that is executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    name: Box<str>,
    operation: Operation,
    root_fields: Vec<Box<str>>,
}

impl Chosen {
    /// Returns the operation of a request; None without a GraphQL message.
    ///
    /// # Errors
    /// Returns an error if servers could execute different operations: see [`Message::find`]. An invalid, too large
    /// or too deep document is an error too.
    pub fn of(query: &[u8], headers: &Headers, body: &[u8]) -> Result<Option<Chosen>, NoMessage> {
        let Some(message) = Message::find(query, headers, body)? else { return Ok(None) };
        // The head of a request has its own limit.
        let most = if body.is_empty() { u32::MAX } else { MOST_PARTS };
        Chosen::of_message(&message, most)
    }

    fn of_message(message: &Message, most: u32) -> Result<Option<Chosen>, NoMessage> {
        let (text, name) = (message.document.as_str(), message.operation_name.as_deref());
        let unread = |reason: &str| Err(NoMessage::Ambiguous(reason.to_owned()));
        let document = match Document::parse(text, most) {
            Ok(document) => document,
            Err(NoDocument::TooLarge) => return unread("the document is too large or too deep"),
            // A server may support a newer edition of the language. Every operation has a selection set.
            Err(NoDocument::Syntax(_)) if text.contains('{') => return unread("the document is malformed"),
            Err(NoDocument::Syntax(_)) => return Ok(None),
        };
        let all = document.operations();
        let mut named = all.iter().filter(|one| name.is_some() && one.name == name);
        let Some(defined) = named.next().or(all.first()) else { return Ok(None) };
        if named.next().is_some() {
            return unread("the document has two operations of this name");
        }
        let (mut sets, mut seen) = (vec![defined.selections.clone()], HashSet::new());
        let mut root_fields = Vec::new();
        // A field in a fragment is requested as well.
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

    /// Returns the value of a variable.
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

    use super::*;

    /// Formats name, operation and root fields.
    fn shown(chosen: Option<Chosen>) -> String {
        chosen.map_or("none".to_owned(), |chosen| {
            format!("{} {:?} {}", chosen.name, chosen.operation, chosen.root_fields.join(","))
        })
    }

    /// Parses a request with this query string, content type and body.
    fn of(query: &str, content_type: &str, body: &str) -> Result<Option<Chosen>, NoMessage> {
        let mut headers = Headers::default();
        if !content_type.is_empty() {
            headers.append("Content-Type", content_type.as_bytes());
        }
        Chosen::of(query.as_bytes(), &headers, body.as_bytes())
    }

    #[test]
    fn operation_comes_from_the_message() {
        let body = |content_type: &str, body: &str| shown(of("", content_type, body).unwrap());
        for content_type in ["", "text/plain", "application/graphql"] {
            assert_eq!(body(content_type, "{a x: b}"), " Query a,b");
            assert_eq!(body(content_type, "mutation M {a} query Q {b}"), "M Mutation a");
            let spread = "query {a ...F ... {b}} fragment F on T {c ...F ...None}";
            assert_eq!(body(content_type, spread), " Query a,b,c");
            assert_eq!(body(content_type, "fragment F on T {a}"), "none");
        }
        for (content_type, none) in [("", "a=b"), ("text/plain", "{a"), ("application/json", "{\"a\":1}")] {
            assert_eq!(body(content_type, none), "none", "{none}");
        }
        let json = |text: &str| body("application/json", text);
        assert_eq!(
            json(r#"{"query": "query A {a} subscription B {b}", "operationName": "B"}"#),
            "B Subscription b"
        );
        assert_eq!(json(r#"{"query": "query A {a}", "operationName": "C"}"#), "A Query a");
        assert_eq!(json(r#"{"variables": {}}"#), "none");
        let asked = |query: &str| shown(of(query, "", "").unwrap());
        assert_eq!(asked("x=1&query=query+Q%7Ba%7D"), "Q Query a");
        assert_eq!(asked("query=query A{a} query B{b}&operationName=B"), "B Query b");
        assert_eq!(asked("x=1&query"), "none");
        assert_eq!(asked("query=shoes"), "none");
    }

    #[test]
    fn unreadable_document_is_an_error() {
        let check = |query: &str, content_type: &str, body: &str| {
            let found = of(query, content_type, body);
            assert!(matches!(found, Err(NoMessage::Ambiguous(_))), "{found:?}: {query} {body}");
        };
        let deep = format!("mutation{}a{}", "{a".repeat(101), "}".repeat(101));
        check(&format!("query={deep}"), "", "");
        check("", "", &deep);
        check("", "", &format!("{{{}}}", "a ".repeat(10_000)));
        assert!(of("", "", &format!("{{{}}}", "a ".repeat(9_999))).is_ok_and(|chosen| chosen.is_some()));
        // Syntax of a later edition, such as a description of an operation.
        check("query=\"text\" mutation {a}", "", "");
        check("", "application/graphql", "\"text\" mutation {a}");
        check("", "application/json", r#"{"query":"{a"}"#);
        check("query=query A{a} mutation A{b}&operationName=A", "", "");
    }

    #[test]
    fn variables() {
        let chosen = of("query=mutation M{a b}", "", "").unwrap().unwrap();
        assert_eq!(chosen.get("graphql_name"), Some(VarValue::text("M")));
        assert_eq!(chosen.get("graphql_operation"), Some(VarValue::text("mutation")));
        let fields = VarValue::List(vec![Cow::Borrowed(&b"a"[..]), Cow::Borrowed(&b"b"[..])]);
        assert_eq!(chosen.get("graphql_root_fields"), Some(fields));
        assert_eq!(chosen.get("graphql_other"), None);
    }
}
