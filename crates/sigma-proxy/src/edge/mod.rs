//! The edge towards clients: connections and datagrams are accepted or rejected here, before there is a request.

pub(crate) mod addresses;
pub(crate) mod admit;
pub mod challenges;
pub(crate) mod connection;
pub(crate) mod datagrams;
pub(crate) mod listen;
pub(crate) mod quic_state;
pub(crate) mod refusals;
pub(crate) mod withdrawal;
