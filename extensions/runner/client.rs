//! Calls to the runner by one worker: a pool of connections, each for one call at a time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sigma_buffer::held::CountedBytes;
use sigma_net::deadline;
use sigma_plugin::Env;
use sigma_plugin::runner_state::RunnerFailure;

use crate::connection::{Connection, PATIENCE, Received};
use crate::messages::{
    Entry, InfoRequest, Message, Reported, extra_info, info_request, kind, prepare_conf, reported, token,
};
use crate::runner::Runner;
use crate::tokens::{LocalTokens, Token};

/// The most idle connections of a worker.
const IDLE_MAX: usize = 32;
/// The time after which an idle connection is closed.
const IDLE_MS: u64 = 180_000;
/// The most calls of a worker at a time. Each has a connection, and a runner that hangs keeps it for a minute.
const CALLS_MAX: usize = 1_024;
/// The most further replies to an earlier message before the reply to a call. APISIX's runner for Java 0.4.0 replies twice
/// to the message of a configuration.
const REPEATS_MAX: usize = 1;
/// The most questions of a runner in one call.
const QUESTIONS_MAX: usize = 1_024;
/// The most attempts of a call whose token the runner does not know.
const TRIES_MAX: u8 = 3;
/// The bits of a call's number that count calls; the worker's number is above them.
const COUNTER_BITS: u32 = 22;

/// The configuration of a plugin for the runner.
#[derive(Debug)]
pub(crate) struct Conf {
    /// The name by which the runner knows it.
    pub(crate) key: String,
    /// The external plugins: names, and texts of their configurations. None: the runner decides.
    pub(crate) plugins: Option<Vec<(String, String)>>,
}

/// The part of a worker.
#[derive(Debug, Default)]
pub(crate) struct Client {
    idle: RefCell<Vec<Idle>>,
    calls: Cell<usize>,
    counter: Cell<u32>,
    tokens: LocalTokens,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since_ms: u64,
    /// The epoch of the runner that it leads to.
    epoch: u64,
    last: Purpose,
}

/// The message that a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// A configuration. A second reply to it may be on its way, so the next message is a call: the token in a repeated
    /// reply would be taken for the token of another configuration.
    Configuration,
    Call,
}

/// A place among the calls of a worker.
#[derive(Debug)]
struct CallSlot(Rc<Client>);

impl Drop for CallSlot {
    fn drop(&mut self) {
        self.0.calls.set(self.0.calls.get() - 1);
    }
}

/// A call that is not over.
#[derive(Debug)]
pub(crate) struct Call {
    place: CallSlot,
    runner: Arc<Runner>,
    conf: Arc<Conf>,
    message: Message,
    /// The run time of the process at its start.
    uptime: Duration,
    tries: u8,
    questions: usize,
    /// None before the message was sent.
    connection: Option<(Connection, Token)>,
}

/// An event of a call.
#[derive(Debug)]
pub(crate) enum Event {
    /// The runner needs more; see [`Call::reply`].
    InfoRequest(Call, InfoRequest),
    /// The call has ended.
    Reply(Received),
}

/// The reason of a failed call, a sentence for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) String);

impl Failure {
    /// Returns its kind, for counters.
    pub(crate) fn kind(&self) -> RunnerFailure {
        let Failure(reason) = self;
        if reason.ends_with("timeout") {
            RunnerFailure::Timeout
        } else if reason.starts_with("failed to connect") {
            RunnerFailure::Refused
        } else {
            RunnerFailure::Broken
        }
    }
}

/// The result of a step of a call.
pub(crate) type Outcome = Result<Event, Failure>;

impl Client {
    /// Returns the client of a hook's worker.
    pub(crate) fn of(env: &Env<'_>) -> Rc<Client> {
        env.local.part(Client::default)
    }

    /// Returns the number of the next call: the number of the worker, and a counter.
    pub(crate) fn next_id(&self, worker: usize) -> u32 {
        let counter = self.counter.get();
        self.counter.set((counter + 1) & ((1 << COUNTER_BITS) - 1));
        let worker = u32::try_from(worker).unwrap_or_default();
        worker.wrapping_shl(COUNTER_BITS) | counter
    }

