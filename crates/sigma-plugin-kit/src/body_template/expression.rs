//! The expressions of templates: the part of Lua's expressions that reads values, and their evaluation.

use std::borrow::Cow;
use std::cell::Cell;

use serde_json::{Number, Value, json};
use sigma_schema::expr::VarName;

/// Bytes of text that count as one step.
const TEXT_OF_A_STEP: usize = 64;

/// An expression.
#[derive(Debug)]
pub(super) enum Expression {
    Constant(Value),
    Name(Box<str>),
    /// `_ctx.var.name`
    Variable(VarName),
    Member(Box<Expression>, Box<Expression>),
    Call(Function, Box<Expression>),
    Unary(Unary, Box<Expression>),
    Binary(Binary, Box<Expression>, Box<Expression>),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Function {
    EscapeJson,
    EscapeXml,
    Text,
    Number,
    Upper,
    Lower,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Unary {
    Not,
    Length,
    Minus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Or,
    And,
    Equal,
    Unequal,
    Less,
    AtMost,
    Greater,
    AtLeast,
    Join,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// The values that expressions refer to.
pub(super) struct Scope<'v> {
    /// The parsed body; its members are variables.
    pub(super) root: &'v Value,
    /// The body as it came.
    pub(super) body: &'v Value,
    pub(super) variable: &'v dyn Fn(&VarName) -> Option<String>,
    pub(super) locals: Vec<(&'v str, Cow<'v, Value>)>,
    /// Steps that are left.
    pub(super) steps: Cell<usize>,
    /// Bytes that any text may have.
    pub(super) most_text: usize,
}

static NIL: Value = Value::Null;

impl<'v> Scope<'v> {
    /// Spends a step, and the steps of a text.
    pub(super) fn spend(&self, text: usize) -> Result<(), String> {
        let left = self.steps.get().checked_sub(1 + text / TEXT_OF_A_STEP);
        self.steps.set(left.ok_or("the template takes too many steps")?);
        Ok(())
    }

    fn named(&self, name: &str) -> Result<Cow<'v, Value>, String> {
        if let Some((_, value)) = self.locals.iter().rev().find(|(known, _)| *known == name) {
            self.spend(value.as_str().map_or(0, str::len))?;
            return Ok(value.clone());
        }
        Ok(Cow::Borrowed(match name {
            "_body" => self.body,
            "_multipart" | "context" => self.root,
            // The name of a helper is reserved: a member of the body cannot replace it.
            "_ctx" | "_escape_json" | "_escape_xml" => &NIL,
            _ => self.root.get(name).unwrap_or(&NIL),
        }))
    }
}

impl Expression {
    pub(super) fn value<'v>(&self, scope: &Scope<'v>) -> Result<Cow<'v, Value>, String> {
        scope.spend(0)?;
        Ok(match self {
            Expression::Constant(value) => Cow::Owned(value.clone()),
            Expression::Name(name) => scope.named(name)?,
            Expression::Variable(name) => Cow::Owned((scope.variable)(name).map_or(Value::Null, Value::from)),
            Expression::Member(of, key) => member(of.value(scope)?, &*key.value(scope)?)?,
            Expression::Call(function, argument) => {
                Cow::Owned(function.apply(&*argument.value(scope)?, scope)?)
            }
            Expression::Unary(operator, operand) => Cow::Owned(operator.apply(&*operand.value(scope)?)?),
            Expression::Binary(Binary::Or, left, right) => {
                let left = left.value(scope)?;
                if is_true(&left) { left } else { right.value(scope)? }
            }
            Expression::Binary(Binary::And, left, right) => {
                let left = left.value(scope)?;
                if is_true(&left) { right.value(scope)? } else { left }
            }
            Expression::Binary(operator, left, right) => {
                let (left, right) = (left.value(scope)?, right.value(scope)?);
                Cow::Owned(operator.apply(&left, &right, scope)?)
            }
        })
    }
}

/// Returns true for everything but nil and false.
pub(super) fn is_true(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false))
}

/// Returns the text of a value.
pub(super) fn text_of(value: &Value) -> Result<Cow<'_, str>, String> {
    Ok(match value {
        Value::Null => Cow::Borrowed(""),
        Value::String(text) => Cow::Borrowed(text),
        Value::Bool(truth) => Cow::Borrowed(if *truth { "true" } else { "false" }),
        Value::Number(number) => Cow::Owned(number_text(number)),
        Value::Array(_) | Value::Object(_) => {
            return Err("a table cannot be written as text; use _escape_json(…)".to_owned());
        }
    })
}

/// Formats a number: whole numbers have no fraction; the others are as short as possible.
fn number_text(number: &Number) -> String {
    /// From here on, doubles are not all whole numbers.
    const WHOLE: f64 = 9e15;
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < WHOLE => {
            format!("{float:.0}")
        }
        _ => number.to_string(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) | Value::Object(_) => "table",
    }
}

/// Returns a member; the first one of a list is 1.
fn member<'v>(of: Cow<'v, Value>, key: &Value) -> Result<Cow<'v, Value>, String> {
    let at = |items: &[Value]| {
        let number = key.as_u64().or_else(|| key.as_f64().filter(|n| n.fract() == 0.0).map(|n| n as u64))?;
        usize::try_from(number).ok()?.checked_sub(1).filter(|at| *at < items.len())
    };
    let name = || match key {
        Value::String(name) => Some(Cow::Borrowed(&**name)),
        Value::Number(number) => Some(Cow::Owned(number_text(number))),
        _ => None,
    };
    let found = match &*of {
        Value::Array(items) => at(items).map(MemberKey::At),
        Value::Object(members) => name().filter(|name| members.contains_key(&**name)).map(MemberKey::Named),
        Value::String(_) => None,
        other => return Err(format!("attempt to index a {} value", kind(other))),
    };
    let inside = |value: &'v Value, place: &MemberKey<'_>| match place {
        MemberKey::At(at) => &value[*at],
        MemberKey::Named(name) => &value[&**name],
    };
    Ok(match (found, of) {
        (None, _) => Cow::Borrowed(&NIL),
        (Some(place), Cow::Borrowed(value)) => Cow::Borrowed(inside(value, &place)),
        (Some(MemberKey::At(at)), Cow::Owned(mut value)) => Cow::Owned(value[at].take()),
        (Some(MemberKey::Named(name)), Cow::Owned(mut value)) => Cow::Owned(value[&*name].take()),
    })
}

