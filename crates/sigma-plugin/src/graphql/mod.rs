//! GraphQL documents for execution (the specification of October 2021, §2): their definitions and selections.
//!
//! The syntax is checked in full, except type definitions, which are not executed. Parsing is linear, and depth has a
//! limit. Selections are kept as one list in the order of the text, also with a limit: fragments are never expanded
//! here.

mod chosen;
pub mod message;
mod parser;

use std::collections::HashMap;
use std::ops::Range;

pub use chosen::Chosen;
pub use message::{Message, NoMessage};
use parser::Parser;

/// A definition of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Definition {
    /// An operation, with its name if it has one
    Operation(Operation, Option<String>),
    /// A fragment
    Fragment,
}

/// The type of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// It reads.
    Query,
    /// It changes data, then reads.
    Mutation,
    /// It reads a stream of events.
    Subscription,
}

/// Returns the definitions of a document; there is at least one.
///
/// # Errors
/// Returns an error message with the position if the document is invalid.
pub fn definitions(text: &str) -> Result<Vec<Definition>, String> {
    let mut parser = Parser::new(text, None);
    parser.document()?;
    Ok(parser.found)
}

/// The selections of a document.
#[derive(Debug, Default)]
pub struct Document<'t> {
    operations: Vec<Defined<'t>>,
    fragments: HashMap<&'t str, Fragment<'t>>,
    selections: Vec<Selection<'t>>,
    arguments: Vec<Argument<'t>>,
    /// The remaining number of selections, arguments and variables.
    room: usize,
}

/// An operation of a document.
#[derive(Debug)]
pub struct Defined<'t> {
    /// Its type.
    pub operation: Operation,
    /// Its name, if it has one.
    pub name: Option<&'t str>,
    /// Its variables, each with its default if that is a number.
    pub variables: Vec<(&'t str, Option<f64>)>,
    /// Its selections; see [`Document::selections`].
    pub selections: Range<u32>,
}

/// A fragment of a document.
#[derive(Debug)]
pub struct Fragment<'t> {
    /// The type it applies to.
    pub on: &'t str,
    /// Its selections; see [`Document::selections`].
    pub selections: Range<u32>,
}

/// One selection.
#[derive(Debug)]
pub struct Selection<'t> {
    /// Its kind.
    pub kind: SelectionKind<'t>,
    /// The end of its nested selections, which follow it in the list.
    end: u32,
    /// Its arguments.
    arguments: Range<u32>,
}

/// The kind of a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectionKind<'t> {
    /// A field; this is its name, not its alias
    Field(&'t str),
    /// An inline fragment, with its type if it has one
    Inline(Option<&'t str>),
    /// A spread of the fragment of this name
    Spread(&'t str),
}

/// An argument of a field.
#[derive(Debug)]
struct Argument<'t> {
    name: &'t str,
    value: ArgumentValue<'t>,
}

/// The value of an argument.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ArgumentValue<'t> {
    /// A literal number
    Number(f64),
    /// The variable of this name
    Variable(&'t str),
    /// Another value
    Other,
}

/// The reason for an invalid document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoDocument {
    /// The syntax is invalid; the message has the position.
    Syntax(String),
    /// The document is larger or deeper than the limits. Another reader may accept it.
    TooLarge,
}

impl<'t> Document<'t> {
    /// Parses a document with at least one definition and at most `most` selections, arguments and variables
    /// together. Two fragments of one name make the document invalid: servers might use either.
    ///
    /// # Errors
    /// Returns an error if the document is invalid, too large, or more than 100 levels deep.
    pub fn parse(text: &'t str, most: u32) -> Result<Document<'t>, NoDocument> {
        let empty = Document { room: most as usize, ..Document::default() };
        let mut parser = Parser::new(text, Some(empty));
        let read = parser.document();
        if parser.is_full {
            return Err(NoDocument::TooLarge);
        }
        read.map_err(NoDocument::Syntax)?;
        Ok(parser.kept.unwrap_or_default())
    }

    /// Returns its operations, in the order of the text.
    pub fn operations(&self) -> &[Defined<'t>] {
        &self.operations
    }

    /// Returns the fragment of a name.
    pub fn fragment(&self, name: &str) -> Option<&Fragment<'t>> {
        self.fragments.get(name)
    }

