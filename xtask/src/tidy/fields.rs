//! Structs with many fields: their parts have no names.

use super::source::{Source, words};
use super::{Finding, at_most};

const RULE: &str = "a few parts per struct";

/// Fields of a struct that reads as a few parts.
const FIELDS: usize = 13;

/// The number of larger structs, which may only fall.
const AT_MOST: [(&str, usize); 1] = [("structs", 19)];

/// The crate of the settings and resources, whose structs show the form of the configuration.
const CONFIGURATION: &str = "crates/sigma-config/";

/// Words of the attributes of structs with a form outside the program: configuration, messages, arguments.
const GIVEN_FORMS: [&str; 7] =
    ["Deserialize", "Serialize", "JsonSchema", "described", "Args", "Parser", "prost"];

/// Counts the structs that ship with too many fields.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let sources = sources.iter().filter(|source| !source.path.starts_with(CONFIGURATION));
    let found = sources.flat_map(|source| {
        let large = structs(source).into_iter().filter(|found| found.fields > FIELDS);
        large.map(|found| {
            let remedy = format!(
                "`{}` has {} fields, {FIELDS} are allowed: name the parts that belong together",
                found.name, found.fields
            );
            Finding::at(RULE, &source.path, found.line, remedy)
        })
    });
    at_most(RULE, &AT_MOST, "structs", found.collect())
}

/// A struct with named fields.
struct Struct<'s> {
    name: &'s str,
    /// From 0.
    line: usize,
    fields: usize,
}

/// Returns the structs that ship, without those whose attributes give them their form.
fn structs(source: &Source) -> Vec<Struct<'_>> {
    let shipped = (0..source.code.len()).filter(|line| source.ships(*line) && !has_given_form(source, *line));
    shipped
        .filter_map(|line| {
            let mut words = words(&source.code[line]).map(|(_, word)| word);
            words.find(|word| *word == "struct")?;
            Some(Struct { name: words.next()?, line, fields: fields(&source.code[line..]) })
        })
        .collect()
}

/// Returns true if an attribute above a line says that the form comes from outside.
fn has_given_form(source: &Source, line: usize) -> bool {
    let mut above = source.code[..line].iter().zip(&source.lines).rev().take_while(|(_, text)| {
        let text = text.trim_start();
        text.starts_with("#[") || text.starts_with("///")
    });
    above.any(|(code, _)| words(code).any(|(_, word)| GIVEN_FORMS.contains(&word)))
}

/// Returns the number of named fields of the struct that these lines begin with.
fn fields(code: &[String]) -> usize {
    let (mut count, mut braces, mut others) = (0, 0_usize, 0_usize);
    for line in code {
        if braces == 1 && others == 0 && is_field(line) {
            count += 1;
        }
        for byte in line.bytes() {
            match byte {
                b'{' => braces += 1,
                b'}' if braces <= 1 => return count,
                b'}' => braces -= 1,
                b'(' | b'[' => others += 1,
                b')' | b']' => others = others.saturating_sub(1),
                // A tuple struct, or one without fields.
                b';' if braces == 0 => return 0,
                _ => {}
            }
        }
    }
    count
}

/// Whether a line begins with a field.
fn is_field(line: &str) -> bool {
    let mut rest = line.trim_start();
    if let Some(public) = rest.strip_prefix("pub") {
        let scope = public.strip_prefix('(').and_then(|scope| scope.split_once(')'));
        rest = scope.map_or(public, |(_, rest)| rest).trim_start();
    }
    let rest = rest.strip_prefix("r#").unwrap_or(rest);
    let name = rest.bytes().take_while(|byte| *byte == b'_' || byte.is_ascii_alphanumeric()).count();
    name > 0 && rest[name..].starts_with(':') && !rest[name..].starts_with("::")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted() {
        let check = |text: &str, expected: &[(&str, usize)]| {
            let source = Source::new("crates/a/src/a.rs", text);
            let found: Vec<_> = structs(&source).iter().map(|found| (found.name, found.fields)).collect();
            assert_eq!(found, expected, "{text}");
        };
        check("pub struct A {\n    a: u8,\n    pub(super) b: x::B<C, D>,\n    pub r#c: E,\n}\n", &[("A", 3)]);
        check("struct A<'a> {\n    /// b: it\n    #[x(c: d)]\n    a: &'a [u8; 4],\n}\n", &[("A", 1)]);
        check(
            "struct A {\n    a: Box<\n        dyn Fn(B) -> C,\n    >,\n    b: (u8, u8),\n}\nfn c(d: E) {}\n",
            &[("A", 2)],
        );
        check("pub(crate) struct A<F: Fn(u8)> {\n    a: F,\n}\n", &[("A", 1)]);
        check("struct A(u8);\nstruct B;\nfn c() {\n    let d: u8 = 0;\n}\n", &[("A", 0), ("B", 0)]);
        check("#[cfg(test)]\nmod tests {\n    struct A {\n        a: u8,\n    }\n}\n", &[]);
    }

    #[test]
    fn structs_with_a_given_form_do_not_count() {
        let check = |attribute: &str, expected: usize| {
            let text = format!("{attribute}\n/// Text.\nstruct A {{\n    a: u8,\n}}\n");
            assert_eq!(structs(&Source::new("crates/a/src/a.rs", &text)).len(), expected, "{attribute}");
        };
        check("#[derive(Debug)]", 1);
        check("/// Deserialize", 1);
        check("#[derive(Debug, Deserialize)]", 0);
        check("#[derive(clap::Args)]", 0);
    }

    #[test]
    fn structs_above_the_limit_are_found() {
        let large = format!("struct A {{\n{}}}\n", "    a: u8,\n".repeat(FIELDS + 1));
        let check = |path: &str, number: usize, expected: usize| {
            let sources: Vec<Source> = (0..number).map(|_| Source::new(path, &large)).collect();
            assert_eq!(check(&sources).len(), expected, "{path} {number}");
        };
        let (_, most) = AT_MOST[0];
        check("crates/a/src/a.rs", most, 0);
        check("crates/a/src/a.rs", most + 1, most + 1);
        check("crates/sigma-config/src/a.rs", most, 1);
    }
}
