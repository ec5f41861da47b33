//! Keywords that apply several schemas to the same value: `allOf`, `anyOf`, `oneOf`, `if`, `not`, and the OpenAPI
//! discriminator.

use std::borrow::Cow;

use serde_json::Value;

use super::node::{Condition, Discriminator, Node, NodeId, Types};
use super::plain::{self, PlainMessage};
use super::walk::{Outcome, ValuePosition, Walk, check_type};
use super::{remedy, text};
use crate::problem::Problem;

impl Walk<'_> {
    /// `allOf`, `anyOf`, `oneOf`, `if`, `not`.
    pub(super) fn combinations(
        &self,
        node: &Node,
        value: &mut Cow<'_, Value>,
        at: &ValuePosition<'_>,
    ) -> Outcome {
        for (index, id) in node.combined.all_of.iter().enumerate() {
            self.node(*id, value, &at.same())
                .map_err(|cause| format!("allOf {} failed: {cause}", index + 1))?;
        }
        if let Some(choice) = &node.combined.discriminator {
            self.discriminator(choice, value, at)?;
        }
        if let Some(any) = &node.combined.any_of
            && !any.branches.iter().any(|id| self.adopt(*id, value, at))
        {
            self.no_branch(&any.branches, &any.failure, value, at)?;
        }
        if !node.combined.one_of.is_empty() {
            self.one_of(&node.combined.one_of, value, at)?;
        }
        if let Some(condition) = &node.combined.condition {
            self.condition(condition, value, at)?;
        }
        match node.combined.not {
            Some(id) if self.attempt(id, value, at).is_some() => {
                let text = "value wasn't supposed to match schema";
                let hint = || remedy::of_excluded(self.nodes, id, value);
                let said = || plain::of_excluded(remedy::excluded(self.nodes, id, value));
                self.fail_as(at, "conflict", text, hint, said)
            }
            _ => Ok(()),
        }
    }

    fn one_of(&self, branches: &[NodeId], value: &mut Cow<'_, Value>, at: &ValuePosition<'_>) -> Outcome {
        let mut matched = None;
        for (index, id) in branches.iter().enumerate() {
            let Some(added) = self.attempt(*id, value, at) else { continue };
            if let Some((earlier, _)) = matched {
                let text = format!(
                    "value should match only one schema, but matches both schemas {earlier} and {}",
                    index + 1
                );
                let [one, other] = [branches[earlier - 1], *id].map(|id| &self.nodes[id]);
                let (Some(one), Some(other)) = (remedy::own(one, other), remedy::own(other, one)) else {
                    let said = || {
                        PlainMessage::new("the value matches two alternatives, but only one may match", None)
                    };
                    return self.fail_as(at, "conflict", text, || None, said);
                };
                let said = || plain::of_excluded(vec![one, other]);
                let hint = || remedy::of_several([one, other]);
                return self.fail_as(&at.member(other), "conflict", text, hint, said);
            }
            matched = Some((index + 1, added));
        }
        let Some((_, added)) = matched else {
            let text = "value should match only one schema, but matches none";
            return self.no_branch(branches, text, value, at);
        };
        if let Some(added) = added {
            *value = Cow::Owned(added);
        }
        Ok(())
    }

    /// The value matches no branch. If it can only have been meant for one, that one says why.
    fn no_branch(&self, branches: &[NodeId], text: &str, value: &Value, at: &ValuePosition<'_>) -> Outcome {
        if self.collects_plainly() {
            return self.meant_branch(branches, text, value, at);
        }
        let mut meant =
            branches.iter().filter(|id| check_type(&self.nodes[**id].types, value, self.empties()).is_ok());
        match (meant.next(), meant.next()) {
            (Some(only), None) => self.fail_because(at, text, *only, value),
            (None, _) => self.fail(at, "type", text, || remedy::of_types(self.nodes, branches)),
            _ => self.fail(at, "missing", text, || remedy::of_branches(self.nodes, branches, value)),
        }
    }

    /// The failures of the branch that the value is most likely meant for.
    fn meant_branch(
        &self,
        branches: &[NodeId],
        text: &str,
        value: &Value,
        at: &ValuePosition<'_>,
    ) -> Outcome {
        let fits = |id: &NodeId| check_type(&self.nodes[*id].types, value, self.empties()).is_ok();
        let fitting: Vec<NodeId> = branches.iter().copied().filter(fits).collect();
        let names_values =
            |id: &NodeId| self.nodes[*id].constant.is_some() || self.nodes[*id].enumeration.is_some();
        let is_choice = branches.len() > 1 && branches.iter().any(names_values);
        if is_choice && fitting.iter().all(names_values) && fitting.len() < 2 {
            let nodes: Vec<&Node> = branches.iter().map(|id| &self.nodes[*id]).collect();
            return self.fail_as(
                at,
                "enum",
                text,
                || None,
                || plain::of_alternatives(&nodes, value, at.name()),
            );
        }
        if fitting.is_empty() {
            let types: Vec<&Types> = branches.iter().map(|id| &self.nodes[*id].types).collect();
            return self.fail_as(at, "type", text, || None, || plain::of_type(&types, value, at.name()));
        }
        let lacking: Vec<Vec<&str>> =
            fitting.iter().map(|id| remedy::lacking(&self.nodes[*id], value)).collect();
        if fitting.len() > 1 && lacking.iter().all(|names| !names.is_empty()) {
            let present = |id: &NodeId| remedy::present(&self.nodes[*id], value);
            let most = fitting.iter().map(present).max();
            let sets = fitting.iter().zip(&lacking).filter(|(id, _)| Some(present(id)) == most);
            let sets = sets.map(|(_, names)| names.clone()).collect();
            return self.fail_as(at, "missing", text, || None, || plain::of_lacking(sets));
        }
        if fitting.len() > 1 && !value.is_object() && !value.is_array() {
            let source =
                |id: &NodeId| Some(self.nodes[*id].rules.string.as_ref()?.pattern.as_ref()?.source());
            let look = || fitting.iter().find_map(|id| plain::look(source(id)?));
            let hint = || look().or_else(|| remedy::of_branches(self.nodes, &fitting, value));
            return self.fail_as(at, "pattern", text, || None, || plain::of_scalar(value, hint()));
        }
        let found = self.closest_branch(&fitting, value, at);
        if found.is_empty() {
            return self.fail(at, "conflict", "the value matches no alternative", || None);
        }
        self.fail_for(found)
    }

    /// The failures of the branch that the value differs least from.
    fn closest_branch(&self, branches: &[NodeId], value: &Value, at: &ValuePosition<'_>) -> Vec<Problem> {
        let here = at.pointer();
        let tried = branches.iter().map(|id| {
            let found = Walk::problems(self.nodes, *id, value, &at.same(), true);
            // A member whose value differs from the branch's constant belongs to another branch.
            let is_named = |problem: &&Problem| problem.code == "enum" && is_member(&problem.pointer, &here);
            let others = found.iter().filter(is_named).count() + self.foreign(*id, branches, value);
            (others, found)
        });
        let closest = tried.min_by_key(|(others, found)| (*others, found.len()));
        closest.map(|(_, found)| found).unwrap_or_default()
    }

    /// Returns the number of members that only other branches have.
    fn foreign(&self, id: NodeId, branches: &[NodeId], value: &Value) -> usize {
        let names = |id: NodeId| {
            let rules = self.nodes[id].rules.object.iter();
            rules.flat_map(|rules| &rules.properties).map(|property| property.name.as_str())
        };
        let has = |id: NodeId, name: &str| names(id).any(|own| own == name);
        let members = value.as_object().into_iter().flat_map(|members| members.keys());
        members.filter(|name| !has(id, name) && branches.iter().any(|other| has(*other, name))).count()
    }

    fn condition(
        &self,
        condition: &Condition,
        value: &mut Cow<'_, Value>,
        at: &ValuePosition<'_>,
    ) -> Outcome {
        let (clause, id) = match self.adopt(condition.test, value, at) {
            true => ("then", condition.then),
            false => ("else", condition.otherwise),
        };
        match id {
            Some(id) if !self.adopt(id, value, at) => {
                self.fail_because(at, &format!("{clause} clause did not match"), id, value)
            }
            _ => Ok(()),
        }
    }

    /// The branch that the value names is the one that it has to be of.
    fn discriminator(
        &self,
        choice: &Discriminator,
        value: &mut Cow<'_, Value>,
        at: &ValuePosition<'_>,
    ) -> Outcome {
        let Some(members) = value.as_object() else {
            // Only an object can name a branch.
            return self.fail(at, "type", self.wrong_type("object", value), || None);
        };
        let property = text::quoted(&choice.property);
        let named = match members.get(&choice.property) {
            None => return self.required(&choice.property, value, at),
            Some(named) => named.as_str().and_then(|name| choice.branches.get(name)),
        };
        match named {
            Some(id) => self.node(*id, value, &at.same()),
            None => self.fail(at, "enum", format!("property {property} names none of the schemas"), || None),
        }
    }
}

/// Returns whether the pointer is a member of the object at `here`.
fn is_member(pointer: &str, here: &str) -> bool {
    let rest = pointer.strip_prefix(here).map(|rest| rest.trim_start_matches('.'));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['.', '[']))
}
