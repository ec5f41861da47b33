//! The coding of a response where several plugins offer one.

use serde_json::json;

use crate::testing::{Case, entry};

/// The codings of a response that passes all three plugins.
fn coding(accept: &str, status: u16, fields: &str) -> String {
    let plugins = ["zstd", "brotli", "gzip"].map(|name| entry(name, json!({"vary": true})).unwrap());
    let mut case = Case::new(&format!("GET / HTTP/1.1\nHost: h\nAccept-Encoding: {accept}"));
    case.respond(status, &format!("Content-Type: text/html\n{fields}"));
    plugins.iter().for_each(|plugin| case.header_filter(plugin));
    let encoding = plugins.iter().filter(|plugin| case.body_filter(plugin).is_some()).count();
    let coding = case.answered("Content-Encoding");
    assert_eq!(encoding, usize::from(!coding.is_empty()), "{accept}");
    assert_eq!(case.answered("Vary"), "Accept-Encoding", "{accept}");
    coding
}

#[test]
fn the_client_weighs_and_the_plugins_order_decides_between_equals() {
    let check = |accept: &str, expected: &str| assert_eq!(coding(accept, 200, ""), expected, "{accept}");
    check("gzip, br, zstd", "zstd");
    check("gzip, br", "br");
    check("gzip", "gzip");
    check("gzip, br;q=0.9, zstd;q=0.8", "gzip");
    check("gzip;q=0.2, br;q=0.9, zstd;q=0.8", "br");
    check("*", "zstd");
    check("*, zstd;q=0", "br");
    check("*;q=0.5, gzip", "gzip");
    check("*;q=0, gzip;q=0.1", "gzip");
    check("gzip;q=0, br;q=0.000, identity;q=0", "");
    check("identity", "");
    check("", "");
    check("gzip;q=0.5, br;q=0.4, identity", "");
    check("gzip;q=0.5, br;q=0.4, identity;q=0.5", "gzip");
    check("gzip;q=0.5, br;q=0.4, identity;q=0", "gzip");
    check("gzip;q=0.5, identity", "gzip");
}

/// If one coding is not possible, the next one is used.
#[test]
fn only_those_count_that_the_response_allows() {
    assert_eq!(coding("gzip, br;q=0.5", 201, ""), "br");
    assert_eq!(coding("gzip, br", 206, "Content-Range: bytes 0-1/900"), "");
    assert_eq!(coding("zstd, br", 200, "Cache-Control: no-cache, No-Transform"), "");
}
