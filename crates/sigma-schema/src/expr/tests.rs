//! Tests of valid and invalid conditions.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;

struct Table(BTreeMap<String, VarValue<'static>>);

impl Variables for Table {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        self.0.get(&name.to_string()).cloned()
    }
}

fn table() -> Table {
    let text = |t: &'static str| VarValue::text(t);
    let list = VarValue::List(vec![Cow::Borrowed(b"owner" as &[u8]), Cow::Borrowed(b"repo")]);
    let entries = [
        ("arg_name", text("jack")),
        ("arg_n", text("18")),
        ("arg_hex", text(" 0x10 ")),
        ("arg_flag", VarValue::Bool(true)),
        ("arg_multi", text("a\nb")),
        ("remote_addr", text("10.0.0.7")),
        ("http_x_api", text("v2")),
        ("some_list", list),
    ];
    Table(entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

#[test]
fn operators() {
    let table = table();
    let check = |rule: Value, expected: bool| {
        let wrapped = json!([rule]);
        let expr = Expr::parse(&wrapped).unwrap_or_else(|error| panic!("{wrapped}: {error}"));
        assert_eq!(expr.eval(&table), expected, "{wrapped}");
        assert_eq!(serde_json::to_value(&expr).unwrap(), wrapped);
    };
    // ==
    check(json!(["arg_name", "==", "jack"]), true);
    check(json!(["arg_name", "jack"]), true);
    check(json!(["arg_name", "==", "Jack"]), false);
    check(json!(["arg_n", "==", 18]), true);
    check(json!(["arg_n", "==", 18.0]), true);
    check(json!(["arg_n", "==", "18"]), true);
    check(json!(["arg_n", "==", "18.0"]), false);
    check(json!(["arg_hex", "==", 16]), true);
    check(json!(["arg_name", "==", 18]), false);
    check(json!(["arg_flag", "==", true]), true);
    check(json!(["arg_flag", "==", "true"]), false);
    check(json!(["arg_none", "==", "x"]), false);
    check(json!(["arg_none", "==", null]), true);
    check(json!(["arg_name", "==", null]), false);
    // ~=
    check(json!(["arg_name", "~=", "jack"]), false);
    check(json!(["arg_name", "~=", 1]), true);
    check(json!(["arg_n", "~=", 18]), false);
    check(json!(["arg_none", "~=", "x"]), true);
    check(json!(["arg_none", "~=", null]), false);
    check(json!(["arg_name", "~=", null]), true);
    // order, never lexical
    check(json!(["arg_n", ">", 17]), true);
    check(json!(["arg_n", ">", "17"]), true);
    check(json!(["arg_n", ">", 18]), false);
    check(json!(["arg_n", ">=", 18]), true);
    check(json!(["arg_n", "<", 19]), true);
    check(json!(["arg_n", "<=", 17]), false);
    check(json!(["arg_name", ">", "a"]), false);
    check(json!(["arg_none", "<", 1]), false);
    // regex
    check(json!(["arg_name", "~~", "^ja"]), true);
    check(json!(["arg_name", "~~", "ac"]), true);
    check(json!(["arg_name", "~~", "^JA"]), false);
    check(json!(["arg_name", "~*", "^JA"]), true);
    check(json!(["arg_multi", "~~", "a.b"]), false);
    check(json!(["arg_none", "~~", ".*"]), false);
    // in, has, ipmatch
    check(json!(["arg_name", "in", ["jack", "tom"]]), true);
    check(json!(["arg_name", "IN", ["tom"]]), false);
    check(json!(["arg_n", "in", [18]]), false);
    check(json!(["arg_none", "in", []]), false);
    check(json!(["some_list", "has", "owner"]), true);
    check(json!(["some_list", "has", "other"]), false);
    check(json!(["arg_name", "has", "jack"]), false);
    check(json!(["remote_addr", "ipmatch", ["10.0.0.0/8", "::1"]]), true);
    check(json!(["remote_addr", "ipmatch", "10.0.0.8"]), false);
    check(json!(["arg_name", "ipmatch", "0.0.0.0/0"]), false);
    // !
    check(json!(["arg_name", "!", "in", ["tom"]]), true);
    check(json!(["arg_none", "!", "in", ["tom"]]), true);
    check(json!(["arg_name", "!", "~~", "^ja"]), false);
    // headers
    check(json!(["http_X_Api", "==", "v2"]), true);
}

#[test]
fn groups() {
    let table = table();
    let (yes, no) = (json!(["arg_name", "jack"]), json!(["arg_name", "tom"]));
    let check = |rule: Value, expected: bool| {
        assert_eq!(Expr::parse(&rule).unwrap().eval(&table), expected, "{rule}");
    };
    check(json!([]), true);
    check(json!([yes, yes]), true);
    check(json!([yes, no]), false);
    check(json!(["AND", yes, no]), false);
    check(json!(["or", no, yes]), true);
    check(json!(["!AND", yes, no]), true);
    check(json!(["!AND", yes, yes]), false);
    check(json!(["!OR", no, no]), true);
    check(json!(["!OR", no, yes]), false);
    check(json!([["OR", no, ["AND", yes, [yes, yes]]], yes]), true);
}

#[test]
fn invalid_expressions_have_a_reason() {
    let check = |rule: Value, fragment: &str| {
        let error = Expr::parse(&rule).expect_err("must be refused").to_string();
        assert!(error.contains(fragment), "{rule}: {error}");
    };
    check(json!(["arg_a", "==", "1"]), "rule should be wrapped inside brackets");
    check(json!("x"), "should be a list");
    check(json!([1]), "rule should be wrapped inside brackets");
    check(json!([["arg_a"]]), "rule too short");
    check(json!([[]]), "rule too short");
    check(json!([["arg_a", "=", 1]]), "invalid operator '='");
    check(json!([["arg_a", 1, 1]]), "invalid operator '1'");
    check(json!([["arg_a", "==", 1, 2]]), "invalid expression");
    check(json!([["arg_a", "!", "=="]]), "bad 'not' expression");
    check(json!([["arg_a", "~~", "("]]), "invalid regex");
    check(json!([["arg_a", "~~", 1]]), "regex should be a string");
    check(json!([["arg_a", "in", "x"]]), "needs a list");
    check(json!([["arg_a", "ipmatch", "10.0.0.0/99"]]), "10.0.0.0/99");
    check(json!(["OR", ["arg_a", "1"]]), "rule too short");
    check(json!([["arg_a", "1"], "x"]), "wrapped inside brackets");
    check(
        json!([["msec", "within", "Mon Tue"]]),
        "`Tue` in the time `Mon Tue` repeats a part of the same kind",
    );
    check(json!([["msec", "within", ["Mon", 1]]]), "`within` needs times such as");
    check(json!([["msec", "within", []]]), "`within` needs a time");
    check(json!([["time_iso8601", "!", "within", "Mon"]]), "needs the variable `msec`");
    check(json!([["post_arg.a[?(@.b)]", "==", "x"]]), "the variable `post_arg.a[?(@.b)]` needs a path");
    let mut deep = json!(["arg_a", "1"]);
    for _ in 0..100 {
        deep = json!([deep]);
    }
    check(deep, "nested deeper");
}

#[test]
fn conditions_on_the_body_are_detected() {
    let check = |rule: Value, expected: Option<&str>| {
        let expr = Expr::parse(&rule).unwrap();
        assert_eq!(expr.needs_body().map(VarName::to_string).as_deref(), expected, "{rule}");
    };
    check(json!([]), None);
    check(json!([["arg_post_arg_a", "1"], ["http_post_arg_a", "1"]]), None);
    check(json!([["arg_a", "1"], ["OR", ["arg_b", "1"], ["post_arg_a", "1"]]]), Some("post_arg_a"));
    check(json!([["arg_a", "1"], ["post_arg.a.b", "1"]]), Some("post_arg.a.b"));
    for of_graphql in ["graphql_name", "graphql_operation", "graphql_root_fields"] {
        check(
            json!(["OR", ["arg_a", "1"], [["arg_a", "1"], [of_graphql, "!", "has", "x"]]]),
            Some(of_graphql),
        );
    }
}

/// The time is a variable: the caller supplies it.
#[test]
fn times_of_the_day_and_dates() {
    let at = |seconds: &str, rule: Value| {
        let mut known = table();
        known.0.insert("msec".to_owned(), VarValue::Text(Cow::Owned(seconds.as_bytes().to_vec())));
        let expr = Expr::parse(&rule).unwrap();
        assert!(expr.asks_time());
        expr.eval(&known)
    };
    // 2026-11-26, a Thursday, 12:00 UTC and a tenth of a second.
    let noon = "1795694400.100";
    assert!(at(noon, json!([["msec", "within", "Thu 12:00-13:00"]])));
    assert!(at(noon, json!([["msec", "within", ["Fri", "12:00-12:01 UTC"]]])));
    assert!(!at(noon, json!([["msec", "!", "within", "2026-11-26"]])));
    assert!(!at(noon, json!([["msec", "WITHIN", "Thu 12:00-13:00 +01:00"]])));
    assert!(!at("no time", json!([["msec", "within", "00:00-24:00"]])));
    assert!(!Expr::parse(&json!([["arg_msec", "within", "Thu"]])).unwrap().asks_time());
}

#[test]
fn names() {
    let check = |text: &str, name: VarName| assert_eq!(VarName::parse(text), name);
    check("request_method", VarName::Method);
    check("query_string", VarName::Args);
    check("arg_A", VarName::Arg("A".into()));
    check("http_X_Real_IP", VarName::Http("x-real-ip".into()));
    check("content_type", VarName::Http("content-type".into()));
    check("uri_param_:ext", VarName::UriParam(":ext".into()));
    check("arg_", VarName::Other("arg_".into()));
    check("upstream_addr", VarName::Other("upstream_addr".into()));
}

/// For an address missing in the database, a condition on its location is false, and so is its negation.
#[test]
fn unknown_locations_decide_nothing() {
    let mut known = table();
    known.0.insert("geoip_country_code".to_owned(), VarValue::text("DE"));
    let check = |rule: Value, of_germany: bool, of_nowhere: bool| {
        let expr = Expr::parse(&rule).unwrap_or_else(|error| panic!("{rule}: {error}"));
        assert_eq!(expr.eval(&known), of_germany, "{rule}, known");
        assert_eq!(expr.eval(&table()), of_nowhere, "{rule}, unknown");
    };
    check(json!([["geoip_country_code", "==", "DE"]]), true, false);
    check(json!([["geoip_country_code", "~=", "RU"]]), true, false);
    check(json!([["geoip_country_code", "!", "in", ["RU", "KP"]]]), true, false);
    check(json!(["!OR", ["geoip_country_code", "==", "RU"], ["arg_name", "==", "tom"]]), true, false);
    check(json!(["!AND", ["geoip_country_code", "==", "DE"], ["arg_name", "==", "jack"]]), false, false);
    // Another true operand decides.
    check(json!(["OR", ["geoip_country_code", "~=", "DE"], ["arg_name", "==", "jack"]]), true, true);
    check(json!(["!AND", ["geoip_country_code", "==", "DE"], ["arg_name", "==", "tom"]]), true, true);
    // A condition can test for absence.
    check(json!([["geoip_country_code", "==", null]]), false, true);
    check(json!([["geoip_country_code", "~=", null]]), true, false);
}

/// A guard is undecided where an absent variable decides.
#[test]
fn absent_variables_leave_a_guard_undecided() {
    let table = table();
    let check = |rule: Value, expected: Option<bool>| {
        let expr = Expr::parse(&rule).unwrap_or_else(|error| panic!("{rule}: {error}"));
        assert_eq!(expr.decide(&table), expected, "{rule}");
    };
    check(json!([]), Some(true));
    check(json!([["arg_name", "==", "jack"]]), Some(true));
    check(json!([["arg_none", "==", "x"]]), None);
    check(json!([["arg_none", "~=", "x"]]), None);
    check(json!([["arg_none", "!", "in", ["x"]]]), None);
    check(json!([["arg_none", "==", null]]), Some(true));
    check(json!([["arg_none", "~=", "x"], ["arg_name", "==", "tom"]]), Some(false));
    check(json!(["OR", ["arg_none", "~=", "x"], ["arg_name", "==", "jack"]]), Some(true));
    check(json!(["!OR", ["arg_none", "~=", "x"], ["arg_name", "==", "tom"]]), None);
}

/// One variable with several values.
struct Repeated(&'static [&'static str]);

impl Variables for Repeated {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        let text = match name {
            VarName::Http(_) => self.0.join(", "),
            _ => (*self.0.first()?).to_owned(),
        };
        (!self.0.is_empty()).then(|| VarValue::Text(Cow::Owned(text.into_bytes())))
    }

    fn each(&self, _: &VarName, visit: &mut dyn FnMut(&VarValue<'_>)) {
        self.0.iter().for_each(|value| visit(&VarValue::text(value)));
    }
}

#[test]
fn conditions_on_repeated_values_are_certain_only_if_all_agree() {
    use Certainty::{Certain, No, Possible};
    let check = |rule: Value, values: &'static [&'static str], expected: Certainty| {
        let expr = Expr::parse(&json!([rule])).unwrap();
        assert_eq!(expr.certainty(&Repeated(values)), expected, "{rule} {values:?}");
        let decided = match expected {
            No if values.is_empty() => return,
            No => Some(false),
            Certain => Some(true),
            Possible => None,
        };
        assert_eq!(expr.decide(&Repeated(values)), decided, "{rule} {values:?}");
    };
    for name in ["arg_role", "http_x_role", "cookie_role"] {
        check(json!([name, "==", "admin"]), &["admin"], Certain);
        check(json!([name, "==", "admin"]), &["x"], No);
        check(json!([name, "==", "admin"]), &["admin", "x"], Possible);
        check(json!([name, "==", "admin"]), &["x", "admin"], Possible);
        check(json!([name, "==", "admin"]), &["x", "y"], No);
        check(json!([name, "==", "admin"]), &[], No);
        check(json!([name, "~=", "admin"]), &["x", "y"], Certain);
        check(json!([name, "~=", "admin"]), &["x", "admin"], Possible);
        check(json!([name, "!", "==", "admin"]), &["x", "admin"], Possible);
        check(json!([name, "in", ["admin", "root"]]), &["x", "root"], Possible);
        check(json!([name, "~~", "^adm"]), &["x", "admin"], Possible);
        check(json!([name, ">", 5]), &["1", "9"], Possible);
        check(json!([name, "ipmatch", ["10.0.0.0/8"]]), &["1.1.1.1", "10.0.0.1"], Possible);
        check(json!([name, "==", null]), &["x", "y"], No);
        check(json!([name, "~=", null]), &["x", "y"], Certain);
    }
    // Fields: lines of one name and items of one line are the same list.
    check(json!(["http_x_role", "==", "admin"]), &["x, admin"], Possible);
    check(json!(["http_x_role", "~=", "admin"]), &["x,admin"], Possible);
    check(json!(["http_x_role", "==", "a, b"]), &["a, b"], Certain);
    check(json!(["http_x_role", "~~", "^Mozilla"]), &["Mozilla/5.0 (X11, like Gecko)"], Certain);
    check(json!(["arg_role", "==", "admin"]), &["x,admin"], No);
    // Groups: an undecided operand leaves the group undecided.
    let either = json!(["OR", ["http_a", "==", "1"], ["http_a", "==", "2"]]);
    let expr = Expr::parse(&either).unwrap();
    assert_eq!(expr.certainty(&Repeated(&["1", "3"])), Possible);
    let neither = json!(["!OR", ["http_a", "==", "1"], ["http_a", "==", "2"]]);
    assert_eq!(Expr::parse(&neither).unwrap().certainty(&Repeated(&["1", "3"])), Possible);
}
