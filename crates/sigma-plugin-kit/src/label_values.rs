//! Labels of consumers that hold several values.

/// Returns the values of a label: of a JSON list (`["a","b"]`), of a list with commas, or the text itself. Spaces
/// around a value between commas are removed.
pub fn of(text: &str) -> Vec<String> {
    let text = text.trim();
    if text.starts_with('[') {
        let items: Vec<serde_json::Value> = serde_json::from_str(text).unwrap_or_default();
        return items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect();
    }
    text.split(',').map(|value| value.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_or_several() {
        let check = |text: &str, expected: &[&str]| assert_eq!(of(text), expected, "{text}");
        check("infra", &["infra"]);
        check("infra,platform", &["infra", "platform"]);
        check(" infra , platform", &["infra", "platform"]);
        check(r#"["a","b c"]"#, &["a", "b c"]);
        check(r#"["a", 5]"#, &["a"]);
        check("[broken", &[]);
    }
}
