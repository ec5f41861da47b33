//! `dubbo-proxy`: methods of Dubbo that take and give requests and answers of HTTP as maps.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::dubbo::{BODY_BYTES_MAX, Call, Form};
use sigma_plugin::dubbo::DubboCall;
use sigma_plugin::{Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};
use sigma_schema::described::schema_of;

const NAME: &str = "dubbo-proxy";

/// The plugin.
pub(crate) static DUBBO_PROXY: Descriptor = Descriptor {
    name: NAME,
    priority: 507,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access]),
    attributes: Some(schema_of::<Attributes>),
    build: |build| Ok(Arc::new(DubboProxy::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Calls a method of an Apache Dubbo provider with a map of the request; the returned map is the response.
///
/// The nodes of the route's upstream, whose `scheme` is `http` or `https` (for Dubbo over TLS), are called with the
/// protocol `dubbo` and the serialization `hessian2`. The method has one parameter, a `Map<String, Object>` with all
/// fields of the request as strings and, if present, its body in `body`, as bytes. A repeated field is one string with
/// commas. A field named `body` is omitted, because it could be mistaken for the body. The method returns a map:
/// `status` is the status, 200 by default; `body`, a string or bytes, is the body; all other members are response
/// fields. A list becomes several fields.
///
/// Without `method`, the method is the path after its first slash. A path that is not a method name gets 404. So do
/// Dubbo's own methods, which begin with a dollar, such as `$invoke` and `$echo`.
///
/// | status | when |
/// |---|---|
/// | 413 | the body is over 64 MiB |
/// | 500 | the method threw |
/// | 503 | the provider has no free thread |
/// | 504 | the provider reports a timeout, or does not respond in time |
/// | 502 | the provider has another error, or the method returned no such map |
///
/// The provider's error message is written to the error log. Its response has at most 8 MiB, Dubbo's own limit.
/// Balancing, retries, health checks, limits, `circuit_breaker`, `timeout` and `keepalive_pool` of the upstream are
/// as for HTTP. Active checks need `type: tcp`.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The interface of the service.
    #[schemars(length(min = 1))]
    service_name: Box<str>,
    /// The version of the service.
    #[schemars(regex(pattern = r"^\d+\.\d+\.\d+"))]
    service_version: Box<str>,
    /// The method; unset: the path without its first slash.
    #[schemars(length(min = 1))]
    method: Option<Box<str>>,
}

impl Configuration for Config {}

/// The attributes of the plugin in `plugin_attr`.
#[derive(Deserialize, JsonSchema)]
struct Attributes {
    /// Without effect: a connection has one call at a time, and there are as many connections as calls.
    #[schemars(range(min = 1))]
    upstream_multiplex_count: Option<u32>,
}

/// An instance.
struct DubboProxy(Config);

impl DubboProxy {
    fn new(build: &Build<'_>) -> Result<DubboProxy, String> {
        let told = Option::<Attributes>::deserialize(build.node.attribute(build.plugin));
        let told = told.map_err(|error| format!("plugin_attr.{NAME}: {error}"))?;
        if told.is_some_and(|told| told.upstream_multiplex_count.is_some()) {
            tracing::warn!(
                "plugin_attr.{NAME}.upstream_multiplex_count has no effect: a connection has one call at a time"
            );
        }
        Ok(DubboProxy(build.config()?))
    }

    /// The method that a request calls.
    fn method(&self, ctx: &Context) -> Option<Box<str>> {
        if self.0.method.is_some() {
            return self.0.method.clone();
        }
        let path = ctx.uri.strip_prefix(b"/").unwrap_or(&ctx.uri);
        std::str::from_utf8(path).ok().filter(|name| is_method(name)).map(Box::from)
    }
}

/// Whether clients may call it: an identifier of Java that is not a method of Dubbo's own.
fn is_method(name: &str) -> bool {
    let may_begin = |c: char| c == '_' || c.is_alphabetic();
    name.starts_with(may_begin) && name.chars().all(|c| c == '$' || c.is_ascii_digit() || may_begin(c))
}

impl Plugin for DubboProxy {
    fn access(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        let Some(method) = self.method(ctx) else { return Step::status(404) };
        let call = Call {
            service: self.0.service_name.clone(),
            version: self.0.service_version.clone(),
            method,
            form: Form::Map,
            body_bytes_max: BODY_BYTES_MAX,
        };
        ctx.dubbo = Some(Box::new(DubboCall { call, patience: None }));
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Case, assert_refusal, entry};

    #[test]
    fn methods() {
        let check = |method: Option<&str>, path: &str, expected: Option<&str>| {
            let mut conf = json!({"service_name": "a.B", "service_version": "1.0.0"});
            if let Some(method) = method {
                conf["method"] = json!(method);
            }
            let mut case = Case::new(&format!("GET {path} HTTP/1.1\nHost: h"));
            case.ctx.uri = path.split('?').next().unwrap().into();
            let reply = case.run(&entry("dubbo-proxy", conf).unwrap(), Phase::Access);
            assert_eq!(reply.map(|reply| reply.status), expected.is_none().then_some(404), "{path}");
            let found = case.ctx.dubbo.map(|dubbo| dubbo.call.method);
            assert_eq!(found.as_deref(), expected, "{method:?} {path}");
        };
        check(None, "/hello", Some("hello"));
        check(None, "/hello_2$x?a=b", Some("hello_2$x"));
        check(Some("say"), "/a/b", Some("say"));
        check(Some("$invoke"), "/a/b", Some("$invoke"));
        for path in ["/", "/a/b", "/$invoke", "/$echo", "/1a", "/a-b", "/a.b", "//a"] {
            check(None, path, None);
        }
    }

    #[test]
    fn configurations_that_are_refused() {
        let check = |conf: Value, expected: &str| assert_refusal("dubbo-proxy", &conf, expected);
        check(json!({"service_name": "a.B"}), "property \"service_version\" is required");
        check(json!({"service_version": "1.0.0"}), "property \"service_name\" is required");
    }
}
