//! Dubbo: the side of a consumer.
//!
//! | file | role |
//! |---|---|
//! | `client` | a connection to a provider |

mod client;

pub use client::Client;
