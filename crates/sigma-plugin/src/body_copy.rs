//! A copy of a request body in transit, for plugins that only read it.

use std::cell::{Cell, Ref, RefCell};

use sigma_buffer::held::{self, CountedBytes};

/// The first bytes of a body, copied in transit.
#[derive(Debug, Default)]
pub struct BodyCopy {
    limit: Cell<usize>,
    bytes: RefCell<Vec<u8>>,
    held: RefCell<CountedBytes>,
    /// Bytes are missing, as there was no memory for them.
    cut: Cell<bool>,
}

impl BodyCopy {
    /// Copies a piece. If the memory for clients is full, this piece and all later ones are omitted.
    pub fn see(&self, data: &[u8]) {
        let mut bytes = self.bytes.borrow_mut();
        let room = self.limit.get().saturating_sub(bytes.len());
        let wanted = &data[..data.len().min(room)];
        if self.cut.get() || wanted.len() > held::body_room() {
            self.cut.set(true);
            return;
        }
        bytes.extend_from_slice(wanted);
        self.held.borrow_mut().set(bytes.capacity());
    }

    /// Sets the limit to at least `limit` bytes.
    pub(crate) fn raise(&self, limit: usize) {
        self.limit.set(self.limit.get().max(limit));
    }

    /// The bytes copied so far.
    pub(crate) fn bytes(&self) -> Ref<'_, Vec<u8>> {
        self.bytes.borrow()
    }

    /// Returns true if the copy has every byte so far. A copy at its limit may lack bytes.
    pub(crate) fn is_whole(&self) -> bool {
        !self.cut.get() && self.bytes.borrow().len() < self.limit.get()
    }
}
