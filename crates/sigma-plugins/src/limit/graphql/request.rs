//! What a request asks a GraphQL server: by GET in the query string, or by POST in the body.
//!
//! A server may read more of a request than this does, or the other one of two values of one name. What it could read
//! in two ways is refused: else somebody shows a cheap query here and has a dear one executed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sigma_http::{Method, RequestHead};
use sigma_plugin::variables::pairs;

/// JSON values of a body of the largest default size, about.
const MOST_VALUES: usize = 250_000;

/// The arguments of a query string that a GraphQL server reads.
const ARGUMENTS: [&str; 3] = ["query", "variables", "operationName"];

/// A question to a GraphQL server.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Question {
    /// The document.
    pub(super) query: String,
    pub(super) variables: Variables,
    /// Which operation is executed.
    pub(super) operation: Option<String>,
}

/// Why there is none, as the client is told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoQuestion {
    /// There is no body, or no query string.
    Nothing,
    /// It is no question, for this reason.
    Wrong(String),
}

/// The values of variables that are numbers; all else costs nothing.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Variables(HashMap<String, Option<f64>>);

impl Variables {
    /// The number that a variable is set to: None if it is not set at all, and within that if it is no number.
    pub(super) fn get(&self, name: &str) -> Option<Option<f64>> {
        self.0.get(name).copied()
    }
}

impl Question {
    /// Reads the question of a request with this body.
    ///
    /// # Errors
    /// Returns an error if there is none, or more than one way to read it.
    pub(super) fn of(head: &RequestHead, body: &[u8]) -> Result<Question, NoQuestion> {
        let query = head.query().unwrap_or_default();
        if head.method == Method::Get {
            return match (query.is_empty(), body.is_empty()) {
                (true, _) => Err(NoQuestion::Nothing),
                (_, false) => Err(wrong("a GET has no body")),
                _ => Question::of_arguments(query),
            };
        }
        if body.is_empty() {
            return Err(NoQuestion::Nothing);
        }
        if let Some((name, _)) = arguments(query).next() {
            return Err(wrong(&format!("args[{name}] stands beside a body")));
        }
        let mut types = head.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"Content-Type"));
        let content_type = types.next().map_or(&b""[..], |(_, value)| value);
        if types.next().is_some() {
            return Err(wrong("several content-types"));
        }
        if content_type.starts_with(b"application/json") {
            return Question::of_json(body);
        }
        if content_type.starts_with(b"application/graphql") {
            let query = std::str::from_utf8(body).map_err(|_| wrong("the body is no UTF-8"))?;
            return Ok(Question { query: query.to_owned(), ..Question::default() });
        }
        Err(wrong(&format!("error content-type: {}", content_type.escape_ascii())))
    }

    fn of_arguments(query: &[u8]) -> Result<Question, NoQuestion> {
        let mut found: [Option<String>; 3] = Default::default();
        for (name, value) in arguments(query) {
            let at = ARGUMENTS.iter().position(|known| *known == name).unwrap_or_default();
            let text = String::from_utf8(value.into_owned());
            let text = text.map_err(|_| wrong(&format!("args[{name}] is no UTF-8")))?;
            if found[at].replace(text).is_some() {
                return Err(wrong(&format!("args[{name}] stands there twice")));
            }
        }
        let [query, variables, operation] = found;
        let query = query.ok_or_else(|| wrong("args[query] is nil"))?;
        let variables = match variables.filter(|text| !text.is_empty()) {
            Some(text) => read(text.as_bytes())?,
            None => Variables::default(),
        };
        Ok(Question { query, variables, operation: operation.filter(|name| !name.is_empty()) })
    }

    fn of_json(body: &[u8]) -> Result<Question, NoQuestion> {
        let nil = || wrong("json body[query] is nil");
        let is_object = body.trim_ascii_start().starts_with(b"{");
        if !is_object {
            // A list is several questions at once.
            return Err(read::<IgnoredAny>(body).err().unwrap_or_else(nil));
        }
        let posted: Posted = read(body)?;
        let text = |value: Option<Value>| value.and_then(|value| value.as_str().map(str::to_owned));
        Ok(Question {
            query: text(posted.query).ok_or_else(nil)?,
            variables: posted.variables.unwrap_or_default(),
            operation: text(posted.operation_name),
        })
    }
}

/// The members of a body that a server reads. One that stands there twice is an error.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Posted {
    query: Option<Value>,
    variables: Option<Variables>,
    operation_name: Option<Value>,
}

/// The arguments that a server reads, decoded.
fn arguments(query: &[u8]) -> impl Iterator<Item = (&'static str, Cow<'_, [u8]>)> {
    pairs(query).filter_map(|(name, value)| {
        let known = ARGUMENTS.into_iter().find(|known| known.as_bytes() == &*name)?;
        Some((known, value.unwrap_or_default()))
    })
}

fn wrong(reason: &str) -> NoQuestion {
    NoQuestion::Wrong(reason.to_owned())
}

/// JSON with a bounded number of values.
fn read<'t, T: Deserialize<'t>>(text: &'t [u8]) -> Result<T, NoQuestion> {
    if crate::json_body::values(text) > MOST_VALUES {
        return Err(wrong("the body has too many values"));
    }
    serde_json::from_slice(text).map_err(|error| NoQuestion::Wrong(error.to_string()))
}

