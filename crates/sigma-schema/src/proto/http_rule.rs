//! The annotation `google.api.http`, which maps HTTP requests to gRPC methods.

use protox::prost_reflect::{DynamicMessage, MethodDescriptor, ServiceDescriptor};

/// The name of the annotation.
const HTTP: &str = "google.api.http";

/// One annotation.
#[derive(Debug)]
pub struct HttpRule {
    /// The method that is annotated.
    pub method: MethodDescriptor,
    /// The HTTP method, in capitals; `*` for any.
    pub verb: Box<str>,
    /// The path.
    pub template: Template,
    /// The target of the request body.
    pub body: Body,
    /// The only field of the response that is sent.
    pub answer: Option<Box<str>>,
}

/// The target of the request body.
#[derive(Debug)]
pub enum Body {
    /// The body is ignored.
    Nowhere,
    /// The body is the message.
    Message,
    /// The body is this field.
    Field(Box<str>),
}

/// Returns the annotations of all methods of a service, in the order of the methods.
///
/// # Errors
/// Returns a sentence if an annotation is invalid.
pub fn of_service(service: &ServiceDescriptor) -> Result<Vec<HttpRule>, String> {
    let mut rules = Vec::new();
    let Some(extension) = service.parent_pool().get_extension_by_name(HTTP) else {
        return Ok(rules);
    };
    for method in service.methods() {
        let options = method.options();
        if !options.has_extension(&extension) {
            continue;
        }
        let rule = options.get_extension(&extension);
        let Some(rule) = rule.as_message() else { continue };
        let wrong = |reason| format!("the annotation of {}: {reason}", method.full_name());
        rules.push(HttpRule::of(&method, rule).map_err(wrong)?);
        let more = rule.get_field_by_name("additional_bindings");
        for rule in more.iter().filter_map(|more| more.as_list()).flatten() {
            let Some(rule) = rule.as_message() else { continue };
            rules.push(HttpRule::of(&method, rule).map_err(wrong)?);
        }
    }
    Ok(rules)
}

impl HttpRule {
    fn of(method: &MethodDescriptor, rule: &DynamicMessage) -> Result<HttpRule, String> {
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
        Ok(HttpRule {
            method: method.clone(),
            verb: verb.into(),
            template: Template::parse(&path)?,
            body,
            answer,
        })
    }
}

/// A path with variables: `/v1/{name=shelves/*}/books/{id}:move`.
#[derive(Debug, PartialEq, Eq)]
pub struct Template {
    /// Its segments.
    pub parts: Vec<Part>,
    /// The text after a colon at the end.
    pub verb: Option<Box<str>>,
    /// Variables, each with the range of parts that it matches.
    pub variables: Vec<(Box<str>, std::ops::Range<usize>)>,
}

/// A segment of a path.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// A fixed text.
    Literal(Box<str>),
    /// `*`: one segment.
    One,
    /// `**`: all remaining segments.
    Rest,
}

impl Template {
    fn parse(text: &str) -> Result<Template, String> {
        let wrong = |reason: &str| format!("`{text}` {reason}");
        let path = text.strip_prefix('/').ok_or_else(|| wrong("does not begin with `/`"))?;
        // A verb comes last; a colon before the last segment belongs to a segment.
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

    /// Returns the values of the variables if a path matches this template.
    #[must_use]
    pub fn captures(&self, path: &str) -> Option<Vec<(&str, String)>> {
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
}
