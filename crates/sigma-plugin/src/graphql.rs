//! GraphQL documents that are executed (the specification of October 2021, §2): what is defined there.
//!
//! The syntax is checked in full but for definitions of types, which nobody executes. Work is linear, and depth has
//! a limit.

/// Selections, values or types within each other.
const MAX_DEPTH: usize = 100;

/// A definition of a document.
#[derive(Debug, PartialEq, Eq)]
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
    let mut parser = Parser { text, at: 0, token: Token::End, began: 0, depth: 0 };
    parser.advance()?;
    let mut found = Vec::new();
    while parser.token != Token::End {
        found.push(parser.definition()?);
    }
    if found.is_empty() { Err("the document is empty".to_owned()) } else { Ok(found) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'t> {
    Punctuator(char),
    Spread,
    Name(&'t str),
    Number,
    Text,
    End,
}

struct Parser<'t> {
    text: &'t str,
    /// Behind the token.
    at: usize,
    token: Token<'t>,
    /// Where the token begins.
    began: usize,
    depth: usize,
}

impl<'t> Parser<'t> {
    fn definition(&mut self) -> Result<Definition, String> {
        let operation = match self.token {
            Token::Name("mutation") => Operation::Mutation,
            Token::Name("subscription") => Operation::Subscription,
            _ => Operation::Query,
        };
        match self.token {
            Token::Punctuator('{') => {
                self.selections()?;
                Ok(Definition::Operation(operation, None))
            }
            Token::Name("query" | "mutation" | "subscription") => {
                self.advance()?;
                let name = self.name_if_any()?.map(str::to_owned);
                if self.token == Token::Punctuator('(') {
                    self.list('(', ')', Self::variable_definition)?;
                }
                self.directives()?;
                self.selections()?;
                Ok(Definition::Operation(operation, name))
            }
            Token::Name("fragment") => {
                self.advance()?;
                if self.token == Token::Name("on") {
                    return Err(self.unexpected());
                }
                self.name()?;
                self.keyword("on")?;
                self.name()?;
                self.directives()?;
                self.selections()?;
                Ok(Definition::Fragment)
            }
            _ => Err(self.unexpected()),
        }
    }

    fn selections(&mut self) -> Result<(), String> {
        self.nested(|parser| parser.list('{', '}', Self::selection))
    }

    fn selection(&mut self) -> Result<(), String> {
        if self.token == Token::Spread {
            self.advance()?;
            return match self.token {
                Token::Name("on") => {
                    self.advance()?;
                    self.name()?;
                    self.directives()?;
                    self.selections()
                }
                Token::Name(_) => {
                    self.advance()?;
                    self.directives()
                }
                _ => {
                    self.directives()?;
                    self.selections()
                }
            };
        }
        self.name()?;
        if self.token == Token::Punctuator(':') {
            self.advance()?;
            self.name()?;
        }
        self.arguments()?;
        self.directives()?;
        if self.token == Token::Punctuator('{') { self.selections() } else { Ok(()) }
    }

    fn arguments(&mut self) -> Result<(), String> {
        match self.token {
            Token::Punctuator('(') => self.list('(', ')', Self::member),
            _ => Ok(()),
        }
    }

    fn directives(&mut self) -> Result<(), String> {
        while self.token == Token::Punctuator('@') {
            self.advance()?;
            self.name()?;
            self.arguments()?;
        }
        Ok(())
    }

    fn variable_definition(&mut self) -> Result<(), String> {
        self.expect('$')?;
        self.name()?;
        self.expect(':')?;
        self.type_reference()?;
        if self.token == Token::Punctuator('=') {
            self.advance()?;
            self.value()?;
        }
        self.directives()
    }

    fn type_reference(&mut self) -> Result<(), String> {
        if self.token == Token::Punctuator('[') {
            self.advance()?;
            self.nested(Self::type_reference)?;
            self.expect(']')?;
        } else {
            self.name()?;
        }
        if self.token == Token::Punctuator('!') { self.advance() } else { Ok(()) }
    }

    /// `name: value`
    fn member(&mut self) -> Result<(), String> {
        self.name()?;
        self.expect(':')?;
        self.value()
    }

    fn value(&mut self) -> Result<(), String> {
        match self.token {
            Token::Punctuator('$') => {
                self.advance()?;
                self.name().map(drop)
            }
            Token::Punctuator('[') => self.nested(|parser| parser.items('[', ']', Self::value)),
            Token::Punctuator('{') => self.nested(|parser| parser.items('{', '}', Self::member)),
            Token::Number | Token::Text | Token::Name(_) => self.advance(),
            _ => Err(self.unexpected()),
        }
    }

