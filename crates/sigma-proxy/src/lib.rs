//! The data plane: listen, route, exchange.
//!
//! The steps of a request and their modules: accept (`edge/listen`) → decode (`sigma-wire`) → open (`exchange`) → route
//! (`route`) → rewrite and access (`exchange`) → balance and forward (`attempt`, `exchange/forward`) → transfer
//! (`exchange/transfer`) → response (`exchange/response`, `exchange/delivery`) → fault (`attempt`, `exchange/reply`)
//! → finish (`exchange/finish`). Sessions of other protocols than HTTP branch off after the accept, to `flow`.

mod attempt;
pub mod compile;
mod edge;
mod exchange;
mod flow;
mod observe;
pub mod route;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;
pub mod snapshot;
mod worker;

pub use compile::cache::disk as cache_disk;
pub use compile::{Changed, Compiler, Failure};
pub use edge::challenges;
#[cfg(any(test, feature = "fuzzing"))]
pub use edge::listen::fuzzing;
pub use flow::udp::{Passing, UdpSession};
pub use observe::explain::{Considered, Explained, ExplainedRequest, Met, explain, explain_live};
pub use observe::{live, tap};
pub use snapshot::Snapshot;
pub use worker::gateway::{Gateway, Prepared, Receiving};
pub use worker::heartbeat::Heartbeat;
pub use worker::inheritance::{BindError, Inheritance};
pub use worker::pressure::Pressure;
pub use worker::{gateway, inheritance};
