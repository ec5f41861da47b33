//! Tests of scripts: a function runs in a phase of an exchange without sockets.

use serde_json::{Value, json};
use sigma_plugin::{Entry, Phase, Reply};

use crate::testing::{Case, entry};

/// An instance of `serverless-pre-function` with one function of this body.
pub(crate) fn function(phase: &str, body: &str) -> Entry {
    let text = format!("return function(conf, ctx) {body}\nend");
    entry("serverless-pre-function", json!({"phase": phase, "functions": [text]})).unwrap()
}

/// The response of a function in the phase `access` to a request of these lines.
pub(crate) fn reply_to(request: &str, body: &str) -> Option<Reply> {
    let mut case = Case::new(request);
    case.run(&function("access", body), Phase::Access)
}

/// The body of that response, for a plain request; the status if it is not 200.
pub(crate) fn said(body: &str) -> String {
    let reply = reply_to("GET /a/b?x=1 HTTP/1.1\nHost: h.test", body);
    match reply {
        None => "passed".to_owned(),
        Some(reply) => {
            let text = String::from_utf8_lossy(reply.body.as_deref().unwrap_or_default()).into_owned();
            if reply.status == 200 { text } else { format!("{} {text}", reply.status).trim_end().to_owned() }
        }
    }
}

/// Checks what functions write.
pub(crate) fn check(cases: &[(&str, &str)]) {
    for (body, expected) in cases {
        assert_eq!(said(body), *expected, "{body}");
    }
}

/// The error of a configuration with this text.
pub(crate) fn refusal_of(text: &str) -> String {
    let conf: Value = json!({"functions": [text]});
    entry("serverless-pre-function", conf).map(drop).unwrap_err()
}
