//! Tests of `cjson`, after the recorded responses of nginx.

use super::encode::general;
use crate::snippets::{check, output_of, output_with};

const CJSON: &str = "local c = require 'cjson' local s = require 'cjson.safe' ";

fn check_cjson(cases: &[(&str, &str)]) {
    for (body, expected) in cases {
        assert_eq!(output_of(&format!("{CJSON}{body}")), *expected, "{body}");
    }
}

#[test]
fn numbers_are_written_as_in_c() {
    check_cjson(&[(
        "ngx.say(c.encode({1e15, 1e16, 123456789012345, 0.1, 1/3, -0, 2^53, 1e100, 1e-7, 100, 3.0, 12345678901234567890}))",
        "[1e+15,1e+16,1.2345678901234e+14,0.1,0.33333333333333,-0,9.007199254741e+15,1e+100,1e-07,100,3,1.2345678901235e+19]\n",
    )]);
    for (number, text) in [(99999.9, "1e+05"), (-0.00012345, "-0.00012345"), (0.000012345, "1.2345e-05")] {
        assert_eq!(general(number, 5), text);
    }
}

#[test]
fn texts_are_decoded() {
    check_cjson(&[
        (
            "local v = c.decode('{\"a\":1,\"b\":[1,2,{\"c\":null}],\"d\":\"x\\\\u00e4\\\\n\",\"e\":true,\"f\":1.5e3,\"g\":{}}') ngx.say(v.a, v.b[2], v.b[3].c == c.null, v.d, tostring(v.e), v.f, next(v.g) == nil)",
            "12truexä\ntrue1500true\n",
        ),
        (
            "ngx.say(ngx.encode_base64(c.decode('\"\\\\u00e4\\\\u20ac\\\\ud83d\\\\ude00\\\\u0000\\\\/\"')))",
            "w6Tigqzwn5iAAC8=\n",
        ),
        ("ngx.say(#c.decode('\"\\255\"'), c.encode('\\195\\164'))", "1\"ä\"\n"),
        (
            "ngx.say(s.decode('01'), s.decode('[01]')[1], s.decode('+1'), s.decode('NaN'), s.decode('Infinity'), s.decode('0x10'), s.decode('1e999'))",
            "111naninf16inf\n",
        ),
        ("ngx.say((c.decode('[ [], [[1]] , {} ]'))[2][1][1])", "1\n"),
    ]);
}

#[test]
fn decode_errors_name_token_and_place() {
    for (text, expected) in [
        ("{", "Expected object key string but found T_END at character 2"),
        ("[1,", "Expected value but found T_END at character 4"),
        ("", "Expected value but found T_END at character 1"),
        ("nul", "Expected value but found invalid token at character 1"),
        ("{a:1}", "Expected object key string but found invalid token at character 2"),
        ("[1,]", "Expected value but found T_ARR_END at character 4"),
        ("{\"a\" 1}", "Expected colon but found T_NUMBER at character 6"),
        ("\"abc", "Expected value but found unexpected end of string at character 5"),
        ("1 2", "Expected the end but found T_NUMBER at character 3"),
        ("[1}", "Expected comma or array end but found T_OBJ_END at character 3"),
        ("{\"a\":1]", "Expected comma or object end but found T_ARR_END at character 7"),
        ("\"\\x\"", "Expected value but found invalid escape code at character 2"),
        ("\"\\ud800\"", "Expected value but found invalid unicode escape code at character 2"),
        ("-", "Expected value but found invalid number at character 1"),
        ("'a'", "Expected value but found invalid token at character 1"),
        ("// c", "Expected value but found invalid token at character 1"),
        ("{\"a\":1,}", "Expected object key string but found T_OBJ_END at character 8"),
        (".5", "Expected value but found invalid token at character 1"),
    ] {
        let body = format!("{CJSON}local v, e = s.decode([==[{text}]==]) ngx.print(tostring(v), ' ', e)");
        assert_eq!(output_of(&body), format!("nil {expected}"), "{text}");
    }
    check_cjson(&[(
        "local ok, e = pcall(c.decode, '[') ngx.say(ok, e)",
        "falseExpected value but found T_END at character 2\n",
    )]);
}

#[test]
fn tables_become_arrays_or_objects() {
    check_cjson(&[
        (
            "ngx.say(c.encode({}), c.encode({1, 2}), c.encode({a = {}}), c.encode({[1] = 1, [3] = 3}))",
            "{}[1,2]{\"a\":{}}[1,null,3]\n",
        ),
        (
            "ngx.say(c.encode(setmetatable({}, c.empty_array_mt)), c.encode(setmetatable({}, c.array_mt)), c.encode({c.empty_array, ngx.null}))",
            "[][][[],null]\n",
        ),
        ("ngx.say(s.encode({[1000] = 1}))", "nilCannot serialise table: excessively sparse array\n"),
        (
            "local n = c.new() n.encode_sparse_array(true) n.encode_empty_table_as_object(false) ngx.say(n.encode({[1000] = 1}), n.encode({}))",
            "{\"1000\":1}[]\n",
        ),
        ("ngx.say(s.encode({print}))", "nilCannot serialise function: type not supported\n"),
        (
            "ngx.say(s.encode({[true] = 1}))",
            "nilCannot serialise boolean: table key must be a number or string\n",
        ),
        ("ngx.say(s.encode(1/0))", "nilCannot serialise number: must not be NaN or Infinity\n"),
        ("local n = c.new() ngx.say(n.encode_invalid_numbers('null'), n.encode({1/0}))", "null[null]\n"),
        ("ngx.say(c.encode('a/\"\\\\\\1\\127\\n'))", "\"a\\/\\\"\\\\\\u0001\\u007f\\n\"\n"),
        (
            "ngx.say(c.encode_max_depth(), c.encode_number_precision(), c.encode_sparse_array())",
            "100014false210\n",
        ),
        ("local n = c.new() n.decode_array_with_array_mt(true) ngx.say(n.encode(n.decode('[]')))", "[]\n"),
        (
            "local ok, e = pcall(c.encode_max_depth, 0) ngx.say(e)",
            "bad argument #1 to 'encode_max_depth' (expected integer between 1 and 2147483647)\n",
        ),
    ]);
}

#[test]
fn depth_and_length_are_bounded() {
    check_cjson(&[
        ("local t = {} t[1] = t ngx.say(s.encode(t))", "nilCannot serialise, excessive nesting (1001)\n"),
        (
            "local n = require('cjson.safe').new() n.encode_max_depth(100000) local t = {} t[1] = t ngx.say(n.encode(t))",
            "nilCannot serialise, excessive nesting (1001)\n",
        ),
        ("local t = {} for i = 1, 999 do t = {t} end ngx.say(#s.encode(t))", "2000\n"),
        (
            "ngx.say(s.decode(('['):rep(1001)))",
            "nilFound too many nested data structures (1001) at character 1001\n",
        ),
    ]);
    // Tables that share others have texts without end: the length or the time of the script ends them.
    let body =
        format!("{CJSON}local t = {{1}} for i = 1, 60 do t = {{t, t}} end ngx.print(s.encode(t) == nil)");
    let ending = output_with(serde_json::json!({"run_ms": 20}), &body);
    assert!(ending == "true" || ending == "500", "{ending}");
    check(&[("ngx.say('fine')", "fine\n")]);
}
