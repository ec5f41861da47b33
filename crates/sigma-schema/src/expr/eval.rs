//! Evaluates conditions. Only reading a variable may allocate.

use std::borrow::Cow;
use std::cell::Cell;
use std::net::IpAddr;

use serde_json::Value;

use super::{Compare, Logic, Node, Test, VarName, VarValue, Variables};

/// How a condition reads variables.
pub(super) struct Reading<'v> {
    variables: &'v dyn Variables,
    /// Variables whose absence leaves a comparison undecided.
    undecided: fn(&VarName) -> bool,
    /// Each value of a variable counts. A comparison whose result differs between them is undecided.
    takes_all: bool,
    disagrees: Cell<bool>,
}

impl<'v> Reading<'v> {
    /// Reads one value of each variable. A comparison with an unknown location of an address is undecided.
    pub(super) fn plain(variables: &'v dyn Variables) -> Reading<'v> {
        let undecided = VarName::is_place;
        Reading { variables, undecided, takes_all: false, disagrees: Cell::new(false) }
    }

    /// Reads all values of each variable.
    pub(super) fn of_all_values(
        variables: &'v dyn Variables,
        undecided: fn(&VarName) -> bool,
    ) -> Reading<'v> {
        Reading { variables, undecided, takes_all: true, disagrees: Cell::new(false) }
    }

    /// Returns whether a comparison had different results for the values of its variable.
    pub(super) fn disagrees(&self) -> bool {
        self.disagrees.get()
    }
}

impl Node {
    /// Returns whether the condition holds, or None where it is undecided (Kleene's logic).
    pub(super) fn decide(&self, reading: &Reading<'_>) -> Option<bool> {
        let (stops_at, negated, operands) = match self {
            Node::Compare(compare) => return compare.decide(reading),
            Node::Group(Logic::And, operands) => (false, false, operands),
            Node::Group(Logic::Or, operands) => (true, false, operands),
            Node::Group(Logic::NotAnd, operands) => (false, true, operands),
            Node::Group(Logic::NotOr, operands) => (true, true, operands),
        };
        let mut result = Some(!stops_at);
        for operand in operands {
            match operand.decide(reading) {
                Some(holds) if holds == stops_at => return Some(stops_at != negated),
                Some(_) => {}
                None => result = None,
            }
        }
        result.map(|holds| holds != negated)
    }
}

impl Compare {
    fn decide(&self, reading: &Reading<'_>) -> Option<bool> {
        if reading.takes_all && self.variable.may_repeat() {
            return self.decide_all(reading);
        }
        let value = reading.variables.get(&self.variable);
        if value.is_none() && !self.test.asks_for_absence() && (reading.undecided)(&self.variable) {
            return None;
        }
        Some(self.test.holds(value.as_ref()) != self.negated)
    }

    /// Does the same for each value: a node may take the first, the last, any of them, or all as one text.
    fn decide_all(&self, reading: &Reading<'_>) -> Option<bool> {
        let (mut held, mut failed, mut count) = (false, false, 0);
        let is_field = matches!(self.variable, VarName::Http(_));
        reading.variables.each(&self.variable, &mut |value| {
            count += 1;
            let holds = self.test.holds(Some(value));
            (held, failed) = (held || holds, failed || !holds);
            // Lines of one name and items of one line are the same list (RFC 9110 §5.3).
            if is_field && self.test.meets_item(value) {
                let holds = self.test.is_positive();
                (held, failed) = (held || holds, failed || !holds);
            }
        });
        if count != 1 {
            let value = reading.variables.get(&self.variable);
            if value.is_none() && !self.test.asks_for_absence() && (reading.undecided)(&self.variable) {
                return None;
            }
            let holds = self.test.holds(value.as_ref());
            (held, failed) = (held || holds, failed || !holds);
        }
        if held && failed {
            reading.disagrees.set(true);
            return None;
        }
        Some(held != self.negated)
    }
}

impl Test {
    /// Returns whether the comparison tests for absence.
    fn asks_for_absence(&self) -> bool {
        matches!(self, Test::Equal(Value::Null) | Test::NotEqual(Value::Null))
    }

