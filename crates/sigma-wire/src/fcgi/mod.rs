//! FastCGI: the side that asks.
//!
//! | file | role |
//! |---|---|
//! | `client` | a connection to an application |

mod client;

use sigma_http::fcgi::Params;

pub use client::Client;

/// What an application is told of a request beyond its head.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// Its parameters; what the head says is added where it is not among them.
    pub params: Params,
    /// The application is asked to leave the connection open.
    pub keep: bool,
    /// Most bytes of a body whose length is not known before its end. They are held until then, as applications read
    /// no further than the length that they are told.
    pub unsized_body_bytes: usize,
}
