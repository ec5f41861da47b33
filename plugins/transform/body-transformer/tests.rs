//! `body-transformer`: requests and responses, and why they are refused or break off.

use sigma_http::{Chunk, Frame};
use sigma_plugin::Frames;
use sigma_schema::plugins::PluginScope;

use proptest::prelude::*;
use sigma_plugin_kit::body_template::{Data, Template};

use super::*;
use crate::testing::{Case, Given, assert_refusal, entry, merged, summary, warned};

const NAME: &str = "body-transformer";

/// Returns the node's request, or the refusal.
fn sent(conf: &Value, head: &str, body: &[u8]) -> String {
    let mut case = Case::new(&format!("{head}\nHost: h"));
    case.body = body.to_vec();
    match case.run(&entry(NAME, conf.clone()).unwrap(), Phase::Rewrite) {
        Some(reply) => summary(Some(&reply)),
        None => String::from_utf8(case.ctx.body.clone().unwrap()).unwrap(),
    }
}

#[test]
fn requests() {
    let template = |template: &str| json!({"request": {"template": template}});
    let check = |conf: &Value, head: &str, body: &str, expected: &str| {
        assert_eq!(sent(conf, head, body.as_bytes()), expected, "{conf} {head} {body}");
    };
    let named = template("{{name}}|{*_body*}|{{_ctx.var.http_x_a}}");
    check(&named, "GET /?name=%3Cn&b=c HTTP/1.1\nX-A: 1\nContent-Type: application/json", "", "&lt;n||1");
    check(
        &named,
        "POST /?name=no HTTP/1.1\nContent-Type: application/json",
        r#"{"name":"j"}"#,
        r#"j|{"name":"j"}|"#,
    );
    check(
        &named,
        "POST / HTTP/1.1\nContent-Type: application/x-www-form-urlencoded",
        "name=a+b",
        "a b|name=a+b|",
    );
    check(&named, "POST / HTTP/1.1\nContent-Type: text/plain", "x", "|x|");
    check(&named, "POST / HTTP/1.1", "", "||");
    let soap = template("{{Envelope.Body.order._attr.id}} {{Envelope.Body.order.item[2]}}");
    let body = r#"<s:Envelope xmlns:s="u"><s:Body><order id="7"><item>a</item><item>b</item></order></s:Body></s:Envelope>"#;
    check(&soap, "POST / HTTP/1.1\nContent-Type: text/xml", body, "7 b");
    let multipart = template("{{a}} {*_escape_json(_multipart)*}");
    let body = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--x--";
    check(
        &multipart,
        "POST / HTTP/1.1\nContent-Type: multipart/form-data; boundary=x",
        body,
        r#"1 {"a":"1"}"#,
    );
    let yaml = template("{{orders[2].id}} {{note}}");
    let body = "orders: [&first {id: 7}, *first]\nnote: |\n  as it is\n";
    check(&yaml, "POST / HTTP/1.1\nContent-Type: application/yaml", body, "7 as it is\n");
    let plain = json!({"request": {"template": "{*_body*}!", "input_format": "plain"}});
    check(&plain, "POST / HTTP/1.1\nContent-Type: application/json", "{", "{!");
    check(&template("e3tuYW1lfX0="), "GET /?name=x HTTP/1.1", "", "x");
}

#[test]
fn requests_that_are_refused() {
    let conf = json!({"request": {"template": "{{a.b}}"}, "max_req_body_size": 20, "max_body_values": 5, "max_steps": 20});
    let check = |fields: &str, body: &[u8], expected: &str| {
        let head = format!("POST / HTTP/1.1\nContent-Type: application/json\n{fields}");
        let answer = sent(&conf, head.trim_end(), body);
        assert!(answer.starts_with(expected), "{}: {answer}", body.escape_ascii());
    };
    check("", b"{", "400 {\"message\":\"request body decode: EOF while parsing");
    check("", b"\xff", "400 {\"message\":\"request body decode: it is not UTF-8\"}");
    check("", b"{}", "503 {\"message\":\"request template rendering: attempt to index a nil value\"}");
    check("", b"[1,2,3,4,5,6]", "400 {\"message\":\"request body decode: more than 5 values\"}");
    check("", &[b' '; 21], "413");
    check(
        "Content-Encoding: gzip",
        b"{}",
        "400 {\"message\":\"request body decode: it has a Content-Encoding",
    );
    let loops = merged(conf.clone(), &json!({"request": {"template": "{% for i = 1, 99 do %}{% end %}"}}));
    assert_eq!(
        sent(&loops, "GET / HTTP/1.1", b""),
        "503 {\"message\":\"request template rendering: the template takes too many steps\"}"
    );
    let long = merged(
        conf,
        &json!({"request": {"template": "{*_body*}{*_body*}{*_body*}", "input_format": "plain"}}),
    );
    assert_eq!(
        sent(&long, "POST / HTTP/1.1", b"0123456789"),
        "503 {\"message\":\"request template rendering: the result exceeds the limit of the body\"}"
    );
}

