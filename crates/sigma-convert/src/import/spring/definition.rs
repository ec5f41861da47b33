//! Predicates and filters of routes: the short form `Name=a,b` and the long form with `args`.

use super::super::nodes::{Data, Node};
use super::super::source::SourceLine;
use super::settings::{Settings, relaxed};

/// A predicate or filter with its arguments.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Definition {
    pub name: String,
    pub place: SourceLine,
    /// The line as it is written.
    pub source: String,
    /// Arguments by name; several of one name are a list.
    pub args: Vec<(String, String)>,
}

/// The names of the arguments of a short form.
enum Shape {
    /// One name for each argument.
    Fields(&'static [&'static str]),
    /// All arguments are one list.
    List(&'static str),
    /// All arguments are one list, but a boolean at the end.
    ListAndFlag(&'static str, &'static str),
}

impl Definition {
    /// Reads an element of `predicates` or `filters`.
    pub(super) fn read(node: &Node, settings: &Settings<'_>) -> Option<Definition> {
        if let Some(raw) = node.text() {
            let text = settings.text(node)?;
            let (name, rest) = text.split_once('=').unwrap_or((&text, ""));
            let args = short_args(name.trim(), rest);
            return Some(Definition { name: name.trim().to_owned(), place: node.place, source: raw, args });
        }
        let name_node = super::settings::find_in(node, "name")?;
        let name = settings.text(name_node)?;
        let mut args = Vec::new();
        if let Some(node) = super::settings::find_in(node, "args") {
            collect(node, "", settings, &mut args);
        }
        // Generated keys are positions of the short form.
        if args.iter().all(|(key, _)| key.starts_with("_genkey_")) && !args.is_empty() {
            let joined: Vec<&str> = args.iter().map(|(_, value)| value.as_str()).collect();
            args = short_args(&name, &joined.join(","));
        }
        let source = format!("name: {name}");
        Some(Definition { name, place: name_node.place, source, args })
    }

    /// Returns the argument of this name, in any spelling.
    pub(super) fn one(&self, name: &str) -> Option<&str> {
        let wanted = relaxed(name);
        self.args.iter().find(|(key, _)| relaxed(key) == wanted).map(|(_, value)| value.as_str())
    }

    /// Returns the arguments of a list; a text with commas counts as several.
    pub(super) fn many(&self, name: &str) -> Vec<String> {
        let wanted = relaxed(name);
        let all = self.args.iter().filter(|(key, _)| relaxed(key) == wanted);
        all.flat_map(|(_, value)| value.split(',').map(|part| part.trim().to_owned()))
            .filter(|part| !part.is_empty())
            .collect()
    }

    /// Returns a boolean argument.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.one(name).map(|text| text.trim().eq_ignore_ascii_case("true"))
    }
}

/// Arguments of the long form: nested names are joined by dots, elements of lists repeat the name.
fn collect(node: &Node, name: &str, settings: &Settings<'_>, args: &mut Vec<(String, String)>) {
    match &node.data {
        Data::Map(members) => {
            for (key, child) in members {
                let joined = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                collect(child, &joined, settings, args);
            }
        }
        Data::List(list) => list.iter().for_each(|child| collect(child, name, settings, args)),
        Data::Scalar(_) => args.extend(settings.text(node).map(|text| (name.to_owned(), text))),
        Data::Null => {}
    }
}

/// Arguments of the short form, as Spring splits them: at commas, trimmed, without empty ones.
fn short_args(name: &str, text: &str) -> Vec<(String, String)> {
    let mut values: Vec<String> =
        text.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect();
    match shape(name) {
        Shape::List(field) => values.into_iter().map(|value| (field.to_owned(), value)).collect(),
        Shape::ListAndFlag(field, flag) => {
            let mut args = Vec::new();
            if values.len() > 1 && values.last().is_some_and(|last| matches!(last.as_str(), "true" | "false"))
            {
                args.extend(values.pop().map(|value| (flag.to_owned(), value)));
            }
            args.extend(values.into_iter().map(|value| (field.to_owned(), value)));
            args
        }
        Shape::Fields(fields) => {
            let named = values.into_iter().enumerate();
            let name =
                |at: usize| fields.get(at).map_or_else(|| format!("_genkey_{at}"), |it| (*it).to_owned());
            named.map(|(at, value)| (name(at), value)).collect()
        }
    }
}

