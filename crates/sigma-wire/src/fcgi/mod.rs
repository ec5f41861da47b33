//! The client side of FastCGI.
//!
//! | file | role |
//! |---|---|
//! | `client` | a connection to an application |

mod client;

use sigma_http::fcgi::Params;

pub use client::Client;

/// Data for an application besides the request head.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// Its parameters; parameters of the head are added if missing.
    pub params: Params,
    /// Asks the application to leave the connection open.
    pub keep: bool,
    /// The largest body of unknown length in bytes. Such a body is buffered to its end, as applications read no
    /// further than the announced length.
    pub unsized_body_bytes: usize,
}