/// The body that a client gets; None if it breaks off.
fn answered(conf: &Value, fields: &str, pieces: &[&[u8]]) -> Option<String> {
    let entry = entry(NAME, conf.clone()).unwrap();
    let mut case = Case::new("GET / HTTP/1.1\nHost: h\nAccept-Encoding: gzip");
    assert!(case.run(&entry, Phase::Rewrite).is_none());
    assert_eq!(case.sent("accept-encoding"), None);
    case.respond(200, &format!("Content-Length: 9\nETag: \"a\"\n{fields}"));
    case.header_filter(&entry);
    assert_eq!(["content-length", "etag", "content-encoding"].map(|name| case.answered(name)).concat(), "");
    let mut filter = case.body_filter(&entry).unwrap();
    let mut source = Given(pieces.iter().map(|piece| Frame::Data(Chunk::copy_of(piece))).collect());
    let source: &mut dyn Frames = &mut source;
    let (mut task, mut out) = (std::task::Context::from_waker(std::task::Waker::noop()), Vec::new());
    loop {
        match filter.poll_frame(source, &mut case.ctx, &mut task) {
            std::task::Poll::Ready(Ok(Frame::Data(data))) => out.extend_from_slice(&data),
            std::task::Poll::Ready(Ok(_)) => return Some(String::from_utf8(out).unwrap()),
            _ => {
                assert!(out.is_empty());
                return None;
            }
        }
    }
}

#[test]
fn responses() {
    let conf = json!({"response": {"template": "<n>{{name}}</n>"}, "max_resp_body_size": 30});
    let is_json = "Content-Type: application/json";
    let check = |fields: &str, pieces: &[&[u8]], expected: Option<&str>| {
        assert_eq!(answered(&conf, fields, pieces).as_deref(), expected, "{fields}");
    };
    check(is_json, &[b"{\"na", b"me\":\"a\"}"], Some("<n>a</n>"));
    check(is_json, &[], Some("<n></n>"));
    check("", &[b"x"], Some("<n></n>"));
    check(is_json, &[b"{"], None);
    check(is_json, &[b"\xff"], None);
    check(is_json, &[&[b' '; 20], &[b' '; 11]], None);
    check("Content-Type: application/json\nContent-Encoding: gzip", &[b"{}"], None);
    check(is_json, &[b"{\"name\":{}}"], None);
}

#[test]
fn configurations() {
    let check = |conf: Value, expected: &str| assert_refusal(NAME, &conf, expected);
    let request = |side: Value| json!({ "request": side });
    check(json!({}), "object matches none of the required: [\"request\"] or [\"response\"]");
    check(request(json!({})), "property \"template\" is required");
    check(request(json!({"template": "{% x() %}"})), "request.template: line 1: `x()`: unknown statement");
    check(request(json!({"template": "x", "input_format": "toml"})), "matches none of the enum values");
    check(
        request(json!({"template": "{{x}}", "template_is_base64": true})),
        "request.template: it is not the Base64 of a text",
    );
    check(request(json!({"template": "{{x}}"})), "");
    assert!(warned(NAME, PluginScope::Http, &request(json!({"template": "{{x}}"}))).is_empty());
}

proptest! {
    /// A text that a template escapes for XML is read back as it was.
    #[test]
    fn texts_survive_escapes_of_xml(text in "[ -~é&<>\"'\\\\%+=;:{}#-]{1,20}") {
        let (root, nothing) = (json!({ "a": text }), |_: &VarName| None);
        let data = Data { root: &root, body: &Value::Null, variable: &nothing, most_steps: 100, most_text: 1000 };
        let template = Template::parse("<b>{*_escape_xml(a)*}</b>").unwrap();
        let read = super::xml::read(&template.rendered(&data).unwrap(), 10).unwrap();
        prop_assert_eq!(read["b"].as_str().unwrap().trim(), text.trim());
    }
}