fn shape(name: &str) -> Shape {
    match relaxed(name).as_str() {
        "path" => Shape::ListAndFlag("patterns", "matchTrailingSlash"),
        "host" => Shape::List("patterns"),
        "method" => Shape::List("methods"),
        "remoteaddr" | "xforwardedremoteaddr" => Shape::List("sources"),
        "addrequestheadersifnotpresent" => Shape::List("pairs"),
        "removejsonattributesresponsebody" => Shape::ListAndFlag("fieldList", "deleteRecursively"),
        "after" | "before" => Shape::Fields(&["datetime"]),
        "between" => Shape::Fields(&["datetime1", "datetime2"]),
        "cookie" => Shape::Fields(&["name", "regexp"]),
        "header" => Shape::Fields(&["header", "regexp"]),
        "query" => Shape::Fields(&["param", "regexp"]),
        "weight" => Shape::Fields(&["group", "weight"]),
        "version" => Shape::Fields(&["version"]),
        "addresponseheader" => Shape::Fields(&["name", "value", "override"]),
        "circuitbreaker" | "hystrix" => Shape::Fields(&["name", "fallbackUri"]),
        "deduperesponseheader" => Shape::Fields(&["name", "strategy"]),
        "localresponsecache" => Shape::Fields(&["timeToLive", "size"]),
        "maprequestheader" => Shape::Fields(&["fromHeader", "toHeader"]),
        "prefixpath" => Shape::Fields(&["prefix"]),
        "redirectto" => Shape::Fields(&["status", "url", "includeRequestParams"]),
        "requestheadersize" | "requestsize" | "setrequestheadersize" => Shape::Fields(&["maxSize"]),
        "retry" => Shape::Fields(&[
            "retries",
            "statuses",
            "methods",
            "backoff.firstBackoff",
            "backoff.maxBackoff",
            "backoff.factor",
            "backoff.basedOnPreviousValue",
        ]),
        "rewritelocationresponseheader" => {
            Shape::Fields(&["stripVersionMode", "locationHeaderName", "hostValue", "protocols"])
        }
        "rewritepath" => Shape::Fields(&["regexp", "replacement"]),
        "rewriterequestparameter" => Shape::Fields(&["name", "replacement"]),
        "rewriteresponseheader" => Shape::Fields(&["name", "regexp", "replacement"]),
        "setpath" => Shape::Fields(&["template"]),
        "setrequesthostheader" => Shape::Fields(&["host"]),
        "setstatus" => Shape::Fields(&["status"]),
        "stripprefix" => Shape::Fields(&["parts"]),
        "tokenrelay" => Shape::Fields(&["clientRegistrationId"]),
        "jsontogrpc" => Shape::Fields(&["protoDescriptor", "protoFile", "service", "method"]),
        _ => Shape::Fields(&["name", "value"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_forms_have_named_arguments() {
        for (name, text, expected) in [
            ("Path", "/a/**, /b,true", "matchTrailingSlash=true patterns=/a/** patterns=/b"),
            ("Path", "/a", "patterns=/a"),
            ("Header", "X-Id, \\d+", "header=X-Id regexp=\\d+"),
            ("AddRequestHeader", "X-A, b", "name=X-A value=b"),
            ("StripPrefix", "2", "parts=2"),
            ("PreserveHostHeader", "", ""),
        ] {
            let args = short_args(name, text);
            let shown: Vec<String> = args.iter().map(|(key, value)| format!("{key}={value}")).collect();
            assert_eq!(shown.join(" "), expected, "{name}={text}");
        }
    }
}
