//! `http-dubbo`: methods of Dubbo whose parameters are a body of JSON.

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::dubbo::{Call, Form, count_types};
use sigma_plugin::dubbo::{DubboCall, Patience};
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};

/// The plugin.
pub(crate) static HTTP_DUBBO: Descriptor = Descriptor {
    name: "http-dubbo",
    priority: 504,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::BeforeProxy]),
    ..Descriptor::itself::<HttpDubbo>()
};

/// Calls a method of an Apache Dubbo provider, whose parameters are the body of the request.
///
/// The nodes of the route's upstream are called with the protocol `dubbo` and the serialization `fastjson`, which the
/// provider must support. The `scheme` of the upstream is `http`, or `https` for Dubbo over TLS. The body is a JSON
/// list with an element for each parameter, or an object whose members are the parameters in their order. A body that
/// is serialized already has a line of JSON for each parameter. The number of parameters in the body must match the
/// types in `params_type_desc`: additional values would be attachments, which name the called service.
///
/// | status | when |
/// |---|---|
/// | 200 with the JSON of the value | the method returned a value |
/// | 200 without a body | the method returned null |
/// | 400 | the body is not JSON, or has another number of parameters than the method |
/// | 413 | the body is over `max_req_body_size` |
/// | 502 | the provider was unreachable |
/// | 500 | other errors: the method threw, the provider did not respond in time or not in Dubbo |
///
/// Error responses have no body, except 400, which has the reason. The provider's message is written to the error
/// log. A provider's response has at most 8 MiB, Dubbo's own limit. Balancing, retries, health checks, limits,
/// `circuit_breaker` and `keepalive_pool` of the upstream are as for HTTP: a call is repeated as its request's method
/// allows. Active checks need `type: tcp`.
#[derive(Deserialize, JsonSchema)]
struct HttpDubbo {
    /// The interface of the service.
    #[schemars(length(min = 1))]
    service_name: Box<str>,
    /// The version of the service.
    #[schemars(regex(pattern = r"^\d+\.\d+\.\d+"), extend("default" = "0.0.0"))]
    service_version: Box<str>,
    /// The method.
    #[schemars(length(min = 1))]
    method: Box<str>,
    /// The types of its parameters as JVM descriptors: `Ljava/lang/Long;I` is a `Long` and an `int`.
    #[schemars(extend("default" = ""))]
    params_type_desc: Box<str>,
    /// The request field that marks a serialized body with the value `true`.
    serialization_header_key: Option<Box<str>>,
    /// Whether bodies are serialized, if `serialization_header_key` is unset.
    #[schemars(extend("default" = false))]
    serialized: bool,
    /// Connect timeout in milliseconds.
    #[schemars(range(min = 1), extend("default" = 6000))]
    connect_timeout: f64,
    /// Read timeout in milliseconds.
    #[schemars(range(min = 1), extend("default" = 6000))]
    read_timeout: f64,
    /// Send timeout in milliseconds: the time without progress.
    #[schemars(range(min = 1), extend("default" = 6000))]
    send_timeout: f64,
    /// Maximum bytes of a body, which is held in memory.
    #[schemars(range(min = 1), extend("default" = 67_108_864))]
    max_req_body_size: usize,
}

impl Configuration for HttpDubbo {
    fn check(&self) -> Result<(), String> {
        count_types(&self.params_type_desc)
            .map_err(|error| format!("params_type_desc: `{}` has {error}", self.params_type_desc))?;
        Ok(())
    }
}

impl HttpDubbo {
    fn is_serialized(&self, ctx: &Context) -> bool {
        match &self.serialization_header_key {
            Some(name) => ctx.request.headers.find(name.as_bytes()) == Some(&b"true"[..]),
            None => self.serialized,
        }
    }
}

impl Plugin for HttpDubbo {
    fn before_proxy(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        let form =
            Form::Lines { types: self.params_type_desc.clone(), is_serialized: self.is_serialized(ctx) };
        let call = Call {
            service: self.service_name.clone(),
            version: self.service_version.clone(),
            method: self.method.clone(),
            form,
            body_bytes_max: self.max_req_body_size,
        };
        let ms = |timeout: f64| timeout.ceil() as u64;
        let patience = Patience {
            connect_ms: ms(self.connect_timeout),
            send_ms: ms(self.send_timeout),
            read_ms: ms(self.read_timeout),
        };
        ctx.dubbo = Some(Box::new(DubboCall { call, patience: Some(patience) }));
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Case, assert_refusal, entry};

    fn call(conf: Value, fields: &str) -> DubboCall {
        let mut case = Case::new(&format!("POST / HTTP/1.1\nHost: h{fields}"));
        assert!(case.run(&entry("http-dubbo", conf).unwrap(), Phase::BeforeProxy).is_none());
        *case.ctx.dubbo.unwrap()
    }

    #[test]
    fn calls() {
        let found = call(json!({"service_name": "a.B", "method": "m"}), "");
        let form = Form::Lines { types: "".into(), is_serialized: false };
        let [service, version, method] = ["a.B", "0.0.0", "m"].map(Box::from);
        let expected = Call { service, version, method, form, body_bytes_max: 64 << 20 };
        assert_eq!(found.call, expected);
        let patience = Patience { connect_ms: 6000, send_ms: 6000, read_ms: 6000 };
        assert_eq!(found.patience, Some(patience));
        let conf = json!({"service_name": "a.B", "method": "m", "service_version": "1.2.3-x", "connect_timeout": 1.5,
            "read_timeout": 2, "send_timeout": 3, "params_type_desc": "I", "max_req_body_size": 7});
        let found = call(conf, "");
        assert_eq!((&*found.call.version, found.call.body_bytes_max), ("1.2.3-x", 7));
        assert_eq!(found.patience, Some(Patience { connect_ms: 2, send_ms: 3, read_ms: 2 }));
    }

    #[test]
    fn values_are_serialized_by_line() {
        let check = |more: Value, fields: &str, expected: bool| {
            let mut conf = json!({"service_name": "a.B", "method": "m"});
            conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let Form::Lines { is_serialized, .. } = call(conf, fields).call.form else { unreachable!() };
            assert_eq!(is_serialized, expected, "{more} {fields:?}");
        };
        check(json!({}), "", false);
        check(json!({"serialized": true}), "", true);
        let key = json!({"serialization_header_key": "X-Done", "serialized": true});
        check(key.clone(), "", false);
        check(key.clone(), "\nx-done: true", true);
        check(key.clone(), "\nX-Done: True", false);
        check(key, "\nX-Done: 1", false);
    }

    #[test]
    fn configurations_that_are_refused() {
        let check = |more: Value, expected: &str| {
            let mut conf = json!({"service_name": "a.B", "method": "m"});
            conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            assert_refusal("http-dubbo", &conf, expected);
        };
        check(json!({"service_version": "1.0"}), "failed to match pattern");
        check(
            json!({"params_type_desc": "java.lang.String"}),
            "params_type_desc: `java.lang.String` has no JVM type descriptors such as Ljava/lang/String;I",
        );
        check(json!({"read_timeout": 0}), "expected 0 to be at least 1");
    }
}
