//! Templates as lua-resty-template writes them, without Lua: text, values, conditions and loops.

mod expression;
mod syntax;

use std::borrow::Cow;

use serde_json::{Value, json};
use sigma_schema::expr::VarName;

use expression::{Expression, Scope, escaped, html_entity, is_true, text_of};
use syntax::Tokens;

/// Blocks nested in each other.
const MAX_DEPTH: usize = 30;

/// A template, compiled.
#[derive(Debug)]
pub struct Template(Vec<Node>);

#[derive(Debug)]
enum Node {
    Text(String),
    /// Escaped for HTML.
    Shown(Expression),
    Raw(Expression),
    /// The first block with a true condition counts; a block without a condition always does.
    If(Vec<(Option<Expression>, Vec<Node>)>),
    Each(Each),
    Count(Count),
    /// A name for a value, to the end of the block.
    Local(String, Expression),
}

#[derive(Debug)]
struct Each {
    key: String,
    value: String,
    of: Expression,
    /// `ipairs`: only numbered members, up to the first gap.
    is_list: bool,
    body: Vec<Node>,
}

#[derive(Debug)]
struct Count {
    name: String,
    from: Expression,
    to: Expression,
    step: Option<Expression>,
    body: Vec<Node>,
}

/// The input of a template, and the limits.
pub struct Data<'d> {
    /// The value that names in the template refer to.
    pub root: &'d Value,
    /// The whole body, `_body` in the template.
    pub body: &'d Value,
    /// Looks up a variable of the request, `_ctx.var` in the template.
    pub variable: &'d dyn Fn(&VarName) -> Option<String>,
    /// Steps of evaluation that a rendering may take.
    pub most_steps: usize,
    /// Bytes of text that a rendering may make.
    pub most_text: usize,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// Returns an error, which is a sentence with the line, if something in it is not understood.
    pub fn parse(text: &str) -> Result<Template, String> {
        let mut items = items(text)?;
        items.reverse();
        let (nodes, end) = Parser(items).block(0)?;
        match end {
            None => Ok(Template(nodes)),
            Some((line, end)) => Err(format!("line {line}: `{}` without a beginning", end.word())),
        }
    }

    /// Renders a template.
    ///
    /// # Errors
    /// Returns an error, which is a sentence, if a value has the wrong type, or a limit is exceeded.
    pub fn rendered(&self, data: &Data<'_>) -> Result<String, String> {
        let mut rendering = Rendering {
            scope: Scope {
                root: data.root,
                body: data.body,
                variable: data.variable,
                locals: Vec::new(),
                steps: data.most_steps.into(),
                most_text: data.most_text,
            },
            out: String::new(),
        };
        rendering.all(&self.0)?;
        Ok(rendering.out)
    }
}

struct Rendering<'v> {
    scope: Scope<'v>,
    out: String,
}

impl<'v> Rendering<'v> {
    fn all(&mut self, nodes: &'v [Node]) -> Result<(), String> {
        let known = self.scope.locals.len();
        nodes.iter().try_for_each(|node| self.node(node))?;
        self.scope.locals.truncate(known);
        Ok(())
    }

    fn node(&mut self, node: &'v Node) -> Result<(), String> {
        match node {
            Node::Text(text) => self.push(text),
            Node::Raw(expression) => {
                let value = expression.value(&self.scope)?;
                self.push(&text_of(&value)?)
            }
            Node::Shown(expression) => {
                let value = expression.value(&self.scope)?;
                self.push(&escaped(&text_of(&value)?, html_entity))
            }
            Node::If(branches) => {
                for (condition, body) in branches {
                    let holds = match condition {
                        Some(condition) => is_true(&*condition.value(&self.scope)?),
                        None => true,
                    };
                    if holds {
                        return self.all(body);
                    }
                }
                Ok(())
            }
            Node::Each(each) => self.each(each),
            Node::Count(count) => self.count(count),
            Node::Local(name, expression) => {
                let value = expression.value(&self.scope)?;
                self.scope.locals.push((name.as_str(), value));
                Ok(())
            }
        }
    }

