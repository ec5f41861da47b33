//! Parameters that are tuples: their parts have no names at the call.

use super::Finding;
use super::source::{Function, Source};

const RULE: &str = "no tuple parameters";

/// Finds the tuple parameters of the functions that ship.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        for function in source.functions() {
            let count = tuples(&source.code[function.line..function.line + function.length], &function);
            let remedy = format!("give `{}` a struct, or a parameter for each part", function.name);
            let finding = || Finding::at(RULE, &source.path, function.line, remedy.clone());
            findings.extend(std::iter::repeat_with(finding).take(count));
        }
    }
    findings
}

/// Returns the number of tuple parameters of a function, whose code is in these lines.
fn tuples(code: &[String], function: &Function) -> usize {
    let code = code.join("\n");
    let start = format!("fn {}", function.name);
    let Some(at) = code.find(&start) else { return 0 };
    let (mut count, mut depth, mut angles, mut before) = (0, 0_usize, 0_usize, ' ');
    for (at, letter) in code.char_indices().skip_while(|(place, _)| *place < at + start.len()) {
        match letter {
            // Generic parameters may name functions.
            '<' if depth == 0 => angles += 1,
            '>' if depth == 0 && before != '-' => angles = angles.saturating_sub(1),
            '(' | '[' | '{' if angles == 0 => depth += 1,
            ')' | ']' | '}' if angles == 0 && depth == 1 => break,
            ')' | ']' | '}' if angles == 0 => depth -= 1,
            ':' if depth == 1 && is_tuple(&code[at + 1..]) => count += 1,
            _ => {}
        }
        before = letter;
    }
    count
}

/// Whether the type of a parameter is a tuple, or a reference to one. `&(dyn A + B)` has no comma and is not one.
fn is_tuple(kind: &str) -> bool {
    let kind = kind.trim_start().trim_start_matches('&');
    let kind = match kind.strip_prefix('\'') {
        Some(lifetime) => lifetime.split_once(' ').map_or("", |(_, kind)| kind),
        None => kind,
    };
    let Some(parts) = kind.strip_prefix("mut ").unwrap_or(kind).strip_prefix('(') else { return false };
    let (mut depth, mut before) = (0_usize, ' ');
    for letter in parts.chars() {
        match letter {
            ',' if depth == 0 => return true,
            ')' if depth == 0 => return false,
            '(' | '[' | '<' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '>' if before != '-' => depth = depth.saturating_sub(1),
            _ => {}
        }
        before = letter;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuple_parameters_are_counted() {
        let check = |text: &str, expected: usize| {
            let source = Source::new("crates/a/src/a.rs", text);
            let count: usize = source.functions().iter().map(|function| tuples(&source.code, function)).sum();
            assert_eq!(count, expected, "{text}");
        };
        check("fn a(x: (u8, u8), y: &mut (A, B)) {}", 2);
        check("fn a((x, y): (u8, u8)) -> (u8, u8) { let z: (u8, u8) = (1, 2); z }", 1);
        check("fn a<F: Fn((u8, u8)) -> (u8, u8)>(f: F, g: impl Fn(u8) -> u8) {}", 0);
        check("fn a(x: std::ops::Range<u8>, y: ()) {}", 0);
        check("fn a(x: &(dyn A + B), y: &mut (impl Fn(u8, u8) -> C<D, E> + B), z: u8) {}", 0);
        check("fn a(x: &'a mut (A, B), y: &'a (impl A<B, C> + D)) {}", 1);
        check("fn a(\n    x: u8,\n    y: (A, B),\n) {}", 1);
    }
}
