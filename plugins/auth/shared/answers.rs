//! JSON responses of services.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::tokens::object_of;

/// Reads an object; None if the text is anything else, or says a thing twice anywhere.
pub(crate) fn read<T: DeserializeOwned>(text: &[u8]) -> Option<T> {
    T::deserialize(Value::Object(object_of(text)?)).ok()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct OkResponse {
        ok: bool,
    }

    #[test]
    fn an_answer_is_an_object_that_says_things_once() {
        assert!(read::<OkResponse>(br#"{"ok":true,"more":[{"a":1}]}"#).is_some_and(|said| said.ok));
        for text in
            [r#"[true]"#, r#"{"ok":false,"ok":true}"#, r#"{"ok":true,"a":{"b":1,"b":2}}"#, "true", "", "{}"]
        {
            assert!(read::<OkResponse>(text.as_bytes()).is_none(), "{text}");
        }
    }
}
