//! YAML 1.2 with the core schema, as the values that JSON has: one document, keys that are scalars.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};
use serde_json::{Map, Value};
use sigma_schema::document::yaml_scalar;

/// Most lists and mappings nested in each other, as many as JSON may have.
const MOST_LEVELS: usize = 127;

/// Bytes of a copied text that weigh as much as a value.
const TEXT_UNIT: usize = 64;

/// The value of a YAML text with at most `most_values` values in it. Anchored and repeated values count
/// again, with a value more for each 64 bytes of their text: so a few lines that name each other do not
/// become more than any other body of that many values.
///
/// # Errors
/// Returns an error, which is a sentence with the line, if the text is not YAML, is nested too deeply, has too many
/// values, or says what JSON cannot.
pub(super) fn read(text: &str, most_values: usize) -> Result<Value, String> {
    let mut builder = Builder { left: most_values, most_values, ..Builder::default() };
    for event in Parser::new_from_str(text.strip_prefix('\u{feff}').unwrap_or(text)) {
        let (event, span) =
            event.map_err(|error| format!("line {}: {}", error.marker().line(), error.info()))?;
        builder.event(event).map_err(|reason| format!("line {}: {reason}", span.start.line()))?;
    }
    Ok(builder.root.unwrap_or_default())
}

/// A value, and the size of a copy of it.
#[derive(Clone)]
struct Weighed {
    value: Value,
    /// Values, and text in their measure.
    weight: usize,
    /// Lists and mappings nested in each other.
    levels: usize,
}

/// A list or a mapping that is still open.
struct Open {
    content: Content,
    anchor: usize,
    weight: usize,
    levels: usize,
}

enum Content {
    List(Vec<Value>),
    /// With the key whose value comes next.
    Mapping(Map<String, Value>, Option<String>),
}

#[derive(Default)]
struct Builder {
    root: Option<Value>,
    has_begun: bool,
    stack: Vec<Open>,
    anchors: HashMap<usize, Weighed>,
    most_values: usize,
    /// Values that there may be still.
    left: usize,
}

