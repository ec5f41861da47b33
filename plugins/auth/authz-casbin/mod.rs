//! `authz-casbin`: who may do what, by a model and a policy of Casbin.
//!
//! The common part of Casbin's language is read here. Its library for Rust compiles regular expressions for
//! each line and request, panics on invalid ones, and skips parts of a policy that it cannot parse.

mod matcher;
mod model;
mod policy;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, FileAccess, FileMember, Phase, PhaseSet, Plugin, Reply,
    Step,
};
use sigma_schema::Problem;
use sigma_schema::described::schema_of;

use self::model::Enforcer;
use sigma_plugin_kit::fields::is_name;

/// Authorizes requests by Casbin.
pub(crate) static AUTHZ_CASBIN: Descriptor = Descriptor {
    name: "authz-casbin",
    priority: 2560,
    example: include_str!("example.md"),
    identifies: true,
    phases: PhaseSet::of(&[Phase::Rewrite]),
    metadata_schema: Some(schema_of::<Metadata>),
    warnings: Some(|_, conf| warnings(conf)),
    build: |build| Ok(std::sync::Arc::new(AuthzCasbin::new(build)?)),
    files: &[
        FileMember { name: "model_path", access: FileAccess::ReadFile },
        FileMember { name: "policy_path", access: FileAccess::ReadFile },
    ],
    ..Descriptor::of::<Config>()
};

/// Authorizes requests by a Casbin policy: by user, path and method.
///
/// **The user is the value of a header field. Clients can forge it unless a plugin or proxy before this one sets
/// it.** Without the field the user is `anonymous`; with several fields the request is refused.
///
/// A model may have: one request definition with three values, one policy definition, role definitions with or
/// without a domain, the effects `some(where (p.eft == allow))`, `!some(where (p.eft == deny))`, both with `&&`, and
/// `priority(p.eft) || deny`; in the matcher `&&`, `||`, `!`, `==`, `!=`, parentheses, role definitions, and
/// `keyMatch`, `keyMatch2`, `keyMatch3`, `regexMatch`, `ipMatch`. Anything else, and a line of the policy that does
/// not fit the model, is refused. Files are read together with the configuration.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The header field with the user's name.
    username: String,
    /// The file of the model; requires `policy_path`.
    model_path: Option<String>,
    /// The file of the policy.
    policy_path: Option<String>,
    /// The model as text; requires `policy`.
    model: Option<String>,
    /// The policy as text.
    policy: Option<String>,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        if !is_name(&self.username) {
            return Err(format!("`{}` is not the name of a header field", self.username));
        }
        match (&self.model_path, &self.policy_path, &self.model, &self.policy) {
            (Some(_), Some(_), None, None) | (None, None, None, None) => Ok(()),
            (None, None, Some(model), Some(policy)) => Enforcer::new(model, policy).map(drop),
            _ => Err(
                "write `model_path` and `policy_path`, or `model` and `policy`; omit all four if the plugin metadata has them"
                    .to_owned(),
            ),
        }
    }
}

/// The model and policy of configurations without their own.
#[derive(Deserialize, JsonSchema)]
struct Metadata {
    /// The model as text.
    model: String,
    /// The policy as text.
    policy: String,
}

impl Configuration for Metadata {
    fn check(&self) -> Result<(), String> {
        Enforcer::new(&self.model, &self.policy).map(drop)
    }
}

fn warnings(conf: &Value) -> Vec<Problem> {
    let Some(field) = conf.get("username").and_then(Value::as_str) else { return Vec::new() };
    let message = format!("every client can claim to be any user by sending `{field}`");
    let hint = "set the field in a plugin that runs earlier, or in a proxy in front of the gateway";
    vec![Problem::new("username", "unverified", message).hint(hint)]
}

struct AuthzCasbin {
    username: String,
    /// None where neither the configuration nor the metadata has one: every request is denied.
    enforcer: Option<Enforcer>,
}

impl AuthzCasbin {
    fn new(build: &Build<'_>) -> Result<AuthzCasbin, String> {
        let config: Config = build.config()?;
        let metadata: Option<Metadata> = build.metadata_as()?;
        let read = |path: &String| std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        let texts = match (&config.model_path, &config.policy_path, config.model, config.policy) {
            (Some(model), Some(policy), ..) => Some((read(model)?, read(policy)?)),
            (_, _, Some(model), Some(policy)) => Some((model, policy)),
            _ => metadata.map(|metadata| (metadata.model, metadata.policy)),
        };
        let enforcer = texts.map(|(model, policy)| Enforcer::new(&model, &policy)).transpose()?;
        if enforcer.is_none() {
            let resource = build.resource;
            tracing::error!(resource, "authz-casbin: no model is configured: every request is denied");
        }
        Ok(AuthzCasbin { username: config.username, enforcer })
    }
}

