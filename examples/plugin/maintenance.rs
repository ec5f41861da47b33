//! `maintenance`: answers 503 for a while, except to a few clients.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sigma_plugin::{Build, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step};

/// What the gateway, its schemas and its reference know of the plugin.
pub static MAINTENANCE: Descriptor = Descriptor {
    name: "maintenance",
    priority: 2990,
    doc: "Answers 503 while a service is being worked on.\n\nClients in `except` are let through.",
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Access]),
    schema,
    check: Some(|conf| excepted(conf).map(|_| ())),
    build,
    ..Descriptor::BASE
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
routes:
  - uri: /*
    plugins: { maintenance: { except: [192.0.2.1], retry_after: 60 } }
    upstream: http://127.0.0.1:9000
```

```console
$ curl -i http://127.0.0.1:9080/orders
HTTP/1.1 503 Service Unavailable
…
{"message":"back soon"}
```
"#;

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "message": {"type": "string", "default": "back soon", "description": "What the client is told."},
            "retry_after": {"type": "integer", "minimum": 1, "description": "Seconds, for `Retry-After`."},
            "except": {
                "type": "array", "items": {"type": "string"}, "default": [],
                "description": "Addresses of clients that are let through."
            }
        }
    })
}

/// The configuration as it was written. Defaults of the schema are filled in, so a field needs an
/// `Option` only if it has none.
#[derive(Debug, Deserialize)]
struct Config {
    message: String,
    retry_after: Option<u32>,
}

/// What a schema cannot say: the addresses are addresses.
fn excepted(conf: &Value) -> Result<Vec<IpAddr>, String> {
    let texts = conf["except"].as_array().into_iter().flatten().filter_map(Value::as_str);
    texts.map(|text| text.parse().map_err(|_| format!("except: {text} is no IP address"))).collect()
}

/// An instance: one configuration, prepared. All workers share it and nothing changes it.
struct Maintenance {
    config: Config,
    except: Vec<IpAddr>,
}

fn build(build: &Build<'_>) -> Result<Arc<dyn Plugin>, String> {
    Ok(Arc::new(Maintenance { config: build.config()?, except: excepted(build.conf)? }))
}

impl Plugin for Maintenance {
    fn access(&self, cx: &mut Context, _env: &Env<'_>) -> Step {
        if cx.client.addr.is_some_and(|addr| self.except.contains(&addr)) {
            return Step::Next;
        }
        let mut reply = Reply::new(503).json(&json!({"message": self.config.message}));
        if let Some(seconds) = self.config.retry_after {
            reply = reply.header("Retry-After", seconds.to_string());
        }
        reply.into()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use sigma_config::plugins::{PluginSchemas, PluginScope};
    use sigma_plugin::{Consumers, Kind, Local, Node, Roster};

    use super::*;

    fn roster() -> Roster {
        Roster::new([Arc::new(MAINTENANCE) as Arc<dyn Kind>], None)
    }

    /// What a client at `addr` is answered: status, fields and body in one line, or `passed`.
    fn check(conf: Value, addr: &str, expected: &str) {
        let (node, local, consumers) =
            (Arc::new(Node::default()), Rc::new(Local::default()), Consumers::default());
        let entry = roster()
            .build("maintenance", &Arc::new(conf.clone()), conf, "/apisix/routes/1", &|_| None, &node)
            .unwrap();
        let mut cx = Context::default();
        cx.client.addr = Some(addr.parse().unwrap());
        let env = Env::new(&node, &local, &consumers);
        let answer = match entry.plugin.access(&mut cx, &env) {
            Step::Next => "passed".to_owned(),
            Step::Reply(reply) => {
                let fields = reply
                    .headers
                    .iter()
                    .map(|(name, value)| format!("{name}: {} ", String::from_utf8_lossy(value)));
                let body = String::from_utf8_lossy(reply.body.as_deref().unwrap_or_default());
                format!("{} {}{}", reply.status, fields.collect::<String>(), body.trim_end())
            }
            _ => "something else".to_owned(),
        };
        assert_eq!(answer, expected);
    }

    #[test]
    fn clients_are_turned_away_with_few_exceptions() {
        check(json!({}), "192.0.2.1", r#"503 {"message":"back soon"}"#);
        check(
            json!({"retry_after": 60, "message": "no"}),
            "192.0.2.1",
            r#"503 Retry-After: 60 {"message":"no"}"#,
        );
        check(json!({"except": ["192.0.2.1"]}), "192.0.2.1", "passed");
        check(json!({"except": ["192.0.2.1"]}), "192.0.2.2", r#"503 {"message":"back soon"}"#);
    }

    #[test]
    fn mistakes_are_told() {
        let refusal =
            |conf: Value| roster().check("maintenance", PluginScope::Http, &conf).unwrap_err().to_string();
        assert!(refusal(json!({"retry_after": 0})).contains("expected 0 to be at least 1"));
        assert!(refusal(json!({"except": ["here"]})).contains("except: here is no IP address"));
    }
}
