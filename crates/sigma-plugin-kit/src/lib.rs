//! Parts that several built-in plugins share. No plugin is named here, and none depends on another: what two of them need
//! is a module of this crate.
//!
//! | modules | purpose |
//! |---|---|
//! | [`batch`], [`log_entry`], [`log_format`], [`log_throttle`], [`tallies`] | entries of logs, batches of them, and metrics |
//! | [`service`], [`server`], [`web`], [`fetched`], [`freshness`], [`registry`] | connections to services, and documents fetched from them |
//! | [`asked_once`], [`decisions`], [`decision_service`] | results of services, remembered for a while, and lines about services that return none |
//! | [`redis`], [`kafka`], [`ldap`], [`websocket`] | clients of other protocols |
//! | [`fields`], [`field_value`], [`uri_template`], [`percent`], [`networks`], [`condition`], [`label_values`], [`response_fields`], [`turns`] | parts of configurations |
//! | [`body_template`], [`substitute`], [`coding`], [`inflate`], [`json_body`], [`multipart`], [`changed_body`], [`response_body`], [`budget`] | bodies |
//! | [`key_pair`], [`pem`], [`sigv4`], [`clock`], [`utc`], [`cross_origin`] | keys, signatures, time, and cross-origin fields |

pub mod asked_once;
pub mod batch;
pub mod body_template;
pub mod budget;
pub mod changed_body;
pub mod cleartext;
pub mod clock;
pub mod coding;
pub mod condition;
pub mod cross_origin;
pub mod decision_service;
pub mod decisions;
pub mod destinations;
pub mod envoy;
pub mod fetched;
pub mod field_names;
pub mod field_value;
pub mod fields;
pub mod freshness;
pub mod inflate;
pub mod json_body;
pub mod kafka;
pub mod key_pair;
pub mod label_values;
pub mod ldap;
pub mod log_entry;
pub mod log_format;
pub mod log_throttle;
pub mod multipart;
pub mod networks;
pub mod own_route;
pub mod pem;
pub mod percent;
pub mod redis;
pub mod registry;
pub mod response_body;
pub mod response_fields;
pub mod server;
pub mod service;
pub mod sigv4;
pub mod substitute;
pub mod tallies;
pub mod turns;
pub mod uri_template;
pub mod utc;
pub mod web;
pub mod websocket;

#[cfg(test)]
#[path = "../../../plugins/testing.rs"]
mod testing;

/// The plugins of this crate: none. The tests' helpers ask for them.
#[cfg(test)]
static ROSTER: &[&sigma_plugin::Descriptor] = &[];
