//! Expressions of matchers, the part of CEL that files use: `&&`, `||`, `!`, comparisons, and calls of matchers.

use serde_json::{Value, json};

use super::matcher::{Condition, all, any, header_variable, range, regex};
use super::text::Variables;

/// Maximum nesting of an expression.
const MAX_DEPTH: usize = 32;

/// Returns the condition of an expression.
pub(super) fn condition(text: &str, variables: &mut Variables) -> Result<Condition, String> {
    let mut parser = Parser { rest: text, variables, depth: 0 };
    let condition = parser.or()?;
    parser.space();
    match parser.rest.is_empty() {
        true => Ok(condition),
        false => Err(format!("the expression `{text}` is not converted")),
    }
}

struct Parser<'a> {
    rest: &'a str,
    variables: &'a mut Variables,
    depth: usize,
}

/// A side of a comparison.
enum Operand {
    /// The name of a variable.
    Variable(String),
    Text(String),
    List(Vec<Value>),
}

impl Parser<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, text: &str) -> bool {
        self.space();
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn unknown<T>(&self) -> Result<T, String> {
        let near: String = self.rest.chars().take(30).collect();
        Err(format!("the expression at `{near}` is not converted"))
    }

    fn or(&mut self) -> Result<Condition, String> {
        let mut parts = vec![self.and()?];
        while self.eat("||") {
            parts.push(self.and()?);
        }
        Ok(any(parts))
    }

    fn and(&mut self) -> Result<Condition, String> {
        let mut parts = vec![self.term()?];
        while self.eat("&&") {
            parts.push(self.term()?);
        }
        Ok(all(parts))
    }

