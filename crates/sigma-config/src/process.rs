//! How the process itself runs, and how another one takes its place.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the process itself runs, and how another one takes its place. Read once, at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Process {
    /// Whether somebody watches the gateway.
    pub mode: Mode,
    /// Go to the background once the gateway serves. It needs a file in `error_log.path`.
    pub daemon: bool,
    /// How long a successor may take to be ready when the binary is upgraded. It is ended then, and this process goes on.
    #[schemars(range(min = 1_000, max = 3_600_000))]
    pub upgrade_timeout_ms: u32,
    /// How long a worker may stand still. Beyond it the error log and `/status/ready` say so, and in the mode `supervised`
    /// another process takes the place of this one. 0: for ever.
    #[schemars(range(max = 3_600_000))]
    pub stuck_worker_ms: u32,
    /// In the mode `supervised`: how long the gateway may say nothing to its parent, which asks for a sign each second.
    /// It is killed then, and replaced. 0: for ever.
    #[schemars(range(max = 3_600_000))]
    pub silence_ms: u32,
    /// In the mode `supervised`: the pause before a gateway is replaced that ended soon after its start. It doubles with
    /// each such end, up to `restart_pause_max_ms`. One that has served for ten seconds is replaced at once.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub restart_pause_ms: u32,
    /// The longest such pause.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub restart_pause_max_ms: u32,
    /// The user that the gateway runs as, by name or number, if root starts it. It keeps the right to bind ports below
    /// 1024, and no other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The group, by name or number; unset: that of `user`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The folder that relative paths begin at, but for that of the configuration itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_folder: Option<PathBuf>,
    /// The limit on open files; unset: as high as it may be raised. More than that needs root.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 64))]
    pub max_fds: Option<u64>,
    /// The largest core dump in bytes; unset: as the system has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_bytes: Option<u64>,
    /// Lets the system write core dumps of the process, and lets debuggers of the same user attach to it. A core dump holds
    /// the private keys and the sessions of clients. Off: the process is not dumpable.
    pub core_dumps: bool,
    /// The rights that the process gives up when it has started. `full` is for a gateway at the edge; each file that is
    /// opened and each system call of a worker costs some nanoseconds more.
    pub sandbox: Sandbox,
    /// Files and folders that may be read besides those that the configuration names: for paths in resources of a store,
    /// and for the program of `acme.dns.hook`. At most 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub sandbox_read: Vec<PathBuf>,
    /// Files and folders that may be read and written besides those that the configuration names. At most 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub sandbox_write: Vec<PathBuf>,
    /// Lets whoever may call the Control API take profiles of this process (`/v1/profile/…`): which of its functions run
    /// for how long, and what memory it has. They tell of the traffic what functions tell, and take CPU and memory while
    /// they last.
    pub profiling: bool,
}

/// Whether somebody watches the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One process, which is all there is.
    #[default]
    Single,
    /// A small parent holds the sockets and starts the gateway. A gateway that dies is replaced at once.
    Supervised,
}

/// The rights that a gateway gives up when it has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sandbox {
    /// None: whatever its user may do.
    #[default]
    Off,
    /// Landlock: the process reaches the files and folders that the configuration names, and those of the system that
    /// it needs. Kernels without Landlock (before 5.19) get a warning.
    Landlock,
    /// Landlock, and a filter of system calls (seccomp) for workers: they start no program and change no file.
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
