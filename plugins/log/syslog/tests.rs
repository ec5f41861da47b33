//! Lines, and configurations that are refused or warned of. How lines travel is tested with real servers.

use serde_json::json;

use super::*;
use crate::testing::{merged, refusal, refusal_in, warned};

#[test]
fn an_entry_is_one_line_for_any_client_input() {
    let check = |host: &[u8], expected: &str| {
        let entry = json!({ "uri": "/a\nb" }).as_object().unwrap().clone();
        let text = String::from_utf8(line(host, 1_704_067_200_123, entry)).unwrap();
        let pid = std::process::id();
        let expected =
            format!("<46>1 2024-01-01T00:00:00.123Z {expected} apisix {pid} - - {{\"uri\":\"/a\\nb\"}}\n");
        assert_eq!(text, expected);
    };
    check(b"example.com", "example.com");
    check(b"", "-");
    check(b"a b", "-");
    check(b"a\n<46>1", "-");
    check("ü.test".as_bytes(), "-");
    check(&[b'a'; 256], "-");
}

#[test]
fn invalid_configurations_are_refused_and_risky_ones_have_warnings() {
    let conf = |more: Value| merged(json!({ "host": "127.0.0.1", "port": 514 }), &more);
    for scope in [PluginScope::Http, PluginScope::Stream] {
        let refused = |more: Value| refusal_in(NAME, scope, &conf(more));
        assert_eq!(refused(json!({})), "");
        assert_eq!(refused(json!({ "host": "logs.test", "sock_type": "udp" })), "");
        assert_eq!(refused(json!({ "host": "[::1]" })), "");
        assert!(refused(json!({ "host": "a b" })).contains("neither a name nor an address"));
        assert!(refused(json!({ "sock_type": "udp", "tls": true })).contains("tls: UDP has no TLS"));
        for wrong in [
            json!({ "sock_type": "unix" }),
            json!({ "port": 0 }),
            json!({ "pool_size": 4 }),
            json!({ "timeout": 0 }),
        ] {
            assert_ne!(refused(wrong.clone()), "", "{wrong}");
        }
        let warned = |more: Value| warned(NAME, scope, &conf(more));
        assert!(warned(json!({ "tls": true, "ssl_verify": true })).is_empty());
        assert_eq!(warned(json!({ "tls": true })), ["tls"]);
        assert_eq!(warned(json!({ "ssl_verify": true, "flush_limit": 1 })), ["flush_limit", "ssl_verify"]);
    }
    assert_ne!(refusal(NAME, &json!({ "host": "127.0.0.1" })), "");
}
