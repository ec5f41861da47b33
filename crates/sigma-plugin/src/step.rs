//! The results of hooks.

use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{self, Poll};

use serde_json::Value;
use sigma_http::{BodyLength, Chunk};

use crate::outbound::{Call, CallError, ServiceResponse};
use crate::{Context, Env, Takeover};

/// Continues an exchange after a wait; runs on the hook's worker.
pub type Resume = Box<dyn FnOnce(&mut Context, &Env<'_>) -> Step>;

/// Continues once the request body is read, see [`Step::ReadBody`].
pub type BodyResume = Box<dyn FnOnce(&mut Context, &Env<'_>, BodyRead) -> Step>;

/// Continues once the beginning of the request body is read, see [`Step::ReadStart`].
pub type StartResume = Box<dyn FnOnce(&mut Context, &Env<'_>, BodyStart) -> Step>;

/// The result of a call.
pub type CallResult = Result<ServiceResponse, CallError>;

/// Continues once calls have ended, see [`Step::Ask`].
pub type AskResume = Box<dyn FnOnce(&mut Context, &Env<'_>, Vec<CallResult>) -> Step>;

/// The result of a hook. Only waiting allocates.
pub enum Step {
    /// Continue with the next plugin.
    Next,
    /// Send this reply; no further plugin of the request phases runs.
    Reply(Box<Reply>),
    /// As [`Step::Reply`], with a streamed body. The reply must not have its own body.
    Stream(Box<Reply>, StreamBody),
    /// Switch the protocol; the plugin gets the connection. The reply's fields go into the 101; the client requests
    /// the protocol. As with a node, the route must allow the protocol, or the exchange fails with 501.
    Takeover(Box<Reply>, Box<dyn Takeover>),
    /// Wait for slow work. The future owns its data, and returns the next step of the exchange. It is dropped when
    /// the client leaves.
    Wait(Pin<Box<dyn Future<Output = Resume>>>),
    /// Read the whole request body. It is read up to the limit and stored in [`Context::body`]. The node gets that
    /// body, with the plugin's changes.
    ReadBody {
        /// The largest number of bytes in memory.
        limit: usize,
        /// The rest of the hook, which runs then.
        then: BodyResume,
    },
    /// Read the beginning of the request body: up to the limit, or all of a shorter one. Later bytes are streamed to
    /// the node.
    ReadStart {
        /// The largest number of bytes for the hook.
        limit: usize,
        /// The rest of the hook, which runs then.
        then: StartResume,
    },
    /// Read the request body while other work continues, until that work ends the step. The node gets the whole body.
    ReadAlong {
        /// The largest number of bytes in memory. The reading pauses when more have arrived.
        limit: usize,
        /// The work.
        reader: Box<dyn BodyReader>,
    },
    /// Make concurrent calls to upstreams or to this gateway itself (see [`crate::outbound::GATEWAY`]), each with its
    /// own timeout and limit.
    Ask {
        /// The calls.
        calls: Vec<Call>,
        /// The rest of the hook, which runs when all have ended. It gets the results in the same order.
        then: AskResume,
    },
}

impl Step {
    /// Waits for a future, then continues with its result.
    pub fn wait<T: 'static>(
        future: impl Future<Output = T> + 'static,
        then: impl FnOnce(T, &mut Context, &Env<'_>) -> Step + 'static,
    ) -> Step {
        Step::Wait(Box::pin(async move {
            let result = future.await;
            Box::new(move |ctx: &mut Context, env: &Env<'_>| then(result, ctx, env)) as Resume
        }))
    }

    /// Replies with a status and a JSON body.
    pub fn json(status: u16, body: &Value) -> Step {
        Reply::new(status).json(body).into()
    }

    /// Replies with a status alone.
    pub fn status(status: u16) -> Step {
        Reply::new(status).into()
    }
}

/// The work of a [`Step::ReadAlong`].
pub trait BodyReader {
    /// Ready with the rest of the hook. `read` has all bytes of the body so far; `is_whole` if no more follow. It is
    /// called after each piece.
    fn poll(&mut self, read: &[u8], is_whole: bool, task: &mut task::Context<'_>) -> Poll<Resume>;
}

/// Work whose step continues with another function.
struct AndThen<F> {
    reader: Box<dyn BodyReader>,
    then: Option<F>,
}

impl<F: FnOnce(End, &mut Context, &Env<'_>) -> Step + 'static> BodyReader for AndThen<F> {
    fn poll(&mut self, read: &[u8], is_whole: bool, task: &mut task::Context<'_>) -> Poll<Resume> {
        let resume = task::ready!(self.reader.poll(read, is_whole, task));
        let then = self.then.take();
        Poll::Ready(Box::new(move |ctx: &mut Context, env: &Env<'_>| match then {
            Some(then) => resume(ctx, env).and_then(ctx, env, then),
            None => resume(ctx, env),
        }))
    }
}

/// The end of a hook's step, after all waits.
pub enum End {
    /// Continue with the next plugin.
    Next,
    /// The exchange has this reply.
    Reply(Box<Reply>),
    /// The same, with a streamed body.
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
    /// Runs `then` at the end of the step, so that a plugin that runs others can decide what to do next.
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
            Step::ReadAlong { limit, reader } => {
                let reader = Box::new(AndThen { reader, then: Some(then) });
                Step::ReadAlong { limit, reader }
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
    /// Runs a step to its end without an exchange, for example on a listener for operators; `body` is the request's.
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
                Step::ReadAlong { mut reader, .. } => {
                    ctx.body = body.take().or(ctx.body.take());
                    let read = ctx.body.clone().unwrap_or_default();
                    std::future::poll_fn(|task| reader.poll(&read, true, task)).await(ctx, env)
                }
                Step::Ask { calls, then } => {
                    let nobody = || Err(CallError("the request has no client to read from".to_owned()));
                    then(ctx, env, calls.iter().map(|_| nobody()).collect())
                }
            };
        }
    }

    /// Works as [`Step::ended`] and returns a reply with its whole body. None if the step does not reply.
    ///
    /// # Errors
    /// Returns an error if a streamed body fails.
    pub async fn settled(self, ctx: &mut Context, env: &Env<'_>, body: Vec<u8>) -> io::Result<Option<Reply>> {
        match self.ended(ctx, env, body).await {
            End::Next => Ok(None),
            End::Reply(reply) => Ok(Some(*reply)),
            End::Stream(reply, body) => body.collected(*reply, ctx).await.map(Some),
            // It has no connection to take over.
            End::Takeover(..) => Ok(Some(Reply::new(501))),
        }
    }
}

impl StreamBody {
    /// Returns the reply with its whole body.
    async fn collected(mut self, mut reply: Reply, ctx: &mut Context) -> io::Result<Reply> {
        let mut bytes = Vec::new();
        while let Some(piece) = std::future::poll_fn(|task| self.source.poll_piece_with(ctx, task)).await? {
            bytes.extend_from_slice(&piece);
        }
        if let BodyLength::Known(length) = self.length
            && length != bytes.len() as u64
        {
            return Err(io::Error::other("the body does not have its declared length"));
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

/// Continues with a response after a wait.
pub type ResponseResume = Box<dyn FnOnce(&mut Context, &Env<'_>) -> ResponseStep>;

/// Continues with a response once calls have ended, see [`ResponseStep::Ask`].
pub type ResponseAskResume = Box<dyn FnOnce(&mut Context, &Env<'_>, Vec<CallResult>) -> ResponseStep>;

/// The result of a hook for a response whose head is known and not sent.
pub enum ResponseStep {
    /// Continue with [`Context::response`] in its present form.
    Next,
    /// Replace the response. Later plugins get this response instead.
    Replace(Box<Reply>),
    /// As [`ResponseStep::Replace`], with a streamed body.
    Stream(Box<Reply>, StreamBody),
    /// Try another node, as if this one had not responded: within the upstream's retries, and only if the request can
    /// be sent again. Otherwise, and for responses of the gateway itself, the response continues.
    Retry,
    /// Wait for slow work. The response waits; the future is dropped when the client leaves.
    Wait(Pin<Box<dyn Future<Output = ResponseResume>>>),
    /// As [`Step::Ask`], while the response waits.
    Ask {
        /// The calls.
        calls: Vec<Call>,
        /// The rest of the hook, which runs when all have ended. It gets the results in the same order.
        then: ResponseAskResume,
    },
}

impl ResponseStep {
    /// Waits for a future, then continues with its result.
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

/// A streamed response body.
pub struct StreamBody {
    /// The length of the body.
    pub length: BodyLength,
    /// The source of its pieces.
    pub source: Box<dyn BodySource>,
}

/// A part of a file in memory whose bytes never change.
#[derive(Debug, Clone, Copy)]
pub struct FilePart<'f> {
    /// The file.
    pub file: BorrowedFd<'f>,
    /// Where the first byte is in the file.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
}

/// Makes a response body piece by piece, as fast as the client reads it.
pub trait BodySource {
    /// Returns the next piece, not empty; None at the end. It is not polled for a response without a body, such as
    /// one to HEAD, nor while the client has earlier pieces to read. An error cuts the response short. Dropped when
    /// the client leaves.
    fn poll_piece(&mut self, task: &mut task::Context<'_>) -> Poll<io::Result<Option<Chunk>>>;

    /// As [`BodySource::poll_piece`], for a source that works with its exchange, such as a script.
    fn poll_piece_with(
        &mut self,
        _ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<io::Result<Option<Chunk>>> {
        self.poll_piece(task)
    }

    /// Returns the rest of the body, if it is a part of a file in memory: the kernel may send it past this process.
    fn file_part(&self) -> Option<FilePart<'_>> {
        None
    }

    /// Skips bytes of [`BodySource::file_part`] that were sent.
    fn pass(&mut self, _bytes: u64) {}

    /// Announces that the gateway is about to stop. An endless body returns its last pieces and its end at the next
    /// polls, which follow at once. Other bodies need do nothing.
    fn say_goodbye(&mut self) {}
}

/// The result of reading the request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyRead {
    /// All of it is in [`Context::body`].
    Whole,
    /// It exceeds the limit; if the exchange continues, the bytes so far are forwarded unchanged.
    TooLarge,
}

/// The bytes read for a [`Step::ReadStart`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyStart {
    /// The first bytes, up to the limit.
    pub bytes: Vec<u8>,
    /// There are no more bytes.
    pub is_whole: bool,
}

impl BodyStart {
    /// Returns the beginning of a known part of a body. The caller must pass more than `limit` bytes if there are
    /// more.
    pub fn of(known: &[u8], limit: usize) -> BodyStart {
        let bytes = known[..known.len().min(limit)].to_vec();
        BodyStart { bytes, is_whole: known.len() <= limit }
    }
}

/// A response by a plugin.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// Fields besides the framing fields.
    pub headers: Vec<(Cow<'static, str>, Vec<u8>)>,
    /// The body; None for the default text of the status.
    pub body: Option<Vec<u8>>,
    /// The reason, for logs and for plugins that run others; never text from a client.
    pub reason: Option<&'static str>,
    /// It is a forwarded response of another server: a missing Content-Type is not added.
    pub is_passed_on: bool,
    /// The body length for a response to HEAD, if it differs from the length of `body`.
    pub unsent_length: Option<u64>,
    /// The client gets no response: its connection is closed, or only its stream in HTTP versions with shared
    /// connections. The status is for logs.
    pub is_silent: bool,
}

impl Reply {
    /// Returns a response with the default text of its status.
    pub fn new(status: u16) -> Reply {
        Reply { status, ..Reply::default() }
    }

    /// Returns "no response"; see [`Reply::is_silent`]. Logs show nginx's status for it.
    pub fn silent() -> Reply {
        Reply { status: 444, is_silent: true, ..Reply::default() }
    }

    /// Adds a field.
    #[must_use]
    pub fn header(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Vec<u8>>) -> Reply {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the reason; see [`Reply::reason`].
    #[must_use]
    pub fn because(mut self, reason: &'static str) -> Reply {
        self.reason = Some(reason);
        self
    }

    /// Sets this body unchanged.
    #[must_use]
    pub fn text(mut self, body: impl Into<Vec<u8>>) -> Reply {
        self.body = Some(body.into());
        self
    }

    /// Sets this body as compact JSON and a line end, as APISIX writes tables.
    #[must_use]
    pub fn json(self, body: &Value) -> Reply {
        self.text(format!("{body}\n"))
    }
}
