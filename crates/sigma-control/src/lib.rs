//! The control plane: from a file or a store to a snapshot in force, and the listeners of operators.
//!
//! One thread with its own runtime. It reaches the workers only through
//! [`sigma_proxy::Gateway`], and never touches a request. Three folders above the store:
//!
//! | folder | content |
//! |---|---|
//! | `process` | start, signals and end of the process |
//! | `operators` | the queries and changes of operators |
//! | `serving` | the served configuration: desired, compiled, published |
//! | `store` | the stored resources |
//!
//! A folder uses only the folders below it in this table.

mod operators;
mod process;
mod serving;
#[cfg(test)]
mod simulation;
pub mod store;

pub use operators::OpenError;
pub use operators::{admin, control_api};
pub use process::daemon;
pub use process::examine::compile_only;
pub use process::handover::Origin;
pub use process::log_control::{LIFE, LogControl};
pub use process::parent::{Parent, Renewal};
pub use process::pid_file::{default_pid_file, holder_of, known_pid_files};
pub use process::rights::{RightsError, confine, harden};
pub use process::sandbox::{Line, Sandbox};
pub use process::start::StartError;
pub use process::supervisor::{Options, Supervisor, WorkerLost};
pub use serving::expiry::certificate_warnings;
pub use serving::plugin_files::AllPlugins;
pub use serving::quarantined::{Quarantined, Standing};
pub use serving::source::{LoadError, Source};
pub use serving::{secret, trial};
