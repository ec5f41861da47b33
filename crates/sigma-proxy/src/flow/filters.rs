//! The filters of a session: plugins that read and change its bytes.

use std::io;
use std::task::{Context, Poll};

use sigma_buffer::held::CountedBytes;
use sigma_http::Chunk;
use sigma_net::Stream;
use sigma_plugin::pace::Direction;
use sigma_plugin::{FlowEnd, FlowFilter};

/// All filters of a session, in the order of their plugins.
pub(super) struct Filters {
    all: Vec<Box<dyn FlowFilter>>,
    to_node: Passage,
    to_client: Passage,
    /// A filter has ended the session in order.
    is_closed: bool,
}

/// One direction through the filters.
#[derive(Default)]
struct Passage {
    /// Bytes after the last filter, and the length of the part already taken.
    out: Vec<u8>,
    taken: usize,
    /// Memory of `out`.
    held: CountedBytes,
    /// The side that the bytes come from sends no more.
    has_all: bool,
    /// Filters that have ended, from the side that the bytes come from.
    ended: usize,
}

/// The next step of a direction.
pub(super) enum Next {
    /// Bytes to write
    Piece(Chunk),
    /// The end
    End,
    /// More bytes are to be read
    Read,
}

impl Filters {
    /// Returns the filters of a session. None without any.
    pub(super) fn new(all: Vec<Box<dyn FlowFilter>>) -> Option<Box<Filters>> {
        let filters =
            Filters { all, to_node: Passage::default(), to_client: Passage::default(), is_closed: false };
        (!filters.all.is_empty()).then(|| Box::new(filters))
    }

    fn passage(&mut self, direction: Direction) -> &mut Passage {
        match direction {
            Direction::ToNode => &mut self.to_node,
            Direction::ToClient => &mut self.to_client,
        }
    }

    /// Returns the filter at this place, from the side that the bytes come from.
    fn at(&mut self, direction: Direction, place: usize) -> &mut dyn FlowFilter {
        let last = self.all.len() - 1;
        match direction {
            Direction::ToNode => &mut *self.all[place],
            Direction::ToClient => &mut *self.all[last - place],
        }
    }

    /// Accepts bytes of a side; none at their end.
    pub(super) fn push(&mut self, direction: Direction, data: &[u8]) {
        let is_end = data.is_empty();
        self.passage(direction).has_all |= is_end;
        self.at(direction, 0).push(direction, data, is_end);
    }

    /// Reads more of a side; ready when there are new bytes, or the end.
    pub(super) fn poll_take(
        &mut self,
        direction: Direction,
        from: &mut Stream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut chunk = Chunk::empty();
        let read = std::task::ready!(from.poll_fill(cx, &mut chunk))?;
        self.push(direction, if read == 0 { &[] } else { &chunk });
        Poll::Ready(Ok(()))
    }

    /// Returns the next step of a direction. Pending if a filter holds its bytes.
    ///
    /// # Errors
    /// Returns an error if a filter has failed.
    pub(super) fn poll(&mut self, direction: Direction, cx: &mut Context<'_>) -> Poll<Result<Next, FlowEnd>> {
        loop {
            let passage = self.passage(direction);
            if let Some(piece) = Chunk::next_of(&passage.out, &mut passage.taken) {
                return Poll::Ready(Ok(Next::Piece(piece)));
            }
            (passage.out, passage.taken) = (Vec::new(), 0);
            passage.held.set(0);
            if self.is_closed || self.passage(direction).ended == self.all.len() {
                return Poll::Ready(Ok(Next::End));
            }
            match self.poll_last(direction, cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(FlowEnd::Closed)) => {
                    self.is_closed = true;
                    // The other direction ends, too.
                    cx.waker().wake_by_ref();
                }
                Poll::Ready(Err(FlowEnd::Failed)) => return Poll::Ready(Err(FlowEnd::Failed)),
                Poll::Pending => {
                    let may_read =
                        !self.passage(direction).has_all && self.at(direction, 0).has_room(direction);
                    return if may_read { Poll::Ready(Ok(Next::Read)) } else { Poll::Pending };
                }
            }
        }
    }

    /// Moves bytes from one filter to the next, the last ones first; ready if some have moved.
    fn poll_last(&mut self, direction: Direction, cx: &mut Context<'_>) -> Poll<Result<(), FlowEnd>> {
        let last = self.all.len() - 1;
        for place in (self.passage(direction).ended..=last).rev() {
            if place < last && !self.at(direction, place + 1).has_room(direction) {
                continue;
            }
            let Poll::Ready(next) = self.at(direction, place).poll_next(direction, cx) else { continue };
            let next = next?;
            if next.is_none() {
                self.passage(direction).ended = place + 1;
            }
            match next {
                _ if place < last => {
                    let is_end = next.is_none();
                    let bytes = next.unwrap_or_default();
                    self.at(direction, place + 1).push(direction, &bytes, is_end);
                }
                Some(bytes) => {
                    let passage = self.passage(direction);
                    passage.held.set(bytes.capacity());
                    (passage.out, passage.taken) = (bytes, 0);
                }
                None => {}
            }
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }
}
