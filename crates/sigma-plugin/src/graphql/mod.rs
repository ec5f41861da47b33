//! GraphQL documents that are executed (the specification of October 2021, §2): what is defined there, and what it
//! selects.
//!
//! The syntax is checked in full but for definitions of types, which nobody executes. Work is linear, and depth has
//! a limit. What is selected is kept as one list in the order of the text, with a limit as well: nothing here spreads
//! a fragment.

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
    /// Something to be executed, with its name if it has one.
    Operation(Operation, Option<String>),
    /// Selections that others are made of.
    Fragment,
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// It reads.
    Query,
    /// It changes something, then reads.
    Mutation,
    /// It reads on and on.
    Subscription,
}

/// The definitions of a document, of which there is at least one.
///
/// # Errors
/// Returns an error, which is a sentence with a place, if it is none.
pub fn definitions(text: &str) -> Result<Vec<Definition>, String> {
    let mut parser = Parser::new(text, None);
    parser.document()?;
    Ok(parser.found)
}

/// What a document selects.
#[derive(Debug, Default)]
pub struct Document<'t> {
    operations: Vec<Defined<'t>>,
    fragments: HashMap<&'t str, Fragment<'t>>,
    selections: Vec<Selection<'t>>,
    arguments: Vec<Argument<'t>>,
    /// Selections, arguments and variables that may still come.
    room: usize,
}

/// An operation of a document.
#[derive(Debug)]
pub struct Defined<'t> {
    /// What it does.
    pub operation: Operation,
    /// Its name, if it has one.
    pub name: Option<&'t str>,
    /// Its variables, each with its default if that is a number.
    pub variables: Vec<(&'t str, Option<f64>)>,
    /// What it selects; see [`Document::selections`].
    pub selections: Range<u32>,
}

/// A fragment of a document.
#[derive(Debug)]
pub struct Fragment<'t> {
    /// The type that it is about.
    pub on: &'t str,
    /// What it selects; see [`Document::selections`].
    pub selections: Range<u32>,
}

/// One selection.
#[derive(Debug)]
pub struct Selection<'t> {
    /// What is selected.
    pub kind: SelectionKind<'t>,
    /// Those within it stand behind it up to here.
    end: u32,
    /// Its arguments.
    arguments: Range<u32>,
}

/// What one selection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectionKind<'t> {
    /// The field of this name, whatever it is called in the answer.
    Field(&'t str),
    /// What stands within it, for objects of this type if it names one.
    Inline(Option<&'t str>),
    /// The fragment of this name.
    Spread(&'t str),
}

/// An argument of a field.
#[derive(Debug)]
struct Argument<'t> {
    name: &'t str,
    value: ArgumentValue<'t>,
}

/// What an argument is given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ArgumentValue<'t> {
    /// A number that stands there.
    Number(f64),
    /// The variable of this name.
    Variable(&'t str),
    /// Anything else.
    Other,
}

/// Why a text is not taken as a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoDocument {
    /// It is none; the sentence has the place.
    Syntax(String),
    /// It has more in it than is kept, or stands deeper than is read. Another reader may take it.
    TooLarge,
}

impl<'t> Document<'t> {
    /// Reads a document with at least one definition, whose selections, arguments and variables are `most` together.
    /// Two fragments of one name are no document: those who execute it might choose either.
    ///
    /// # Errors
    /// Returns an error if it is none, or has more in it, or stands more than 100 levels deep.
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

    /// Its operations, in the order of the text.
    pub fn operations(&self) -> &[Defined<'t>] {
        &self.operations
    }

