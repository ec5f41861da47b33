//! The stream of one exchange: messages of both directions, their responses and timeouts.
//!
//! The filters of both directions share one session. Any of them moves the messages of both when it is polled.

pub(crate) mod streamed;

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use prost::Message;
use sigma_http::{Fault, FaultKind};
use sigma_plugin::outbound::{MessageStream, Missing};
use sigma_plugin::{Context, Reply};
use sigma_plugin_kit::envoy::Struct;
use sigma_plugin_kit::log_throttle::LogThrottle;
use sigma_plugin_kit::tallies::Tally;
use tokio::time::Sleep;

use crate::config::Config;
use crate::events::Event;
use crate::immediate;
use crate::messages::{
    CommonResponse, FILTER, HeaderMutation, ModeOverride, Part, PartResponse, ProcessingRequest,
    ProcessingResponse, ProtocolConfiguration,
};
use crate::mode::{BodyMode, ProcessingMode};
use crate::rules::{ChangeTarget, Changes, Claims, Invalid};
use streamed::StreamedReply;

/// Bytes of responses that wait for one direction: a few pieces of a body. The processor waits when there are more.
const WAITING_BYTES: usize = 256 * 1024;

/// Messages of a session that only ask for more time. One for each response has an effect.
const EXTENSIONS_MAX: u32 = 1000;

/// A direction of the exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Request,
    Response,
}

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Headers,
    Body,
    Trailers,
}

/// A failure of the processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It cannot be reached, breaks off or answers wrongly
    Broken,
    /// It is late
    Late,
}

/// A response of the processor to a part.
#[derive(Debug)]
pub(crate) enum Answered {
    Headers(CommonResponse),
    Body(CommonResponse),
    Trailers(HeaderMutation),
}

/// The next event for a direction.
#[derive(Debug)]
pub(crate) enum Got {
    /// A response
    Answer(Answered),
    /// The exchange continues without the processor
    Gone,
    /// The exchange ends with this reply
    Reply(Reply),
    /// The exchange ends with this reply, whose body comes in pieces
    Stream(Reply),
}

/// The end of a session before its exchange.
enum Fate {
    Gone,
    Reply(Reply),
    /// A response that the processor streams; the stream stays open.
    Stream(Reply),
}

/// The state of one direction.
#[derive(Default)]
struct Side {
    /// A message that waits for the stream.
    queued: Option<Vec<u8>>,
    /// The kind of the response that is due.
    due: Option<Kind>,
    /// The processor answers bodies as it likes.
    is_duplex: bool,
    /// In full duplex, nothing more can be sent before the processor sends something.
    owes: bool,
    /// Responses that were not taken yet.
    inbox: VecDeque<Answered>,
    inbox_bytes: usize,
    timer: Option<Pin<Box<Sleep>>>,
    /// The processor has set a timeout for the response that is due.
    is_extended: bool,
    has_attributes: bool,
}

/// The part of a request body that its filter must know about.
#[derive(Debug, Default)]
pub(crate) struct RequestProgress {
    /// Bytes that were sent to the processor before the filter began.
    pub(crate) sent: usize,
    /// The end was sent as well.
    pub(crate) has_ended: bool,
    /// The replacement of these bytes.
    pub(crate) prefix: Option<Vec<u8>>,
    /// Nothing more of the request is sent.
    pub(crate) is_done: bool,
}

/// The changes of the processor to the body of the response.
#[derive(Default)]
pub(crate) struct ReplacedResponse {
    /// The body of a response that the processor streams.
    streamed: StreamedReply,
    /// The body that replaces the one of the response.
    pub(crate) body: Option<Vec<u8>>,
    /// Nothing more of the response is sent.
    pub(crate) is_done: bool,
}

/// The session of one exchange.
pub(crate) struct Session {
    pub(crate) config: Arc<Config>,
    tally: Tally<Event>,
    /// None once the session has ended.
    stream: Option<Box<dyn MessageStream>>,
    fate: Option<Fate>,
    /// The reply of `fate` was returned to a hook or a filter.
    is_told: bool,
    pub(crate) mode: ProcessingMode,
    sides: [Side; 2],
    /// The direction whose message is being written.
    writing: Option<Direction>,
    has_begun: bool,
    /// Messages that requested more time.
    extensions: u32,
    claims: Rc<Claims>,
    pub(crate) request: RequestProgress,
    pub(crate) response: ReplacedResponse,
}

