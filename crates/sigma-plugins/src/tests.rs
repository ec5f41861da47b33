//! Rules for all plugins together.

use serde_json::{Value, json};
use sigma_config::crypt::{Keyring, mask_resource};
use sigma_config::kind::Kind;
use sigma_config::profile::{DefaultOf, Profile};
use sigma_config::settings::{RouterKind, UnknownFields};
use sigma_config::{Surroundings, stored};
use sigma_plugin::{Kind as _, Phase, Roster};
use sigma_schema::plugins::{PluginSchemas, PluginScope};
use sigma_schema::validation::Unread;

use super::*;
use crate::testing::{Case, entry, refusal, warned};

/// Defaults that APISIX does not have are shown only if they were written.
#[test]
fn own_defaults_are_shown_only_if_written() {
    let roster = Roster::new(kinds(), None);
    let check = |name: &str, scope: PluginScope, mut conf: Value, expected: Value| {
        roster.show_defaults(name, scope, &mut conf);
        assert_eq!(conf, expected, "{name}");
    };
    check(
        "limit-count",
        PluginScope::Http,
        json!({"count": 2, "time_window": 60, "_meta": {"priority": 1}}),
        json!({"count": 2, "time_window": 60, "window_type": "fixed", "key": "remote_addr", "key_type": "var",
            "rejected_code": 503, "policy": "local", "allow_degradation": false, "sync_interval": -1,
            "show_limit_quota_header": true, "_meta": {"priority": 1}}),
    );
    check(
        "jwt-auth",
        PluginScope::Consumer,
        json!({"key": "k", "secret": "s".repeat(32)}),
        json!({"key": "k", "secret": "s".repeat(32), "algorithm": "HS256", "exp": 86400, "base64_secret": false,
            "lifetime_grace_period": 0}),
    );
    let mut conf = json!({"client_id": "c", "client_secret": "s", "discovery": "http://127.0.0.1/d",
        "session": {"secret": "s".repeat(16), "idling_timeout": 900}, "jwk_cooldown": 7});
    roster.show_defaults("openid-connect", PluginScope::Http, &mut conf);
    let session = json!({"secret": "s".repeat(16), "idling_timeout": 900, "storage": "cookie"});
    assert_eq!((&conf["session"], &conf["jwk_cooldown"]), (&session, &json!(7)));
    assert_eq!(conf["scope"], "openid");
    for own in ["jwk_stale_if_error", "access_token_expires_in", "introspection_expiry_claim"] {
        assert_eq!(conf.get(own), None, "{own}");
    }
}

/// Caches and limits separate by the person that a plugin identifies. A new plugin of these groups has to be in one
/// of the two lists.
#[test]
fn plugins_of_auth_and_security_say_whether_they_identify_persons() {
    let mut guards = [sigma_plugins_auth::ROSTER, sigma_plugins_security::ROSTER].concat();
    guards.sort_by_key(|plugin| plugin.name);
    let names = |identifies: bool| -> Vec<&str> {
        let plugins = guards.iter().filter(|plugin| sigma_plugin::Kind::identifies(**plugin) == identifies);
        plugins.map(|plugin| plugin.name).collect()
    };
    let identifying = [
        "authz-casbin",
        "authz-casdoor",
        "authz-keycloak",
        "basic-auth",
        "cas-auth",
        "digest-auth",
        "dingtalk-auth",
        "ext-authz",
        "feishu-auth",
        "forward-auth",
        "hmac-auth",
        "jwe-decrypt",
        "jwt-auth",
        "key-auth",
        "ldap-auth",
        "ldap-auth-advanced",
        "multi-auth",
        "oauth2-login",
        "opa",
        "openid-connect",
        "saml-auth",
        "wolf-rbac",
    ];
    let others = [
        "acl",
        "attach-consumer-label",
        "chaitin-waf",
        "consumer-restriction",
        "cors",
        "csrf",
        "ip-restriction",
        "login-guard",
        "oas-validator",
        "rbac",
        "referer-restriction",
        "request-validation",
        "ua-restriction",
        "upstream-auth",
        "uri-blocker",
    ];
    assert_eq!((names(true), names(false)), (identifying.to_vec(), others.to_vec()));
}

/// Settings on a page can be set.
#[test]
fn attributes_that_pages_name_exist() {
    let mut named = 0;
    for plugin in kinds() {
        for told in plugin.documentation().split("`plugin_attr.").skip(1) {
            let Some((name, field)) = told.split('`').next().unwrap().split_once('.') else { continue };
            let attributes = Roster::new(kinds(), None).attributes(name).unwrap_or_default();
            let field = field.split('.').next().unwrap();
            assert!(attributes["properties"].get(field).is_some(), "plugin_attr.{name}.{field}");
            named += 1;
        }
    }
    assert!(named >= 4, "{named}");
}

