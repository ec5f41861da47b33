//! `public-api`: a route reaches what another plugin serves itself.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;

use serde::Deserialize;
use serde_json::json;
use sigma_http::{BodyLength, Chunk};
use sigma_plugin::{BodySource, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Step, StreamBody};
use tokio::sync::Mutex;

/// The plugin.
pub(crate) static PUBLIC_API: Descriptor = Descriptor {
    name: "public-api",
    priority: 501,
    doc: "Serves, on this route, what another plugin serves under a path of its own.\n\n\
        The other plugin must be enabled; it need not be on any route. Plugins of this route that run \
        earlier guard the path. The route needs no upstream. One answer is made at a time: who asks \
        meanwhile gets the next one, together with all others.",
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Access]),
    schema: || {
        json!({
            "type": "object",
            "properties": {
                "uri": {
                    "type": "string",
                    "description": "The path that the other plugin serves; unset: the request's."
                }
            }
        })
    },
    build: |build| Ok(Arc::new(build.config::<PublicApi>()?)),
    ..Descriptor::BASE
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
global_rules:
  - { id: metrics, plugins: { prometheus: {} } }
routes:
  - uri: /metrics
    plugins:
      ip-restriction: { whitelist: [127.0.0.1] }
      public-api: { uri: /apisix/prometheus/metrics }
