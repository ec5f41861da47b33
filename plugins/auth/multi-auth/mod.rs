//! `multi-auth`: several ways to authenticate, one of which must succeed.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sigma_http::Headers;
use sigma_plugin::descriptor::{Child, parsed};
use sigma_plugin::personal::Personal;
use sigma_plugin::step::End;
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Entry, Env, Identity, Phase, PhaseSet, Plugin, Reply,
    ResponseStep, Slot, Step,
};

use sigma_plugin_kit::log_throttle::LogThrottle;

/// Asks other plugins who a request is from.
pub(crate) static MULTI_AUTH: Descriptor = Descriptor {
    name: "multi-auth",
    priority: 2600,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::HeaderFilter]),
    authenticates_by_children: true,
    children: Some(|conf| methods(conf).map(|(place, name, conf)| child(place, name, conf)).collect()),
    build: |build| Ok(Arc::new(MultiAuth::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Authenticates requests by one of several authentication plugins.
///
/// The plugins are tried in order; the first successful one sets the consumer. Consumers have the configurations of
/// these plugins, not of this one. A failing plugin does not change the request, so several can read the same field.
/// With `hide_credentials` only the successful plugin removes its credential, and only this one changes the response.
/// A method with an `anonymous_consumer` always succeeds, so list it last.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The plugins, each an object with a name and a configuration: `{key-auth: {header: X-Key}}`.
    #[expect(dead_code, reason = "the plugins are read from the configuration as it was written")]
    #[schemars(length(min = 2), extend("items" = {"type": "object"}))]
    auth_plugins: Vec<Map<String, Value>>,
}

impl Configuration for Config {}

fn not_supported(plugin: &str) -> String {
    format!("{plugin} plugin is not supported")
}

/// The field that names a way to authenticate.
const CHALLENGE: &str = "WWW-Authenticate";

/// The plugins of a configuration as it is written: place, name and configuration of each.
fn methods(conf: &Value) -> impl Iterator<Item = (String, &String, &Value)> {
    use sigma_schema::problem::{element, member};
    let items = conf.get("auth_plugins").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    items.iter().enumerate().flat_map(|(at, item)| {
        let plugins = item.as_object().into_iter().flat_map(Map::iter);
        plugins.map(move |(name, conf)| (member(&element("auth_plugins", at), name), name, conf))
    })
}

fn child(place: String, name: &str, conf: &Value) -> Child {
    Child {
        name: name.to_owned(),
        conf: conf.clone(),
        place,
        unknown: format!("{name} plugin did not found"),
        refused: format!("plugin {name} check schema failed: "),
        unauthenticating: Some(not_supported(name)),
    }
}

struct MultiAuth {
    methods: Arc<[Arc<Entry>]>,
}

impl MultiAuth {
    fn new(build: &Build<'_>) -> Result<MultiAuth, String> {
        parsed::<Config>(build.conf)?;
        let method = |(place, name, conf): (String, &String, &Value)| {
            let method = build.child(name, conf, &place)?;
            method.kind.authenticates().then_some(method).ok_or_else(|| not_supported(name))
        };
        Ok(MultiAuth { methods: methods(build.conf).map(method).collect::<Result<_, _>>()? })
    }
}

/// The state that a plugin may have changed before it failed.
struct Before {
    headers: Headers,
    target: Vec<u8>,
    identity: Option<Arc<Identity>>,
    personal: Personal,
}

impl Before {
    fn of(ctx: &Context) -> Before {
        Before {
            headers: ctx.request.headers.clone(),
            target: ctx.target.clone(),
            identity: ctx.identity.clone(),
            personal: ctx.personal.clone(),
        }
    }

    fn restore(&self, ctx: &mut Context) {
        ctx.request.headers.clone_from(&self.headers);
        ctx.target.clone_from(&self.target);
        ctx.identity.clone_from(&self.identity);
        ctx.personal.clone_from(&self.personal);
    }
}

/// How a plugin has failed.
struct Failure {
    status: u16,
    reason: &'static str,
}

/// The plugin that has authenticated the request, and also processes the response.
struct Recognised(Arc<Entry>);

/// A request on its way from one plugin to the next.
struct Attempt {
    slot: Slot,
    methods: Arc<[Arc<Entry>]>,
    before: Before,
    failures: Vec<Failure>,
    challenges: Vec<Vec<u8>>,
}

impl Attempt {
    /// Asks the next plugin: as many have been asked as have failed.
    fn go_on(mut self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let Some(method) = self.methods.get(self.failures.len()).cloned() else { return self.refuse() };
        let plugin = Arc::clone(&method.plugin);
        plugin.rewrite(ctx, env).and_then(ctx, env, move |end, ctx, env| match end {
            End::Next => {
                if method.kind.phases().contains(Phase::HeaderFilter) {
                    ctx.keep(self.slot, Recognised(method));
                }
                Step::Next
            }
            // A plugin that refuses a request has not authenticated it.
            End::Reply(reply) | End::Stream(reply, _) | End::Takeover(reply, _) => {
                self.before.restore(ctx);
                self.failed(*reply);
                self.go_on(ctx, env)
            }
        })
    }

    fn failed(&mut self, reply: Reply) {
        let is_challenge = |name: &str| name.eq_ignore_ascii_case(CHALLENGE);
        for (_, challenge) in reply.headers.into_iter().filter(|(name, _)| is_challenge(name)) {
            if !self.challenges.contains(&challenge) {
                self.challenges.push(challenge);
            }
        }
        let (status, reason) = (reply.status, reply.reason.unwrap_or_default());
        self.failures.push(Failure { status, reason });
    }

    /// Authentication failed; every way to authenticate is named (RFC 9110 §11.6.1).
    fn refuse(self) -> Step {
        static REFUSED: LogThrottle = LogThrottle::new();
        if let Some(left_out) = REFUSED.due() {
            for (method, Failure { status, reason }) in self.methods.iter().zip(&self.failures) {
                let plugin = method.name();
                tracing::warn!(
                    left_out,
                    "{plugin} failed to authenticate the request, code: {status}. error: {reason}"
                );
            }
        }
        let reply = Reply::new(401).json(&json!({"message": "Authorization Failed"}));
        self.challenges.into_iter().fold(reply, |reply, challenge| reply.header(CHALLENGE, challenge)).into()
    }
}

impl Plugin for MultiAuth {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let (slot, methods, before) = (Slot::from(self), Arc::clone(&self.methods), Before::of(ctx));
        Attempt { slot, methods, before, failures: Vec::new(), challenges: Vec::new() }.go_on(ctx, env)
    }

    fn header_filter(&self, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        match ctx.take_kept(self) {
            Some(Recognised(method)) => method.plugin.header_filter(ctx, env),
            None => ResponseStep::Next,
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use sigma_plugin::Consumer;
    use sigma_schema::plugins::PluginScope;

    use super::*;
    use crate::testing::{Case, entry, refusal, refusal_in, roster, summary};

    const FAILED: &str = "401 {\"message\":\"Authorization Failed\"}";

    /// `jack` has a key, `jill` a password.
    fn case() -> Case {
        let mut case = Case::new("GET / HTTP/1.1\nHost: h");
        case.consumer("jack", "key-auth", &json!({"key": "jacks"}));
        case.consumer("jill", "basic-auth", &json!({"username": "jill", "password": "p"}));
        case.consumers.put(Arc::new(Consumer { name: "anyone".into(), ..Consumer::default() }));
        case
    }

    fn basic(user: &str) -> String {
        format!("Authorization: Basic {}", STANDARD.encode(user))
    }

    /// Returns the consumer that the node sees, or the response.
    fn told(case: &mut Case, conf: &Value, head: &str) -> String {
        case.request(head);
        let reply = case.run(&entry("multi-auth", conf.clone()).unwrap(), Phase::Rewrite);
        match reply {
            Some(reply) => summary(Some(&reply)),
            None => case.sent("x-consumer-username").unwrap_or_default(),
        }
    }

    #[test]
    fn one_of_them_must_succeed() {
        let conf = json!({"auth_plugins": [{"key-auth": {}}, {"basic-auth": {}}]});
        let mut case = case();
        let mut check = |fields: &str, expected: &str| {
            let head = format!("GET / HTTP/1.1\nHost: h\nX-Consumer-Username: liar\n{fields}");
            assert_eq!(told(&mut case, &conf, &head), expected, "{fields}");
        };
        check("", FAILED);
        check("apikey: no", FAILED);
        check(&format!("apikey: no\n{}", basic("jill:no")), FAILED);
        // A name of one method and the secret of another.
        check(&format!("apikey: p\n{}", basic("jack:jacks")), FAILED);
        check("apikey: jacks", "jack");
        check(&basic("jill:p"), "jill");
        check(&format!("apikey: no\n{}", basic("jill:p")), "jill");
        check(&format!("apikey: jacks\n{}", basic("jill:p")), "jack");
    }

    #[test]
    fn without_a_method_requests_are_refused() {
        let conf = json!({"auth_plugins": [{}, {}]});
        assert_eq!(told(&mut case(), &conf, "GET / HTTP/1.1\nHost: h\napikey: jacks"), FAILED);
    }

    #[test]
    fn every_way_is_named() {
        let conf = json!({"auth_plugins": [{"key-auth": {}}, {"key-auth": {"header": "k"}}, {"basic-auth": {"realm": "r"}}]});
        let entry = entry("multi-auth", conf).unwrap();
        let reply = case().run(&entry, Phase::Rewrite).unwrap();
        let values = reply.headers.iter().map(|(_, value)| String::from_utf8_lossy(value).into_owned());
        assert_eq!(values.collect::<Vec<_>>(), ["apikey realm=\"key\"", "Basic realm=\"r\""]);
    }

    #[test]
    fn a_failed_plugin_leaves_the_request_to_the_next() {
        let hides = json!({"hide_credentials": true});
        let conf = json!({"auth_plugins": [
            {"key-auth": {"header": "Authorization", "hide_credentials": true}}, {"jwt-auth": hides}, {"basic-auth": hides}
        ]});
        let mut case = case();
        let head = format!("GET /?apikey=x&a=1 HTTP/1.1\nHost: h\n{}", basic("jill:p"));
        assert_eq!(told(&mut case, &conf, &head), "jill");
        assert_eq!((case.sent("authorization"), case.target()), (None, "/?apikey=x&a=1".to_owned()));
        let head = "GET /?apikey=jacks&a=1 HTTP/1.1\nHost: h";
        assert_eq!(told(&mut case, &conf, head), "jack");
        assert_eq!(case.target(), "/?a=1");
    }

    #[test]
    fn the_body_is_read_for_those_who_ask_for_it() {
        let conf = json!({"auth_plugins": [
            {"hmac-auth": {"validate_request_body": true, "max_req_body_size": 4}}, {"key-auth": {}}
        ]});
        let mut case = case();
        case.consumer("joe", "hmac-auth", &json!({"key_id": "joe", "secret_key": "s"}));
        case.body = b"more than four".to_vec();
        let head = "POST / HTTP/1.1\nHost: h\nContent-Length: 14\nDate: Sun, 06 Nov 1994 08:49:37 GMT\n\
            Authorization: Signature keyId=\"joe\",algorithm=\"hmac-sha256\",headers=\"date\",signature=\"AA==\"";
        assert_eq!(told(&mut case, &conf, head), FAILED);
        assert_eq!(told(&mut case, &conf, &format!("{head}\napikey: jacks")), "jack");
    }

    #[test]
    fn an_anonymous_consumer_ends_the_list() {
        let with = |name: &str| json!({"auth_plugins": [{"key-auth": {}}, {"basic-auth": {"anonymous_consumer": name}}]});
        let check = |name: &str, fields: &str, expected: &str| {
            let head = format!("GET / HTTP/1.1\nHost: h\n{fields}");
            assert_eq!(told(&mut case(), &with(name), &head), expected, "{name} {fields}");
        };
        check("anyone", "", "anyone");
        check("anyone", "apikey: jacks", "jack");
        check("nobody", "", FAILED);
    }

    #[test]
    fn configurations() {
        let check = |plugins: Value, reason: &str| {
            assert_eq!(refusal("multi-auth", &json!({"auth_plugins": plugins})), reason, "{plugins}");
        };
        check(json!([{"key-auth": {}}, {"jwt-auth": {}}]), "");
        check(json!([{"key-auth": {}}, {"acl": {}}]), "acl plugin is not supported");
        check(
            json!([{"key-auth": {}}, {"consumer-restriction": {}}]),
            "consumer-restriction plugin is not supported",
        );
        check(json!([{"key-auth": {}}, {"no-auth": {}}]), "no-auth plugin did not found");
        check(
            json!([{"key-auth": {}}, {"basic-auth": {"realm": 7}}]),
            "plugin basic-auth check schema failed: property \"realm\" validation failed: wrong type: expected string, got number",
        );
        check(
            json!([{"key-auth": {"_meta": {"filter": [["uri", "==", "/x"]]}}, "jwt-auth": {}}, {}]),
            "plugin key-auth check schema failed: `_meta` has no effect inside another plugin; remove it",
        );
        check(
            json!([{"key-auth": {}}, {"multi-auth": {}}]),
            "plugin multi-auth check schema failed: property \"auth_plugins\" is required",
        );
        assert!(!refusal("multi-auth", &json!({"auth_plugins": [{"key-auth": {}}]})).is_empty());
        assert!(!refusal("multi-auth", &json!({})).is_empty());
    }

    /// It authenticates no consumer by itself, so consumers cannot have it.
    #[test]
    fn no_consumer_has_it() {
        let conf = json!({"auth_plugins": [{"key-auth": {}}, {"jwt-auth": {}}]});
        let reason = refusal_in("multi-auth", PluginScope::Consumer, &conf);
        assert_eq!(
            reason,
            "the plugin has no credentials; configure credentials of the plugins that it calls"
        );
        assert!(roster().identity("multi-auth", &conf).is_none());
    }

    /// A secret of one of them is missing: the whole is not built, so that its route is closed.
    #[test]
    fn with_a_part_that_is_broken_there_is_no_whole() {
        let roster = roster();
        let conf = Arc::new(
            json!({"auth_plugins": [{"key-auth": {}}, {"basic-auth": {"realm": "$env://NOWHERE"}}]}),
        );
        let built =
            roster.build("multi-auth", &conf, Value::clone(&conf), "r", &|_: &str| None, &Arc::default());
        assert!(built.unwrap_err().contains("cannot resolve the secret"));
    }
}
