//! The plugins of a process.

use std::sync::Arc;

use sigma_config::plugins::enabled;
use sigma_config::settings::Settings;
use sigma_plugin::roster::Defaults;
use sigma_plugin::{Kind, Node, Roster};

/// The plugins of a process.
pub(crate) struct Plugins {
    /// All of the build and of files.
    pub(crate) all: Arc<Roster>,
    /// The enabled plugins.
    pub(crate) enabled: Arc<Roster>,
    /// The shared state of their instances.
    pub(crate) node: Arc<Node>,
}

/// All plugins, and the enabled ones.
#[derive(Debug, Clone)]
pub(crate) struct Rosters {
    pub(crate) all: Arc<Roster>,
    pub(crate) enabled: Arc<Roster>,
}

impl Rosters {
    /// Of `kinds`, those that the settings allow.
    pub(crate) fn new(kinds: &[Arc<dyn Kind>], settings: &Settings) -> Rosters {
        let ignored = &settings.compat.ignored_plugins;
        let defaults = settings
            .profile
            .map(|profile| -> Defaults { Arc::new(move |name, conf| profile.fill_plugin(name, conf)) });
        let roster = || {
            let all = Roster::new(kinds.iter().cloned(), None);
            all.ignoring(ignored).with_defaults(defaults.clone())
        };
        let all = Arc::new(roster());
        let enabled = match enabled(settings.plugins.as_deref(), settings.stream_plugins.as_deref()) {
            [None, None] => Arc::clone(&all),
            names => Arc::new(roster().limited(&names)),
        };
        Rosters { all, enabled }
    }

    /// Replaces the plugins for all that share them.
    pub(crate) fn supersede(&self, newer: &Rosters) {
        self.all.supersede(&newer.all);
        self.enabled.supersede(&newer.enabled);
    }
}

impl Plugins {
    /// Of `kinds`, those that the settings allow. Within the runtime that their tasks are to run on.
    pub(crate) fn new(kinds: &[Arc<dyn Kind>], settings: &Settings) -> Plugins {
        let Rosters { all, enabled } = Rosters::new(kinds, settings);
        let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let attributes = serde_json::Value::Object(attributes(settings));
        let runtime = tokio::runtime::Handle::current();
        let background = move |work| drop(runtime.spawn(work));
        let node = Arc::new(Node::new(background, attributes, hostname));
        Plugins { all, enabled, node }
    }
}

/// The settings of plugins for the process: `plugin_attr`, and those with their own key.
fn attributes(settings: &Settings) -> serde_json::Map<String, serde_json::Value> {
    let mut attributes = settings.plugin_attr.clone();
    if let Some(runner) = settings.ext_plugin.as_ref().and_then(|runner| serde_json::to_value(runner).ok()) {
        attributes.insert("ext-plugin".to_owned(), runner);
    }
    attributes
}