impl Session {
    pub(crate) fn new(
        config: Arc<Config>,
        tally: Tally<Event>,
        stream: Option<Box<dyn MessageStream>>,
    ) -> Session {
        let mode = config.processing_mode;
        Session {
            config,
            tally,
            stream,
            fate: None,
            is_told: false,
            mode,
            sides: Default::default(),
            writing: None,
            has_begun: false,
            extensions: 0,
            claims: Rc::default(),
            request: RequestProgress::default(),
            response: ReplacedResponse::default(),
        }
    }

    /// Returns true if no message is sent any more.
    pub(crate) fn is_over(&self) -> bool {
        self.fate.is_some()
    }

    /// Returns true if another message of this direction may be queued.
    pub(crate) fn has_room(&self, direction: Direction) -> bool {
        self.sides[direction as usize].queued.is_none() && self.writing != Some(direction)
    }

    /// Begins full duplex in a direction.
    pub(crate) fn begin_duplex(&mut self, direction: Direction) {
        self.sides[direction as usize].is_duplex = true;
    }

    /// Notes whether the processor must send something before more can be sent, in full duplex.
    /// Returns the earlier value.
    pub(crate) fn set_owing(&mut self, direction: Direction, owes: bool) -> bool {
        let side = &mut self.sides[direction as usize];
        let before = std::mem::replace(&mut side.owes, owes);
        if owes != before {
            side.timer = owes.then(|| timer(self.config.duplex_idle_timeout));
        }
        before
    }

    /// Returns true if a response is due in this direction, or waits.
    pub(crate) fn expects_answer(&self, direction: Direction) -> bool {
        let side = &self.sides[direction as usize];
        side.due.is_some() || !side.inbox.is_empty()
    }

    /// Queues a part. `attributes` go with the first one of its direction.
    pub(crate) fn queue(&mut self, direction: Direction, kind: Kind, part: Part, attributes: Option<Struct>) {
        if self.is_over() {
            return;
        }
        let mut message = ProcessingRequest {
            request: Some(part),
            observability_mode: self.config.observability_mode,
            ..ProcessingRequest::default()
        };
        if !std::mem::replace(&mut self.has_begun, true) {
            message.protocol_config = Some(ProtocolConfiguration {
                request_body_mode: self.mode.request_body_mode.number(),
                response_body_mode: self.mode.response_body_mode.number(),
            });
        }
        let side = &mut self.sides[direction as usize];
        if !std::mem::replace(&mut side.has_attributes, true)
            && let Some(attributes) = attributes.filter(|attributes| !attributes.fields.is_empty())
        {
            message.attributes = HashMap::from([(FILTER.to_owned(), attributes)]);
        }
        if !side.is_duplex || kind == Kind::Headers {
            side.due = Some(kind);
        }
        (side.timer, side.is_extended) = (None, false);
        side.queued = Some(message.encode_to_vec());
    }

    /// Returns the next event of a direction.
    pub(crate) fn poll(&mut self, direction: Direction, task: &mut task::Context<'_>) -> Poll<Got> {
        self.advance(task);
        // A failure counts before responses that came with it.
        if let Some(reply) = self.reply() {
            return Poll::Ready(Got::Reply(reply));
        }
        if let Some(Fate::Stream(reply)) = &self.fate {
            self.is_told = true;
            return Poll::Ready(Got::Stream(reply.clone()));
        }
        let side = &mut self.sides[direction as usize];
        if let Some(answer) = side.inbox.pop_front() {
            side.inbox_bytes = side.inbox_bytes.saturating_sub(answer.bytes());
            return Poll::Ready(Got::Answer(answer));
        }
        if let Some(timer) = &mut side.timer
            && self.fate.is_none()
            && timer.as_mut().poll(task).is_ready()
        {
            self.fail(Failure::Late, "the processor did not respond in time");
        }
        match (self.reply(), &self.fate) {
            (Some(reply), _) => Poll::Ready(Got::Reply(reply)),
            (None, Some(_)) => Poll::Ready(Got::Gone),
            (None, None) => Poll::Pending,
        }
    }

