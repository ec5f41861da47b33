//! What applies several schemas to the same value: `allOf`, `anyOf`, `oneOf`, `if`, `not`, and the discriminator
//! of OpenAPI.

use std::borrow::Cow;

use serde_json::Value;

use super::node::{Condition, Discriminator, Node, NodeId};
use super::walk::{Outcome, Place, Walk, check_type};
use super::{remedy, text};

impl Walk<'_> {
    /// `allOf`, `anyOf`, `oneOf`, `if`, `not`.
    pub(super) fn combinations(&self, node: &Node, value: &mut Cow<'_, Value>, at: &Place<'_>) -> Outcome {
        for (index, id) in node.all_of.iter().enumerate() {
            self.node(*id, value, &at.same())
                .map_err(|cause| format!("allOf {} failed: {cause}", index + 1))?;
        }
        if let Some(choice) = &node.discriminator {
            self.discriminator(choice, value, at)?;
        }
        if let Some(any) = &node.any_of
            && !any.branches.iter().any(|id| self.adopt(*id, value, at))
        {
            self.no_branch(&any.branches, &any.failure, value, at)?;
        }
        if !node.one_of.is_empty() {
            self.one_of(&node.one_of, value, at)?;
        }
        if let Some(condition) = &node.condition {
            self.condition(condition, value, at)?;
        }
        match node.not {
            Some(id) if self.attempt(id, value, at).is_some() => {
                let text = "value wasn't supposed to match schema";
                self.fail(at, "conflict", text, || remedy::of_excluded(self.nodes, id, value))
            }
            _ => Ok(()),
        }
    }

    fn one_of(&self, branches: &[NodeId], value: &mut Cow<'_, Value>, at: &Place<'_>) -> Outcome {
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
                    return self.fail(at, "conflict", text, || None);
                };
                return self.fail(&at.member(other), "conflict", text, || remedy::of_several([one, other]));
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
    fn no_branch(&self, branches: &[NodeId], text: &str, value: &Value, at: &Place<'_>) -> Outcome {
        let mut meant =
            branches.iter().filter(|id| check_type(&self.nodes[**id].types, value, self.empties()).is_ok());
        match (meant.next(), meant.next()) {
            (Some(only), None) => self.fail_because(at, text, *only, value),
            (None, _) => self.fail(at, "type", text, || remedy::of_types(self.nodes, branches)),
            _ => self.fail(at, "missing", text, || remedy::of_branches(self.nodes, branches, value)),
        }
    }

    fn condition(&self, condition: &Condition, value: &mut Cow<'_, Value>, at: &Place<'_>) -> Outcome {
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
    fn discriminator(&self, choice: &Discriminator, value: &mut Cow<'_, Value>, at: &Place<'_>) -> Outcome {
        let Some(members) = value.as_object() else {
            // Only an object names a branch; anything else would be of none.
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
