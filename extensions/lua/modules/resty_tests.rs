//! `resty.http` and `resty.redis`, against servers on this machine.

use serde_json::{Value, json};
use sigma_testkit::Origin;

use crate::snippets::said_on_worker;

fn open() -> Value {
    json!({"allowed_networks": ["127.0.0.0/8"], "socket_bytes": 20_000})
}

fn output_of(body: &str, port: u16) -> String {
    let start = "local http = require('resty.http') local url = 'http://127.0.0.1:PORT' \
                 local function call(path, p) local c = http.new() c:set_timeout(5000) return c:request_uri(url .. path, p) end ";
    said_on_worker(&open(), &format!("{start}{body}").replace("PORT", &port.to_string()))
}

/// An origin that sends this response to every request, then closes.
fn origin(response: &'static str) -> Origin {
    Origin::serve(move |mut peer| {
        let _ = peer.read_request();
        let _ = peer.send(response);
    })
    .unwrap()
}

#[test]
fn http_sends_requests() {
    let origin = Origin::echo("one").unwrap();
    for (body, expected) in [
        (
            "local r = call('/a?x=1', {query = {b = {1, 2}, c = true}, headers = {['X-A'] = {'1', '2'}}}) \
             ngx.say(r.status, r.reason, r.headers['x-origin'], r.headers['X-ORIGIN'])",
            "200 200OKoneone",
        ),
        ("ngx.say((call('/a b')))", "200 nil"),
        ("ngx.say(call('/a', {headers = {X = 'a\\r\\nY: b'}}))", "200 nilinvalid header X"),
        ("ngx.say(call('/a', {method = 'GET /x'}))", "200 nilinvalid method"),
        (
            "local r = call('/a', {method = 'POST', body = {'ab', {'c'}}}) ngx.say(r.body:match('\"body_bytes\":%s*(%d+)'))",
            "200 3",
        ),
        (
            "local n = 0 local r = call('/a', {method = 'PUT', body = function() n = n + 1 return n < 3 and 'piece' or nil end}) \
             ngx.say(r.body:match('\"body_bytes\":%s*(%d+)'))",
            "200 10",
        ),
        // The loop guard: a script cannot take it away.
        (
            "local r = call('/a', {headers = {['CDN-Loop'] = 'none'}}) ngx.say((r.body:match('[Cc][Dd][Nn]%-[Ll]oop\",%s*\"(.-)\"')))",
            "200 other, own",
        ),
        // A timer continues no request.
        (
            "local result ngx.timer.at(0, function() result = call('/a').body end) while not result do ngx.sleep(0.001) end \
             ngx.say(tostring(result:lower():find('cdn%-loop')))",
            "200 nil",
        ),
        // A connection is used again.
        (
            "call('/a') local c = http.new() c:connect({scheme = 'http', host = '127.0.0.1', port = PORT}) ngx.say(c:get_reused_times())",
            "200 1",
        ),
        ("ngx.say(call('/a', {keepalive = false}).status)", "200 200"),
        (
            "local c = http.new() c:connect('127.0.0.1', PORT) local r = c:request({path = '/x'}) local n = 0 \
             repeat local piece = r.body_reader(10) n = n + #(piece or '') until not piece ngx.say(n > 20, c:set_keepalive())",
            "200 true1",
        ),
        (
            "ngx.say(table.concat(http.new():parse_uri('https://[::1]/a?b=c', false), ' ')) ngx.say(http.new():parse_uri('http://a@b/'))",
            "200 https [::1] 443 /a b=c\nnilbad uri: http://a@b/, it has a user",
        ),
    ] {
        assert_eq!(output_of(body, origin.port()), expected, "{body}");
    }
}

#[test]
fn http_reads_responses() {
    let whole = "local r, e = call('/') ngx.say(r and r.status or 'nil', ' ', tostring(r and r.body or e))";
    for (response, expected) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", "200 ab"),
        ("HTTP/1.1 200 OK\r\n\r\nto the end", "200 to the end"),
        ("HTTP/1.0 404 No\r\n\r\nx", "404 x"),
        ("HTTP/1.1 204 No\r\n\r\n", "204 "),
        ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", "200 x"),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=1\r\nabc\r\n2\r\nde\r\n0\r\nX-T: 1\r\n\r\n",
            "200 abcde",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n",
            "nil invalid chunk in the response",
        ),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\n", "nil invalid chunk in the response"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", "nil closed"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            "nil the response has several lengths",
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nab", "nil invalid Content-Length in the response"),
        ("HTTP/1.1 200 OK\r\nA b: 1\r\n\r\n", "nil invalid header line in the response"),
        ("nonsense\r\n\r\n", "nil couldn't parse HTTP version from response status line"),
        ("", "nil closed"),
    ] {
        let origin = origin(response);
        assert_eq!(output_of(whole, origin.port()), format!("200 {expected}").trim_end(), "{response}");
    }
    let large = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(4096));
    let large: &'static str = Box::leak(format!("{large}{}", chunk.repeat(6)).into_boxed_str());
    let expected = "200 nil the body of the response is larger than 20000 bytes";
    assert_eq!(output_of(whole, origin(large).port()), expected);
    let head: &'static str =
        Box::leak(format!("HTTP/1.1 200 OK\r\n{}\r\n", "X-A: 1\r\n".repeat(9000)).into_boxed_str());
    assert_eq!(output_of(whole, origin(head).port()), "200 nil the head of the response is too large");
}

#[test]
fn http_keeps_to_allowed_networks() {
    let body = "local c = require('resty.http').new() ngx.say(c:request_uri('http://127.0.0.1:1/'))";
    let refused = "200 nilscripts may not connect to 127.0.0.1; see the setting allowed_networks";
    assert_eq!(said_on_worker(&json!({}), body), refused);
}

/// Tests with an installed Redis.
mod installed {
    use super::*;

    #[test]
    fn redis_sends_commands() {
        let redis = sigma_testkit::Redis::start(&[]).unwrap();
        let start = "local red = require('resty.redis'):new() red:set_timeout(5000) assert(red:connect('127.0.0.1', PORT)) ";
        for (body, expected) in [
            (
                "ngx.say(red:set('a', 'b')) ngx.say(red:get('a')) ngx.say(red:get('none') == ngx.null)",
                "OK\nb\ntrue",
            ),
            ("ngx.say(red:incr('n')) ngx.say(red:incr('n'))", "1\n2"),
            (
                "red:set('text', 'x') ngx.say(red:incr('text'))",
                "falseERR value is not an integer or out of range",
            ),
            (
                "red:hmset('h', {x = 1}) red:hmset('h', 'y', 2) local h = red:array_to_hash(red:hgetall('h')) ngx.say(h.x, h.y)",
                "12",
            ),
            (
                "red:init_pipeline() red:set('p', 1) red:get('p') red:incr('h') local r = red:commit_pipeline() \
             ngx.say(r[1], r[2], tostring(r[3][1]), r[3][2]:sub(1, 9))",
                "OK1falseWRONGTYPE",
            ),
            ("ngx.say(red:eval('return {ARGV[1], {1}}', 0, 'v')[1])", "v"),
            (
                "ngx.say(red:set_keepalive(1000, 10)) red:connect('127.0.0.1', PORT) ngx.say(red:get_reused_times())",
                "1\n1",
            ),
            ("ngx.say(red:subscribe('c')[1]) ngx.say(red:set_keepalive())", "subscribe\nnilsubscribed state"),
        ] {
            let text = format!("{start}{body}").replace("PORT", &redis.port().to_string());
            assert_eq!(said_on_worker(&open(), &text), format!("200 {expected}"), "{body}");
        }
    }
}
