//! Which HTTP requests a method stands for: the annotation `google.api.http`.

use prost_reflect::{DynamicMessage, MethodDescriptor, ServiceDescriptor};
use serde_json::{Map, Value as Json};

/// The name of the annotation.
const HTTP: &str = "google.api.http";

/// Most fields within each other that an argument may name: `a.b.c` are three.
const MOST_LEVELS: usize = 32;

/// The annotations of a service.
#[derive(Debug)]
pub(super) struct Rules(Vec<Rule>);

/// One annotation.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) method: MethodDescriptor,
    verb: Box<str>,
    template: Template,
    body: Body,
    /// The field of the answer that is shown alone.
    pub(super) answer: Option<Box<str>>,
}

/// Where the body of a request goes to.
#[derive(Debug)]
enum Body {
    Nowhere,
    Message,
    Field(Box<str>),
}

impl Rules {
    /// The annotations of all methods of a service, in the order of the methods.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if one is not understood.
    pub(super) fn of(service: &ServiceDescriptor) -> Result<Rules, String> {
        let mut rules = Vec::new();
        let Some(extension) = service.parent_pool().get_extension_by_name(HTTP) else {
            return Ok(Rules(rules));
        };
        for method in service.methods() {
            let options = method.options();
            if !options.has_extension(&extension) {
                continue;
            }
            let rule = options.get_extension(&extension);
            let Some(rule) = rule.as_message() else { continue };
            let wrong = |reason| format!("the annotation of {}: {reason}", method.full_name());
            rules.push(Rule::of(&method, rule).map_err(wrong)?);
            let more = rule.get_field_by_name("additional_bindings");
            for rule in more.iter().filter_map(|more| more.as_list()).flatten() {
                let Some(rule) = rule.as_message() else { continue };
                rules.push(Rule::of(&method, rule).map_err(wrong)?);
            }
        }
        Ok(Rules(rules))
    }

    /// The first rule that a request meets, and what its path says.
    pub(super) fn find<'r>(&'r self, verb: &[u8], path: &str) -> Option<(&'r Rule, Vec<(&'r str, String)>)> {
        let of_verb = self.0.iter().filter(|rule| &*rule.verb == "*" || rule.verb.as_bytes() == verb);
        of_verb.filter_map(|rule| Some((rule, rule.template.captures(path)?))).next()
    }
}

impl Rule {
    fn of(method: &MethodDescriptor, rule: &DynamicMessage) -> Result<Rule, String> {
        let text = |message: &DynamicMessage, name: &str| {
            let value = message.get_field_by_name(name);
            value.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
        };
        let mut pattern = None;
        for verb in ["get", "put", "post", "delete", "patch"] {
            if rule.has_field_by_name(verb) {
                pattern = Some((verb.to_ascii_uppercase(), text(rule, verb)));
            }
        }
        if let Some(custom) = rule.get_field_by_name("custom").filter(|_| rule.has_field_by_name("custom"))
            && let Some(custom) = custom.as_message()
        {
            pattern = Some((text(custom, "kind"), text(custom, "path")));
        }
        let (verb, path) = pattern.ok_or("it has no path")?;
        let body = match &*text(rule, "body") {
            "" => Body::Nowhere,
            "*" => Body::Message,
            field => Body::Field(field.into()),
        };
        let answer = Some(text(rule, "response_body")).filter(|field| !field.is_empty()).map(Box::from);
        Ok(Rule {
            method: method.clone(),
            verb: verb.into(),
            template: Template::parse(&path)?,
            body,
            answer,
        })
    }

    /// Whether the body of a request is read as JSON.
    pub(super) fn takes_body(&self) -> bool {
        !matches!(self.body, Body::Nowhere)
    }

    /// The object that a message is made of: of the body, the arguments of the query, and the path, which wins.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if the parts do not go together.
    pub(super) fn input(
        &self,
        body: Json,
        query: Json,
        captures: Vec<(&str, String)>,
    ) -> Result<Json, &'static str> {
        let mut input = match &self.body {
            Body::Message => match body {
                Json::Null => Json::Object(Map::new()),
                Json::Object(_) => body,
                _ => return Err("the body is no object"),
            },
            Body::Field(field) => {
                let mut input = Map::new();
                input.insert(field.to_string(), body);
                Json::Object(input)
            }
            Body::Nowhere => Json::Object(Map::new()),
        };
        if let (false, Json::Object(arguments)) = (matches!(self.body, Body::Message), query) {
            for (name, value) in arguments {
                put(&mut input, &name, value)?;
            }
        }
        for (name, value) in captures {
            put(&mut input, name, Json::String(value))?;
        }
        Ok(input)
    }
}

/// Sets a field that is named with those that it stands in.
fn put(input: &mut Json, path: &str, value: Json) -> Result<(), &'static str> {
    if path.split('.').count() > MOST_LEVELS {
        return Err("an argument names too many fields within each other");
    }
    let mut place = input;
    for name in path.split('.') {
        if place.is_null() {
            *place = Json::Object(Map::new());
        }
        let members = place.as_object_mut().ok_or("an argument names a field of what is no message")?;
        place = members.entry(name).or_insert(Json::Null);
    }
    *place = value;
    Ok(())
}

/// A path with variables: `/v1/{name=shelves/*}/books/{id}:move`.
#[derive(Debug, PartialEq, Eq)]
struct Template {
    parts: Vec<Part>,
    verb: Option<Box<str>>,
    /// Variables, and the parts that each stands for.
    variables: Vec<(Box<str>, std::ops::Range<usize>)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Literal(Box<str>),
    /// `*`: one segment.
    One,
    /// `**`: all the rest.
    Rest,
}

