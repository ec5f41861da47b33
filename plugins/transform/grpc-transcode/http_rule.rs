//! Which requests an annotation `google.api.http` is of, and what message they stand for.

use std::sync::Arc;

use prost_reflect::ServiceDescriptor;
use serde_json::{Map, Value as Json};
use sigma_schema::proto::http_rule::{self, Body, HttpRule};

/// Most fields nested in each other that an argument may name: `a.b.c` are three.
const MOST_LEVELS: usize = 32;

/// The annotations of a service.
#[derive(Debug)]
pub(super) struct Rules(Vec<Arc<HttpRule>>);

/// The fields in the path of a request.
pub(super) type Captures = Vec<(String, String)>;

impl Rules {
    /// Returns the rules of all methods of a service.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if one is not understood.
    pub(super) fn of(service: &ServiceDescriptor) -> Result<Rules, String> {
        http_rule::of_service(service).map(|rules| Rules(rules.into_iter().map(Arc::new).collect()))
    }

    /// The first rule that a request meets, and what its path says.
    pub(super) fn find(&self, verb: &[u8], path: &str) -> Option<(Arc<HttpRule>, Captures)> {
        let mut of_verb = self.0.iter().filter(|rule| &*rule.verb == "*" || rule.verb.as_bytes() == verb);
        of_verb.find_map(|rule| {
            let captures = rule.template.captures(path)?;
            let captures = captures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            Some((Arc::clone(rule), captures))
        })
    }
}

/// Whether the body of a request is read as JSON.
pub(super) fn takes_body(rule: &HttpRule) -> bool {
    !matches!(rule.body, Body::Nowhere)
}

/// The object that a message is made of: of the body, the arguments of the query, and the path, which wins.
///
/// # Errors
/// Returns an error, which is a sentence, if the parts do not go together.
pub(super) fn input(
    rule: &HttpRule,
    body: Json,
    query: Json,
    captures: Captures,
) -> Result<Json, &'static str> {
    let mut input = match &rule.body {
        Body::Message => match body {
            Json::Null => Json::Object(Map::new()),
            Json::Object(_) => body,
            _ => return Err("the body is not an object"),
        },
        Body::Field(field) => {
            let mut input = Map::new();
            input.insert(field.to_string(), body);
            Json::Object(input)
        }
        Body::Nowhere => Json::Object(Map::new()),
    };
    if let (false, Json::Object(arguments)) = (matches!(rule.body, Body::Message), query) {
        for (name, value) in arguments {
            put(&mut input, &name, value)?;
        }
    }
    for (name, value) in captures {
        put(&mut input, &name, Json::String(value))?;
    }
    Ok(input)
}

/// Sets a field by its full path.
fn put(input: &mut Json, path: &str, value: Json) -> Result<(), &'static str> {
    if path.split('.').count() > MOST_LEVELS {
        return Err("an argument has too many nested fields");
    }
    let mut place = input;
    for name in path.split('.') {
        if place.is_null() {
            *place = Json::Object(Map::new());
        }
        let members =
            place.as_object_mut().ok_or("an argument refers to a field of a value that is not a message")?;
        place = members.entry(name).or_insert(Json::Null);
    }
    *place = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_stand_where_they_say() {
        let check = |path: &str, expected: Result<Json, &str>| {
            let mut input = json!({"a": {"b": 1}, "c": 2});
            assert_eq!(put(&mut input, path, json!(7)).map(|()| input), expected, "{path}");
        };
        check("a.b", Ok(json!({"a": {"b": 7}, "c": 2})));
        check("a.d.e", Ok(json!({"a": {"b": 1, "d": {"e": 7}}, "c": 2})));
        check("c.d", Err("an argument refers to a field of a value that is not a message"));
        check(&vec!["a"; 33].join("."), Err("an argument has too many nested fields"));
    }
}
