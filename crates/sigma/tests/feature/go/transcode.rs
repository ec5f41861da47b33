//! gRPC's interop server, called by JSON through grpc-transcode.

use serde_json::{Value, json};
use sigma_testkit::Gateway;

use super::interop_server;
use crate::SIGMA;

/// The necessary part of gRPC's own `grpc/testing/test.proto`.
const DEFINITION: &str = r#"
syntax = "proto3";
package grpc.testing;
import "google/api/annotations.proto";
message Empty {}
message Payload { int32 type = 1; bytes body = 2; }
message EchoStatus { int32 code = 1; string message = 2; }
message SimpleRequest {
  int32 response_type = 1; int32 response_size = 2; Payload payload = 3; EchoStatus response_status = 7;
}
message SimpleResponse { Payload payload = 1; string username = 2; }
message ResponseParameters { int32 size = 1; }
message StreamingOutputCallRequest {
  repeated ResponseParameters response_parameters = 2; Payload payload = 3; EchoStatus response_status = 7;
}
message StreamingOutputCallResponse { Payload payload = 1; }
message StreamingInputCallRequest { Payload payload = 1; }
message StreamingInputCallResponse { int32 aggregated_payload_size = 1; }
service TestService {
  rpc EmptyCall(Empty) returns (Empty);
  rpc UnaryCall(SimpleRequest) returns (SimpleResponse) {
    option (google.api.http) = { get: "/v1/bytes/{response_size}" response_body: "payload" };
  }
  rpc StreamingOutputCall(StreamingOutputCallRequest) returns (stream StreamingOutputCallResponse);
  rpc StreamingInputCall(stream StreamingInputCallRequest) returns (StreamingInputCallResponse);
  rpc FullDuplexCall(stream StreamingOutputCallRequest) returns (stream StreamingOutputCallResponse);
  rpc UnimplementedCall(Empty) returns (Empty);
}
"#;

/// Status and body of the response to a request.
fn ask(gateway: &Gateway, method: &str, target: &str, body: &str) -> (u16, String) {
    let mut peer = gateway.connect().unwrap();
    let length = body.len();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    peer.send(head.as_bytes()).unwrap();
    let answer = peer.read_response(method).unwrap();
    (answer.head.status().unwrap(), String::from_utf8(answer.body).unwrap())
}

#[test]
fn json_calls_a_grpc_server() {
    let (_server, port) = interop_server(&[]);
    let route = |id: &str, uri: &str, more: Value| {
        let mut conf = json!({ "proto_id": "test", "service": "grpc.testing.TestService" });
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({
            "id": id, "uri": uri, "plugins": { "grpc-transcode": conf },
            "upstream": { "scheme": "grpc", "nodes": { format!("127.0.0.1:{port}"): 1 } },
        })
    };
    let config = json!({
        "listeners": ["{listen}"],
        "protos": [{ "id": "test", "content": DEFINITION }],
        "routes": [
            route("e", "/empty", json!({ "method": "EmptyCall" })),
            route("u", "/unary", json!({ "method": "UnaryCall", "pb_option": ["no_default_values"] })),
            route("s", "/stream", json!({ "method": "StreamingOutputCall", "pb_option": ["no_default_values"] })),
            route("n", "/nobody", json!({ "method": "UnimplementedCall" })),
            route("c", "/collect", json!({ "method": "StreamingInputCall" })),
            route("d", "/chat", json!({ "method": "FullDuplexCall", "pb_option": ["no_default_values"] })),
            route("r", "/v1/*", json!({ "http_rules": true })),
        ],
    });
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    let check = |method: &str, target: &str, body: Value, expected: (u16, &str)| {
        let (status, answer) = ask(&gateway, method, target, &body.to_string());
        assert_eq!((status, &*answer), expected, "{target} {body}");
    };
    check("POST", "/empty", json!({}), (200, "{}"));
    check("POST", "/unary", json!({ "response_size": 3 }), (200, r#"{"payload":{"body":"AAAA"}}"#));
    let sizes = json!({ "response_parameters": [{ "size": 1 }, { "size": 2 }] });
    let lines = "{\"payload\":{\"body\":\"AA==\"}}\n{\"payload\":{\"body\":\"AAA=\"}}\n";
    check("POST", "/stream", sizes, (200, lines));
    let failing = json!({ "response_status": { "code": 5, "message": "no such thing" } });
    check("POST", "/unary", failing.clone(), (404, ""));
    check("POST", "/nobody", json!({}), (501, ""));
    check("GET", "/v1/bytes/3", json!({}), (200, r#"{"type":0,"body":"AAAA"}"#));
    let payload = |body: &str| json!({ "payload": { "body": body } });
    let both = json!([payload("AAAA"), payload("AA==")]);
    check("POST", "/collect", both, (200, r#"{"aggregated_payload_size":4}"#));
    check("POST", "/collect", json!([]), (200, r#"{"aggregated_payload_size":0}"#));
    check("POST", "/collect", payload("AA=="), (200, r#"{"aggregated_payload_size":1}"#));
    let (status, _) = ask(&gateway, "POST", "/collect", r#"[{}, {"payload": 1}]"#);
    assert_eq!(status, 400);
    chat(&gateway);
}

/// A stream both ways: each message is answered before the next one is sent.
fn chat(gateway: &Gateway) {
    let mut peer = gateway.connect().unwrap();
    let head = "POST /chat HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n";
    peer.send(head).unwrap();
    let mut answer = None;
    for (size, expected) in [(1, "AA=="), (2, "AAA=")] {
        let line = format!("{}\n", json!({ "response_parameters": [{ "size": size }] }));
        peer.send(format!("{:x}\r\n{line}\r\n", line.len())).unwrap();
        let head = answer.get_or_insert_with(|| peer.read_head().unwrap());
        assert_eq!(head.status().unwrap(), 200);
        let mut line = String::new();
        while !line.ends_with('\n') {
            let length = usize::from_str_radix(&peer.read_line().unwrap(), 16).unwrap();
            let chunk = peer.read_exactly(length + 2).unwrap();
            line.push_str(std::str::from_utf8(&chunk[..length]).unwrap());
        }
        assert_eq!(line, format!("{{\"payload\":{{\"body\":\"{expected}\"}}}}\n"));
    }
    peer.send("0\r\n\r\n").unwrap();
    assert_eq!(peer.read_line().unwrap(), "0");
    assert!(peer.read_line().unwrap().starts_with("grpc-status: 0"));
}
