//! From a file or a store to a snapshot in force.
//!
//! `source` reads the file. `desired` knows the desired resources, of which invalid ones are `quarantined`. `publisher`
//! compiles what changed. External inputs of the compilation come from `endpoints` (names resolved, health
//! checked), `revealed` (the values that `secret` found for `references`) and `files`, with lists of revoked
//! certificates from `revocation` and staples from `stapling`, both of which `published` fetches and keeps,
//! and queries about clients' certificates from `inquiries`; certificates that the gateway orders itself come
//! from `acme`. `file_stamp` tells whether a file has changed; `pair_files` follows the certificates of ssls
//! that are in files. `ticket_keys` keeps keys of session tickets, and shares them. `cloud_identity` keeps the
//! credentials of the machine at clouds. `purges` has caches forget, on all gateways of a store; `cache_disk` is
//! where they keep what outlasts the process. `trial` compiles resources before they are stored. `expiry` watches
//! the certificates in force.

pub(crate) mod acme;
pub(crate) mod cache_disk;
pub(crate) mod clock;
pub(crate) mod cloud_identity;
pub(crate) mod desired;
pub(crate) mod edit;
pub(crate) mod endpoints;
pub(crate) mod expiry;
pub(crate) mod file_stamp;
pub(crate) mod files;
pub(crate) mod geo_files;
pub(crate) mod health_events;
pub(crate) mod health_file;
pub(crate) mod health_sharing;
pub(crate) mod inquiries;
pub(crate) mod pair_files;
pub(crate) mod plugin_files;
pub(crate) mod plugins;
pub(crate) mod published;
pub(crate) mod publisher;
pub(crate) mod purges;
pub(crate) mod quarantined;
pub(crate) mod references;
pub(crate) mod revealed;
pub(crate) mod revocation;
pub mod secret;
pub(crate) mod source;
pub(crate) mod stapling;
pub(crate) mod ticket_keys;
pub mod trial;
