//! The schema of the full form, made from the types, and messages made from its errors.

use std::sync::OnceLock;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{ValidationError, Validator};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::document::Document;
use crate::forms::FORMS;
use crate::problem::{Problem, element, member};
use crate::reference::is_reference;
use crate::resources::{SECTIONS, Sections};
use crate::settings::{Settings, UnknownFields};
use crate::wording::Unread;

/// The JSON schema of a configuration in its full form.
pub(crate) fn schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let generate = |settings: SchemaSettings, resources: bool| {
            let generator = settings.into_generator();
            let schema = match resources {
                true => generator.into_root_schema_for::<Sections>(),
                false => generator.into_root_schema_for::<Settings>(),
            };
            schema.to_value()
        };
        let mut whole = generate(SchemaSettings::draft2020_12(), false);
        let resources = generate(SchemaSettings::draft2020_12(), true);
        for part in ["properties", "$defs"] {
            if let (Some(Value::Object(into)), Some(Value::Object(from))) =
                (whole.get_mut(part), resources.get(part))
            {
                into.extend(from.clone());
            }
        }
        whole["title"] = json!("Sigma configuration");
        whole["description"] = json!("Process settings and resources of one Sigma gateway.");
        bound_integers(&mut whole);
        whole
    })
}

/// Integers get the bounds of their Rust type, which the generator leaves out for wide ones.
fn bound_integers(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(bound_integers),
        Value::Object(map) => {
            let bounds = match map.get("format").and_then(Value::as_str) {
                Some("uint32") => Some((json!(0), json!(u32::MAX))),
                Some("uint64") => Some((json!(0), json!(u64::MAX))),
                Some("int32") => Some((json!(i32::MIN), json!(i32::MAX))),
                Some("int64") => Some((json!(i64::MIN), json!(i64::MAX))),
                _ => None,
            };
            if let Some((low, high)) = bounds {
                map.entry("minimum").or_insert(low);
                map.entry("maximum").or_insert(high);
            }
            map.values_mut().for_each(bound_integers);
        }
        _ => {}
    }
}

/// Made anew for each file: a gateway reads few, and it holds a megabyte.
fn validator() -> Validator {
    let mut options = jsonschema::options().should_validate_formats(true);
    for form in &FORMS {
        options = options.with_format(form.name, form.holds);
    }
    // The schema depends on nothing but the types; the tests build it.
    options.build(schema()).expect("the generated schema is valid")
}

/// A member that is passed over: the JSON pointer of its object, and its name.
pub(crate) type Ignored = (String, String);

/// Everything in `document` that the schema refuses, and what it would refuse if unknown fields of
/// resources were not only warned of.
pub(crate) fn validate(document: &Document, unknown: UnknownFields) -> (Vec<Problem>, Vec<Ignored>) {
    let mut report = Report { document, unknown, problems: Vec::new(), ignored: Vec::new() };
    for error in validator().iter_errors(&document.value) {
        report.error(&error);
    }
    (report.problems, report.ignored)
}

/// Whether a JSON pointer leads into a resource: those themselves are closed in APISIX, what is
/// within them is not.
fn is_within_resource(json_pointer: &str) -> bool {
    let mut segments = json_pointer.split('/').skip(1);
    segments.next().is_some_and(|section| SECTIONS.contains(&section)) && segments.count() > 1
}

struct Report<'a> {
    document: &'a Document,
    unknown: UnknownFields,
    problems: Vec<Problem>,
    ignored: Vec<Ignored>,
}

