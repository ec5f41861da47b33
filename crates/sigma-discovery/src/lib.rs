//! Registries of services: what they say becomes lists of nodes.
//!
//! A registry is one file, which implements [`Source`](source::Source): it asks, and yields what the
//! registry knows. Everything else is the same for all of them: one [`Hub`](hub::Hub) asks each thing
//! once however many upstreams want it, and tells them; a [`Guard`](guard::Guard) doubts lists that
//! shrink at once; the [`LastLists`](last_good::LastLists) are kept in a file for the next start. To
//! add a registry: its file, a member of [`Registry`], and one line in [`Registries::follow`].

mod consul;
mod consul_kv;
mod etcd;
mod eureka;
mod guard;
mod http;
mod hub;
pub mod kept_file;
mod kubernetes;
mod last_good;
mod list_watch;
mod nacos;
mod node;
mod polling;
mod registries;
#[cfg(test)]
mod scripted;
mod source;
mod subscription;
mod tally;

pub use registries::{Registries, Wanted};
pub use sigma_config::discovery::Registry;
pub use subscription::Subscription;
pub use tally::Report;
