//! A screen per function, a sitting per file.

use super::Finding;
use super::source::Source;

const FUNCTION_LINES: usize = 70;
const FILE_LINES: usize = 600;
/// Share of functions that may be longer: the most that admired codebases show.
const LONG_SHARE_PERCENT: usize = 3;

/// Counts functions over all files and lines in each.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut long = Vec::new();
    let mut total = 0;
    for source in sources {
        if !source.is_test && source.tests_from > FILE_LINES {
            let remedy = format!(
                "{} lines before the tests, {FILE_LINES} are allowed: split it by the nouns it defines",
                source.tests_from
            );
            findings.push(Finding::new("a sitting per file", &source.path, remedy));
        }
        for function in source.functions() {
            total += 1;
            if function.length > FUNCTION_LINES {
                let remedy = format!(
                    "{} has {} lines, {FUNCTION_LINES} fit a screen: name its steps",
                    function.name, function.length
                );
                long.push(Finding::at("a screen per function", &source.path, function.line, remedy));
            }
        }
    }
    if long.len() * 100 > total * LONG_SHARE_PERCENT {
        findings.append(&mut long);
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_long_functions_are_let_pass() {
        let check = |short: usize, expected: usize| {
            let long = format!("fn long() {{\n{}}}\n", "a();\n".repeat(FUNCTION_LINES));
            let text = format!("{long}{}", "fn short() {}\n".repeat(short));
            let findings = check(&[Source::new("crates/a/src/lib.rs", &text)]);
            assert_eq!(findings.len(), expected, "{short} short ones: {findings:?}");
        };
        check(10, 1);
        check(99, 0);
        // A file of more than 600 lines.
        check(600, 1);
    }
}
