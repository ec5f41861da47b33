//! Tests of the modules of OpenResty.

use crate::snippets::{check, check_ended, output_of};

/// Checks what functions with a module write.
fn check_module(module: &str, cases: &[(&str, &str)]) {
    for (body, expected) in cases {
        let body = format!("local m = require '{module}' {body}");
        assert_eq!(output_of(&body), *expected, "{body}");
    }
}

#[test]
fn digests_have_objects() {
    check(&[
        (
            "for _, n in ipairs{'md5', 'sha1', 'sha224', 'sha256', 'sha384', 'sha512'} do local d = require('resty.' .. n):new() d:update('hel') d:update('lo') ngx.print(#d:final(), ' ') end",
            "16 20 28 32 48 64 ",
        ),
        (
            "local s = require('resty.sha256'):new() s:update('hello') ngx.say(require('resty.string').to_hex(s:final()))",
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824\n",
        ),
        (
            "local d = require('resty.openssl.digest').new('sha256') d:update('hel', 'lo') ngx.say(ngx.encode_base64(d:final()))",
            "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=\n",
        ),
        (
            "ngx.say(require('resty.openssl.digest').new('nope'))",
            "nildigest.new: invalid digest type \"nope\"\n",
        ),
        (
            "local h = require('resty.hmac') local o = h:new('key', h.ALGOS.SHA1) o:update('hel') ngx.say(ngx.encode_base64(o:final('lo')), ' ', o:reset(), ngx.encode_base64(o:final('hello')) )",
            "s0zqxFFv8joUPmHXnQ+npPvl8mY= trues0zqxFFv8joUPmHXnQ+npPvl8mY=\n",
        ),
        // RFC 2202, case 1.
        (
            "local h = require('resty.hmac') ngx.say(h:new(('\\11'):rep(16), h.ALGOS.MD5):final('Hi There', true))",
            "9294727a3638bb1c13f48ef8158bfc9d\n",
        ),
        ("local h = require('resty.openssl.hmac').new('key', 'sha256') ngx.say(#h:final('hello'))", "32\n"),
        ("local s = require 'resty.string' ngx.say(s.atoi('12'), s.atoi('1x'))", "12-1\n"),
        ("local r = require 'resty.random' ngx.say(#r.bytes(16), r.bytes(16) ~= r.bytes(16))", "16true\n"),
    ]);
}

#[test]
fn texts_are_encrypted_with_aes() {
    check_module(
        "resty.aes",
        &[
            // Made by openssl enc -aes-128-cbc -md md5 -nosalt -k secret, and with 256 bits and SHA-256.
            (
                "local a = m:new('secret') ngx.say(a:decrypt(a:encrypt('hello')), ngx.encode_base64(a:encrypt('hello')), a:decrypt('x'))",
                "helloe0ek27EeLN2y83QMnjpVKw==nil\n",
            ),
            (
                "local a = m:new(('k'):rep(32), nil, m.cipher(256, 'cbc'), {iv = ('i'):rep(16)}) ngx.say(a:decrypt(a:encrypt(('x'):rep(40))))",
                "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n",
            ),
            // FIPS 197, appendix C.1.
            (
                "local key = '' for i = 0, 15 do key = key .. string.char(i) end local text = '' for i = 0, 15 do text = text .. string.char(i * 17) end \
             local a = m:new(key, nil, m.cipher(128, 'ecb'), {iv = ('i'):rep(16)}) ngx.say(require('resty.string').to_hex(a:encrypt(text, true)))",
                "69c4e0d86a7b0430d8cdb78070b4c55a\n",
            ),
            (
                "ngx.say(m:new('short', nil, m.cipher(256, 'cbc'), {iv = ('i'):rep(16)}))",
                "nilbad key length\n",
            ),
            ("ngx.say(m:new('k', nil, nil, {iv = 'x'}))", "nilbad iv\n"),
            ("ngx.say(m.cipher(128, 'gcm'))", "nil\n"),
        ],
    );
}