```

```console
$ curl -s http://127.0.0.1:9080/metrics | grep 'node_info{'
apisix_node_info{hostname="…",version="…"} 1
```
"#;

#[derive(Debug, Deserialize)]
struct PublicApi {
    uri: Option<String>,
}

impl Plugin for PublicApi {
    fn access(&self, cx: &mut Context, env: &Env<'_>) -> Step {
        let path = self.uri.as_deref().map_or(&cx.uri[..], str::as_bytes);
        for descriptor in env.node.enabled() {
            let (method, attribute) = (cx.request.method, env.node.attribute(descriptor.name));
            let found = descriptor
                .endpoints
                .iter()
                .find(|endpoint| endpoint.path_in(attribute).as_bytes() == path && endpoint.method == method);
            if let Some(endpoint) = found {
                let (node, name, answer) = (Arc::clone(env.node), descriptor.name, endpoint.answer);
                let made = env
                    .node
                    .part(Desk::default)
                    .answer((name, endpoint.path), move || answer(&node, node.attribute(name)));
                return Step::wait(made, |made, _, _| shared(&made));
            }
        }
        Reply::new(404).text("").into()
    }
}

/// Whose answer it is: a plugin and a path.
type Name = (&'static str, &'static str);

/// Makes answers of endpoints, one at a time for the whole gateway; a part of the node.
///
/// A page of metrics may take longer than a worker can be spared and be as large as many megabytes.
/// So who asks while one is made waits for the next one, and all who wait get the same.
#[derive(Default)]
struct Desk {
    /// How many answers were begun.
    begun: AtomicU64,
    last: Arc<Mutex<Last>>,
}

#[derive(Default)]
struct Last {
    name: Name,
    /// Which one it was, from 1.
    number: u64,
    /// Gone when everybody has it.
    reply: Weak<Reply>,
}

impl Desk {
    fn answer(
        self: Arc<Desk>,
        name: Name,
        make: impl FnOnce() -> Reply + Send + 'static,
    ) -> impl Future<Output = Arc<Reply>> {
        // One that is begun from here on is as new as one of our own.
        let arrived = self.begun.load(Ordering::SeqCst);
        async move {
            // Moved to the thread that makes the answer: who leaves meanwhile starts no second one.
            let mut last = Arc::clone(&self.last).lock_owned().await;
            if last.name == name
                && last.number > arrived
                && let Some(reply) = last.reply.upgrade()
            {
                return reply;
            }
            let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            let making = move || {
                let reply = Arc::new(make());
                *last = Last { name, number, reply: Arc::downgrade(&reply) };
                reply
            };
            let made = tokio::task::spawn_blocking(making).await;
            made.unwrap_or_else(|_| Arc::new(Reply::new(500)))
        }
    }
}

/// An answer whose body is not copied for each who gets it.
fn shared(reply: &Arc<Reply>) -> Step {
    let Some(body) = &reply.body else { return Reply::clone(reply).into() };
    let head = Reply { headers: reply.headers.clone(), ..Reply::new(reply.status) };
    let length = BodyLength::Known(body.len() as u64);
    let source = Box::new(SharedBody { reply: Arc::clone(reply), sent: 0 });
    Step::Stream(Box::new(head), StreamBody { length, source })
}

struct SharedBody {
    reply: Arc<Reply>,
    sent: usize,
}

impl BodySource for SharedBody {
    fn poll_piece(&mut self, _task: &mut std::task::Context<'_>) -> Poll<io::Result<Option<Chunk>>> {
        /// Bytes that are copied at a time.
        const PIECE_BYTES: usize = 16 * 1024;
        let rest = &self.reply.body.as_deref().unwrap_or_default()[self.sent..];
        let piece = &rest[..rest.len().min(PIECE_BYTES)];
        self.sent += piece.len();
        Poll::Ready(Ok((!piece.is_empty()).then(|| Chunk::copy_of(piece))))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use sigma_http::Method;
    use sigma_plugin::descriptor::Endpoint;
    use sigma_plugin::{Node, Roster};

    use super::*;
    use crate::testing::{Case, summary};

    static SERVES: Descriptor = Descriptor {
        name: "serves",
        endpoints: &[Endpoint {
            path: "/apisix/hello",
            path_setting: "hello_uri",
            method: Method::Get,
            answer: |_, _| Reply { body: Some(b"hello".to_vec()), ..Reply::new(200) },
        }],
        ..Descriptor::BASE
    };
    static BOTH: &[&Descriptor] = &[&PUBLIC_API, &SERVES];

    #[test]
    fn enabled_plugins_are_reached() {
        let moved = std::cell::Cell::new(None);
        let check = |enabled: &[&str], conf: Value, line: &str, expected: &str| {
            let moved: Option<&str> = moved.get();
            let enabled: Vec<String> = enabled.iter().map(|name| (*name).to_owned()).collect();
            let roster = Roster::new(BOTH, Some(&enabled));
            let mut case = Case::new(&format!("{line} HTTP/1.1\nHost: x"));
            let attributes = json!({"serves": {"hello_uri": moved}});
            case.node = Arc::new(Node::new(|_| {}, attributes, String::new()));
            let entry =
                roster.build("public-api", &Arc::new(conf.clone()), conf, "", &|_| None, &case.node).unwrap();
            assert_eq!(summary(case.run(&entry, Phase::Access).as_ref()), expected, "{line}");
        };
        let both = &["public-api", "serves"][..];
        check(both, json!({}), "GET /apisix/hello?a", "200 hello");
        check(both, json!({"uri": "/apisix/hello"}), "GET /other", "200 hello");
        check(both, json!({}), "POST /apisix/hello", "404");
        check(both, json!({"uri": "/none"}), "GET /apisix/hello", "404");
        check(&["public-api"], json!({}), "GET /apisix/hello", "404");
        moved.set(Some("/moved"));
        check(both, json!({}), "GET /apisix/hello", "404");
        check(both, json!({}), "GET /moved", "200 hello");
        check(both, json!({"uri": "/moved"}), "GET /other", "200 hello");
    }

    #[test]
    fn one_answer_is_made_at_a_time_and_shared() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let desk = Arc::new(Desk::default());
        let (made, at_once) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let ask = |name: Name| {
            let (made, at_once) = (Arc::clone(&made), Arc::clone(&at_once));
            Arc::clone(&desk).answer(name, move || {
                assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0, "two are made at once");
                std::thread::yield_now();
                let number = made.fetch_add(1, Ordering::SeqCst) + 1;
                at_once.fetch_sub(1, Ordering::SeqCst);
                Reply::new(200).text(number.to_string())
            })
        };
        let body = |reply: &Arc<Reply>| String::from_utf8(reply.body.clone().unwrap()).unwrap();
        runtime.block_on(async {
            // All have asked before the first is begun.
            let all: Vec<_> = (0..100).map(|_| ask(("p", "/a"))).collect();
            let mut replies = Vec::new();
            for asking in all {
                replies.push(asking.await);
            }
            assert!(replies.iter().all(|reply| body(reply) == "1"));
            // Who asks later gets a newer one, even while the old one is still being sent.
            assert_eq!(body(&ask(("p", "/a")).await), "2");
            // Another page is not mistaken for this one.
            let (one, other) = (ask(("p", "/a")), ask(("p", "/b")));
            assert_eq!((body(&one.await), body(&other.await)), ("3".into(), "4".into()));
            // Who has left holds nobody up.
            drop(ask(("p", "/a")));
            assert_eq!(body(&ask(("p", "/a")).await), "5");
        });
    }
}
