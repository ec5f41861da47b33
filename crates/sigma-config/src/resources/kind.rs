//! The kinds of resources, and their keys in stores.

use std::fmt;

/// A kind of resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A route.
    Route,
    /// A service.
    Service,
    /// An upstream.
    Upstream,
    /// A consumer.
    Consumer,
    /// A credential of a consumer.
    Credential,
    /// A consumer group.
    ConsumerGroup,
    /// A certificate with its key.
    Ssl,
    /// A global rule.
    GlobalRule,
    /// A set of plugins that routes refer to.
    PluginConfig,
    /// Settings shared by all configurations of a plugin.
    PluginMetadata,
    /// A Protocol Buffers definition.
    Proto,
    /// A route for TCP or UDP.
    StreamRoute,
    /// The configuration of a secret manager.
    Secret,
}

impl Kind {
    /// All kinds, in the order of possible references: later kinds may refer to earlier ones.
    pub const ALL: [Kind; 13] = [
        Kind::Secret,
        Kind::Ssl,
        Kind::Proto,
        Kind::PluginMetadata,
        Kind::Upstream,
        Kind::Service,
        Kind::PluginConfig,
        Kind::ConsumerGroup,
        Kind::Consumer,
        Kind::Credential,
        Kind::GlobalRule,
        Kind::Route,
        Kind::StreamRoute,
    ];

    /// Returns the section of a file, the path segment of the Admin API and the directory in etcd. Credentials are
    /// stored below their consumers.
    pub fn section(self) -> &'static str {
        match self {
            Kind::Route => "routes",
            Kind::Service => "services",
            Kind::Upstream => "upstreams",
            Kind::Consumer | Kind::Credential => "consumers",
            Kind::ConsumerGroup => "consumer_groups",
            Kind::Ssl => "ssls",
            Kind::GlobalRule => "global_rules",
            Kind::PluginConfig => "plugin_configs",
            Kind::PluginMetadata => "plugin_metadata",
            Kind::Proto => "protos",
            Kind::StreamRoute => "stream_routes",
            Kind::Secret => "secrets",
        }
    }

    /// Returns APISIX's word for it in messages.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Route => "route",
            Kind::Service => "service",
            Kind::Upstream => "upstream",
            Kind::Consumer => "consumer",
            Kind::Credential => "credential",
            Kind::ConsumerGroup => "consumer group",
            Kind::Ssl => "ssl",
            Kind::GlobalRule => "global rule",
            Kind::PluginConfig => "plugin config",
            Kind::PluginMetadata => "plugin_metadata",
            Kind::Proto => "proto",
            Kind::StreamRoute => "stream route",
            Kind::Secret => "secret",
        }
    }
}

/// The key of a resource: its kind and its id within the kind. The id of a credential is `<username>/credentials/<id>`,
/// the id of a secret `<manager>/<id>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceKey {
    /// The kind.
    pub kind: Kind,
    /// The id.
    pub id: String,
}

impl ResourceKey {
    /// Creates the key of the resource `id` of a kind.
    pub fn new(kind: Kind, id: impl Into<String>) -> ResourceKey {
        ResourceKey { kind, id: id.into() }
    }

    /// Parses a store key without its prefix, such as `routes/1`. Returns None for other keys: placeholders of
    /// directories, and keys of other programs.
    pub fn parse(key: &str) -> Option<ResourceKey> {
        let (section, id) = key.split_once('/')?;
        if id.is_empty() {
            return None;
        }
        let kind = Kind::ALL.into_iter().find(|kind| kind.section() == section)?;
        let parts = id.split('/').count();
        let kind = match (kind, parts) {
            (Kind::Consumer | Kind::Credential, 1) => Kind::Consumer,
            (Kind::Consumer | Kind::Credential, 3) if id.split('/').nth(1) == Some("credentials") => {
                Kind::Credential
            }
            (Kind::Secret, 2) => Kind::Secret,
            (Kind::Consumer | Kind::Credential | Kind::Secret, _) => return None,
            (kind, 1) => kind,
            _ => return None,
        };
        Some(ResourceKey::new(kind, id))
    }
}

impl fmt::Display for ResourceKey {
    /// Writes the store key without its prefix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.section(), self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_written() {
        let check = |key: &str, expected: Option<Kind>| {
            let parsed = ResourceKey::parse(key);
            assert_eq!(parsed.as_ref().map(|k| k.kind), expected, "{key}");
            if let Some(parsed) = parsed {
                assert_eq!(parsed.to_string(), key);
            }
        };
        check("routes/1", Some(Kind::Route));
        check("consumers/jack", Some(Kind::Consumer));
        check("consumers/jack/credentials/c1", Some(Kind::Credential));
        check("consumers/jack/other/c1", None);
        check("secrets/vault/1", Some(Kind::Secret));
        check("secrets/vault", None);
        check("routes/", None);
        check("routes/1/2", None);
        check("plugins", None);
        check("data_plane/server_info/x", None);
    }
}
