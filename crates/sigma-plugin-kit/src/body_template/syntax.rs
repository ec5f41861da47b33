//! The syntax of expressions and statements.

use serde_json::{Number, Value};
use sigma_schema::expr::VarName;

use super::expression::{Binary, Expression, Function, Unary, number};

/// Expressions nested in each other.
const MAX_DEPTH: usize = 50;

/// Words and signs of one expression: each may be a call within another when it is evaluated.
const MAX_TOKENS: usize = 1000;

/// A piece of a statement or an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Word(String),
    Text(String),
    Number(Number),
    Symbol(&'static str),
}

/// Longer ones first.
const SYMBOLS: [&str; 26] = [
    "..", "==", "~=", "<=", ">=", "<", ">", "=", "+", "-", "*", "/", "%", "#", "(", ")", "[", "]", ".", ",",
    ";", "{", "}", ":", "^", "&",
];

/// The tokens of a text, the last one first.
pub(super) struct Tokens(Vec<Token>);

impl Tokens {
    pub(super) fn of(text: &str) -> Result<Tokens, String> {
        let mut tokens = Vec::new();
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = match first {
                'a'..='z' | 'A'..='Z' | '_' => {
                    let is_word = |char: char| char.is_ascii_alphanumeric() || char == '_';
                    let end = rest.find(|char| !is_word(char)).unwrap_or(rest.len());
                    tokens.push(Token::Word(rest[..end].to_owned()));
                    end
                }
                '0'..='9' => {
                    let is_number = |char: char| char.is_ascii_alphanumeric() || char == '.';
                    let mut end = rest.find(|char| !is_number(char)).unwrap_or(rest.len());
                    // `1..x` joins.
                    end = rest[..end].find("..").unwrap_or(end);
                    let parsed = rest[..end].parse::<f64>().ok().filter(|parsed| parsed.is_finite());
                    let parsed = parsed.ok_or_else(|| format!("`{}` is not a number", &rest[..end]))?;
                    if let Value::Number(number) = number(parsed) {
                        tokens.push(Token::Number(number));
                    }
                    end
                }
                '"' | '\'' => {
                    let (text, end) = quoted(rest, first)?;
                    tokens.push(Token::Text(text));
                    end
                }
                _ => {
                    let symbol = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol));
                    let symbol = symbol.ok_or_else(|| format!("unexpected `{first}`"))?;
                    tokens.push(Token::Symbol(symbol));
                    symbol.len()
                }
            };
            rest = rest[length..].trim_start();
        }
        if tokens.len() > MAX_TOKENS {
            return Err(format!("more than {MAX_TOKENS} tokens; split the expression"));
        }
        tokens.reverse();
        Ok(Tokens(tokens))
    }

    pub(super) fn next(&mut self) -> Option<Token> {
        self.0.pop()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes a word or a symbol, if it is the next one.
    pub(super) fn take(&mut self, expected: &str) -> bool {
        let is_next = match self.0.last() {
            Some(Token::Word(word)) => word == expected,
            Some(Token::Symbol(symbol)) => *symbol == expected,
            _ => false,
        };
        if is_next {
            self.0.pop();
        }
        is_next
    }

    pub(super) fn expect(&mut self, expected: &str) -> Result<(), String> {
        if self.take(expected) { Ok(()) } else { Err(format!("`{expected}` is missing{}", self.before())) }
    }

    pub(super) fn name(&mut self) -> Result<String, String> {
        const KEYWORDS: [&str; 14] = [
            "and", "or", "not", "nil", "true", "false", "if", "then", "else", "elseif", "end", "for", "in",
            "do",
        ];
        match self.next() {
            Some(Token::Word(word)) if !KEYWORDS.contains(&&*word) => Ok(word),
            Some(other) => {
                self.0.push(other);
                Err(format!("a name is missing{}", self.before()))
            }
            None => Err("a name is missing at the end".to_owned()),
        }
    }

    fn before(&self) -> String {
        match self.0.last() {
            None => " at the end".to_owned(),
            Some(Token::Word(text)) => format!(" before `{text}`"),
            Some(Token::Text(text)) => format!(" before {text:?}"),
            Some(Token::Number(number)) => format!(" before `{number}`"),
            Some(Token::Symbol(symbol)) => format!(" before `{symbol}`"),
        }
    }

    pub(super) fn expression(&mut self) -> Result<Expression, String> {
        self.binary(0, 0)
    }

    /// Parses operators of this level and those that bind closer.
    fn binary(&mut self, level: usize, depth: usize) -> Result<Expression, String> {
        if depth > MAX_DEPTH {
            return Err(format!("expressions are nested deeper than {MAX_DEPTH}"));
        }
        let Some(operators) = LEVELS.get(level) else { return self.unary(depth + 1) };
        let mut left = self.binary(level + 1, depth)?;
        while let Some((_, operator)) = operators.iter().find(|(word, _)| self.take(word)) {
            let right = self.binary(level + 1, depth)?;
            left = Expression::Binary(*operator, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn unary(&mut self, depth: usize) -> Result<Expression, String> {
        for (word, operator) in [("not", Unary::Not), ("#", Unary::Length), ("-", Unary::Minus)] {
            if self.take(word) {
                if depth > MAX_DEPTH {
                    return Err(format!("expressions are nested deeper than {MAX_DEPTH}"));
                }
                return Ok(Expression::Unary(operator, Box::new(self.unary(depth + 1)?)));
            }
        }
        self.primary(depth)
    }

    fn primary(&mut self, depth: usize) -> Result<Expression, String> {
        let mut value = match self.next() {
            Some(Token::Text(text)) => Expression::Constant(text.into()),
            Some(Token::Number(number)) => Expression::Constant(number.into()),
            Some(Token::Symbol("(")) => {
                let inner = self.binary(0, depth)?;
                self.expect(")")?;
                inner
            }
            Some(Token::Word(word)) => match &*word {
                "nil" => Expression::Constant(Value::Null),
                "true" => Expression::Constant(Value::Bool(true)),
                "false" => Expression::Constant(Value::Bool(false)),
                "_ctx" => self.variable()?,
                _ => {
                    self.0.push(Token::Word(word));
                    Expression::Name(self.name()?.into())
                }
            },
            Some(other) => {
                self.0.push(other);
                return Err(format!("a value is missing{}", self.before()));
            }
            None => return Err("a value is missing at the end".to_owned()),
        };
        for _ in 0..MAX_DEPTH {
            if self.take(".") {
                let name = self.name()?;
                value = Expression::Member(Box::new(value), Box::new(Expression::Constant(name.into())));
            } else if self.take("[") {
                let key = self.binary(0, depth)?;
                self.expect("]")?;
                value = Expression::Member(Box::new(value), Box::new(key));
            } else if self.take("(") {
                let argument = self.binary(0, depth)?;
                self.expect(")")?;
                value = Expression::Call(function(&value)?, Box::new(argument));
            } else {
                return Ok(value);
            }
        }
        Err(format!("members are nested deeper than {MAX_DEPTH}"))
    }

    /// Parses the rest after `_ctx`.
    fn variable(&mut self) -> Result<Expression, String> {
        const WRONG: &str = "`_ctx` has only `_ctx.var.NAME`";
        let is_var = self.take(".") && self.take("var");
        let name = match (is_var, self.next()) {
            (true, Some(Token::Symbol("."))) => self.name()?,
            (true, Some(Token::Symbol("["))) => match (self.next(), self.take("]")) {
                (Some(Token::Text(name)), true) => name,
                _ => return Err(WRONG.to_owned()),
            },
            _ => return Err(WRONG.to_owned()),
        };
        Ok(Expression::Variable(VarName::parse(&name)))
    }
}

/// Operators by how close they bind, the loosest first.
const LEVELS: [&[(&str, Binary)]; 6] = [
    &[("or", Binary::Or)],
    &[("and", Binary::And)],
    &[
        ("==", Binary::Equal),
        ("~=", Binary::Unequal),
        ("<=", Binary::AtMost),
        (">=", Binary::AtLeast),
        ("<", Binary::Less),
        (">", Binary::Greater),
    ],
    &[("..", Binary::Join)],
    &[("+", Binary::Add), ("-", Binary::Subtract)],
    &[("*", Binary::Multiply), ("/", Binary::Divide), ("%", Binary::Remainder)],
];

fn function(called: &Expression) -> Result<Function, String> {
    const KNOWN: &str = "use _escape_json, _escape_xml, tostring, tonumber, string.upper or string.lower";
    let name = match called {
        Expression::Name(name) => name.to_string(),
        Expression::Member(of, key) => match (&**of, &**key) {
            (Expression::Name(of), Expression::Constant(Value::String(key))) => format!("{of}.{key}"),
            _ => return Err(format!("a value is not a function; {KNOWN}")),
        },
        _ => return Err(format!("a value is not a function; {KNOWN}")),
    };
    Ok(match &*name {
        "_escape_json" => Function::EscapeJson,
        "_escape_xml" => Function::EscapeXml,
        "tostring" => Function::Text,
        "tonumber" => Function::Number,
        "string.upper" => Function::Upper,
        "string.lower" => Function::Lower,
        _ => return Err(format!("unknown function `{name}`; {KNOWN}")),
    })
}

/// Returns the text in quotes at the beginning, and its length with the quotes.
fn quoted(text: &str, quote: char) -> Result<(String, usize), String> {
    let mut out = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, char)) = chars.next() {
        match char {
            _ if char == quote => return Ok((out, at + 1)),
            '\\' => out.push(match chars.next() {
                Some((_, 'n')) => '\n',
                Some((_, 'r')) => '\r',
                Some((_, 't')) => '\t',
                Some((_, char @ ('\\' | '"' | '\''))) => char,
                _ => return Err("a string has an unknown escape".to_owned()),
            }),
            _ => out.push(char),
        }
    }
    Err("a string is not closed".to_owned())
}