    /// One or more.
    fn list(
        &mut self,
        open: char,
        close: char,
        item: fn(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        self.expect(open)?;
        if self.token == Token::Punctuator(close) {
            return Err(format!(
                "nothing stands between `{open}` and `{close}` at {}",
                self.place(self.began)
            ));
        }
        self.until(close, item)
    }

    /// None or more.
    fn items(
        &mut self,
        open: char,
        close: char,
        item: fn(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        self.expect(open)?;
        self.until(close, item)
    }

    fn until(&mut self, close: char, item: fn(&mut Self) -> Result<(), String>) -> Result<(), String> {
        while self.token != Token::Punctuator(close) {
            item(self)?;
        }
        self.advance()
    }

    fn nested(&mut self, inner: impl FnOnce(&mut Self) -> Result<(), String>) -> Result<(), String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} levels at {}", self.place(self.began)));
        }
        inner(self)?;
        self.depth -= 1;
        Ok(())
    }

    fn name(&mut self) -> Result<&'t str, String> {
        match self.name_if_any()? {
            Some(name) => Ok(name),
            None => Err(self.unexpected()),
        }
    }

    fn name_if_any(&mut self) -> Result<Option<&'t str>, String> {
        let Token::Name(name) = self.token else { return Ok(None) };
        self.advance()?;
        Ok(Some(name))
    }

    fn keyword(&mut self, word: &str) -> Result<(), String> {
        if self.token == Token::Name(word) { self.advance() } else { Err(self.unexpected()) }
    }

    fn expect(&mut self, punctuator: char) -> Result<(), String> {
        match self.token == Token::Punctuator(punctuator) {
            true => self.advance(),
            false => Err(self.unexpected()),
        }
    }

    fn unexpected(&self) -> String {
        match self.token {
            Token::End => "the document ends too early".to_owned(),
            _ => format!("unexpected `{}` at {}", &self.text[self.began..self.at], self.place(self.began)),
        }
    }

    /// Line and column of a byte.
    fn place(&self, at: usize) -> String {
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|char| *char != '\n').count() + 1;
        format!("line {line} column {column}")
    }

    fn advance(&mut self) -> Result<(), String> {
        self.skip_ignored();
        self.began = self.at;
        let rest = &self.text[self.at..];
        let Some(first) = rest.chars().next() else {
            self.token = Token::End;
            return Ok(());
        };
        let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
        let (token, length) = match first {
            '!' | '$' | '&' | '(' | ')' | ':' | '=' | '@' | '[' | ']' | '{' | '|' | '}' => {
                (Token::Punctuator(first), Some(1))
            }
            '.' => (Token::Spread, rest.starts_with("...").then_some(3)),
            '"' => (Token::Text, text_length(rest)),
            '-' | '0'..='9' => (Token::Number, number_length(rest)),
            'a'..='z' | 'A'..='Z' | '_' => {
                let length = rest.find(|char| !is_name(char)).unwrap_or(rest.len());
                (Token::Name(&rest[..length]), Some(length))
            }
            _ => (Token::End, None),
        };
        let wrong = || format!("`{first}` begins nothing that is understood at {}", self.place(self.began));
        self.at += length.ok_or_else(wrong)?;
        self.token = token;
        Ok(())
    }

    /// White space, commas and comments.
    fn skip_ignored(&mut self) {
        loop {
            let rest = &self.text[self.at..];
            let ignored = |char: char| matches!(char, ' ' | '\t' | '\n' | '\r' | ',' | '\u{feff}');
            let kept = rest.trim_start_matches(ignored);
            self.at += rest.len() - kept.len();
            if !kept.starts_with('#') {
                return;
            }
            self.at += kept.find(['\n', '\r']).unwrap_or(kept.len());
        }
    }
}

/// The length of the text at the beginning, quotes included.
fn text_length(text: &str) -> Option<usize> {
    if let Some(block) = text.strip_prefix("\"\"\"") {
        let mut from = 0;
        loop {
            let end = from + block[from..].find("\"\"\"")?;
            match block[..end].ends_with('\\') {
                true => from = end + 3,
                false => return Some(end + 6),
            }
        }
    }
    let mut is_escaped = false;
    for (at, char) in text.char_indices().skip(1) {
        match char {
            '\n' | '\r' => return None,
            _ if is_escaped => {
                if !matches!(char, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' | 'u') {
                    return None;
                }
                is_escaped = false;
            }
            '\\' => is_escaped = true,
            '"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// The length of the number at the beginning.
fn number_length(text: &str) -> Option<usize> {
    let digits = |text: &str| text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let mut at = usize::from(text.starts_with('-'));
    let whole = digits(&text[at..]);
    if whole == 0 || (whole > 1 && text[at..].starts_with('0')) {
        return None;
    }
    at += whole;
    if text[at..].starts_with('.') {
        let fraction = digits(&text[at + 1..]);
        at += (fraction > 0).then_some(fraction + 1)?;
    }
    if text[at..].starts_with(['e', 'E']) {
        at += 1 + usize::from(text[at + 1..].starts_with(['+', '-']));
        let exponent = digits(&text[at..]);
        at += (exponent > 0).then_some(exponent)?;
    }
    // `1a` is no number with a name behind it.
    let follows = text[at..].chars().next();
    follows.is_none_or(|char| !char.is_ascii_alphanumeric() && char != '_' && char != '.').then_some(at)
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

    proptest! {
        #[test]
        fn nothing_panics(parts in prop::collection::vec("[a{}()\\[\\]:$!@\"\\\\.0-9eé#, \n]{1,3}|query |fragment F on T ", 0..20)) {
            let _ = definitions(&parts.concat());
        }
    }
}
