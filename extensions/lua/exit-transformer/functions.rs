//! Functions in Lua that change responses of the gateway itself.

use std::rc::Rc;

use mlua::{Function, MultiValue, Table, Value};
use sigma_http::HeaderId;
use sigma_plugin::{Context, Env, Reply, ResponseStep};
use sigma_plugin_kit::fields::{frames, is_name};

use super::{is_content_type, with_fields_of};
use crate::core::json;
use crate::engine::arguments::type_name;
use crate::engine::exchange::Exchange;
use crate::engine::host::Stage;
use crate::engine::place::ScriptPosition;
use crate::engine::run::{Outcome, Run};
use crate::engine::{Engine, message_of};
use crate::loaded::Token;
use crate::reply;
use crate::state;

/// Calls the functions one after the other. The first result says whether one succeeded.
const CHAIN: &str = "
local functions, failed, code, body, header = ...
local is_changed = false
for at = 1, #functions do
  local ok, new_code, new_body, new_header = pcall(functions[at], code, body, header)
  if ok then
    is_changed, code, body, header = true, new_code, new_body, new_header
  else
    failed(tostring(new_code))
  end
end
return is_changed, code, body, header";

/// Checks that each text compiles.
///
/// # Errors
/// Returns the compiler's message.
pub(super) fn check(functions: &[String]) -> Result<(), String> {
    crate::state::with_checker(|engine| functions.iter().try_for_each(|text| engine.compile(text).map(drop)))
}

/// The functions of an instance, which each worker compiles when it needs them.
pub(super) struct Functions {
    texts: Vec<String>,
    /// Its name in logs.
    place: String,
    token: Token,
}

/// The functions in the state of a worker.
struct Compiled {
    functions: Table,
    chain: Function,
    /// Logs the error of a function.
    failed: Function,
    place: Rc<ScriptPosition>,
}

/// A response as the functions have made it.
struct Changed {
    status: u16,
    body: Value,
    fields: Value,
}

impl Functions {
    pub(super) fn new(texts: Vec<String>, place: String) -> Functions {
        Functions { texts, place, token: Token::new() }
    }

    fn compiled(&self, engine: &Rc<Engine>) -> Result<Rc<Compiled>, String> {
        let text = |error: mlua::Error| message_of(&error);
        engine.loaded::<Compiled>(&self.token, || {
            let functions = engine.lua().create_table().map_err(text)?;
            for function in &self.texts {
                functions.raw_push(engine.compile(function)?).map_err(text)?;
            }
            let failed = engine.lua().create_function(|_, message: mlua::LuaString| {
                let mut line = b"failed to run lua code: ".to_vec();
                line.extend_from_slice(&message.as_bytes());
                crate::ngx::log::write(4, &line);
                Ok(())
            });
            Ok(Compiled {
                functions,
                chain: engine.compile(CHAIN)?,
                failed: failed.map_err(text)?,
                place: engine.place(&self.place, &self.texts),
            })
        })
    }

    /// The response after the functions.
    pub(super) fn applied(&self, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        // A streamed body is not in memory.
        if ctx.own_body.is_none() {
            return ResponseStep::Next;
        }
        self.run(ctx, env).unwrap_or_else(|message| {
            tracing::error!("{}: failed to run lua code: {message}", self.place);
            ResponseStep::Next
        })
    }

    fn run(&self, ctx: &mut Context, env: &Env<'_>) -> Result<ResponseStep, String> {
        let text = |error: mlua::Error| message_of(&error);
        let engine = state::of_worker(env)?;
        let compiled = self.compiled(&engine)?;
        let exchange = Exchange::of(ctx, &engine).map_err(text)?;
        let body = body_of(&engine, ctx.own_body.as_deref().unwrap_or_default()).map_err(text)?;
        let was_table = body.is_table();
        let arguments = MultiValue::from_iter([
            Value::Table(compiled.functions.clone()),
            Value::Function(compiled.failed.clone()),
            Value::Integer(i64::from(ctx.response.status)),
            body,
            Value::Table(engine.lua().create_table().map_err(text)?),
        ]);
        let chain = compiled.chain.clone();
        let run = Run::new(&engine, &exchange, Stage::HeaderFilter, &compiled.place, chain, arguments)?;
        let outcome = run.at_once(ctx, env);
        if let Some(status) = exchange.exit_in_filter.take().filter(|status| *status >= 200) {
            return Ok(ResponseStep::Replace(Box::new(reply::page(status, &exchange))));
        }
        // An error outside the functions is logged already, such as the end of the run time.
        let Outcome::Returned(values) = outcome else { return Ok(ResponseStep::Next) };
        let value = |place: usize| values.get(place).cloned().unwrap_or(Value::Nil);
        if value(0) != Value::Boolean(true) {
            return Ok(ResponseStep::Next);
        }
        let changed =
            Changed { status: status_of(&value(1), ctx.response.status)?, body: value(2), fields: value(3) };
        changed.reply(&engine, ctx, was_table).map(|reply| ResponseStep::Replace(Box::new(reply)))
    }
}

