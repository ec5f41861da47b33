//! The collections of the Admin API, and the way from a path to one of them.

use percent_encoding::percent_decode_str;
use sigma_config::kind::{Kind, ResourceKey};

/// The path that everything is below.
pub(crate) const ROOT: &str = "/apisix/admin";
/// The section of a service's cost decorations in paths and store keys.
pub(crate) use crate::store::history::DECORATIONS;

/// The class of a collection's items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Resources of a kind.
    Resource(Kind),
    /// Costs of fields of a GraphQL schema; below a service.
    Decoration,
}

/// A collection of resources: one row of the table in `docs/admin-api-calls.md`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Collection {
    /// The path segment.
    pub(crate) segment: &'static str,
    /// The word for one of them in messages.
    pub(crate) word: &'static str,
    /// The name of its schema in `/schema/{name}`.
    pub(crate) schema: &'static str,
    /// What it holds.
    pub(crate) class: Class,
    /// Verbs that get 405.
    pub(crate) refused: &'static [&'static str],
}

const fn collection(
    segment: &'static str,
    word: &'static str,
    schema: &'static str,
    kind: Kind,
    refused: &'static [&'static str],
) -> Collection {
    Collection { segment, word, schema, class: Class::Resource(kind), refused }
}

const ALL_VERBS: &[&str] = &[];
const NO_POST: &[&str] = &["POST"];
const NO_PATCH: &[&str] = &["PATCH"];
const ONLY_PUT: &[&str] = &["POST", "PATCH"];

/// The roster of collections.
pub(crate) static COLLECTIONS: [Collection; 14] = [
    collection("routes", "route", "route", Kind::Route, ALL_VERBS),
    collection("services", "service", "service", Kind::Service, ALL_VERBS),
    collection("upstreams", "upstream", "upstream", Kind::Upstream, ALL_VERBS),
    collection("ssls", "ssl", "ssl", Kind::Ssl, ALL_VERBS),
    collection("consumers", "consumer", "consumer", Kind::Consumer, ONLY_PUT),
    collection("credentials", "credential", "credential", Kind::Credential, ONLY_PUT),
    collection("consumer_groups", "consumer group", "consumer_group", Kind::ConsumerGroup, NO_POST),
    collection("plugin_configs", "plugin config", "plugin_config", Kind::PluginConfig, NO_POST),
    collection("global_rules", "global rule", "global_rule", Kind::GlobalRule, NO_POST),
    collection("plugin_metadata", "plugin_metadata", "plugin_metadata", Kind::PluginMetadata, ONLY_PUT),
    collection("protos", "proto", "proto", Kind::Proto, NO_PATCH),
    collection("stream_routes", "stream route", "stream_route", Kind::StreamRoute, NO_PATCH),
    collection("secrets", "secret", "secret", Kind::Secret, NO_POST),
    Collection {
        segment: DECORATIONS,
        word: "graphql cost decoration",
        schema: "graphql_cost_decoration",
        class: Class::Decoration,
        refused: ALL_VERBS,
    },
];

impl Collection {
    /// The collection of a path segment.
    pub(crate) fn of_segment(segment: &str) -> Option<&'static Collection> {
        COLLECTIONS.iter().find(|collection| collection.segment == segment)
    }

    /// The kind, unless it is the decorations.
    pub(crate) fn kind(&self) -> Option<Kind> {
        match self.class {
            Class::Resource(kind) => Some(kind),
            Class::Decoration => None,
        }
    }

    /// Whether it is `kind`.
    pub(crate) fn is(&self, kind: Kind) -> bool {
        self.class == Class::Resource(kind)
    }

    /// Whether a store key is one of this collection, and not of one below it.
    pub(crate) fn owns(&self, key: &str) -> bool {
        match self.class {
            Class::Resource(kind) => ResourceKey::parse(key).is_some_and(|parsed| parsed.kind == kind),
            Class::Decoration => key.split('/').count() == 4,
        }
    }
}

