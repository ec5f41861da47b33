//! A copy of a request body that passes, for plugins that only look.

use std::cell::{Cell, Ref, RefCell};

use sigma_buffer::held::{self, Held};

/// The beginning of a body that is passed on while it is copied.
#[derive(Debug, Default)]
pub struct BodyCopy {
    limit: Cell<usize>,
    bytes: RefCell<Vec<u8>>,
    held: RefCell<Held>,
    /// Bytes are missing, since there was no memory for them.
    cut: Cell<bool>,
}

impl BodyCopy {
    /// A piece that passes. It is left out, and everything behind it, where memory for clients has no room.
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

    /// Copies at least `limit` bytes.
    pub(crate) fn raise(&self, limit: usize) {
        self.limit.set(self.limit.get().max(limit));
    }

    /// The bytes copied so far.
    pub(crate) fn bytes(&self) -> Ref<'_, Vec<u8>> {
        self.bytes.borrow()
    }

    /// Whether nothing that has passed is missing. A copy that fills its limit may miss something.
    pub(crate) fn is_whole(&self) -> bool {
        !self.cut.get() && self.bytes.borrow().len() < self.limit.get()
    }
}
