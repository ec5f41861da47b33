//! Small Lua texts whose answers were recorded from nginx 1.22 with lua-nginx-module 0.10.23: Sigma gives the same.

use serde_json::{Value, json};
use sigma_testkit::{Gateway, Message, Origin};

use crate::{PATIENCE, SIGMA};

/// For each text its phase, its request, and the response of nginx.
const SNIPPETS: &str = include_str!("lua_snippets.json");

const NODE: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Origin: plain\r\nETag: \"v1\"\r\nContent-Length: 12\r\n\r\norigin body\n";

/// Texts whose response differs, with the reason.
const DIFFERENT: &[(&str, &str)] = &[
    ("coroutine-wrap-error", "in nginx `pcall` does not catch an error of `coroutine.wrap`"),
    ("string-format-error", "the message names the function, nginx writes `?`"),
    ("own-bf-append", "nginx keeps the Content-Length of the node, which cuts the body off"),
];

fn route(snippet: &Value, node: &str) -> Value {
    let (name, code) = (snippet["name"].as_str().unwrap(), snippet["code"].as_str().unwrap());
    let text = format!("return function(conf, ctx) {code}\nend");
    json!({
        "id": name,
        "uri": format!("/s/{name}"),
        "plugins": { "serverless-pre-function": { "phase": snippet["phase"], "functions": [text] } },
        "upstream": { "nodes": { node: 1 } },
    })
}

fn ask(gateway: &Gateway, snippet: &Value) -> Message {
    let text = |member: &str| snippet[member].as_str().unwrap_or_default().to_owned();
    let method = if snippet["method"].is_null() { "GET".to_owned() } else { text("method") };
    let fields = snippet["fields"].as_array().into_iter().flatten();
    let fields: String = fields.map(|field| format!("{}\r\n", field.as_str().unwrap())).collect();
    let body = text("body");
    let length = if method == "POST" { format!("Content-Length: {}\r\n", body.len()) } else { String::new() };
    let target = format!("/s/{}{}", text("name"), text("query"));
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: gw.test\r\nConnection: close\r\n{length}{fields}\r\n{body}"
    );
    gateway.connect().unwrap().with_deadline(PATIENCE).ask(request).unwrap()
}

/// The fields of a response that scripts set.
fn fields(answer: &Message) -> Value {
    let mut found = serde_json::Map::new();
    for (name, value) in &answer.head.fields {
        let name = name.to_lowercase();
        if (name.starts_with("x-") && name != "x-request-id") || name == "location" || name == "etag" {
            let values = found.entry(name).or_insert_with(|| json!([]));
            values.as_array_mut().unwrap().push(json!(value));
        }
    }
    Value::Object(found)
}

#[test]
fn responses_equal_recorded_ones_of_nginx() {
    let snippets: Vec<Value> = serde_json::from_str(SNIPPETS).unwrap();
    assert!(snippets.len() >= 200);
    let origin = Origin::serve(|mut peer| {
        while peer.read_request().is_ok() {
            if peer.send(NODE).is_err() {
                return;
            }
        }
    })
    .unwrap();
    let node = origin.address().to_string();
    let routes: Vec<Value> = snippets.iter().map(|snippet| route(snippet, &node)).collect();
    let config = json!({ "workers": 1, "listeners": ["{listen}"], "routes": routes });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    let mut differences = Vec::new();
    for snippet in &snippets {
        let (name, expected) = (snippet["name"].as_str().unwrap(), &snippet["nginx"]);
        let answer = ask(&gateway, snippet);
        let mut wanted = expected["fields"].clone();
        if wanted.is_null() {
            wanted = json!({});
        }
        let mut found = fields(&answer);
        // The recording has `etag` only where it is requested.
        if wanted.get("etag").is_none() {
            found.as_object_mut().unwrap().remove("etag");
        }
        let is_same = u64::from(answer.status()) == expected["status"].as_u64().unwrap_or_default()
            && is_alike(expected["body"].as_str(), &answer.body)
            && wanted == found;
        let is_known = DIFFERENT.iter().any(|(known, _)| *known == name);
        if is_same == is_known {
            let shown = format!("{} {found} {:?}", answer.status(), answer.text());
            differences.push(format!("{name}: {expected}\n  Sigma: {shown}"));
        }
    }
    assert!(differences.is_empty(), "{}\n{}", differences.join("\n"), gateway.stderr());
}

/// Whether a body is as recorded. `PAGE` is a page of nginx. Some bodies were recorded with a character for each byte.
fn is_alike(recorded: Option<&str>, body: &[u8]) -> bool {
    let by_bytes: String = body.iter().map(|byte| char::from(*byte)).collect();
    recorded.is_none_or(|recorded| {
        let texts = [by_bytes.clone(), String::from_utf8_lossy(body).into_owned()];
        let is_text = |text: &String| text == recorded || without_addresses(text) == recorded;
        texts.iter().any(is_text) || recorded == "PAGE"
    })
}

/// Replaces addresses as the recording does: `0x` and all hexadecimal digits behind it.
fn without_addresses(text: &str) -> String {
    let mut pieces = text.split("0x");
    let mut replaced = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let rest = piece.trim_start_matches(|digit: char| digit.is_ascii_hexdigit());
        let mark = if rest.len() < piece.len() { "0xADDR" } else { "0x" };
        replaced.extend([mark, rest]);
    }
    replaced
}
