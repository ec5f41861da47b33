//! `proxy-mirror`: copies of requests to other hosts, which requests never wait for.

mod comparison;
mod config;
mod copies;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use sigma_http::{BodyLength, Chunk, HeaderId, Headers, Method};
use sigma_plugin::outbound::{Call, CallError, Outbound, ServiceResponse};
use sigma_plugin::owned::members;
use sigma_plugin::record::Source;
use sigma_plugin::variable_fields::{VariableField, VariableForm};
use sigma_plugin::variables::{percent_decoded, percent_encode_path};
use sigma_plugin::{
    BodyFilter, Build, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Pieces, Plugin, ResponseStep,
    Step, Transform,
};
use sigma_schema::described::schema_of;
use tokio::sync::oneshot;

use comparison::{ComparedResponse, Comparison, Digest, Digester, Digesting};
use config::{Attributes, Bounds, Config, PathMode, Target};
use copies::{BodyMemory, Copies};

use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::service::cleartext;
use sigma_plugin_kit::tallies::{Counted, Event, Tally, counted};

/// The plugin.
pub(crate) static PROXY_MIRROR: Descriptor = Descriptor {
    name: "proxy-mirror",
    priority: 1010,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[
        Phase::Rewrite,
        Phase::BeforeProxy,
        Phase::RequestFilter,
        Phase::HeaderFilter,
        Phase::BodyFilter,
        Phase::Log,
    ]),
    warnings: Some(|_, conf| {
        cleartext(conf, "host", "mirrored requests are sent in cleartext").into_iter().collect()
    }),
    variables: &[VariableField::shown("headers.*", VariableForm::Template)],
    attributes: Some(schema_of::<Attributes>),
    owned_fields: Some(|conf| members(conf, "headers").map(OwnedField::shared).collect()),
    upstreams: Some(config::upstreams),
    build: |build| Ok(Arc::new(ProxyMirror(Arc::new(Mirror::new(build)?)))),
    ..Descriptor::of::<Config>()
};

/// The result of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its mirror has responded.
    Answered,
    /// Its mirror has given no response.
    Failed,
    /// It was left out: too many are under way, or hold too much memory.
    NoRoom,
    /// It was left out for its body.
    TooLarge,
}

impl Event for Fate {
    const METRIC: &'static str = "mirror_copies_total";
    const HELP: &'static str = "Mirrored requests by outcome";
    const LABELS: &'static [&'static [(&'static str, &'static str)]] = &[
        &[("outcome", "answered")],
        &[("outcome", "failed")],
        &[("outcome", "no_room")],
        &[("outcome", "too_large")],
    ];

    fn number(self) -> usize {
        self as usize
    }
}

struct ProxyMirror(Arc<Mirror>);

struct Mirror {
    config: Config,
    /// The key of each target's upstream.
    upstreams: Vec<Box<str>>,
    bounds: Bounds,
    timeout_ms: u64,
    fates: Counted<Fate>,
    comparisons: Counted<Comparison>,
}

impl Mirror {
    fn new(build: &Build<'_>) -> Result<Mirror, String> {
        let config: Config = build.config()?;
        let attributes = Attributes::of(build)?;
        let targets = config.targets().count();
        Ok(Mirror {
            config,
            upstreams: (0..targets).map(|number| build.upstream_key(&number.to_string()).into()).collect(),
            bounds: attributes.bounds(),
            timeout_ms: attributes.timeout_ms()?,
            fates: counted(build.node, build.resource),
            comparisons: counted(build.node, build.resource),
        })
    }

    /// Returns the fields that all copies of a request share.
    fn headers(&self, ctx: &Context) -> Headers {
        let mut headers = ctx.request.headers.clone();
        for id in [HeaderId::Host, HeaderId::ContentLength, HeaderId::TransferEncoding, HeaderId::Expect] {
            headers.remove(id);
        }
        // Told by the call itself.
        headers.remove(HeaderId::CdnLoop);
        headers.remove_connection_fields();
        for (name, template) in &self.config.headers.0 {
            headers.replace(name, &template.rendered(ctx));
        }
        headers
    }

