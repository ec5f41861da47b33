//! Checks of the claims of a token.

use serde_json::{Map, Value};

/// Whether the claims name one of these as whom the token is for: `aud` is a text or a list of them
/// (RFC 7519 §4.1.3).
pub(crate) fn is_for(claims: &Map<String, Value>, audience: &[String]) -> bool {
    let is_known =
        |name: &Value| name.as_str().is_some_and(|name| audience.iter().any(|known| known == name));
    match claims.get("aud") {
        Some(Value::Array(names)) => names.iter().any(is_known),
        Some(name) => is_known(name),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn audiences() {
        let check = |claims: Value, expected: bool| {
            let known = ["api".to_owned(), "shop".to_owned()];
            assert_eq!(is_for(claims.as_object().unwrap(), &known), expected, "{claims}");
        };
        check(json!({"aud": "api"}), true);
        check(json!({"aud": ["other", "shop"]}), true);
        for wrong in
            [json!("API"), json!("api shop"), json!([]), json!([["api"]]), json!({"api": 1}), json!(null)]
        {
            check(json!({"aud": wrong}), false);
        }
        check(json!({}), false);
    }
}
