//! What moves bytes between workers and their connections.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What moves bytes between a worker and its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Io {
    /// io_uring where the kernel has it and permits it (Linux 6.1), epoll elsewhere; the log tells.
    Auto,
    /// A system call for each read and write, when epoll says that a socket is ready.
    #[default]
    Epoll,
    /// As `auto`, and a warning where it is epoll.
    IoUring,
}

/// Sizes of io_uring, for each worker. They bound no peer: where they do not suffice, a worker
/// makes more system calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IoUring {
    /// Operations that one system call submits. The kernel keeps 512 bytes for each.
    #[schemars(range(min = 1, max = 32_768))]
    pub entries: u32,
    /// Buffers that the connections of a worker receive into, rounded up to a power of two. They are
    /// taken while bytes wait to be read.
    #[schemars(range(min = 1, max = 32_768))]
    pub buffers: u16,
    /// Bytes of each buffer. Most heads should fit; memory is taken as it is used.
    #[schemars(range(min = 512, max = 1_048_576))]
    pub buffer_bytes: u32,
}

impl Default for IoUring {
    fn default() -> Self {
        IoUring { entries: 1024, buffers: 256, buffer_bytes: 4096 }
    }
}