    /// Returns the reply that ends the exchange, if there is one.
    fn reply(&mut self) -> Option<Reply> {
        let Some(Fate::Reply(reply)) = &self.fate else { return None };
        self.is_told = true;
        Some(reply.clone())
    }

    /// Returns the reply that ends the exchange, if no hook and no filter has it yet.
    pub(crate) fn untold_reply(&mut self) -> Option<Reply> {
        if self.is_told { None } else { self.reply() }
    }

    /// Returns the end of the exchange that no hook and no filter has yet.
    pub(crate) fn untold(&mut self) -> Got {
        match &self.fate {
            Some(Fate::Stream(reply)) if !self.is_told => Got::Stream(reply.clone()),
            _ => self.untold_reply().map_or(Got::Gone, Got::Reply),
        }
    }

    /// Sends queued messages, and receives as many as have room.
    fn advance(&mut self, task: &mut task::Context<'_>) {
        while let Some(stream) = &mut self.stream {
            let is_streamed = matches!(self.fate, Some(Fate::Stream(_)));
            match stream.poll_sent(task) {
                Poll::Pending => break,
                // The processor need not read the rest of the request.
                Poll::Ready(Err(_)) if is_streamed => break,
                Poll::Ready(Err(error)) => return self.fail_with(error.missing, &error.reason),
                Poll::Ready(Ok(())) => {}
            }
            if let Some(direction) = self.writing.take() {
                self.start_timer(direction);
            }
            let next = [Direction::Response, Direction::Request]
                .into_iter()
                .find_map(|direction| Some((direction, self.sides[direction as usize].queued.take()?)));
            let (Some((direction, message)), Some(stream)) = (next, &mut self.stream) else { break };
            stream.send(&message);
            self.writing = Some(direction);
        }
        while self.sides.iter().all(|side| side.inbox_bytes < WAITING_BYTES)
            && self.response.streamed.bytes < WAITING_BYTES
            && self.response.streamed.end.is_none()
            && let Some(stream) = &mut self.stream
        {
            let is_streamed = matches!(self.fate, Some(Fate::Stream(_)));
            match stream.poll_message(task) {
                Poll::Pending => break,
                Poll::Ready(Ok(Some(message))) => self.receive(&message),
                Poll::Ready(_) if is_streamed => {
                    self.break_streamed("the processor ended its response early")
                }
                Poll::Ready(Ok(None)) => self.end(Fate::Gone),
                Poll::Ready(Err(error)) => self.fail_with(error.missing, &error.reason),
            }
        }
    }

    /// Starts the clock of a response when its message was written.
    fn start_timer(&mut self, direction: Direction) {
        let side = &mut self.sides[direction as usize];
        if side.due.is_some() && !side.is_duplex {
            side.timer = Some(timer(self.config.message_timeout));
        } else if side.is_duplex && side.owes {
            side.timer = Some(timer(self.config.duplex_idle_timeout));
        }
    }

