//! The control plane: from a file to a snapshot in force, and what operators ask for.
//!
//! One thread with its own runtime. It reaches the workers only through
//! [`sigma_proxy::Gateway`], and never touches a request.

mod fleet;
mod niubix;
pub mod source;
mod status;
pub mod store;
pub mod supervisor;

pub use fleet::Fleet;
pub use source::{LoadError, Source};
pub use supervisor::{LogControl, Options, StartError, Supervisor};
