//! The request, the response and variables as scripts see and change them; the rules are those recorded from nginx.

use sigma_plugin::{Phase, Reply};

use crate::snippets::{case_of, check, function, output_of, reply_to, said_on_worker};
use crate::testing::{Case, field};

/// A message without its place in the script.
const E: &str = "local function E(e) return (tostring(e):gsub('^[^\\n]-:%d+: ', '')) end \
    local function D(v) if type(v) ~= 'table' then return tostring(v) end local o = {} \
    for k, x in pairs(v) do o[#o + 1] = tostring(k) .. '=' .. D(x) end table.sort(o) return '{' .. table.concat(o, ',') .. '}' end ";

fn checked(cases: &[(&str, &str)]) {
    for (body, expected) in cases {
        assert_eq!(output_of(&format!("{E}{body}")).trim_end_matches('\n'), *expected, "{body}");
    }
}

#[test]
fn output_and_fields_have_limits() {
    let script = "local s, t = ('x'):rep(2 ^ 20), {} for i = 1, 600 do t[i] = s end local ok, e = pcall(ngx.print, t) \
         ngx.print(E(e)) ok, e = pcall(function() ngx.header.x = {s, s} end) ngx.print('|', E(e))";
    let said = said_on_worker(&serde_json::json!({}), &format!("{E}{script}"));
    let expected = "200 bad argument #1 to '?' (a script may write 8388608 bytes at most)|the fields of a message may take 1048576 bytes at most";
    assert_eq!(said, expected);
}

/// The request after a function in the phase `access`, which must pass it on.
fn passed(request: &str, body: &[u8], script: &str) -> Case {
    let mut case = case_of(request);
    case.body = body.to_vec();
    let reply = case.run(&function("access", script), Phase::Access);
    assert!(reply.is_none(), "{script}: {reply:?}");
    case
}

/// The response of a function to a request with a body.
fn answered(request: &str, body: &[u8], script: &str) -> String {
    let mut case = case_of(request);
    case.body = body.to_vec();
    let reply = case.run(&function("access", &format!("{E}{script}")), Phase::Access).unwrap();
    String::from_utf8_lossy(&reply.body.unwrap_or_default()).into_owned()
}

fn fields(reply: &Reply, name: &str) -> Vec<String> {
    let named = reply.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
    named.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect()
}

fn answer(script: &str) -> Reply {
    reply_to("GET / HTTP/1.1\nHost: h.test", &format!("{E}{script}")).unwrap()
}

#[test]
fn response_fields_are_read_back() {
    checked(&[
        (
            "ngx.header['X-A'] = '1' ngx.header['X-C'] = {'a', 'b'} local c = ngx.header['x-c'] \
             ngx.say(ngx.header['X-A'], ngx.header.x_a, type(c), table.concat(c, ','))",
            "11tablea,b",
        ),
        (
            "ngx.say(tostring(ngx.header['X-None']), tostring(ngx.header.etag), tostring(ngx.header[nil]))",
            "nilnilnil",
        ),
        (
            "ngx.header['X-A'] = {'only'} ngx.say(type(ngx.header['X-A']), ' ', ngx.header['X-A'])",
            "string only",
        ),
        ("ngx.header.x = 1 local n = 0 for k in pairs(ngx.header) do n = n + 1 end ngx.say(n)", "0"),
        ("ngx.header.x = '1' ngx.header.x = '' ngx.say(tostring(ngx.header.x))", "nil"),
        (
            "ngx.header['X-A'] = '1' local h = ngx.resp.get_headers() ngx.say(tostring(h['x-a']), tostring(h['X_A']))",
            "11",
        ),
        (
            "ngx.header['Content-Type'] = 'text/x' for i = 1, 10 do ngx.header['X-N' .. i] = i end local h, e = ngx.resp.get_headers(3) \
             local n = 0 for _ in pairs(h) do n = n + 1 end ngx.say(n, e)",
            "4truncated",
        ),
        ("ngx.status = 404 ngx.say(ngx.status)", "404 404"),
        (
            "local ok, e = pcall(ngx.say, {1, 2, x = 3}) ngx.say(ok, ' ', E(e)) ok, e = pcall(ngx.say, print) ngx.say(E(e))",
            "false bad argument #1 to '?' (non-array table found)\nbad argument #1 to '?' (string, number, boolean, nil, \
             ngx.null, or array table expected, but got function)",
        ),
        // A status of an interim response is not a final one.
        ("ngx.status = 101 ngx.say('x')", "500 x"),
        (
            "local t = {} for i = 1, 30 do t = {t, t} end local ok, e = pcall(ngx.print, t) ngx.say(E(e):match('tables may have %d+'))",
            "tables may have 65536",
        ),
        (
            "local ok, e = pcall(ngx.req.set_header, ('x'):rep(70000), '1') ngx.say(E(e))",
            "the name of a field may have 1024 bytes at most",
        ),
        (
            "local ok, e = pcall(function() ngx.status = 'abc' end) ngx.say(ok, ' ', E(e))",
            "false bad argument #2 to 'ngx_http_lua_ffi_set_resp_status' (cannot convert 'nil' to 'int')",
        ),
    ]);
}

