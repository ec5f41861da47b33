//! Rules of role-based access control as conditions on variables.

use serde_json::{Map, Value, json};

use super::super::logic::{group, negated};
use super::super::tree::Tree;
use super::fields::{at, field, integer, is_true, items, text};
use super::matching::{header_condition, string_condition};

/// Maximum nesting of rules.
const MAX_DEPTH: usize = 16;

/// Returns the configuration of the plugin rbac.
pub(super) fn plugin(conf: &Tree) -> Result<Value, String> {
    let rules = field(conf, "rules").ok_or("rbac has no rules")?;
    let mut policies = Map::new();
    for policy in field(rules, "policies").map(Tree::members).unwrap_or_default() {
        for name in ["condition", "checked_condition"] {
            if field(&policy.value, name).is_some() {
                return Err("a CEL condition of rbac is not converted".to_owned());
            }
        }
        let permissions = any_of(items(&policy.value, "permissions"), 0)?;
        let principals = any_of(items(&policy.value, "principals"), 0)?;
        let condition = group("AND", vec![permissions, principals]);
        let value = json!({"permissions": [{"vars": [condition]}], "principals": [{"any": true}]});
        policies.insert(policy.key.clone(), value);
    }
    let action = text(rules, "action").unwrap_or("ALLOW");
    if action == "LOG" {
        return Err("rules that only log are not converted".to_owned());
    }
    Ok(json!({"rules": {"action": action, "policies": policies}}))
}

fn any_of(rules: &[Tree], depth: usize) -> Result<Value, String> {
    let conditions = rules.iter().map(|rule| condition(rule, depth + 1)).collect::<Result<Vec<_>, _>>()?;
    match conditions.is_empty() {
        true => Err("a policy of rbac is empty".to_owned()),
        false => Ok(group("OR", conditions)),
    }
}

/// Returns a permission or a principal as a condition.
fn condition(rule: &Tree, depth: usize) -> Result<Value, String> {
    if depth > MAX_DEPTH {
        return Err(format!("rules of rbac are nested deeper than {MAX_DEPTH} levels"));
    }
    let all = |name: &str, inner: &str, operator: &str| -> Option<Result<Value, String>> {
        let list = items(field(rule, name)?, inner);
        let conditions = list.iter().map(|rule| condition(rule, depth + 1)).collect::<Result<Vec<_>, _>>();
        Some(conditions.map(|conditions| group(operator, conditions)))
    };
    for (name, inner, operator) in [
        ("and_rules", "rules", "AND"),
        ("or_rules", "rules", "OR"),
        ("and_ids", "ids", "AND"),
        ("or_ids", "ids", "OR"),
    ] {
        if let Some(found) = all(name, inner, operator) {
            return found;
        }
    }
    for name in ["not_rule", "not_id"] {
        if let Some(inner) = field(rule, name) {
            return condition(inner, depth + 1).map(negated);
        }
    }
    if is_true(rule, "any") {
        return Ok(json!(["uri", "~~", "^/"]));
    }
    if let Some(header) = field(rule, "header") {
        return header_condition(header);
    }
    if let Some(path) = at(rule, &["url_path", "path"]) {
        return string_condition("uri", path);
    }
    if let Some(port) = integer(rule, "destination_port") {
        return Ok(json!(["server_port", "==", port.to_string()]));
    }
    for (name, variable) in [
        ("direct_remote_ip", "realip_remote_addr"),
        ("remote_ip", "remote_addr"),
        ("source_ip", "remote_addr"),
    ] {
        if let Some(range) = field(rule, name) {
            let prefix = text(range, "address_prefix").ok_or("an address of rbac is missing")?;
            let default = if prefix.contains(':') { 128 } else { 32 };
            let length = integer(range, "prefix_len").unwrap_or(default);
            return Ok(json!([variable, "ipmatch", [format!("{prefix}/{length}")]]));
        }
    }
    Err("a rule of rbac is not converted".to_owned())
}