#[test]
fn tokens_are_loaded_and_verified() {
    check_module(
        "resty.jwt",
        &[
            (
                "local t = m:load_jwt('eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.c2ln') ngx.say(t.valid, t.verified, t.header.alg, t.payload.sub, t.signature)",
                "truefalsenonexc2ln\n",
            ),
            ("local t = m:load_jwt('nonsense') ngx.say(t.valid, t.reason)", "falseinvalid jwt string\n"),
            ("local t = m:load_jwt('a.b.c') ngx.say(t.valid, t.reason)", "falseinvalid header: a\n"),
            (
                "local s = m:sign('key', {header = {alg = 'HS256'}, payload = {sub = 'x'}}) local t = m:verify('key', s) ngx.say(t.verified, t.payload.sub, t.reason)",
                "truexeverything is awesome~ :p\n",
            ),
            (
                "local s = m:sign('key', {header = {alg = 'HS256'}, payload = {sub = 'x'}}) local t = m:verify('other', s) ngx.say(t.verified, t.reason:match('^signature mismatch: ') ~= nil)",
                "falsetrue\n",
            ),
            (
                "local s = m:sign('key', {header = {alg = 'HS512'}, payload = {exp = 1}}) local t = m:verify('key', s) ngx.say(t.verified, t.reason)",
                "false'exp' claim expired at Thu, 01 Jan 1970 00:00:01 GMT\n",
            ),
            (
                "local s = m:sign('key', {header = {alg = 'HS256'}, payload = {iss = 'a'}}) ngx.say(m:verify('key', s, {valid_issuers = {'b'}}).verified, m:verify('key', s, {valid_issuers = {'a'}}).verified, m:verify('key', s, {iss = function(v) return v == 'a' end}).verified)",
                "falsetruetrue\n",
            ),
            // A public key is no secret, and `none` is no algorithm.
            (
                "local ok = m:sign('-----BEGIN PUBLIC KEY', {header = {alg = 'HS256'}, payload = {}}) ngx.say(m:verify('-----BEGIN PUBLIC KEY', ok).verified)",
                "false\n",
            ),
            (
                "ngx.say(m:verify('key', 'eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.c2ln').reason)",
                "Unsupported algorithm none\n",
            ),
            // RFC 7515, appendix A.3, with the key as PEM.
            (
                "local key = '-----BEGIN PUBLIC KEY-----\\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEf83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEXH8UTNG72bfocs3+257rn0s2ldbqkLJK2KRiMohYjlrQ==\\n-----END PUBLIC KEY-----\\n' \
             local t = m:verify(key, 'eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q', {iss = function() end}) ngx.say(t.verified, t.reason)",
                "trueeverything is awesome~ :p\n",
            ),
        ],
    );
}

#[test]
fn caches_forget_the_least_recently_used() {
    check_module(
        "resty.lrucache",
        &[
            (
                "local c = m.new(2) c:set('a', 1) c:set('b', 2) c:get('a') c:set('c', 3) ngx.say(c:get('a'), c:get('b'), (c:get('c')))",
                "1nil3\n",
            ),
            ("local c = m.new(2) c:set('t', 'x', -1) ngx.say(c:get('t'))", "nilx0\n"),
            (
                "local c = m.new(3) c:set('a', 1) c:set('b', 2, nil, 7) ngx.say(c:capacity(), c:count(), c:get_keys()[1], select(3, c:get('b'))) c:delete('a') ngx.say(c:count(), c:delete('a')) c:flush_all() ngx.say(c:count(), c:get('b'))",
                "32b7\n1false\n0nil\n",
            ),
            ("ngx.say(m.new(0))", "nilsize too small\n"),
        ],
    );
}

