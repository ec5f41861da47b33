//! Where a script runs: its name in logs, its counters and its limits.

use std::fmt;
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
    /// A place. Its first word is the plugin that the run counts for.
    pub(crate) fn place(&self, text: &str) -> Rc<ScriptPosition> {
        self.place_of(text, text.split(' ').next().unwrap_or_default(), None)
    }

    /// A place in a plugin in a file.
    pub(crate) fn place_in_file(&self, text: &str, plugin: &Rc<OwnPlugin>) -> Rc<ScriptPosition> {
        self.place_of(text, &plugin.name, Some(plugin))
    }

    /// The position of work that scripts elsewhere have started.
    pub(crate) fn place_below(&self, text: &str, starter: Option<&ScriptPosition>) -> Rc<ScriptPosition> {
        match starter {
            Some(ScriptPosition { counts, run_time, plugin, .. }) => Rc::new(ScriptPosition {
                text: text.into(),
                counts: Arc::clone(counts),
                run_time: *run_time,
                plugin: plugin.clone(),
            }),
            None => self.place(text),
        }
    }

    fn place_of(&self, text: &str, plugin: &str, own: Option<&Rc<OwnPlugin>>) -> Rc<ScriptPosition> {
        Rc::new(ScriptPosition {
            text: text.into(),
            counts: self.seat.counts(plugin),
            run_time: self.settings.run_time_of(plugin),
            plugin: own.cloned(),
        })
    }
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
