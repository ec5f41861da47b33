//! Tests of scripts: a function runs in a phase of an exchange without sockets.

use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};
use sigma_plugin::env::Work;
use sigma_plugin::outbound::{Call, Calling, Nowhere, Outbound};
use sigma_plugin::{Context, Entry, Env, Local, Node, Phase, Reply};

use crate::testing::{Case, entry, summary};

/// An instance of `serverless-pre-function` with one function of this body.
pub(crate) fn function(phase: &str, body: &str) -> Entry {
    let text = format!("return function(conf, ctx) {body}\nend");
    entry("serverless-pre-function", json!({"phase": phase, "functions": [text]})).unwrap()
}

/// A node with these settings of Lua. A script has five seconds of processor time if they do not limit it: a debug build on
/// a machine with other work needs far more than a gateway does for the same instructions.
fn node(mut settings: Value, spawn: impl Fn(Work) + Send + Sync + 'static) -> Arc<Node> {
    if settings.get("run_ms").is_none() {
        settings["run_ms"] = json!(5_000);
    }
    Arc::new(Node::new(spawn, json!({"serverless-pre-function": settings}), String::new()))
}

/// A case with these settings of Lua in its node's `plugin_attr`.
pub(crate) fn case_with(settings: Value, request: &str) -> Case {
    let mut case = Case::new(request);
    case.node = node(settings, |_| {});
    case
}

/// A case whose node has the default settings of Lua, but for the time of scripts.
pub(crate) fn case_of(request: &str) -> Case {
    case_with(json!({}), request)
}

/// The response of a function in the phase `access` to a request of these lines.
pub(crate) fn reply_to(request: &str, body: &str) -> Option<Reply> {
    case_of(request).run(&function("access", body), Phase::Access)
}

/// The body of that response, for a plain request; the status if it is not 200.
pub(crate) fn output_of(body: &str) -> String {
    output_with(json!({}), body)
}

/// As [`output_of`], with these settings of Lua.
pub(crate) fn output_with(settings: Value, body: &str) -> String {
    let mut case = case_with(settings, "GET /a/b?x=1 HTTP/1.1\nHost: h.test");
    let reply = case.run(&function("access", body), Phase::Access);
    match reply {
        None => "passed".to_owned(),
        Some(reply) => {
            let text = String::from_utf8_lossy(reply.body.as_deref().unwrap_or_default()).into_owned();
            if reply.status == 200 { text } else { format!("{} {text}", reply.status).trim_end().to_owned() }
        }
    }
}

/// Checks that the time or memory of a script ends these functions, and that the worker runs another script after each.
pub(crate) fn check_ended(bodies: &[&str]) {
    let mut case = case_with(json!({"run_ms": 20}), "GET /a/b?x=1 HTTP/1.1\nHost: h.test");
    let fine = function("access", "ngx.say('fine')");
    for body in bodies {
        let reply = case.run(&function("access", body), Phase::Access);
        assert_eq!(summary(reply.as_ref()), "500", "{body}");
        case.ctx.begin();
        assert_eq!(summary(case.run(&fine, Phase::Access).as_ref()), "200 fine", "after {body}");
        case.ctx.begin();
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
fn on_a_thread(work: Work) {
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
        case.node = node(settings.clone(), |work| drop(std::thread::spawn(move || on_a_thread(work))));
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build_local(tokio::runtime::LocalOptions::default()).unwrap();
        OnWorker { case, runtime }
    }

    /// As [`OnWorker::new`], one of so many workers.
    pub(crate) fn among(settings: &Value, workers: usize) -> OnWorker {
        let mut worker = OnWorker::new(settings);
        worker.case.local = Rc::new(Local::new(0, 1).among(workers));
        worker
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.case.node
    }

    /// The variables of its request.
    pub(crate) fn variables(&self) -> &Context {
        &self.case.ctx
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
