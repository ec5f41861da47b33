//! Service registries: their data become node lists. Also the documents of configuration centres, which are followed
//! ([`centres`]).
//!
//! A registry is one file, which implements [`Source`](source::Source): it sends requests, and yields listings. The
//! rest is common: one [`Hub`](hub::Hub) requests each thing once for all upstreams; a [`Guard`](guard::Guard) holds
//! back lists that suddenly shrink; the [`LastLists`](last_good::LastLists) are stored in a file for the next start.
//! To add a registry, write its file, a member of [`Registry`], and one line in [`Registries::follow`].

mod centres;
mod consul;
mod consul_kv;
mod docker;
mod etcd;
mod eureka;
mod guard;
mod http;
mod hub;
pub mod kept_file;
mod kubernetes;
mod labels;
mod last_good;
mod list_watch;
mod nacos;
mod node;
mod nomad;
mod polling;
mod registration;
mod registries;
#[cfg(test)]
mod scripted;
#[cfg(feature = "simulation")]
pub mod simulation;
mod source;
mod subscription;
mod tally;

pub use centres::{DocumentFollower, DocumentReport, FollowedDocument, FollowedDocuments};
pub use registration::{RegistrationReport, SelfRegistration};
pub use registries::{Registries, ServiceQuery};
pub use sigma_config::discovery::Registry;
pub use subscription::Subscription;
pub use tally::Report;