/// The body as functions get it: a table if it is a JSON object or array, nil if it is empty.
fn body_of(engine: &Engine, body: &[u8]) -> mlua::Result<Value> {
    let lua = engine.lua();
    if body.is_empty() {
        return Ok(Value::Nil);
    }
    if matches!(body.trim_ascii_start().first(), Some(b'{' | b'['))
        && let Ok(table @ Value::Table(_)) = json::decode(lua, body)
    {
        return Ok(table);
    }
    lua.create_string(body).map(Value::String)
}

/// The status that a function returned; nil keeps the present one.
fn status_of(value: &Value, present: u16) -> Result<u16, String> {
    let number = match value {
        Value::Nil => return Ok(present),
        Value::Integer(number) => Some(*number),
        Value::Number(number) => Some(*number as i64),
        _ => None,
    };
    let status = number.and_then(|number| u16::try_from(number).ok());
    status.filter(|status| (200..=599).contains(status)).ok_or_else(|| {
        let text = value.to_string().unwrap_or_else(|_| type_name(value).to_owned());
        format!("a function returned the status {text}; write a number from 200 to 599")
    })
}

impl Changed {
    fn reply(&self, engine: &Engine, ctx: &Context, was_table: bool) -> Result<Reply, String> {
        let mut reply = Reply::new(self.status);
        match &self.body {
            Value::Nil => {}
            Value::Table(_) => {
                let form = json::Form { sorted: true, ..json::Form::default() };
                let text = json::encode(engine.lua(), &self.body, form);
                let mut text = text.map_err(|error| format!("failed to encode data: {error}"))?;
                text.push(b'\n');
                reply = reply.text(text);
            }
            Value::String(text) => reply = reply.text(text.as_bytes().to_vec()),
            value @ (Value::Boolean(_) | Value::Integer(_) | Value::Number(_)) => {
                reply = reply.text(value.to_string().map_err(|error| message_of(&error))?);
            }
            value => return Err(format!("a function returned a body of the type {}", type_name(value))),
        }
        let fields = fields_of(&self.fields)?;
        // The media type still holds for a body of the same kind.
        let keeps_type = !self.body.is_nil() && self.body.is_table() == was_table;
        let is_set = |name: &str| fields.iter().any(|field| field.name.eq_ignore_ascii_case(name));
        reply = with_fields_of(ctx, reply, |name| is_set(name) || !keeps_type && is_content_type(name));
        for Field { name, value } in fields {
            reply = reply.header(name, value);
        }
        Ok(reply)
    }
}

/// A field that functions set.
struct Field {
    name: String,
    value: Vec<u8>,
}

/// The fields in a table. A table of values becomes several fields.
fn fields_of(table: &Value) -> Result<Vec<Field>, String> {
    let Value::Table(table) = table else { return Ok(Vec::new()) };
    let mut fields = Vec::new();
    for pair in table.pairs::<Value, Value>() {
        let (name, value) = pair.map_err(|error| error.to_string())?;
        let name = name.to_string().map_err(|error| message_of(&error))?;
        if !is_name(&name) {
            return Err(format!("a function returned the field `{name}`, which is not the name of a field"));
        }
        // The gateway frames the body itself.
        if frames(&name) || HeaderId::of(name.as_bytes()) == HeaderId::Server {
            continue;
        }
        match value {
            Value::Table(values) => {
                for value in values.sequence_values::<Value>() {
                    let value = text_of(&value.map_err(|error| error.to_string())?)?;
                    fields.push(Field { name: name.clone(), value });
                }
            }
            value => fields.push(Field { name, value: text_of(&value)? }),
        }
    }
    Ok(fields)
}

