//! I/O of workers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a worker reads from and writes to its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Io {
    /// io_uring for connections that open while the worker has 16 or more clients, if the kernel supports and permits it
    /// (Linux 6.1); epoll for all others.
    #[default]
    Auto,
    /// A system call for each read and write, when epoll reports a ready socket.
    Epoll,
    /// io_uring for all connections. If the kernel does not permit it, epoll, with a warning.
    IoUring,
}

/// Sizes of io_uring for each worker. They do not limit peers: if they are too small, a worker makes more system calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IoUring {
    /// Operations per system call. The kernel takes 512 bytes for each.
    #[schemars(range(min = 1, max = 32_768))]
    pub entries: u32,
    /// Number of receive buffers of a worker, rounded up to a power of two. A buffer is in use while its bytes are not
    /// yet read.
    #[schemars(range(min = 1, max = 32_768))]
    pub buffers: u16,
    /// Size of a buffer in bytes. Most request heads should fit; memory is allocated on use.
    #[schemars(range(min = 512, max = 1_048_576))]
    pub buffer_bytes: u32,
}

impl Default for IoUring {
    fn default() -> Self {
        IoUring { entries: 1024, buffers: 256, buffer_bytes: 4096 }
    }
}