    fn each(&mut self, each: &'v Each) -> Result<(), String> {
        match each.of.value(&self.scope)? {
            Cow::Borrowed(Value::Array(items)) => {
                for (at, item) in items.iter().enumerate() {
                    if each.is_list && item.is_null() {
                        break;
                    }
                    self.turn(each, json!(at + 1), item)?;
                }
                Ok(())
            }
            Cow::Borrowed(Value::Object(_)) if each.is_list => Ok(()),
            Cow::Borrowed(Value::Object(members)) => {
                members.iter().try_for_each(|(key, value)| self.turn(each, json!(key), value))
            }
            _ => Err("a loop iterates over a value that is not a table".to_owned()),
        }
    }

    fn turn(&mut self, each: &'v Each, key: Value, value: &'v Value) -> Result<(), String> {
        self.scope.spend(key.as_str().map_or(0, str::len))?;
        let known = self.scope.locals.len();
        self.scope.locals.push((each.key.as_str(), Cow::Owned(key)));
        self.scope.locals.push((each.value.as_str(), Cow::Borrowed(value)));
        self.all(&each.body)?;
        self.scope.locals.truncate(known);
        Ok(())
    }

    fn count(&mut self, count: &'v Count) -> Result<(), String> {
        let whole = |scope: &Scope<'v>, expression: &Expression| {
            let value = expression.value(scope)?;
            value.as_i64().ok_or_else(|| "the bounds of a loop must be integers".to_owned())
        };
        let (mut at, to) = (whole(&self.scope, &count.from)?, whole(&self.scope, &count.to)?);
        let step = count.step.as_ref().map_or(Ok(1), |step| whole(&self.scope, step))?;
        if step == 0 {
            return Err("the step of a loop is 0".to_owned());
        }
        while (step > 0 && at <= to) || (step < 0 && at >= to) {
            self.scope.spend(0)?;
            self.scope.locals.push((count.name.as_str(), Cow::Owned(json!(at))));
            self.all(&count.body)?;
            self.scope.locals.pop();
            let Some(next) = at.checked_add(step) else { break };
            at = next;
        }
        Ok(())
    }

    fn push(&mut self, text: &str) -> Result<(), String> {
        self.scope.spend(text.len())?;
        if self.out.len() + text.len() > self.scope.most_text {
            return Err("the result exceeds the limit of the body".to_owned());
        }
        self.out.push_str(text);
        Ok(())
    }
}

/// A part of a template before blocks are known, with its line.
type Item = (usize, Part);

enum Part {
    Node(Node),
    If(Expression),
    Each { key: String, value: String, of: Expression, is_list: bool },
    Count { name: String, from: Expression, to: Expression, step: Option<Expression> },
    End(Closing),
}

/// The end of a block.
enum Closing {
    ElseIf(Expression),
    Else,
    End,
}

impl Closing {
    fn word(&self) -> &'static str {
        match self {
            Closing::ElseIf(_) => "elseif",
            Closing::Else => "else",
            Closing::End => "end",
        }
    }
}

/// The content of a block, and its end, with the line.
type Block = (Vec<Node>, Option<(usize, Closing)>);

/// The items that are left, the last one first.
struct Parser(Vec<Item>);

impl Parser {
    fn block(&mut self, depth: usize) -> Result<Block, String> {
        let mut nodes = Vec::new();
        while let Some((line, part)) = self.0.pop() {
            if depth > MAX_DEPTH {
                return Err(format!("line {line}: blocks are nested deeper than {MAX_DEPTH}"));
            }
            nodes.push(match part {
                Part::Node(node) => node,
                Part::End(end) => return Ok((nodes, Some((line, end)))),
                Part::If(condition) => self.branches(line, condition, depth)?,
                Part::Each { key, value, of, is_list } => {
                    Node::Each(Each { key, value, of, is_list, body: self.body(line, depth)? })
                }
                Part::Count { name, from, to, step } => {
                    Node::Count(Count { name, from, to, step, body: self.body(line, depth)? })
                }
            });
        }
        Ok((nodes, None))
    }

