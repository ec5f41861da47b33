//! The data plane: listen, route, exchange.
//!
//! The ten steps of a request, which `ARCHITECTURE.md` draws, and the files of each:
//!
//! - **Accept**: `listen`; limits: `admit`, `addresses`.
//! - **Decode**: `sigma-wire`; the facts about the connection: `connection`.
//! - **Open**: `exchange/mod`; forged fields: `exchange/sanitize`; progress: `exchange/stage`.
//! - **Route**: methods and paths: `exchange/target`, `route/normalize`, `route/ambiguous`; candidates by host and
//!   path: `route/tree`; conditions: `route/candidate`; variables: `exchange/request`; load shedding: `pressure`.
//! - **Rewrite and access**: plugins: `exchange/phases`; their calls to services: `outbound`; calls to this
//!   gateway: `exchange/ask`; fields for the node: `exchange/headers`; HTTP cache: `exchange/cache`,
//!   `exchange/fetch`.
//! - **Balance**: attempts: `exchange/forward`, `attempts`; retry policy: `retry`; hedging: `exchange/hedge`;
//!   deadlines: `time_limit`; upstreams of several others: `exchange/among`; limits and circuit breakers of an
//!   upstream: `guards`, `passage`, `exchange/guarded`.
//! - **Forward**: both directions: `exchange/transfer`; request body: `exchange/upload`; after a 101:
//!   `exchange/upgrade`, `exchange/tunnel`; FastCGI, Dubbo and nodes without HTTP: `fastcgi`, `exchange/dubbo`,
//!   `exchange/bridge`.
//! - **Response**: `exchange/response`, `exchange/delivery`; after the node has finished: `exchange/remainder`;
//!   local replies: `exchange/local_reply`.
//! - **Fault?**: `attempts`, `judge`, `exchange/reply`.
//! - **Finish**: `exchange/finish`; operators who watch: `live`, `tap`.
//!
//! A listener with `stream` gives its connections to `flow` after Accept. The end of a worker is `drain`.
//! `inheritance` is the state that passes to the next generation of workers, or to the next process.

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
mod refusals;
mod retry;
pub mod route;
pub mod snapshot;
pub mod tap;
mod target;
mod time_limit;
mod withdrawal;
mod worker;

pub use compile::cache::disk as cache_disk;
pub use compile::{Changed, Compiler, Failure};
pub use explain::{Considered, Explained, Met, Question, explain, explain_live};
pub use flow::udp::{Passing, UdpSession};
pub use gateway::{Gateway, Prepared, Receiving};
pub use heartbeat::Heartbeat;
pub use inheritance::{BindError, Inheritance};
#[cfg(any(test, feature = "fuzzing"))]
pub use listen::fuzzing;
pub use pressure::Pressure;
pub use snapshot::Snapshot;