#[test]
fn response_fields_reach_the_client() {
    let reply = answer(
        "ngx.header['X-A'] = print ngx.header['X-C'] = {'a', 'b', ''} ngx.header.x_d = 'a\\r\\nb' ngx.say('x')",
    );
    assert!(fields(&reply, "X-A")[0].starts_with("function: 0x"), "{reply:?}");
    assert_eq!(fields(&reply, "X-C"), ["a", "b"]);
    assert_eq!(fields(&reply, "X-D"), ["a%0D%0Ab"]);
    // Single fields have the last value; the gateway frames the message.
    let reply = answer(
        "ngx.header.location = {'/a', '/b'} ngx.header['Content-Length'] = 99 ngx.header.connection = 'x' ngx.say('x')",
    );
    assert_eq!(fields(&reply, "Location"), ["/b"]);
    assert_eq!((field(&reply, "Content-Length"), field(&reply, "Connection")), (None, None));
    // After the head nothing changes.
    let reply = answer(
        "ngx.status = 202 ngx.header['X-One'] = '1' ngx.send_headers() ngx.header['X-Two'] = '2' ngx.status = 500 ngx.say('x')",
    );
    assert_eq!((reply.status, field(&reply, "X-One"), field(&reply, "X-Two")), (202, Some("1".into()), None));
    let reply = answer(
        "require('ngx.resp').add_header('X-A', {'1', '2'}) ngx.resp.add_header('x_a', '3') ngx.exit(403)",
    );
    assert_eq!((reply.status, fields(&reply, "x-a").join(",")), (403, "1,2,3".into()));
}

#[test]
fn redirects_name_the_target() {
    let reply = answer("ngx.redirect('http://example.test/a?b=c#d', 301)");
    assert_eq!(
        (reply.status, field(&reply, "Location").as_deref()),
        (301, Some("http://example.test/a?b=c#d"))
    );
    assert_eq!(answer("ngx.redirect('/x')").status, 302);
    checked(&[
        (
            "local ok, e = pcall(ngx.redirect, '/x', 300) ngx.say(ok, ' ', E(e))",
            "false only ngx.HTTP_MOVED_TEMPORARILY, ngx.HTTP_MOVED_PERMANENTLY, ngx.HTTP_PERMANENT_REDIRECT, \
             ngx.HTTP_SEE_OTHER, and ngx.HTTP_TEMPORARY_REDIRECT are allowed",
        ),
        (
            "local ok, e = pcall(ngx.redirect, '/x\\r\\nX-Bad: 1') ngx.say(ok, ' ', E(e))",
            "false unsafe byte \"0x0d\" in redirect uri \"/x\\x0D\\x0AX-Bad: 1\"",
        ),
    ]);
}

/// A response of the node after a header filter.
fn filtered(head: &str, script: &str) -> Case {
    let mut case = case_of("GET / HTTP/1.1\nHost: h.test");
    case.respond(200, head);
    case.header_filter(&function("header_filter", script));
    case
}

