//! `sigma lua`: a script in a file runs against one request, without a gateway.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll};

use mlua::Value as LuaValue;
use serde_json::{Value, json};
use sigma_http::h1::{HeadLimits, Tolerance, parse_request};
use sigma_http::{Chunk, Fault, Frame, Headers};
use sigma_plugin::script_counts::ScriptBoard;
use sigma_plugin::scripts::ScriptTrial;
use sigma_plugin::{
    Consumers, Context, Entry, Env, Frames, Kind, Local, Node, Phase, Reply, ResponseStep, Roster,
};
use sigma_schema::plugins::{PluginSchemas, PluginScope};

use crate::files;
use crate::state::with_checker;

/// The resource that the plugin has in messages.
const RESOURCE: &str = "/apisix/routes/trial";

/// Runs a trial; returns its description.
///
/// # Errors
/// Returns the error of the file, of the configuration or of the request.
pub(crate) fn run(trial: &ScriptTrial) -> Result<String, String> {
    let text = std::fs::read_to_string(&trial.file)
        .map_err(|error| format!("cannot read {}: {error}", trial.file.display()))?;
    let (kind, conf) = plugin_of(trial, &text)?;
    let attributes = match &trial.attributes {
        Value::Null => json!({}),
        attributes => attributes.clone(),
    };
    let node = Arc::new(Node::new(|_| {}, attributes, String::new()));
    let entry = entry(kind, conf, trial, &node)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build_local(tokio::runtime::LocalOptions::default());
    let runtime = runtime.map_err(|error| error.to_string())?;
    let local = Rc::new(Local::new(0, 1));
    let mut run = TrialRun {
        ctx: Context::default(),
        entry,
        consumers: Consumers::default(),
        node,
        local,
        out: String::new(),
    };
    run.request(trial)?;
    runtime.block_on(run.run(trial))?;
    Ok(run.finished())
}

/// The plugin of a file and its configuration: its own plugin, or a function.
fn plugin_of(trial: &ScriptTrial, text: &str) -> Result<(Arc<dyn Kind>, Value), String> {
    let is_function = with_checker(|engine| {
        let place = engine.place("trial", &[text]);
        let value = engine.compile(text).and_then(|chunk| engine.define(&place, &chunk));
        Ok(matches!(value, Ok(LuaValue::Function(_))))
    })?;
    if is_function {
        let kind = Arc::new(crate::SERVERLESS_PRE_FUNCTION) as Arc<dyn Kind>;
        return Ok((kind, json!({"phase": trial.phase, "functions": [text]})));
    }
    let conf = if trial.conf.is_null() { json!({}) } else { trial.conf.clone() };
    Ok((files::load_one(&trial.file, &trial.path)?, conf))
}

fn entry(kind: Arc<dyn Kind>, conf: Value, trial: &ScriptTrial, node: &Arc<Node>) -> Result<Entry, String> {
    let name = kind.name().to_owned();
    let roster = Roster::new([kind], None);
    roster
        .check(&name, PluginScope::Http, &conf)
        .map_err(|refusal| format!("the configuration is invalid: {refusal}"))?;
    let metadata = (!trial.metadata.is_null()).then(|| Arc::new(trial.metadata.clone()));
    roster.build(&name, &Arc::new(conf.clone()), conf, RESOURCE, &|_: &str| metadata.clone(), node)
}

/// The run of a trial.
struct TrialRun {
    ctx: Context,
    entry: Entry,
    consumers: Consumers,
    node: Arc<Node>,
    local: Rc<Local>,
    /// The description so far.
    out: String,
}

