//! `core.request`, `core.response` and `ctx`, as APISIX has them.

use std::sync::Arc;

use serde_json::json;
use sigma_config::resources::Route;
use sigma_plugin::context::RouteFacts;
use sigma_plugin::{Phase, Resource};
use sigma_schema::template::Template;

use crate::snippets::{case_of, function, output_of};
use crate::testing::{Case, field, summary};

const CORE: &str = "local core = require('apisix.core') local function E(e) return (tostring(e):gsub('^[^\\n]-:%d+: ', '')) end ";

/// A request for a route with a service, from a consumer.
fn case() -> Case {
    let mut case = case_of("GET /u/7?a=%41&a=2&f HTTP/1.1\nHost: h.test:81\nX-A: 1\nX-A: 2\nCookie: c=d");
    case.known("jack", &[("team", "t")]);
    let route: Route = serde_json::from_value(json!({"id": "r1", "uri": "/u/:id", "desc": "d"})).unwrap();
    let mut facts = RouteFacts { id: "r1".into(), service_id: Some("s1".into()), ..RouteFacts::default() };
    facts.uris = ["/u/:id".into()].into();
    facts.resources.route = Some(Resource::new(Arc::new(route)));
    case.ctx.route = Some(Arc::new(facts));
    case.ctx.params.push("id", b"7");
    case
}

fn answered(mut case: Case, script: &str) -> String {
    let reply = case.run(&function("access", &format!("{CORE}{script}")), Phase::Access);
    summary(reply.as_ref())
}

fn checked(cases: &[(&str, &str)]) {
    for (script, expected) in cases {
        assert_eq!(answered(case(), script), *expected, "{script}");
    }
}

#[test]
fn returned_values_are_responses() {
    for (script, expected) in [
        ("return 403, {message = 'no'}", "403 {\"message\":\"no\"}\n"),
        ("return 200, {1, 2.5, {}, ngx.null, true}", "[1,2.5,{},null,true]\n"),
        ("return 201, 'made'", "201 made"),
        ("return 401", "401"),
        ("return nil, 'x'", "500"),
        ("return 200, {print}", "500"),
        ("return 'x'", "500"),
        ("return 444, 'x'", "444"),
        ("return 0", "passed"),
        ("local t = {} for i = 1, 100 do t = {t, t} end return 200, t", "500"),
        ("ngx.status = 202 ngx.print('a') return 403, 'b'", "202 ab"),
        ("ngx.header.x = '1' return 200", ""),
    ] {
        let expected = expected.trim_end();
        assert_eq!(output_of(script).trim_end(), expected, "{script}");
    }
}

#[test]
fn exits_answer() {
    checked(&[
        ("core.response.exit(401, {message = 'x'})", "401 {\"message\":\"x\"}"),
        ("core.response.exit(200, 'a', {b = 1}, nil, 'c')", "200 a{\"b\":1}\nc"),
        ("core.response.exit('only') ngx.print(' more')", "200 only more"),
        ("core.response.exit(404)", "404"),
        ("core.response.say('a', {1})", "200 a[1]"),
        ("core.response.exit(200, {f = print})", "500"),
        (
            "core.response.exit_insert_callback(function(code, body, fields, more) return 202, body.a .. more, {['X-F'] = '1'} end, '!') \
             core.response.exit(401, {a = 'b'}, 'dropped')",
            "202 b!",
        ),
        (
            "core.response.exit_insert_callback(function(code, body) return code, {b = body} end, nil) core.response.exit(401, 'x')",
            "401 {\"b\":\"x\"}",
        ),
        (
            "core.response.exit_insert_callback(function(code, body) return code + 1, body.a end, nil) return 401, {a = 'b'}",
            "402 b",
        ),
        ("core.response.exit(200, core.response.get_response_source(ctx))", "200 apisix"),
    ]);
    let mut case = case();
    let script = format!(
        "{CORE} core.response.set_header('X-A', '1', 'X-B', 2) core.response.set_header({{['X-C'] = {{'3', '4'}}}}) \
        core.response.add_header('X-A', '5') core.response.set_header('X-B', nil) core.response.exit(200, 'x')"
    );
    let reply = case.run(&function("access", &script), Phase::Access).unwrap();
    let all: Vec<_> = reply
        .headers
        .iter()
        .map(|(name, value)| format!("{name}={}", String::from_utf8_lossy(value)))
        .collect();
    assert_eq!((all.join(" "), field(&reply, "X-B")), ("X-A=1 X-C=3 X-C=4 X-A=5".to_owned(), None));
    checked(&[(
        "ngx.say('a') local ok, e = pcall(core.response.set_header, 'X', '1') ngx.print(E(e))",
        "200 a\nheaders have already been sent",
    )]);
}

