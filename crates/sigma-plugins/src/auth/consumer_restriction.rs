//! `consumer-restriction`: who may pass, and with which methods.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::{Context, Descriptor, Env, Phase, PhaseSet, Plugin, Step};

/// Allows or denies consumers, groups, routes or services.
pub(crate) static CONSUMER_RESTRICTION: Descriptor = Descriptor {
    name: "consumer-restriction",
    priority: 2400,
    doc: "Allows or denies by the name of the consumer, its group, the route or the service, and by \
        method if wanted.\n\nThe consumer is known once a plugin has authenticated it. `blacklist` \
        counts before `whitelist`; who is in the `whitelist` may use every method.",
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Access]),
    schema,
    build: |build| Ok(Arc::new(build.config::<ConsumerRestriction>()?)),
    ..Descriptor::BASE
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
consumers:
  - { username: jack, plugins: { key-auth: { key: jacks-key } } }
  - { username: jill, plugins: { key-auth: { key: jills-key } } }
routes:
  - uri: /*
    plugins:
      key-auth: {}
      consumer-restriction: { whitelist: [jill] }
    upstream: http://127.0.0.1:9000
```

```console
$ curl -i -H 'apikey: jacks-key' http://127.0.0.1:9080/orders
HTTP/1.1 403 Forbidden
…
{"message":"The consumer_name is forbidden."}
$ curl -i -H 'apikey: jills-key' http://127.0.0.1:9080/orders
HTTP/1.1 200 OK
…
```
"#;

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "type": {
                "type": "string",
                "enum": ["consumer_name", "consumer_group_id", "service_id", "route_id"],
                "default": "consumer_name",
                "description": "What the lists hold."
            },
            "blacklist": {
                "type": "array",
                "minItems": 1,
                "items": {"type": "string"},
                "description": "Who may not pass."
            },
            "whitelist": {
                "type": "array",
                "minItems": 1,
                "items": {"type": "string"},
                "description": "Who alone may pass."
            },
            "allowed_by_methods": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "user": {"type": "string", "description": "Who it is about."},
                        "methods": {
                            "type": "array",
                            "minItems": 1,
                            "items": {
                                "type": "string",
                                "enum": [
                                    "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT",
                                    "TRACE", "PURGE"
                                ]
                            },
                            "description": "The methods it may use."
                        }
                    }
                },
                "description": "Methods that some may use; who is not named may use all."
            },
            "rejected_code": {
                "type": "integer",
                "minimum": 200,
                "maximum": 999,
                "default": 403,
                "description": "The status of a refusal."
            },
            "rejected_msg": {"type": "string", "description": "The message of a refusal."}
        },
        "anyOf": [
            {"required": ["blacklist"]},
            {"required": ["whitelist"]},
            {"required": ["allowed_by_methods"]}
        ]
    })
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Subject {
    ConsumerName,
    ConsumerGroupId,
    ServiceId,
    RouteId,
}

impl Subject {
    fn as_str(self) -> &'static str {
        match self {
            Subject::ConsumerName => "consumer_name",
            Subject::ConsumerGroupId => "consumer_group_id",
            Subject::ServiceId => "service_id",
            Subject::RouteId => "route_id",
        }
    }

    fn of(self, ctx: &Context) -> Option<&str> {
        let route = ctx.route.as_deref();
        match self {
            Subject::ConsumerName => ctx.consumer().map(|consumer| &*consumer.name),
            Subject::ConsumerGroupId => ctx.consumer().and_then(|consumer| consumer.group_id.as_deref()),
            Subject::ServiceId => route.and_then(|route| route.service_id.as_deref()),
            Subject::RouteId => route.map(|route| &*route.id),
        }
    }
}

#[derive(Deserialize)]
struct Methods {
    user: Option<String>,
    #[serde(default)]
    methods: Vec<String>,
}

#[derive(Deserialize)]
struct ConsumerRestriction {
    #[serde(rename = "type")]
    subject: Subject,
    #[serde(default)]
    blacklist: Vec<String>,
    whitelist: Option<Vec<String>>,
    #[serde(default)]
    allowed_by_methods: Vec<Methods>,
    rejected_code: u16,
    rejected_msg: Option<String>,
}

impl ConsumerRestriction {
    fn admits(&self, name: &str, method: &[u8]) -> bool {
        let holds = |list: &[String]| list.iter().any(|listed| listed == name);
        if holds(&self.blacklist) {
            return false;
        }
        if let Some(whitelist) = &self.whitelist {
            // Who is listed may use every method; who is not may use none.
            return holds(whitelist);
        }
        let rule = self.allowed_by_methods.iter().find(|rule| rule.user.as_deref() == Some(name));
        rule.is_none_or(|rule| rule.methods.iter().any(|allowed| allowed.as_bytes() == method))
    }
}

impl Plugin for ConsumerRestriction {
    fn access(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        let subject = self.subject.as_str();
        let Some(name) = self.subject.of(ctx) else {
            let message = format!("The request is rejected, please check the {subject} for this request");
            return Step::json(401, &json!({ "message": message }));
        };
        if self.admits(name, ctx.request.method_token()) {
            return Step::Next;
        }
        let message = match &self.rejected_msg {
            Some(message) => Cow::Borrowed(message.as_str()),
            None => Cow::Owned(format!("The {subject} is forbidden.")),
        };
        Step::json(self.rejected_code, &json!({ "message": message }))
    }
}
