//! Requests with one message, and with two.

use super::*;

fn headers(fields: &[(&str, &str)]) -> Headers {
    let mut headers = Headers::default();
    for (name, value) in fields {
        headers.append(name, value.as_bytes());
    }
    headers
}

fn post(content_type: &str, body: &str) -> Result<Message, NoMessage> {
    Message::required(Method::Post, b"", &headers(&[("Content-Type", content_type)]), body.as_bytes())
}

fn get(query: &str) -> Result<Message, NoMessage> {
    Message::required(Method::Get, query.as_bytes(), &Headers::default(), b"")
}

#[test]
fn message_is_read() {
    let check = |found: Result<Message, NoMessage>, variables: Value, operation: Option<&str>| {
        let found = found.unwrap();
        assert_eq!((&*found.document, found.operation_name.as_deref()), ("{a}", operation));
        assert_eq!(Value::Object(found.variables), variables);
    };
    check(post("application/graphql;charset=utf-8", "{a}"), json!({}), None);
    check(post("application/json", r#" {"query":"{a}","x":[1]}"#), json!({}), None);
    let all = r#"{"operationName":"A","variables":{"n":2,"s":"3"},"query":"{a}","extensions":{"c":1}}"#;
    check(post("Application/JSON; charset=\"UTF-8\"", all), json!({"n": 2, "s": "3"}), Some("A"));
    check(
        post("application/json", r#"{"query":"{a}","variables":null,"operationName":null}"#),
        json!({}),
        None,
    );
    // Many servers parse the text of an object.
    check(post("application/json", r#"{"query":"{a}","variables":"{\"n\":9}"}"#), json!({"n": 9}), None);
    check(post("application/json", r#"{"query":"{a}","variables":""}"#), json!({}), None);
    check(get("query=%7Ba%7D"), json!({}), None);
    check(get("x&query={a}&variables=%7B%22n%22:2%7D&operationName=A"), json!({"n": 2}), Some("A"));
    check(get("query={a}&variables=&operationName="), json!({}), None);
}

#[test]
fn missing_and_ambiguous_messages_are_refused() {
    let check = |found: Result<Message, NoMessage>, expected: &str| match found {
        Err(NoMessage::Absent(reason) | NoMessage::Ambiguous(reason)) => {
            assert!(
                reason == expected
                    || !expected.is_empty() && reason.starts_with(&format!("{expected} at line")),
                "{reason}"
            );
        }
        Err(NoMessage::Empty) => assert_eq!(expected, ""),
        Ok(found) => panic!("{found:?} and not {expected}"),
    };
    let json = |body: &str| post("application/json", body);
    check(json(""), "");
    check(json("{"), "EOF while parsing an object at line 1 column 1");
    for nil in ["{}", "1", r#"[{"query":"{a}"}]"#, "[\"{a}\"]", r#"{"query":1}"#, r#"{"query":null}"#] {
        check(json(nil), "json body[query] is nil");
    }
    let twice = "a name is repeated in an object";
    check(json(r#"{"query":"{a}","query":"{b}"}"#), twice);
    check(json(r#"{"query":"{a}","qu\u0065ry":"{b}"}"#), twice);
    check(json(r#"{"query":"{a}","variables":{"n":1,"n":9}}"#), twice);
    check(json(r#"{"query":"{a}","Query":"{b}"}"#), "json body[query] is written in another form");
    check(json(r#"{"query":"{a}","variableſ":{}}"#), "json body[variables] is written in another form");
    check(json(r#"{"query":"{a}","operationName":["B"]}"#), "json body[operationName] is not text");
    for variables in ["[{}]", "1", "true", "\"[]\""] {
        let body = format!(r#"{{"query":"{{a}}","variables":{variables}}}"#);
        check(json(&body), "json body[variables] is not an object");
    }
    check(json(&format!("[{}1]", "1,".repeat(MOST_VALUES))), "the body has too many values");
    check(json("\u{feff}{\"query\":\"{a}\"}"), "expected value at line 1 column 1");
    check(post("text/plain", "{a}"), "error content-type: text/plain");
    check(post("application/jsonp", "{}"), "error content-type: application/jsonp");
    check(post("application/json; charset=utf-7", "{}"), "the body is not UTF-8");
    let several = headers(&[("Content-Type", "application/json"), ("content-type", "application/graphql")]);
    check(Message::required(Method::Post, b"", &several, b"{}"), "several content-types");
    let coded = headers(&[("Content-Type", "application/graphql"), ("Content-Encoding", "deflate")]);
    check(Message::required(Method::Post, b"", &coded, b"{a}"), "the body has a content-encoding");
    check(get(""), "");
    check(get("a=b"), "args[query] is nil");
    check(get("query={a}&query={b}"), "args[query] is repeated");
    check(get("query=%ff"), "args[query] is not UTF-8");
    check(get("query={a}&variables={"), "EOF while parsing an object at line 1 column 1");
    check(get("query={a}&variables[n]=1"), "args[variables] is written in another form");
    check(get("query={a}&%20query={b}"), "args[query] is written in another form");
    check(get("query={a}&x=1;query={b}"), "args has a member after `;`");
    let graphql = headers(&[("Content-Type", "application/graphql")]);
    check(Message::required(Method::Get, b"query={a}", &graphql, b"{}"), "a GET has no body");
    for (argument, name) in [
        ("query={b}", "query"),
        ("x=1&%71uery", "query"),
        ("operationName=B", "operationName"),
        ("variables={}", "variables"),
        ("extensions={}", "extensions"),
        ("documentId=1", "documentId"),
    ] {
        let found = Message::required(Method::Post, argument.as_bytes(), &graphql, b"{a}");
        check(found, &format!("args[{name}] in a request with a body"));
    }
}

/// Returns the document that is found in any request.
fn found(query: &str, content_type: Option<&str>, body: &str) -> String {
    let content_type = content_type.map(|value| ("Content-Type", value));
    match Message::find(query.as_bytes(), &headers(content_type.as_slice()), body.as_bytes()) {
        Ok(Some(message)) => message.document,
        Ok(None) => "none".to_owned(),
        Err(_) => "ambiguous".to_owned(),
    }
}

#[test]
fn message_is_found_in_any_request() {
    let (json, form) = (Some("application/json"), Some("application/x-www-form-urlencoded"));
    let check = |query: &str, content_type: Option<&str>, body: &str, expected: &str| {
        assert_eq!(found(query, content_type, body), expected, "{query} {content_type:?} {body}");
    };
    check("query={a}", None, "", "{a}");
    check("", json, r#"{"query":"{a}"}"#, "{a}");
    check("", Some("application/problem+json; a=b"), r#"{"query":"{a}"}"#, "{a}");
    check("", form, "query=%7Ba%7D&x=1", "{a}");
    check("tenant=1", form, "query=%7Ba%7D&x=1", "{a}");
    // A server may parse a body of any type.
    for content_type in [None, Some("text/plain")] {
        check("", content_type, "\u{feff}{a}", "\u{feff}{a}");
        check("", content_type, r#"{"query":"{a}"}"#, "{a}");
        check("", content_type, r#"{"query":"{a}","query":"{b}"}"#, "ambiguous");
        check("", content_type, r#"{"x":1}"#, "none");
    }
    check("", None, "query=%7Ba%7D", "{a}");
    check("", Some("text/plain"), "query=%7Ba%7D", "none");
    check("", None, "{a(b:\"&query=x\")}", "ambiguous");
    for (query, content_type, body) in [
        ("", None, ""),
        ("variables=red", None, ""),
        ("variables=red", json, "{}"),
        ("", json, "{}"),
        ("", form, "a=b"),
        ("", Some("image/png"), "\u{0}{query"),
    ] {
        check(query, content_type, body, "none");
    }
    for (query, content_type, body) in [
        ("query={a}&query={b}", None, ""),
        ("query={a}", json, "{}"),
        ("query={a}", json, r#"{"query":"{a}"}"#),
        ("operationName=B", json, r#"{"query":"query A{a} mutation B{b}"}"#),
        ("extensions=%7B%22persistedQuery%22:1%7D", None, ""),
        ("", json, r#"{"extensions":{"persistedQuery":{}}}"#),
        ("", json, r#"{"documentId":"x"}"#),
        ("", json, r#"[{"query":"mutation {a}"}]"#),
        ("", json, r#"{"QUERY":"mutation {a}"}"#),
        ("", json, "{"),
        ("", form, "query={a}&query=mutation {a}"),
        ("", form, "query={a}&operationName=A&operationName=B"),
        ("", Some("multipart/form-data"), "x"),
        ("", Some("application/json; charset=utf-16le"), r#"{"x":1}"#),
    ] {
        check(query, content_type, body, "ambiguous");
    }
}