    fn branches(&mut self, line: usize, condition: Expression, depth: usize) -> Result<Node, String> {
        let mut branches = Vec::new();
        let mut condition = Some(condition);
        loop {
            let is_last = condition.is_none();
            let (body, end) = self.block(depth + 1)?;
            branches.push((condition, body));
            condition = match end {
                Some((_, Closing::End)) => return Ok(Node::If(branches)),
                Some((_, Closing::ElseIf(condition))) if !is_last => Some(condition),
                Some((_, Closing::Else)) if !is_last => None,
                Some((line, end)) => return Err(format!("line {line}: `{}` after `else`", end.word())),
                None => return Err(format!("line {line}: `if` without `end`")),
            };
        }
    }

    fn body(&mut self, line: usize, depth: usize) -> Result<Vec<Node>, String> {
        match self.block(depth + 1)? {
            (body, Some((_, Closing::End))) => Ok(body),
            (_, Some((line, end))) => Err(format!("line {line}: `{}` in a loop", end.word())),
            (_, None) => Err(format!("line {line}: `for` without `end`")),
        }
    }
}

/// The tags of a template: how each begins and ends.
const TAGS: [(&str, &str); 9] = [
    ("{{", "}}"),
    ("{*", "*}"),
    ("{%", "%}"),
    ("{#", "#}"),
    ("{-raw-}", "{-raw-}"),
    ("{-verbatim-}", "{-verbatim-}"),
    ("{-", "-}"),
    ("{(", ")}"),
    ("{[", "]}"),
];

fn items(text: &str) -> Result<Vec<Item>, String> {
    let mut items: Vec<Item> = Vec::new();
    let mut at = 0;
    let mut plain = 0;
    while let Some(found) = text[at..].find('{') {
        let open = at + found;
        let rest = &text[open..];
        let Some((begin, end)) = TAGS.iter().find(|(begin, _)| rest.starts_with(begin)) else {
            at = open + 1;
            continue;
        };
        // As JSON has braces too, a tag without an end is text.
        let Some(length) = rest[begin.len()..].find(end) else {
            at = open + 1;
            continue;
        };
        let line = text[..open].matches('\n').count() + 1;
        let inside = &rest[begin.len()..begin.len() + length];
        let wrong = |error: String| format!("line {line}: `{}`: {error}", inside.trim());
        if plain < open {
            items.push((line, Part::Node(Node::Text(text[plain..open].to_owned()))));
        }
        at = open + begin.len() + length + end.len();
        match *begin {
            "{{" => items.push((line, Part::Node(Node::Shown(shown(inside).map_err(wrong)?)))),
            "{*" => items.push((line, Part::Node(Node::Raw(shown(inside).map_err(wrong)?)))),
            "{%" => items.extend(statements(inside).map_err(wrong)?.into_iter().map(|part| (line, part))),
            "{#" => {}
            "{-raw-}" | "{-verbatim-}" => items.push((line, Part::Node(Node::Text(inside.to_owned())))),
            other => {
                return Err(format!("line {line}: unknown `{other}`: templates cannot include others"));
            }
        }
        // The line of a statement ends with it.
        if matches!(*begin, "{%" | "{#") && text[at..].starts_with('\n') {
            at += 1;
        }
        plain = at;
    }
    if plain < text.len() {
        items.push((0, Part::Node(Node::Text(text[plain..].to_owned()))));
    }
    Ok(items)
}

fn shown(text: &str) -> Result<Expression, String> {
    let mut tokens = Tokens::of(text)?;
    let expression = tokens.expression()?;
    if tokens.is_empty() { Ok(expression) } else { Err("an operator is missing".to_owned()) }
}

fn statements(text: &str) -> Result<Vec<Part>, String> {
    let mut tokens = Tokens::of(text)?;
    let mut parts = Vec::new();
    loop {
        while tokens.take(";") {}
        if tokens.is_empty() {
            return Ok(parts);
        }
        parts.push(if tokens.take("if") {
            let condition = tokens.expression()?;
            tokens.expect("then")?;
            Part::If(condition)
        } else if tokens.take("elseif") {
            let condition = tokens.expression()?;
            tokens.expect("then")?;
            Part::End(Closing::ElseIf(condition))
        } else if tokens.take("else") {
            Part::End(Closing::Else)
        } else if tokens.take("end") {
            Part::End(Closing::End)
        } else if tokens.take("for") {
            looped(&mut tokens)?
        } else if tokens.take("local") {
            let name = tokens.name()?;
            tokens.expect("=")?;
            Part::Node(Node::Local(name, tokens.expression()?))
        } else {
            return Err("unknown statement: write `if`, `elseif`, `else`, `for`, `local` or `end`".to_owned());
        });
    }
}

