//! Invariants of every request and every response to an introspection.

use serde_json::json;
use sigma_config::resources::Decorations;
use sigma_http::{Headers, Method};
use sigma_plugin::graphql::{Document, Message, definitions};

use super::cost::{Judge, LARGEST, MOST_SELECTIONS, Strategy};
use super::schema::Schema;

/// A body, a zero byte, a response with a schema. A document has a cost of at least one by every strategy or no cost
/// at all, and the same one twice; readers agree on which input is no document.
pub fn graphql(input: &[u8]) {
    let mut parts = input.splitn(2, |b| *b == 0);
    let (body, answer) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let schema = Schema::read(answer).unwrap_or_default();
    let mut headers = Headers::default();
    headers.append("Content-Type", b"application/json");
    let required = Message::required(Method::Post, b"", &headers, body);
    assert!(required.is_err() || Ok(required.clone().ok()) == Message::find(b"", &headers, body));
    for content_type in ["multipart/form-data; boundary=B", "application/x-www-form-urlencoded", ""] {
        headers.replace("Content-Type", content_type.as_bytes());
        let _ = Message::find(body, &headers, body);
    }
    let message = required.unwrap_or_else(|_| Message {
        document: String::from_utf8_lossy(body).into_owned(),
        ..Message::default()
    });
    let Ok(document) = Document::parse(&message.document, MOST_SELECTIONS) else { return };
    assert!(definitions(&message.document).is_ok());
    let decorations: Decorations = serde_json::from_value(json!([
        {"field_path": "Query.users", "mul_arguments": ["first"], "add_arguments": ["weight"]},
        {"field_path": "User", "add_value": 2.5, "mul_value": 0.5},
        {"field_path": "Query.users.posts", "mul_arguments": ["first"]},
    ]))
    .unwrap_or_default();
    for strategy in [Strategy::Depth, Strategy::Complexity, Strategy::NodeQuantifier] {
        for decorated in [None, Some((&decorations, &schema))] {
            let judge = Judge { strategy, score_factor: 1.0, resolve_variables: true, decorated };
            let cost = judge.cost(&document, &message);
            assert!(cost.is_err() || cost.is_ok_and(|cost| (1..=LARGEST).contains(&cost)));
            assert_eq!(cost, judge.cost(&document, &message));
        }
    }
}
