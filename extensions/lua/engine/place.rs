//! Where a script runs: its name in logs, its counters and its limits.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mlua::Value;
use sigma_plugin::script_counts::ScriptCounts;

use super::Engine;

/// A position of scripts in the configuration, such as `serverless-pre-function of /apisix/routes/1`.
#[derive(Debug)]
pub(crate) struct ScriptPosition {
    text: Box<str>,
    /// The script for [`super::abort_pacing`].
    pub(super) script: u64,
    pub(super) counts: Arc<ScriptCounts>,
    /// The longest run without a wait.
    pub(super) run_time: Duration,
    /// The plugin in a file whose script runs.
    pub(crate) plugin: Option<Rc<OwnPlugin>>,
}

/// Facts of a plugin in a file that its scripts may read.
#[derive(Debug)]
pub(crate) struct OwnPlugin {
    pub(crate) name: Box<str>,
    /// Its metadata; nil without any.
    pub(crate) metadata: Value,
    /// The field that identifies its consumers, if it authenticates.
    pub(crate) identifying: Option<Box<str>>,
}

impl Engine {
    /// Returns the position of scripts with these texts. Its first word is the plugin that the run counts for.
    pub(crate) fn place<T: Hash>(&self, text: &str, scripts: &[T]) -> Rc<ScriptPosition> {
        self.place_of(text, version_of(scripts), text.split(' ').next().unwrap_or_default(), None)
    }

    /// Returns a position in a plugin in a file, with this version of the files and this configuration.
    pub(crate) fn place_in_file(
        &self,
        text: &str,
        files: u64,
        conf: &serde_json::Value,
        plugin: &Rc<OwnPlugin>,
    ) -> Rc<ScriptPosition> {
        self.place_of(text, version_of(&(files, conf.to_string())), &plugin.name, Some(plugin))
    }

    /// The position of work that scripts elsewhere have started. Its aborted runs are theirs.
    pub(crate) fn place_below(&self, text: &str, starter: Option<&ScriptPosition>) -> Rc<ScriptPosition> {
        match starter {
            Some(ScriptPosition { script, counts, run_time, plugin, .. }) => Rc::new(ScriptPosition {
                text: text.into(),
                script: *script,
                counts: Arc::clone(counts),
                run_time: *run_time,
                plugin: plugin.clone(),
            }),
            None => self.place::<&str>(text, &[]),
        }
    }

    fn place_of(
        &self,
        text: &str,
        version: u64,
        plugin: &str,
        own: Option<&Rc<OwnPlugin>>,
    ) -> Rc<ScriptPosition> {
        Rc::new(ScriptPosition {
            text: text.into(),
            script: self.pacing.script(text, version),
            counts: self.seat.counts(plugin),
            run_time: self.settings.run_time_of(plugin),
            plugin: own.cloned(),
        })
    }
}

fn version_of(parts: &(impl Hash + ?Sized)) -> u64 {
    let mut version = DefaultHasher::new();
    parts.hash(&mut version);
    version.finish()
}

impl Deref for ScriptPosition {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for ScriptPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