#[test]
fn header_filters_change_the_node_response() {
    let check = |script: &str, name: &str, expected: &str| {
        let head = "X-Rep: a\nX-Rep: b\nContent-Type: text/plain\nETag: \"v1\"\nContent-Length: 12\nCache-Control: no-cache\nCache-Control: private\nX-Under_score: u";
        assert_eq!(filtered(head, script).answered(name), expected, "{script}");
    };
    check("ngx.header['X-Rep'] = nil ngx.header.etag = nil", "x-rep", "");
    check("ngx.header.etag = nil", "etag", "");
    check("ngx.header['X-Rep'] = 'one'", "x-rep", "one");
    check("local r = ngx.header['X-Rep'] r[#r + 1] = 'c' ngx.header['X-Rep'] = r", "x-rep", "a, b, c");
    check(
        "local c = ngx.header['Cache-Control'] ngx.header['X-Saw'] = type(c) .. ':' .. table.concat(c, '|')",
        "x-saw",
        "table:no-cache|private",
    );
    check(
        "ngx.header['X-Saw'] = ngx.header['Content-Type'] ngx.header['Content-Type'] = 'a/b'",
        "content-type",
        "a/b",
    );
    check("ngx.header['X-S'] = ngx.status", "x-s", "200");
    check("ngx.header['X-U'] = tostring(ngx.header.x_under_score)", "x-u", "nil");
    check("ngx.header['X-U'] = ngx.resp.get_headers()['x-under_score']", "x-u", "u");
    check("ngx.header['X-N'] = 'n' ngx.header['X-U'] = tostring(ngx.var.sent_http_x_n)", "x-u", "n");
    check("ngx.header['Transfer-Encoding'] = 'chunked'", "transfer-encoding", "");
}

#[test]
fn fields_set_before_the_response_come_with_it() {
    let mut case = case_of("GET / HTTP/1.1\nHost: h.test");
    let entry = function("access", "ngx.header['X-A'] = '1' ngx.header['Content-Type'] = 'a/b'");
    assert!(case.run(&entry, Phase::Access).is_none());
    case.respond(200, "X-A: 2\nContent-Type: text/plain");
    case.header_filter(&entry);
    assert_eq!((case.answered("x-a"), case.answered("content-type")), ("2, 1".into(), "text/plain".into()));
}

#[test]
fn request_fields_are_changed() {
    let request = "GET /p HTTP/1.1\nHost: h\nX-A: 1\nX-A: 2\nX-B: 2\nX-C: 3\nCookie: a=1";
    let check = |script: &str, expected: &[(&str, &str)]| {
        let case = passed(request, b"", script);
        for (name, value) in expected {
            let fields = case.ctx.request.headers.iter().filter(|(n, _)| *n == name.as_bytes());
            let values: Vec<_> = fields.map(|(_, value)| String::from_utf8_lossy(value)).collect();
            assert_eq!(values.join(","), *value, "{script}");
        }
    };
    check(
        "ngx.req.set_header('X-A', 'changed') ngx.req.set_header('X-Num', 12)",
        &[("X-A", "changed"), ("X-Num", "12")],
    );
    check(
        "ngx.req.set_header('X-A', nil) ngx.req.set_header('X-B', {}) ngx.req.clear_header('x-c')",
        &[("X-A", ""), ("X-B", ""), ("X-C", "")],
    );
    check("ngx.req.set_header('X-A', '')", &[("X-A", "")]);
    check("ngx.req.set_header('X-A', 'a\\r\\nX-Bad: b')", &[("X-A", "a%0D%0AX-Bad: b"), ("X-Bad", "")]);
    check("ngx.req.set_header('x_a', 'new')", &[("X-A", "1,2"), ("x_a", "new")]);
    check(
        "local r = require 'ngx.req' r.add_header('X-A', '3') r.add_header('X-A', {'4', '5'})",
        &[("X-A", "1,2,3,4,5")],
    );
    check("ngx.req.set_header('Cookie', 'z=9')", &[("Cookie", "z=9")]);
    check("ngx.req.set_header('X-A b:c', '1')", &[("X-A%20b%3Ac", "1")]);
    // The gateway frames the message.
    check(
        "for _, n in ipairs{'Content-Length', 'Transfer-Encoding', 'Connection', 'TE', 'Upgrade'} do ngx.req.set_header(n, '7') end",
        &[("Content-Length", ""), ("Transfer-Encoding", ""), ("Connection", ""), ("TE", ""), ("Upgrade", "")],
    );
    let case = passed(request, b"", "ngx.req.set_header('Host', 'other.test:81')");
    assert_eq!(case.ctx.host.as_deref(), Some(&b"other.test:81"[..]));
}

#[test]
fn request_fields_of_scripts_cannot_come_from_clients() {
    let case = passed("GET / HTTP/1.1\nHost: h\nx_user: forged", b"", "ngx.req.set_header('X-User', 'u')");
    assert_eq!((case.sent("x_user"), case.sent("X-User").as_deref()), (None, Some("u")));
    assert!(case.ctx.owned.iter().any(|owned| owned.covers(b"x_user")));
}