    /// The fragment of a name.
    pub fn fragment(&self, name: &str) -> Option<&Fragment<'t>> {
        self.fragments.get(name)
    }

    /// The first of these selections, what stands within it, and those behind it; None if there are none.
    pub fn first_of(&self, selections: Range<u32>) -> Option<(&Selection<'t>, Range<u32>, Range<u32>)> {
        let first = self.selections.get(selections.start as usize).filter(|_| !selections.is_empty())?;
        Some((first, selections.start + 1..first.end, first.end..selections.end))
    }

    /// Selections beside each other, each with those within it.
    pub fn selections(&self, of: Range<u32>) -> impl Iterator<Item = (&Selection<'t>, Range<u32>)> {
        let mut rest = of;
        std::iter::from_fn(move || {
            let (first, within, behind) = self.first_of(rest.clone())?;
            rest = behind;
            Some((first, within))
        })
    }

    /// What a selection is given as the argument of this name: one value, unless it is named more than once.
    pub fn arguments<'d>(
        &'d self,
        of: &Selection<'t>,
        name: &'d str,
    ) -> impl Iterator<Item = ArgumentValue<'t>> + use<'d, 't> {
        let (from, to) = (of.arguments.start as usize, of.arguments.end as usize);
        let all = self.arguments.get(from..to).unwrap_or_default();
        all.iter().filter(move |argument| argument.name == name).map(|argument| argument.value)
    }

    /// How many arguments a selection has.
    pub fn argument_count(&self, of: &Selection<'t>) -> u32 {
        of.arguments.end - of.arguments.start
    }

    /// The fragments that these selections and those within them spread.
    pub fn spreads<'d>(&'d self, of: Range<u32>) -> impl Iterator<Item = &'t str> + use<'d, 't> {
        let of = self.selections.get(of.start as usize..of.end as usize).unwrap_or_default();
        of.iter().filter_map(|selection| match selection.kind {
            SelectionKind::Spread(name) => Some(name),
            _ => None,
        })
    }

    /// Begins a selection; where it stands.
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
    fn what_is_no_document() {
        let check = |text: &str, expected: &str| {
            let error = definitions(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("", "the document is empty");
        check(" # only a comment", "the document is empty");
        check("{", "ends too early");
        check("{}", "nothing stands between `{` and `}` at line 1 column 2");
        check("query Q() {a}", "nothing stands between `(` and `)`");
        check("{a\n  b(c: )}", "unexpected `)` at line 2 column 8");
        check("{a} b", "unexpected `b` at line 1 column 5");
        check("fragment on on T {a}", "unexpected `on`");
        check("type T { a: Int }", "unexpected `type`");
        check("{a(b: 01)}", "`0` begins nothing");
        check("{a(b: 1a)}", "`1` begins nothing");
        check("{a(b: \"x\n\")}", "`\"` begins nothing");
        check("{a(b: \"\\x\")}", "`\"` begins nothing");
        check("{a ..b}", "`.` begins nothing");
        check("{a é}", "`é` begins nothing");
        check(&"{a".repeat(101), "more than 100 levels");
        check(&format!("{{a(b: {}", "[".repeat(200)), "more than 100 levels");
    }

    /// What is selected, as text: fields with what they are given, fragments with what they spread.
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
    fn what_is_selected() {
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
        fn what_is_kept_is_what_is_defined(parts in prop::collection::vec("[a{}()$:\\. 0-9]{1,3}|query |fragment F on T |mutation M", 0..20)) {
            let text = parts.concat();
            let (found, kept) = (definitions(&text), Document::parse(&text, 1_000));
            if let Ok(document) = &kept {
                let operations = found.clone().unwrap().into_iter().filter(|one| *one != Definition::Fragment);
                let kept = document.operations().iter().map(|one| {
                    Definition::Operation(one.operation, one.name.map(str::to_owned))
                });
                prop_assert!(operations.eq(kept), "{}", text);
            }
            // Only fragments of one name are no document to one of them alone.
            prop_assert!(kept.is_ok() || found.is_err() || text.matches("fragment F").count() > 1, "{}", text);
        }

        #[test]
        fn nothing_panics(parts in prop::collection::vec("[a{}()\\[\\]:$!@\"\\\\.0-9eé#, \n]{1,3}|query |fragment F on T ", 0..20)) {
            let _ = definitions(&parts.concat());
        }
    }
}
