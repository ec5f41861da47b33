//! Parses JSON to the tree.

use regex::bytes::{Regex, RegexBuilder};
use serde_json::Value;

use super::eval::number_of_text;
use super::window::Windows;
use super::{Compare, InvalidExpr, Logic, Node, Test, VarName};
use crate::cidr::{Cidr, CidrSet};

/// Maximum nesting, because evaluation is recursive.
const MAX_DEPTH: usize = 64;

/// Maximum compiled size of one regex in bytes, so that a short text cannot take much memory.
const MAX_REGEX_BYTES: usize = 1 << 20;

pub(super) fn rule(rule: &Value) -> Result<Node, InvalidExpr> {
    let Some(items) = rule.as_array() else {
        return invalid("rule should be a list");
    };
    match items.first() {
        None => Ok(Node::default()),
        Some(Value::Array(_)) => node(rule, 0),
        Some(Value::String(word)) if logic(word).is_some() => node(rule, 0),
        Some(_) => invalid("rule should be wrapped inside brackets"),
    }
}

fn invalid<T>(text: impl Into<String>) -> Result<T, InvalidExpr> {
    Err(InvalidExpr(text.into()))
}

fn logic(word: &str) -> Option<Logic> {
    let is = |name: &str| word.eq_ignore_ascii_case(name);
    match () {
        () if is("AND") => Some(Logic::And),
        () if is("OR") => Some(Logic::Or),
        () if is("!AND") => Some(Logic::NotAnd),
        () if is("!OR") => Some(Logic::NotOr),
        () => None,
    }
}

fn node(value: &Value, depth: usize) -> Result<Node, InvalidExpr> {
    if depth > MAX_DEPTH {
        return invalid(format!("rule is nested deeper than {MAX_DEPTH} levels"));
    }
    let Some(items) = value.as_array() else {
        return invalid(format!("rule should be wrapped inside brackets, but got {value}"));
    };
    let operands =
        |items: &[Value]| items.iter().map(|item| node(item, depth + 1)).collect::<Result<Vec<_>, _>>();
    match items.first() {
        Some(Value::Array(_)) => Ok(Node::Group(Logic::And, operands(items)?)),
        Some(Value::String(word)) => match logic(word) {
            Some(_) if items.len() < 3 => invalid("rule too short"),
            Some(logic) => Ok(Node::Group(logic, operands(&items[1..])?)),
            None => compare(word, &items[1..]).map(Node::Compare),
        },
        Some(other) => invalid(format!("variable name should be a string, but got {other}")),
        None => invalid("rule too short"),
    }
}

fn compare(name: &str, rest: &[Value]) -> Result<Compare, InvalidExpr> {
    let (negated, operator, constant) = match rest {
        [] => return invalid("rule too short"),
        [constant] => (false, "==", constant),
        [Value::String(operator), constant] if operator != "!" => (false, operator.as_str(), constant),
        [Value::String(not), Value::String(operator), constant] if not == "!" => {
            (true, operator.as_str(), constant)
        }
        [Value::String(not), ..] if not == "!" => {
            return invalid("bad 'not' expression");
        }
        [operator, ..] if !operator.is_string() => return invalid(format!("invalid operator '{operator}'")),
        _ => return invalid("invalid expression"),
    };
    let variable = VarName::parse(name);
    // An always absent variable would silently make the condition false, or true.
    if let Some(reason) = variable.why_absent() {
        return invalid(reason);
    }
    let test = test(operator, constant)?;
    if matches!(test, Test::Within(_)) && variable.is_time() && name != "msec" {
        return invalid(format!(
            "`within` needs the variable `msec` (milliseconds since 1970), not `{name}`"
        ));
    }
    Ok(Compare { variable, negated, test })
}

fn test(operator: &str, constant: &Value) -> Result<Test, InvalidExpr> {
    Ok(match operator.to_ascii_lowercase().as_str() {
        "==" => Test::Equal(constant.clone()),
        "~=" => Test::NotEqual(constant.clone()),
        ">" => Test::Greater(number_of(constant)),
        ">=" => Test::GreaterOrEqual(number_of(constant)),
        "<" => Test::Less(number_of(constant)),
        "<=" => Test::LessOrEqual(number_of(constant)),
        "~~" => Test::Matches(regex(constant, false)?),
        "~*" => Test::Matches(regex(constant, true)?),
        "in" => match constant {
            Value::Array(items) => Test::In(items.clone()),
            _ => return invalid(format!("`in` needs a list, but got {constant}")),
        },
        "has" => Test::Has(constant.clone()),
        "ipmatch" => Test::IpMatch(networks(constant)?),
        "within" => Test::Within(windows(constant)?),
        _ => return invalid(format!("invalid operator '{operator}'")),
    })
}

/// Returns a constant as `tonumber` converts it. A comparison with any other value is false.
fn number_of(constant: &Value) -> Option<f64> {
    match constant {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => number_of_text(text.as_bytes()),
        _ => None,
    }
}

fn regex(constant: &Value, ignore_case: bool) -> Result<Regex, InvalidExpr> {
    let Some(pattern) = constant.as_str() else {
        return invalid(format!("a regex should be a string, but got {constant}"));
    };
    let build = |unicode: bool| {
        RegexBuilder::new(pattern)
            .case_insensitive(ignore_case)
            .unicode(unicode)
            .size_limit(MAX_REGEX_BYTES)
            .build()
    };
    // Bytes first, as PCRE does without its UTF flag; only `\p{…}` and the like need Unicode.
    build(false)
        .or_else(|_| build(true))
        .map_err(|error| InvalidExpr(format!("invalid regex `{pattern}`: {error}")))
}

fn windows(constant: &Value) -> Result<Windows, InvalidExpr> {
    let items = match constant {
        Value::Array(items) => items.as_slice(),
        single => std::slice::from_ref(single),
    };
    let texts: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
    match texts {
        Some(texts) => Windows::parse(texts).map_err(InvalidExpr),
        None => invalid(format!(
            "`within` needs times such as \"Mon-Fri 09:00-17:30 +01:00\", but got {constant}"
        )),
    }
}

fn networks(constant: &Value) -> Result<CidrSet, InvalidExpr> {
    let items = match constant {
        Value::Array(items) => items.as_slice(),
        single => std::slice::from_ref(single),
    };
    items
        .iter()
        .map(|item| match item.as_str() {
            Some(text) => text.parse::<Cidr>().map_err(|error| InvalidExpr(error.to_string())),
            None => invalid(format!("`ipmatch` needs addresses or networks, but got {item}")),
        })
        .collect()
}
