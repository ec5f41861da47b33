//! The data plane: listen, route, exchange.
//!
//! The steps of a request and their modules: accept (`listen`) → decode (`sigma-wire`) → open (`exchange`) → route
//! (`route`) → rewrite and access (`exchange`) → balance and forward (`attempts`, `exchange/forward`) → transfer
//! (`exchange/transfer`) → response (`exchange/response`, `exchange/delivery`) → fault (`attempts`, `exchange/reply`)
//! → finish (`exchange/finish`). Sessions of other protocols than HTTP branch off after the accept, to `flow`.

mod addresses;
mod admit;
mod attempts;
mod budget;
mod caches;
pub mod challenges;
pub mod compile;
mod connection;
mod datagrams;
mod drain;
mod exchange;
mod explain;
mod fastcgi;
mod flow;
pub mod gateway;
mod guards;
mod heartbeat;
pub mod inheritance;
mod judge;
mod listen;
pub mod live;
mod outbound;
mod passage;
mod pressure;
mod quic_state;
mod refusals;
mod refuser;
mod retry;
pub mod route;
mod scratch_pool;
pub mod snapshot;
pub mod tap;
mod target;
mod time_limit;
mod withdrawal;
mod worker;

pub use compile::cache::disk as cache_disk;
pub use compile::{Changed, Compiler, Failure};
pub use explain::{Considered, Explained, ExplainedRequest, Met, explain, explain_live};
pub use flow::udp::{Passing, UdpSession};
pub use gateway::{Gateway, Prepared, Receiving};
pub use heartbeat::Heartbeat;
pub use inheritance::{BindError, Inheritance};
#[cfg(any(test, feature = "fuzzing"))]
pub use listen::fuzzing;
pub use pressure::Pressure;
pub use snapshot::Snapshot;
