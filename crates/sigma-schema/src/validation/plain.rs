//! Messages for writers of files: one for each mistake, in the words of a file, with a valid example for common fields.

use serde_json::Value;

use super::examples::{example, typed_example};
use super::node::{JsonType, Node, Types};
use super::range::reworded;
use super::remedy::{MOST_NAMES, code, listed};
use crate::problem::{Problem, closest, element, member};
use crate::synonyms;

/// A sentence and its remedy.
pub(super) struct PlainMessage {
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

impl PlainMessage {
    pub(super) fn new(message: impl Into<String>, hint: Option<String>) -> PlainMessage {
        PlainMessage { message: message.into(), hint }
    }
}

/// Descriptions of texts, by the start of their pattern.
const FORMS: &[(&str, &str)] = &[
    (r"^([0-9]{1,2}|1[0-9][0-9]|2", "for example 10.0.0.0/8 or fc00::/7"),
    (r"^([0-9]{1,3}\.){3}[0-9]{1,3}/", "for example 10.0.0.0/8 or fc00::/7"),
    (r"^([a-fA-F0-9]{0,4}:){1,8}", "for example 10.0.0.0/8 or fc00::/7"),
    (r"^[!#$%&'*+.^_`|~0-9A-Za-z-]", "letters, digits, `-`, `_` and `.`, as in names of headers"),
    (r"^[A-Za-z0-9!#$%&'*+.^_`|~-]", "letters, digits, `-`, `_` and `.`, as in names of headers"),
    (r"^(http(s)?|grpc(s)?):", "for example http://127.0.0.1:8080, without a path"),
    (r"^(\*|\*\*|null|", "for example https://shop.example, several with commas between them, or * for all"),
    (r"^https?://", "for example https://example.com/path"),
    (r"(^[^$].+$|^\$", "a text, or one variable such as $arg_bypass"),
    (r"^\d+\.\d+\.\d+", "for example 1.0.0"),
    (r"^[0-9]+[smhd]?$", "for example 10s"),
    (r"^[0-9]+[kKmMgG]?$", "for example 50m"),
    (r"^[^:]+:.+$", "write \"Name: value\""),
    (r"^[0-9a-zA-Z-.]+(:\d{1,5})?$", "for example shop.example or shop.example:8080"),
    (r"^[ !#-\[\]-~]+$", "printable characters, without quotes and backslashes"),
    (r"^\$", "a variable, for example $remote_addr"),
    (r"^\/", "begin it with `/`"),
    (r"^/", "begin it with `/`"),
    (r"[^/]$", "write it without `/` at the end"),
];

/// Returns the description of texts that match a pattern.
pub(super) fn look(source: &str) -> Option<String> {
    let known = FORMS.iter().find(|(beginning, _)| source.starts_with(beginning));
    known.map(|(_, look)| (*look).to_owned())
}

/// Fields whose value is the text of a PEM file.
const PEM_FIELDS: [&str; 7] = ["cert", "certs", "key", "keys", "ca", "client_cert", "client_key"];

/// The value is of another type than those that are taken.
pub(super) fn of_type(types: &[&Types], value: &Value, field: &str) -> PlainMessage {
    let all: Vec<JsonType> = types
        .iter()
        .flat_map(|types| match types {
            Types::Any => Vec::new(),
            Types::One(kind) => vec![*kind],
            Types::Several(kinds) => kinds.clone(),
        })
        .collect();
    let expected = listed(all.iter().map(|kind| noun(*kind).to_owned()), "or");
    if value.is_null() {
        return PlainMessage::new(
            format!("the key has no value; expected {expected}"),
            typed_example(field, &all).or_else(|| Some("write a value, or remove the key".to_owned())),
        );
    }
    PlainMessage::new(format!("expected {expected}, got {}", shown(value)), form(&all, value, field))
}

fn noun(kind: JsonType) -> &'static str {
    match kind {
        JsonType::Object | JsonType::Table => "a map",
        JsonType::Array => "a list",
        JsonType::String => "a text",
        JsonType::Number => "a number",
        JsonType::Integer => "a whole number",
        JsonType::Boolean => "true or false",
        JsonType::Null => "null",
    }
}

