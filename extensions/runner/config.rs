//! The configuration of the three plugins, and the name by which the runner knows it.

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::{Build, Configuration};

use crate::client::Conf;

/// Passes requests or responses to plugins in another language.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Fields {
    /// The external plugins, in their order. Unset: the runner decides.
    #[schemars(length(min = 1))]
    conf: Option<Vec<External>>,
    /// Whether requests continue if the runner fails. Otherwise they get 503.
    #[schemars(extend("default" = false))]
    pub(crate) allow_degradation: bool,
}

/// An external plugin.
#[derive(Debug, Deserialize, JsonSchema)]
struct External {
    /// Its name in the runner.
    #[schemars(length(min = 1, max = 128))]
    name: String,
    /// Its configuration: a text, by convention JSON.
    value: String,
}

impl Configuration for Fields {}

impl Fields {
    /// Returns the configuration for the runner.
    pub(crate) fn for_runner(self, build: &Build<'_>) -> Conf {
        let plugins = self.conf.map(|all| all.into_iter().map(|one| (one.name, one.value)).collect());
        let key = key(build.resource, build.plugin, build.conf_hash());
        Conf { key, plugins }
    }
}

/// Returns the key of a configuration: the kind and the id of its resource, the plugin, and the version, which is a
/// hash. `/apisix/routes/1` becomes `route#1#…`.
fn key(resource: &str, plugin: &str, version: u64) -> String {
    let mut parts = resource.trim_start_matches('/').splitn(3, '/').skip(1);
    let (kind, id) = (parts.next().unwrap_or(resource), parts.next().unwrap_or_default());
    let kind = kind.strip_suffix('s').unwrap_or(kind);
    format!("{kind}#{id}#{plugin}#{version:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_resource_plugin_and_version() {
        let check = |resource: &str, expected: &str| {
            assert_eq!(
                key(resource, "ext-plugin-pre-req", 255),
                format!("{expected}#ext-plugin-pre-req#00000000000000ff")
            );
        };
        check("/apisix/routes/1", "route#1");
        check("/apisix/global_rules/a", "global_rule#a");
        check("/apisix/consumers/jack/credentials/1", "consumer#jack/credentials/1");
        check("odd", "odd#");
    }
}