enum MemberKey<'k> {
    At(usize),
    Named(Cow<'k, str>),
}

fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok().filter(|number: &f64| number.is_finite()),
        _ => None,
    }
}

fn operand(value: &Value) -> Result<f64, String> {
    number_of(value).ok_or_else(|| format!("attempt to perform arithmetic on a {} value", kind(value)))
}

/// Returns a number; an infinite or undefined one, such as 1/0, is nil.
pub(super) fn number(float: f64) -> Value {
    const WHOLE: f64 = 9e15;
    if float.fract() == 0.0 && float.abs() < WHOLE { json!(float as i64) } else { json!(float) }
}

impl Function {
    fn apply(self, value: &Value, scope: &Scope<'_>) -> Result<Value, String> {
        let text = match self {
            Function::EscapeJson => value.to_string(),
            Function::Number => return Ok(number_of(value).map_or(Value::Null, number)),
            Function::Text if value.is_null() => "nil".to_owned(),
            Function::EscapeXml => escaped(&text_of(value)?, xml_entity),
            Function::Text => text_of(value)?.into_owned(),
            Function::Upper => text_of(value)?.to_ascii_uppercase(),
            Function::Lower => text_of(value)?.to_ascii_lowercase(),
        };
        limited(text, scope)
    }
}

fn limited(text: String, scope: &Scope<'_>) -> Result<Value, String> {
    scope.spend(text.len())?;
    if text.len() > scope.most_text {
        Err("a string exceeds the limit of the body".to_owned())
    } else {
        Ok(text.into())
    }
}

impl Unary {
    fn apply(self, value: &Value) -> Result<Value, String> {
        Ok(match (self, value) {
            (Unary::Not, value) => json!(!is_true(value)),
            (Unary::Minus, value) => number(-operand(value)?),
            (Unary::Length, Value::Array(items)) => json!(items.len()),
            (Unary::Length, Value::String(text)) => json!(text.len()),
            (Unary::Length, Value::Object(_)) => json!(0),
            (Unary::Length, other) => {
                return Err(format!("attempt to get length of a {} value", kind(other)));
            }
        })
    }
}

impl Binary {
    fn apply(self, left: &Value, right: &Value, scope: &Scope<'_>) -> Result<Value, String> {
        let compared = |holds: fn(std::cmp::Ordering) -> bool| {
            let order = match (left, right) {
                (Value::Number(left), Value::Number(right)) => {
                    left.as_f64().unwrap_or_default().partial_cmp(&right.as_f64().unwrap_or_default())
                }
                (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
                _ => return Err(format!("attempt to compare {} with {}", kind(left), kind(right))),
            };
            Ok(json!(order.is_some_and(holds)))
        };
        Ok(match self {
            Binary::Equal => json!(is_same(left, right)),
            Binary::Unequal => json!(!is_same(left, right)),
            Binary::Less => compared(|order| order.is_lt())?,
            Binary::AtMost => compared(|order| order.is_le())?,
            Binary::Greater => compared(|order| order.is_gt())?,
            Binary::AtLeast => compared(|order| order.is_ge())?,
            Binary::Join => limited([joined(left)?, joined(right)?].concat(), scope)?,
            Binary::Add => number(operand(left)? + operand(right)?),
            Binary::Subtract => number(operand(left)? - operand(right)?),
            Binary::Multiply => number(operand(left)? * operand(right)?),
            Binary::Divide => number(operand(left)? / operand(right)?),
            Binary::Remainder => {
                let (left, right) = (operand(left)?, operand(right)?);
                number(left - (left / right).floor() * right)
            }
            // They do not always evaluate their right side.
            Binary::Or | Binary::And => Value::Null,
        })
    }
}

/// Returns a value as a part of a longer text.
fn joined(value: &Value) -> Result<Cow<'_, str>, String> {
    match value {
        Value::String(_) | Value::Number(_) => text_of(value),
        other => Err(format!("attempt to concatenate a {} value", kind(other))),
    }
}

/// Compares scalars; a table equals only itself, and there is no second reference to it.
fn is_same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left == right || left.as_f64() == right.as_f64(),
        (Value::Array(_) | Value::Object(_), _) => false,
        (left, right) => left == right,
    }
}

/// Returns a text with some of its characters written as entities.
pub(super) fn escaped(text: &str, entity: fn(char) -> Option<&'static str>) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match entity(char) {
            Some(entity) => out.push_str(entity),
            None => out.push(char),
        }
    }
    out
}

fn xml_entity(char: char) -> Option<&'static str> {
    Some(match char {
        '&' => "&amp;",
        '<' => "&lt;",
        '>' => "&gt;",
        '\'' => "&apos;",
        '"' => "&quot;",
        _ => return None,
    })
}

/// Returns the entity of a character in HTML.
pub(super) fn html_entity(char: char) -> Option<&'static str> {
    Some(match char {
        '&' => "&amp;",
        '<' => "&lt;",
        '>' => "&gt;",
        '"' => "&quot;",
        '\'' => "&#39;",
        '/' => "&#47;",
        _ => return None,
    })
}