    /// Returns whether the comparison holds for its constant, rather than for all other values.
    fn is_positive(&self) -> bool {
        !matches!(self, Test::NotEqual(_))
    }

    /// Returns whether an item of a comma-separated list matches the constant.
    fn meets_item(&self, value: &VarValue<'_>) -> bool {
        let VarValue::Text(list) = value else { return false };
        if !list.contains(&b',') {
            return false;
        }
        let items = list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|item| !item.is_empty());
        let mut values = items.map(|item| VarValue::Text(Cow::Borrowed(item)));
        values.any(|item| self.holds(Some(&item)) == self.is_positive())
    }

    fn holds(&self, left: Option<&VarValue<'_>>) -> bool {
        match self {
            Test::Equal(constant) => equal(left, constant),
            Test::NotEqual(constant) => !equal(left, constant),
            Test::Greater(constant) => ordered(left, *constant, |l, r| l > r),
            Test::GreaterOrEqual(constant) => ordered(left, *constant, |l, r| l >= r),
            Test::Less(constant) => ordered(left, *constant, |l, r| l < r),
            Test::LessOrEqual(constant) => ordered(left, *constant, |l, r| l <= r),
            Test::Matches(regex) => text(left).is_some_and(|text| regex.is_match(text)),
            Test::In(constants) => left.is_some_and(|left| constants.iter().any(|c| identical(left, c))),
            Test::Has(constant) => has(left, constant),
            Test::IpMatch(networks) => address(left).is_some_and(|ip| networks.contains(ip)),
            Test::Within(windows) => {
                let seconds = text(left).and_then(number_of_text);
                seconds.is_some_and(|seconds| windows.hold((seconds * 1000.0) as i64))
            }
        }
    }
}

fn text<'a>(value: Option<&'a VarValue<'_>>) -> Option<&'a [u8]> {
    match value {
        Some(VarValue::Text(text)) => Some(text),
        _ => None,
    }
}

/// `==`: numbers compare as numbers; other values must have the same type and value.
fn equal(left: Option<&VarValue<'_>>, constant: &Value) -> bool {
    match (left, constant) {
        (None, constant) => constant.is_null(),
        (Some(_), Value::Number(number)) => {
            text(left).and_then(number_of_text).is_some_and(|left| Some(left) == number.as_f64())
        }
        (Some(left), constant) => identical(left, constant),
    }
}

/// Returns whether type and value are the same. A text is never identical to a number.
fn identical(left: &VarValue<'_>, constant: &Value) -> bool {
    match (left, constant) {
        (VarValue::Text(left), Value::String(right)) => left.as_ref() == right.as_bytes(),
        (VarValue::Bool(left), Value::Bool(right)) => left == right,
        _ => false,
    }
}

fn ordered(left: Option<&VarValue<'_>>, right: Option<f64>, holds: fn(f64, f64) -> bool) -> bool {
    match (text(left).and_then(number_of_text), right) {
        (Some(left), Some(right)) => holds(left, right),
        _ => false,
    }
}

fn has(left: Option<&VarValue<'_>>, constant: &Value) -> bool {
    match (left, constant.as_str()) {
        (Some(VarValue::List(items)), Some(wanted)) => {
            items.iter().any(|item| item.as_ref() == wanted.as_bytes())
        }
        _ => false,
    }
}

fn address(left: Option<&VarValue<'_>>) -> Option<IpAddr> {
    std::str::from_utf8(text(left)?).ok()?.parse().ok()
}

/// Parses a number like Lua's `tonumber`: decimal or hexadecimal with spaces around it, without infinities.
pub(super) fn number_of_text(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.trim_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (-1.0, &text[1..]),
        b'+' => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        // `from_str_radix` alone would accept a second sign.
        let plain = !hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit());
        return plain.then(|| u64::from_str_radix(hex, 16).ok())?.map(|number| sign * number as f64);
    }
    let decimal = |b: u8| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-');
    let starts = digits.bytes().next().is_some_and(|b| b.is_ascii_digit() || b == b'.');
    if !starts || !digits.bytes().all(decimal) {
        return None;
    }
    digits.parse::<f64>().ok().map(|number| sign * number)
}