    fn term(&mut self) -> Result<Condition, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("the expression is nested deeper than {MAX_DEPTH} levels"));
        }
        self.space();
        let result = if self.rest.starts_with('!') && !self.rest.starts_with("!=") {
            self.rest = &self.rest[1..];
            Condition::Not(Box::new(self.term()?))
        } else if self.eat("(") {
            let inner = self.or()?;
            if !self.eat(")") {
                return self.unknown();
            }
            inner
        } else if self.rest.starts_with(|char: char| char.is_ascii_alphabetic()) {
            self.call()?
        } else {
            self.comparison()?
        };
        self.depth -= 1;
        Ok(result)
    }

    /// `path('/a', '/b')`, `header({'X': 'y'})` and the like.
    fn call(&mut self) -> Result<Condition, String> {
        let end = self.rest.find('(').unwrap_or(0);
        let name = self.rest[..end].trim().to_owned();
        self.rest = &self.rest[end + 1..];
        let mut texts = Vec::new();
        let mut pairs = Vec::new();
        while !self.eat(")") {
            if self.eat("{") {
                while !self.eat("}") {
                    let key = self.text()?;
                    if !self.eat(":") {
                        return self.unknown();
                    }
                    let values = if self.eat("[") { self.list()? } else { vec![Value::String(self.text()?)] };
                    pairs.push((key, values));
                    self.eat(",");
                }
            } else {
                texts.push(self.text()?);
            }
            if !self.eat(",") && !self.rest.trim_start().starts_with(')') {
                return self.unknown();
            }
        }
        let last = texts.last().cloned().unwrap_or_default();
        match name.as_str() {
            "path" => Ok(any(texts.into_iter().map(Condition::Path).collect())),
            "path_regexp" => {
                let pattern = regex(&last)?;
                let label = if texts.len() > 1 { texts[0].clone() } else { String::new() };
                self.variables.groups(&label, "$uri", &pattern);
                Ok(Condition::PathRegex(pattern))
            }
            "host" => Ok(Condition::Hosts(texts)),
            "method" => Ok(Condition::Methods(texts)),
            "remote_ip" | "client_ip" => {
                let ranges: Vec<String> = texts.iter().flat_map(|text| range(text)).collect();
                Ok(Condition::Variable(json!(["remote_addr", "ipmatch", ranges])))
            }
            "header" => {
                let mut parts = Vec::new();
                for (key, values) in pairs {
                    parts.push(Condition::Variable(json!([header_variable(&key)?, "in", values])));
                }
                Ok(all(parts))
            }
            "query" => {
                let parts = pairs.into_iter().map(|(key, values)| {
                    let any = values.iter().any(|value| value == "*");
                    let name = format!("arg_{key}");
                    Condition::Variable(if any {
                        json!([name, "~=", null])
                    } else {
                        json!([name, "in", values])
                    })
                });
                Ok(all(parts.collect()))
            }
            "header_regexp" if texts.len() >= 2 => {
                let field = header_variable(&texts[texts.len() - 2])?;
                Ok(Condition::Variable(json!([field, "~~", regex(&last)?])))
            }
            "protocol" => Ok(Condition::Variable(json!(["scheme", "==", last]))),
            _ => Err(format!("the function `{name}` of an expression is not converted")),
        }
    }

    fn comparison(&mut self) -> Result<Condition, String> {
        let left = self.operand()?;
        let Operand::Variable(name) = left else { return self.unknown() };
        for method in [".startsWith(", ".endsWith(", ".contains(", ".matches("] {
            if self.eat(method) {
                let text = self.text()?;
                if !self.eat(")") {
                    return self.unknown();
                }
                let pattern = match method {
                    ".startsWith(" => format!("^{}", regex::escape(&text)),
                    ".endsWith(" => format!("{}$", regex::escape(&text)),
                    ".contains(" => regex::escape(&text),
                    _ => regex(&text)?,
                };
                return Ok(Condition::Variable(json!([name, "~~", pattern])));
            }
        }
        for operator in ["==", "!=", ">=", "<=", ">", "<", "in "] {
            if self.eat(operator) {
                let value = match self.operand()? {
                    Operand::Text(text) => json!(text),
                    Operand::List(list) => Value::Array(list),
                    Operand::Variable(_) => return self.unknown(),
                };
                let operator = match operator {
                    "!=" => "~=",
                    "in " => "in",
                    other => other,
                };
                return Ok(Condition::Variable(json!([name, operator, value])));
            }
        }
        self.unknown()
    }

    fn operand(&mut self) -> Result<Operand, String> {
        self.space();
        if self.eat("[") {
            return self.list().map(Operand::List);
        }
        if let Some(rest) = self.rest.strip_prefix('{') {
            let Some((name, after)) = rest.split_once('}') else { return self.unknown() };
            let variable = self.variables.name(name).filter(|name| !name.contains('$'));
            let variable =
                variable.ok_or_else(|| format!("the placeholder `{{{name}}}` has no counterpart"))?;
            self.rest = after;
            return Ok(Operand::Variable(variable));
        }
        self.text().map(Operand::Text)
    }

    fn list(&mut self) -> Result<Vec<Value>, String> {
        let mut items = Vec::new();
        while !self.eat("]") {
            items.push(Value::String(self.text()?));
            if !self.eat(",") && !self.rest.trim_start().starts_with(']') {
                return self.unknown();
            }
        }
        Ok(items)
    }

    /// A text in quotes, or a number.
    fn text(&mut self) -> Result<String, String> {
        self.space();
        let Some(quote) = self.rest.chars().next() else { return self.unknown() };
        if quote == '\'' || quote == '"' || quote == '`' {
            let Some((text, after)) = self.rest[1..].split_once(quote) else { return self.unknown() };
            self.rest = after;
            return Ok(text.replace("\\\\", "\\"));
        }
        let end =
            self.rest.find(|char: char| !(char.is_ascii_digit() || char == '.')).unwrap_or(self.rest.len());
        if end == 0 {
            return self.unknown();
        }
        let (number, after) = self.rest.split_at(end);
        self.rest = after;
        Ok(number.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        let mut variables = Variables::default();
        let found = condition("{err.status_code} == 404 && !path('/a*')", &mut variables).unwrap();
        let expected = Condition::All(vec![
            Condition::Variable(json!(["status", "==", "404"])),
            Condition::Not(Box::new(Condition::Path("/a*".to_owned()))),
        ]);
        assert_eq!(found, expected);
        let found = condition("{err.status_code} in [404, 410]", &mut variables).unwrap();
        assert_eq!(found, Condition::Variable(json!(["status", "in", ["404", "410"]])));
        for text in ["", "x", "{a.b} == 1", "path('/a'", "1 + 1 == 2"] {
            assert!(condition(text, &mut variables).is_err(), "{text}");
        }
    }
}
