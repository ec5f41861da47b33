//! Tests of `ngx.re`, after the recorded responses of nginx.

use crate::snippets::{check, check_ended, output_of};

/// A table as text, in the order of its keys.
const DUMP: &str = "local D D = function(v) if type(v) == 'table' then local o = {} for k, x in pairs(v) do o[#o + 1] = tostring(k) .. '=' .. D(x) end table.sort(o) return '{' .. table.concat(o, ',') .. '}' end return tostring(v) end ";

fn check_dumped(cases: &[(&str, &str)]) {
    for (body, expected) in cases {
        assert_eq!(output_of(&format!("{DUMP}ngx.print({body})")), *expected, "{body}");
    }
}

#[test]
fn matches_have_groups_and_names() {
    check_dumped(&[
        (
            "D(ngx.re.match('b', '(a)?(b)(c)?')), #ngx.re.match('b', '(a)?(b)(c)?')",
            "{0=b,1=false,2=b,3=false}3",
        ),
        (
            "D(ngx.re.match('2026-11', '(?<y>[0-9]+)-(?<m>[0-9]+)(?<d>-[0-9]+)?'))",
            "{0=2026-11,1=2026,2=11,3=false,d=false,m=11,y=2026}",
        ),
        (
            "D(ngx.re.match('hello world', '(?<n>hello)|(?<n>world)', 'D'))",
            "{0=hello,1=hello,2=false,n={1=hello}}",
        ),
        ("D(ngx.re.match('ab', '(a)(b)', '', nil, {'old', x = 1}))", "{0=ab,1=a,2=b,x=1}"),
        ("ngx.re.match(12345, '3')[0], tostring(ngx.re.match(nil, 'a'))", "3nil"),
        ("#ngx.re.match('a\\0b\\255', 'a\\\\x00b\\\\xff')[0], #ngx.re.match('\\255', '\\255')[0]", "41"),
        ("D({ngx.re.match('aXbXc', 'x', 'i')})", "{1={0=X}}"),
        (
            "D({ngx.re.match('foobar', '(?<=foo)bar')}), D({ngx.re.match('abab', '(ab)\\\\1')})",
            "{1={0=bar}}{1={0=abab,1=ab}}",
        ),
    ]);
    check(&[
        (
            "local c = {pos = 2} ngx.say(ngx.re.match('abc', 'c', 'a', c), ngx.re.match('abc', 'b', 'a', {pos = 2})[0], ngx.re.match('xabc', '^a', '', {pos = 2}))",
            "nilbnil\n",
        ),
        ("local c = {} ngx.re.match('abc', 'b', '', c) ngx.say(c.pos)", "3\n"),
        (
            "ngx.say(#ngx.re.match('äöü', '.', 'u')[0], #ngx.re.match('äöü', '.')[0], ngx.re.match('Ä', 'ä', 'iu')[0])",
            "21Ä\n",
        ),
    ]);
}

#[test]
fn classes_of_pcre_are_known() {
    for (pattern, expected) in [
        ("\\\\d+", "12"),
        ("\\\\w+", "ab"),
        ("\\\\bworld\\\\b", "world"),
        ("[[:alpha:]]+", "ab"),
        ("\\\\Aab", "ab"),
        ("12\\\\z", "12"),
        ("\\\\x61", "a"),
        ("\\\\R", "\n"),
        ("\\\\Qa.b\\\\E", "a.b"),
        ("(?i)WORLD", "world"),
        ("\\\\h", " "),
        ("[^\\\\W\\\\d]+", "ab"),
    ] {
        let body = format!("ngx.print(ngx.re.match('ab world a.b a\\nc 12', '{pattern}')[0])");
        assert_eq!(output_of(&body), expected, "{pattern}");
    }
}

#[test]
fn errors_have_the_words_of_nginx() {
    check_dumped(&[
        ("pcall(ngx.re.match, 'a', 'a', 'z')", "falseunknown flag \"z\" (flags \"z\")"),
        ("pcall(ngx.re.gsub, 'a', 'a', print, 'z')", "falseunknown flag \"z\" (flags \"z\")"),
        ("ngx.re.match('a', '(')", "nilpcre_compile() failed: missing ) in \"(\""),
        ("ngx.re.match('a', '(', 'a')", "nilpcre_compile() failed: missing ) in \"(\""),
        (
            "ngx.re.find('a', 'a**b(')",
            "nilnilpcre_compile() failed: nothing to repeat in \"a**b(\" at \"*b(\"",
        ),
        ("ngx.re.match('a\\255b', '.', 'u')", "nilpcre_exec() failed: -10"),
        ("ngx.re.find('ab', '(a)(b)', '', nil, 3)", "nilnilnth out of bound"),
        ("ngx.re.find('ab', '(a)(b)', '', nil, 2)", "22"),
        ("ngx.re.gmatch('a', '(')", "nilpcre_compile() failed: missing ) in \"(\""),
        ("ngx.re.gsub('a', '(', function() end)", "nilnilpcre_compile() failed: missing ) in \"(\""),
    ]);
}