/// A node believes the fields of authenticating plugins: a script that takes a name from the client must not set them.
#[test]
fn scripts_cannot_set_fields_of_other_plugins() {
    let run = |script: &str| {
        let mut case = case_of("GET / HTTP/1.1\nHost: h");
        case.ctx.claim(sigma_plugin::OwnedField::sole("X-Userinfo"));
        case.ctx.claim(sigma_plugin::OwnedField::shared("X-Shared"));
        case.ctx.request.headers.append("X-Userinfo", b"jack");
        let reply = case.run(&function("access", script), Phase::Access);
        (
            reply.map(|reply| reply.status),
            case.sent("X-Userinfo"),
            case.sent("x_userinfo"),
            case.sent("X-Shared"),
        )
    };
    let jack = || Some("jack".to_owned());
    for name in ["X-Userinfo", "x_userinfo", "x.userinfo"] {
        let script = format!("ngx.req.set_header('{name}', 'root')");
        assert_eq!(run(&script), (Some(500), jack(), None, None), "{script}");
        let script = format!("require('ngx.req').add_header('{name}', 'root')");
        assert_eq!(run(&script), (Some(500), jack(), None, None), "{script}");
    }
    assert_eq!(run("ngx.req.clear_header('X-Userinfo')"), (None, None, None, None));
    assert_eq!(run("ngx.req.set_header('X-Shared', '1')"), (None, jack(), None, Some("1".to_owned())));
}

#[test]
fn request_fields_are_bounded() {
    checked(&[
        (
            "local t = {} for i = 1, 400 do t[i] = '1' end ngx.header.a = t ngx.header.b = t \
             local ok, e = pcall(function() ngx.header.c = t end) ngx.say(ok, ' ', E(e))",
            "false a message may have 1000 fields at most",
        ),
        (
            "local v = ('x'):rep(100000) local ok, e = pcall(function() for i = 1, 5000 do ngx.req.set_header('X', v) end end) ngx.say(ok, ' ', E(e))",
            "false the fields of a message may take 1048576 bytes at most",
        ),
        (
            "local v = ('x'):rep(100000) local ok, e = pcall(function() for i = 1, 5000 do ngx.header.x = v end end) ngx.say(ok, ' ', E(e))",
            "false the fields of a message may take 1048576 bytes at most",
        ),
    ]);
}

#[test]
fn request_is_read() {
    let request = "GET /s/x?k&k=1&k=&=e&b=a+%41 HTTP/1.1\nHost: h\nX-Aa: 1\nX-B: 1\nX-B: 2";
    let read = |script: &str| answered(request, b"", &format!("ngx.print({script})"));
    assert_eq!(read("D(ngx.req.get_headers()['x-b'])"), "{1=1,2=2}");
    assert_eq!(read("ngx.req.get_headers()['X_Aa'], tostring(ngx.req.get_headers()[1])"), "1nil");
    assert_eq!(
        read("ngx.req.get_headers(0, true)['X-Aa'], tostring(ngx.req.get_headers(0, true)['x-aa'])"),
        "1nil"
    );
    assert_eq!(read("select(2, ngx.req.get_headers(2))"), "truncated");
    assert_eq!(read("D(ngx.req.get_uri_args())"), "{b=a A,k={1=true,2=1,3=}}");
    assert_eq!(read("D({ngx.req.get_uri_args(2)})"), "{1={k={1=true,2=1}},2=truncated}");
    assert_eq!(
        read("ngx.req.get_method(), ngx.req.http_version(), tostring(ngx.req.is_internal())"),
        "GET1.1false"
    );
    assert_eq!(
        read("ngx.req.raw_header()"),
        "GET /s/x?k&k=1&k=&=e&b=a+%41 HTTP/1.1\r\nHost: h\r\nX-Aa: 1\r\nX-B: 1\r\nX-B: 2\r\n\r\n"
    );
    assert_eq!(read("type(ngx.req.start_time())"), "number");
    let many: Vec<String> = (0..120).map(|number| format!("a{number}=1")).collect();
    let request = format!("GET /?{} HTTP/1.1\nHost: h", many.join("&"));
    let script = "local a, e = ngx.req.get_uri_args() local n = 0 for _ in pairs(a) do n = n + 1 end \
        local b, f = ngx.req.get_uri_args(0) local m = 0 for _ in pairs(b) do m = m + 1 end ngx.say(n, e, ' ', m, tostring(f))";
    assert_eq!(answered(&request, b"", script), "100truncated 120nil\n");
}