impl Builder {
    fn event(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::DocumentStart(_) if self.has_begun => Err("a second YAML document begins".to_owned()),
            Event::DocumentStart(_) => {
                self.has_begun = true;
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                if let Some(key) = self.next_key() {
                    if style == ScalarStyle::Plain && text == "<<" {
                        return Err("`<<` (merge) is not part of YAML 1.2".to_owned());
                    }
                    *key = Some(text.into_owned());
                    return Ok(());
                }
                self.take(1)?;
                let value = scalar(text.into_owned(), style, tag.as_deref())?;
                let weight = 1 + value.as_str().map_or(0, str::len) / TEXT_UNIT;
                self.finish(Weighed { value, weight, levels: 0 }, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.open(Content::List(Vec::new()), anchor, tag.as_deref(), "seq")
            }
            Event::MappingStart(anchor, tag) => {
                self.open(Content::Mapping(Map::new(), None), anchor, tag.as_deref(), "map")
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(Open { content, anchor, weight, levels }) = self.stack.pop() else { return Ok(()) };
                let value = match content {
                    Content::List(items) => Value::Array(items),
                    Content::Mapping(members, _) => Value::Object(members),
                };
                self.finish(Weighed { value, weight, levels }, anchor)
            }
            Event::Alias(anchor) => self.alias(anchor),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    /// Returns the slot of the key, if one comes next.
    fn next_key(&mut self) -> Option<&mut Option<String>> {
        match &mut self.stack.last_mut()?.content {
            Content::Mapping(_, key @ None) => Some(key),
            _ => None,
        }
    }

    fn open(&mut self, content: Content, anchor: usize, tag: Option<&Tag>, kind: &str) -> Result<(), String> {
        if self.next_key().is_some() {
            return Err("a key is a list or a mapping".to_owned());
        }
        if tag.is_some_and(|tag| !is_core(tag, kind)) {
            return Err("a tag is not in the core schema".to_owned());
        }
        if self.stack.len() >= MOST_LEVELS {
            return Err(too_deep());
        }
        self.take(1)?;
        self.stack.push(Open { content, anchor, weight: 1, levels: 1 });
        Ok(())
    }

    fn alias(&mut self, anchor: usize) -> Result<(), String> {
        if self.next_key().is_some() {
            return Err("a key is an alias".to_owned());
        }
        let anchored = self.anchors.get(&anchor).ok_or("an alias is inside the value that it refers to")?;
        if self.stack.len() + anchored.levels > MOST_LEVELS {
            return Err(too_deep());
        }
        let weight = anchored.weight;
        // Before anything is copied.
        self.take(weight)?;
        match self.anchors.get(&anchor).cloned() {
            Some(copy) => self.finish(copy, 0),
            None => Ok(()),
        }
    }

    /// Adds a value to the open collection.
    fn finish(&mut self, weighed: Weighed, anchor: usize) -> Result<(), String> {
        if anchor > 0 {
            self.take(weighed.weight)?;
            self.anchors.insert(anchor, weighed.clone());
        }
        let Weighed { value, weight, levels } = weighed;
        let Some(open) = self.stack.last_mut() else {
            self.root = Some(value);
            return Ok(());
        };
        open.weight += weight;
        open.levels = open.levels.max(levels + 1);
        match &mut open.content {
            Content::List(items) => items.push(value),
            Content::Mapping(members, key) => {
                let key = key.take().unwrap_or_default();
                open.weight += key.len() / TEXT_UNIT;
                members.insert(key, value);
            }
        }
        Ok(())
    }

    fn take(&mut self, values: usize) -> Result<(), String> {
        let left = self.left.checked_sub(values);
        self.left = left.ok_or_else(|| format!("more than {} values", self.most_values))?;
        Ok(())
    }
}

fn too_deep() -> String {
    format!("lists and mappings are nested deeper than {MOST_LEVELS}")
}

fn is_core(tag: &Tag, kind: &str) -> bool {
    tag.is_yaml_core_schema() && tag.suffix == kind
}

/// Returns the value of a scalar: by the form of a plain one, or by its tag.
fn scalar(text: String, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    let is_typed = match tag {
        None => style == ScalarStyle::Plain,
        Some(tag) if is_core(tag, "str") || (tag.handle.is_empty() && tag.suffix == "!") => false,
        Some(tag) if ["int", "float", "bool", "null"].iter().any(|kind| is_core(tag, kind)) => true,
        Some(_) => return Err("a tag is not in the core schema".to_owned()),
    };
    match is_typed {
        true => yaml_scalar(&text).ok_or_else(|| "a number is out of range".to_owned()),
        false => Ok(Value::String(text)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts() {
        let check = |text: &str, expected: Value| assert_eq!(read(text, 20), Ok(expected), "{text}");
        check("", Value::Null);
        check("# nothing\n", Value::Null);
        check("a: 1\nb: [x, 'y', \"z\"]\n", json!({"a": 1, "b": ["x", "y", "z"]}));
        check("\u{feff}---\n- ~\n- yes\n- true\n- 0x1f\n- 1.5\n...\n", json!([null, "yes", true, 31, 1.5]));
        check("a: |\n  b\n  c\n", json!({"a": "b\nc\n"}));
        check("{a: {b: 1}, 2: '2'}", json!({"a": {"b": 1}, "2": "2"}));
        check("a: &x {b: 1}\nc: *x\nd: [*x]", json!({"a": {"b": 1}, "c": {"b": 1}, "d": [{"b": 1}]}));
        check("[!!str 1, !!int '1', ! 1, !!seq [], !!map {}]", json!(["1", 1, "1", [], {}]));
        check("{a: 1, a: 2}", json!({"a": 2}));
        check("{\"a\": [1, 2]}", json!({"a": [1, 2]}));
    }

    #[test]
    fn texts_that_are_refused() {
        let check = |text: &str, expected: &str| {
            let found = read(text, 20).unwrap_err();
            assert!(found.starts_with(expected), "{text}: {found}");
        };
        check("a: 1\nb: [", "line 3: ");
        check("a: 1\n---\nb: 2", "line 2: a second YAML document begins");
        check("a: &x 1\n<<: *x", "line 2: `<<` (merge) is not part of YAML 1.2");
        check("[a]: 1", "line 1: ");
        check("? [a]\n: 1", "line 1: a key is a list or a mapping");
        check("a: &x 1\n*x : 1", "line 2: a key is an alias");
        check("&a [*a]", "line 1: an alias is inside the value that it refers to");
        check("*a", "line 1: ");
        check("!secret x", "line 1: a tag is not in the core schema");
        check("!!binary aGk=", "line 1: a tag is not in the core schema");
        check("[.inf]", "line 1: a number is out of range");
        check(&"- 1\n".repeat(20), "line 20: more than 20 values");
    }

    /// A list of lists of lists …, of which each names the one before ten times.
    fn laughs(first: &str) -> String {
        let levels = (1..10).map(|level| {
            let names = vec![format!("*a{}", level - 1); 10].join(",");
            format!("- &a{level} [{names}]\n")
        });
        format!("- &a0 {first}\n{}", levels.collect::<String>())
    }

    #[test]
    fn repeated_aliases_are_bounded() {
        assert_eq!(read(&laughs("lol"), 250_000).unwrap_err(), "line 7: more than 250000 values");
        // One long text is as much as many values.
        assert_eq!(
            read(&laughs(&"l".repeat(64_000)), 250_000).unwrap_err(),
            "line 4: more than 250000 values"
        );
        let keys = format!("- &a {{? {} : 1}}\n{}", "k".repeat(1_000), "- *a\n".repeat(20));
        assert!(read(&keys, 100).is_err());
    }

    #[test]
    fn levels_have_a_bound() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(read(&nested(MOST_LEVELS), 1_000).is_ok());
        assert!(read(&nested(MOST_LEVELS + 1), 1_000).unwrap_err().contains("nested deeper than 127"));
        assert!(read(&"[".repeat(1_000_000), 250_000).is_err());
        // Also of what aliases repeat.
        let by_alias =
            |levels: usize| format!("[&a {}, {}]", nested(100), nested(levels).replace("[]", "[*a]"));
        assert!(read(&by_alias(26), 1_000).is_ok());
        assert!(read(&by_alias(27), 1_000).unwrap_err().contains("nested deeper than 127"));
    }
}