impl<'de> Deserialize<'de> for Variables {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OfVariables)
    }
}

/// Reads numbers by name; anything but an object has none.
struct OfVariables;

impl<'de> Visitor<'de> for OfVariables {
    type Value = Variables;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("variables")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Variables, A::Error> {
        let mut found = HashMap::new();
        while let Some(name) = members.next_key::<String>()? {
            let value: Value = members.next_value()?;
            if found.contains_key(&name) {
                return Err(A::Error::custom("duplicate variable"));
            }
            found.insert(name, value.as_f64());
        }
        Ok(Variables(found))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Variables, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Variables::default())
    }

    fn visit_unit<E>(self) -> Result<Variables, E> {
        Ok(Variables::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Variables, E> {
        Ok(Variables::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Variables, E> {
        Ok(Variables::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Variables, E> {
        Ok(Variables::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Variables, E> {
        Ok(Variables::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Variables, E> {
        Ok(Variables::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Case;

    fn question(head: &str, body: &str) -> Result<Question, NoQuestion> {
        Question::of(&Case::new(head).ctx.request, body.as_bytes())
    }

    fn post(content_type: &str, body: &str) -> Result<Question, NoQuestion> {
        question(&format!("POST /graphql HTTP/1.1\nHost: h\nContent-Type: {content_type}"), body)
    }

    #[test]
    fn questions() {
        let check = |found: Result<Question, NoQuestion>, variables: &[(&str, Option<f64>)], operation| {
            let found = found.unwrap();
            assert_eq!((&*found.query, found.operation.as_deref()), ("{a}", operation));
            let numbers = variables.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect();
            assert_eq!(found.variables, Variables(numbers));
        };
        check(post("application/graphql;charset=utf-8", "{a}"), &[], None);
        check(post("application/json", r#" {"query":"{a}","x":[1]}"#), &[], None);
        let all = r#"{"operationName":"A","variables":{"n":2,"s":"3","z":null},"query":"{a}"}"#;
        check(post("application/json", all), &[("n", Some(2.0)), ("s", None), ("z", None)], Some("A"));
        for other in ["null", "[1,{}]", "\"x\"", "1", "-1", "1.5", "true"] {
            let body = format!(r#"{{"query":"{{a}}","variables":{other},"operationName":7}}"#);
            check(post("application/json", &body), &[], None);
        }
        let get = |query: &str| question(&format!("GET /?{query} HTTP/1.1\nHost: h"), "");
        check(get("query=%7Ba%7D"), &[], None);
        check(get("x&query={a}&variables=%7B%22n%22:2%7D&operationName=A"), &[("n", Some(2.0))], Some("A"));
        check(get("query={a}&variables=&operationName="), &[], None);
    }

    #[test]
    fn what_is_none_and_what_is_two() {
        let check = |found: Result<Question, NoQuestion>, expected: &str| match found {
            Err(NoQuestion::Wrong(reason)) => assert_eq!(reason, expected),
            Err(NoQuestion::Nothing) => assert_eq!(expected, ""),
            Ok(found) => panic!("{found:?} and not {expected}"),
        };
        let json = |body: &str| post("application/json", body);
        check(json(""), "");
        check(json("{"), "EOF while parsing an object at line 1 column 1");
        check(json("{}"), "json body[query] is nil");
        check(json("[{\"query\":\"{a}\"}]"), "json body[query] is nil");
        check(json("[\"{a}\"]"), "json body[query] is nil");
        check(json("[1"), "EOF while parsing a list at line 1 column 2");
        check(json(r#"{"query":1}"#), "json body[query] is nil");
        check(json(r#"{"query":"{a}","query":"{b}"}"#), "duplicate field `query` at line 1 column 22");
        check(json(r#"{"query":"{a}","qu\u0065ry":"{b}"}"#), "duplicate field `query` at line 1 column 27");
        let twice = r#"{"query":"{a}","variables":{"n":1,"n":9}}"#;
        check(json(twice), "duplicate variable at line 1 column 40");
        check(json(&format!("[{}1]", "1,".repeat(MOST_VALUES))), "the body has too many values");
        check(post("text/plain", "{a}"), "error content-type: text/plain");
        check(post("application/json\nContent-Type: application/graphql", "{}"), "several content-types");
        let beside =
            question("POST /?a=b&%71uery={a} HTTP/1.1\nHost: h\nContent-Type: application/graphql", "{a}");
        check(beside, "args[query] stands beside a body");
        let get = |query: &str| question(&format!("GET /{query} HTTP/1.1\nHost: h"), "");
        check(get(""), "");
        check(get("?a=b"), "args[query] is nil");
        check(get("?query={a}&query={b}"), "args[query] stands there twice");
        check(get("?query=%ff"), "args[query] is no UTF-8");
        check(get("?query={a}&variables={"), "EOF while parsing an object at line 1 column 1");
        check(question("GET /?query={a} HTTP/1.1\nHost: h", "{}"), "a GET has no body");
    }
}
