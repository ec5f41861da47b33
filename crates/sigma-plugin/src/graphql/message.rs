//! The one GraphQL message of a request.
//!
//! Servers look for a message in the query string, in the body, or in both, and differ in which of two they execute.
//! A check of one message protects nothing if the server executes the other. So a request carries one message in one
//! place, which every server reads alike, or it is refused. All plugins and variables for GraphQL read it here.

mod multipart;

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use sigma_http::{HeaderId, Headers, Method};

use super::{Document, NoDocument};
use crate::Context;
use crate::form::pairs;
use crate::json;

/// The members of a message.
const MEMBERS: [&str; 4] = ["query", "variables", "operationName", "extensions"];

/// Names under which servers take the identifier of a stored document instead of its text.
const STORED: [&str; 5] = ["documentId", "queryId", "docId", "query_id", "doc_id"];

/// Limit of JSON values in a message: about as many as a body of 1 MiB has.
const MOST_VALUES: usize = 250_000;

/// Limit of selections, arguments and variables of a body that may or may not be a document.
pub(super) const MOST_PARTS: u32 = 10_000;

/// A GraphQL message.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// The text of the document.
    pub document: String,
    /// The operation of the document that is executed.
    pub operation_name: Option<String>,
    /// The values of variables.
    pub variables: Map<String, Value>,
}

/// The reason why a request has no message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoMessage {
    /// The query string of a GET, or the body of a POST, is empty.
    Empty,
    /// There is no message.
    Absent(String),
    /// Two servers could execute different messages, or the message cannot be parsed.
    Ambiguous(String),
}

impl Message {
    /// Returns the message of a GET from its query string, or of a POST from a JSON or GraphQL body. `query` is the
    /// query string for the server.
    ///
    /// # Errors
    /// Returns an error if there is no message, or if some server could find another one.
    pub fn required(
        method: Method,
        query: &[u8],
        headers: &Headers,
        body: &[u8],
    ) -> Result<Message, NoMessage> {
        let arguments = Parts::of_arguments(query, "args")?;
        if method == Method::Get {
            return match (query.is_empty(), body.is_empty()) {
                (_, false) => Err(ambiguous("a GET has no body")),
                (true, _) => Err(NoMessage::Empty),
                _ => arguments.message(),
            };
        }
        if body.is_empty() {
            return Err(NoMessage::Empty);
        }
        if let Some(name) = arguments.first() {
            return Err(ambiguous(&format!("args[{name}] in a request with a body")));
        }
        match Kind::of(headers)? {
            Kind::Json { is_plain: true } => of_json(body),
            Kind::Document => of_document(body),
            _ => {
                let given = headers.get(HeaderId::ContentType).unwrap_or_default();
                Err(NoMessage::Absent(format!("error content-type: {}", given.escape_ascii())))
            }
        }
    }

    /// Returns the message of any request: from the query string, or from a body of any type.
    ///
    /// # Errors
    /// Returns an error if servers could find different messages, or if the message cannot be parsed.
    pub fn find(query: &[u8], headers: &Headers, body: &[u8]) -> Result<Option<Message>, NoMessage> {
        let arguments = Parts::of_arguments(query, "args")?;
        if body.is_empty() {
            return optional(arguments.message());
        }
        let found = optional(of_any_body(headers, body))?;
        match arguments.first() {
            None => Ok(found),
            Some(name) if found.is_some() || arguments.is_executed() => {
                Err(ambiguous(&format!("args[{name}] in a request with a body")))
            }
            Some(_) => Ok(None),
        }
    }

    /// Returns the query string of a GET with this message, with its `?`.
    pub fn to_query(&self, has_variables: bool) -> String {
        let mut query = format!("?query={}", escaped(&self.document));
        if let Some(name) = &self.operation_name {
            query += &format!("&operationName={}", escaped(name));
        }
        if has_variables {
            query += &format!("&variables={}", escaped(&Value::Object(self.variables.clone()).to_string()));
        }
        query
    }

