//! Attempts at nodes: the guards of an upstream, the choice of a node, time limits, results and retries.

pub(crate) mod attempts;
pub(crate) mod fastcgi;
pub(crate) mod guards;
pub(crate) mod judge;
pub(crate) mod outbound;
pub(crate) mod passage;
pub(crate) mod picked;
pub(crate) mod refuser;
pub(crate) mod retry;
pub(crate) mod target;
pub(crate) mod time_limit;
