//! The cost of a query.
//!
//! Fragments make this expensive: a few hundred bytes spread to more selections than can be counted. Depth is
//! found fragment by fragment, each of them once; for the other costs, which depend on where a fragment is
//! spread, it is spread, up to a number of selections.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sigma_config::resources::{Decoration, Decorations};
use sigma_plugin::graphql::{ArgumentValue, Defined, Document, Message, Selection, SelectionKind};

use super::schema::{Field, Schema};

/// Selections of a query with its fragments in place. A query for people has hundreds, and a thousand of those are
/// some milliseconds of a worker.
pub(super) const MOST_SELECTIONS: u32 = 100_000;

/// The largest cost: what every part of a chain of gateways counts exactly.
pub(super) const LARGEST: u64 = (1 << 53) - 1;

/// Measure of the cost of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Strategy {
    /// The depth of nested selection sets.
    Depth,
    /// The number of selections, each with the cost of its decorations.
    Complexity,
    /// The number of requested objects, from the arguments that state it.
    NodeQuantifier,
}

/// Why a query has no cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoCost {
    /// No operation is in it.
    Empty,
    /// A fragment is within itself.
    Cycle,
    /// It has too many selections.
    TooMany,
}

/// By what queries are judged.
pub(super) struct Judge<'j> {
    pub(super) strategy: Strategy,
    pub(super) score_factor: f64,
    pub(super) resolve_variables: bool,
    /// The costs of fields, and the schema that names the fields; None if all cost the same.
    pub(super) decorated: Option<(&'j Decorations, &'j Schema)>,
}

impl Judge<'_> {
    /// The cost of a query: of the operation that is named if it is there, else of the dearest one.
    ///
    /// # Errors
    /// Returns an error if it has no cost.
    pub(super) fn cost(&self, document: &Document<'_>, message: &Message) -> Result<u64, NoCost> {
        let all = document.operations();
        if all.is_empty() {
            return Err(NoCost::Empty);
        }
        let is_named =
            |one: &&Defined<'_>| one.name.is_some() && one.name == message.operation_name.as_deref();
        let is_chosen = all.len() > 1 && all.iter().any(|one| is_named(&one));
        let mut operations = all.iter().filter(|one| !is_chosen || is_named(one));
        let dearest = |most: f64, cost: f64| if cost > most || cost.is_nan() { cost } else { most };
        let raw = match self.strategy {
            Strategy::Depth => {
                let mut sizes = Sizes { document, known: HashMap::new() };
                let mut most = Size::default();
                operations.try_for_each(|one| sizes.of(one).map(|size| most = most.beside(size)))?;
                if most.selections > MOST_SELECTIONS {
                    return Err(NoCost::TooMany);
                }
                f64::from(most.level)
            }
            _ => {
                let mut spent = 0;
                let raw = operations.try_fold(0.0, |most, operation| {
                    let mut walk = Walk::new(self, document, operation, &message.variables, spent);
                    let raw = walk.run()?;
                    spent = walk.spent;
                    Ok::<f64, NoCost>(dearest(most, raw))
                })?;
                raw + 0.01
            }
        };
        let cost = (raw * self.score_factor).ceil();
        // A number beyond all limits is the largest one.
        Ok(if cost.is_finite() { (cost as u64).clamp(1, LARGEST) } else { LARGEST })
    }
}

/// How much a set of selections comes to with its fragments in place.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    /// Sets nested in each other.
    level: u32,
    selections: u32,
}

impl Size {
    fn beside(self, other: Size) -> Size {
        Size {
            level: self.level.max(other.level),
            selections: self.selections.saturating_add(other.selections),
        }
    }
}

/// The sizes of fragments, each looked at once.
struct Sizes<'d, 't> {
    document: &'d Document<'t>,
    /// None while the content of the fragment is being visited.
    known: HashMap<&'t str, Option<Size>>,
}

impl<'d, 't> Sizes<'d, 't> {
    fn of(&mut self, operation: &'d Defined<'t>) -> Result<Size, NoCost> {
        let document = self.document;
        for root in document.spreads(operation.selections.clone()) {
            // The fragments being visited, each within the one before: not on the stack of the thread, since
            // a document may have any number of them.
            let mut within = Vec::new();
            let mut next = Some(root);
            loop {
                if let Some(name) = next {
                    match self.known.get(name) {
                        Some(None) => return Err(NoCost::Cycle),
                        Some(Some(_)) => {}
                        None => {
                            if let Some(fragment) = document.fragment(name) {
                                self.known.insert(name, None);
                                within.push((name, fragment, document.spreads(fragment.selections.clone())));
                            }
                        }
                    }
                }
                let Some((name, fragment, spreads)) = within.last_mut() else { break };
                next = spreads.next();
                if next.is_none() {
                    let size = self.set(fragment.selections.clone());
                    self.known.insert(*name, Some(size));
                    within.pop();
                }
            }
        }
        Ok(self.set(operation.selections.clone()))
    }

