//! Response bodies that are held back until they are whole, and then replaced.

use sigma_http::{Chunk, Fault, FaultKind, Headers};
use sigma_plugin::{Context, Pieces, Transform};

use sigma_plugin_kit::budget::Share;
use sigma_plugin_kit::changed_body::remove_digests;
use sigma_plugin_kit::response_body::{Encoding, Undecoded};

/// Makes a body of another.
pub(crate) trait Remake {
    /// Why a body that there is no memory for breaks off.
    const FULL: Fault;

    /// Returns the replacement of `body`; None if there can be none, and the log says why.
    fn remade(&self, ctx: &Context, body: &[u8]) -> Option<Vec<u8>>;
}

const TOO_LONG: Fault = Fault::new(FaultKind::ResponseBodyTooLarge, "the body exceeds max_resp_body_size");
const CODED: Fault = Fault::new(FaultKind::ResponseCoding, "the body has an unexpected content coding");
const BROKEN: Fault = Fault::new(FaultKind::ResponseCoding, "the body does not match its Content-Encoding");
const FAILED: Fault = Fault::new(FaultKind::ResponseCoding, "cannot transform the body");

/// One body. It breaks off if it exceeds the limit, or cannot be replaced, so that clients notice that it is
/// incomplete.
pub(crate) struct WholeBody<R> {
    remake: R,
    encoding: Encoding,
    limit: usize,
    held: Vec<u8>,
    share: Share,
}

impl<R: Remake> WholeBody<R> {
    pub(crate) fn new(remake: R, encoding: Encoding, limit: usize, share: Share) -> WholeBody<R> {
        WholeBody { remake, encoding, limit, held: Vec::new(), share }
    }
}

impl<R: Remake> WholeBody<R> {
    /// Returns the held body without its coding: files that were stored compressed arrive compressed for every request.
    fn decoded(&mut self) -> Result<Vec<u8>, Fault> {
        let held = std::mem::take(&mut self.held);
        if self.encoding == Encoding::Identity {
            return Ok(held);
        }
        let room = self.share.room();
        let decoded = self.encoding.decoded(&held, self.limit.min(room)).map_err(|reason| match reason {
            Undecoded::TooLong if room < self.limit => R::FULL,
            Undecoded::TooLong => TOO_LONG,
            Undecoded::Broken => BROKEN,
            Undecoded::Unknown => CODED,
        })?;
        self.share.grow(decoded.len());
        Ok(decoded)
    }
}

impl<R: Remake> Transform for WholeBody<R> {
    fn data(&mut self, _cx: &mut Context, data: Chunk, out: &mut Pieces) {
        if out.fault().is_some() {
            return;
        }
        if self.encoding == Encoding::Other {
            out.fail(CODED);
        } else if data.len() > self.limit - self.held.len() {
            out.fail(TOO_LONG);
        } else if data.len() > self.share.room() {
            out.fail(R::FULL);
        } else {
            self.share.grow(data.len());
            self.held.extend_from_slice(&data);
        }
    }

    fn end(&mut self, ctx: &mut Context, trailers: Option<&mut Headers>, out: &mut Pieces) {
        trailers.into_iter().for_each(remove_digests);
        match self.decoded().map(|body| self.remake.remade(ctx, &body)) {
            Ok(Some(made)) => out.bytes(&made),
            Ok(None) => out.fail(FAILED),
            Err(fault) => out.fail(fault),
        }
    }
}