impl Template {
    fn parse(text: &str) -> Result<Template, String> {
        let wrong = |reason: &str| format!("`{text}` {reason}");
        let path = text.strip_prefix('/').ok_or_else(|| wrong("does not begin with `/`"))?;
        // A verb stands behind everything, a colon before that belongs to a segment.
        let behind = path.rfind(['/', '}']).map_or(0, |at| at + 1);
        let (path, verb) = match path[behind..].find(':') {
            Some(at) => (&path[..behind + at], Some(Box::from(&path[behind + at + 1..]))),
            None => (path, None),
        };
        let mut template = Template { parts: Vec::new(), verb, variables: Vec::new() };
        let mut rest = path;
        loop {
            rest = match rest.strip_prefix('{') {
                Some(variable) => {
                    let (inner, rest) = variable.split_once('}').ok_or_else(|| wrong("lacks a `}`"))?;
                    let (name, parts) = inner.split_once('=').unwrap_or((inner, "*"));
                    let begin = template.parts.len();
                    parts.split('/').for_each(|part| template.parts.push(Part::of(part)));
                    template.variables.push((name.into(), begin..template.parts.len()));
                    rest
                }
                None => {
                    let end = rest.find('/').unwrap_or(rest.len());
                    template.parts.push(Part::of(&rest[..end]));
                    &rest[end..]
                }
            };
            if rest.is_empty() {
                break;
            }
            rest = rest.strip_prefix('/').ok_or_else(|| wrong("lacks a `/` behind a `}`"))?;
        }
        let last = template.parts.len().saturating_sub(1);
        if template.parts.iter().take(last).any(|part| *part == Part::Rest) {
            return Err(wrong("has a `**` that is not its last segment"));
        }
        Ok(template)
    }

    /// The values of the variables, if a path is one of this template.
    fn captures(&self, path: &str) -> Option<Vec<(&str, String)>> {
        let path = path.strip_prefix('/')?;
        let path = match &self.verb {
            Some(verb) => path.strip_suffix(&**verb)?.strip_suffix(':')?,
            None => path,
        };
        let segments: Vec<&str> = path.split('/').collect();
        let has_rest = self.parts.last() == Some(&Part::Rest);
        let fixed = self.parts.len() - usize::from(has_rest);
        if segments.len() < fixed || (!has_rest && segments.len() > fixed) {
            return None;
        }
        let meets = |(part, segment): (&Part, &&str)| match part {
            Part::Literal(text) => **text == **segment,
            Part::One => !segment.is_empty(),
            Part::Rest => true,
        };
        if !self.parts[..fixed].iter().zip(&segments).all(meets) {
            return None;
        }
        let value = |range: &std::ops::Range<usize>| {
            let end = if range.end > fixed { segments.len() } else { range.end };
            segments[range.start..end].join("/")
        };
        Some(self.variables.iter().map(|(name, range)| (&**name, value(range))).collect())
    }
}

impl Part {
    fn of(text: &str) -> Part {
        match text {
            "*" => Part::One,
            "**" => Part::Rest,
            text => Part::Literal(text.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_meet_templates() {
        let check = |template: &str, path: &str, expected: Option<&[(&str, &str)]>| {
            let template = Template::parse(template).unwrap();
            let found = template.captures(path);
            let expected = expected
                .map(|all| all.iter().map(|(name, value)| (*name, (*value).to_owned())).collect::<Vec<_>>());
            assert_eq!(found, expected, "{template:?} {path}");
        };
        check("/v1/shelves", "/v1/shelves", Some(&[]));
        check("/v1/shelves", "/v1/shelves/", None);
        check("/v1/{id}", "/v1/7", Some(&[("id", "7")]));
        check("/v1/{id}", "/v1/", None);
        check("/v1/{id}", "/v1/7/8", None);
        check(
            "/v1/{name=shelves/*}/books/{book.id}",
            "/v1/shelves/1/books/2",
            Some(&[("name", "shelves/1"), ("book.id", "2")]),
        );
        check("/v1/{name=**}", "/v1/a/b/c", Some(&[("name", "a/b/c")]));
        check("/v1/{name=a/**}", "/v1/a", Some(&[("name", "a")]));
        check("/v1/{name=a/**}", "/v1/b", None);
        check("/v1/**", "/v1", Some(&[]));
        check("/v1/{id}:move", "/v1/7:move", Some(&[("id", "7")]));
        check("/v1/{id}:move", "/v1/7", None);
        check("/v1/*/x", "/v1/a/x", Some(&[]));
    }

    #[test]
    fn templates_that_are_refused() {
        let check = |template: &str, expected: &str| {
            assert_eq!(Template::parse(template).unwrap_err(), format!("`{template}` {expected}"));
        };
        check("v1", "does not begin with `/`");
        check("/v1/{id", "lacks a `}`");
        check("/v1/{id}x", "lacks a `/` behind a `}`");
        check("/v1/**/x", "has a `**` that is not its last segment");
    }

    #[test]
    fn arguments_stand_where_they_say() {
        let check = |path: &str, expected: Result<Json, &str>| {
            let mut input = json!({"a": {"b": 1}, "c": 2});
            assert_eq!(put(&mut input, path, json!(7)).map(|()| input), expected, "{path}");
        };
        check("a.b", Ok(json!({"a": {"b": 7}, "c": 2})));
        check("a.d.e", Ok(json!({"a": {"b": 1, "d": {"e": 7}}, "c": 2})));
        check("c.d", Err("an argument names a field of what is no message"));
        check(&vec!["a"; 33].join("."), Err("an argument names too many fields within each other"));
    }
}
