//! The answers of hooks.

use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use serde_json::Value;
use sigma_http::{BodyLength, Chunk};

use crate::outbound::{Answer, Call, CallError};
use crate::{Context, Env, Takeover};

/// Goes on with an exchange after waiting; runs where the hook ran.
pub type Resume = Box<dyn FnOnce(&mut Context, &Env<'_>) -> Step>;

/// Goes on once the request body was read, see [`Step::ReadBody`].
pub type BodyResume = Box<dyn FnOnce(&mut Context, &Env<'_>, BodyRead) -> Step>;

/// Goes on once the beginning of the request body was read, see [`Step::ReadStart`].
pub type StartResume = Box<dyn FnOnce(&mut Context, &Env<'_>, BodyStart) -> Step>;

/// What became of a call.
pub type Asked = Result<Answer, CallError>;

/// Goes on once calls have ended, see [`Step::Ask`].
pub type AskResume = Box<dyn FnOnce(&mut Context, &Env<'_>, Vec<Asked>) -> Step>;

/// The answer of a hook. Only waiting allocates.
pub enum Step {
    /// The next plugin, please.
    Next,
    /// The exchange is answered with this; no further plugin of the request phases runs.
    Reply(Box<Reply>),
    /// As [`Step::Reply`], with a body that is made while it is sent. The reply must not have a
    /// body of its own.
    Stream(Box<Reply>, StreamBody),
    /// The connection changes its protocol, and what comes over it from then on is the plugin's. The
    /// reply's fields go into the 101; the protocol is the one that the client asks for. As with a node,
    /// it has to be one that the route lets through, or the exchange fails with 501.
    Takeover(Box<Reply>, Box<dyn Takeover>),
    /// Something takes time. The future owns what it needs, and gives back what to do with the
    /// exchange then. It is dropped when the client leaves.
    Wait(Pin<Box<dyn Future<Output = Resume>>>),
    /// The request body is needed as a whole. It is read up to the limit, kept in
    /// [`Context::body`], and sent to the node as it stands there afterwards.
    ReadBody {
        /// Most bytes to hold in memory.
        limit: usize,
        /// The rest of the hook, which runs then.
        then: BodyResume,
    },
    /// The beginning of the request body is needed: up to the limit, or all of it if it is no longer. What is
    /// behind that goes to the node as it comes.
    ReadStart {
        /// Most bytes that the hook is given.
        limit: usize,
        /// The rest of the hook, which runs then.
        then: StartResume,
    },
    /// Calls are made at the same time, to upstreams or to this gateway itself (see [`crate::outbound::GATEWAY`]),
    /// each with the time and the limit that it says.
    Ask {
        /// The calls.
        calls: Vec<Call>,
        /// The rest of the hook, which runs when all have ended. It is given as many results, in the same order.
        then: AskResume,
    },
}

impl Step {
    /// Waits for a future, then goes on with its result.
    pub fn wait<T: 'static>(
        future: impl Future<Output = T> + 'static,
        then: impl FnOnce(T, &mut Context, &Env<'_>) -> Step + 'static,
    ) -> Step {
        Step::Wait(Box::pin(async move {
            let result = future.await;
            Box::new(move |ctx: &mut Context, env: &Env<'_>| then(result, ctx, env)) as Resume
        }))
    }

    /// Answers with a status and a JSON body.
    pub fn json(status: u16, body: &Value) -> Step {
        Reply::new(status).json(body).into()
    }

    /// Answers with a status alone.
    pub fn status(status: u16) -> Step {
        Reply::new(status).into()
    }
}

/// How a hook's step ends when nothing has to be waited for any more.
pub enum End {
    /// The next plugin.
    Next,
    /// The exchange is answered.
    Reply(Box<Reply>),
    /// The same, with a body that is made while it is sent.
    Stream(Box<Reply>, StreamBody),
    /// The connection is taken over.
    Takeover(Box<Reply>, Box<dyn Takeover>),
}

impl From<End> for Step {
    fn from(end: End) -> Step {
        match end {
            End::Next => Step::Next,
            End::Reply(reply) => Step::Reply(reply),
            End::Stream(reply, body) => Step::Stream(reply, body),
            End::Takeover(reply, peer) => Step::Takeover(reply, peer),
        }
    }
}

impl Step {
    /// Goes on with `then` once the step has come to its end: how a plugin that runs others decides what follows.
    pub fn and_then(
        self,
        ctx: &mut Context,
        env: &Env<'_>,
        then: impl FnOnce(End, &mut Context, &Env<'_>) -> Step + 'static,
    ) -> Step {
        match self {
            Step::Next => then(End::Next, ctx, env),
            Step::Reply(reply) => then(End::Reply(reply), ctx, env),
            Step::Stream(reply, body) => then(End::Stream(reply, body), ctx, env),
            Step::Takeover(reply, peer) => then(End::Takeover(reply, peer), ctx, env),
            Step::Wait(future) => Step::Wait(Box::pin(async move {
                let resume = future.await;
                let resume =
                    move |ctx: &mut Context, env: &Env<'_>| resume(ctx, env).and_then(ctx, env, then);
                Box::new(resume) as Resume
            })),
            Step::ReadBody { limit, then: resume } => {
                let resume = move |ctx: &mut Context, env: &Env<'_>, read| {
                    resume(ctx, env, read).and_then(ctx, env, then)
                };
                Step::ReadBody { limit, then: Box::new(resume) }
            }
            Step::ReadStart { limit, then: resume } => {
                let resume = move |ctx: &mut Context, env: &Env<'_>, start| {
                    resume(ctx, env, start).and_then(ctx, env, then)
                };
                Step::ReadStart { limit, then: Box::new(resume) }
            }
            Step::Ask { calls, then: resume } => {
                let resume = move |ctx: &mut Context, env: &Env<'_>, asked| {
                    resume(ctx, env, asked).and_then(ctx, env, then)
                };
                Step::Ask { calls, then: Box::new(resume) }
            }
        }
    }
}

impl Step {
    /// How a step ends where there is no exchange around it, such as on a listener for operators; `body` is the
    /// request's.
    pub async fn ended(mut self, ctx: &mut Context, env: &Env<'_>, body: Vec<u8>) -> End {
        let mut body = Some(body);
        loop {
            self = match self {
                Step::Next => return End::Next,
                Step::Reply(reply) => return End::Reply(reply),
                Step::Stream(reply, body) => return End::Stream(reply, body),
                Step::Takeover(reply, peer) => return End::Takeover(reply, peer),
                Step::Wait(future) => future.await(ctx, env),
                Step::ReadBody { limit, then } => {
                    let fits = body.take_if(|body| body.len() <= limit);
                    let read = if fits.is_some() { BodyRead::Whole } else { BodyRead::TooLarge };
                    ctx.body = fits.or(ctx.body.take());
                    then(ctx, env, read)
                }
                Step::ReadStart { limit, then } => {
                    ctx.body = body.take().or(ctx.body.take());
                    then(ctx, env, BodyStart::of(ctx.body.as_deref().unwrap_or_default(), limit))
                }
                Step::Ask { calls, then } => {
                    let nobody = || Err(CallError("there is no client to ask for".to_owned()));
                    then(ctx, env, calls.iter().map(|_| nobody()).collect())
                }
            };
        }
    }

    /// As [`Step::ended`], as a reply with its whole body. None if the step leaves the request to others.
    ///
    /// # Errors
    /// Returns an error if a body that is made while it is sent broke off.
    pub async fn settled(self, ctx: &mut Context, env: &Env<'_>, body: Vec<u8>) -> io::Result<Option<Reply>> {
        match self.ended(ctx, env, body).await {
            End::Next => Ok(None),
            End::Reply(reply) => Ok(Some(*reply)),
            End::Stream(reply, body) => body.collected(*reply).await.map(Some),
            // There is no connection that it could have.
            End::Takeover(..) => Ok(Some(Reply::new(501))),
        }
    }
}

impl StreamBody {
    /// The reply with this body, which is all made at once.
    async fn collected(mut self, mut reply: Reply) -> io::Result<Reply> {
        let mut bytes = Vec::new();
        while let Some(piece) = std::future::poll_fn(|task| self.source.poll_piece(task)).await? {
            bytes.extend_from_slice(&piece);
        }
        if let BodyLength::Known(length) = self.length
            && length != bytes.len() as u64
        {
            return Err(io::Error::other("the body is not as long as it was said to be"));
        }
        reply.body = Some(bytes);
        Ok(reply)
    }
}

impl From<Reply> for Step {
    fn from(reply: Reply) -> Step {
        Step::Reply(Box::new(reply))
    }
}

/// Goes on with a response after waiting.
pub type ResponseResume = Box<dyn FnOnce(&mut Context, &Env<'_>) -> ResponseStep>;

/// The answer of a hook to a response whose head is known and has not left.
pub enum ResponseStep {
    /// It goes on, as it stands in [`Context::response`] now.
    Next,
    /// This response takes its place. The plugins behind this one see it as they would have seen
    /// the other.
    Replace(Box<Reply>),
    /// As [`ResponseStep::Replace`], with a body that is made while it is sent.
    Stream(Box<Reply>, StreamBody),
    /// Another node is asked, as if this one had not answered: within the upstream's retries, and
    /// only if the request can be sent again. Where that is not so, and for responses that no node
    /// gave, the response goes on.
    Retry,
    /// Something takes time. The response waits; the future is dropped when the client leaves.
    Wait(Pin<Box<dyn Future<Output = ResponseResume>>>),
}

impl ResponseStep {
    /// Waits for a future, then goes on with its result.
    pub fn wait<T: 'static>(
        future: impl Future<Output = T> + 'static,
        then: impl FnOnce(T, &mut Context, &Env<'_>) -> ResponseStep + 'static,
    ) -> ResponseStep {
        ResponseStep::Wait(Box::pin(async move {
            let result = future.await;
            Box::new(move |ctx: &mut Context, env: &Env<'_>| then(result, ctx, env)) as ResponseResume
        }))
    }
}

/// A response body that is made while it is sent.
pub struct StreamBody {
    /// How long it will be.
    pub length: BodyLength,
    /// The source of its pieces.
    pub source: Box<dyn BodySource>,
}

/// Makes a response body piece by piece, as fast as the client takes it.
pub trait BodySource {
    /// The next piece, not empty; None at the end. Not asked for a response without a body, such as
    /// that to HEAD, and not while the client has yet to take earlier pieces. An error cuts the
    /// response short. Dropped when the client leaves.
    fn poll_piece(&mut self, task: &mut std::task::Context<'_>) -> Poll<io::Result<Option<Chunk>>>;

    /// The gateway is about to stop. A body that would go on for ever gives its last pieces and its end when it is
    /// polled next, which is right after this; others have their time, and need do nothing.
    fn say_goodbye(&mut self) {}
}

/// How reading the request body ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyRead {
    /// All of it is in [`Context::body`].
    Whole,
    /// It is over the limit; what was read is passed on unchanged if the exchange goes on.
    TooLarge,
}

/// What was read of the request body for a [`Step::ReadStart`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyStart {
    /// The first bytes, up to the limit.
    pub bytes: Vec<u8>,
    /// There are no more.
    pub is_whole: bool,
}

impl BodyStart {
    /// The beginning of what is known of a body. Whether there is more behind `known` shows only if that is
    /// longer than the limit.
    pub fn of(known: &[u8], limit: usize) -> BodyStart {
        let bytes = known[..known.len().min(limit)].to_vec();
        BodyStart { bytes, is_whole: known.len() <= limit }
    }
}

/// A response of a plugin's own.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// Fields besides those that frame the message.
    pub headers: Vec<(Cow<'static, str>, Vec<u8>)>,
    /// The body; None for the gateway's own text of the status.
    pub body: Option<Vec<u8>>,
    /// Why, for logs and for plugins that run others; nothing that a client sent.
    pub reason: Option<&'static str>,
    /// It is the answer of another server: without a Content-Type it stays without one.
    pub is_passed_on: bool,
    /// The length of the body that a HEAD request does not get, where `body` is not that one.
    pub unsent_length: Option<u64>,
    /// The client gets nothing of it: its connection is closed, over a version of HTTP that shares connections
    /// its stream alone. The status is for logs.
    pub is_silent: bool,
}

impl Reply {
    /// A response with the gateway's own text for its status.
    pub fn new(status: u16) -> Reply {
        Reply { status, ..Reply::default() }
    }

    /// No response at all; see [`Reply::is_silent`]. Logs show nginx's status for it.
    pub fn silent() -> Reply {
        Reply { status: 444, is_silent: true, ..Reply::default() }
    }

    /// Adds a field.
    #[must_use]
    pub fn header(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Vec<u8>>) -> Reply {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// With the reason for it; see [`Reply::reason`].
    #[must_use]
    pub fn because(mut self, reason: &'static str) -> Reply {
        self.reason = Some(reason);
        self
    }

    /// With this body as it is.
    #[must_use]
    pub fn text(mut self, body: impl Into<Vec<u8>>) -> Reply {
        self.body = Some(body.into());
        self
    }

    /// With this body as compact JSON and a line end, as APISIX writes tables.
    #[must_use]
    pub fn json(self, body: &Value) -> Reply {
        self.text(format!("{body}\n"))
    }
}
