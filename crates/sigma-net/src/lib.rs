//! The base of the gateway: worker threads, sockets, deadlines. It does not know HTTP.
//!
//! All data of a worker on the request path live on its own thread; see [`worker`].

#[cfg(feature = "profiles")]
pub mod allocations;
pub mod allocator;
pub mod answers;
pub mod datagram;
pub mod deadline;
pub mod descriptors;
mod dial_pace;
pub mod exec;
pub mod latest;
pub mod limits;
pub mod listen;
pub mod memory;
mod original_destination;
mod pages;
pub mod quic;
#[cfg(feature = "profiles")]
pub mod sampling;
pub mod sandbox;
pub mod secret;
pub mod shared_file;
pub mod signals;
#[cfg(feature = "simulation")]
pub mod simulation;
mod socket_options;
pub mod sockets;
pub mod splice;
pub mod stream;
pub mod tcp_options;
mod thread_time;
pub mod tls;
pub mod uring;
pub mod wall_clock;
pub mod worker;

pub use deadline::Deadline;
pub use listen::{BoundSocket, Listening};
pub use sockets::Sockets;
pub use stream::{Peer, Stream};
pub use tcp_options::TcpOptions;
pub use thread_time::{machine_time, thread_time};