#[test]
fn targets_are_changed() {
    let check = |script: &str, target: &str| {
        let case = passed("GET /s/x%2Fy?a=1 HTTP/1.1\nHost: h", b"", script);
        assert_eq!(case.target(), target, "{script}");
    };
    check("ngx.req.set_uri('/new path/x') assert(ngx.var.uri == '/new path/x')", "/new%20path/x?a=1");
    check(
        "ngx.req.set_uri_args('x=1&y=a%20b c') assert(ngx.var.args == 'x=1&y=a%20b%20c')",
        "/s/x%2Fy?x=1&y=a%20b%20c",
    );
    check("ngx.req.set_uri_args({['a b'] = 'c&d=e/f?'})", "/s/x%2Fy?a%20b=c%26d%3De%2Ff%3F");
    check("ngx.req.set_uri_args({flag = true, no = false})", "/s/x%2Fy?flag");
    check("ngx.req.set_uri_args({n = {1.5, 'b'}})", "/s/x%2Fy?n=1.5&n=b");
    check("ngx.req.set_uri_args({})", "/s/x%2Fy");
    check("ngx.var.args = 'b=2' assert(ngx.var.arg_b == '2')", "/s/x%2Fy?b=2");
    check("ngx.var.upstream_uri = '/u?q=\\r\\nx'", "/u?q=%0D%0Ax");
    check("ngx.var.upstream_uri = '/u' ngx.var.upstream_uri = ''", "/s/x%2Fy?a=1");
    checked(&[
        (
            "for _, u in ipairs{'', '/a\\nb', '/a b'} do local ok, e = pcall(ngx.req.set_uri, u) ngx.say(ok, ' ', E(e)) end",
            "false attempt to use zero-length uri\nfalse unsafe byte \"0x0a\" in uri \"/a\\x0Ab\" \
             (maybe you want to set the 'binary' argument?)\ntrue nil",
        ),
        (
            "local ok, e = pcall(ngx.req.set_uri, '/x', true) ngx.say(ok, ' ', E(e))",
            "false API disabled in the context of access_by_lua*",
        ),
        (
            "local ok, e = pcall(ngx.req.set_uri_args, {1}) ngx.say(E(e))",
            "attempt to use a non-string key in the \"args\" option table",
        ),
    ]);
}

#[test]
fn hidden_arguments_stay_hidden() {
    let mut case = case_of("GET /p?apikey=secret&b=2 HTTP/1.1\nHost: h");
    case.ctx.hide_argument("apikey");
    let script = "local a = ngx.req.get_uri_args() a.c = '3' assert(a.apikey == nil and ngx.var.arg_apikey == nil) ngx.req.set_uri_args(a)";
    assert!(case.run(&function("access", script), Phase::Access).is_none());
    assert!(!case.target().contains("secret") && case.target().contains("b=2"), "{}", case.target());
}

#[test]
fn methods_are_changed() {
    let case = passed(
        "POST / HTTP/1.1\nHost: h",
        b"",
        "ngx.req.set_method(ngx.HTTP_PUT) assert(ngx.req.get_method() == 'PUT')",
    );
    assert_eq!(case.ctx.request.method_token(), b"PUT");
    checked(&[("local ok, e = pcall(ngx.req.set_method, 3) ngx.say(E(e))", "unsupported HTTP method: 3")]);
}