impl Plugin for AuthzCasbin {
    fn rewrite(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        let Some(enforcer) = &self.enforcer else { return Reply::new(503).text(Vec::new()).into() };
        let fields = ctx.request.headers.iter();
        let named = fields.filter(|(name, _)| name.eq_ignore_ascii_case(self.username.as_bytes()));
        let users: Vec<Vec<u8>> = named.map(|(_, value)| value.to_vec()).collect();
        let user = users.first().map_or(&b"anonymous"[..], Vec::as_slice);
        // Others would see another user than this one did.
        let is_one = users.len() < 2;
        let texts = [user, &ctx.uri[..], ctx.request.method_token()].map(std::str::from_utf8);
        let allowed = match texts {
            [Ok(user), Ok(path), Ok(method)] => is_one && enforcer.allows([user, path, method]),
            // No text of a policy.
            _ => false,
        };
        if allowed {
            ctx.mark_personal("authz-casbin", Some(user));
            Step::Next
        } else {
            Step::json(403, &json!({ "message": "Access Denied" }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, entry, entry_with, refusal, summary};

    const MODEL: &str = "[request_definition]\nr = sub, obj, act\n[policy_definition]\np = sub, obj, act\n\
        [role_definition]\ng = _, _\n[policy_effect]\ne = some(where (p.eft == allow))\n[matchers]\n\
        m = (g(r.sub, p.sub) || keyMatch(r.sub, p.sub)) && keyMatch(r.obj, p.obj) && keyMatch(r.act, p.act)\n";
    const POLICY: &str = "p, *, /, GET\np, admin, *, *\ng, alice, admin";

    fn ask(entry: &sigma_plugin::Entry, head: &str) -> String {
        summary(Case::new(head).run(entry, Phase::Rewrite).as_ref())
    }

    #[test]
    fn requests_pass_or_do_not() {
        let conf = json!({"username": "user", "model": MODEL, "policy": POLICY});
        let plugin = entry("authz-casbin", conf).unwrap();
        let denied = r#"403 {"message":"Access Denied"}"#;
        for (head, expected) in [
            ("GET / HTTP/1.1\nHost: h", "passed"),
            ("GET /?a=b HTTP/1.1\nHost: h", "passed"),
            ("GET /res HTTP/1.1\nHost: h", denied),
            ("GET / HTTP/1.1\nHost: h\nuser: bob", "passed"),
            ("POST / HTTP/1.1\nHost: h\nuser: bob", denied),
            ("PUT /res HTTP/1.1\nHost: h\nUser: alice", "passed"),
            ("PUT /res HTTP/1.1\nHost: h\nUser: ALICE", denied),
            ("PUT /res HTTP/1.1\nHost: h\nUser: alice\nUser: bob", denied),
            ("GET / HTTP/1.1\nHost: h\nuser: \u{e9}", "passed"),
        ] {
            assert_eq!(ask(&plugin, head), expected, "{head}");
        }
    }

    #[test]
    fn the_model_may_be_in_the_metadata_or_in_files() {
        let bare = json!({"username": "user"});
        let metadata = json!({"model": MODEL, "policy": POLICY});
        let plugin = entry_with("authz-casbin", bare.clone(), Some(metadata)).unwrap();
        assert_eq!(ask(&plugin, "PUT /res HTTP/1.1\nHost: h\nUser: alice"), "passed");
        // Without a model every request is denied.
        assert_eq!(ask(&entry("authz-casbin", bare).unwrap(), "GET / HTTP/1.1\nHost: h"), "503");
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("model"), MODEL).unwrap();
        let conf = json!({"username": "user", "model_path": path("model"), "policy_path": path("policy")});
        assert!(entry("authz-casbin", conf.clone()).unwrap_err().contains("policy: No such file"));
        std::fs::write(path("policy"), POLICY).unwrap();
        assert_eq!(ask(&entry("authz-casbin", conf).unwrap(), "GET / HTTP/1.1\nHost: h"), "passed");
    }

    #[test]
    fn bad_configurations_are_refused() {
        let check = |conf: Value, expected: &str| {
            let refused = refusal("authz-casbin", &conf);
            assert!(refused.contains(expected), "{conf}: {refused}");
        };
        check(json!({"model": MODEL, "policy": POLICY}), "property \"username\" is required");
        check(json!({"username": "u", "model": MODEL}), "write `model_path` and `policy_path`");
        check(json!({"username": "u", "model": MODEL, "policy_path": "x"}), "write `model_path`");
        check(json!({"username": "a b", "model": MODEL, "policy": POLICY}), "not the name of a header field");
        check(json!({"username": "u", "model": MODEL, "policy": "p, a, b"}), "line 1: `p` has 3 values");
        check(json!({"username": "u", "model": "", "policy": ""}), "the model has no [request_definition]");
    }
}