/// Returns a value as a message shows it.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("the text `{}`", short(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
        other => format!("`{other}`"),
    }
}

fn short(text: &str) -> String {
    const MOST: usize = 60;
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None if line.len() < text.len() => format!("{line}…"),
        None => line.to_owned(),
    }
}

/// Returns how to write the value in an accepted type.
fn form(types: &[JsonType], value: &Value, field: &str) -> Option<String> {
    let takes = |kind: JsonType| types.contains(&kind);
    let example = |field: &str| typed_example(field, types);
    match value {
        Value::String(text) if takes(JsonType::Boolean) => {
            let word = text.to_ascii_lowercase();
            let yes = ["on", "yes", "true", "1", "enabled"].contains(&word.as_str());
            let no = ["off", "no", "false", "0", "disabled"].contains(&word.as_str());
            (yes || no).then(|| format!("write {yes}, without quotes")).or_else(|| example(field))
        }
        Value::String(text) if takes(JsonType::Integer) || takes(JsonType::Number) => {
            number(text, field).or_else(|| example(field))
        }
        Value::String(text) if takes(JsonType::Array) => {
            example(field).or_else(|| Some(format!("write a list: {field}: [\"{}\"]", short(text))))
        }
        Value::Number(number) if takes(JsonType::Integer) && number.is_f64() => {
            Some("write it without a fraction".to_owned())
        }
        Value::Number(_) | Value::Bool(_) if takes(JsonType::String) => Some("put it into quotes".to_owned()),
        Value::Number(_) if takes(JsonType::Boolean) => match value.as_i64() {
            Some(0) => Some("write false".to_owned()),
            Some(1) => Some("write true".to_owned()),
            _ => None,
        },
        Value::Array(items) if items.len() == 1 && !takes(JsonType::Object) && !items[0].is_object() => {
            Some(format!("write {field}: {}", items[0]))
        }
        _ => example(field),
    }
}

