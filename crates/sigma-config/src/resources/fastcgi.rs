//! What applications behind `scheme: fcgi` are told of a request.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether applications are told that the client speaks TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FastCgiHttps {
    /// If `X-Forwarded-Proto` says so, which is the gateway's own or that of a trusted proxy.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Requests to FastCGI applications such as PHP (nginx: `fastcgi_*`). Without `root` and `script_filename` no script is
/// named: the application gets the whole path as PATH_INFO. With one of them the script is `index`, whatever the path,
/// unless `split_path_info` finds another in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FastCgi {
    /// The folder of the scripts as the application sees it (DOCUMENT_ROOT).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 1, max = 1024), extend("pattern" = "^/"))]
    pub root: Option<Box<str>>,
    /// The file to run (SCRIPT_FILENAME), with variables, among them `$document_root`, `$fastcgi_script_name` and
    /// `$fastcgi_path_info`; unset: `$document_root$fastcgi_script_name`, if there is a `root`. One with a `..` segment
    /// or a control character is answered 404.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 1, max = 4096))]
    pub script_filename: Option<Box<str>>,
    /// The script of paths in which no other is found; with `split_path_info` it is also added to a path that ends
    /// in `/`.
    #[schemars(with = "String", length(min = 1, max = 255), extend("pattern" = "^[^/]+$"))]
    pub index: Box<str>,
    /// A pattern with two groups: the script in the path (SCRIPT_NAME), and what follows it (PATH_INFO). Paths that do
    /// not match get `index`. A script that is found in a folder with a dot in its name is answered 404: it may be a
    /// file that somebody has uploaded. `script_filename` with `$uri` knows no such rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 1, max = 1024))]
    pub split_path_info: Option<Box<str>>,
    /// Further parameters, or others than the gateway's own, with variables. One whose text is empty is not sent.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, String>", extend(
        "maxProperties" = 64,
        "propertyNames" = { "pattern": "^[A-Z][A-Z0-9_]{0,127}$" }
    ))]
    pub params: BTreeMap<Box<str>, Box<str>>,
    /// Whether HTTPS is `on` and REQUEST_SCHEME `https`.
    pub https: FastCgiHttps,
    /// Whether connections are kept open (FCGI_KEEP_CONN). A process of PHP serves one connection at a time: as many as
    /// `keepalive_pool.size` on each worker of the gateway are taken from the others even while they idle.
    pub keep_conn: bool,
    /// Most bytes of a request body whose length the client does not declare; a longer one is answered 413. Such a body
    /// is held in memory to its end, because applications are told the length first.
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
            // What nginx takes of any body without a setting.
            unsized_body_bytes: 1024 * 1024,
        }
    }
}

impl FastCgi {
    /// The variables that `script_filename` and `params` have beside those of every exchange.
    pub const VARIABLES: [&'static str; 3] = ["document_root", "fastcgi_path_info", "fastcgi_script_name"];
}
