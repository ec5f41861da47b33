//! Consumers, their credentials and their groups.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::optional::Optional;
use super::shared::{Labels, Plugins, UnixTime};
use sigma_schema::described::without_defaults;
use sigma_schema::forms::{CredentialId, USERNAME_PATTERN};
use sigma_schema::id::Id;

resource! {
    /// A client of the gateway. The label `custom_id` is sent upstream as `X-Consumer-Custom-ID`.
    #[schemars(extend("required" = ["username"]), transform = without_defaults("username"))]
    pub struct Consumer {
        /// The name, which is the id: letters, digits, `-` and `_`.
        #[schemars(with = "String", length(min = 1, max = 256), extend("pattern" = USERNAME_PATTERN))]
        pub username: Box<str>,
        /// The name again, if it is written.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub id: Option<Box<Id>>,
    } [about times] {
        /// Reference to a consumer group.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub group_id: Option<Id>,
        /// Its credentials, by authentication plugin, and further plugins.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        pub plugins: Plugins,
    }
}

resource! {
    /// An additional credential of a consumer.
    #[schemars(transform = without_defaults("id"))]
    pub struct Credential {
        /// The id with the consumer's name: `jack/credentials/c1`.
        #[schemars(with = "CredentialId")]
        pub id: Box<str>,
    } [name about times] {
        /// The credential, by authentication plugin; at most one.
        #[serde(skip_serializing_if = "Optional::is_unset")]
        #[schemars(extend("maxProperties" = 1))]
        pub plugins: Plugins,
    }
}

impl Credential {
    /// Returns the name of the consumer and the id among its credentials.
    #[must_use]
    pub fn owner_and_id(&self) -> Option<(&str, &str)> {
        split_credential(&self.id)
    }
}

/// Splits `jack/credentials/c1` into `jack` and `c1`.
pub(crate) fn split_credential(id: &str) -> Option<(&str, &str)> {
    id.split_once("/credentials/")
}

/// An item of the section `consumers` of a file: a consumer, or a credential if the `id` says so.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) enum ConsumerItem {
    Consumer(Consumer),
    Credential(Credential),
}

resource! {
    /// Plugins that several consumers share.
    #[schemars(extend("required" = ["id", "plugins"]), transform = without_defaults("plugins"))]
    pub struct ConsumerGroup [id name about times] {
        /// Plugins by name.
        pub plugins: Plugins,
    }
}
