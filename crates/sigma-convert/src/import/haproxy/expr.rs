//! Conditions: as Sigma's conditions on variables, or as Lua where these cannot say them.

use serde_json::{Value, json};

/// A condition.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expr {
    True,
    False,
    Not(Box<Expr>),
    All(Vec<Expr>),
    Any(Vec<Expr>),
    Atom(Atom),
}

/// A comparison.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Atom {
    /// In the syntax of `vars`, if it can be said there.
    pub vars: Option<Value>,
    /// As an expression of Lua.
    pub lua: String,
    /// The subject, for paths and hosts that the router finds by tree.
    pub subject: Subject,
}

/// The subject of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Subject {
    /// The path is one of these; no case is ignored.
    Paths(Vec<super::super::decision::Path>),
    /// The host is one of these, in lower case.
    Hosts(Vec<String>),
    /// The number of usable servers of a backend is below one.
    NoServers(String),
    /// A limit: the counter of a tracked key is above a number.
    Above { counter: String, index: u8, table: Option<String>, number: u64 },
    /// The credentials are in a list of users.
    Credentials(String),
    /// A random number of `of` is below `below`.
    Random { below: u64, of: u64 },
    /// It reads the response.
    Response,
    #[default]
    Other,
}

impl Expr {
    /// All of them; simplified.
    pub(super) fn all(list: Vec<Expr>) -> Expr {
        let mut out = Vec::new();
        for expr in list {
            match expr {
                Expr::True => {}
                Expr::False => return Expr::False,
                Expr::All(inner) => out.extend(inner),
                other => out.push(other),
            }
        }
        match out.len() {
            0 => Expr::True,
            1 => out.remove(0),
            _ => Expr::All(out),
        }
    }

    /// One of them; simplified.
    pub(super) fn any(list: Vec<Expr>) -> Expr {
        let mut out = Vec::new();
        for expr in list {
            match expr {
                Expr::False => {}
                Expr::True => return Expr::True,
                Expr::Any(inner) => out.extend(inner),
                other => out.push(other),
            }
        }
        match out.len() {
            0 => Expr::False,
            1 => out.remove(0),
            _ => Expr::Any(out),
        }
    }

    /// The opposite.
    pub(super) fn not(self) -> Expr {
        match self {
            Expr::True => Expr::False,
            Expr::False => Expr::True,
            Expr::Not(inner) => *inner,
            other => Expr::Not(Box::new(other)),
        }
    }

    /// Returns a condition that holds at least as often, without the comparisons that have this property.
    pub(super) fn without(self, test: &dyn Fn(&Subject) -> bool) -> Expr {
        match self {
            Expr::All(list) => Expr::all(list.into_iter().map(|expr| expr.without(test)).collect()),
            Expr::Any(list) => Expr::any(list.into_iter().map(|expr| expr.without(test)).collect()),
            other if other.has(test) => Expr::True,
            other => other,
        }
    }

    /// Calls `visit` for each comparison.
    pub(super) fn atoms<'e>(&'e self, visit: &mut dyn FnMut(&'e Atom)) {
        match self {
            Expr::True | Expr::False => {}
            Expr::Not(inner) => inner.atoms(visit),
            Expr::All(list) | Expr::Any(list) => list.iter().for_each(|expr| expr.atoms(visit)),
            Expr::Atom(atom) => visit(atom),
        }
    }

    /// Whether a comparison has this property.
    pub(super) fn has(&self, test: impl Fn(&Subject) -> bool) -> bool {
        let mut found = false;
        self.atoms(&mut |atom| found |= test(&atom.subject));
        found
    }

    /// The conditions of a list, all of which must hold.
    pub(super) fn conjuncts(self) -> Vec<Expr> {
        match self {
            Expr::All(list) => list,
            Expr::True => Vec::new(),
            other => vec![other],
        }
    }

    /// Returns the condition in the syntax of `vars`; None if a comparison needs Lua.
    pub(super) fn vars(&self) -> Option<Value> {
        let group = |word: &str, list: &[Expr]| -> Option<Value> {
            let mut out = vec![Value::from(word)];
            for expr in list {
                out.push(expr.vars()?);
            }
            Some(Value::Array(out))
        };
        match self {
            Expr::True => Some(json!(["request_method", "~=", ""])),
            Expr::False => Some(json!(["request_method", "==", ""])),
            Expr::Atom(atom) => atom.vars.clone(),
            Expr::All(list) => group("AND", list),
            Expr::Any(list) => group("OR", list),
            Expr::Not(inner) => match &**inner {
                Expr::Atom(atom) => negated(atom.vars.as_ref()?),
                Expr::All(list) => group("!AND", list),
                Expr::Any(list) => group("!OR", list),
                other => other.clone().not().vars(),
            },
        }
    }

    /// Returns the condition as an expression of Lua.
    pub(super) fn lua(&self) -> String {
        let joined = |word: &str, list: &[Expr]| {
            let parts: Vec<String> = list.iter().map(|expr| format!("({})", expr.lua())).collect();
            parts.join(word)
        };
        match self {
            Expr::True => "true".to_owned(),
            Expr::False => "false".to_owned(),
            Expr::Atom(atom) => atom.lua.clone(),
            Expr::All(list) => joined(" and ", list),
            Expr::Any(list) => joined(" or ", list),
            Expr::Not(inner) => format!("not ({})", inner.lua()),
        }
    }
}

/// A condition with `!` before its operator.
fn negated(condition: &Value) -> Option<Value> {
    let parts = condition.as_array()?;
    match &parts[..] {
        [word, rest @ ..] if word == "OR" || word == "AND" => {
            let mut out = vec![json!(format!("!{}", word.as_str()?))];
            out.extend(rest.iter().cloned());
            Some(Value::Array(out))
        }
        [variable, operator, value] if operator == "~=" && value.is_null() => {
            Some(json!([variable, "==", null]))
        }
        [variable, operator, value] if operator == "==" && value.is_null() => {
            Some(json!([variable, "~=", null]))
        }
        [variable, rest @ ..] => {
            let mut out = vec![variable.clone(), json!("!")];
            out.extend(rest.iter().cloned());
            Some(Value::Array(out))
        }
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn atom(vars: Value) -> Expr {
        Expr::Atom(Atom { vars: Some(vars), lua: "x".to_owned(), subject: Subject::Other })
    }

    #[test]
    fn conditions_are_simplified_and_negated() {
        let a = atom(json!(["a", "==", "1"]));
        assert_eq!(Expr::all(vec![Expr::True, a.clone()]), a);
        assert_eq!(Expr::any(vec![Expr::True, a.clone()]), Expr::True);
        assert_eq!(a.clone().not().vars(), Some(json!(["a", "!", "==", "1"])));
        let group = Expr::any(vec![a.clone(), atom(json!(["b", "~=", null]))]);
        assert_eq!(group.clone().not().vars(), Some(json!(["!OR", ["a", "==", "1"], ["b", "~=", null]])));
        assert_eq!(atom(json!(["b", "~=", null])).not().vars(), Some(json!(["b", "==", null])));
        assert_eq!(group.not().lua(), "not ((x) or (x))");
        let login = Expr::Atom(Atom {
            vars: None,
            lua: String::new(),
            subject: Subject::Credentials("staff".to_owned()),
        });
        let without = |expr: Expr| expr.without(&|subject| matches!(subject, Subject::Credentials(_)));
        assert_eq!(without(Expr::all(vec![a.clone(), login.clone().not()])), a);
        assert_eq!(without(Expr::any(vec![a, login])), Expr::True);
    }
}
