//! A response that a script writes piece by piece.
//!
//! The script runs when the client has taken the pieces before: so a slow client holds it back, and what waits is bounded
//! by the limit of the output.

use std::io;
use std::rc::Rc;
use std::task::{self, Poll, ready};

use sigma_http::{BodyLength, Chunk};
use sigma_plugin::{BodySource, Context, Env, Step, StreamBody};

use super::exchange::{Exchange, Surroundings};
use super::run::{Finish, Outcome, Progress, Run};
use crate::{hooks, reply};

/// The body of a response whose script continues.
struct ScriptBody {
    run: Option<Run>,
    exchange: Rc<Exchange>,
    surroundings: Surroundings,
    then: Option<Finish>,
    /// Bytes on their way, and how many of them were taken.
    leaving: Vec<u8>,
    taken: usize,
    /// The script failed: the body is cut off after the bytes before.
    is_broken: bool,
}

/// Sends the head and the bytes so far, while the script continues.
pub(super) fn step(run: Run, exchange: Rc<Exchange>, then: Finish, env: &Env<'_>) -> Step {
    let head = reply::head(&exchange);
    let body = ScriptBody {
        run: Some(run),
        exchange,
        surroundings: Surroundings::of(env),
        then: Some(then),
        leaving: Vec::new(),
        taken: 0,
        is_broken: false,
    };
    Step::Stream(Box::new(head), StreamBody { length: BodyLength::Streamed, source: Box::new(body) })
}

impl ScriptBody {
    /// The next bytes that leave.
    fn piece(&mut self) -> Option<Chunk> {
        if self.taken == self.leaving.len() {
            (self.leaving, self.taken) = (self.exchange.take_due(self.run.is_none())?, 0);
        }
        Chunk::next_of(&self.leaving, &mut self.taken)
    }

    /// Runs the script until it waits or ends.
    fn advance(&mut self, ctx: &mut Context) {
        let Some(run) = &mut self.run else { return };
        match self.surroundings.with(|env| run.advanced(ctx, env)) {
            Progress::Waits => {}
            Progress::NeedsBody { .. } => run.lacks_body(),
            Progress::Ended(outcome) => self.finish(outcome, ctx),
        }
    }

    /// Ends the response as the hook ends it.
    fn finish(&mut self, outcome: Outcome, ctx: &mut Context) {
        self.is_broken = matches!(outcome, Outcome::Failed);
        let (Some(run), Some(then)) = (self.run.take(), self.then.take()) else { return };
        if self.is_broken {
            return;
        }
        let step = self.surroundings.with(|env| then(outcome, run.engine(), &self.exchange, ctx, env));
        if let Step::Reply(reply) = step {
            self.is_broken = reply.is_silent || reply.reason == Some(hooks::FAILED);
            // The hook has taken the rest of the output.
            self.exchange.output.replace(Some(reply.body.unwrap_or_default()));
        }
    }
}

impl BodySource for ScriptBody {
    fn poll_piece(&mut self, _: &mut task::Context<'_>) -> Poll<io::Result<Option<Chunk>>> {
        Poll::Ready(Err(io::Error::other("a script cannot go on without its exchange")))
    }

    fn poll_piece_with(
        &mut self,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<io::Result<Option<Chunk>>> {
        loop {
            if let Some(piece) = self.piece() {
                return Poll::Ready(Ok(Some(piece)));
            }
            let Some(run) = &mut self.run else {
                return Poll::Ready(match self.is_broken {
                    true => Err(io::Error::other(hooks::FAILED)),
                    false => Ok(None),
                });
            };
            // The client has room again.
            if !run.goes_on() {
                ready!(run.poll_woken(task));
            }
            self.advance(ctx);
        }
    }
}