impl Report<'_> {
    fn push(&mut self, problem: Problem) {
        // Branches of one alternative may say the same.
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    fn error(&mut self, error: &ValidationError<'_>) {
        // The secret behind a reference is checked when it is known.
        if error.instance().as_str().is_some_and(is_reference) {
            return;
        }
        let (pointer, schema) = locate(&self.document.value, error.instance_path().as_str());
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                let path = error.instance_path().as_str();
                for key in unexpected {
                    match self.unknown {
                        UnknownFields::Warn if is_within_resource(path) => {
                            self.ignored.push((path.to_owned(), key.clone()));
                        }
                        _ => self.unknown_key(&pointer, key, schema),
                    }
                }
            }
            ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
                self.alternatives(&pointer, error, context);
            }
            kind => {
                let (code, message, hint) = message(kind, error.instance());
                let mut problem = self.document.problem(&pointer, code, message);
                problem.hint = hint;
                self.push(problem);
            }
        }
    }

    fn unknown_key(&mut self, pointer: &str, key: &str, schema: Option<&Value>) {
        let known = schema
            .and_then(|schema| schema.get("properties")?.as_object())
            .map(|properties| properties.keys().cloned().collect())
            .unwrap_or_default();
        let field = Unread::unknown(key, known).within(pointer);
        self.push(self.document.located(field.refused()));
    }

    /// Names the errors of the one alternative that was meant, or else all alternatives.
    fn alternatives(
        &mut self,
        pointer: &str,
        error: &ValidationError<'_>,
        context: &[Vec<ValidationError<'static>>],
    ) {
        let words = constants(context);
        if !words.is_empty() {
            let shown = show(error.instance());
            let message = format!("must be one of {}, not {shown}", words.join(", "));
            let mut problem = self.document.problem(pointer, "enum", message);
            let written = error.instance().as_str().unwrap_or_default();
            problem.hint =
                closest(written, words.iter().map(String::as_str)).map(|w| format!("did you mean `{w}`?"));
            self.push(problem);
            return;
        }
        let here = error.instance_path().as_str();
        let fits = |errors: &&Vec<ValidationError<'_>>| !errors.iter().any(|error| wrong_type(error, here));
        let mut meant = context.iter().filter(fits).collect::<Vec<_>>();
        if meant.len() == 1 {
            meant.remove(0).iter().for_each(|error| self.error(error));
            return;
        }
        let mut types: Vec<String> = Vec::new();
        for error in context.iter().flatten() {
            if let ValidationErrorKind::Type { kind } = error.kind() {
                let names = type_names(kind).into_iter().filter(|name| name != "null");
                let new: Vec<String> = names.filter(|name| !types.contains(name)).collect();
                types.extend(new);
            }
        }
        let message = match types.is_empty() {
            true => format!("{} fits no form that is allowed here", show(error.instance())),
            false => format!("must be of type {}, not {}", types.join(" or "), show(error.instance())),
        };
        self.push(self.document.problem(pointer, "type", message));
    }
}

/// Whether the value at `here` is of a type that this alternative does not take at all.
fn wrong_type(error: &ValidationError<'_>, here: &str) -> bool {
    if error.instance_path().as_str() != here {
        return false;
    }
    match error.kind() {
        ValidationErrorKind::Type { .. } => true,
        ValidationErrorKind::Constant { expected_value } => {
            expected_value.is_string() != error.instance().is_string()
        }
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
            context.iter().all(|errors| errors.iter().any(|error| wrong_type(error, here)))
        }
        _ => false,
    }
}

/// The words of an enumeration, if every alternative is one.
fn constants(context: &[Vec<ValidationError<'static>>]) -> Vec<String> {
    let word = |errors: &Vec<ValidationError<'static>>| {
        errors.iter().find_map(|error| match error.kind() {
            ValidationErrorKind::Constant { expected_value } => expected_value.as_str().map(str::to_owned),
            _ => None,
        })
    };
    context.iter().map(word).collect::<Option<Vec<_>>>().unwrap_or_default()
}