#[test]
fn bodies_are_read_and_replaced() {
    const POST: &str = "POST / HTTP/1.1\nHost: h\nContent-Length: 5";
    let check = |body: &str, script: &str, expected: &str| {
        assert_eq!(answered(POST, body.as_bytes(), script).trim_end_matches('\n'), expected, "{script}");
    };
    check("hello", "ngx.req.read_body() ngx.say(tostring(ngx.req.get_body_data()))", "hello");
    check(
        "hello",
        "ngx.req.read_body() ngx.say(ngx.req.get_body_data(3), tostring(ngx.req.get_body_file()))",
        "helnil",
    );
    check("hello", "ngx.say(tostring(ngx.req.get_body_data()))", "nil");
    check("", "ngx.req.read_body() ngx.say(tostring(ngx.req.get_body_data()))", "nil");
    check(
        "hello",
        "local ok, e = pcall(ngx.req.set_body_data, 'x') ngx.say(ok, ' ', E(e))",
        "false request body not read yet",
    );
    check(
        "a=1&b=x+y&a=2&c",
        "ngx.req.read_body() local a, e = ngx.req.get_post_args() ngx.say(D(a), tostring(e))",
        "{a={1=1,2=2},b=x y,c=true}nil",
    );
    check(
        "a=1",
        "local ok, e = pcall(ngx.req.get_post_args) ngx.say(E(e))",
        "no request body found; maybe you should turn on lua_need_request_body?",
    );
    check(
        "hello world",
        "local s, e = ngx.req.socket() ngx.say(s:receive(3), ' ', s:receive('*a'))",
        "hel lo world",
    );
    check(
        "a\nb",
        "local s = ngx.req.socket() ngx.say(s:receive()) ngx.say(D({s:receive()}))",
        "a\n{2=closed,3=b}",
    );
    check("x", "ngx.req.discard_body() ngx.say(tostring(ngx.req.get_body_data()))", "nil");
    check("x", "local ok, e = pcall(ngx.req.append_body, 'x') ngx.say(E(e))", "request_body not initialized");
    check(
        "x",
        "ngx.req.read_body() local ok, e = pcall(ngx.req.set_body_data, ('x'):rep(2 ^ 20 + 1)) ngx.say(E(e))",
        "a request body of scripts may have 1048576 bytes at most",
    );
    let node = |request: &str, body: &[u8], script: &str| passed(request, body, script).ctx.body.unwrap();
    assert_eq!(
        node("GET / HTTP/1.1\nHost: h", b"", "ngx.req.read_body() ngx.req.set_body_data('for a GET')"),
        b"for a GET"
    );
    assert_eq!(
        node(POST, b"x", "ngx.req.read_body() ngx.req.set_body_data('\\0\\255' .. ngx.req.get_body_data())"),
        b"\0\xffx"
    );
    assert_eq!(node(POST, b"x", "ngx.req.read_body() ngx.req.set_body_data(12)"), b"12");
    assert_eq!(
        node(
            POST,
            b"x",
            "ngx.req.read_body() ngx.req.init_body(9) ngx.req.append_body('a') ngx.req.append_body('bc') ngx.req.finish_body()"
        ),
        b"abc"
    );
    assert_eq!(answered("GET / HTTP/1.1\nHost: h", b"", "ngx.say(select(2, ngx.req.socket()))"), "no body\n");
}

#[test]
fn variables_are_read() {
    let request = "GET /s/v?A=1&b=x%20y&c HTTP/1.1\nHost: GW.test:80\nX-A: h\nCookie: a=1; b=two words; A=3";
    let check = |expression: &str, expected: &str| {
        assert_eq!(
            answered(request, b"", &format!("ngx.print(tostring({expression}))")),
            expected,
            "{expression}"
        );
    };
    check("ngx.var.request_method", "GET");
    check("ngx.var.uri", "/s/v");
    check("ngx.var.request_uri", "/s/v?A=1&b=x%20y&c");
    check("ngx.var.args", "A=1&b=x%20y&c");
    check("ngx.var.is_args", "?");
    check("ngx.var.host", "gw.test");
    check("ngx.var.server_protocol", "HTTP/1.1");
    check("ngx.var.remote_addr", "127.0.0.1");
    check("ngx.var.arg_a", "1");
    check("ngx.var.ARG_A", "1");
    check("ngx.var.arg_b", "x%20y");
    check("ngx.var.arg_c", "nil");
    check("ngx.var.cookie_a", "1");
    check("ngx.var.cookie_b", "two words");
    check("ngx.var.cookie_c", "nil");
    check("ngx.var.HTTP_X_A", "h");
    check("ngx.var['http_x-a']", "nil");
    check("ngx.var.http_none", "nil");
    check("ngx.var.content_length", "nil");
    check("ngx.var.status", "000");
    check("ngx.var.no_such_thing", "nil");
    check("ngx.var.upstream_uri", "");
    check("ngx.var.upstream_upgrade", "");
    check("ngx.var[1]", "nil");
    checked(&[
        (
            "local ok, e = pcall(function() ngx.var.uri = '/x' end) ngx.say(ok, ' ', E(e))",
            "false variable \"uri\" not changeable",
        ),
        (
            "local ok, e = pcall(function() ngx.var.no_such_thing = 'x' end) ngx.say(ok, ' ', E(e))",
            "false variable \"no_such_thing\" not found for writing; maybe it is a built-in variable that is not changeable \
             or you forgot to use \"set $no_such_thing '';\" in the config file to define it first",
        ),
        (
            "ngx.var.upstream_scheme = 'https' ngx.say(ngx.var.upstream_scheme) ngx.var.upstream_scheme = nil ngx.say(tostring(ngx.var.upstream_scheme))",
            "https\nnil",
        ),
        (
            "local ok, e = pcall(function() ngx.var.upstream_host = 'a b' end) ngx.say(E(e))",
            "the new host is not a name of a host",
        ),
        (
            "ngx.ctx.a = {1, x = 'y'} ngx.say(ngx.ctx.a.x, tostring(ngx.ctx.none)) ngx.ctx = {b = 1} ngx.say(ngx.ctx.b)",
            "ynil\n1",
        ),
        (
            "local ok, e = pcall(function() return ngx.arg[1] end) ngx.say(E(e))",
            "API disabled in the current context",
        ),
    ]);
}

