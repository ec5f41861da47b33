//! Java properties: `key=value` lines with escapes and continued lines.

/// A property with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Property {
    pub line: u32,
    pub key: String,
    pub value: String,
}

/// Returns the documents of a text, which `#---` or `!---` separates.
pub(super) fn read(text: &str) -> Vec<Vec<Property>> {
    let mut documents = vec![Vec::new()];
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let start = line.trim_start();
        if matches!(start.trim_end(), "#---" | "!---") {
            documents.push(Vec::new());
        }
        if start.is_empty() || start.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = start.to_owned();
        while continues(&logical) {
            logical.pop();
            match lines.next() {
                Some((_, next)) => logical.push_str(next.trim_start()),
                None => break,
            }
        }
        let (key, value) = split(&logical);
        if let Some(document) = documents.last_mut() {
            document.push(Property { line: number, key, value });
        }
    }
    documents
}

/// Whether the line ends in an odd number of backslashes.
fn continues(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// Splits at the first separator that no backslash precedes.
fn split(line: &str) -> (String, String) {
    let mut is_escaped = false;
    let mut end = line.len();
    for (at, char) in line.char_indices() {
        if !is_escaped && (matches!(char, '=' | ':') || char.is_whitespace()) {
            end = at;
            break;
        }
        is_escaped = char == '\\' && !is_escaped;
    }
    let rest = line[end..].trim_start();
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start();
    (unescaped(&line[..end]), unescaped(rest))
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if char != '\\' {
            out.push(char);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('f') => out.push('\u{c}'),
            Some('u') => {
                let digits: String = chars.by_ref().take(4).collect();
                let code = u32::from_str_radix(&digits, 16).ok();
                out.push(code.and_then(char::from_u32).unwrap_or('\u{fffd}'));
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_have_keys_values_and_lines() {
        let text = "# c\na.b = 1\nc\\:d: x\\\n   y\n\ne f\n#---\ng=\\u0041\\\\b\n";
        let documents = read(text);
        let shown: Vec<Vec<(u32, &str, &str)>> = documents
            .iter()
            .map(|list| list.iter().map(|it| (it.line, it.key.as_str(), it.value.as_str())).collect())
            .collect();
        assert_eq!(shown, [vec![(2, "a.b", "1"), (3, "c:d", "xy"), (6, "e", "f")], vec![(8, "g", "A\\b")]]);
    }
}
