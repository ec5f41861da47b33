//! Reading the request body while a plugin works with its beginning.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use sigma_http::{Fault, FaultKind, Frame};
use sigma_net::deadline;
use sigma_plugin::step::{BodyReader, Resume};

use super::Exchange;
use super::phases::make_room;
use super::transfer::client_gone;

/// The next event of a body that is read along.
enum Event {
    /// The work has ended the step
    Ended(Resume),
    /// More of the body has arrived
    Frame(Frame),
}

impl Exchange<'_, '_> {
    /// Reads the request body, up to its end or beyond `limit`, until `reader` ends the step. A body that was read to
    /// its end is in [`sigma_plugin::Context::body`].
    pub(super) async fn read_along(
        &mut self,
        limit: usize,
        mut reader: Box<dyn BodyReader>,
    ) -> Result<Resume, Fault> {
        self.limit_body()?;
        if self.scratch.ctx.body.is_none() && self.down.body_length().is_empty() {
            self.scratch.ctx.body = Some(self.scratch.body.take_read());
        }
        if self.scratch.ctx.body.is_none() {
            self.invite_body();
        }
        let seen = self.scratch.body.read().len();
        let ended = loop {
            match self.next_event(limit, &mut *reader).await? {
                Event::Ended(resume) => break resume,
                Event::Frame(Frame::Data(data)) => {
                    make_room(self.scratch.body.reading(), data.len())?;
                    self.scratch.body.reading().extend_from_slice(&data);
                }
                Event::Frame(_) => self.scratch.ctx.body = Some(self.scratch.body.take_read()),
            }
            self.count_bodies();
        };
        self.scratch.body.intake.pause(deadline::now_ms());
        self.down.deadline().clear();
        if let Some(copy) = &self.scratch.ctx.request_copy {
            let known = self.scratch.ctx.body.as_deref().unwrap_or(self.scratch.body.read());
            known.get(seen..).into_iter().for_each(|new| copy.see(new));
        }
        Ok(ended)
    }

    async fn next_event(&mut self, limit: usize, reader: &mut dyn BodyReader) -> Result<Event, Fault> {
        let is_whole = self.scratch.ctx.body.is_some();
        let reads = !is_whole && self.scratch.body.read().len() <= limit;
        if reads {
            let view = Rc::clone(&self.view);
            let received = self.down.bytes_received();
            let timeouts = &view.snapshot.settings.timeouts;
            let wait_ms = self.scratch.body.intake.wait(deadline::now_ms(), received, timeouts)?;
            self.down.deadline().set(wait_ms);
        } else {
            self.scratch.body.intake.pause(deadline::now_ms());
        }
        let (down, scratch) = (&mut self.down, &*self.scratch);
        let known = scratch.ctx.body.as_deref().unwrap_or(scratch.body.read());
        poll_fn(|task| {
            if let Poll::Ready(resume) = reader.poll(known, is_whole, task) {
                return Poll::Ready(Ok(Event::Ended(resume)));
            }
            // The 100 may not have left yet.
            if let Poll::Ready(Err(fault)) = down.poll_flush(task) {
                return Poll::Ready(Err(fault));
            }
            if !reads {
                return down.poll_departure(task).map(|()| Err(client_gone()));
            }
            if let Poll::Ready(frame) = down.poll_frame(task) {
                return Poll::Ready(frame.map(Event::Frame));
            }
            let late = Fault::new(FaultKind::RequestBodyTimeout, "the request body stalled");
            down.deadline().poll_expired(task).map(|()| Err(late))
        })
        .await
    }
}