    /// A copy, without its body yet.
    fn call(&self, number: usize, target: Vec<u8>, headers: &Headers, ctx: &Context) -> Call {
        let mut headers = headers.clone();
        if self.config.targets().nth(number).is_some_and(Target::is_grpc) {
            headers.append("TE", b"trailers");
        }
        let host = ctx.request.headers.get(HeaderId::Host).unwrap_or_default();
        Call {
            upstream: self.upstreams[number].clone(),
            method: ctx.request.method,
            target,
            host: String::from_utf8_lossy(host).into(),
            headers,
            passes: ctx.passes(),
            body: None,
            timeout_ms: self.timeout_ms,
            limit: self.config.max_resp_body_size,
        }
    }
}

/// The targets of a request, and the targets' paths as of the rewrite phase.
struct Chosen(Vec<(usize, Vec<u8>)>);

/// The copies of a request, without its body yet.
struct Prepared(Vec<Call>);

/// The response to the request, for those who compare.
struct Awaited {
    copies: Vec<oneshot::Sender<ComparedResponse>>,
    seen: Option<ComparedResponse>,
    digest: Rc<Cell<Option<Digest>>>,
    is_digested: bool,
}

impl Plugin for ProxyMirror {
    fn rewrite(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        if matches!(ctx.request.method, Method::Other | Method::Connect) {
            return Step::Next;
        }
        let targets = self.0.config.targets().enumerate();
        let sampled = targets.filter(|(_, target)| is_sampled(target.sample_ratio, env.local.random()));
        let chosen: Vec<_> = sampled.map(|(number, target)| (number, asked(target, ctx))).collect();
        if !chosen.is_empty() {
            ctx.keep(self, Chosen(chosen));
        }
        Step::Next
    }

    fn before_proxy(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        // Another attempt finds nothing.
        if let Some(Chosen(chosen)) = ctx.take_kept(self) {
            let headers = self.0.headers(ctx);
            let call = |(number, target): (usize, Vec<u8>)| {
                let is_grpc = self.0.config.targets().nth(number).is_some_and(Target::is_grpc);
                let target =
                    if is_grpc { ctx.outgoing_target().to_vec() } else { without_hidden(target, ctx) };
                self.0.call(number, target, &headers, ctx)
            };
            let calls = chosen.into_iter().map(call).collect();
            ctx.keep(self, Prepared(calls));
        }
        Step::Next
    }

    fn request_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let Prepared(calls) = ctx.take_kept(self)?;
        let mut answers = Vec::new();
        if self.0.config.compare.is_some() {
            let (copies, ends) = calls.iter().map(|_| oneshot::channel()).unzip();
            answers = ends;
            ctx.keep(self, Awaited { copies, seen: None, digest: Rc::default(), is_digested: false });
        }
        let local = env.local;
        let departure = Departure {
            mirror: Arc::clone(&self.0),
            calls,
            answers,
            outbound: env.outbound.kept(),
            copies: local.part(Copies::default),
            fates: self.0.fates.tally(local),
            comparisons: self.0.comparisons.tally(local),
        };
        Some(Copying { departure: RefCell::new(Some(departure)), body: Vec::new(), held: None }.filter())
    }

    fn header_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        if let Some(compare) = &self.0.config.compare {
            let is_nodes = ctx.record.source == Source::Upstream;
            let seen =
                is_nodes.then(|| ComparedResponse::of(compare, ctx.response.status, &ctx.response.headers));
            if let Some(awaited) = ctx.kept::<_, Awaited>(self) {
                awaited.seen = seen;
            }
        }
        ResponseStep::Next
    }

    fn body_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let compare = self.0.config.compare.as_ref().filter(|compare| compare.body);
        let awaited = compare.and(ctx.kept::<_, Awaited>(self))?;
        awaited.is_digested = true;
        let digest = Rc::clone(&awaited.digest);
        digest.set(None);
        Some(Digesting { digester: Digester::default(), digest }.filter())
    }

    fn log(&self, ctx: &mut Context, _env: &Env<'_>) {
        let Some(Awaited { copies, seen: Some(mut seen), digest, is_digested }) = ctx.take_kept(self) else {
            return;
        };
        seen.body = digest.get();
        if is_digested && seen.body.is_none() {
            // It broke off, or its client left.
            return;
        }
        for copy in copies {
            // One that failed does not listen.
            let _ = copy.send(seen.clone());
        }
    }
}