/// One resource, or a whole collection where `id` is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    /// The collection.
    pub(crate) collection: &'static Collection,
    /// The consumer of a credential, the manager of a secret, the service of a decoration.
    pub(crate) parent: Option<String>,
    /// The id, without the parent's.
    pub(crate) id: Option<String>,
    /// Where in the resource; only PATCH knows a use for it.
    pub(crate) sub_path: Vec<String>,
}

impl ResourcePath {
    /// Returns the common prefix of its store keys. Secrets of all managers are listed together.
    pub(crate) fn prefix(&self) -> String {
        match (self.collection.class, &self.parent) {
            (Class::Resource(Kind::Credential), Some(parent)) => format!("consumers/{parent}/credentials/"),
            (Class::Decoration, Some(parent)) => format!("services/{parent}/{DECORATIONS}/"),
            (Class::Resource(kind), _) => format!("{}/", kind.section()),
            (Class::Decoration, None) => "services/".to_owned(),
        }
    }

    /// The store key of the resource `id` here.
    pub(crate) fn key(&self, id: &str) -> String {
        match (self.collection.class, &self.parent) {
            (Class::Resource(Kind::Secret), Some(manager)) => format!("{}{manager}/{id}", self.prefix()),
            _ => format!("{}{id}", self.prefix()),
        }
    }

    /// Returns the client's name of a collection, for APISIX's `key` of a list.
    pub(crate) fn directory(&self) -> String {
        self.prefix().trim_end_matches('/').to_owned()
    }
}

/// The part of the history that a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Past {
    /// `history`.
    List,
    /// `history/{version}`.
    Version(u64),
    /// `history/{from}/diff/{to}`.
    Between(u64, u64),
    /// `history/{version}/rollback`.
    Rollback(u64),
}

/// The target of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// `/`, where browsers begin, and `/apisix`.
    Start,
    /// `/apisix/admin` itself.
    Root,
    /// Resources.
    Resource(ResourcePath),
    /// `schema/{name}`.
    Schema(String),
    /// `schema/plugins/{name}` and `plugins/{name}`.
    Plugin(String),
    /// `plugins/{name}/documentation`.
    Documentation(String),
    /// `plugins`.
    Plugins,
    /// `/plugins/list`.
    PluginNames,
    /// `/plugins/summaries`.
    PluginSummaries,
    /// `/plugins/reload`.
    PluginReload,
    /// `schema/validate/{collection}`.
    Validate(String),
    /// `convert/{format}`: resources made of another gateway's configuration.
    Convert(String),
    /// `configs`.
    Configs,
    /// `configs/validate`.
    ConfigsValidate,
    /// `explain`.
    Explain,
    /// `history` and the paths below it.
    History(Past),
    /// `caller`.
    Caller,
    /// `tap`: exchanges as they end.
    Tap,
    /// `members`: the gateways of the store.
    Members,
    /// `cache/purge`: what caches are to forget.
    Purge,
    /// A query to the running gateway: `live`, `nodes` and the like.
    Process(ProcessQuery),
    /// `nodes/{type}/{id}/{node}`: the state of a node.
    NodeState {
        /// The key of the resource that contains the upstream.
        upstream: String,
        /// The name or address of the node.
        node: String,
    },
    /// `stress/{type}/{id}`: the stress test of an upstream; `stress`: all of them.
    Stress(Option<String>),
    /// `acme/{ssl}/order`: an order of its certificate.
    Order(String),
    /// `/openapi.json`.
    OpenApi,
    /// A collection that does not exist.
    UnknownCollection(String),
    /// Nothing.
    Nothing,
}

/// The queries to the running gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessQuery {
    /// `live`: what requests are like.
    Live,
    /// `nodes`: the nodes of every upstream, and how they do.
    Nodes,
    /// `certificates`: those that are shown, and when they expire.
    Certificates,
    /// `revision`: the served revision, and resources that are not served.
    Revision,
}

