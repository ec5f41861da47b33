//! Choosing an endpoint, connecting to it, and judging its health.

mod alt_svc;
mod announcements;
pub mod balance;
pub mod dns;
pub mod endpoint;
pub mod feed;
mod hashing;
pub mod health;
pub mod identity;
mod lock;
pub mod overload;

pub mod dial;
pub mod pool;
mod quic;
pub mod watch;