#[test]
fn bodies_are_held() {
    let check = |script: &str, expected: &str| {
        let mut case = case_of("GET / HTTP/1.1\nHost: h");
        case.respond(200, "");
        let script = format!("{CORE}{script}");
        let body = case.filter(&function("body_filter", &script), &[b"one", b"two", b"three"]);
        assert_eq!(String::from_utf8_lossy(&body), expected, "{script}");
    };
    check("local b = core.response.hold_body_chunk(ctx) if b then ngx.arg[1] = b:upper() end", "ONETWOTHREE");
    check(
        "local b = core.response.hold_body_chunk(ctx, true) if b then ngx.arg[1] = '|' .. b end",
        "onetwothree|onetwothree",
    );
    check(
        "local b = core.response.hold_body_chunk(ctx, true, 5) if b then ngx.arg[1] = '<' .. b .. '>' end",
        "one<onetw>three",
    );
    let mut case = case_of("GET / HTTP/1.1\nHost: h");
    case.respond(200, "ETag: \"1\"\nLast-Modified: x\nContent-Encoding: br\nX-A: 1");
    case.header_filter(&function(
        "header_filter",
        &format!("{CORE} core.response.clear_header_as_body_modified()"),
    ));
    assert_eq!(case.ctx.response.headers.len(), 1);
}

#[test]
fn requests_are_read() {
    checked(&[
        ("ngx.print(core.request.header(ctx, 'x-a'), core.request.headers(ctx)['x-a'][2])", "200 12"),
        (
            "ngx.print(core.request.get_uri_args(ctx).a[1], tostring(core.request.get_uri_args(ctx).f))",
            "200 Atrue",
        ),
        (
            "core.request.set_uri_args(ctx, {z = '1'}) ngx.print(core.request.get_uri_args(ctx).z, ngx.var.args)",
            "200 1z=1",
        ),
        (
            "ngx.print(core.request.get_ip(ctx), core.request.get_remote_client_ip(ctx), core.request.get_scheme(ctx), core.request.get_host(ctx))",
            "200 127.0.0.1127.0.0.1httph.test",
        ),
        ("ngx.print(core.request.get_method(), core.request.get_http_version())", "200 GET1.1"),
        (
            "core.request.set_header(ctx, 'X-A', '9') ngx.print(core.request.header(ctx, 'X-A'), ctx.var.http_x_a)",
            "200 99",
        ),
        ("core.request.add_header(ctx, 'X-A', '9') ngx.print(#core.request.headers(ctx)['x-a'])", "200 3"),
        ("core.request.set_header('X-B', '1') ngx.print(ctx.var.http_x_b)", "200 1"),
        (
            "local ok, e = pcall(core.request.set_header, ctx, {}, '1') ngx.print(E(e):match('^invalid header name'))",
            "200 invalid header name",
        ),
        ("ngx.print(tostring(core.request.get_body()))", "200 nil"),
    ]);
    let body = |script: &str| {
        let mut case = case_of(
            "POST / HTTP/1.1\nHost: h\nContent-Length: 9\nContent-Type: application/x-www-form-urlencoded",
        );
        case.body = b"{\"a\":[1]}".to_vec();
        answered(case, script)
    };
    assert_eq!(body("ngx.print(core.request.get_body())"), "200 {\"a\":[1]}");
    assert_eq!(
        body("ngx.print(select(2, core.request.get_body(3, ctx)))"),
        "200 request size 9 is greater than the maximum size 3 allowed"
    );
    assert_eq!(body("ngx.print(core.request.get_json_request_body_table().a[1])"), "200 1");
    assert_eq!(body("ngx.print(tostring(next(core.request.get_post_args(ctx))))"), "200 {\"a\":[1]}");
}

