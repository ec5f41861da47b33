//! The path to a value.

use crate::problem;

/// The path to a value, on the stack: only an error needs it.
pub(super) struct ValuePosition<'p> {
    outer: Option<&'p ValuePosition<'p>>,
    step: Step<'p>,
    pub(super) depth: usize,
}

pub(super) enum Step<'p> {
    /// Another schema for the same value.
    Same,
    Member(&'p str),
    Element(usize),
}

impl<'p> ValuePosition<'p> {
    pub(super) const ROOT: ValuePosition<'static> = ValuePosition { outer: None, step: Step::Same, depth: 0 };

    pub(super) fn inner(&'p self, step: Step<'p>) -> ValuePosition<'p> {
        ValuePosition { outer: Some(self), step, depth: self.depth + 1 }
    }

    pub(super) fn same(&'p self) -> ValuePosition<'p> {
        self.inner(Step::Same)
    }

    pub(super) fn member(&'p self, name: &'p str) -> ValuePosition<'p> {
        self.inner(Step::Member(name))
    }

    /// Returns the name of the member that is the value or contains it as an element.
    pub(super) fn name(&self) -> &'p str {
        match (&self.step, self.outer) {
            (Step::Member(name), _) => name,
            (_, Some(outer)) => outer.name(),
            (_, None) => "",
        }
    }

    pub(super) fn pointer(&self) -> String {
        let outer = self.outer.map_or_else(String::new, ValuePosition::pointer);
        match self.step {
            Step::Same => outer,
            Step::Member(name) => problem::member(&outer, name),
            Step::Element(index) => problem::element(&outer, index),
        }
    }
}
