//! Tests of scripts: a function runs in a phase of an exchange without sockets.

use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};
use sigma_plugin::outbound::{Call, Calling, Nowhere, Outbound};
use sigma_plugin::{Entry, Env, Node, Phase, Reply};

use crate::testing::{Case, entry, summary};

/// An instance of `serverless-pre-function` with one function of this body.
pub(crate) fn function(phase: &str, body: &str) -> Entry {
    let text = format!("return function(conf, ctx) {body}\nend");
    entry("serverless-pre-function", json!({"phase": phase, "functions": [text]})).unwrap()
}

/// The response of a function in the phase `access` to a request of these lines.
pub(crate) fn reply_to(request: &str, body: &str) -> Option<Reply> {
    let mut case = Case::new(request);
    case.run(&function("access", body), Phase::Access)
}

/// The body of that response, for a plain request; the status if it is not 200.
pub(crate) fn output_of(body: &str) -> String {
    let reply = reply_to("GET /a/b?x=1 HTTP/1.1\nHost: h.test", body);
    match reply {
        None => "passed".to_owned(),
        Some(reply) => {
            let text = String::from_utf8_lossy(reply.body.as_deref().unwrap_or_default()).into_owned();
            if reply.status == 200 { text } else { format!("{} {text}", reply.status).trim_end().to_owned() }
        }
    }
}

/// Checks what functions write.
pub(crate) fn check(cases: &[(&str, &str)]) {
    for (body, expected) in cases {
        assert_eq!(output_of(body), *expected, "{body}");
    }
}

/// The error of a configuration with this text.
pub(crate) fn refusal_of(text: &str) -> String {
    let conf: Value = json!({"functions": [text]});
    entry("serverless-pre-function", conf).map(drop).unwrap_err()
}

/// As [`output_of`], on a worker's runtime: scripts may start timers and open sockets. The node's `plugin_attr` has these
/// settings of Lua.
pub(crate) fn said_on_worker(settings: &Value, body: &str) -> String {
    OnWorker::new(settings).output(body)
}

/// A gateway with a name, and without services.
struct Named;

impl Outbound for Named {
    fn call(&self, call: Call) -> Calling {
        Nowhere.call(call)
    }

    fn own_name(&self) -> String {
        "own".to_owned()
    }
}

/// Runs the background work of a node.
fn on_a_thread(work: sigma_plugin::env::Work) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

/// A worker for scripts.
pub(crate) struct OnWorker {
    case: Case,
    runtime: tokio::runtime::LocalRuntime,
}

impl OnWorker {
    pub(crate) fn new(settings: &Value) -> OnWorker {
        let mut case = Case::new("GET /a/b?x=1 HTTP/1.1\nHost: h.test\nCDN-Loop: other");
        let attributes = json!({"serverless-pre-function": settings});
        let beside = |work| drop(std::thread::spawn(move || on_a_thread(work)));
        case.node = Arc::new(Node::new(beside, attributes, String::new()));
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build_local(tokio::runtime::LocalOptions::default()).unwrap();
        OnWorker { case, runtime }
    }

    /// The output of a function in another request.
    pub(crate) fn output(&mut self, body: &str) -> String {
        self.run(&function("access", body))
    }

    /// The output of an instance in another request.
    pub(crate) fn run(&mut self, entry: &Entry) -> String {
        let Case { node, local, consumers, ctx, .. } = &mut self.case;
        let reply = self.runtime.block_on(async {
            let env = Env { outbound: &Named, ..Env::new(node, local, consumers) };
            let step = entry.plugin.access(ctx, &env);
            step.settled(ctx, &env, Vec::new()).await.unwrap()
        });
        self.case.ctx.begin();
        summary(reply.as_ref())
    }

    /// Lets the background work of scripts continue.
    pub(crate) fn turn(&mut self) {
        self.runtime.block_on(async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        });
    }

    /// The end of the worker.
    pub(crate) fn end(&mut self) {
        let local = Rc::clone(&self.case.local);
        self.runtime.block_on(async move {
            local.end();
            while local.has_work() {
                tokio::task::yield_now().await;
            }
        });
    }
}