#[test]
fn ctx_has_the_route_and_the_consumer() {
    checked(&[
        (
            "ngx.print(ctx.route_id, ctx.service_id, ctx.consumer_name, tostring(ctx.nothing))",
            "200 r1s1jacknil",
        ),
        (
            "ngx.print(ctx.matched_route.value.uri, ctx.matched_route.value.desc, ctx.matched_route.key)",
            "200 /u/:idd/apisix/routes/r1",
        ),
        ("ngx.print(ctx.curr_req_matched._path, ctx.curr_req_matched.id)", "200 /u/:id7"),
        (
            "ngx.print(ctx.conf_type, ' ', ctx.conf_id, ' ', type(ctx.conf_version))",
            "200 route&service&consumer r1&s1&jack number",
        ),
        (
            "ngx.print(ctx.consumer.username, ctx.consumer.labels.team, tostring(ctx.consumer.plugins))",
            "200 jacktnil",
        ),
        (
            "ctx.consumer.x = 1 ctx.own = {2} ngx.print(ctx.consumer.x, ctx.own[1], ngx.ctx.api_ctx == ctx and 1 or 0)",
            "200 121",
        ),
        ("ngx.print(tostring(getmetatable(ctx)), tostring(getmetatable(ctx.var)))", "200 falsefalse"),
        (
            "local ok, e = pcall(function() return ctx.upstream_conf end) ngx.print(ok, e:match('ctx.upstream_conf: [^;]*'))",
            "200 falsectx.upstream_conf: exchanges do not keep the configuration of the chosen upstream",
        ),
        ("ctx.upstream_conf = {1} ngx.print(ctx.upstream_conf[1])", "200 1"),
    ]);
}

#[test]
fn ctx_variables_are_read_and_set() {
    checked(&[
        (
            "ngx.print(ctx.var.uri, ctx.var.arg_a, tostring(ctx.var.arg_f), ctx.var.cookie_c, ctx.var['http_X-A'])",
            "200 /u/7Atrued1, 2",
        ),
        (
            "ngx.print(ctx.var.uri_param_id, ctx.var.route_id, ctx.var.consumer_name, ctx.var.method)",
            "200 7r1jackGET",
        ),
        ("ngx.print(tostring(ctx.var.no_such))", "200 nil"),
        ("local t = {1} ctx.var.mine = t ngx.print(ctx.var.mine == t and 'same' or 'other')", "200 same"),
        ("ctx.var.mine = 'x' ctx.var.mine = nil ngx.print(tostring(ctx.var.mine))", "200 nil"),
        (
            "ctx.var.upstream_uri = '/new' ngx.print(ctx.var.upstream_uri, ngx.var.upstream_uri)",
            "200 /new/new",
        ),
        (
            "local ok, e = pcall(function() return ctx.var[1] end) ngx.print(E(e))",
            "200 invalid argument, expect string value",
        ),
        (
            "core.ctx.register_var('a6_n', function(c) c.n = (c.n or 0) + 1 return c.n end) ngx.print(ctx.var.a6_n, ctx.var.a6_n)",
            "200 11",
        ),
        (
            "core.ctx.register_var('a6_v', function(c) c.n = (c.n or 0) + 1 return c.n end, {no_cacheable = true}) ngx.print(ctx.var.a6_v, ctx.var.a6_v)",
            "200 12",
        ),
        (
            "local ok, e = pcall(core.ctx.register_var, 'x', 1) ngx.print(E(e))",
            "200 the getter of registered var should be a function",
        ),
    ]);
}

#[test]
fn templates_see_variables_of_scripts() {
    let mut case = case();
    let script = "ctx.var.mine = 12 ctx.var.truth = true ctx.var.gone = 'x' ctx.var.gone = nil ctx.var.upstream_uri = '/u2'";
    assert!(case.run(&function("access", script), Phase::Access).is_none());
    let text = Template::parse("$mine|$truth|$gone|$upstream_uri").rendered(&case.ctx);
    assert_eq!(String::from_utf8_lossy(&text), "12|true||/u2");
    assert_eq!(case.target(), "/u2");
}

#[test]
fn post_arguments_are_read_when_asked_for() {
    let mut case = case_of(
        "POST / HTTP/1.1\nHost: h\nContent-Type: application/x-www-form-urlencoded\nContent-Length: 3",
    );
    case.body = b"k=v".to_vec();
    assert_eq!(answered(case, "ngx.print(ctx.var.post_arg_k)"), "200 v");
}
