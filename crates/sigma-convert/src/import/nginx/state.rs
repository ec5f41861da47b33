//! The state of a request while its rewrite directives are read: its URI, its variables and its conditions.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_json::{Map, Value};

use super::super::decision::{Decision, Host, Path, Target};
use super::super::source::SourceLine;
use super::level::Level;
use super::locations::Entry;
use super::parse::Directive;
use super::pattern::Pattern;

/// The server whose requests are followed.
pub(super) struct Server<'a> {
    pub(super) level: Rc<Level<'a>>,
    pub(super) place: SourceLine,
    pub(super) directive: &'a Directive,
    /// The value of `$server_name`.
    pub(super) name: String,
    pub(super) ports: Vec<u16>,
    /// The locations in the order of their search.
    pub(super) entries: Vec<Entry<'a>>,
    /// Named locations.
    pub(super) named: BTreeMap<String, Rc<Level<'a>>>,
    /// The reason for which all its routes are closed.
    pub(super) closed: Option<String>,
}

/// The groups of the last match.
#[derive(Debug, Clone, Default)]
pub(super) enum Captures {
    #[default]
    None,
    /// Of the route's own path.
    Route,
    /// Known texts.
    Fixed(Vec<String>),
    /// Of a match with a text that has variables.
    Of { subject: String, pattern: Pattern },
}

/// The response to paths without a file.
#[derive(Clone)]
pub(super) struct Missing<'a> {
    /// The paths to try, in nginx's syntax.
    pub(super) tried: Vec<String>,
    pub(super) end: MissingEnd<'a>,
}

/// Files that `try_files` looks for before its named location.
pub(super) struct Tried<'a> {
    /// The configuration of static-files, with the upstream of the route as its fallback.
    pub(super) files: Map<String, Value>,
    /// The plugins that guard the location with `try_files`.
    pub(super) guards: Map<String, Value>,
    /// The line `try_files`.
    pub(super) line: &'a Directive,
}

/// The end of [`Missing`].
#[derive(Clone)]
pub(super) enum MissingEnd<'a> {
    /// Another path, and its query if that is not the client's.
    Path(String, Option<String>),
    Status(u16),
    /// The handler of the block.
    Handler(Rc<Level<'a>>),
}

/// A request as far as it is known.
#[derive(Clone)]
pub(super) struct State<'a> {
    pub(super) server: Rc<Server<'a>>,
    pub(super) hosts: Vec<Host>,
    pub(super) path: Option<Path>,
    pub(super) conditions: Vec<Value>,
    pub(super) rewritten: RewrittenTarget,
    pub(super) variables: KnownVariables,
    /// The number of searches after the first.
    pub(super) searches: usize,
    pub(super) location: MatchedLocation,
    pub(super) files: FileSteps<'a>,
    /// Whether only internal requests come here.
    pub(super) is_internal: bool,
    /// Whether the response is the page of an error: fields for successes are omitted.
    pub(super) is_error: bool,
}

/// The path and the query after rewrites.
#[derive(Debug, Clone, Default)]
pub(super) struct RewrittenTarget {
    /// The path that a rewrite made; None for the client's.
    pub(super) uri: Option<String>,
    /// The query that a rewrite made; None for the client's.
    pub(super) args: Option<String>,
    /// Whether a rewrite has changed the path since the last search.
    pub(super) is_moved: bool,
    /// Whether a rewrite of this location has made the path: `proxy_pass` replaces no part of it then.
    pub(super) is_whole: bool,
}

/// Variables and groups whose texts are known before a request.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownVariables {
    /// Variables that `set` has set.
    pub(super) sets: BTreeMap<String, String>,
    /// Variables whose value is not known here: a guard must not depend on them.
    pub(super) doubtful: BTreeSet<String>,
    pub(super) captures: Captures,
    /// Named groups.
    pub(super) named: BTreeMap<String, String>,
}

/// The location that a request is in.
#[derive(Debug, Clone, Default)]
pub(super) struct MatchedLocation {
    /// Its text, for names and for `proxy_pass` with a path.
    pub(super) text: String,
    /// Its text if it is a path, not a regular expression: `proxy_pass` with a path replaces it.
    pub(super) prefix: Option<String>,
    /// Whether that path is the whole one.
    pub(super) is_exact: bool,
}

/// The files that are looked for before the upstream gets a request.
#[derive(Clone, Default)]
pub(super) struct FileSteps<'a> {
    /// The response to paths without a file, from `if (!-e $request_filename)`.
    pub(super) missing: Option<Missing<'a>>,
    /// The level whose files are served before the upstream gets the request: their responses have its fields.
    pub(super) files_of: Option<Rc<Level<'a>>>,
    /// The files that are tried before this named location gets the request.
    pub(super) tried: Option<Rc<Tried<'a>>>,
}

impl State<'_> {
    /// Returns the path as a text.
    pub(super) fn uri_text(&self) -> String {
        self.rewritten.uri.clone().unwrap_or_else(|| "${uri}".to_owned())
    }

    /// Creates a decision for the requests of this state.
    pub(super) fn decision(&self, place: SourceLine, target: Target) -> Decision {
        let host = match self.hosts.first() {
            Some(Host::Exact(name) | Host::Suffix(name) | Host::Prefix(name)) => name.as_str(),
            _ if matches!(self.server.name.as_str(), "" | "_") => "default",
            _ => &self.server.name,
        };
        let mut decision = Decision::new(place, format!("{host}{}", self.location.text), target);
        decision.ports.clone_from(&self.server.ports);
        decision.hosts.clone_from(&self.hosts);
        decision.paths = self.path.iter().cloned().collect();
        decision.conditions.clone_from(&self.conditions);
        if self.is_internal {
            decision.fields.insert("internal".to_owned(), true.into());
        }
        decision
    }

    /// Adds the files that are tried first, with their guards, to a response of this state.
    pub(super) fn after_files(&self, decision: &mut Decision) {
        let Some(tried) = &self.files.tried else { return };
        decision.plugins.insert("static-files".to_owned(), Value::Object(tried.files.clone()));
        for (name, plugin) in &tried.guards {
            decision.plugins.entry(name).or_insert_with(|| plugin.clone());
        }
    }
}
