//! Decisions of policies, and refused configurations.

use serde_json::{Value, json};
use sigma_plugin::{Consumer, Phase};

use crate::testing::{Case, entry, refusal, summary};

const REFUSED: &str = r#"403 {"message":"RBAC: access denied"}"#;

/// A request of a consumer, with the claims of a token.
fn case() -> Case {
    let mut case = Case::new("GET /orders?n=1 HTTP/1.1\nHost: h\nX-Team: a");
    let labels = vec![("team".into(), "infra, web".into()), ("roles".into(), r#"["admin","ops"]"#.into())];
    let consumer =
        Consumer { name: "jack".into(), group_id: Some("gold".into()), labels, ..Consumer::default() };
    case.ctx.attach_anonymous(&std::sync::Arc::new(consumer));
    let claims = json!({"sub": "u1", "scope": "read write", "n": 5, "realm": {"roles": ["admin"]}, "gone": null, "a.b": "x"});
    case.ctx.set_variable("jwt_auth_payload", claims.to_string());
    case
}

fn passes(action: &str, permission: &Value, principal: &Value, case: &mut Case) -> bool {
    let policies = json!({"p": {"permissions": [permission], "principals": [principal]}});
    let entry = entry("rbac", json!({"rules": {"action": action, "policies": policies}})).unwrap();
    let reply = case.run(&entry, Phase::Access);
    let told = summary(reply.as_ref());
    assert!(told == "passed" || told == REFUSED, "{told}");
    told == "passed"
}

/// Returns the result of a rule, seen from both actions: None if it denies every request.
#[test]
fn rules_hold_or_do_not_or_cannot_be_decided() {
    let any = json!({"any": true});
    let decided = |allowed: bool, not_denied: bool, rule: &Value| match (allowed, not_denied) {
        (true, false) => Some(true),
        (false, true) => Some(false),
        (false, false) => None,
        (true, true) => panic!("{rule} lets everybody pass"),
    };
    let permission = |rule: Value, expected: Option<bool>| {
        let found = ["ALLOW", "DENY"].map(|action| passes(action, &rule, &any, &mut case()));
        assert_eq!(decided(found[0], found[1], &rule), expected, "{rule}");
    };
    let principal = |rule: Value, expected: Option<bool>| {
        let found = ["ALLOW", "DENY"].map(|action| passes(action, &any, &rule, &mut case()));
        assert_eq!(decided(found[0], found[1], &rule), expected, "{rule}");
    };
    let (yes, no, lacking) = (
        json!({"vars": [["request_method", "==", "GET"]]}),
        json!({"vars": [["uri", "==", "/x"]]}),
        json!({"vars": [["http_x_role", "~=", "guest"]]}),
    );
    permission(any.clone(), Some(true));
    for (rule, expected) in [(&yes, Some(true)), (&no, Some(false)), (&lacking, None)] {
        permission(rule.clone(), expected);
        principal(rule.clone(), expected);
        permission(json!({"not_rule": rule}), expected.map(|holds| !holds));
        principal(json!({"not_id": rule}), expected.map(|holds| !holds));
    }
    permission(json!({"and_rules": {"rules": [yes, lacking]}}), None);
    permission(json!({"and_rules": {"rules": [lacking, no]}}), Some(false));
    permission(json!({"or_rules": {"rules": [lacking, yes]}}), Some(true));
    permission(json!({"or_rules": {"rules": [lacking, no]}}), None);
    principal(json!({"and_ids": {"ids": [yes, yes]}}), Some(true));
    principal(json!({"or_ids": {"ids": [no, {"not_id": lacking}]}}), None);
    permission(json!({"vars": [["http_x_role", "==", null]]}), Some(true));

    principal(json!({"consumer": {"names": ["jack"], "groups": ["gold"]}}), Some(true));
    principal(json!({"consumer": {"names": ["jack"], "groups": ["silver"]}}), Some(false));
    principal(json!({"consumer": {"labels": {"team": ["web"]}}}), Some(true));
    principal(json!({"consumer": {"labels": {"roles": ["ops"]}}}), Some(true));
    principal(json!({"consumer": {"labels": {"team": ["infra, web"]}}}), Some(false));
    principal(json!({"consumer": {"labels": {"rank": ["1"]}}}), None);
    principal(json!({"consumer": {"names": ["jill"], "labels": {"rank": ["1"]}}}), Some(false));

    principal(json!({"claim": {"path": "sub", "values": ["u2", "u1"]}}), Some(true));
    principal(json!({"claim": {"path": "realm.roles", "values": ["admin"]}}), Some(true));
    principal(json!({"claim": {"path": ["a.b"], "values": ["x"]}}), Some(true));
    principal(json!({"claim": {"path": "scope", "values": ["write"]}}), Some(false));
    principal(json!({"claim": {"path": "scope", "values": ["write"], "separator": " "}}), Some(true));
    principal(json!({"claim": {"path": "n", "values": ["5"]}}), Some(false));
    principal(json!({"claim": {"path": "n", "values": [5]}}), Some(true));
    principal(json!({"not_id": {"claim": {"path": "gone", "values": ["x"]}}}), None);
    principal(json!({"not_id": {"claim": {"path": "realm.none", "values": ["x"]}}}), None);
}

/// An unauthenticated request has no consumer and no claims, and gets no access by that.
#[test]
fn unauthenticated_requests_get_no_access() {
    for who in [json!({"consumer": {"names": ["jack"]}}), json!({"claim": {"path": "sub", "values": ["u1"]}})]
    {
        for principal in [who.clone(), json!({"not_id": who})] {
            for action in ["ALLOW", "DENY"] {
                let mut nobody = Case::new("GET / HTTP/1.1\nHost: h");
                assert!(
                    !passes(action, &json!({"any": true}), &principal, &mut nobody),
                    "{action} {principal}"
                );
            }
        }
    }
}

#[test]
fn policies_join_as_envoy_joins_them() {
    let check = |rules: Value, expected: &str| {
        let entry = entry("rbac", rules.clone()).unwrap();
        assert_eq!(summary(case().run(&entry, Phase::Access).as_ref()), expected, "{rules}");
    };
    let (any, none) = (json!([{"any": true}]), json!([{"vars": [["uri", "==", "/x"]]}]));
    let matches = json!({"permissions": any, "principals": any});
    let misses =
        [json!({"permissions": none, "principals": any}), json!({"permissions": any, "principals": none})];
    for action in ["ALLOW", "DENY"] {
        let (matched, missed) = if action == "ALLOW" { ("passed", REFUSED) } else { (REFUSED, "passed") };
        let rules = |policies: Value| json!({"rules": {"action": action, "policies": policies}});
        check(rules(json!({})), missed);
        check(rules(json!({"a": misses[0], "b": misses[1]})), missed);
        check(rules(json!({"a": misses[0], "b": matches})), matched);
    }
    check(
        json!({"rules": {"policies": {}}, "rejected_code": 404, "rejected_msg": "no"}),
        r#"404 {"message":"no"}"#,
    );
    check(json!({"shadow_rules": {"policies": {}}}), "passed");
    check(json!({"shadow_rules": {"policies": {}}, "rules": {"policies": {"a": matches}}}), "passed");
}

#[test]
fn bad_configurations_are_refused() {
    let check = |conf: Value, expected: &str| assert_eq!(refusal("rbac", &conf), expected, "{conf}");
    check(json!({}), "object matches none of the required: [\"rules\"] or [\"shadow_rules\"]");
    check(json!({"rules": {}}), "property \"rules\" validation failed: property \"policies\" is required");
    let policy = |permission: Value, principal: Value| json!({"rules": {"policies": {"p": {"permissions": [permission], "principals": [principal]}}}});
    let any = json!({"any": true});
    check(policy(json!({"any": false}), any.clone()), "`any` must be `true` or absent");
    check(
        policy(json!({"header": {}}), any.clone()),
        "unknown variant `header`, expected one of `any`, `and_rules`, `or_rules`, `not_rule`, `vars`",
    );
    check(policy(json!({"and_rules": {"rules": []}}), any.clone()), "rules.policies.p: `rules` is empty");
    check(
        policy(json!({"vars": []}), any.clone()),
        "rules.policies.p: `vars` without a condition would match everything: write `any: true`",
    );
    check(
        policy(json!({"vars": [["remote_adr", "==", "x"]]}), any.clone()),
        "rules.policies.p: unknown variable `remote_adr`; did you mean `remote_addr`?",
    );
    check(
        policy(json!({"vars": [["post_arg_x", "==", "x"]]}), any.clone()),
        "rules.policies.p: `vars` uses `post_arg_x`, but the request body has not been read",
    );
    check(
        policy(any.clone(), json!({"consumer": {}})),
        "rules.policies.p: `consumer` needs `names`, `groups` or `labels`",
    );
    check(
        policy(any.clone(), json!({"claim": {"path": "a..b", "values": [1]}})),
        "`path` must be a string such as `realm_access.roles`, or a list of names",
    );
    check(
        policy(any.clone(), json!({"claim": {"path": "a", "values": []}})),
        "rules.policies.p: `claim` needs `values`",
    );
    assert_ne!(
        refusal("rbac", &json!({"rules": {"policies": {"p": {"permissions": [], "principals": [any]}}}})),
        ""
    );
    assert_ne!(refusal("rbac", &json!({"rules": {"action": "LOG", "policies": {}}})), "");
}

/// Which of several values a node takes is unknown: a rule that denies holds for any of them, one that allows for all.
#[test]
fn repeated_values_are_denied_by_any_and_allowed_by_all() {
    let any = json!({"any": true});
    let check = |action: &str, rule: Value, head: &str, expected: bool| {
        let mut case = Case::new(head);
        let rule = json!({"vars": [rule]});
        assert_eq!(passes(action, &rule, &any, &mut case), expected, "{action} {rule} {head}");
        let mut case = Case::new(head);
        assert_eq!(passes(action, &any, &rule, &mut case), expected, "{action} {rule} {head}");
    };
    let head = |fields: &str| format!("GET / HTTP/1.1\nHost: h\n{fields}");
    let role = json!(["http_x_role", "==", "admin"]);
    for fields in [
        "X-Role: admin",
        "X-Role: admin\nX-Role: x",
        "X-Role: x\nX-Role: admin",
        "X-Role: x\nx-ROLE: admin",
        "X-Role: x\nX_Role: admin",
        "X-Role: x, admin",
    ] {
        check("DENY", role.clone(), &head(fields), false);
    }
    check("DENY", role.clone(), &head("X-Role: x\nX-Role: y"), true);
    check("ALLOW", role.clone(), &head("X-Role: admin"), true);
    check("ALLOW", role.clone(), &head("X-Role: admin\nX-Role: x"), false);
    check("ALLOW", role, &head("X-Role: x\nX-Role: admin"), false);
    check("ALLOW", json!(["http_x_role", "~=", "guest"]), &head("X-Role: x\nX-Role: guest"), false);
    let argument = json!(["arg_role", "==", "admin"]);
    for query in ["role=admin", "role=x&role=admin", "role=admin&role=x", "role&r%6fle=%61dmin"] {
        check("DENY", argument.clone(), &format!("GET /?{query} HTTP/1.1\nHost: h"), false);
    }
    check("ALLOW", argument, "GET /?role=admin&role=x HTTP/1.1\nHost: h", false);
    let cookie = json!(["cookie_role", "==", "admin"]);
    for fields in ["Cookie: role=x; role=admin", "Cookie: role=x\nCookie: role=admin"] {
        check("DENY", cookie.clone(), &head(fields), false);
        check("ALLOW", cookie.clone(), &head(fields), false);
    }
}