    /// The size of a set whose fragments are known. Sets stand in each other as deep as the parser lets them.
    fn set(&self, selections: Range<u32>) -> Size {
        let mut whole = Size { level: 1, selections: 0 };
        for (selection, within) in self.document.selections(selections) {
            let mut size = match selection.kind {
                SelectionKind::Field(_) if within.is_empty() => Size::default(),
                SelectionKind::Field(_) => {
                    let set = self.set(within);
                    Size { level: set.level.saturating_add(1), ..set }
                }
                SelectionKind::Inline(_) => self.set(within),
                SelectionKind::Spread(name) => self.known.get(name).copied().flatten().unwrap_or_default(),
            };
            size.selections = size.selections.saturating_add(1);
            whole = whole.beside(size);
        }
        whole
    }
}

/// A way through an operation with its fragments in place.
struct Walk<'w, 'd, 't> {
    judge: &'w Judge<'w>,
    document: &'d Document<'t>,
    variables: &'w Map<String, Value>,
    /// The defaults of variables.
    defaults: HashMap<&'t str, Option<f64>>,
    operation: &'d Defined<'t>,
    /// Selections, and arguments that were looked at, of this operation and of those before.
    spent: u32,
    /// The fields that lead here, each with the type that it is a field of.
    path: Vec<(Option<&'w str>, &'t str)>,
    /// The fragments that lead here.
    spread: HashSet<&'t str>,
    sets: Vec<Set<'w, 't>>,
}

/// A set of selections that is being looked at.
struct Set<'w, 't> {
    /// The selections that are not visited yet.
    rest: Range<u32>,
    /// The type whose fields they are.
    on: Option<&'w str>,
    /// The cost of the others.
    sum: f64,
    /// The weight that applies to that sum.
    weight: Weight,
    /// By what costs within it are multiplied.
    times: f64,
    owner: Owner<'t>,
}

/// The owner of the selections.
enum Owner<'t> {
    /// A field's, or the operation's.
    Field,
    Inline,
    Fragment(&'t str),
}

/// The weight of a node: multiplies the cost of its content and adds to it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Weight {
    mul: f64,
    add: f64,
    /// An argument says by how much it is multiplied.
    is_quantified: bool,
}