    /// Makes this the only message of a POST: the body is replaced, and the query string is dropped.
    pub fn replace_body(self, has_variables: bool, ctx: &mut Context) {
        let mut body = Map::new();
        if has_variables {
            body.insert("variables".to_owned(), Value::Object(self.variables));
        }
        if let Some(name) = self.operation_name {
            body.insert("operationName".to_owned(), json!(name));
        }
        body.insert("query".to_owned(), json!(self.document));
        ctx.target = path_of(ctx.outgoing_target()).to_vec();
        // It describes the client's body.
        ctx.request.headers.remove_name(b"Content-Encoding");
        ctx.request.headers.replace("Content-Type", b"application/json");
        ctx.body = Some(Value::Object(body).to_string().into_bytes());
    }
}

/// Returns the path of a target.
pub fn path_of(target: &[u8]) -> &[u8] {
    target.split(|b| *b == b'?').next().unwrap_or_default()
}

/// Escapes a text for a query string.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn ambiguous(reason: &str) -> NoMessage {
    NoMessage::Ambiguous(reason.to_owned())
}

/// Turns "no message" into None.
fn optional(found: Result<Message, NoMessage>) -> Result<Option<Message>, NoMessage> {
    match found {
        Ok(message) => Ok(Some(message)),
        Err(NoMessage::Empty | NoMessage::Absent(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The members of a message in one place.
struct Parts {
    place: &'static str,
    found: [Option<Value>; 4],
    /// The message names a stored document.
    is_stored: bool,
}

impl Parts {
    fn new(place: &'static str) -> Parts {
        Parts { place, found: Default::default(), is_stored: false }
    }

    /// Parses a query string or a form.
    fn of_arguments(query: &[u8], place: &'static str) -> Result<Parts, NoMessage> {
        let mut parts = Parts::new(place);
        for (name, value) in pairs(query) {
            let name = String::from_utf8_lossy(&name);
            if member(&name).is_none() {
                continue;
            }
            let text = String::from_utf8(value.unwrap_or_default().into_owned());
            let text = text.map_err(|_| ambiguous(&format!("{place}[{}] is not UTF-8", shown(&name))))?;
            parts.add(&name, Value::String(text))?;
        }
        // Some servers also separate by `;`.
        let behind = query.split(|b| *b == b'&').flat_map(|pair| pair.split(|b| *b == b';').skip(1));
        for pair in behind {
            let name = pairs(pair).next().map(|(name, _)| String::from_utf8_lossy(&name).into_owned());
            if name.is_some_and(|name| member(&name).is_some()) {
                return Err(ambiguous(&format!("{place} has a member after `;`")));
            }
        }
        Ok(parts)
    }

    /// Adds a member. Other names are ignored.
    fn add(&mut self, name: &str, value: Value) -> Result<(), NoMessage> {
        let place = self.place;
        match member(name) {
            None => Ok(()),
            Some(Member::Stored) => {
                self.is_stored = true;
                Ok(())
            }
            Some(Member::At(at)) if name != MEMBERS[at] => {
                Err(ambiguous(&format!("{place}[{}] is written in another form", MEMBERS[at])))
            }
            Some(Member::At(at)) => match self.found[at].replace(value) {
                Some(_) => Err(ambiguous(&format!("{place}[{name}] is repeated"))),
                None => Ok(()),
            },
        }
    }

    /// Returns the first member that is set.
    fn first(&self) -> Option<&'static str> {
        let named = MEMBERS.iter().zip(&self.found).find(|(_, value)| value.is_some());
        named.map(|(name, _)| *name).or(self.is_stored.then_some(STORED[0]))
    }

    /// Returns true if a server executes something because of these members alone.
    fn is_executed(&self) -> bool {
        self.found[0].is_some() || self.names_stored()
    }

    /// Returns true if the message names a stored document. Automatic persisted queries name it within `extensions`.
    fn names_stored(&self) -> bool {
        let within = match &self.found[3] {
            Some(Value::String(text)) => text.contains("persistedQuery"),
            Some(Value::Object(members)) => members.contains_key("persistedQuery"),
            _ => false,
        };
        self.is_stored || within
    }

    fn message(self) -> Result<Message, NoMessage> {
        let (place, names_stored) = (self.place, self.names_stored());
        let nil = format!("{place}[query] is nil");
        let [query, variables, name, _] = self.found;
        let document = match query {
            Some(Value::String(document)) => document,
            None | Some(Value::Null) if !names_stored => return Err(NoMessage::Absent(nil)),
            _ => return Err(NoMessage::Ambiguous(nil)),
        };
        let operation_name = match name {
            None | Some(Value::Null) => None,
            Some(Value::String(name)) => Some(name).filter(|name| !name.is_empty()),
            Some(_) => return Err(ambiguous(&format!("{place}[operationName] is not text"))),
        };
        Ok(Message { document, operation_name, variables: of_variables(variables, place)? })
    }
}

/// Parses values of variables: an object, or the text of one, as many servers accept it.
fn of_variables(given: Option<Value>, place: &str) -> Result<Map<String, Value>, NoMessage> {
    let given = match given {
        Some(Value::String(text)) if text.trim().is_empty() => None,
        Some(Value::String(text)) => Some(read(text.as_bytes())?),
        given => given,
    };
    match given {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(variables)) => Ok(variables),
        // Some servers treat a list as a batch.
        Some(_) => Err(ambiguous(&format!("{place}[variables] is not an object"))),
    }
}

/// The meaning of a name for some server.
#[derive(Clone, Copy)]
enum Member {
    At(usize),
    Stored,
}

/// Returns the member that some server may read from a name.
fn member(name: &str) -> Option<Member> {
    let at = MEMBERS.iter().position(|known| is_like(name, known)).map(Member::At);
    at.or_else(|| STORED.iter().any(|known| is_like(name, known)).then_some(Member::Stored))
}

/// Returns true if some server takes a name for this one. Servers differ in case (Go, ASP.NET), white space (PHP),
/// and names with brackets, which mean nested members (Node, PHP, Ruby).
fn is_like(name: &str, known: &str) -> bool {
    let is_blank = |c: char| c.is_whitespace() || c.is_control() || c == '\u{feff}';
    let stem = name.trim_matches(is_blank).split(['[', '.']).next().unwrap_or_default();
    let stem = stem.trim_end_matches(is_blank);
    stem.chars().flat_map(char::to_uppercase).eq(known.chars().flat_map(char::to_uppercase))
}

/// Returns the name of a member, for error messages.
fn shown(name: &str) -> &'static str {
    match member(name) {
        Some(Member::At(at)) => MEMBERS[at],
        _ => STORED[0],
    }
}

/// Parses JSON with a bounded number of values and without repeated names in objects.
fn read(text: &[u8]) -> Result<Value, NoMessage> {
    if json::values(text) > MOST_VALUES {
        return Err(ambiguous("the body has too many values"));
    }
    json::unambiguous(text).map_err(|error| NoMessage::Ambiguous(error.to_string()))
}

fn of_json(body: &[u8]) -> Result<Message, NoMessage> {
    let mut parts = Parts::new("json body");
    match read(body)? {
        Value::Object(members) => {
            for (name, value) in members {
                parts.add(&name, value)?;
            }
            parts.message()
        }
        // A list is a batch of messages.
        Value::Array(_) => Err(ambiguous("json body[query] is nil")),
        _ => Err(NoMessage::Absent("json body[query] is nil".to_owned())),
    }
}

fn of_document(body: &[u8]) -> Result<Message, NoMessage> {
    let document = std::str::from_utf8(body).map_err(|_| ambiguous("the body is not UTF-8"))?;
    Ok(Message { document: document.to_owned(), ..Message::default() })
}

/// The format of a body.
enum Kind<'h> {
    Json {
        /// The type is `application/json` itself, not a derived type.
        is_plain: bool,
    },
    Document,
    Form,
    Multipart(&'h [u8]),
    Other,
    /// The request has no type.
    None,
}

impl Kind<'_> {
    /// Returns the format of a body.
    ///
    /// # Errors
    /// Returns an error for a content coding, several types, or a character set other than UTF-8.
    fn of(headers: &Headers) -> Result<Kind<'_>, NoMessage> {
        let is_coding = |name: &[u8]| name.eq_ignore_ascii_case(b"content-encoding");
        if headers.iter().any(|(name, coding)| is_coding(name) && !coding.eq_ignore_ascii_case(b"identity")) {
            return Err(ambiguous("the body has a content-encoding"));
        }
        let mut types = headers.get_all(HeaderId::ContentType);
        let given = types.next().unwrap_or_default();
        if types.next().is_some() {
            return Err(ambiguous("several content-types"));
        }
        let mut parameters = given.split(|b| *b == b';').map(<[u8]>::trim_ascii);
        let media_type = parameters.next().unwrap_or_default().to_ascii_lowercase();
        let kind = match &*media_type {
            b"" => return Ok(Kind::None),
            b"application/json" => Kind::Json { is_plain: true },
            b"application/graphql" => Kind::Document,
            b"application/x-www-form-urlencoded" => Kind::Form,
            b"multipart/form-data" => Kind::Multipart(given),
            other if other.ends_with(b"+json") => Kind::Json { is_plain: false },
            _ => return Ok(Kind::Other),
        };
        let charsets = parameters.filter_map(|parameter| {
            let at = parameter.iter().position(|b| *b == b'=')?;
            let is_charset = parameter[..at].trim_ascii().eq_ignore_ascii_case(b"charset");
            is_charset.then(|| parameter[at + 1..].trim_ascii())
        });
        for charset in charsets {
            let name =
                charset.strip_prefix(b"\"").and_then(|name| name.strip_suffix(b"\"")).unwrap_or(charset);
            if ![&b"utf-8"[..], b"utf8", b"us-ascii"].iter().any(|known| known.eq_ignore_ascii_case(name)) {
                return Err(ambiguous("the body is not UTF-8"));
            }
        }
        Ok(kind)
    }
}