    /// Returns the first of these selections, its nested ones, and the ones after it; None without one.
    pub fn first_of(&self, selections: Range<u32>) -> Option<(&Selection<'t>, Range<u32>, Range<u32>)> {
        let first = self.selections.get(selections.start as usize).filter(|_| !selections.is_empty())?;
        Some((first, selections.start + 1..first.end, first.end..selections.end))
    }

    /// Returns the selections of one level, each with its nested ones.
    pub fn selections(&self, of: Range<u32>) -> impl Iterator<Item = (&Selection<'t>, Range<u32>)> {
        let mut rest = of;
        std::iter::from_fn(move || {
            let (first, within, behind) = self.first_of(rest.clone())?;
            rest = behind;
            Some((first, within))
        })
    }

    /// Returns the values of an argument of a selection: one, unless the argument is repeated.
    pub fn arguments<'d>(
        &'d self,
        of: &Selection<'t>,
        name: &'d str,
    ) -> impl Iterator<Item = ArgumentValue<'t>> + use<'d, 't> {
        let (from, to) = (of.arguments.start as usize, of.arguments.end as usize);
        let all = self.arguments.get(from..to).unwrap_or_default();
        all.iter().filter(move |argument| argument.name == name).map(|argument| argument.value)
    }

    /// Returns the number of arguments of a selection.
    pub fn argument_count(&self, of: &Selection<'t>) -> u32 {
        of.arguments.end - of.arguments.start
    }

    /// Returns the fragments that these selections and nested ones spread.
    pub fn spreads<'d>(&'d self, of: Range<u32>) -> impl Iterator<Item = &'t str> + use<'d, 't> {
        let of = self.selections.get(of.start as usize..of.end as usize).unwrap_or_default();
        of.iter().filter_map(|selection| match selection.kind {
            SelectionKind::Spread(name) => Some(name),
            _ => None,
        })
    }

    /// Adds a selection and returns its index.
    fn select(&mut self, kind: SelectionKind<'t>) -> usize {
        let arguments = self.arguments.len() as u32;
        self.selections.push(Selection { kind, end: 0, arguments: arguments..arguments });
        self.selections.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn documents() {
        let of = |kind, name: &str| Definition::Operation(kind, (!name.is_empty()).then(|| name.to_owned()));
        let operation = |name: &str| of(Operation::Query, name);
        let check =
            |text: &str, expected: Vec<Definition>| assert_eq!(definitions(text), Ok(expected), "{text}");
        check("{a}", vec![operation("")]);
        check("query { a b, c }", vec![operation("")]);
        check(
            "query Q($a: [Int!]! = [1, -2.5e3] @d, $b: T = {x: null, y: []}) @d(a: $a) { x: a(b: $b) @d { c } }",
            vec![operation("Q")],
        );
        check(
            "mutation M { a } subscription S { b }",
            vec![of(Operation::Mutation, "M"), of(Operation::Subscription, "S")],
        );
        check(
            "fragment F on T { a } { ...F ... on T @x { b } ... @x { c } ... { d } }",
            vec![Definition::Fragment, operation("")],
        );
        check(
            "# comment {\n{a(t: \"x\\\"}\", b: \"\"\"block \\\"\"\" \" } \"\"\", e: ENUM, o: {})}",
            vec![operation("")],
        );
        check("{query fragment on}", vec![operation("")]);
    }

    #[test]
    fn invalid_documents_are_rejected() {
        let check = |text: &str, expected: &str| {
            let error = definitions(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("", "the document is empty");
        check(" # only a comment", "the document is empty");
        check("{", "ends too early");
        check("{}", "empty `{` `}` at line 1 column 2");
        check("query Q() {a}", "empty `(` `)`");
        check("{a\n  b(c: )}", "unexpected `)` at line 2 column 8");
        check("{a} b", "unexpected `b` at line 1 column 5");
        check("fragment on on T {a}", "unexpected `on`");
        check("type T { a: Int }", "unexpected `type`");
        check("{a(b: 01)}", "unexpected `0`");
        check("{a(b: 1a)}", "unexpected `1`");
        check("{a(b: \"x\n\")}", "unexpected `\"`");
        check("{a(b: \"\\x\")}", "unexpected `\"`");
        check("{a ..b}", "unexpected `.`");
        check("{a é}", "unexpected `é`");
        check(&"{a".repeat(101), "more than 100 levels");
        check(&format!("{{a(b: {}", "[".repeat(200)), "more than 100 levels");
    }

    /// Formats selections as text: fields with their arguments, and fragment spreads.
    fn shown(document: &Document<'_>, of: Range<u32>) -> String {
        let one = |(selection, within): (&Selection<'_>, Range<u32>)| {
            let name = match selection.kind {
                SelectionKind::Field(name) => name.to_owned(),
                SelectionKind::Inline(on) => format!("...on {}", on.unwrap_or("-")),
                SelectionKind::Spread(name) => format!("...{name}"),
            };
            let first: Vec<_> = document.arguments(selection, "first").collect();
            let first = if first.is_empty() { String::new() } else { format!("{first:?}") };
            let within = shown(document, within);
            format!("{name}{first}{}", if within.is_empty() { within } else { format!("{{{within}}}") })
        };
        document.selections(of).map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn selections_are_kept_in_order() {
        let text = "query Q($n: Int = 2, $s: String = \"x\") @d(first: 9) { x: a(first: 3, l: [1 {first: 4}]) \
            @d(first: 5) { b c { d } } ...F @d ... on T { e(first: $n) } ... { f(first: \"1\", first: -1e2) } } \
            fragment F on U { g ...F } mutation { h }";
        let document = Document::parse(text, 22).unwrap();
        let [query, mutation] = document.operations() else { panic!("two operations") };
        assert_eq!((query.name, query.operation), (Some("Q"), Operation::Query));
        assert_eq!(query.variables, [("n", Some(2.0)), ("s", None)]);
        assert_eq!(
            shown(&document, query.selections.clone()),
            "a[Number(3.0)]{b c{d}} ...F ...on T{e[Variable(\"n\")]} ...on -{f[Other, Number(-100.0)]}"
        );
        assert_eq!(shown(&document, mutation.selections.clone()), "h");
        let fragment = document.fragment("F").unwrap();
        assert_eq!((fragment.on, &*shown(&document, fragment.selections.clone())), ("U", "g ...F"));
        assert!(document.fragment("G").is_none());
        // Three definitions, two variables, twelve selections and five arguments.
        assert_eq!(document.room, 0);
        assert_eq!(Document::parse(text, 21).unwrap_err(), NoDocument::TooLarge);
        let deep = format!("{}a{}", "{a".repeat(101), "}".repeat(101));
        assert_eq!(Document::parse(&deep, 200).unwrap_err(), NoDocument::TooLarge);
        let twice = Document::parse("fragment F on T {a} {b} fragment F on T {c}", 20).unwrap_err();
        assert_eq!(twice, NoDocument::Syntax("a second fragment `F` at line 1 column 34".to_owned()));
    }

    proptest! {
        #[test]
        fn kept_selections_match_the_definitions(parts in prop::collection::vec("[a{}()$:\\. 0-9]{1,3}|query |fragment F on T |mutation M", 0..20)) {
            let text = parts.concat();
            let (found, kept) = (definitions(&text), Document::parse(&text, 1_000));
            if let Ok(document) = &kept {
                let operations = found.clone().unwrap().into_iter().filter(|one| *one != Definition::Fragment);
                let kept = document.operations().iter().map(|one| {
                    Definition::Operation(one.operation, one.name.map(str::to_owned))
                });
                prop_assert!(operations.eq(kept), "{}", text);
            }
            // Only repeated fragment names are invalid for one of the two alone.
            prop_assert!(kept.is_ok() || found.is_err() || text.matches("fragment F").count() > 1, "{}", text);
        }

        #[test]
        fn nothing_panics(parts in prop::collection::vec("[a{}()\\[\\]:$!@\"\\\\.0-9eé#, \n]{1,3}|query |fragment F on T ", 0..20)) {
            let _ = definitions(&parts.concat());
        }
    }
}
