//! The consumer side of Dubbo.
//!
//! | file | role |
//! |---|---|
//! | `client` | a connection to a provider |

mod client;

pub use client::Client;
