//! Packets that arrive after their connection id was retired.
//!
//! A client that changes its address takes another connection id and retires the former one. Packets from the former
//! address may arrive after packets from the new one, which can take a way through another worker. A stateless reset for
//! such a packet would end the connection, so late packets are dropped, as if the network had lost them.

use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use super::ids::Id;
use super::state::Shared;

/// The most ids of an endpoint that are known. Their packets are late by milliseconds.
const KNOWN_MAX: usize = 256;

/// The connection ids that peers of an endpoint have left, the latest last.
#[derive(Default)]
pub(super) struct LeftIds(VecDeque<(Id, Weak<Shared>)>);

impl LeftIds {
    /// Notes the id of a packet of a connection.
    pub(super) fn used(&mut self, id: Id, by: &Rc<Shared>) {
        let former = by.used_id.replace(Some(id)).filter(|former| *former != id);
        let Some(former) = former else { return };
        if self.0.len() == KNOWN_MAX {
            self.0.pop_front();
        }
        self.0.push_back((former, Rc::downgrade(by)));
    }

    /// Returns true if the peer of a connection that is still open has left the id.
    pub(super) fn is_of_open(&self, id: Id) -> bool {
        let is_open = |by: &Weak<Shared>| by.upgrade().is_some_and(|by| by.inner.borrow().lost.is_none());
        self.0.iter().any(|(known, by)| *known == id && is_open(by))
    }
}
