//! Protocol Buffers definitions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::optional::Optional;
use super::shared::{Labels, UnixTime};
use sigma_schema::described::without_defaults;
use sigma_schema::id::Id;

resource! {
    /// A Protocol Buffers definition.
    #[schemars(extend("required" = ["content"]), transform = without_defaults("content"))]
    pub struct Proto [id name about times] {
        /// The text of a `.proto` file, or a FileDescriptorSet in base64.
        #[schemars(with = "String", length(min = 1, max = 1048576))]
        pub content: Box<str>,
    }
}
