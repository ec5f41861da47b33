//! The state of the peer's control stream, and the priorities that came on it.

use crate::multiplex::priority::Priority;

/// The most priorities of requests that have not begun.
pub(super) const EARLY_PRIORITIES: usize = 128;

/// The reading of the control stream.
#[derive(Debug, Default)]
pub(super) struct Control {
    /// The first frame was taken.
    pub(super) greeted: bool,
    /// An incomplete frame.
    pub(super) piece: Vec<u8>,
    /// Bytes of an ignored frame that are to come.
    pub(super) skip: u64,
    /// The last identifier of a GOAWAY frame.
    pub(super) goaway: Option<u64>,
    /// The last identifier of a MAX_PUSH_ID frame.
    pub(super) max_push: Option<u64>,
}

impl Control {
    /// Returns the memory of an incomplete frame.
    pub(super) fn memory(&self) -> usize {
        self.piece.capacity()
    }
}

/// Priorities from PRIORITY_UPDATE frames.
#[derive(Debug, Default)]
pub(super) struct Priorities {
    /// Of requests that have not begun; the newest last.
    pub(super) early: Vec<(u64, Priority)>,
    /// Of requests that have begun, for the exchanges.
    pub(super) changed: Vec<(u64, Priority)>,
}

impl Priorities {
    /// Takes the priority of a request that begins.
    pub(super) fn take(&mut self, id: u64) -> Option<Priority> {
        let at = self.early.iter().position(|(early, _)| *early == id)?;
        Some(self.early.remove(at).1)
    }
}
