//! The response on its way down: what plugins make of its head and body.

use std::collections::VecDeque;

use sigma_http::{BodyLength, Chunk, Fault, Frame, HeaderId, Headers};
use sigma_plugin::{BodyFilter, Chain, Context, Env, Phase, Pieces};

/// Body filters of one response, in a row, and what they have passed on so far.
#[derive(Default)]
pub(super) struct BodyRow {
    filters: Vec<Box<dyn BodyFilter>>,
    ready: VecDeque<Frame>,
    /// A filter gave the response up.
    fault: Option<Fault>,
}

impl BodyRow {
    /// Runs the header filters, then asks for body filters. Returns the row and the length of the
    /// body that will leave it.
    pub(super) fn begin<'c>(
        chains: impl Iterator<Item = &'c Chain> + Clone,
        cx: &mut Context,
        env: &Env<'_>,
        length: BodyLength,
    ) -> (BodyRow, BodyLength) {
        for entry in chains.clone().flat_map(|chain| chain.phase(Phase::HeaderFilter)) {
            if cx.admits(entry) {
                entry.plugin.header_filter(cx, env);
            }
        }
        let mut row = BodyRow::default();
        for entry in chains.flat_map(|chain| chain.phase(Phase::BodyFilter)) {
            if cx.admits(entry) {
                row.filters.extend(entry.plugin.body_filter(cx, env));
            }
        }
        // Stable: otherwise the order is that of the plugins.
        row.filters.sort_by_key(|filter| filter.encodes());
        let leaving = row.filters.iter().fold(length, |length, filter| filter.length(length));
        if leaving != length {
            cx.response.headers.remove(HeaderId::ContentLength);
            if let BodyLength::Known(bytes) = leaving {
                cx.response
                    .headers
                    .add(HeaderId::ContentLength, itoa::Buffer::new().format(bytes).as_bytes());
            }
        }
        (row, leaving)
    }

    /// Whether frames pass untouched.
    pub(super) fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// Sends a frame through the row.
    pub(super) fn push(&mut self, frame: Frame, cx: &mut Context) {
        match frame {
            Frame::Data(data) => self.data(data, cx),
            Frame::Trailers(mut trailers) => {
                self.end(Some(&mut trailers), cx);
                self.ready.push_back(Frame::Trailers(trailers));
            }
            Frame::End => {
                self.end(None, cx);
                self.ready.push_back(Frame::End);
            }
        }
    }

    /// The next frame that has passed all filters.
    pub(super) fn pop(&mut self) -> Option<Frame> {
        self.ready.pop_front()
    }

    /// Why a filter gave the response up; it is to be cut then.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Whether no frame waits to be passed on.
    pub(super) fn is_dry(&self) -> bool {
        self.ready.is_empty()
    }

    fn data(&mut self, data: Chunk, cx: &mut Context) {
        let mut pieces = Pieces::default();
        pieces.frame(Frame::Data(data));
        self.run(0, pieces, cx);
    }

    /// Sends pieces through the filters from `first` on.
    fn run(&mut self, first: usize, mut pieces: Pieces, cx: &mut Context) {
        for filter in &mut self.filters[first..] {
            let mut next = Pieces::default();
            for frame in pieces.drain() {
                if let Frame::Data(data) = frame {
                    filter.data(cx, data, &mut next);
                }
            }
            self.fault = self.fault.or(next.fault());
            pieces = next;
        }
        self.ready.extend(pieces.drain());
    }

    /// Each filter in turn gives up what it holds back, and the ones after it see that.
    fn end(&mut self, mut trailers: Option<&mut Headers>, cx: &mut Context) {
        for at in 0..self.filters.len() {
            let mut pieces = Pieces::default();
            self.filters[at].end(cx, trailers.as_deref_mut(), &mut pieces);
            self.fault = self.fault.or(pieces.fault());
            self.run(at + 1, pieces, cx);
        }
    }
}
