//! Tests of `resty.lock` and `resty.template`.

use serde_json::json;

use crate::snippets::{check, check_ended, said_on_worker};

#[test]
fn locks_exclude_each_other() {
    let said = |body: &str| {
        let body = format!(
            "local lock = require('resty.lock')\nlocal function new(o) return lock:new('plugin-limit-count', o) end\n{body}"
        );
        said_on_worker(&json!({}), &body)
    };
    for (body, expected) in [
        (
            "local a = new() ngx.print(a:lock('k'), tostring(a:unlock()), tostring(a:unlock()))",
            "0".to_owned() + "1nil",
        ),
        (
            "local a, b = new(), new({ timeout = 0.01 }) a:lock('k') ngx.print(select(2, b:lock('k')))",
            "timeout".to_owned(),
        ),
        (
            "local a, b = new({ exptime = 0.02 }), new() a:lock('k') ngx.print(b:lock('k') > 0)",
            "true".to_owned(),
        ),
        (
            "local a = new() a:lock('k') ngx.print(select(2, a:lock('k')), tostring(a:expire(1)))",
            "lockedtrue".to_owned(),
        ),
        (
            "local a, b = new(), new() a:lock('k') local t = ngx.thread.spawn(function() return b:lock('k') end) ngx.sleep(0.01) a:unlock() local ok, waited = ngx.thread.wait(t) ngx.print(ok, waited > 0)",
            "truetrue".to_owned(),
        ),
        ("ngx.print(select(2, lock:new('none')))", "dictionary not found".to_owned()),
    ] {
        assert_eq!(said(body), format!("200 {expected}"), "{body}");
    }
}

#[test]
fn views_have_expressions_and_code() {
    let cases: Vec<(String, &str)> = [
        ("'a{{x}}b', { x = '<1>' }", "a&lt;1&gt;b"),
        ("'{*x*}', { x = '<1>' }", "<1>"),
        ("'{% for i = 1, n do %}\\n{{i}},{% end %}', { n = 3 }", "1,2,3,"),
        ("'a{# no #}\\nb', {}", "ab"),
        ("'{-raw-}{{x}}{-raw-}{{x}}', { x = 1 }", "{{x}}1"),
        ("'{{none}}|{{context.x}}', { x = 2 }", "|2"),
        ("'{[v]}', { v = '<{{x}}>', x = 3 }", "<3>"),
        ("'{ x } { {', {}", "{ x } { {"),
        ("'{{string.upper(x)}}{{tostring(ngx)}}', { x = 'a' }", "Anil"),
    ]
    .into_iter()
    .map(|(arguments, expected)| {
        (format!("ngx.print(require('resty.template').process({arguments}))"), expected)
    })
    .collect();
    let cases: Vec<(&str, &str)> = cases.iter().map(|(body, expected)| (body.as_str(), *expected)).collect();
    check(&cases);
    check(&[
        ("require('resty.template').render('{{a}}', { a = 1 })", "1"),
        ("local v = require('resty.template').new('{{a}}') v.a = 5 ngx.print(tostring(v))", "5"),
        (
            "ngx.print(select(2, pcall(require('resty.template').process, '{{a', {})))",
            "the view has no `}}` after `{{`",
        ),
    ]);
    check_ended(&["ngx.print(pcall(require('resty.template').process, '{% while true do end %}', {}))"]);
}

#[test]
fn parts_of_addresses() {
    for (value, expected) in [
        ("u.build(u.parse('http://me:pw@[::1]:8080/a/b;p?q=1#f'))", "http://me:pw@[::1]:8080/a/b;p?q=1#f"),
        (
            "u.parse('http://me:pw@h.test:80/a').port, u.parse('http://me:pw@h.test:80/a').user, u.parse('')",
            "80menilinvalid url",
        ),
        // RFC 3986, 5.4.
        (
            "u.absolute('http://a/b/c/d;p?q', '../g'), ' ', u.absolute('http://a/b/c/d;p?q', './')",
            "http://a/b/g http://a/b/c/",
        ),
        (
            "u.absolute('http://a/b/c/d;p?q', '?y'), ' ', u.absolute('http://a/b/c/d;p?q', '../../../g')",
            "http://a/b/c/d;p?y http://a/g",
        ),
        (
            "u.escape('a b/c'), u.unescape('a%20b'), u.build_path({'a', 'b c', is_absolute = 1})",
            "a%20b%2fca b/a/b%20c",
        ),
        (
            "tostring(n.parse('HTTP://User:pw@Host.Test:80/a/./b/../c?x=1&z[]=1&z[]=2&w[k]=v#f'):normalize())",
            "http://User:pw@host.test/a/c?w[k]=v&x=1&z[1]=1&z[2]=2#f",
        ),
        ("n.parse('http://h:81/a?x=a+b').query.x, n.parse('http://h:81/').port", "a b81"),
        (
            "tostring(n.parse('http://h/a') / 'b'), ' ', tostring(n.parse('http://h/a/b'):resolve('../c?d'))",
            "http://h/a/b http://h/c?d",
        ),
        ("n.buildQuery({a = 1, b = {'x', 'y'}, c = 'a b'})", "a=1&b[1]=x&b[2]=y&c=a+b"),
    ] {
        let body = format!("local u, n = require('socket.url'), require('net.url') ngx.print({value})");
        assert_eq!(crate::snippets::output_of(&body), expected, "{value}");
    }
}
