//! Packets that arrive after their connection id was retired.
//!
//! A client that changes its address takes another connection id and retires the former one. Packets from the former
//! address may arrive after packets from the new one, which can take a way through another worker. A stateless reset for
//! such a packet would end the connection, so late packets are dropped, as if the network had lost them.

use std::collections::VecDeque;

use quinn_proto::ConnectionHandle;

use super::ids::Id;

/// The most ids of an endpoint that are known. Their packets are late by milliseconds.
const KNOWN_MAX: usize = 256;

/// The connection ids that the peers of open connections have left, the latest last.
#[derive(Default)]
pub(super) struct LeftIds(VecDeque<(Id, ConnectionHandle)>);

impl LeftIds {
    /// Notes that the peer of a connection uses another id from now on.
    pub(super) fn left(&mut self, id: Id, by: ConnectionHandle) {
        if self.0.len() == KNOWN_MAX {
            self.0.pop_front();
        }
        self.0.push_back((id, by));
    }

    /// Returns the connection whose peer has left the id.
    pub(super) fn owner(&self, id: &Id) -> Option<ConnectionHandle> {
        self.0.iter().find(|(known, _)| known == id).map(|(_, by)| *by)
    }

    /// Forgets the ids of a connection that has ended: its handle may become another's.
    pub(super) fn forget(&mut self, ended: ConnectionHandle) {
        self.0.retain(|(_, by)| *by != ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_known_until_their_connection_ends() {
        let mut ids = LeftIds::default();
        let id = |number: usize| -> Id {
            let mut id = Id::default();
            id[..8].copy_from_slice(&number.to_be_bytes());
            id
        };
        ids.left(id(0), ConnectionHandle(7));
        assert_eq!((ids.owner(&id(0)), ids.owner(&id(1))), (Some(ConnectionHandle(7)), None));
        for number in 1..=KNOWN_MAX {
            ids.left(id(number), ConnectionHandle(number % 2));
        }
        assert_eq!((ids.0.len(), ids.owner(&id(0))), (KNOWN_MAX, None));
        ids.forget(ConnectionHandle(1));
        assert_eq!((ids.owner(&id(1)), ids.owner(&id(2))), (None, Some(ConnectionHandle(0))));
    }
}
