//! One request and its answer, from open to finish, in no protocol version's terms.

mod answer;
mod finish;
mod forward;
mod headers;
mod reply;
mod request;
mod retry;
mod transfer;

use std::rc::Rc;
use std::time::Instant;

use sigma_http::{Fault, FaultKind, HeaderId, Method, RequestHead, ResponseHead, TargetForm, Version};
use sigma_observe::counters::Counter;

use crate::downstream::{Downstream, Origin};
use crate::route::normalize::{NormalPath, normalized};
use crate::route::{Outcome, Params};
use crate::snapshot::{Route, Snapshot, Target};
use crate::worker::{View, Worker};
use request::RequestView;

pub(crate) use request::{PeerText, explain};

/// Memory that an exchange needs while it runs; recycled.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) request: RequestHead,
    response: ResponseHead,
    /// What the node is asked for, if not the client's own target.
    target: Vec<u8>,
    params: Params,
    /// Body bytes that a retry would have to send again.
    replay: Vec<u8>,
    /// A header value in the making.
    value: Vec<u8>,
}

/// What is known of an exchange when it is over; feeds counters and the access log.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// When the head was read, if anybody will ask.
    started: Option<Instant>,
    /// The status sent downstream, 0 if none.
    status: u16,
    route: Option<u32>,
    fault: Option<Fault>,
    attempts: Vec<Attempt>,
}

/// One attempt on a node.
#[derive(Debug)]
struct Attempt {
    addr: String,
    status: u16,
    connect_ms: Option<f64>,
    header_ms: Option<f64>,
    response_ms: Option<f64>,
}

/// An exchange in flight.
pub(crate) struct Exchange<'x, 'c> {
    worker: &'x Worker,
    view: Rc<View>,
    down: Downstream<'c>,
    scratch: &'x mut Scratch,
    record: Record,
}

/// Runs one exchange whose head is in `scratch.request`.
pub(crate) async fn run(worker: &Worker, down: Downstream<'_>, scratch: &mut Scratch) {
    let view = worker.view();
    worker.counters.add(Counter::Requests, 1);
    let timed = view.snapshot.access_format.is_some();
    let record = Record { started: timed.then(Instant::now), ..Record::default() };
    let mut exchange = Exchange { worker, view, down, scratch, record };
    if let Err(fault) = exchange.serve().await {
        exchange.fail(fault).await;
    }
    exchange.finish();
}

/// Answers a head that was refused before it became a request.
pub(crate) async fn refuse(worker: &Worker, down: Downstream<'_>, scratch: &mut Scratch, fault: Fault) {
    let view = worker.view();
    worker.counters.add(Counter::Requests, 1);
    let timed = view.snapshot.access_format.is_some();
    let record = Record { started: timed.then(Instant::now), ..Record::default() };
    scratch.request.clear();
    let mut exchange = Exchange { worker, view, down, scratch, record };
    exchange.down.close_after();
    exchange.fail(fault).await;
    exchange.finish();
}

impl Exchange<'_, '_> {
    async fn serve(&mut self) -> Result<(), Fault> {
        self.admit()?;
        let number = self.route()?;
        self.record.route = Some(number);
        let snapshot = std::sync::Arc::clone(&self.view.snapshot);
        let route = &snapshot.routes[number as usize];
        match route.target {
            Target::Upstream(upstream) => self.forward(&snapshot, route, upstream).await,
            Target::NoService => Err(Fault::new(FaultKind::NoService, "the route's service does not exist")),
            Target::NoUpstream => Err(Fault::new(FaultKind::NoUpstream, "the route has no upstream")),
        }
    }

    /// What no route may serve.
    fn admit(&mut self) -> Result<(), Fault> {
        let head = &self.scratch.request;
        if head.method == Method::Connect {
            self.down.close_after();
            return Err(Fault::new(FaultKind::MethodRefused, "CONNECT is not served"));
        }
        let mut expectations = head.headers.get_all(HeaderId::Expect);
        if expectations.any(|value| !value.eq_ignore_ascii_case(b"100-continue")) {
            return Err(Fault::new(
                FaultKind::ExpectationFailed,
                "only 100-continue is understood in Expect",
            ));
        }
        Ok(())
    }

    /// Finds the route and prepares the target that its node is asked for.
    fn route(&mut self) -> Result<u32, Fault> {
        let snapshot = &self.view.snapshot;
        let head = &self.scratch.request;
        let path = normal_path(head, snapshot)?;
        let request = RequestView::new(head, &path, self.down.origin());
        let outcome = snapshot.router.find(&request, &mut self.scratch.params);
        let number = match outcome {
            Outcome::Route(number) => number,
            Outcome::NotFound => return Err(Fault::new(FaultKind::NoRoute, "404 Route Not Found")),
            Outcome::UnsupportedMediaType => {
                return Err(Fault::new(FaultKind::UnsupportedMediaType, "no route takes this content type"));
            }
            Outcome::NotAcceptable => {
                return Err(Fault::new(FaultKind::NotAcceptable, "no route answers in an accepted type"));
            }
            Outcome::MethodNotAllowed(methods) => {
                self.scratch.value = methods.to_string().into_bytes();
                return Err(Fault::new(FaultKind::MethodNotAllowed, "no route takes this method"));
            }
        };
        self.scratch.target.clear();
        if let Some(rewrite) = &snapshot.routes[number as usize].rewrite {
            rewrite_target(rewrite, &path, head.query(), &mut self.scratch.target);
        }
        Ok(number)
    }

    fn route_of<'s>(&self, snapshot: &'s Snapshot) -> Option<&'s Route> {
        self.record.route.map(|number| &snapshot.routes[number as usize])
    }
}

fn normal_path<'h>(head: &'h RequestHead, snapshot: &Snapshot) -> Result<NormalPath<'h>, Fault> {
    if head.form == TargetForm::Asterisk {
        // It is about the server as a whole: routed as the root, asked for as it is.
        return Ok(NormalPath { uri: b"/"[..].into(), shown: None });
    }
    normalized(head.raw_path(), snapshot.uri_options)
        .map_err(|_| Fault::new(FaultKind::BadRequest, "the path of the request target is invalid"))
}

/// The rewritten path, percent-encoded again, and the query as it was.
fn rewrite_target(
    rewrite: &crate::snapshot::Rewrite,
    path: &NormalPath<'_>,
    query: Option<&[u8]>,
    out: &mut Vec<u8>,
) {
    let replaced = rewrite.regex.replace_all(&path.uri, &rewrite.replacement[..]);
    if replaced.first() != Some(&b'/') {
        out.push(b'/');
    }
    for &byte in replaced.iter() {
        if byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte) {
            out.push(byte);
        } else {
            const HEX: &[u8; 16] = b"0123456789ABCDEF";
            out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
    if let Some(query) = query {
        out.push(b'?');
        out.extend_from_slice(query);
    }
}

/// Whether the client asks to change the protocol of its connection (RFC 9110 §7.8).
fn wants_upgrade(head: &RequestHead) -> bool {
    head.version != Version::Http10
        && head.headers.has(HeaderId::Upgrade)
        && head.headers.has_token(HeaderId::Connection, b"upgrade")
}

impl Origin {
    /// The port that the client connected to.
    fn local_port(&self) -> u16 {
        self.local.map_or(0, |addr| addr.port())
    }
}