impl TrialRun {
    /// Parses the request.
    fn request(&mut self, trial: &ScriptTrial) -> Result<(), String> {
        let mut head = format!("{} {} HTTP/1.1\r\n", trial.method, trial.target);
        let has = |name: &str| {
            trial.fields.iter().any(|field| {
                field.split_once(':').is_some_and(|(known, _)| known.trim().eq_ignore_ascii_case(name))
            })
        };
        if !has("host") {
            head.push_str("Host: localhost\r\n");
        }
        if !trial.body.is_empty() && !has("content-length") {
            let _ = write!(head, "Content-Length: {}\r\n", trial.body.len());
        }
        for field in &trial.fields {
            let _ = write!(head, "{field}\r\n");
        }
        head.push_str("\r\n");
        let limits =
            HeadLimits { line_bytes: 1 << 16, head_bytes: 1 << 18, fields: 1000, tolerance: Tolerance::NONE };
        match parse_request(head.as_bytes(), &limits, &mut self.ctx.request) {
            Ok(Some(end)) if end == head.len() => {}
            Ok(_) => return Err("the request is not complete: a field has a line break".to_owned()),
            Err(error) => return Err(format!("the request is invalid: {}", error.of_request().reason)),
        }
        self.ctx.begin();
        self.ctx.request.headers.mark_received();
        let path = self.ctx.request.raw_path().to_vec();
        self.ctx.uri = sigma_plugin::variables::percent_decoded(&path).into_owned();
        self.ctx.client.addr = Some(std::net::Ipv4Addr::LOCALHOST.into());
        self.ctx.client.peer = self.ctx.client.addr;
        Ok(())
    }

    /// Runs all phases.
    async fn run(&mut self, trial: &ScriptTrial) -> Result<(), String> {
        let mut body = match self.phases(&trial.body).await? {
            Some(reply) => self.replied(reply),
            None => {
                self.forwarded();
                self.ctx.response.start(trial.status);
                self.ctx.response.headers.append("content-type", b"text/plain");
                trial.response.clone()
            }
        };
        let env = Env::new(&self.node, &self.local, &self.consumers);
        if self.entry.kind.phases().contains(Phase::HeaderFilter) {
            match self.entry.plugin.header_filter(&mut self.ctx, &env) {
                ResponseStep::Replace(reply) => body = self.replied(*reply),
                _ => self.out.push_str("header_filter: ran\n"),
            }
        }
        let env = Env::new(&self.node, &self.local, &self.consumers);
        if self.entry.kind.phases().contains(Phase::BodyFilter)
            && let Some(filter) = self.entry.plugin.body_filter(&mut self.ctx, &env)
        {
            match filtered(filter, &mut self.ctx, &body) {
                Some(changed) => {
                    body = changed;
                    self.out.push_str("body_filter: ran\n");
                }
                None => self.out.push_str("body_filter: failed, the connection is closed\n"),
            }
        }
        self.ctx.record.status = self.ctx.response.status;
        let env = Env::new(&self.node, &self.local, &self.consumers);
        if self.entry.kind.phases().contains(Phase::Log) {
            self.entry.plugin.log(&mut self.ctx, &env);
            self.out.push_str("log: ran\n");
        }
        let _ = write!(self.out, "\nresponse to the client:\n< {}\n", self.ctx.response.status);
        fields(&mut self.out, '<', &self.ctx.response.headers);
        let _ = write!(self.out, "\n{}\n", String::from_utf8_lossy(&body).trim_end());
        Ok(())
    }

    /// Runs the request phases; a reply ends them.
    async fn phases(&mut self, body: &[u8]) -> Result<Option<Reply>, String> {
        for phase in [Phase::Rewrite, Phase::Access, Phase::BeforeProxy] {
            if !self.entry.kind.phases().contains(phase) {
                continue;
            }
            let env = Env::new(&self.node, &self.local, &self.consumers);
            let (plugin, ctx) = (&self.entry.plugin, &mut self.ctx);
            let step = match phase {
                Phase::Rewrite => plugin.rewrite(ctx, &env),
                Phase::Access => plugin.access(ctx, &env),
                _ => plugin.before_proxy(ctx, &env),
            };
            let reply = step.settled(ctx, &env, body.to_vec()).await.map_err(|error| error.to_string())?;
            let word = if reply.is_some() { "responds to the request" } else { "continues the request" };
            let _ = writeln!(self.out, "{}: {word}", phase.as_str());
            if reply.is_some() {
                return Ok(reply);
            }
        }
        Ok(None)
    }

    /// Makes a reply the response; returns its body.
    fn replied(&mut self, reply: Reply) -> Vec<u8> {
        self.ctx.response.start(reply.status);
        for (name, value) in &reply.headers {
            self.ctx.response.headers.append(name, value);
        }
        reply.body.unwrap_or_default()
    }