impl<'w, 'd, 't> Walk<'w, 'd, 't> {
    fn new(
        judge: &'w Judge<'w>,
        document: &'d Document<'t>,
        operation: &'d Defined<'t>,
        variables: &'w Map<String, Value>,
        spent: u32,
    ) -> Walk<'w, 'd, 't> {
        let mut defaults = HashMap::new();
        for (name, number) in &operation.variables {
            // Of two of one name the dearer one counts.
            let known = defaults.entry(*name).or_insert(*number);
            *known = number.map_or(*known, |number| Some(known.unwrap_or(number).max(number)));
        }
        let (path, spread, sets) = (Vec::new(), HashSet::new(), Vec::new());
        Walk { judge, document, variables, defaults, operation, spent, path, spread, sets }
    }

    fn run(&mut self) -> Result<f64, NoCost> {
        let root = self.judge.decorated.and_then(|(_, schema)| schema.root(self.operation.operation));
        let weight = self.weight(root, None, None)?;
        let (weight, _, times) = self.counted(weight, 1.0);
        let rest = self.operation.selections.clone();
        self.sets.push(Set { rest, on: root, sum: 0.0, weight, times, owner: Owner::Field });
        while let Some(set) = self.sets.last_mut() {
            let Some((selection, within, behind)) = self.document.first_of(set.rest.clone()) else {
                if let Some(total) = self.leave() {
                    return Ok(total);
                }
                continue;
            };
            set.rest = behind;
            let (on, times) = (set.on, set.times);
            self.spend(1)?;
            match selection.kind {
                SelectionKind::Field(name) => self.enter_field(selection, name, within, on, times)?,
                SelectionKind::Inline(of) => {
                    self.enter(within, self.moved(on, of), times, Owner::Inline);
                }
                SelectionKind::Spread(name) => {
                    if let Some(fragment) = self.document.fragment(name)
                        && self.spread.insert(name)
                    {
                        let on = self.moved(on, Some(fragment.on));
                        self.enter(fragment.selections.clone(), on, times, Owner::Fragment(name));
                    }
                }
            }
        }
        Ok(0.0)
    }

    fn spend(&mut self, selections: u32) -> Result<(), NoCost> {
        self.spent = self.spent.saturating_add(selections);
        if self.spent > MOST_SELECTIONS { Err(NoCost::TooMany) } else { Ok(()) }
    }

    /// Goes into what costs nothing itself.
    fn enter(&mut self, rest: Range<u32>, on: Option<&'w str>, times: f64, owner: Owner<'t>) {
        let weight = Weight { mul: 1.0, add: 0.0, is_quantified: false };
        self.sets.push(Set { rest, on, sum: 0.0, weight, times, owner });
    }

    fn enter_field(
        &mut self,
        selection: &'d Selection<'t>,
        name: &'t str,
        within: Range<u32>,
        on: Option<&'w str>,
        times: f64,
    ) -> Result<(), NoCost> {
        let field = self.judge.decorated.zip(on).and_then(|((_, schema), on)| schema.field(on, name));
        self.path.push((on, name));
        let weight = self.weight(field.map(|field| &*field.returns), Some(selection), field)?;
        let (weight, own, times) = self.counted(weight, times);
        let on = field.map(|field| &*field.returns);
        self.sets.push(Set { rest: within, on, sum: own, weight, times, owner: Owner::Field });
        Ok(())
    }

    /// Returns the weight of a node by the strategy: the weight of its content, its own cost, and how often
    /// its content counts.
    fn counted(&self, weight: Weight, times: f64) -> (Weight, f64, f64) {
        if self.judge.strategy == Strategy::Complexity {
            return (weight, 0.0, times);
        }
        let alone = Weight { mul: 1.0, add: 0.0, is_quantified: false };
        match weight.is_quantified {
            true => (alone, times * weight.add, times * weight.mul),
            false => (alone, 0.0, times),
        }
    }

    /// Leaves a set that has been looked at; the cost of the operation if it was the last one.
    fn leave(&mut self) -> Option<f64> {
        let set = self.sets.pop()?;
        match set.owner {
            Owner::Field => {
                self.path.pop();
            }
            Owner::Fragment(name) => {
                self.spread.remove(name);
            }
            Owner::Inline => {}
        }
        let total = set.sum * set.weight.mul + set.weight.add;
        match self.sets.last_mut() {
            Some(around) => {
                around.sum += total;
                None
            }
            None => Some(total),
        }
    }

    /// The type whose fields are selected for objects of one: that, if the schema has it.
    fn moved(&self, on: Option<&'w str>, to: Option<&str>) -> Option<&'w str> {
        let known = to.and_then(|to| self.judge.decorated.and_then(|(_, schema)| schema.known(to)));
        known.or(on)
    }

    /// How the field that the path has come to costs, or the operation.
    fn weight(
        &mut self,
        returns: Option<&str>,
        selection: Option<&'d Selection<'t>>,
        field: Option<&Field>,
    ) -> Result<Weight, NoCost> {
        let mut weight = Weight { mul: 1.0, add: 1.0, is_quantified: false };
        let Some((decorations, _)) = self.judge.decorated else { return Ok(weight) };
        let of_type = decorations.ending_in(returns.unwrap_or_default());
        let of_type = of_type.filter(|one| one.field_path.names().len() == 1);
        let last = self.path.last().map_or("", |(_, name)| *name);
        let of_field = decorations.ending_in(last).filter(|one| self.leads(one));
        let (mut add, mut mul) = (&[][..], &[][..]);
        // Longer paths come later, and override shorter ones.
        for one in of_type.chain(of_field) {
            weight.add = one.add_value.unwrap_or(weight.add);
            weight.mul = one.mul_value.unwrap_or(weight.mul);
            add = one.add_arguments.as_deref().unwrap_or(add);
            mul = one.mul_arguments.as_deref().unwrap_or(mul);
        }
        if let Some(selection) = selection
            && !(add.is_empty() && mul.is_empty())
        {
            self.spend(self.document.argument_count(selection))?;
            let value = |name: &str| self.value(selection, name, field);
            weight.add += add.iter().filter_map(|name| value(name)).sum::<f64>();
            for number in mul.iter().filter_map(|name| value(name)) {
                weight.mul *= number;
                weight.is_quantified = true;
            }
        }
        Ok(weight)
    }

    /// Whether the path that has led here is the one of a decoration.
    fn leads(&self, to: &Decoration) -> bool {
        let [on, fields @ ..] = to.field_path.names() else { return false };
        let Some(from) = self.path.len().checked_sub(fields.len()) else { return false };
        let way = &self.path[from..];
        way.first().is_some_and(|(known, _)| *known == Some(&**on))
            && way.iter().zip(fields).all(|((_, name), field)| **name == **field)
    }

    /// The number that an argument is; None if it is not a number from 0 on.
    fn value(&self, selection: &Selection<'t>, name: &str, field: Option<&Field>) -> Option<f64> {
        let (mut largest, mut is_absent) = (None::<f64>, true);
        for given in self.document.arguments(selection, name) {
            let number = match given {
                ArgumentValue::Number(number) => Some(Some(number)),
                ArgumentValue::Variable(variable) if self.judge.resolve_variables => {
                    let default = || self.defaults.get(variable).copied().flatten().map(Some);
                    self.variables.get(variable).map(Value::as_f64).or_else(default)
                }
                _ => Some(None),
            };
            is_absent &= number.is_none();
            let number = number.flatten().filter(|number| number.is_finite() && *number >= 0.0);
            // Of two of one name the dearer one counts.
            largest = number.map_or(largest, |number| Some(largest.unwrap_or(number).max(number)));
        }
        let default = || field?.default_of(name).filter(|number| number.is_finite() && *number >= 0.0);
        if is_absent { default() } else { largest }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::schema::tests::ANSWER;
    use super::*;

    /// The cost of a query, with variables of these numbers.
    fn cost(strategy: Strategy, decorations: Value, text: &str, variables: Value) -> Result<u64, NoCost> {
        let decorations: Decorations = serde_json::from_value(decorations).unwrap();
        let schema = Schema::read(ANSWER.as_bytes()).unwrap();
        let decorated = (!decorations.is_empty()).then_some((&decorations, &schema));
        let judge = Judge { strategy, score_factor: 1.0, resolve_variables: true, decorated };
        let document = Document::parse(text, MOST_SELECTIONS).unwrap();
        let message = Message {
            operation_name: variables["operation"].as_str().map(str::to_owned),
            variables: serde_json::from_value(variables).unwrap(),
            ..Message::default()
        };
        judge.cost(&document, &message)
    }

    #[test]
    fn depth() {
        let check = |text: &str, expected: Result<u64, NoCost>| {
            assert_eq!(cost(Strategy::Depth, json!([]), text, json!({})), expected, "{text}");
        };
        check("{a}", Ok(1));
        check("{a{b} c{d{e}}}", Ok(3));
        check("{... on T {a{b}} ...{c}}", Ok(2));
        check("{a{...F}} fragment F on T {b{...G}} fragment G on T {c}", Ok(3));
        check("{...F ...None} fragment F on T {a{b}}", Ok(2));
        check("{a} query Q {a{b}} query R {a{b{c}}}", Ok(3));
        check("fragment F on T {a}", Err(NoCost::Empty));
        check("{a{...F}} fragment F on T {b{...F}}", Err(NoCost::Cycle));
        check("{...F} fragment F on T {...G} fragment G on T {c{...F}}", Err(NoCost::Cycle));
        // A cycle that nothing leads to.
        check("{a} fragment F on T {b{...F}}", Ok(1));
    }

    #[test]
    fn one_operation_or_the_dearest() {
        let text = "query A {a} query B {a{b}} query B {a{b{c}}}";
        let check = |operation: &str, expected| {
            let variables = json!({"operation": operation});
            assert_eq!(cost(Strategy::Depth, json!([]), text, variables), Ok(expected), "{operation}");
        };
        check("A", 1);
        check("B", 3);
        check("C", 3);
        check("", 3);
    }

    #[test]
    fn without_decorations_nodes_are_counted() {
        let check = |strategy, text: &str, expected| {
            assert_eq!(cost(strategy, json!([]), text, json!({})), Ok(expected), "{text}");
        };
        // The operation is a node, and the hundredth makes one more of a whole number.
        check(Strategy::Complexity, "{a}", 3);
        check(Strategy::Complexity, "{a{b c} ...F ... on T {d}} fragment F on T {e ...F}", 7);
        check(Strategy::NodeQuantifier, "{users(first: 100){name}}", 1);
    }

    #[test]
    fn decorations_weigh() {
        let all = json!([
            {"field_path": "Query.users", "mul_arguments": ["first"]},
            {"field_path": "User.posts", "mul_arguments": ["first"], "add_arguments": ["weight"]},
            {"field_path": "Query.users.posts", "mul_value": 2},
            {"field_path": "User", "add_value": 5},
            {"field_path": "Query", "add_value": 0},
        ]);
        let check = |text: &str, variables: Value, complexity, quantified| {
            let found = [Strategy::Complexity, Strategy::NodeQuantifier]
                .map(|strategy| cost(strategy, all.clone(), text, variables.clone()).unwrap());
            // Without the hundredth.
            assert_eq!(found.map(|cost| cost - 1), [complexity, quantified], "{text}");
        };
        // 5 for the users, 1 for each name.
        check("{users(first: 3){name}}", json!({}), 8, 5);
        check("{x: users(first: 3){y: name}}", json!({}), 8, 5);
        check("{users{name}}", json!({}), 15, 5);
        check("query($n: Int){users(first: $n){name}}", json!({"n": 4}), 9, 5);
        check("query($n: Int = 6){users(first: $n){name}}", json!({}), 11, 5);
        check("query($n: Int){users(first: $n){name}}", json!({}), 15, 5);
        check("query($n: Int = 6){users(first: $n){name}}", json!({"n": "x"}), 6, 0);
        check("{users(first: 2, first: 3){name}}", json!({}), 8, 5);
        check("{users(first: -1){name}}", json!({}), 6, 0);
        check("{users(first: 1e999){name}}", json!({}), 6, 0);
        check("{users(first: 0){name}}", json!({}), 5, 5);
        // Users: 5 and three times their posts; those: 1 and 7 more, and 2 * 10 times a title.
        let posts = "posts(first: 10, weight: 7){title}";
        check(&format!("{{users(first: 3){{{posts}}}}}"), json!({}), 89, 5 + 3 * 8);
        check(&format!("{{users(first: 3){{...F}}}} fragment F on User {{{posts}}}"), json!({}), 89, 29);
        // Not in that chain: 10 times a title.
        check(&format!("{{me{{{posts}}}}}"), json!({}), 5 + 18, 8);
        check(&format!("{{... on User {{{posts}}}}}"), json!({}), 18, 8);
        check(&format!("{{unknown{{{posts}}}}}"), json!({}), 3, 0);
    }

    #[test]
    fn spreading_fragments_takes_linear_time() {
        // Each fragment spreads the next one twice: 2^64 selections of a few kilobytes.
        let twice = |at: usize| format!("fragment F{at} on T {{...F{} ...F{}}}", at + 1, at + 1);
        let bomb = format!("{{...F0}} {} fragment F64 on T {{a}}", (0..64).map(twice).collect::<String>());
        // Each within the one before, and never an end of the stack.
        let chain = |at: usize| format!("fragment F{at} on T {{a{{...F{}}}}}", at + 1);
        let long =
            format!("{{...F0}} {} fragment F20000 on T {{a}}", (0..20_000).map(chain).collect::<String>());
        let wide = format!("{{{}}}", "...F ".repeat(40_000)) + "fragment F on T {a b}";
        let many = format!("{} fragment F on T {{{}}}", "query {...F}".repeat(900), "a ".repeat(200));
        for text in [&bomb, &wide, &many] {
            for strategy in [Strategy::Depth, Strategy::Complexity, Strategy::NodeQuantifier] {
                assert_eq!(cost(strategy, json!([]), text, json!({})), Err(NoCost::TooMany), "{strategy:?}");
            }
        }
        assert_eq!(cost(Strategy::Depth, json!([]), &long, json!({})), Ok(20_001));
        assert_eq!(cost(Strategy::Complexity, json!([]), &long, json!({})), Ok(20_003));
        // A field with many arguments, spread many times.
        let arguments = "x: 1 ".repeat(5_000);
        let text = format!("{{{}}} fragment F on Query {{users({arguments}){{name}}}}", "...F ".repeat(100));
        let decorated = json!([{"field_path": "Query.users", "mul_arguments": ["first"]}]);
        assert_eq!(cost(Strategy::Complexity, decorated, &text, json!({})), Err(NoCost::TooMany));
    }

    #[test]
    fn a_cost_beyond_all_numbers_is_the_largest() {
        let decorated = json!([{"field_path": "User", "mul_arguments": ["first"]}]);
        let deep = "friends(first: 1e300){".repeat(4);
        let text = format!("{{me{{friends(first: 0){{{deep}name{}}}}}}}", "}".repeat(4));
        assert_eq!(cost(Strategy::Complexity, decorated, &text, json!({})), Ok(LARGEST));
    }
}