#[test]
fn replacements_are_texts_or_functions() {
    check_dumped(&[
        ("D({ngx.re.gsub('hello, world', '([a-z])[a-z]+', '[$0,$1]', 'i')})", "{1=[hello,h], [world,w],2=2}"),
        ("D({ngx.re.gsub('aaa', 'a', 'b')}), D({ngx.re.sub('aaa', 'a', 'b')})", "{1=bbb,2=3}{1=baa,2=1}"),
        ("D({ngx.re.gsub('', 'x*', '-')}), D({ngx.re.gsub('abc', 'x*', '-')})", "{1=-,2=1}{1=-a-b-c-,2=4}"),
        (
            "D({ngx.re.gsub('hello world', '([a-z])([a-z]+)', function(m) return m[1]:upper() .. m[2] .. '$0' end)})",
            "{1=Hello$0 World$0,2=2}",
        ),
        ("D({ngx.re.gsub('abc', 'x*', function() return '-' end)})", "{1=-a-b-c-,2=4}"),
        ("D({ngx.re.gsub('äb', 'x*', '-', 'u')})", "{1=-ä-b-,2=3}"),
        (
            "D({ngx.re.sub('abc', '(b)', '$9')}), D({ngx.re.sub('abc', '(b)', '${1}0$$')})",
            "{1=ac,2=1}{1=ab0$c,2=1}",
        ),
        ("D({ngx.re.gsub('abc', 'z', 'y')}), D({ngx.re.gsub('abc', 'b', 5)})", "{1=abc,2=0}{1=a5c,2=1}"),
    ]);
    for template in ["$x", "$", "${1", "${name}", "a$"] {
        let body = format!("ngx.print(ngx.re.sub('abc', '(b)', '{template}'))");
        assert_eq!(output_of(&body), "nilnilfailed to compile the replacement template", "{template}");
    }
}

#[test]
fn replacement_functions_may_fail_and_yield() {
    check(&[
        (
            "local ok, e = pcall(ngx.re.gsub, 'ab', 'a', function() error({code = 7}) end) ngx.say(ok, e.code)",
            "false7\n",
        ),
        (
            "local co = coroutine.wrap(function() return (ngx.re.gsub('ab', '.', function(m) coroutine.yield(m[0]) return m[0] .. '!' end)) end) ngx.say(co(), co(), co())",
            "aba!b!\n",
        ),
        ("ngx.re.gsub('ab', 'a', function() ngx.exit(403) end)", "403"),
    ]);
}

#[test]
fn iterators_give_all_matches() {
    check(&[
        ("for m in ngx.re.gmatch('a1b2', '([a-z])(\\\\d)') do ngx.print(m[1], m[2], ';') end", "a1;b2;"),
        ("for m in ngx.re.gmatch('abc', 'x*') do ngx.print('[', m[0], ']') end", "[][][][]"),
        ("local it = ngx.re.gmatch('a', 'a') it() ngx.say(it(), it())", "nilnil\n"),
    ]);
}

#[test]
fn texts_are_split() {
    check_dumped(&[
        ("D(require('ngx.re').split('a,b,c,d', ','))", "{1=a,2=b,3=c,4=d}"),
        ("D(require('ngx.re').split('a,b,c,d', ',', nil, nil, 2))", "{1=a,2=b,c,d}"),
        ("D(require('ngx.re').split('a,b,,', ','))", "{1=a,2=b}"),
        ("D(require('ngx.re').split('abcd', ''))", "{1=a,2=b,3=c,4=d}"),
        ("D(require('ngx.re').split('a1b2c', '(\\\\d)'))", "{1=a,2=1,3=b,4=2,5=c}"),
        ("D(require('ngx.re').split('a,b,c', ',', nil, {pos = 3}))", "{1=b,2=c}"),
        ("D(require('ngx.re').split('', ','))", "{}"),
        ("require('ngx.re').split('a', '(')", "nilpcre_compile() failed: missing ) in \"(\""),
        ("pcall(require('ngx.re').split, 'a', ',', nil, nil, nil, 'x')", "falseres is not a table"),
    ]);
}

#[test]
fn bombs_end_with_an_error() {
    check(&[
        ("ngx.say(ngx.re.match(('a'):rep(40) .. '!', '(a+)+$'))", "nilpcre_exec() failed: -8\n"),
        ("ngx.say(select(3, ngx.re.gsub(('a'):rep(40) .. '!', '(a+)+$', '')))", "pcre_exec() failed: -8\n"),
    ]);
    // A search from many places ends with the time of the script, and one that is long but linear does not.
    check_ended(&["ngx.say(ngx.re.match((('a'):rep(12) .. '!'):rep(2000), '(a+)+$'))"]);
    check(&[(
        "local m, e = ngx.re.match(('a'):rep(1000) .. 'b', '(?:a|c)*b') ngx.say(m and #m[0], e)",
        "1001nil\n",
    )]);
    // Many matches, each within its limit, end with the time of the script.
    check_ended(&[
        "while true do pcall(ngx.re.match, ('a'):rep(16) .. '!', '(a+)+$') end",
        "ngx.re.gsub(('a'):rep(1000000), 'a', ('x'):rep(1000000)) ngx.say(1)",
    ]);
}
