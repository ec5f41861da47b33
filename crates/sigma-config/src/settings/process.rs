//! Settings of the process itself: supervision, upgrades and privileges.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of the process: supervision, upgrades and privileges. Read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Process {
    /// Whether a supervisor restarts the gateway.
    pub mode: Mode,
    /// Run in the background once the gateway serves. Needs a file in `error_log.path`.
    pub daemon: bool,
    /// Timeout in milliseconds for the new process of an upgrade to be ready. If it passes, the new process is ended
    /// and the old one continues.
    #[schemars(range(min = 1_000, max = 3_600_000))]
    pub upgrade_timeout_ms: u32,
    /// Milliseconds after which a blocked worker is reported by the error log and `/status/ready`. In the mode
    /// `supervised` the process is then replaced. 0: off.
    #[schemars(range(max = 3_600_000))]
    pub stuck_worker_ms: u32,
    /// In the mode `supervised`: milliseconds without a sign of life, which the parent requests every second, after
    /// which the gateway is killed and replaced. 0: off.
    #[schemars(range(max = 3_600_000))]
    pub silence_ms: u32,
    /// In the mode `supervised`: pause in milliseconds before a gateway that ended soon after its start is replaced. It
    /// doubles each time, up to `restart_pause_max_ms`. A gateway that has served for ten seconds is replaced at once.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub restart_pause_ms: u32,
    /// The maximum of this pause in milliseconds.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub restart_pause_max_ms: u32,
    /// The user that the gateway runs as, by name or number, if root starts it. It keeps only the right to bind ports
    /// below 1024.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The group, by name or number; unset: the group of `user`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The base folder of relative paths, except the path of the configuration file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_folder: Option<PathBuf>,
    /// The limit on open files; unset: the highest allowed. A higher limit needs root.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 64))]
    pub max_fds: Option<u64>,
    /// The maximum size of a core dump in bytes; unset: the system's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_bytes: Option<u64>,
    /// Allow core dumps of the process, and debuggers of the same user. A core dump contains private keys and client
    /// sessions. Off: the process is not dumpable.
    pub core_dumps: bool,
    /// The sandbox of the process after its start. `full` is for a gateway on the Internet; each opened file and each
    /// system call of a worker takes some nanoseconds longer.
    pub sandbox: Sandbox,
    /// Files and folders that may be read besides those in the configuration, with any `sandbox`. Resources of a store
    /// may name files below these only. Also for the program of `acme.dns.hook`. At most 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub sandbox_read: Vec<PathBuf>,
    /// Files and folders that may be read and written besides those in the configuration, with any `sandbox`. Resources
    /// of a store may name files to write below these only. At most 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub sandbox_write: Vec<PathBuf>,
    /// Allow callers of the Control API to take CPU and memory profiles of this process (`/v1/profile/…`). A profile
    /// reveals traffic as far as function names do, and takes CPU and memory while it runs. Only builds with the feature
    /// `profiles` take profiles; others show the allocator's figures.
    pub profiling: bool,
}

/// Whether a supervisor restarts the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One process, without a supervisor.
    #[default]
    Single,
    /// A small parent process holds the sockets and starts the gateway. A gateway that dies is replaced at once.
    Supervised,
}

/// The sandbox of the process after its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sandbox {
    /// No sandbox: all rights of its user.
    #[default]
    Off,
    /// Landlock: the process may only access the files and folders in the configuration, and the system files that it
    /// needs. Kernels without Landlock (before 5.19) get a warning.
    Landlock,
    /// Landlock, and a system call filter (seccomp) for workers: they cannot start programs or change files.
    Full,
}

impl Default for Process {
    fn default() -> Self {
        Process {
            mode: Mode::Single,
            daemon: false,
            upgrade_timeout_ms: 60_000,
            stuck_worker_ms: 10_000,
            silence_ms: 60_000,
            restart_pause_ms: 50,
            restart_pause_max_ms: 30_000,
            user: None,
            group: None,
            working_folder: None,
            max_fds: None,
            core_bytes: None,
            core_dumps: false,
            sandbox: Sandbox::Off,
            sandbox_read: Vec::new(),
            sandbox_write: Vec::new(),
            profiling: false,
        }
    }
}