/// The text of a field's value, with control characters escaped.
fn text_of(value: &Value) -> Result<Vec<u8>, String> {
    let text = match value {
        Value::String(text) => text.as_bytes().to_vec(),
        value => value.to_string().map_err(|error| message_of(&error))?.into_bytes(),
    };
    let mut escaped = Vec::with_capacity(text.len());
    for byte in text {
        if byte.is_ascii_control() && byte != b'\t' {
            escaped.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            escaped.push(byte);
        }
    }
    Ok(escaped)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sigma_plugin::ResponseStep;
    use sigma_plugin::record::Source;

    use crate::snippets::case_with;
    use crate::testing::{entry, field, summary};

    /// The response to the functions' results; "unchanged" if there is no other.
    fn changed(functions: &[&str], body: Option<&str>) -> (String, Vec<String>) {
        changed_by(json!({}), functions, body)
    }

    /// As [`changed`], with these settings of Lua.
    fn changed_by(settings: Value, functions: &[&str], body: Option<&str>) -> (String, Vec<String>) {
        let mut case = case_with(settings, "GET /a HTTP/1.1\nHost: h");
        case.respond(
            403,
            "Content-Type: application/json\nWWW-Authenticate: Basic\nX-A: 1\nContent-Length: 3",
        );
        case.ctx.record.source = Source::Gateway;
        case.ctx.own_body = body.map(|body| body.as_bytes().to_vec());
        let step = case.response_step(&entry("exit-transformer", json!({"functions": functions})).unwrap());
        let ResponseStep::Replace(reply) = step else { return ("unchanged".to_owned(), Vec::new()) };
        let names = ["Content-Type", "WWW-Authenticate", "X-A", "X-B", "Content-Length"];
        let fields = names.into_iter().filter_map(|name| Some(format!("{name}: {}", field(&reply, name)?)));
        (summary(Some(&reply)), fields.collect())
    }

    fn of(body: &str) -> String {
        format!("return (function(code, body, header) {body} end)(...)")
    }

    #[test]
    fn functions_change_status_body_and_fields() {
        let json_body = Some("{\"message\":\"no\"}\n");
        for (function, body, expected, fields) in [
            ("return 404, body, header", json_body, "404 {\"message\":\"no\"}", "application/json Basic 1"),
            (
                "return code, {why = body.message, n = {1, 2}}, header",
                json_body,
                "403 {\"n\":[1,2],\"why\":\"no\"}",
                "application/json Basic 1",
            ),
            ("return code, 'text', header", json_body, "403 text", "Basic 1"),
            ("return code, body .. '!', header", Some("plain"), "403 plain!", "application/json Basic 1"),
            ("return code, tostring(body), header", Some(""), "403 nil", "application/json Basic 1"),
            ("return 404", json_body, "404", "Basic 1"),
            (
                "header['X-A'] = 2 header['X-B'] = 'a\\r\\nb' header['Content-Length'] = 9 return code, body, header",
                json_body,
                "403 {\"message\":\"no\"}",
                "application/json Basic 2 a%0D%0Ab",
            ),
            ("return nil, 'same'", json_body, "403 same", "Basic 1"),
            ("return code, 12, header", Some("x"), "403 12", "application/json Basic 1"),
            ("ngx.exit(418) return 404", json_body, "418", ""),
        ] {
            let (reply, found) = changed(&[&of(function)], body);
            let values: Vec<&str> =
                found.iter().filter_map(|field| Some(field.split_once(": ")?.1)).collect();
            assert_eq!((reply.as_str(), values.join(" ").as_str()), (expected, fields), "{function}");
        }
    }

    #[test]
    fn functions_run_in_order_and_errors_keep_the_values() {
        let double = of("return code + 1, body, header");
        let broken = of("error('no')");
        let check = |functions: &[&str], expected: &str| {
            assert_eq!(changed(functions, Some("x")).0, expected, "{functions:?}");
        };
        check(&[&double, &double], "405 x");
        check(&[&double, &broken, &double], "405 x");
        check(&[&broken], "unchanged");
        check(&[&of("return 99")], "unchanged");
        check(&[&of("return code, print")], "unchanged");
        check(&[&of("return code, {print}")], "unchanged");
        check(&[&of("return code, body, {['a b'] = 1}")], "unchanged");
        check(&[], "unchanged");
        // A streamed body passes.
        assert_eq!(changed(&[&double], None).0, "unchanged");
        let endless = ["while true do end"];
        assert_eq!(changed_by(json!({"run_ms": 20}), &endless, Some("x")).0, "unchanged");
    }
}