fn of_any_body(headers: &Headers, body: &[u8]) -> Result<Message, NoMessage> {
    match Kind::of(headers)? {
        Kind::Json { .. } => of_json(body),
        Kind::Document => of_document(body),
        Kind::Form => Parts::of_arguments(body, "form")?.message(),
        Kind::Multipart(given) => multipart::message(given, body),
        Kind::Other => of_unknown(body),
        Kind::None => {
            let form = Parts::of_arguments(body, "form")?;
            match (of_unknown(body), form.is_executed()) {
                (Ok(_), true) => Err(ambiguous("the content type names both a document and a form")),
                (Err(NoMessage::Absent(_)), true) => form.message(),
                (found, _) => found,
            }
        }
    }
}

/// Parses the message of a body of an unknown type. No text is both a document and JSON.
fn of_unknown(body: &[u8]) -> Result<Message, NoMessage> {
    let absent = || NoMessage::Absent("the body is not a GraphQL document".to_owned());
    let text: Cow<'_, str> = std::str::from_utf8(body).map_err(|_| absent())?.into();
    match Document::parse(&text, MOST_PARTS) {
        Ok(_) | Err(NoDocument::TooLarge) => of_document(body),
        Err(NoDocument::Syntax(_)) if json::unambiguous(body).is_ok() => of_json(body),
        // JSON with a repeated name is invalid for some servers and valid for others.
        Err(NoDocument::Syntax(_)) if serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok() => {
            of_json(body)
        }
        Err(NoDocument::Syntax(_)) => Err(absent()),
    }
}

#[cfg(test)]
mod tests;
