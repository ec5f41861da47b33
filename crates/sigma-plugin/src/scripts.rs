//! Scripts of users in resources, besides plugins of their own: conditions of routes, scripts that replace a route's
//! plugins, and functions before the hooks of a plugin.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use sigma_schema::Problem;
use sigma_schema::expr::Variables;
use sigma_schema::plugins::ScriptForm;

use crate::{Entry, Kind, Plugin};

/// An engine for scripts. A plugin kind brings it; see [`crate::Descriptor::scripts`].
pub trait Scripts: Send + Sync {
    /// Checks a text.
    ///
    /// # Errors
    /// Returns the whole error message, with the line if the text does not compile.
    fn check(&self, form: ScriptForm, text: &str) -> Result<(), String>;

    /// Returns the condition of a route. A text that does not compile is a condition that never holds.
    fn condition(&self, route: &str, text: &str) -> Arc<dyn RouteCondition>;

    /// Returns the entry that runs a script. It replaces the plugins of its resource.
    fn script(&self, resource: &str, text: &str) -> Entry;

    /// Returns a plugin that runs a function before each hook of `plugin`, with the configuration of its entry.
    fn before(
        &self,
        plugin: Arc<dyn Plugin>,
        place: &str,
        text: &str,
        conf: &serde_json::Value,
    ) -> Arc<dyn Plugin>;

    /// Reads the plugins in files. It blocks.
    fn files(&self, search: &FileSearch) -> FileKinds;

    /// Returns a number that changes when files on the search path change. It blocks for a moment, and does not read
    /// the files.
    fn stamp(&self, search: &FileSearch) -> u64;

    /// Runs a script in a file against a request, without a gateway. It blocks. Returns a description of the result.
    ///
    /// # Errors
    /// Returns the error of a file that cannot be loaded, or of an invalid configuration or request.
    fn try_out(&self, trial: &ScriptTrial) -> Result<String, String>;
}

/// A script in a file, with the request to run it against.
#[derive(Debug, Clone, Default)]
pub struct ScriptTrial {
    /// The file: a plugin, or a function as in `serverless-pre-function`.
    pub file: PathBuf,
    /// Where modules are searched that the file requires; see [`FileSearch::path`].
    pub path: String,
    /// The phase of a function.
    pub phase: String,
    /// The configuration of a plugin.
    pub conf: serde_json::Value,
    /// The metadata of a plugin; `null` for none.
    pub metadata: serde_json::Value,
    /// The setting `plugin_attr`.
    pub attributes: serde_json::Value,
    /// The method of the request.
    pub method: String,
    /// Its target, such as `/a?b=c`.
    pub target: String,
    /// Its fields, as `name: value`.
    pub fields: Vec<String>,
    /// Its body.
    pub body: Vec<u8>,
    /// The status of the node's response.
    pub status: u16,
    /// The body of that response.
    pub response: Vec<u8>,
}

/// A search for plugins in files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileSearch {
    /// The setting `lua.path`: names with one `?`, separated by `;`.
    pub path: String,
    /// The setting `lua.readable_folders`.
    pub readable_folders: Vec<PathBuf>,
    /// Names of plugins to load, for requests and for sessions; None for all.
    pub enabled: [Option<BTreeSet<Box<str>>>; 2],
    /// Names that no file may take.
    pub taken: BTreeSet<Box<str>>,
}

/// Plugins in files.
#[derive(Debug, Clone, Default)]
pub struct FileKinds {
    /// One for each file. The plugin of a broken file refuses every configuration.
    pub kinds: Vec<Arc<dyn Kind>>,
    /// Broken files, each with its place in `lua.path` and the file, line and error in its message.
    pub broken: Vec<Problem>,
    /// Mistakes of the search path, and files with taken names. No file has a plugin then.
    pub refused: Vec<Problem>,
    /// A number that changes when the files' content changes.
    pub content: u64,
}

impl FileKinds {
    /// Returns all problems.
    pub fn problems(&self) -> Vec<Problem> {
        self.refused.iter().chain(&self.broken).cloned().collect()
    }
}

/// A condition of a route in code.
pub trait RouteCondition: Send + Sync + Debug {
    /// Returns true if the route may serve a request with these variables. An error is false.
    fn holds(&self, variables: &dyn Variables) -> bool;
}

/// The name of the entry that [`Scripts::script`] makes. No plugin has it.
pub const SCRIPT: &str = "script";
