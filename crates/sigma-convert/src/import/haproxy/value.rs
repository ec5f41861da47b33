//! Values of requests and responses, and the calls that make them.

use super::expr::Subject;

/// A value of a request or response.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    /// The variable, where one has exactly this value.
    pub variable: Option<String>,
    /// The text with variables, where one has this value; `variable` in other words, or a joined text.
    pub text: Option<String>,
    /// The expression of Lua: a text, or nil.
    pub lua: String,
    /// A converter has made letters small.
    pub lowered: bool,
    pub kind: Kind,
}

/// Kinds of values, by which patterns are compared.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Text,
    /// A list of values with commas between them.
    List,
    Host,
    Path,
    Number,
    Address,
    /// True or false; the condition in the syntax of `vars`.
    Bool(Option<serde_json::Value>),
    Method,
    /// A fetch that conditions handle by themselves.
    Special(Subject),
}

/// A fetch or converter with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub name: String,
    pub args: Vec<String>,
}

impl Sample {
    pub(super) fn of_variable(name: &str, kind: Kind) -> Sample {
        Sample {
            variable: Some(name.to_owned()),
            text: Some(format!("${{{name}}}")),
            lua: format!("ngx.var.{name}"),
            lowered: false,
            kind,
        }
    }

    pub(super) fn lua(code: String, kind: Kind) -> Sample {
        Sample { variable: None, text: None, lua: code, lowered: false, kind }
    }

    pub(super) fn literal(text: &str) -> Sample {
        Sample {
            variable: None,
            text: Some(text.replace('$', "\\$")),
            lua: super::lua::text(text),
            lowered: false,
            kind: Kind::Text,
        }
    }

    pub(super) fn boolean(variable: &str, operator: &str, value: serde_json::Value, lua: &str) -> Sample {
        let condition = serde_json::json!([variable, operator, value]);
        Sample::lua(lua.to_owned(), Kind::Bool(Some(condition)))
    }

    pub(super) fn special(subject: Subject) -> Sample {
        Sample::lua("nil".to_owned(), Kind::Special(subject))
    }
}