/// Wherever a plugin is configured, its secrets are encrypted at rest and hidden from viewers.
#[test]
fn secrets_of_plugins_inside_plugins_are_secret() {
    let (roster, password) = (Roster::new(kinds(), None), "redis-password-1");
    let limit = json!({"count": 1, "time_window": 1, "policy": "redis", "redis_host": "h", "redis_password": password});
    let conf =
        json!({"rules": [{"actions": [["return", {"code": 403}]]}, {"actions": [["limit-count", limit]]}]});
    let plain = json!({"uri": "/", "plugins": {"workflow": conf, "limit-count": limit}});
    let keyring = Keyring::new(&["0123456789abcdef".to_owned()]).unwrap();
    let (mut stored, mut shown) = (plain.clone(), plain.clone());
    keyring.encrypt_resource(Kind::Route, &mut stored, &roster);
    mask_resource(Kind::Route, &mut shown, &roster);
    for hidden in [&stored, &shown] {
        assert!(!hidden.to_string().contains(password), "{hidden}");
    }
    assert_eq!(keyring.decrypt_resource(Kind::Route, &mut stored, &roster), 0);
    assert_eq!(stored, plain);
    // An invalid configuration is walked nevertheless.
    for wrong in [json!(7), json!({"rules": 7}), json!({"rules": [7, {"actions": [[], 7, [7]]}]})] {
        let mut value =
            json!({"plugins": {"workflow": wrong, "multi-auth": {"auth_plugins": [7, {"key-auth": 7}]}}});
        keyring.encrypt_resource(Kind::Route, &mut value, &roster);
    }
}

#[test]
fn groups_name_all_of_their_plugins() {
    let rosters = [
        sigma_plugins_auth::ROSTER,
        sigma_ext_proc::ROSTER,
        sigma_plugins_log::ROSTER,
        sigma_lua::ROSTER,
        sigma_plugins_observe::ROSTER,
        sigma_runner::ROSTER,
        sigma_plugins_security::ROSTER,
        sigma_plugins_traffic::ROSTER,
        sigma_plugins_transform::ROSTER,
    ];
    // The default features lack the last group, whose engine takes minutes to compile.
    let (wasm, groups) = left_out::GROUPS.split_last().unwrap();
    assert_eq!((wasm.name, wasm.plugins, groups.len()), ("wasm", &["wasm"][..], rosters.len()));
    for (group, roster) in groups.iter().zip(rosters) {
        let names: Vec<&str> = roster.iter().map(|plugin| plugin.name).collect();
        assert_eq!((group.is_built, group.plugins), (true, &names[..]), "{}", group.name);
    }
    assert_eq!(left_out().len(), usize::from(!wasm.is_built));
    let groupless: Vec<String> =
        kinds().iter().filter(|kind| kind.group().is_empty()).map(|kind| kind.name().to_owned()).collect();
    assert_eq!(groupless, [""; 0]);
}

#[test]
fn names_are_sorted_and_schemas_compile() {
    let names: Vec<&str> = ROSTER.iter().map(|descriptor| descriptor.name).collect();
    assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "{names:?}");
    let roster = Roster::new(kinds(), None);
    let scopes = [PluginScope::Http, PluginScope::Consumer, PluginScope::Metadata, PluginScope::Stream];
    for (name, scope) in names.iter().flat_map(|name| scopes.map(|scope| (name, scope))) {
        // With all of its patterns, which a checker compiles when it needs them.
        if let Some(schema) = roster.schema(name, scope) {
            assert_eq!(sigma_schema::validation::Schema::compile(schema).err(), None, "{name} {scope:?}");
        }
    }
    for attributes in ROSTER.iter().filter_map(|descriptor| descriptor.attributes) {
        sigma_schema::validation::Schema::compile(&attributes()).unwrap();
    }
}

#[test]
fn no_plugin_takes_a_field_that_does_not_exist() {
    let roster = Roster::new(kinds(), None);
    for name in roster.names() {
        let all = [PluginScope::Http, PluginScope::Consumer, PluginScope::Metadata, PluginScope::Stream];
        let has =
            |scope: &PluginScope| *scope == PluginScope::Metadata || roster.schema(name, *scope).is_some();
        for scope in all.into_iter().filter(has) {
            let conf = json!({"no_such_field": 1, "id": name, "_meta": {"priority": 1}});
            let unread = roster.unread(name, scope, &conf);
            let unknown: Vec<&str> = unread.iter().map(|field| field.name.as_str()).collect();
            let expected = match scope {
                // An object under a key carries it.
                PluginScope::Metadata => &["no_such_field"][..],
                _ => &["no_such_field", "id"],
            };
            assert!(unread.iter().all(Unread::is_unknown), "{name} {scope:?}: {unread:?}");
            assert_eq!(unknown, expected, "{name} {scope:?}");
        }
    }
}

