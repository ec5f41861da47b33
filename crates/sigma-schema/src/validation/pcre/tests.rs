//! Tests of APISIX's patterns, of PCRE syntax, and of unsupported syntax.

use super::*;

fn check(source: &str, matches: &[&str], differs: &[&str]) {
    let pattern = Pattern::compile(source).unwrap_or_else(|error| panic!("{error}"));
    for text in matches {
        assert!(pattern.is_match(text), "{source} should match {text:?}");
    }
    for text in differs {
        assert!(!pattern.is_match(text), "{source} should not match {text:?}");
    }
}

/// All patterns in the schemas of APISIX, of its plugins and of its discovery settings.
#[test]
fn patterns_of_apisix() {
    check(r"^[a-zA-Z0-9-_.]+$", &["a-b_c.d", "1"], &["", "a b", "a/b", "a\n"]);
    check(r"^[a-zA-Z0-9-_]+/credentials/[a-zA-Z0-9-_.]+$", &["jack/credentials/c.1"], &["jack/c1"]);
    check(r"^\S+$", &["a", "\u{a0}"], &["a b", "a\tb", ""]);
    check(
        r"^\*$|^\*?[0-9a-zA-Z-._\[\]:]+$",
        &["*", "*.a.com", "a-b.com", "[::1]:80"],
        &["a*.com", "", "a b", "**"],
    );
    check(
        r"^[^\/]+:\/\/([\da-zA-Z.-]+|\[[\da-fA-F:]+\])(:\d+)?",
        &["http://a.b:80/c", "https://[::1]:8200"],
        &["/a", "http:/a", "a"],
    );
    check(r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$", &["a.b_1"], &["a.", "1a", "a..b"]);
    let key = concat!(
        r"^((uri|server_name|server_addr|request_uri|remote_port|remote_addr|query_string|host|hostname",
        r"|mqtt_client_id)|arg_[0-9a-zA-z_-]+)$"
    );
    check(key, &["uri", "arg_a-b", "mqtt_client_id"], &["arg_", "uriX", "cookie_a"]);
    check(r"^[a-zA-Z0-9-_]+$", &["x-b_1"], &["a.b", ""]);
    check(r"^[a-zA-Z0-9_\-]+$", &["x-b_1"], &["a.b", ""]);
    check(
        r"^http(s)?:\/\/([a-zA-Z0-9-_.]+:.+\@)?[a-zA-Z0-9-_.:]+$",
        &["http://u:p@a:1", "https://a_b.c:8848"],
        &["ftp://a", "http://a/b"],
    );
    check(r"^[a-z0-9]{1,64}$", &["a1"], &["A", ""]);
    check(r"^[1-9][0-9]*m$", &["10m"], &["0m", "10"]);
    check(r"^[0-9a-zA-Z-.]+(:\d{1,5})?$", &["a-b.c:80"], &["a:", "a:123456"]);
    check(r"^[^:]+$", &["X-A"], &["a:b", ""]);
    check(r"^https?://", &["http://", "https://a"], &["httpx://"]);
    check(r"^[^:]+:[^:]*[^/]$", &["a:b", "a: b c"], &["a:b/", "a:b:c", "a"]);
    check(r"^\$.*", &["$a"], &["a$"]);
    check(r"^\d+\.\d+\.\d+", &["1.2.3-x"], &["1.2", "\u{661}.2.3"]);
    check(r"[^/]$", &["http://a"], &["http://a/", ""]);
    check(r"^[^[:cntrl:]\x22\x5c]+$", &["a b"], &["a\"", "\\", "\t"]);
    check(r"^[0-9]{1,3}.[0-9]{1,3}.[0-9]{1,3}.[0-9]{1,3}$", &["127.0.0.1", "1x0x0x1"], &["a", "1.2.3"]);
    check(r"^[^$].+$", &["ab"], &["$ab", "a"]);
    check(r"^\$[0-9a-zA-Z_]+$", &["$uri"], &["uri", "$"]);
    check(
        r"^(\*|\*\*|null|\w+://[^,]+(,\w+://[^,]+)*)$",
        &["*", "**", "null", "http://a,https://b"],
        &["***", "a", "http://a,"],
    );
    check(r"^/[^?&]+$", &["/a"], &["/a?b", "/"]);
    check(r"^[\p{L}][\p{L}\p{N}_.:/-]*(?<!:)$", &["a", "env:prod", "\u{e4}b/c"], &["env:", "1a", ":", "a b"]);
    check(r"^[a-zA-Z0-9._-]+$", &["a.b_c-d"], &["a b", ""]);
    check(r"^[^/]+://([\da-zA-Z.-]+|\[[\da-fA-F:]+\])(:\d+)?", &["tcp://[::1]:1"], &["tcp:/a"]);
    check(r"#END\s*$", &["a\n#END \n"], &["#END x"]);
    check(r".*", &["", "a\nb"], &[]);
}

#[test]
fn syntax_of_pcre() {
    check(r"[[]", &["["], &["]"]);
    check(r"[]a]", &["]", "a"], &["b"]);
    check(r"^[^]a]$", &["b", "["], &["]", "a"]);
    check(r"^[a&&b]+$", &["&ab"], &["c"]);
    check(r"^[!--]+$", &["!,-"], &[".", "a"]);
    check(r"^[a-\d]+$", &["a-1"], &["b"]);
    check(r"^[a~~-]+$", &["a~-"], &["b"]);
    check(r"^[\w-]+$", &["a-_9"], &["\u{e4}"]);
    check(r"^[\W]$", &["-", "\u{e4}"], &["a"]);
    check(r"^[\b]$", &["\u{8}"], &["b"]);
    check(r"^[[:alpha:][:digit:]_]+$", &["a1_"], &["-"]);
    check(r"^[[:^alpha:]]$", &["1"], &["a"]);
    check(r"a{,2}", &["a{,2}"], &["aa"]);
    check(r"^\${?\w+}?$", &["${a}", "$a"], &["{a}"]);
    check(r"^{a}$", &["{a}"], &["a"]);
    check(r"a{x", &["a{x"], &["ax"]);
    check(r"\bfoo\b", &["a foo b"], &["afoo"]);
    check(r"\<a\>", &["<a>"], &["a"]);
    check(r"^\Qa.b[\E+$", &["a.b[["], &["axb["]);
    check(r"^\Q a", &[" a"], &["a"]);
    check(r"^\x41\x{42}\103\cI\e$", &["ABC\t\u{1b}"], &["A"]);
    check(r"^\h+\v\N\R$", &["\t \nx\r\n"], &["\nx"]);
    check(r"a(?#note)b", &["ab"], &["a"]);
    check(r"^(?'name'a)(?P<other>b)(?<third>c)(?:d)$", &["abcd"], &["abc"]);
    check(r"(?i)^abc$", &["ABC"], &["ABCD"]);
    check(r"(?x)^a b [ ] c$", &["ab c"], &["a b c"]);
    check(r"^a+?b*?c??$", &["aab"], &["b"]);
    check(r"\p{^L}\P{^L}\pL", &["1aa"], &["aaa"]);
    check(r"a\Z", &["ba", "ba\n"], &["ab"]);
    check(r"\/\@\-\_\ ", &["/@-_ "], &["/"]);
}

#[test]
fn look_around_at_the_ends() {
    check(r"^(?!admin$)\w+$", &["user", "administrator"], &["admin", ""]);
    check(r"^(?=.*\d)(?=.*[a-z)(]).{4,}$", &["abc1"], &["abcd", "1234", "a1"]);
    check(r"(?i)^(?!ab)\w+$", &["b"], &["ABC"]);
    check(r"^\w+(?<!x)(?<=[abc])$", &["da", "xb"], &["dx", "dd"]);
    check(r"^(?!a|b)c?", &["c", ""], &["a", "b"]);
}

#[test]
fn unsupported_constructs_are_named() {
    let cases = [
        (r"a(?=b)c", "a look-ahead that does not follow a leading `^`"),
        (r"^(?!a)b|c", "a look-ahead"),
        (r"(?<!a)b", "a look-behind"),
        (r"(a)\1", "a back reference"),
        (r"(?<n>a)\k<n>", "a back reference"),
        (r"(?>a+)b", "an atomic group"),
        (r"a++b", "a possessive repetition"),
        (r"a{2}+b", "a possessive repetition"),
        (r"(?R)", "recursion"),
        (r"(?(1)a|b)", "a conditional group"),
        (r"(*SKIP)a", "a verb"),
        (r"a\Kb", r"`\K`"),
        (r"a\", "ends with a backslash"),
        (r"[a", "has a `[` without its `]`"),
        (r"(a", "is not a valid expression: unclosed group"),
        (r"\y", r"has `\y`"),
        (r"(.{1,1000}){1,1000}", "is too large"),
        (r"\x{110000}", "which is not a character"),
    ];
    for (source, expected) in cases {
        let error = Pattern::compile(source).unwrap_err().to_string();
        assert!(error.contains(expected), "{source}: {error}");
        assert!(error.starts_with(&format!("pattern `{source}` ")), "{error}");
    }
}

#[test]
fn compiling_a_hostile_pattern_ends() {
    for part in ["[", "{", "(?!a)", "\\Q", "(", "[[:"] {
        for head in ["", "^", "a|"] {
            let _ = Pattern::compile(&format!("{head}{}", part.repeat(10_000)));
        }
    }
    assert!(Pattern::compile(&"a".repeat(MAX_BYTES + 1)).is_err());
}

#[test]
fn no_pattern_panics() {
    use proptest::prelude::*;

    let part = prop::sample::select(vec![
        "^", "$", "(?!", "(?<!", "(?<=", "(?=", "(", ")", "[", "]", "[:", ":]", "\\", "Q", "E", "x", "{",
        "}", "1", ",", "-", "|", "*", "+", "?", "a", "\u{e4}", "p", "(?i)", "'", "c",
    ]);
    proptest!(|(parts in prop::collection::vec(part, 0..12), text in "\\PC{0,8}")| {
        if let Ok(pattern) = Pattern::compile(&parts.concat()) {
            let _ = pattern.is_match(&text);
        }
    });
}
