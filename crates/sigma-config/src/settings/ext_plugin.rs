//! The runner of plugins in other languages.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The runner: a program with plugins in another language, which the plugins `ext-plugin-pre-req`,
/// `ext-plugin-post-req` and `ext-plugin-post-resp` call over a Unix socket. Read once, at the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExtPlugin {
    /// The command that starts the runner: a program and its arguments. The gateway starts it once, restarts it when it
    /// ends, and stops it at its own end. The program listens on the socket in `APISIX_LISTEN_ADDRESS`. Unset: the
    /// operator starts the runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub cmd: Option<Vec<String>>,
    /// The Unix socket of the runner, without `unix:`. Unset: a file of this process in a folder for run-time files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The name of `path` in APISIX; `path` takes precedence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_for_test: Option<PathBuf>,
}

impl ExtPlugin {
    /// Returns the socket that the settings name.
    pub fn socket(&self) -> Option<&Path> {
        self.path.as_deref().or(self.path_for_test.as_deref())
    }
}