/// Returns the number that a text was meant for: in quotes, or with a unit.
fn number(text: &str, field: &str) -> Option<String> {
    if text.parse::<f64>().is_ok_and(f64::is_finite) {
        return Some(format!("write {text} without quotes"));
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (amount, unit) = (text[..end].parse::<f64>().ok()?, text[end..].trim().to_ascii_lowercase());
    let seconds = match unit.as_str() {
        "ms" => Some(0.001),
        "s" | "sec" | "second" | "seconds" => Some(1.0),
        "m" | "min" | "minute" | "minutes" => Some(60.0),
        "h" | "hour" | "hours" => Some(3600.0),
        "d" | "day" | "days" => Some(86_400.0),
        _ => None,
    };
    let bytes = match unit.as_str() {
        "b" => Some(1.0),
        "k" | "kb" | "kib" => Some(1024.0),
        "m" | "mb" | "mib" => Some(1024.0 * 1024.0),
        "g" | "gb" | "gib" => Some(1024.0 * 1024.0 * 1024.0),
        _ => None,
    };
    const LASTING: [&str; 12] = [
        "timeout", "interval", "ttl", "seconds", "window", "connect", "send", "read", "delay", "duration",
        "age", "expir",
    ];
    const LARGE: [&str; 5] = ["bytes", "size", "body", "memory", "buffer"];
    if field.ends_with("_ms") {
        return Some(format!("a number of milliseconds, without a unit: {}", seconds? * amount * 1000.0));
    }
    match (seconds, bytes) {
        (_, Some(bytes)) if LARGE.iter().any(|word| field.contains(word)) => {
            Some(format!("a number of bytes, without a unit: {}", bytes * amount))
        }
        (Some(seconds), _) if LASTING.iter().any(|word| field.contains(word)) => {
            Some(format!("a number of seconds, without a unit: {}", seconds * amount))
        }
        _ => Some(format!("write a number without a unit: {amount}")),
    }
}

/// A field is not there.
pub(super) fn of_missing(name: &str) -> PlainMessage {
    // Only resources have `uri` as a pattern of paths, and they may have `uris` instead.
    let hint = match name {
        "uri" => Some("for example uri: http://127.0.0.1:9000".to_owned()),
        _ => example(name),
    };
    PlainMessage::new(format!("`{name}` is required"), hint)
}

/// Joins the problems about missing fields of one object.
pub(super) fn joined(found: Vec<Problem>) -> Vec<Problem> {
    let mut lacking: Vec<(String, Vec<String>)> = Vec::new();
    for (place, name) in found.iter().filter_map(|problem| Some((&problem.pointer, lacked(problem)?))) {
        match lacking.iter_mut().find(|(other, _)| other == place) {
            Some((_, names)) => names.push(name.to_owned()),
            None => lacking.push((place.clone(), vec![name.to_owned()])),
        }
    }
    // Several parts of a schema may require the same of an object.
    let is_within = |problem: &Problem, other: &Problem| {
        let text = problem.message.strip_suffix(" is required").unwrap_or(&problem.message);
        other.code == "missing"
            && other.pointer == problem.pointer
            && other.message.contains(text)
            && other.message != problem.message
    };
    let mut all: Vec<Problem> = Vec::new();
    for problem in &found {
        let names = lacking.iter().find(|(place, _)| *place == problem.pointer).map(|(_, names)| &names[..]);
        let mut problem = problem.clone();
        match (lacked(&problem), names) {
            (Some(name), Some([first, _, ..])) if name != first => continue,
            (Some(_), Some(names @ [_, _, ..])) => {
                problem.message = format!("{} are required", listed(names.iter().cloned(), "and"));
                problem.hint = None;
            }
            _ if problem.code == "missing" && found.iter().any(|other| is_within(&problem, other)) => {
                continue;
            }
            _ => {}
        }
        all.push(problem);
    }
    all
}

/// Returns the field of a problem that only reports this missing field.
fn lacked(problem: &Problem) -> Option<&str> {
    let name = problem.message.strip_suffix(" is required")?;
    let is_name = name.starts_with('`') && name.ends_with('`') && !name.contains(' ');
    (problem.code == "missing" && is_name).then_some(name)
}

/// The value needs one of these sets of fields.
pub(super) fn of_lacking(mut sets: Vec<Vec<&str>>) -> PlainMessage {
    // There is no engine for scripts: `script` is no remedy.
    if sets.iter().any(|names| !names.contains(&"script")) {
        sets.retain(|names| !names.contains(&"script"));
    }
    let mut all: Vec<&str> = Vec::new();
    sets.iter().flatten().for_each(|name| {
        if !all.contains(name) {
            all.push(name);
        }
    });
    // Names that never occur in one set are alternatives.
    let mut groups: Vec<Vec<&str>> = Vec::new();
    for name in all {
        let apart = |other: &&str| !sets.iter().any(|names| names.contains(&name) && names.contains(other));
        match groups.iter_mut().find(|group| group.iter().all(&apart)) {
            Some(group) => group.push(name),
            None => groups.push(vec![name]),
        }
    }
    let or = |group: &Vec<&str>| listed(group.iter().map(|name| code(name)), "or");
    let and = |names: &Vec<&str>| listed(names.iter().map(|name| code(name)), "and");
    let is_product = groups.iter().map(Vec::len).product::<usize>() == sets.len()
        && sets.iter().all(|names| names.len() == groups.len());
    let text = match is_product {
        true if groups.iter().all(|group| group.len() == 1) => listed(groups.iter().map(or), "and"),
        true => groups.iter().map(or).collect::<Vec<_>>().join(", and "),
        false => {
            let (single, several): (Vec<_>, Vec<_>) = sets.iter().partition(|names| names.len() == 1);
            let single = listed(single.into_iter().map(and), "or");
            let several: Vec<String> = several.into_iter().map(and).collect();
            [vec![single], several]
                .concat()
                .into_iter()
                .filter(|text| !text.is_empty())
                .collect::<Vec<_>>()
                .join(", or ")
        }
    };
    let has = |wanted: &str| groups.iter().flatten().any(|name| *name == wanted);
    // Without `uris`, `uri` is no pattern of paths.
    let has_example = |name: &&str| *name != "uri" || has("uris");
    let usual = ["uri", "upstream", "nodes"].into_iter().filter(has_example).find(|usual| has(usual));
    let names = groups.iter().flatten().copied();
    let first = usual.and_then(example).or_else(|| names.filter(has_example).find_map(example));
    let are = is_product && groups.len() > 1;
    PlainMessage::new(format!("{text} {} required", if are { "are" } else { "is" }), first)
}

/// Fields that exclude each other, or one that must not be there.
pub(super) fn of_excluded(names: Vec<&str>) -> PlainMessage {
    match names[..] {
        [] => PlainMessage::new("the value is not allowed", None),
        [name] => PlainMessage::new(format!("`{name}` is not allowed here"), Some("remove it".to_owned())),
        _ => {
            let all = listed(names.iter().map(|name| code(name)), "and");
            PlainMessage::new(format!("{all} exclude each other"), Some("keep one of them".to_owned()))
        }
    }
}

/// The value is not allowed.
pub(super) fn of_choice(allowed: &[Value], value: &Value, field: &str) -> PlainMessage {
    let written = match value {
        Value::String(text) => short(text),
        Value::Array(_) | Value::Object(_) => shown(value),
        other => other.to_string(),
    };
    let words: Vec<&str> = allowed.iter().filter_map(Value::as_str).collect();
    let text = value.as_str().unwrap_or_default();
    let near = synonyms::value(field, text, &words);
    let near =
        near.or_else(|| closest(text, words.iter().copied()).map(|word| format!("did you mean `{word}`?")));
    let names = allowed.iter().take(MOST_NAMES).map(|value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    let hint = near.filter(|_| !text.is_empty()).unwrap_or_else(|| match allowed {
        [only] => format!("write {only}"),
        _ if allowed.len() > MOST_NAMES => format!("allowed are {}, …", names.collect::<Vec<_>>().join(", ")),
        _ => format!("allowed are {}", listed(names, "and")),
    });
    PlainMessage::new(format!("`{written}` is not allowed here"), Some(hint))
}

/// The value fits no branch, by its type or as a constant.
pub(super) fn of_alternatives(nodes: &[&Node], value: &Value, field: &str) -> PlainMessage {
    let words: Vec<Value> = nodes
        .iter()
        .flat_map(|node| {
            let constant = node.constant.iter().map(|constant| Value::clone(constant));
            constant.chain(node.enumeration.iter().flat_map(|all| all.to_vec()))
        })
        .collect();
    let near = of_choice(&words, value, field);
    if near.hint.as_ref().is_some_and(|hint| hint.starts_with("did you mean")) {
        return near;
    }
    let types = nodes.iter().filter(|node| node.constant.is_none() && node.enumeration.is_none());
    let types = types.flat_map(|node| match &node.types {
        Types::Any => Vec::new(),
        Types::One(kind) => vec![*kind],
        Types::Several(kinds) => kinds.clone(),
    });
    let types: Vec<JsonType> = types.collect();
    let hint = form(&types, value, field);
    let words = words.iter().map(|word| word.as_str().map_or_else(|| word.to_string(), str::to_owned));
    let expected = types.into_iter().map(|kind| noun(kind).to_owned()).chain(words.map(|word| code(&word)));
    PlainMessage::new(format!("expected {}, got {}", listed(expected, "or"), shown(value)), hint)
}

/// The text has another form. `source` is the pattern or the name of the form.
pub(super) fn of_form(text: &str, known: impl FnOnce() -> Option<String>, source: &str) -> PlainMessage {
    let shown = short(text);
    let noun = match source {
        "ipv4" => "an IPv4 address",
        "ipv6" => "an IPv6 address",
        "uri" => "a URI",
        "email" => "an email address",
        "hostname" => "a host name",
        _ => "",
    };
    match (known().or_else(|| look(source)), noun) {
        (Some(hint), _) => PlainMessage::new(format!("`{shown}` is not valid"), Some(hint)),
        (None, "") => {
            PlainMessage::new(format!("`{shown}` is not valid"), Some(format!("the form is {source}")))
        }
        (None, noun) => PlainMessage::new(format!("`{shown}` is not {noun}"), None),
    }
}

/// The value is a single text or number without the right form.
pub(super) fn of_scalar(value: &Value, hint: Option<String>) -> PlainMessage {
    let written = value.as_str().map_or_else(|| value.to_string(), short);
    PlainMessage::new(format!("`{written}` is not valid"), hint)
}

/// There are too few entries.
pub(super) fn of_count(count: u64, least: u64, items: &str, field: &str) -> PlainMessage {
    match count {
        0 => PlainMessage::new(
            "is empty",
            example(field).or_else(|| Some("write at least one entry".to_owned())),
        ),
        1 => PlainMessage::new(format!("one entry; at least {least} are required"), example(field)),
        _ => PlainMessage::new(format!("{count} {items}; at least {least} are required"), example(field)),
    }
}

/// The text is too short.
pub(super) fn of_short(text: &str, least: u64, field: &str) -> PlainMessage {
    if PEM_FIELDS.contains(&field) && least >= 64 {
        let is_name = text.contains(['.', '/']) && !text.contains(['\n', ' ']);
        let seems = if is_name { "; it looks like the name of a file" } else { "" };
        return PlainMessage::new(
            format!("`{}` is not the text of a PEM file{seems}", short(text)),
            Some(format!("write the text itself ({field}: |), or a reference such as $env://NAME")),
        );
    }
    match text.chars().count() {
        0 => PlainMessage::new("is empty", Some("write a text, or remove the key".to_owned())),
        length => PlainMessage::new(format!("{length} characters; at least {least} are required"), None),
    }
}

/// Messages of plugins' own checks that use APISIX's schema words, and their plain equivalents.
const OWN: &[(&str, &str)] = &[(
    "failed to validate dependent schema for \"algorithm\": value should match only one schema, but matches none",
    "`public_key` or `jwks_uri` is required with this `algorithm`",
)];

/// Splits a text in APISIX's words, which begins with the path to a field, into place and message.
pub fn unfolded(text: &str) -> (String, String) {
    const FAILED: &str = "\" validation failed: ";
    let (mut place, mut rest) = (String::new(), text);
    loop {
        let named = rest.strip_prefix("property \"").and_then(|rest| rest.split_once(FAILED));
        let item = || rest.strip_prefix("failed to validate item ")?.split_once(": ");
        if let Some((name, cause)) = named.filter(|(name, _)| !name.contains('"')) {
            place = name.split('.').fold(place, |place, name| member(&place, name));
            rest = cause;
        } else if let Some((index, cause)) =
            item().and_then(|(number, cause)| Some((number.parse::<usize>().ok()?, cause)))
        {
            place = element(&place, index.saturating_sub(1));
            rest = cause;
        } else {
            break;
        }
    }
    if let Some((_, sentence)) = OWN.iter().find(|(own, _)| *own == rest) {
        return (place, (*sentence).to_owned());
    }
    // Some texts have the place at the end.
    if let Some((sentence, at)) = rest.strip_suffix(')').and_then(|rest| rest.rsplit_once(" (at "))
        && !at.contains(' ')
    {
        return (if place.is_empty() { at.to_owned() } else { place }, sentence.to_owned());
    }
    let reworded = reworded(rest);
    let rest = reworded.as_deref().unwrap_or(rest);
    let sentence =
        rest.replace("property \"", "`").replace(FAILED, "`: ").replace("\" is required", "` is required");
    (place, if sentence.contains('`') { sentence } else { rest.to_owned() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validation::Schema;

    /// Checks all mistakes of a value, one per line.
    #[track_caller]
    fn check(schema: &Value, value: &Value, expected: &[&str]) {
        let schema = Schema::compile(schema).unwrap();
        let found: Vec<String> = schema.mistakes(value, &[]).iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{value}");
        assert_eq!(found.is_empty(), schema.check(value).is_ok(), "{value}");
    }

    #[test]
    fn fields_that_are_missing_are_one_mistake() {
        let set = |names: &[&str]| json!({"required": names});
        check(&set(&["a", "b", "c"]), &json!({}), &["`a`, `b` and `c` are required"]);
        let limit = json!({"anyOf": [set(&["count", "time_window"]), set(&["rules"])]});
        check(&limit, &json!({"count": 1}), &["`time_window` is required (for example time_window: 60)"]);
        check(
            &limit,
            &json!({}),
            &["`rules`, or `count` and `time_window` is required (for example count: 100)"],
        );
        let pairs = [["a", "x"], ["a", "y"], ["b", "x"], ["b", "y"]].map(|names| set(&names));
        let product = json!({"allOf": [{"oneOf": [set(&["x"]), set(&["y"])]}], "anyOf": pairs});
        check(&product, &json!({}), &["`a` or `b`, and `x` or `y` are required"]);
        check(&product, &json!({"a": 1}), &["`x` or `y` is required"]);
        check(
            &product,
            &json!({"a": 1, "x": 1, "y": 1}),
            &["y: `x` and `y` exclude each other (keep one of them)"],
        );
    }

    #[test]
    fn the_intended_branch_reports_its_failure() {
        let kind = |name: &str, field: &str| {
            json!({
                "properties": {"kind": {"enum": [name]}, field: {"type": "integer", "minimum": 1}},
                "required": ["kind", field],
            })
        };
        let schema = json!({"oneOf": [kind("file", "size"), kind("socket", "port")]});
        check(
            &schema,
            &json!({"kind": "socket", "port": 0}),
            &["port: expected a number of at least 1, got 0"],
        );
        check(
            &schema,
            &json!({"kind": "file", "size": "5"}),
            &["size: expected a whole number, got the text `5` (write 5 without quotes)"],
        );
        let workers = json!({"properties": {"workers": {"anyOf": [{"type": "integer"}, {"const": "auto"}]}}});
        let expected = "workers: expected a whole number or `auto`, got the text `many`";
        check(&workers, &json!({"workers": "many"}), &[expected]);
        check(
            &workers,
            &json!({"workers": "atuo"}),
            &["workers: `atuo` is not allowed here (did you mean `auto`?)"],
        );
    }

    /// Nested branches are tried before a failure is reported.
    #[test]
    fn inner_branches_refuse() {
        let inner = json!({"anyOf": [{"type": "integer"}, {"type": "boolean"}]});
        let schema = json!({"oneOf": [
            {"properties": {"a": inner}, "required": ["a"]},
            {"properties": {"a": {"type": "string"}, "b": {}}, "required": ["b"]},
        ]});
        check(&schema, &json!({"a": "x", "b": 1}), &[]);
        check(
            &schema,
            &json!({"a": [1]}),
            &["a: expected a whole number or true or false, got a list (write a: 1)"],
        );
    }

    #[test]
    fn a_wrong_name_is_one_mistake() {
        let closed = json!({
            "properties": {"uri": {"type": "string", "minLength": 9}, "nodes": {"type": "object"}},
            "required": ["uri"], "additionalProperties": false,
        });
        check(&closed, &json!({"path": "/"}), &["path: unknown field `path` (did you mean `uri`?)"]);
        let open = json!({"properties": {"uri": {"type": "string"}}, "required": ["uri"]});
        check(&open, &json!({"path": "/"}), &["path: unknown field `path` (did you mean `uri`?)"]);
        // An unknown field is not an error if no required field is missing.
        check(&open, &json!({"path": "/", "uri": "/"}), &[]);
    }

    #[test]
    fn numbers_with_units_are_translated() {
        for (text, field, expected) in [
            ("60", "count", "write 60 without quotes"),
            ("1.5s", "timeout", "a number of seconds, without a unit: 1.5"),
            ("5m", "interval", "a number of seconds, without a unit: 300"),
            ("5m", "request_body_bytes", "a number of bytes, without a unit: 5242880"),
            ("2s", "idle_ms", "a number of milliseconds, without a unit: 2000"),
            ("10r/s", "rate", "write a number without a unit: 10"),
        ] {
            assert_eq!(number(text, field).as_deref(), Some(expected), "{text} {field}");
        }
        assert_eq!(number("many", "rate"), None);
    }

    #[test]
    fn texts_of_plugins_lead_to_their_fields() {
        for (text, place, sentence) in [
            ("property \"a\" validation failed: property \"b\" is required", "a", "`b` is required"),
            ("property \"a\" validation failed: failed to validate item 2: too large", "a[1]", "too large"),
            ("unknown variable `x` (at source)", "source", "unknown variable `x`"),
            ("the `x` action: property \"code\" validation failed: bad", "", "the `x` action: `code`: bad"),
            ("it is wrong (at all times)", "", "it is wrong (at all times)"),
        ] {
            assert_eq!(unfolded(text), (place.to_owned(), sentence.to_owned()), "{text}");
        }
    }
}