fn looped(tokens: &mut Tokens) -> Result<Part, String> {
    let name = tokens.name()?;
    if tokens.take("=") {
        let from = tokens.expression()?;
        tokens.expect(",")?;
        let to = tokens.expression()?;
        let step = if tokens.take(",") { Some(tokens.expression()?) } else { None };
        tokens.expect("do")?;
        return Ok(Part::Count { name, from, to, step });
    }
    let value = if tokens.take(",") { tokens.name()? } else { "_".to_owned() };
    tokens.expect("in")?;
    let is_list = match (tokens.take("ipairs"), tokens.take("pairs")) {
        (false, false) => return Err("a loop needs `pairs(…)` or `ipairs(…)`".to_owned()),
        (is_list, _) => is_list,
    };
    tokens.expect("(")?;
    let of = tokens.expression()?;
    tokens.expect(")")?;
    tokens.expect("do")?;
    Ok(Part::Each { key: name, value, of, is_list })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rendered(template: &str, root: &Value) -> Result<String, String> {
        let variable = |name: &VarName| (name.to_string() == "uri").then(|| "/a".to_owned());
        let body = json!("the body");
        let data = Data { root, body: &body, variable: &variable, most_steps: 10_000, most_text: 1000 };
        Template::parse(template)?.rendered(&data)
    }

    fn root() -> Value {
        json!({
            "name": "<b> & \"c\" 'd'/", "n": 3, "half": 0.5, "whole": 2.0, "empty": "", "zero": 0, "no": false, "null": null,
            "list": ["x", "y", {"z": 1}], "map": {"b": 1, "a": 2}, "_body": "shadow", "_ctx": "shadow", "big": 12345678901234567_u64,
        })
    }

    #[test]
    fn values() {
        let check = |template: &str, expected: &str| {
            assert_eq!(rendered(template, &root()).as_deref(), Ok(expected), "{template}");
        };
        check("{{name}}", "&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;&#47;");
        check("{*name*}", "<b> & \"c\" 'd'/");
        check(
            "{*_escape_json(name)*} {*_escape_xml(name)*}",
            r#""<b> & \"c\" 'd'/" &lt;b&gt; &amp; &quot;c&quot; &apos;d&apos;/"#,
        );
        check("{*_escape_json(list)*}", r#"["x","y",{"z":1}]"#);
        check("{*_escape_json(missing)*}", "null");
        check(
            "{{n}} {{half}} {{whole}} {{big}} {{no}} {{null}}|{{missing}}|",
            "3 0.5 2 12345678901234567 false ||",
        );
        check("{{list[1]}} {{list[3].z}} {{map.a}} {{map[\"b\"]}} {{list[9]}}|{{list.x}}|", "x 1 2 1 ||");
        check(
            "{{_body}} {{_ctx.var.uri}} {{_ctx.var['uri']}} {{_ctx.var.other}}|",
            "the body &#47;a &#47;a |",
        );
        check(
            "{{context.n}} {{#list}} {{#name}} {{tostring(n) .. 'x'}} {{tonumber('4') + 1}}",
            "3 3 14 3x 5",
        );
        check("{{n + 1 * 2}} {{(n + 1) * 2}} {{n - 1 - 1}} {{7 % 4}} {{-n}} {{n / 2}}", "5 8 1 3 -3 1.5");
        check(
            "{{n == 3 and 'a' or 'b'}} {{no or 'c'}} {{zero and 'd'}} {{empty and 'e'}} {{missing and missing.x or 'f'}}",
            "a c d e f",
        );
        check("{{n ~= 3}} {{not no}} {{n > 2}} {{'a' < 'b'}} {{1 == '1'}}", "false true true true false");
        check("{{string.upper('aé') .. 1 .. 'b'}}", "Aé1b");
        check("a {\"b\": {{n}}} {x} {{ {* {", "a {\"b\": 3} {x} {{ {* {");
        check("{# no #}{-raw-}{{n}}{-raw-}", "{{n}}");
    }

    #[test]
    fn statements_and_loops() {
        let check = |template: &str, expected: &str| {
            assert_eq!(rendered(template, &root()).as_deref(), Ok(expected), "{template}");
        };
        check("{% if n > 5 then %}a{% elseif n == 3 then %}b{% else %}c{% end %}", "b");
        check("{% if missing then %}a{% else %}c{% end %}", "c");
        check(
            "{% for i, v in ipairs(list) do %}{{i}}{% if i < 3 then %}{{v}}{% end %} {% end %}",
            "1x 2y 3 ",
        );
        check("{% for k, v in pairs(map) do %}{{k}}={{v}};{% end %}", "b=1;a=2;");
        check("{% for i = 1, 3 do %}{{i}}{% end %}{% for i = 3, 1, -2 do %}{{i}}{% end %}", "12331");
        check(
            "{% local x = n + 1; local y = x %}\n{{y}}{% for i = 1, 1 do local y = 9 %}{{y}}{% end %}{{y}}",
            "494",
        );
        check("{% for _, v in ipairs(map) do %}x{% end %}", "");
    }

    #[test]
    fn failures_have_a_reason() {
        let check = |template: &str, expected: &str| {
            let error = rendered(template, &root()).unwrap_err();
            assert!(error.contains(expected), "{template}: {error}");
        };
        check("{{missing.x}}", "attempt to index a nil value");
        check("{{list}}", "a table cannot be written as text");
        check("{{missing .. 'x'}}", "attempt to concatenate a nil value");
        check("{{name + 1}}", "attempt to perform arithmetic on a string value");
        check("{{n < name}}", "attempt to compare number with string");
        check("{% for _, v in pairs(n) do %}{% end %}", "not a table");
        check("{% for i = 1, 100000000 do %}{% end %}", "too many steps");
        check("{% for i = 1, 1000 do %}xxxx{% end %}", "exceeds the limit");
        check(
            "{% local x = 'aaaaaaaaaa' %}{% local x = x..x..x..x..x %}{% local x = x..x..x..x..x %}{% local x = x..x..x..x..x %}",
            "exceeds the limit",
        );
        check("a\n{{os.exit(1)}}", "line 2: `os.exit(1)`: unknown function `os.exit`");
        check("{{_ctx.headers}}", "`_ctx` has only");
        check("{{n n}}", "an operator is missing");
        check("{{}}", "a value is missing");
        check("{{'a}}", "a string is not closed");
        check("{% x = 1 %}", "unknown statement: write `if`");
        check("{% while true do %}{% end %}", "unknown statement: write `if`");
        check("{% if n then %}", "line 1: `if` without `end`");
        check("{% end %}", "line 1: `end` without a beginning");
        check("{% for i = 1, 2 do %}{% else %}{% end %}", "`else` in a loop");
        check("{(other.html)}", "unknown `{(`");
        check(&format!("{{{{{}n}}}}", "(".repeat(200)), "nested deeper");
        check(&"{% if n then %}".repeat(50), "nested deeper than 30");
        check(&format!("{{{{n{}}}}}", "+n".repeat(600)), "split the expression");
    }

    proptest! {
        /// The escapes of a form keep a text as it is.
        #[test]
        fn texts_survive_escapes(text in "[ -~é&<>\"'\\\\%+=;:{}#-]{1,20}") {
            let root = json!({ "a": text });
            let as_json = rendered("{\"b\": {*_escape_json(a)*}}", &root).unwrap();
            prop_assert_eq!(serde_json::from_str::<Value>(&as_json).unwrap(), json!({ "b": text }));
        }

        #[test]
        fn nothing_panics(parts in prop::collection::vec("\\{\\{|\\}\\}|\\{%|%\\}|\\{\\*|\\*\\}|if |then |else |end |for |in |pairs\\(|do |local |[a.=+#()\\[\\]\"'0-9é, -]{1,3}", 0..20)) {
            let _ = rendered(&parts.concat(), &root());
        }
    }
}