    /// Accepts a message of the processor.
    fn receive(&mut self, bytes: &[u8]) {
        let Ok(message) = ProcessingResponse::decode(bytes) else {
            return self.fail(Failure::Broken, "the processor's message is malformed");
        };
        let is_streamed = matches!(self.fate, Some(Fate::Stream(_)));
        let (direction, kind, answered) = match message.response {
            Some(PartResponse::StreamedImmediate(part)) => return self.receive_streamed(part),
            _ if is_streamed => {
                return self.break_streamed("the processor's streamed response is out of order");
            }
            None if message.override_message_timeout.is_some() => {
                return self.extend(message.override_message_timeout.unwrap_or_default());
            }
            None => return self.fail(Failure::Broken, "the processor's message is empty"),
            Some(PartResponse::Immediate(response)) => return self.answer_itself(&response),
            Some(PartResponse::RequestHeaders(answer)) => {
                (Direction::Request, Kind::Headers, Answered::Headers(answer.response.unwrap_or_default()))
            }
            Some(PartResponse::ResponseHeaders(answer)) => {
                (Direction::Response, Kind::Headers, Answered::Headers(answer.response.unwrap_or_default()))
            }
            Some(PartResponse::RequestBody(answer)) => {
                (Direction::Request, Kind::Body, Answered::Body(answer.response.unwrap_or_default()))
            }
            Some(PartResponse::ResponseBody(answer)) => {
                (Direction::Response, Kind::Body, Answered::Body(answer.response.unwrap_or_default()))
            }
            Some(PartResponse::RequestTrailers(answer)) => {
                let mutation = answer.header_mutation.unwrap_or_default();
                (Direction::Request, Kind::Trailers, Answered::Trailers(mutation))
            }
            Some(PartResponse::ResponseTrailers(answer)) => {
                let mutation = answer.header_mutation.unwrap_or_default();
                (Direction::Response, Kind::Trailers, Answered::Trailers(mutation))
            }
        };
        let idle_ms = self.config.duplex_idle_timeout;
        let side = &mut self.sides[direction as usize];
        let is_due = side.due == Some(kind);
        let is_free = side.is_duplex && kind != Kind::Headers && side.due.is_none();
        if !is_due && !is_free {
            return self.fail(Failure::Broken, "the processor responded to a message that it did not get");
        }
        (side.due, side.timer) = (None, None);
        if side.is_duplex && side.owes {
            side.timer = Some(timer(idle_ms));
        }
        side.inbox_bytes += answered.bytes();
        side.inbox.push_back(answered);
        if let Some(wanted) = message.mode_override.filter(|_| kind == Kind::Headers) {
            self.change_mode(direction, &wanted);
        }
    }

    /// Changes the modes of the parts that follow, if the configuration permits it.
    fn change_mode(&mut self, direction: Direction, wanted: &ModeOverride) {
        if !self.config.allow_mode_override || self.mode.has_duplex() {
            return;
        }
        let allowed = &self.config.allowed_override_modes;
        let wanted = ProcessingMode::of(wanted).filter(|wanted| {
            !wanted.has_duplex() && (allowed.is_empty() || allowed.iter().any(|mode| mode.allows(wanted)))
        });
        match wanted {
            None => self.tally.count(Event::ModeRejected),
            Some(wanted) if direction == Direction::Request => self.mode = wanted,
            Some(wanted) => {
                self.mode.response_body_mode = wanted.response_body_mode;
                self.mode.response_trailer_mode = wanted.response_trailer_mode;
            }
        }
    }

    /// Gives the processor more time for the response that is due, once for each.
    fn extend(&mut self, wanted: crate::messages::Duration) {
        let ms = wanted.seconds.saturating_mul(1000).saturating_add(i64::from(wanted.nanos) / 1_000_000);
        let ms = u64::try_from(ms).unwrap_or_default();
        self.extensions += 1;
        if self.extensions > EXTENSIONS_MAX {
            return self.fail(Failure::Broken, "the processor requested more time too often");
        }
        let waits = |side: &&mut Side| side.timer.is_some() && !side.is_duplex && !side.is_extended;
        if ms >= 1
            && ms <= self.config.max_message_timeout
            && let Some(side) = self.sides.iter_mut().find(waits)
        {
            (side.timer, side.is_extended) = (Some(timer(ms)), true);
        }
    }

    /// Ends the session with a response by the processor.
    pub(crate) fn answer_itself(&mut self, response: &crate::messages::ImmediateResponse) {
        if self.config.disable_immediate_response {
            return self.fail(Failure::Broken, "the processor responds itself, which is disabled");
        }
        match immediate::reply(response, &self.config.mutation_rules) {
            Ok((reply, rejected)) => {
                self.reject(rejected);
                self.tally.count(Event::Immediate);
                self.end(Fate::Reply(reply));
            }
            Err(Invalid(reason)) => self.fail(Failure::Broken, reason),
        }
    }

    fn reject(&self, rejected: u64) {
        if rejected > 0 {
            self.tally.add(Event::MutationRejected, rejected);
        }
    }