#[test]
fn addresses_are_matched() {
    check_module(
        "resty.ipmatcher",
        &[
            (
                "local i = m.new({'127.0.0.1', '10.0.0.0/8', '::1', 'fe80::/33'}) ngx.say(i:match('127.0.0.1'), i:match('10.9.8.7'), i:match('11.0.0.1'), i:match('::1'), i:match('[fe80::7]'), i:match('fe80:0:8000::'))",
                "truetruefalsetruetruefalse\n",
            ),
            ("local i = m.new({'0.0.0.0/0'}) ngx.say(i:match('8.8.8.8'), i:match('::1'))", "truefalse\n"),
            (
                "local i = m.new({'1.1.1.1'}) ngx.say(i:match('x'))",
                "falseinvalid ip address, not ipv4 and ipv6\n",
            ),
            ("ngx.say(m.new({'nope/8'}))", "nilinvalid ip address: nope\n"),
            (
                "local i = m.new_with_value({['10.0.0.0/8'] = 'net', ['10.1.1.1'] = 'host'}) ngx.say(i:match('10.1.1.1'), i:match('10.2.2.2'), i:match_bin('\\10\\2\\2\\2'))",
                "hostnetnet\n",
            ),
            (
                "ngx.say(m.parse_ipv4('1.2.3.4'), m.parse_ipv4('x'), m.parse_ipv6('::1')[4], m.split_ip('1.1.1.1/8'))",
                "16909060false11.1.1.18\n",
            ),
        ],
    );
}

#[test]
fn identifiers_have_versions() {
    check_module(
        "resty.jit-uuid",
        &[
            (
                "ngx.say(m.is_valid(m()), m.is_valid(m.generate_v4()), m() ~= m(), m():sub(15, 15), m.is_valid('x'))",
                "truetruetrue4false\n",
            ),
            (
                "ngx.say(m.generate_v3('e6ebd542-06ae-11e6-8e82-bba81706b27d', 'hello'))",
                "3db7a435-8c56-359d-a563-1b69e6802c78\n",
            ),
            (
                "ngx.say(m.generate_v5('e6ebd542-06ae-11e6-8e82-bba81706b27d', 'hello'))",
                "4850816f-1658-5890-8bfd-1ed14251f1f0\n",
            ),
            ("ngx.say(m.generate_v5('x', 'hello'))", "nilnamespace must be a valid UUID\n"),
        ],
    );
}

#[test]
fn tables_have_the_functions_of_openresty() {
    check(&[
        (
            "local n = require 'table.new' local c = require 'table.clear' local t = n(4, 4) t.a = 1 t[1] = 2 c(t) ngx.say(next(t))",
            "nil\n",
        ),
        ("local k = require 'table.nkeys' ngx.say(k({1, 2, a = 3}), table.nkeys({}))", "30\n"),
        (
            "local c = require 'table.clone' local a = {1, x = {}} local b = c(a) ngx.say(b ~= a, b[1], b.x == a.x)",
            "true1true\n",
        ),
        (
            "ngx.say(require 'table.isarray' {1, 2}, table.isarray({a = 1}), table.isarray({}), require 'table.isempty' {}, table.isempty({1}))",
            "truefalsetruetruefalse\n",
        ),
        (
            "ngx.say(pcall(table.isempty, 1))",
            "falsebad argument #1 to 'isempty' (table expected, got number)\n",
        ),
        (
            "local t = {3, 1, 2} table.sort(t) table.insert(t, 1, 0) ngx.say(table.concat(t, ','), table.remove(t), #t)",
            "0,1,2,333\n",
        ),
        ("ngx.say(pcall(string.rep))", "falsebad argument #1 to '?' (string expected, got no value)\n"),
    ]);
    // Calls that move much memory end with the time of the script.
    check_ended(&[
        "local t = {} for i = 1, 100000 do t[i] = i end while true do pcall(table.insert, t, 1, 1) pcall(table.remove, t, 1) end",
        "while true do pcall(string.rep, 'x', 1000000) end",
    ]);
}

#[test]
fn modules_are_not_changed_by_scripts() {
    for module in ["resty.jwt", "resty.lrucache", "resty.jit-uuid", "resty.aes", "cjson", "ngx.re"] {
        let body =
            format!("local m = require '{module}' ngx.print(pcall(function() m.new = 1 end) == false)");
        assert_eq!(output_of(&body), "true", "{module}");
    }
    check(&[
        ("local o = require('resty.sha1'):new() ngx.say(getmetatable(o))", "false\n"),
        (
            "local e = require 'ngx.errlog' e.raw_log(ngx.ERR, 'line') ngx.say(e.get_sys_filter_level(), require('ngx.process').type())",
            "7worker\n",
        ),
    ]);
}
