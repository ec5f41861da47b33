//! JSON numbers: integers, comparison, and their text in Lua.

use std::cmp::Ordering;

use serde_json::Number;

use super::node::NumberRules;

/// Returns the value as an integer, if it has no fraction and fits 64 bits and a sign.
pub(super) fn integer(number: &Number) -> Option<i128> {
    const LIMIT: f64 = 18_446_744_073_709_551_616.0;
    if let Some(value) = number.as_i128() {
        return Some(value);
    }
    let value = number.as_f64()?;
    #[allow(clippy::cast_possible_truncation, reason = "no fraction, and far within the range")]
    (value.fract() == 0.0 && value.abs() < LIMIT).then_some(value as i128)
}

/// Returns whether `type: integer` accepts the number.
pub(super) fn is_integer(number: &Number) -> bool {
    integer(number).is_some() || double(number).fract() == 0.0
}

/// Compares integers exactly, other numbers as double precision.
pub(super) fn compare(left: &Number, right: &Number) -> Ordering {
    match (integer(left), integer(right)) {
        (Some(left), Some(right)) => left.cmp(&right),
        // JSON has no NaN.
        _ => double(left).partial_cmp(&double(right)).unwrap_or(Ordering::Equal),
    }
}

/// Returns whether `number` is a multiple of `step`, which is above 0. For fractions a rounding error of the division
/// is allowed: 0.0075 is a multiple of 0.0001.
pub(super) fn is_multiple(number: &Number, step: &Number) -> bool {
    if let (Some(number), Some(step)) = (integer(number), integer(step)) {
        return number % step == 0;
    }
    let quotient = double(number) / double(step);
    (quotient - quotient.round()).abs() <= quotient.abs() * 4.0 * f64::EPSILON
}

/// Formats a number like Lua's `tostring`: `%.14g` of the double.
pub(super) fn lua(number: &Number) -> String {
    const DIGITS: i32 = 14;
    let value = double(number);
    if value == 0.0 {
        return if value.is_sign_negative() { "-0".into() } else { "0".into() };
    }
    let scientific = format!("{value:.*e}", (DIGITS - 1) as usize);
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..DIGITS).contains(&exponent) {
        let decimals = usize::try_from(DIGITS - 1 - exponent).unwrap_or(0);
        return trimmed(&format!("{value:.decimals$}")).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
}

/// Checks a number against its bounds. Returns the text of the failure.
pub(super) fn check(rules: &NumberRules, value: &Number) -> Result<(), String> {
    let bounds = [
        (&rules.min, &[Ordering::Greater, Ordering::Equal][..], "at least"),
        (&rules.max, &[Ordering::Less, Ordering::Equal][..], "at most"),
        (&rules.above, &[Ordering::Greater][..], "greater than"),
        (&rules.below, &[Ordering::Less][..], "smaller than"),
    ];
    for (bound, accepted, words) in bounds {
        if let Some(bound) = bound
            && !accepted.contains(&compare(value, bound))
        {
            return Err(format!("expected {} to be {words} {}", lua(value), lua(bound)));
        }
    }
    match &rules.multiple_of {
        Some(step) if !is_multiple(value, step) => {
            Err(format!("expected {} to be a multiple of {}", lua(value), lua(step)))
        }
        _ => Ok(()),
    }
}

fn trimmed(decimal: &str) -> &str {
    if decimal.contains('.') { decimal.trim_end_matches('0').trim_end_matches('.') } else { decimal }
}

fn double(number: &Number) -> f64 {
    // Without arbitrary precision every number converts.
    number.as_f64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Number {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn numbers_are_formatted_as_in_lua() {
        let cases = [
            ("0", "0"),
            ("-0.0", "-0"),
            ("255", "255"),
            ("1.0", "1"),
            ("-1.50", "-1.5"),
            ("0.1", "0.1"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("3.14159265358979", "3.1415926535898"),
            ("99999999999999", "99999999999999"),
            ("100000000000000", "1e+14"),
            ("9007199254740993", "9.007199254741e+15"),
            ("18446744073709551616", "1.844674407371e+19"),
            ("1e300", "1e+300"),
        ];
        for (text, expected) in cases {
            assert_eq!(lua(&number(text)), expected, "{text}");
        }
    }

    #[test]
    fn order() {
        let cases = [
            ("1", "1.0", Ordering::Equal),
            ("9007199254740993", "9007199254740992", Ordering::Greater),
            ("18446744073709551615", "-1", Ordering::Greater),
            ("18446744073709551616", "18446744073709551615", Ordering::Equal),
            ("0.5", "1", Ordering::Less),
            ("1e300", "1e299", Ordering::Greater),
        ];
        for (left, right, expected) in cases {
            assert_eq!(compare(&number(left), &number(right)), expected, "{left} {right}");
        }
    }

    #[test]
    fn multiples() {
        let cases = [
            ("10", "5", true),
            ("10", "3", false),
            ("9007199254740993", "2", false),
            ("4.5", "1.5", true),
            ("4.5", "2", false),
            ("0.0075", "0.0001", true),
            ("19.99", "0.01", true),
            ("19.995", "0.01", false),
            ("0", "0.1", true),
        ];
        for (value, step, expected) in cases {
            assert_eq!(is_multiple(&number(value), &number(step)), expected, "{value} {step}");
        }
    }

    #[test]
    fn integers() {
        for (text, expected) in [("1", true), ("1.0", true), ("1.5", false), ("1e300", true), ("-2e0", true)]
        {
            assert_eq!(is_integer(&number(text)), expected, "{text}");
        }
    }
}
