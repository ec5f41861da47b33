//! The parser of executable documents.

use super::{Argument, ArgumentValue, Defined, Definition, Document, Fragment, Operation, SelectionKind};

/// The limit of nested selections, values or types.
const MAX_DEPTH: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'t> {
    Punctuator(char),
    Spread,
    Name(&'t str),
    Number,
    Text,
    End,
}

/// A parser of a text from its beginning to its end.
pub(super) struct Parser<'t> {
    text: &'t str,
    /// The end of the token.
    at: usize,
    token: Token<'t>,
    /// The start of the token.
    began: usize,
    depth: usize,
    pub(super) found: Vec<Definition>,
    /// The selections; None if they are not kept.
    pub(super) kept: Option<Document<'t>>,
    /// The document is larger or deeper than the limits.
    pub(super) is_full: bool,
}

impl<'t> Parser<'t> {
    /// Returns a parser for a text; selections go into `kept`.
    pub(super) fn new(text: &'t str, kept: Option<Document<'t>>) -> Parser<'t> {
        let found = Vec::new();
        Parser { text, at: 0, token: Token::End, began: 0, depth: 0, found, kept, is_full: false }
    }

    /// Parses the whole text.
    ///
    /// # Errors
    /// Returns an error message with the position if the document is invalid.
    pub(super) fn document(&mut self) -> Result<(), String> {
        self.advance()?;
        while self.token != Token::End {
            let definition = self.definition()?;
            self.found.push(definition);
        }
        if self.found.is_empty() { Err("the document is empty".to_owned()) } else { Ok(()) }
    }

    /// Counts one more kept item.
    fn take_room(&mut self) -> Result<(), String> {
        let Some(kept) = &mut self.kept else { return Ok(()) };
        match kept.room.checked_sub(1) {
            Some(room) => kept.room = room,
            None => {
                self.is_full = true;
                return Err("the document has too many tokens".to_owned());
            }
        }
        Ok(())
    }

    fn selections_kept(&self) -> u32 {
        self.kept.as_ref().map_or(0, |kept| kept.selections.len() as u32)
    }

    fn definition(&mut self) -> Result<Definition, String> {
        let operation = match self.token {
            Token::Name("mutation") => Operation::Mutation,
            Token::Name("subscription") => Operation::Subscription,
            _ => Operation::Query,
        };
        match self.token {
            Token::Punctuator('{') => {
                self.operation(operation, None)?;
                Ok(Definition::Operation(operation, None))
            }
            Token::Name("query" | "mutation" | "subscription") => {
                self.advance()?;
                let name = self.name_if_any()?;
                self.operation(operation, name)?;
                Ok(Definition::Operation(operation, name.map(str::to_owned)))
            }
            Token::Name("fragment") => {
                self.advance()?;
                if self.token == Token::Name("on") {
                    return Err(self.unexpected());
                }
                self.fragment()?;
                Ok(Definition::Fragment)
            }
            _ => Err(self.unexpected()),
        }
    }

    /// Parses an operation, from its variables on.
    fn operation(&mut self, operation: Operation, name: Option<&'t str>) -> Result<(), String> {
        self.take_room()?;
        if let Some(kept) = &mut self.kept {
            let selections = 0..0;
            kept.operations.push(Defined { operation, name, variables: Vec::new(), selections });
        }
        if self.token == Token::Punctuator('(') {
            self.list('(', ')', Self::variable_definition)?;
        }
        self.directives()?;
        let from = self.selections_kept();
        self.selections()?;
        let to = self.selections_kept();
        if let Some(defined) = self.kept.as_mut().and_then(|kept| kept.operations.last_mut()) {
            defined.selections = from..to;
        }
        Ok(())
    }

    /// Parses a fragment, from its name on.
    fn fragment(&mut self) -> Result<(), String> {
        self.take_room()?;
        let began = self.began;
        let name = self.name()?;
        self.keyword("on")?;
        let on = self.name()?;
        self.directives()?;
        let from = self.selections_kept();
        self.selections()?;
        let selections = from..self.selections_kept();
        let fragments = self.kept.as_mut().map(|kept| &mut kept.fragments);
        if fragments.and_then(|known| known.insert(name, Fragment { on, selections })).is_some() {
            return Err(format!("a second fragment `{name}` at {}", self.place(began)));
        }
        Ok(())
    }

    fn selections(&mut self) -> Result<(), String> {
        self.nested(|parser| parser.list('{', '}', Self::selection))
    }

    fn selection(&mut self) -> Result<(), String> {
        self.take_room()?;
        if self.token != Token::Spread {
            return self.field();
        }
        self.advance()?;
        let (kind, has_more) = match self.token {
            Token::Name("on") => {
                self.advance()?;
                (SelectionKind::Inline(Some(self.name()?)), true)
            }
            Token::Name(name) => {
                self.advance()?;
                (SelectionKind::Spread(name), false)
            }
            _ => (SelectionKind::Inline(None), true),
        };
        let at = self.kept.as_mut().map(|kept| kept.select(kind));
        self.directives()?;
        if has_more {
            self.selections()?;
        }
        self.end(at);
        Ok(())
    }

    fn field(&mut self) -> Result<(), String> {
        let mut name = self.name()?;
        if self.token == Token::Punctuator(':') {
            self.advance()?;
            name = self.name()?;
        }
        let at = self.kept.as_mut().map(|kept| kept.select(SelectionKind::Field(name)));
        if self.token == Token::Punctuator('(') {
            self.list('(', ')', Self::argument)?;
        }
        if let Some((at, kept)) = at.zip(self.kept.as_mut()) {
            kept.selections[at].arguments.end = kept.arguments.len() as u32;
        }
        self.directives()?;
        if self.token == Token::Punctuator('{') {
            self.selections()?;
        }
        self.end(at);
        Ok(())
    }

    /// Ends the selection at `at`: later ones are not nested in it.
    fn end(&mut self, at: Option<usize>) {
        if let Some((at, kept)) = at.zip(self.kept.as_mut()) {
            kept.selections[at].end = kept.selections.len() as u32;
        }
    }

    /// Parses an argument of a field.
    fn argument(&mut self) -> Result<(), String> {
        self.take_room()?;
        let name = self.name()?;
        self.expect(':')?;
        let value = self.argument_value()?;
        if let Some(kept) = &mut self.kept {
            kept.arguments.push(Argument { name, value });
        }
        Ok(())
    }

    /// Parses a value.
    fn argument_value(&mut self) -> Result<ArgumentValue<'t>, String> {
        let value = match self.token {
            Token::Number => {
                // A number of GraphQL is also a number of Rust.
                let number = self.text[self.began..self.at].parse();
                number.map_or(ArgumentValue::Other, ArgumentValue::Number)
            }
            Token::Punctuator('$') => {
                self.advance()?;
                return self.name().map(ArgumentValue::Variable);
            }
            _ => ArgumentValue::Other,
        };
        self.value().map(|()| value)
    }

    /// Parses the arguments of a directive, which are not kept.
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
        self.take_room()?;
        self.expect('$')?;
        let name = self.name()?;
        self.expect(':')?;
        self.type_reference()?;
        let mut default = None;
        if self.token == Token::Punctuator('=') {
            self.advance()?;
            if let ArgumentValue::Number(number) = self.argument_value()? {
                default = Some(number);
            }
        }
        if let Some(defined) = self.kept.as_mut().and_then(|kept| kept.operations.last_mut()) {
            defined.variables.push((name, default));
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

    /// Parses one or more items.
    fn list(
        &mut self,
        open: char,
        close: char,
        item: fn(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        self.expect(open)?;
        if self.token == Token::Punctuator(close) {
            return Err(format!("empty `{open}` `{close}` at {}", self.place(self.began)));
        }
        self.until(close, item)
    }

    /// Parses any number of items.
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
            self.is_full = true;
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

    /// Returns line and column of a byte.
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
        let wrong = || format!("unexpected `{first}` at {}", self.place(self.began));
        self.at += length.ok_or_else(wrong)?;
        self.token = token;
        Ok(())
    }

    /// Skips white space, commas and comments.
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

/// Returns the length of the string at the beginning, quotes included.
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

/// Returns the length of the number at the beginning.
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
    // `1a` is not a number and a name.
    let follows = text[at..].chars().next();
    follows.is_none_or(|char| !char.is_ascii_alphanumeric() && char != '_' && char != '.').then_some(at)
}
