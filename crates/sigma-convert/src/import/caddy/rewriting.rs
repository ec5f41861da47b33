//! New paths and queries of requests, as fields of proxy-rewrite.

use serde_json::{Map, Value, json};

/// The client's path. A configuration that uses it has the variable of `Variables::define_rest`.
const SAME_PATH: &str = "/${var_path_rest}";

/// The new path of a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Rewrite {
    /// `lead` and the rest of the client's path after `known`.
    Prefix { known: String, lead: String },
    /// This path.
    Fixed(String),
    /// A text with variables.
    Template(String),
    /// Patterns with replacements.
    Regex(Vec<String>),
}

/// The new query of a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Query {
    Kept,
    /// Replaced by this text.
    Text(String),
    /// The client's with changes.
    Changed(QueryRules),
}

/// Changes of arguments, each a name and a text.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct QueryRules {
    pub(super) rename: Vec<(String, String)>,
    pub(super) remove: Vec<String>,
    pub(super) set: Vec<(String, String)>,
    pub(super) add: Vec<(String, String)>,
}

impl Rewrite {
    pub(super) fn insert(&self, query: &Query, rewrite: &mut Map<String, Value>) {
        let suffix = match query {
            Query::Text(text) => format!("?{text}"),
            _ => String::new(),
        };
        match self {
            Rewrite::Prefix { known, lead } if known.is_empty() && lead.is_empty() => {
                if !suffix.is_empty() {
                    rewrite.insert("uri".to_owned(), format!("{SAME_PATH}{suffix}").into());
                }
            }
            Rewrite::Prefix { known, lead } => {
                let known = regex::escape(known);
                let whole = if lead.is_empty() { "/" } else { lead };
                let pairs = json!([
                    format!("(?i)^{known}$"),
                    format!("{whole}{suffix}"),
                    format!("(?i)^{known}/?(.*)$"),
                    format!("{lead}/$1{suffix}"),
                ]);
                rewrite.insert("regex_uri".to_owned(), pairs);
                if lead.is_empty() {
                    rewrite.insert("keep_escapes".to_owned(), true.into());
                }
            }
            Rewrite::Fixed(text) | Rewrite::Template(text) => {
                rewrite.insert("uri".to_owned(), format!("{text}{suffix}").into());
            }
            Rewrite::Regex(pairs) => {
                rewrite.insert("regex_uri".to_owned(), json!(pairs));
            }
        }
        match query {
            Query::Kept => {}
            Query::Text(_) => {
                rewrite.insert("args".to_owned(), json!({"pass": []}));
            }
            Query::Changed(rules) => {
                let mut args = Map::new();
                for (name, list) in [("rename", &rules.rename), ("set", &rules.set), ("add", &rules.add)] {
                    let members: Map<String, Value> =
                        list.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
                    if !members.is_empty() {
                        args.insert(name.to_owned(), Value::Object(members));
                    }
                }
                if !rules.remove.is_empty() {
                    args.insert("remove".to_owned(), json!(rules.remove));
                }
                if !args.is_empty() {
                    rewrite.insert("args".to_owned(), Value::Object(args));
                }
            }
        }
    }

    /// The patterns of a change of the client's path, with their replacements.
    pub(super) fn patterns(&self) -> Option<Vec<String>> {
        match self {
            Rewrite::Prefix { known, lead } if known.is_empty() && lead.is_empty() => None,
            Rewrite::Prefix { known, lead } => {
                let known = regex::escape(known);
                let whole = if lead.is_empty() { "/" } else { lead };
                Some(vec![
                    format!("(?i)^{known}$"),
                    whole.to_owned(),
                    format!("(?i)^{known}/?(.*)$"),
                    format!("{lead}/$1"),
                ])
            }
            Rewrite::Regex(pairs) => Some(pairs.clone()),
            Rewrite::Fixed(_) | Rewrite::Template(_) => None,
        }
    }
}
