//! The control plane: from a file to a snapshot in force, and what operators ask for.
//!
//! One thread with its own runtime. It reaches the workers only through
//! [`sigma_proxy::Gateway`], and never touches a request.

pub mod admin;
mod caller;
pub mod control_api;
mod desired;
mod endpoints;
mod examine;
mod fleet;
mod inspect;
mod listener;
mod niubix;
mod operators;
mod publisher;
mod references;
pub mod secret;
pub mod source;
mod status;
pub mod store;
pub mod supervisor;
pub mod trial;

pub use desired::{Quarantined, Standing};
pub use examine::compile_only;
pub use fleet::Fleet;
pub use source::{LoadError, Source};
pub use supervisor::{LIFE, LogControl, Options, StartError, Supervisor};