#[test]
fn body_filters_change_pieces() {
    let check = |script: &str, pieces: &[&[u8]], expected: &str| {
        let mut case = case_of("GET / HTTP/1.1\nHost: h");
        case.respond(200, "Content-Length: 11");
        let body = case.filter(&function("body_filter", script), pieces);
        assert_eq!(String::from_utf8_lossy(&body), expected, "{script}");
    };
    let pieces: &[&[u8]] = &[b"one", b"two", b"three"];
    check("ngx.arg[1] = ngx.arg[1]:upper()", pieces, "ONETWOTHREE");
    check("if ngx.arg[2] then ngx.arg[1] = ngx.arg[1] .. 'the end' end", pieces, "onetwothreethe end");
    check(
        "if ngx.arg[1] ~= '' then ngx.arg[1] = {'a', {'b', 1}, ngx.arg[1]} end",
        pieces,
        "ab1oneab1twoab1three",
    );
    check("if ngx.arg[1] ~= '' then ngx.arg[1] = 12.5 end", pieces, "12.512.512.5");
    check("ngx.arg[1] = ngx.arg[1] .. '+'", pieces, "one+two+three++");
    check("if ngx.arg[1] == 'two' then ngx.arg[1] = nil end", pieces, "onethree");
    check("if ngx.arg[1] == 'two' then ngx.arg[2] = true end", pieces, "onetwo");
    check(
        "ngx.arg[1] = type(ngx.arg[1]) .. tostring(ngx.arg[2]) .. tostring(ngx.arg[3])",
        &[],
        "stringtruenil",
    );
    check(
        "local ok, e = pcall(function() ngx.arg[1] = true end) ngx.arg[1] = e:match('bad chunk.*')",
        &[],
        "bad chunk data type: boolean",
    );
    check("ngx.header['X-Late'] = '1' ngx.status = 500", pieces, "onetwothree");
}

#[test]
fn calls_of_other_phases_fail() {
    let script = "local o = {} for _, c in ipairs{{'read_body', ngx.req.read_body}, {'get_body_data', ngx.req.get_body_data}, \
        {'set_body_data', ngx.req.set_body_data, 'x'}, {'redirect', ngx.redirect, '/'}, {'req_socket', ngx.req.socket}, \
        {'set_uri', ngx.req.set_uri, '/s'}, {'set_method', ngx.req.set_method, ngx.HTTP_GET}, {'set_uri_args', ngx.req.set_uri_args, 'a=1'}, \
        {'get_post_args', ngx.req.get_post_args}, {'set_header', ngx.req.set_header, 'X-Y', '1'}} do \
        local ok, e = pcall(unpack(c, 2)) if not ok then o[#o + 1] = c[1] .. '=' .. e:match('API.*') end end ngx.header['X-D'] = table.concat(o, ';')";
    let disabled = "API disabled in the context of header_filter_by_lua*";
    let expected = ["read_body", "redirect", "req_socket"].map(|name| format!("{name}={disabled}")).join(";");
    assert_eq!(filtered("X-A: 1", script).answered("x-d"), expected);
    check(&[("ngx.say(ngx.get_phase())", "access\n")]);
}