    /// Returns a call.
    ///
    /// # Errors
    /// Returns an error if there is no runner, or if too many calls wait for it.
    pub(crate) fn call(
        self: Rc<Client>,
        runner: &Arc<Runner>,
        conf: &Arc<Conf>,
        message: Message,
        uptime: Duration,
    ) -> Result<Call, Failure> {
        if self.calls.get() >= CALLS_MAX {
            return Err(Failure(format!("{CALLS_MAX} calls of this worker already wait for the runner")));
        }
        self.calls.set(self.calls.get() + 1);
        runner.state.called();
        let (runner, conf) = (Arc::clone(runner), Arc::clone(conf));
        let (place, connection) = (CallSlot(self), None);
        Ok(Call { place, runner, conf, message, uptime, tries: 0, questions: 0, connection })
    }

    /// Returns an idle connection, or a new one.
    async fn connection(&self, runner: &Runner, purpose: Purpose) -> Result<Connection, Failure> {
        let (now_ms, epoch) = (deadline::now_ms(), runner.tokens.epoch());
        let fits = |idle: &Idle| idle.epoch == epoch && now_ms.saturating_sub(idle.since_ms) < IDLE_MS;
        self.idle.borrow_mut().retain(fits);
        loop {
            let Some(idle) = self.take_idle(purpose) else { break };
            if idle.connection.is_idle() {
                return Ok(idle.connection);
            }
        }
        let Some(path) = runner.socket() else {
            return Err(Failure(
                "no runner is configured: set `ext-plugin.cmd` or `ext-plugin.path`".to_owned(),
            ));
        };
        let failed = |reason| {
            Failure(format!("failed to connect to the unix socket unix:{}: {reason}", path.display()))
        };
        Connection::open(path).await.map_err(failed)
    }

    /// Takes the idle connection that was used last and may have this purpose.
    fn take_idle(&self, purpose: Purpose) -> Option<Idle> {
        let mut all = self.idle.borrow_mut();
        let fits = |idle: &Idle| purpose == Purpose::Call || idle.last == Purpose::Call;
        let at = all.iter().rposition(fits)?;
        Some(all.swap_remove(at))
    }

    /// Keeps a connection for the next message; `last` is the purpose that it had.
    fn keep(&self, connection: Connection, epoch: u64, last: Purpose) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < IDLE_MAX {
            idle.push(Idle { connection, since_ms: deadline::now_ms(), epoch, last });
        }
    }

    /// Returns the number of idle connections.
    #[cfg(test)]
    pub(crate) fn idle_connections(&self) -> usize {
        self.idle.borrow().len()
    }
}

/// A frame of the runner that is no failure.
enum Frame {
    Expected(Received),
    InfoRequest(InfoRequest),
}

fn sending(kind: u8, reason: impl std::fmt::Display) -> Failure {
    Failure(format!("failed to send {}: {reason}", kind::name(kind)))
}

fn receiving(kind: u8, reason: impl std::fmt::Display) -> Failure {
    Failure(format!("failed to receive {}: {reason}", kind::name(kind)))
}

/// Sends a message.
async fn send(connection: &mut Connection, message: &mut Message) -> Result<(), Failure> {
    let kind = message.kind;
    let mut held = CountedBytes::default();
    held.set(message.length());
    let frame = message.frame().map_err(|reason| sending(kind, reason))?;
    connection.send(frame).await.map_err(|reason| sending(kind, reason))
}

/// Receives the response to a message of this type; None if the runner does not know the token.
async fn receive(connection: &mut Connection, expected: u8) -> Result<Option<Frame>, Failure> {
    let may_ask = matches!(expected, kind::HTTP_REQ_CALL | kind::HTTP_RESP_CALL);
    let mut repeats = 0;
    let received = loop {
        let may_repeat = may_ask && repeats < REPEATS_MAX;
        let is_expected = |kind| match kind {
            kind::EXTRA_INFO => may_ask,
            kind::PREPARE_CONF => may_repeat || kind == expected,
            _ => kind == expected || kind == kind::ERROR,
        };
        let received = connection.receive(is_expected).await.map_err(|reason| receiving(expected, reason))?;
        if received.kind == kind::PREPARE_CONF && kind::PREPARE_CONF != expected {
            repeats += 1;
            continue;
        }
        break received;
    };
    let invalid = |_| receiving(expected, "the message is not a valid FlatBuffers table");
    match received.kind {
        kind::EXTRA_INFO => {
            info_request(&received.payload).map(|asked| Some(Frame::InfoRequest(asked))).map_err(invalid)
        }
        kind::ERROR => match reported(&received.payload).map_err(invalid)? {
            Reported::TokenNotFound if may_ask => Ok(None),
            error => Err(receiving(expected, error)),
        },
        _ => Ok(Some(Frame::Expected(received))),
    }
}