    fn fail_with(&mut self, missing: Missing, reason: &str) {
        let failure = if missing == Missing::Time { Failure::Late } else { Failure::Broken };
        self.fail(failure, reason);
    }

    /// Ends the session with a failure.
    pub(crate) fn fail(&mut self, failure: Failure, reason: &str) {
        static COMPLAINT: LogThrottle = LogThrottle::new();
        if let Some(left_out) = COMPLAINT.due() {
            tracing::error!(left_out, reason, "ext-proc: the processor failed");
        }
        let late = failure == Failure::Late;
        self.tally.count(if late { Event::Timeout } else { Event::Failure });
        self.end(match self.config.failure_mode_allow {
            true => Fate::Gone,
            false => Fate::Reply(failed(&self.config, failure)),
        });
    }

    fn end(&mut self, fate: Fate) {
        self.stream = None;
        self.fate.get_or_insert(fate);
    }

    /// Ends the session after its last message.
    pub(crate) fn close(&mut self) {
        if matches!(self.fate, Some(Fate::Stream(_))) {
            return;
        }
        if let Some(stream) = &mut self.stream {
            stream.finish();
            let _ = stream.poll_sent(&mut task::Context::from_waker(task::Waker::noop()));
        }
        self.end(Fate::Gone);
    }

    /// Ends the session if nothing more is sent in either direction.
    pub(crate) fn close_if_done(&mut self) {
        if self.request.is_done && self.response.is_done {
            self.close();
        }
    }

    /// Applies the changes of a response. An invalid one ends the session.
    pub(crate) fn apply(
        &mut self,
        mutation: Option<&HeaderMutation>,
        place: ChangeTarget,
        ctx: &mut Context,
        trailers: Option<&mut sigma_http::Headers>,
    ) -> Result<(), Box<Got>> {
        let Some(mutation) = mutation else { return Ok(()) };
        let changes = Changes {
            rules: &self.config.mutation_rules,
            append_by_default: self.config.append_by_default,
            ignore_actions: self.config.ignore_header_actions,
            claims: &self.claims,
        };
        match changes.apply(mutation, place, ctx, trailers) {
            Ok(rejected) => {
                self.reject(rejected);
                Ok(())
            }
            Err(Invalid(reason)) => {
                self.fail(Failure::Broken, reason);
                Err(Box::new(self.reply().map_or(Got::Gone, Got::Reply)))
            }
        }
    }

    /// Notes the wish to choose the route again, which is not supported.
    pub(crate) fn note_route_cache(&self, common: &CommonResponse) {
        if common.clear_route_cache {
            self.tally.count(Event::RouteCache);
        }
    }

    /// Returns true if bodies of this direction are sent in full duplex.
    pub(crate) fn is_duplex(&self, direction: Direction) -> bool {
        let mode = match direction {
            Direction::Request => self.mode.request_body_mode,
            Direction::Response => self.mode.response_body_mode,
        };
        mode == BodyMode::FullDuplexStreamed
    }
}

impl Answered {
    /// Returns about how many bytes it takes.
    fn bytes(&self) -> usize {
        use crate::messages::Mutation;
        let common = match self {
            Answered::Headers(common) | Answered::Body(common) => common,
            Answered::Trailers(mutation) => return mutation.encoded_len(),
        };
        let body = common.body_mutation.as_ref().and_then(|body| body.mutation.as_ref());
        128 + match body {
            Some(Mutation::Body(bytes)) => bytes.len(),
            Some(Mutation::Streamed(streamed)) => streamed.body.len(),
            Some(Mutation::Clear(_)) | None => 0,
        }
    }
}

/// Returns the reply after a failure.
pub(crate) fn failed(config: &Config, failure: Failure) -> Reply {
    let status = if failure == Failure::Late { 504 } else { config.status_on_error };
    Reply::new(status).because("the external processor failed").text(Vec::new())
}

/// The fault of a body that ends because of the processor.
pub(crate) const CUT: Fault = Fault::new(FaultKind::Internal, "the external processor ended the body");

fn timer(ms: u64) -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep(Duration::from_millis(ms)))
}
