//! `unevaluatedProperties` and `unevaluatedItems` of draft 2020-12: members that no other keyword of the schema
//! evaluates, including inner schemas for the same value.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::Value;

use super::node::{Additional, Dependency, Items, Node, NodeId, ObjectRules, Unevaluated};
use super::walk::{MAX_DEPTH, Outcome, Step, ValuePosition, Walk, member};

/// The evaluated members of a value.
#[derive(Default)]
struct EvaluatedMembers<'v> {
    properties: HashSet<&'v str>,
    all_properties: bool,
    items: HashSet<usize>,
    /// The number of evaluated items at the start.
    first_items: usize,
}

impl Walk<'_> {
    pub(super) fn unevaluated(
        &self,
        id: NodeId,
        rules: &Unevaluated,
        value: &Value,
        at: &ValuePosition<'_>,
    ) -> Outcome {
        let mut seen = EvaluatedMembers::default();
        self.seen(id, true, value, at, &mut seen)?;
        if let (Some(schema), Value::Object(members)) = (rules.properties, value)
            && !seen.all_properties
        {
            for (name, entry) in members.iter().filter(|(name, _)| !seen.properties.contains(name.as_str())) {
                if self.nodes[schema].never {
                    let text = format!("unevaluated properties forbidden, found {name}");
                    self.fail(&at.member(name), "unknown_key", text, || Some("remove it".to_owned()))?;
                    continue;
                }
                self.node(schema, &mut Cow::Borrowed(entry), &at.member(name))
                    .map_err(|cause| format!("failed to validate unevaluated property {name}: {cause}"))?;
            }
        }
        if let (Some(schema), Value::Array(items)) = (rules.items, value) {
            for (index, item) in items.iter().enumerate().skip(seen.first_items) {
                if seen.items.contains(&index) {
                    continue;
                }
                self.node(schema, &mut Cow::Borrowed(item), &at.inner(Step::Element(index)))
                    .map_err(|cause| format!("failed to validate unevaluated item {}: {cause}", index + 1))?;
            }
        }
        Ok(())
    }

    /// Adds the members that a matching schema evaluates. `is_outermost`: the schema has the keyword itself.
    fn seen<'v>(
        &self,
        id: NodeId,
        is_outermost: bool,
        value: &'v Value,
        at: &ValuePosition<'_>,
        seen: &mut EvaluatedMembers<'v>,
    ) -> Outcome {
        self.spend(|| 1)?;
        if at.depth > MAX_DEPTH {
            self.step_budget.inspect(|step_budget| step_budget.exhaust());
            return Err(format!("more than {MAX_DEPTH} nested schemas, simplify the schema or the value"));
        }
        let node = &self.nodes[id];
        if let Some(rules) = node.unevaluated.as_ref().filter(|_| !is_outermost) {
            seen.all_properties |= rules.properties.is_some();
            seen.first_items = if rules.items.is_some() { usize::MAX } else { seen.first_items };
        }
        if let (Some(rules), Value::Object(members)) = (&node.rules.object, value) {
            self.seen_members(rules, members.keys().map(String::as_str), seen)?;
        }
        if let (Some(rules), Value::Array(items)) = (&node.rules.array, value) {
            seen.first_items = seen.first_items.max(match &rules.items {
                Items::Anything => 0,
                Items::Each(_) | Items::Tuple(_, Additional::Anything | Additional::Schema(_)) => usize::MAX,
                Items::Tuple(ids, _) => ids.len(),
            });
            if let Some(contains) = &rules.contains {
                let found = items.iter().enumerate();
                let found = found.filter(|(_, item)| self.attempt(contains.node, item, at).is_some());
                seen.items.extend(found.map(|(index, _)| index));
            }
        }
        for id in self.in_force(node, value, at) {
            self.seen(id, false, value, &at.same(), seen)?;
        }
        Ok(())
    }

    fn seen_members<'v>(
        &self,
        rules: &ObjectRules,
        names: impl Iterator<Item = &'v str>,
        seen: &mut EvaluatedMembers<'v>,
    ) -> Outcome {
        if !matches!(rules.additional, Additional::Unsaid) {
            seen.all_properties = true;
            return Ok(());
        }
        for name in names {
            self.spend(|| 1)?;
            let is_named = rules.properties.iter().any(|property| property.name == name);
            if is_named || rules.patterns.iter().any(|(pattern, _)| pattern.is_match(name)) {
                seen.properties.insert(name);
            }
        }
        Ok(())
    }

    /// The schemas within one that apply to the same value and that it satisfies.
    fn in_force(&self, node: &Node, value: &Value, at: &ValuePosition<'_>) -> Vec<NodeId> {
        let mut found = node.combined.all_of.clone();
        let branches = node.combined.any_of.iter().flat_map(|any| &any.branches).chain(&node.combined.one_of);
        found.extend(branches.filter(|id| self.attempt(**id, value, at).is_some()));
        if let Some(condition) = &node.combined.condition {
            match self.attempt(condition.test, value, at).is_some() {
                true => found.extend([condition.test].into_iter().chain(condition.then)),
                false => found.extend(condition.otherwise),
            }
        }
        if let Some(choice) = &node.combined.discriminator {
            let named = member(value, &choice.property).and_then(Value::as_str);
            found.extend(named.and_then(|name| choice.branches.get(name)));
        }
        if let Some(object) = &node.rules.object {
            let own = object.properties.iter().filter_map(|p| Some((&p.name, p.dependency.as_ref()?)));
            let other = object.dependencies.iter().map(|(name, dependency)| (name, dependency));
            for (name, dependency) in own.chain(other) {
                if let (Dependency::Schema(id), Some(_)) = (dependency, member(value, name)) {
                    found.push(*id);
                }
            }
        }
        found
    }
}