impl Call {
    /// Sends the message and waits for the runner.
    ///
    /// # Errors
    /// Returns an error if the call fails. The connection is closed then.
    pub(crate) async fn begin(mut self) -> Outcome {
        loop {
            self.tries += 1;
            let token = self.token().await?;
            self.message.set_token(token.number);
            let mut connection = self.place.0.connection(&self.runner, Purpose::Call).await?;
            send(&mut connection, &mut self.message).await?;
            match receive(&mut connection, self.message.kind).await? {
                Some(frame) => return Ok(self.event(frame, connection, token)),
                None => self.forget(token)?,
            }
        }
    }

    /// Responds to the runner's question, None if its subject is unknown, and waits for the runner.
    ///
    /// # Errors
    /// As [`Call::begin`].
    pub(crate) fn reply(self, result: Option<&[u8]>) -> impl Future<Output = Outcome> + use<> {
        self.answer_with(extra_info(result))
    }

    async fn answer_with(mut self, mut answer: Message) -> Outcome {
        self.questions += 1;
        if self.questions > QUESTIONS_MAX {
            let reason = format!("the runner sent more than {QUESTIONS_MAX} queries");
            return Err(receiving(self.message.kind, reason));
        }
        if let Some((mut connection, token)) = self.connection.take() {
            send(&mut connection, &mut answer).await?;
            drop(answer);
            match receive(&mut connection, self.message.kind).await? {
                Some(frame) => return Ok(self.event(frame, connection, token)),
                None => self.forget(token)?,
            }
        }
        self.begin().await
    }

    fn event(mut self, frame: Frame, connection: Connection, token: Token) -> Event {
        match frame {
            Frame::InfoRequest(info_request) => {
                self.connection = Some((connection, token));
                Event::InfoRequest(self, info_request)
            }
            Frame::Expected(received) => {
                self.place.0.keep(connection, token.epoch(), Purpose::Call);
                Event::Reply(received)
            }
        }
    }

    /// Drops a token that the runner does not know, for another attempt.
    fn forget(&self, token: Token) -> Result<(), Failure> {
        self.runner.tokens.forget(token);
        match self.tries < TRIES_MAX {
            true => Ok(()),
            false => Err(receiving(self.message.kind, Reported::TokenNotFound)),
        }
    }

    /// Returns the token of the configuration. Of many calls that need it, one asks the runner.
    async fn token(&self) -> Result<Token, Failure> {
        let (local, all) = (&self.place.0.tokens, &self.runner.tokens);
        let known = || local.get(all, &self.conf.key, self.uptime);
        if let Some(token) = known() {
            return Ok(token);
        }
        let turn = local.turn(&self.conf.key);
        let held = tokio::time::timeout(PATIENCE, turn.lock()).await;
        let _held = held.map_err(|_| receiving(kind::PREPARE_CONF, "timeout"))?;
        if let Some(token) = known() {
            return Ok(token);
        }
        let epoch = all.epoch();
        let entries: Option<Vec<Entry<'_>>> = self.conf.plugins.as_ref().map(|plugins| {
            let entries = plugins.iter();
            entries
                .map(|(name, value)| Entry { name: name.as_bytes(), value: Some(value.as_bytes()) })
                .collect()
        });
        let mut message = prepare_conf(entries.as_deref(), &self.conf.key);
        let mut connection = self.place.0.connection(&self.runner, Purpose::Configuration).await?;
        send(&mut connection, &mut message).await?;
        let Some(Frame::Expected(received)) = receive(&mut connection, kind::PREPARE_CONF).await? else {
            return Err(receiving(kind::PREPARE_CONF, Reported::TokenNotFound));
        };
        let invalid = |_| receiving(kind::PREPARE_CONF, "the message is not a valid FlatBuffers table");
        let number = token(&received.payload).map_err(invalid)?;
        self.place.0.keep(connection, epoch, Purpose::Configuration);
        Ok(local.put(all, &self.conf.key, number, epoch, self.uptime))
    }
}