    /// Describes the request to the node.
    fn forwarded(&mut self) {
        let method = String::from_utf8_lossy(self.ctx.request.method_token()).into_owned();
        let target = String::from_utf8_lossy(self.ctx.outgoing_target()).into_owned();
        let _ = write!(self.out, "\nrequest to the node:\n> {method} {target}\n");
        fields(&mut self.out, '>', &self.ctx.request.headers);
        self.out.push('\n');
    }

    /// The whole description.
    fn finished(mut self) -> String {
        for (_, totals) in self.node.part(ScriptBoard::default).totals() {
            let _ = write!(
                self.out,
                "\n{} runs, {} us of processor time, {} errors\n",
                totals.runs, totals.cpu_us, totals.errors
            );
        }
        self.out
    }
}

/// Writes fields, one a line.
fn fields(out: &mut String, sign: char, headers: &Headers) {
    for (name, value) in headers.iter() {
        let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        let _ = writeln!(out, "{sign} {}: {value}", name.to_ascii_lowercase());
    }
}

/// A body through a filter; None if it failed.
fn filtered(
    mut filter: Box<dyn sigma_plugin::BodyFilter>,
    ctx: &mut Context,
    body: &[u8],
) -> Option<Vec<u8>> {
    let mut source = Body(VecDeque::from([Frame::Data(Chunk::copy_of(body))]));
    let (mut task, mut out) = (task::Context::from_waker(task::Waker::noop()), Vec::new());
    loop {
        match filter.poll_frame(&mut source, ctx, &mut task) {
            Poll::Ready(Ok(Frame::Data(data))) => out.extend_from_slice(&data),
            Poll::Ready(Ok(_)) => return Some(out),
            _ => return None,
        }
    }
}

/// The body of the node's response.
struct Body(VecDeque<Frame>);

impl Frames for Body {
    fn poll_frame(&mut self, _: &mut Context, _: &mut task::Context<'_>) -> Poll<Result<Frame, Fault>> {
        Poll::Ready(Ok(self.0.pop_front().unwrap_or(Frame::End)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(text: &str, change: impl FnOnce(&mut ScriptTrial)) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.lua");
        std::fs::write(&file, text).unwrap();
        let mut trial = ScriptTrial {
            file,
            phase: "access".to_owned(),
            method: "GET".to_owned(),
            target: "/a?b=1".to_owned(),
            status: 200,
            response: b"hello".to_vec(),
            ..ScriptTrial::default()
        };
        change(&mut trial);
        run(&trial)
    }

    #[test]
    fn a_plugin_and_a_function_are_tried() {
        let plugin = "local _M = { version = 1, priority = 1, schema = { type = 'object', properties = { n = { type = 'integer' } } } }
            function _M.rewrite(conf, ctx) ngx.sleep(0.001) ngx.req.set_header('X-N', conf.n) end
            function _M.header_filter() ngx.header['x-b'] = 'c' end
            function _M.body_filter() if ngx.arg[1] then ngx.arg[1] = ngx.arg[1]:upper() end end
            return _M";
        let text = tried(plugin, |trial| trial.conf = json!({"n": 5})).unwrap();
        for line in [
            "rewrite: continues the request\n",
            "> GET /a?b=1\n",
            "> x-n: 5\n",
            "< 200\n",
            "< x-b: c\n",
            "HELLO",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let refusal = tried(plugin, |trial| trial.conf = json!({"n": "x"})).unwrap_err();
        assert!(refusal.contains("the configuration is invalid"), "{refusal}");
        let function =
            "return function() local b = ngx.req.read_body() return 403, ngx.req.get_body_data() end";
        let text = tried(function, |trial| trial.body = b"no".to_vec()).unwrap();
        assert!(text.contains("access: responds to the request") && text.contains("< 403\n"), "{text}");
        assert!(text.contains("\nno\n"), "{text}");
    }

    #[test]
    fn mistakes_are_named() {
        assert!(tried("return {", |_| {}).unwrap_err().contains("x.lua:1: "));
        let request = |trial: &mut ScriptTrial| trial.fields = vec!["a: 1\r\n\r\nb: c".to_owned()];
        assert!(tried("return function() end", request).unwrap_err().contains("line break"));
    }
}