/// Whether a request is among a share of all, by bits of chance.
fn is_sampled(ratio: f64, bits: u64) -> bool {
    ratio >= 1.0 || ((bits >> 11) as f64 / (1u64 << 53) as f64) < ratio
}

/// Path and query that a target is requested: the node's, byte for byte, as far as `path` does not replace them.
fn asked(target: &Target, ctx: &Context) -> Vec<u8> {
    let whole = ctx.outgoing_target();
    match (&target.path, target.path_concat_mode) {
        (None, _) => whole.to_vec(),
        (Some(path), PathMode::Replace) => with_query(path.clone().into_bytes(), ctx.outgoing_query()),
        (Some(path), PathMode::Prefix)
            if has_dot_segments(whole.split(|byte| *byte == b'?').next().unwrap_or_default()) =>
        {
            // The client must not leave the prefix.
            let mut normal = path.clone().into_bytes();
            percent_encode_path(&ctx.uri, &mut normal);
            with_query(normal, ctx.outgoing_query())
        }
        (Some(path), PathMode::Prefix) => [path.as_bytes(), whole].concat(),
    }
}

/// Whether a path has a segment `.` or `..`, encoded or not.
fn has_dot_segments(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|segment| matches!(&*percent_decoded(segment), b"." | b".."))
}

fn with_query(mut path: Vec<u8>, query: Option<&[u8]>) -> Vec<u8> {
    if let Some(query) = query {
        path.push(b'?');
        path.extend_from_slice(query);
    }
    path
}

/// A target without the client's arguments that plugins took away meanwhile: they may be credentials.
fn without_hidden(target: Vec<u8>, ctx: &Context) -> Vec<u8> {
    let Some(at) = target.iter().position(|b| *b == b'?') else { return target };
    let has = |query: Option<&[u8]>, pair: &[u8]| {
        query.is_some_and(|query| query.split(|b| *b == b'&').any(|known| known == pair))
    };
    let is_hidden = |pair: &[u8]| has(ctx.request.query(), pair) && !has(ctx.outgoing_query(), pair);
    let pairs = target[at + 1..].split(|b| *b == b'&');
    let kept: Vec<&[u8]> = pairs.filter(|pair| !is_hidden(pair)).collect();
    let query = (!kept.is_empty()).then(|| kept.join(&b'&'));
    with_query(target[..at].to_vec(), query.as_deref())
}

/// Copies that leave once the body is known, with all data they need where no hook runs.
struct Departure {
    mirror: Arc<Mirror>,
    calls: Vec<Call>,
    /// The responses to the copies, one for each call; empty where nothing is compared.
    answers: Vec<oneshot::Receiver<ComparedResponse>>,
    outbound: Rc<dyn Outbound>,
    copies: Rc<Copies>,
    fates: Tally<Fate>,
    comparisons: Tally<Comparison>,
}

impl Departure {
    /// They leave, if there is room.
    fn begin(self, body: Option<Vec<u8>>, held: Option<BodyMemory>) {
        let held = Rc::new(held);
        let mut answers = self.answers.into_iter();
        for mut call in self.calls {
            call.body.clone_from(&body);
            let course = RunningCopy {
                upstream: call.upstream.clone(),
                mirror: Arc::clone(&self.mirror),
                answer: answers.next(),
                fates: self.fates.clone(),
                comparisons: self.comparisons.clone(),
            };
            let (calling, held) = (self.outbound.call(call), Rc::clone(&held));
            let course = async move {
                let answer = calling.await;
                drop(held);
                course.end(answer);
            };
            if self.copies.begin(self.mirror.bounds, Box::pin(course)).is_err() {
                self.fates.count(Fate::NoRoom);
            }
        }
    }