#[test]
fn numbers_beyond_64_bits_are_counted_as_far_as_it_goes() {
    for (name, conf) in [
        ("cors", json!({"max_age": u64::MAX})),
        ("api-breaker", json!({"break_response_code": 502, "max_breaker_sec": 1e300})),
        ("http-logger", json!({"uri": "http://127.0.0.1:1", "inactive_timeout": 1e300})),
    ] {
        crate::testing::entry(name, conf.clone()).unwrap_or_else(|error| panic!("{name} {conf}: {error}"));
    }
}

#[test]
fn a_warning_of_both_schema_and_plugin_comes_once() {
    let roster = Roster::new(kinds(), None);
    let (unknown, router) = (UnknownFields::Refuse, RouterKind::default());
    let around = Surroundings { plugins: &roster, unknown, router, now: 0, trusts_proxies: false };
    let consumer = json!({"username": "a", "plugins": {"jwt-auth": {"key": "a", "secret": "b", "exp": 5}}});
    let found = stored::warnings(Kind::Consumer, Some("a"), &consumer, &around);
    let places: Vec<&str> = found.iter().map(|problem| problem.pointer.as_str()).collect();
    assert_eq!(places, ["plugins.jwt-auth.exp"]);
}

#[test]
fn defaults_of_profiles_are_fields_of_plugins() {
    let roster = Roster::new(kinds(), None);
    for default in Profile::Edge.defaults() {
        let DefaultOf::Plugin(name, path) = default.of else { continue };
        let schema = roster.schema(name, PluginScope::Http).unwrap();
        let pointer = format!("/properties/{}", path.replace('.', "/properties/"));
        let field = schema.pointer(&pointer).unwrap_or_else(|| panic!("{name} has no field {path}"));
        let otherwise = field.get("default").map_or("–".to_owned(), Value::to_string);
        assert_eq!(otherwise, default.otherwise, "{name}.{path}");
    }
}

/// A plugin that is made and checked under a profile has its defaults, and the warnings about them end.
#[test]
fn profile_holds_for_configurations_of_plugins() {
    let plain = Roster::new(kinds(), None);
    let edge = Roster::new(kinds(), None)
        .with_defaults(Some(Arc::new(|name, conf| Profile::Edge.fill_plugin(name, conf))));
    let warned = |roster: &Roster, name: &str, conf: &Value| {
        assert_eq!(roster.check(name, PluginScope::Http, conf), Ok(()), "{name}");
        roster.warnings(name, PluginScope::Http, conf).len()
    };
    let provider = json!({
        "discovery": "https://login.example/.well-known/openid-configuration", "client_id": "a",
        "client_secret": "b", "session": {"secret": "0123456789abcdef"}, "use_jwks": true,
    });
    for (name, conf, plainly) in [
        ("jwt-auth", json!({}), 1),
        ("real-ip", json!({"source": "http_x_real_ip"}), 1),
        ("openid-connect", provider, 2),
    ] {
        assert_eq!((warned(&plain, name, &conf), warned(&edge, name, &conf)), (plainly, 0), "{name}");
    }
    let own = json!({"require_exp": false});
    assert_eq!(warned(&edge, "jwt-auth", &own), 1);
}

#[test]
fn every_plugin_has_documentation() {
    for descriptor in ROSTER.iter() {
        assert!(!descriptor.documentation().trim().is_empty(), "{}", descriptor.name);
        let schema = (descriptor.schema)();
        let fields = schema.get("properties").and_then(serde_json::Value::as_object);
        for (field, about) in fields.into_iter().flatten() {
            assert!(about.get("description").is_some(), "{}.{field} has no description", descriptor.name);
        }
    }
}

/// A value that is parsed into its own type may be a reference to a secret as well.
#[test]
fn references_are_parsed_when_they_are_known() {
    let roster = Roster::new(kinds(), None);
    for (plugin, conf, field, fits) in [
        ("request-id", json!({"algorithm": "$env://NOWHERE"}), "algorithm", "ksuid"),
        ("static-files", json!({"root": "/", "symlinks": "$env://NOWHERE"}), "symlinks", "deny"),
        ("security-headers", json!({"frame": "$env://NOWHERE"}), "frame", "DENY"),
    ] {
        assert!(roster.check(plugin, PluginScope::Http, &conf).is_ok(), "{plugin}");
        let build = |text: &str| {
            let (conf, mut resolved) = (Arc::new(conf.clone()), conf.clone());
            resolved[field] = text.into();
            roster.build(plugin, &conf, resolved, "r", &|_: &str| None, &Arc::default()).map(drop)
        };
        assert!(build(fits).is_ok(), "{plugin}");
        assert!(build("other").is_err() && build("$env://NOWHERE").is_err(), "{plugin}");
    }
}

