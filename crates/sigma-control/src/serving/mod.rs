//! What is served: from what a file or a store says to a snapshot in force.
//!
//! `source` reads the file. `desired` knows what is to be served and quarantines what is invalid.
//! `publisher` compiles what changed. What compiling needs from outside comes from `endpoints` (names
//! resolved, health checked), `revealed` (what `secret` looked up for what `references` found) and
//! `files`, with lists of revoked certificates from `revocation` and what is stapled to others from `stapling`, both
//! of which `published` fetches and keeps, and who asks about clients' from `inquiries`; certificates that the gateway orders itself come from `acme`.
//! `file_stamp` tells whether a file has changed; `pair_files` follows the certificates of ssls that are in files.
//! `ticket_keys` keeps keys of session tickets, and shares them. `purges` has caches forget, on all gateways of a store; `cache_disk` is where they keep
//! what outlasts the process. `trial` compiles what is not stored yet. `expiry` watches the certificates in force.

pub(crate) mod acme;
pub(crate) mod cache_disk;
pub(crate) mod clock;
pub(crate) mod desired;
pub(crate) mod edit;
pub(crate) mod endpoints;
pub(crate) mod expiry;
pub(crate) mod file_stamp;
pub(crate) mod files;
pub(crate) mod geo_files;
pub(crate) mod health_file;
pub(crate) mod health_sharing;
pub(crate) mod inquiries;
pub(crate) mod pair_files;
pub(crate) mod plugins;
pub(crate) mod published;
pub(crate) mod publisher;
pub(crate) mod purges;
pub(crate) mod references;
pub(crate) mod revealed;
pub(crate) mod revocation;
pub mod secret;
pub(crate) mod source;
pub(crate) mod stapling;
pub(crate) mod ticket_keys;
pub mod trial;
pub(crate) mod webhook;