impl ProcessQuery {
    /// The roster: each by its path segment.
    pub(crate) const ALL: [(&'static str, ProcessQuery); 4] = [
        ("live", ProcessQuery::Live),
        ("nodes", ProcessQuery::Nodes),
        ("certificates", ProcessQuery::Certificates),
        ("revision", ProcessQuery::Revision),
    ];

    fn of_segment(segment: &str) -> Option<ProcessQuery> {
        ProcessQuery::ALL.into_iter().find(|(name, _)| *name == segment).map(|(_, question)| question)
    }
}

/// Parses a path of the request line, without the query.
pub(crate) fn target(path: &str) -> Target {
    if path == "/openapi.json" {
        return Target::OpenApi;
    }
    if matches!(path.trim_end_matches('/'), "" | "/apisix") {
        return Target::Start;
    }
    let Some(rest) = path.strip_prefix(ROOT).filter(|rest| rest.is_empty() || rest.starts_with('/')) else {
        return Target::Nothing;
    };
    let Ok(decoded) = percent_decode_str(rest).decode_utf8() else { return Target::Nothing };
    let segments: Vec<&str> = decoded.split('/').filter(|segment| !segment.is_empty()).collect();
    let owned = |text: &str| text.to_owned();
    match segments.as_slice() {
        [] => Target::Root,
        ["configs"] => Target::Configs,
        ["configs", "validate"] => Target::ConfigsValidate,
        ["plugins"] => Target::Plugins,
        ["plugins", "list"] => Target::PluginNames,
        ["plugins", "summaries"] => Target::PluginSummaries,
        ["plugins", "reload"] => Target::PluginReload,
        ["caller"] => Target::Caller,
        ["members"] => Target::Members,
        ["tap"] => Target::Tap,
        ["cache", "purge"] => Target::Purge,
        ["plugins", name, "documentation"] => Target::Documentation(owned(name)),
        ["plugins" | "schema", "plugins"] => Target::Schema(owned("plugins")),
        ["plugins", name] | ["schema", "plugins", name] => Target::Plugin(owned(name)),
        ["convert", format] => Target::Convert(owned(format)),
        ["schema", "validate", collection] => Target::Validate(owned(collection)),
        ["schema"] => Target::Schema(String::new()),
        ["schema", name] => Target::Schema(owned(name)),
        ["consumers", parent, "credentials", rest @ ..] => place("credentials", Some(parent), rest),
        ["services", parent, DECORATIONS, rest @ ..] => place(DECORATIONS, Some(parent), rest),
        // These two exist only below their parents.
        [segment @ ("credentials" | DECORATIONS), ..] => Target::UnknownCollection(owned(segment)),
        ["secrets", manager, rest @ ..] => place("secrets", Some(manager), rest),
        ["explain"] => Target::Explain,
        // The path of a unix socket has slashes.
        ["nodes", section, id, node @ ..] if !node.is_empty() => {
            Target::NodeState { upstream: format!("{section}/{id}"), node: node.join("/") }
        }
        ["acme", ssl, "order"] => Target::Order(owned(ssl)),
        ["stress"] => Target::Stress(None),
        ["stress", section, id] => Target::Stress(Some(format!("{section}/{id}"))),
        ["history", rest @ ..] => past(rest).map_or(Target::Nothing, Target::History),
        ["schema" | "plugins" | "configs" | "cache" | "convert" | "acme" | "stress", ..] => Target::Nothing,
        [segment, rest @ ..] => match ProcessQuery::of_segment(segment) {
            Some(question) if rest.is_empty() => Target::Process(question),
            Some(_) => Target::Nothing,
            None => place(segment, None, rest),
        },
    }
}

fn past(rest: &[&str]) -> Option<Past> {
    let number = |text: &str| text.parse().ok();
    match rest {
        [] => Some(Past::List),
        [version] => Some(Past::Version(number(version)?)),
        [version, "rollback"] => Some(Past::Rollback(number(version)?)),
        [from, "diff", to] => Some(Past::Between(number(from)?, number(to)?)),
        _ => None,
    }
}

fn place(segment: &str, parent: Option<&str>, rest: &[&str]) -> Target {
    let Some(collection) = Collection::of_segment(segment) else {
        return Target::UnknownCollection(segment.to_owned());
    };
    Target::Resource(ResourcePath {
        collection,
        parent: parent.map(str::to_owned),
        id: rest.first().map(|id| (*id).to_owned()),
        sub_path: rest.iter().skip(1).map(|part| (*part).to_owned()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_collection() {
        for kind in Kind::ALL {
            let collection = COLLECTIONS.iter().find(|collection| collection.is(kind));
            assert_eq!(collection.map(|collection| collection.word), Some(kind.word()));
        }
    }

    #[test]
    fn paths_are_read() {
        let check = |path: &str, expected: &str| {
            let text = match target(path) {
                Target::Resource(place) => match &place.id {
                    Some(id) => format!("{} {:?}", place.key(id), place.sub_path),
                    None => format!("{} list", place.prefix()),
                },
                other => format!("{other:?}"),
            };
            assert_eq!(text, expected, "{path}");
        };
        check("/", "Start");
        check("/apisix", "Start");
        check("/apisix/", "Start");
        check("/apisixx", "Nothing");
        check("/apisix/admin", "Root");
        check("/apisix/admin/routes", "routes/ list");
        check("/apisix/admin/routes/", "routes/ list");
        check("/apisix/admin/routes/1", "routes/1 []");
        check("/apisix/admin/routes/a%20b", "routes/a b []");
        check("/apisix/admin/routes/1/upstream/nodes", r#"routes/1 ["upstream", "nodes"]"#);
        check("/apisix/admin/consumers/jack/credentials", "consumers/jack/credentials/ list");
        check("/apisix/admin/consumers/jack/credentials/c1", "consumers/jack/credentials/c1 []");
        check(
            "/apisix/admin/services/1/graphql_cost_decorations/d",
            "services/1/graphql_cost_decorations/d []",
        );
        check("/apisix/admin/secrets", "secrets/ list");
        check("/apisix/admin/secrets/vault", "secrets/ list");
        check("/apisix/admin/secrets/vault/1/uri", r#"secrets/vault/1 ["uri"]"#);
        check("/apisix/admin/credentials/1", r#"UnknownCollection("credentials")"#);
        check("/apisix/admin/nothing/1", r#"UnknownCollection("nothing")"#);
        check("/apisix/admin/schema/plugins/x", r#"Plugin("x")"#);
        check("/apisix/admin/schema/validate/routes", r#"Validate("routes")"#);
        check("/apisix/admin/plugins/list", "PluginNames");
        check("/apisix/admin/plugins/summaries", "PluginSummaries");
        check("/apisix/admin/configs/validate", "ConfigsValidate");
        check("/apisix/admin/convert/nginx", r#"Convert("nginx")"#);
        check("/apisix/admin/convert", "Nothing");
        check("/apisix/admin/history", "History(List)");
        check("/apisix/admin/history/7", "History(Version(7))");
        check("/apisix/admin/history/7/rollback", "History(Rollback(7))");
        check("/apisix/admin/history/7/diff/5", "History(Between(7, 5))");
        check("/apisix/admin/history/-1", "Nothing");
        check("/apisix/admin/history/x/rollback", "Nothing");
        check("/apisix/admin/plugins/limit-count/documentation", r#"Documentation("limit-count")"#);
        check("/apisix/admin/caller", "Caller");
        check("/apisix/admin/members", "Members");
        check("/apisix/admin/tap", "Tap");
        check("/apisix/admin/cache/purge", "Purge");
        check("/apisix/admin/cache", "Nothing");
        check("/apisix/admin/live", "Process(Live)");
        check("/apisix/admin/nodes/", "Process(Nodes)");
        check("/apisix/admin/nodes/upstreams/1", "Nothing");
        check(
            "/apisix/admin/nodes/upstreams/1/127.0.0.1:80",
            "NodeState { upstream: \"upstreams/1\", node: \"127.0.0.1:80\" }",
        );
        check(
            "/apisix/admin/nodes/routes/1/unix:%2Frun%2Fa",
            "NodeState { upstream: \"routes/1\", node: \"unix:/run/a\" }",
        );
        check("/apisix/admin/acme/1/order", "Order(\"1\")");
        check("/apisix/admin/acme/1", "Nothing");
        check("/apisix/admin/live/1", "Nothing");
        check("/apisix/adminx", "Nothing");
        check("/elsewhere", "Nothing");
    }
}