/// Code, message and remedy of one error at one value.
fn message(kind: &ValidationErrorKind, instance: &Value) -> (&'static str, String, Option<String>) {
    use ValidationErrorKind as Kind;
    let shown = show(instance);
    let plain = |code, message: String| (code, message, None);
    match kind {
        Kind::Type { kind } => {
            let types: Vec<String> = type_names(kind).into_iter().filter(|name| name != "null").collect();
            plain("type", format!("must be of type {}, not {shown}", types.join(" or ")))
        }
        Kind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            ("missing", format!("`{name}` is missing"), Some(format!("add `{name}`")))
        }
        Kind::Format { format } => match FORMS.iter().find(|form| form.name == format) {
            Some(form) => ("format", format!("{shown} is not {}", form.expected), Some(form.hint.to_owned())),
            None => plain("format", format!("{shown} is not of the form `{format}`")),
        },
        Kind::Constant { expected_value } => plain("enum", format!("must be {expected_value}, not {shown}")),
        Kind::Enum { options } => {
            let words: Vec<String> = options.as_array().into_iter().flatten().map(show).collect();
            plain("enum", format!("must be one of {}, not {shown}", words.join(", ")))
        }
        Kind::Minimum { limit } => plain("range", format!("must be at least {limit}, not {shown}")),
        Kind::Maximum { limit } => plain("range", format!("must be at most {limit}, not {shown}")),
        Kind::ExclusiveMinimum { limit } => plain("range", format!("must be more than {limit}, not {shown}")),
        Kind::ExclusiveMaximum { limit } => plain("range", format!("must be less than {limit}, not {shown}")),
        Kind::MinLength { limit } => plain("length", format!("must have at least {limit} characters")),
        Kind::MaxLength { limit } => plain("length", format!("must have at most {limit} characters")),
        Kind::MinItems { limit } => plain("length", format!("must have at least {limit} items")),
        Kind::MaxItems { limit } => plain("length", format!("must have at most {limit} items")),
        Kind::UniqueItems => ("unique", "has an item twice".to_owned(), Some("remove one".to_owned())),
        Kind::Pattern { pattern } => {
            // Names of consumers know no dot, identities do.
            let hint = match pattern.contains('.') {
                true => "1 to 64 letters, digits, `-`, `_` or `.`",
                false => "1 to 256 letters, digits, `-` or `_`",
            };
            ("pattern", format!("{shown} has a character that is not allowed here"), Some(hint.to_owned()))
        }
        other => plain("schema", format!("{shown} does not satisfy `{}`", other.keyword())),
    }
}

fn type_names(kind: &TypeKind) -> Vec<String> {
    match kind {
        TypeKind::Single(single) => vec![single.to_string()],
        TypeKind::Multiple(several) => several.iter().map(|single| single.to_string()).collect(),
    }
}

/// A value for a message: short, on one line.
fn show(value: &Value) -> String {
    const LONGEST: usize = 60;
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        scalar => {
            let text = scalar.to_string();
            match text.char_indices().nth(LONGEST) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text,
            }
        }
    }
}

/// The name in `known` that `written` is most likely a slip of.
pub(crate) fn closest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A long text is no slip of a name, and the distance takes quadratic time.
    if written.len() > 64 {
        return None;
    }
    let lower = written.to_ascii_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&lower, &name.to_ascii_lowercase()), name))
        .filter(|(distance, name)| *distance <= (name.len().max(lower.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Our pointer for a JSON pointer, and the schema that holds there.
fn locate(root: &Value, json_pointer: &str) -> (String, Option<&'static Value>) {
    let mut pointer = String::new();
    let mut value = Some(root);
    let mut rule = resolve(schema());
    for segment in json_pointer.split('/').skip(1) {
        let segment = segment.replace("~1", "/").replace("~0", "~");
        match (value, segment.parse::<usize>()) {
            (Some(Value::Array(items)), Ok(index)) => {
                pointer = element(&pointer, index);
                value = items.get(index);
                rule = rule.and_then(|rule| resolve(rule.get("items")?));
            }
            _ => {
                pointer = member(&pointer, &segment);
                value = value.and_then(|value| value.get(&segment));
                rule = rule.and_then(|rule| resolve(rule.get("properties")?.get(&segment)?));
            }
        }
    }
    (pointer, rule)
}

/// Follows references, and of alternatives the one that has members.
fn resolve(rule: &'static Value) -> Option<&'static Value> {
    let mut rule = rule;
    loop {
        if let Some(target) = rule.get("$ref").and_then(Value::as_str) {
            rule = schema().pointer(target.strip_prefix('#')?)?;
        } else if let Some(branches) = rule.get("anyOf").and_then(Value::as_array) {
            let structured = |branch: &&Value| branch.get("$ref").is_some() || branch.get("items").is_some();
            rule = branches.iter().find(structured)?;
        } else {
            return Some(rule);
        }
    }
}

/// Definitions by name, for the reference.
pub(crate) fn definitions() -> Option<&'static Map<String, Value>> {
    schema().get("$defs")?.as_object()
}