/// A secret that is empty, or whose reference is all that is known, is held by everybody.
#[test]
fn secrets_that_everybody_holds_are_refused() {
    let roster = Roster::new(kinds(), None);
    let refused = |plugin: &str, conf: &serde_json::Value| {
        roster.identity(plugin, conf).unwrap().err().unwrap_or_default()
    };
    for (plugin, conf, field) in [
        ("key-auth", json!({"key": ""}), "key"),
        ("hmac-auth", json!({"key_id": "a", "secret_key": ""}), "secret_key"),
        ("jwt-auth", json!({"key": "a", "secret": ""}), "secret"),
        ("basic-auth", json!({"username": "a", "password": ""}), "password"),
    ] {
        assert!(!refused(plugin, &conf).is_empty(), "{plugin}: {conf}");
        assert!(roster.check(plugin, PluginScope::Consumer, &conf).is_err(), "{plugin}: {conf}");
        let mut referring = conf.clone();
        referring[field] = "$env://NOWHERE".into();
        assert!(refused(plugin, &referring).contains("cannot resolve the secret"), "{plugin}: {referring}");
    }
    // The schema applies to the value of a reference, and no reason reveals it.
    let build = |conf: serde_json::Value, resolved: serde_json::Value| {
        let built =
            roster.build("ip-restriction", &Arc::new(conf), resolved, "r", &|_: &str| None, &Arc::default());
        built.err().unwrap_or_default()
    };
    let conf = json!({"whitelist": ["$env://NETWORK"]});
    assert!(build(conf.clone(), conf.clone()).contains("cannot resolve the secret of `whitelist/0`"));
    let reason = build(conf.clone(), json!({"whitelist": ["no-network"]}));
    assert!(!reason.is_empty() && !reason.contains("no-network"), "{reason}");
    assert_eq!(build(conf, json!({"whitelist": ["10.0.0.0/8"]})), "");
}

/// Plugins of two groups that meet on one route: `cors` decides about other origins, and `grpc-web` answers only where
/// it did not.
#[test]
fn cors_decides_instead_of_grpc_web() {
    let web = entry("grpc-web", json!({"cors_allow_headers": "x-a"})).unwrap();
    let cors = entry("cors", json!({"allow_origins": "https://good"})).unwrap();
    let check = |method: &str, origin: Option<&str>, expected: &str| {
        let shown = origin.unwrap_or("https://any");
        let mut case = Case::new(&format!("{method} / HTTP/1.1\nHost: h\nOrigin: {shown}"));
        if origin.is_some() {
            case.run(&cors, Phase::Rewrite);
        }
        case.respond(200, "");
        // In a global rule grpc-web comes first.
        case.header_filter(&web);
        if origin.is_some() {
            case.header_filter(&cors);
        }
        let fields = ["Allow-Methods", "Allow-Headers", "Expose-Headers", "Allow-Origin"];
        let found = fields.map(|name| case.answered(&format!("Access-Control-{name}")));
        assert_eq!(found.join("|"), expected, "{method} {origin:?}");
    };
    check("OPTIONS", None, "POST|x-a|grpc-message,grpc-status|*");
    check("POST", None, "||grpc-message,grpc-status|*");
    check("POST", Some("https://evil"), "||grpc-message,grpc-status|");
}

/// A method of `multi-auth` from another group is refused as one of its own group is.
#[test]
fn methods_of_multi_auth_authenticate() {
    for name in ["limit-count", "cors", "forward-auth"] {
        let conf = json!({"auth_plugins": [{"key-auth": {}}, {name: {}}]});
        assert_eq!(refusal("multi-auth", &conf), format!("{name} plugin is not supported"));
    }
}

/// A guard counts logins that plugins of another group refuse, and no other refusals of theirs.
#[test]
fn login_guard_knows_login_plugins_of_other_groups() {
    let identifies = |name: &str| {
        let known = ROSTER.iter().find(|plugin| plugin.name == name).unwrap();
        sigma_plugin::Kind::identifies(*known)
    };
    assert!(identifies("forward-auth") && !identifies("limit-count") && !identifies("ip-restriction"));
}

#[test]
fn settings_with_no_or_too_much_effect_have_warnings() {
    let check = |plugin: &str, conf: Value, expected: &[&str]| {
        assert_eq!(warned(plugin, PluginScope::Http, &conf), expected, "{conf}");
    };
    check(
        "limit-conn",
        json!({"conn": 1, "burst": 0, "default_conn_delay": 1, "key": "uri", "only_use_default_delay": false, "rejected_code": 429}),
        &["only_use_default_delay"],
    );
    let origins = |pattern: &str| json!({"allow_origins_by_regex": [pattern]});
    check("cors", origins("^https://a\\.com$"), &[]);
    check("cors", origins("a.com"), &["allow_origins_by_regex[0]"]);
}
