//! FastCGI parameters for `scheme: fcgi`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether the application sees that the client uses TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FastCgiHttps {
    /// If `X-Forwarded-Proto` is `https`; the field is the gateway's own, or from a trusted proxy.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Requests to FastCGI applications such as PHP (nginx: `fastcgi_*`). Without `root` and `script_filename` no script is
/// named: the application gets the whole path as PATH_INFO. With one of them the script is `index` for every path,
/// unless `split_path_info` matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FastCgi {
    /// The folder of the scripts as the application sees it (DOCUMENT_ROOT).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 1, max = 1024), extend("pattern" = "^/"))]
    pub root: Option<Box<str>>,
    /// The file to run (SCRIPT_FILENAME), with variables such as `$document_root`, `$fastcgi_script_name` and
    /// `$fastcgi_path_info`; unset: `$document_root$fastcgi_script_name`, if there is a `root`. A file with a `..`
    /// segment or a control character gets 404.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 1, max = 4096))]
    pub script_filename: Option<Box<str>>,
    /// The script for paths without one. With `split_path_info` it is also appended to a path that ends in `/`.
    #[schemars(with = "String", length(min = 1, max = 255), extend("pattern" = "^[^/]+$"))]
    pub index: Box<str>,
    /// A pattern with two groups: the script in the path (SCRIPT_NAME), and the rest (PATH_INFO). Paths that do not
    /// match use `index`. A script in a folder with a dot in its name gets 404, because it may be an uploaded file.
    /// This rule does not apply to a `script_filename` with `$uri`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 1, max = 1024))]
    pub split_path_info: Option<Box<str>>,
    /// Additional parameters, or replacements of the gateway's own, with variables. Empty ones are not sent.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, String>", extend(
        "maxProperties" = 64,
        "propertyNames" = { "pattern": "^[A-Za-z][A-Za-z0-9_]{0,127}$" }
    ))]
    pub params: BTreeMap<Box<str>, Box<str>>,
    /// Whether HTTPS is `on` and REQUEST_SCHEME `https`.
    pub https: FastCgiHttps,
    /// Whether connections are kept open (FCGI_KEEP_CONN). A PHP process serves one connection at a time. Idle
    /// connections block up to `keepalive_pool.size` processes for each worker of the gateway.
    pub keep_conn: bool,
    /// Maximum size in bytes of a request body without a declared length; a larger one gets 413. Such a body is
    /// buffered completely, because applications get the length first.
    #[schemars(range(max = 1_073_741_824))]
    pub unsized_body_bytes: u32,
}

impl Default for FastCgi {
    fn default() -> FastCgi {
        FastCgi {
            root: None,
            script_filename: None,
            index: "index.php".into(),
            split_path_info: None,
            params: BTreeMap::new(),
            https: FastCgiHttps::Auto,
            keep_conn: false,
            // nginx's limit for any body by default.
            unsized_body_bytes: 1024 * 1024,
        }
    }
}

impl FastCgi {
    /// The variables of `script_filename` and `params`, besides the variables of every exchange.
    pub const VARIABLES: [&'static str; 3] = ["document_root", "fastcgi_path_info", "fastcgi_script_name"];
}
