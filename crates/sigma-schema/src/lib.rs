//! The schema language, which describes, reads and checks settings, resources and plugin configurations.
//!
//! It contains no setting and no resource, and does no I/O.

pub mod address;
pub mod cidr;
pub mod civil;
pub mod confidential;
pub mod conform;
pub mod defined;
pub mod described;
pub mod docs;
pub mod document;
pub mod expr;
pub mod formats;
pub mod forms;
pub mod id;
pub mod json_path;
pub mod node_address;
pub mod openapi;
pub mod path_regex;
pub mod plugins;
pub mod problem;
pub mod proto;
pub mod synonyms;
pub mod template;
pub mod validation;

pub use confidential::Confidential;
pub use problem::Problem;