    /// None leaves.
    fn give_up(&self, fate: Fate) {
        self.calls.iter().for_each(|_| self.fates.count(fate));
    }
}

/// One copy under way.
struct RunningCopy {
    upstream: Box<str>,
    mirror: Arc<Mirror>,
    answer: Option<oneshot::Receiver<ComparedResponse>>,
    fates: Tally<Fate>,
    comparisons: Tally<Comparison>,
}

impl RunningCopy {
    fn end(self, answer: Result<ServiceResponse, CallError>) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                static COMPLAINT: LogThrottle = LogThrottle::new();
                self.fates.count(Fate::Failed);
                if let Some(left_out) = COMPLAINT.due() {
                    tracing::error!(left_out, mirror = self.host(), %error, "proxy-mirror: a mirrored request got no response");
                }
                return;
            }
        };
        self.fates.count(Fate::Answered);
        if let (Some(compare), Some(_)) = (&self.mirror.config.compare, &self.answer) {
            let mut copy = ComparedResponse::of(compare, answer.status, &answer.headers);
            copy.body = Some(Digester::of(&answer.body));
            // The request may go on for long: it must not hold up other copies.
            tokio::task::spawn_local(self.compare(copy));
        }
    }

    async fn compare(self, copy: ComparedResponse) {
        let RunningCopy { answer: Some(answer), mirror, comparisons, .. } = self else { return };
        let (Ok(seen), Some(compare)) = (answer.await, &mirror.config.compare) else { return };
        let (comparison, differences) = seen.compared(compare, &copy);
        comparisons.count(comparison);
        static REPORT: LogThrottle = LogThrottle::new();
        if comparison != Comparison::Same
            && let Some(left_out) = REPORT.due()
        {
            tracing::warn!(left_out, differences, "proxy-mirror: a mirror sent another response");
        }
    }

    fn host(&self) -> &str {
        let number = self.mirror.upstreams.iter().position(|key| *key == self.upstream);
        let target = number.and_then(|number| self.mirror.config.targets().nth(number));
        target.map_or("", |target| &target.host)
    }
}

/// Copies a body that passes.
struct Copying {
    /// None once the copies have left, or were given up.
    departure: RefCell<Option<Departure>>,
    body: Vec<u8>,
    held: Option<BodyMemory>,
}

impl Copying {
    fn give_up(&mut self, fate: Fate) {
        if let Some(departure) = self.departure.take() {
            departure.give_up(fate);
        }
        (self.body, self.held) = (Vec::new(), None);
    }

    fn see(&mut self, data: &[u8]) {
        let borrowed = self.departure.borrow();
        let Some(departure) = &*borrowed else { return };
        let Mirror { config, bounds, .. } = &*departure.mirror;
        let is_too_large = self.body.len() + data.len() > config.max_req_body_size;
        let held = departure.copies.hold(*bounds, data.len() * departure.calls.len());
        drop(borrowed);
        match held {
            _ if is_too_large => self.give_up(Fate::TooLarge),
            None => self.give_up(Fate::NoRoom),
            Some(held) => {
                self.body.extend_from_slice(data);
                match &mut self.held {
                    Some(all) => all.join(held),
                    none => *none = Some(held),
                }
            }
        }
    }
}

impl Transform for Copying {
    /// Asked once, before the request leaves: nothing will be seen of a body that there is not.
    fn length(&self, length: BodyLength) -> BodyLength {
        if length.is_empty()
            && let Some(departure) = self.departure.take()
        {
            departure.begin(None, None);
        }
        length
    }

    fn data(&mut self, _cx: &mut Context, data: Chunk, out: &mut Pieces) {
        self.see(&data);
        out.piece(data);
    }

    fn end(&mut self, _cx: &mut Context, _trailers: Option<&mut Headers>, _out: &mut Pieces) {
        if let Some(departure) = self.departure.take() {
            departure.begin(Some(std::mem::take(&mut self.body)), self.held.take());
        }
    }
}

#[cfg(test)]
mod tests;
