//! Filters: the effects of a route on requests and responses.

use serde_json::json;

use super::super::words::{header_variable, lua_text};
use super::actions::{Actions, Change, HostField};
use super::definition::Definition;
use super::limits;
use super::pattern;
use super::rewriting::{self, Step};
use super::settings::{Settings, relaxed};
use super::values::{Outcome, status};

/// Reads filters into the actions of a route.
pub(super) struct Reader<'r, 's> {
    pub settings: &'r Settings<'s>,
    /// The variables of the route's predicates.
    pub variables: &'r [pattern::Named],
    /// Whether a route of the file serves a path.
    pub serves: &'r dyn Fn(&str) -> bool,
    pub actions: Actions,
}

/// Filters whose texts may name variables.
const TEXTS: [&str; 7] = [
    "addrequestheader",
    "setrequestheader",
    "addresponseheader",
    "setresponseheader",
    "addrequestparameter",
    "prefixpath",
    "setpath",
];

type Read = Result<Outcome, String>;

impl Reader<'_, '_> {
    /// Adds a filter.
    pub(super) fn add(&mut self, it: &Definition) -> Outcome {
        let mut outcome = self.read(it).unwrap_or_else(Outcome::Closed);
        if matches!(outcome, Outcome::Done) && TEXTS.contains(&relaxed(&it.name).as_str()) {
            let mut names = it.args.iter().flat_map(|(_, text)| pattern::unknown(text, self.variables));
            if let Some(name) = names.next() {
                outcome = Outcome::Differs(format!(
                    "`{{{name}}}` is no variable of the route: it stays as it is, where Spring returns 500."
                ));
            }
        }
        if let Outcome::Closed(reason) | Outcome::Guard(reason) = &outcome {
            self.actions.close(reason);
        }
        outcome
    }

    fn read(&mut self, it: &Definition) -> Read {
        match relaxed(&it.name).as_str() {
            "stripprefix" => self.step(Step::strip(it.one("parts"))),
            "prefixpath" => {
                let prefix = self.value(it, "prefix")?;
                self.step(Ok(Step::Prefix(if prefix.starts_with('/') {
                    prefix
                } else {
                    format!("/{prefix}")
                })))
            }
            "setpath" => {
                let template = self.value(it, "template")?;
                self.step(Ok(Step::Set(template)))
            }
            "rewritepath" => {
                let step = Step::rewrite(required(it, "regexp")?, it.one("replacement").unwrap_or_default());
                self.step(step)
            }
            "addrequestheader"
            | "setrequestheader"
            | "removerequestheader"
            | "maprequestheader"
            | "addrequestheadersifnotpresent" => self.request_field(it),
            "addresponseheader" | "setresponseheader" | "removeresponseheader" | "secureheaders" => {
                self.response_field(it)
            }
            "deduperesponseheader" | "rewriteresponseheader" | "rewritelocationresponseheader" => {
                self.response_code(it)
            }
            "addrequestparameter" | "removerequestparameter" | "rewriterequestparameter" => self.argument(it),
            "preservehostheader" => {
                self.actions.host = HostField::Client;
                Ok(Outcome::Done)
            }
            "setrequesthostheader" | "setrequesthost" => {
                let host = required(it, "host")?.to_owned();
                self.actions.host = HostField::Fixed(host);
                Ok(Outcome::Done)
            }
            "setstatus" => {
                let status = status(required(it, "status")?).ok_or("The status is unknown.")?;
                self.actions.status = Some(status);
                Ok(if status < 200 {
                    Outcome::Closed("The status is not a final status.".to_owned())
                } else {
                    Outcome::Done
                })
            }
            "redirectto" => self.redirect(it),
            _ => self.further(it),
        }
    }

    fn further(&mut self, it: &Definition) -> Read {
        let (settings, serves) = (self.settings, self.serves);
        let actions = &mut self.actions;
        match relaxed(&it.name).as_str() {
            "retry" => limits::retry(it, actions),
            "circuitbreaker" | "hystrix" | "springcloudcircuitbreaker" => {
                limits::breaker(it, settings, serves, actions)
            }
            "requestratelimiter" => Ok(limits::rate(it, settings, actions)),
            "requestsize" => limits::body_size(it, actions),
            "requestheadersize" => Ok(Outcome::Differs(
                "The largest head of a request is a limit of the whole gateway, `limits.request_head_bytes`."
                    .to_owned(),
            )),
            "localresponsecache" => limits::cache(it, actions),
            "removejsonattributesresponsebody" => {
                let fields = it.many("fieldList");
                if it.flag("deleteRecursively") == Some(true) {
                    return Err("Only top-level fields of a body can be removed.".to_owned());
                }
                actions.plugins.insert("response-shaping".to_owned(), json!({"deny": fields}));
                Ok(Outcome::Done)
            }
            "savesession" => Ok(Outcome::NoEffect("Sigma does not store sessions of the application.")),
            "cacherequestbody" => Ok(Outcome::NoEffect("Plugins that need the body read it themselves.")),
            "fallbackheaders" => Ok(Outcome::NoEffect("Sigma does not send exceptions to a fallback.")),
            "adaptcachedbody" => Ok(Outcome::NoEffect("Plugins that need the body read it themselves.")),
            "tokenrelay" => Ok(super::server::token_relay(it, settings, actions)),
            "jsontogrpc" => {
                Err("The descriptor of the service is needed: put the proto file into `protos` and use \
                                 the plugin grpc-transcode."
                    .to_owned())
            }
            "requestheadertorequesturi" => Ok(Outcome::Guard(
                "The client would choose the node; Sigma does not support such a route.".to_owned(),
            )),
            "modifyrequestbody" | "modifyresponsebody" => {
                Err("It is code of the application: use body-transformer or a Lua function.".to_owned())
            }
            name => Ok(Outcome::Guard(format!(
                "`{name}` is code of the application and may guard the route, which returns 503: write its counterpart as a plugin.",
            ))),
        }
    }

    fn step(&mut self, step: Result<Step, String>) -> Read {
        self.actions.steps.push(step?);
        Ok(Outcome::Done)
    }

    /// An argument whose path variables become the gateway's.
    fn value(&self, it: &Definition, name: &str) -> Result<String, String> {
        let text = required(it, name)?;
        Ok(pattern::value(text, self.variables))
    }

    fn request_field(&mut self, it: &Definition) -> Read {
        let changes = match relaxed(&it.name).as_str() {
            "maprequestheader" => {
                let from = header_variable(required(it, "fromHeader")?)?;
                vec![(required(it, "toHeader")?.to_owned(), Change::Add(format!("${{{from}}}")))]
            }
            "addrequestheadersifnotpresent" => return self.absent_fields(it),
            "removerequestheader" => vec![(required(it, "name")?.to_owned(), Change::Remove)],
            "setrequestheader" => {
                vec![(required(it, "name")?.to_owned(), Change::Set(self.value(it, "value")?))]
            }
            _ => vec![(required(it, "name")?.to_owned(), Change::Add(self.value(it, "value")?))],
        };
        for (name, change) in changes {
            if name.eq_ignore_ascii_case("host") {
                return Ok(Outcome::NoEffect(
                    "Spring replaces Host when it sends the request; use SetRequestHostHeader.",
                ));
            }
            self.actions.request.push((name, change));
        }
        Ok(Outcome::Done)
    }

    /// Fields that are added if the client did not send them.
    fn absent_fields(&mut self, it: &Definition) -> Read {
        let mut pairs = it.many("pairs");
        pairs.extend(
            it.many("name").into_iter().zip(it.many("value")).map(|(name, value)| format!("{name}:{value}")),
        );
        for pair in &pairs {
            let (name, value) = pair.split_once(':').ok_or("A pair has no colon.")?;
            let variable = header_variable(name)?;
            let value = pattern::value(value.trim(), self.variables);
            let text = match value.contains(['$', '}']) {
                false => format!("${{{variable} ?? {value}}}"),
                true => {
                    return Err("The value of a field that may be absent must be a fixed string.".to_owned());
                }
            };
            self.actions.request.push((name.trim().to_owned(), Change::Set(text)));
        }
        Ok(Outcome::Done)
    }

    fn response_field(&mut self, it: &Definition) -> Read {
        match relaxed(&it.name).as_str() {
            "secureheaders" => {
                let code = super::server::secure_headers(it, self.settings);
                self.actions.code.response.push(code);
                return Ok(Outcome::Done);
            }
            "removeresponseheader" => {
                self.actions.response.push((required(it, "name")?.to_owned(), Change::Remove));
            }
            "setresponseheader" => {
                let value = self.value(it, "value")?;
                self.actions.response.push((required(it, "name")?.to_owned(), Change::Set(value)));
            }
            _ => {
                let (name, value) = (required(it, "name")?, self.value(it, "value")?);
                if it.flag("override") == Some(false) {
                    if value.contains("${") {
                        return Err("The value of a field that may exist must be a fixed string.".to_owned());
                    }
                    let code = format!(
                        "  if not ngx.header[{0}] then ngx.header[{0}] = {1} end\n",
                        lua_text(name),
                        lua_text(&value.replace("\\$", "$"))
                    );
                    self.actions.code.response.push(code);
                } else if !value.contains("${")
                    && (value.contains(':') || value.ends_with('/') || value.is_empty())
                {
                    // The plugin's form `Name: value` has no place for these.
                    let code = super::code::add(name, &value.replace("\\$", "$"));
                    self.actions.code.response.push(code);
                } else {
                    self.actions.response.push((name.to_owned(), Change::Add(value)));
                }
            }
        }
        Ok(Outcome::Done)
    }

    /// Filters of responses that are written as Lua.
    fn response_code(&mut self, it: &Definition) -> Read {
        match relaxed(&it.name).as_str() {
            "deduperesponseheader" => {
                let pick = match it.one("strategy").unwrap_or("RETAIN_FIRST").trim() {
                    "RETAIN_LAST" => "{ values[#values] }",
                    "RETAIN_UNIQUE" => "unique(values)",
                    _ => "{ values[1] }",
                };
                let names: Vec<&str> = required(it, "name")?.split_whitespace().collect();
                self.actions.code.response.push(super::code::dedupe(&names, pick));
            }
            "rewriteresponseheader" => {
                let regex = pattern::java(required(it, "regexp")?)?;
                let replacement = it.one("replacement").unwrap_or_default().replace("$\\", "$");
                let replacement = rewriting::numbered(&replacement, &pattern::groups(&regex))?;
                self.actions.code.response.push(super::code::rewrite(
                    required(it, "name")?,
                    &regex,
                    &replacement,
                ));
            }
            _ => {
                let code = super::code::location(
                    it.one("locationHeaderName").unwrap_or("Location"),
                    it.one("stripVersionMode").unwrap_or("AS_IN_REQUEST"),
                    it.one("hostValue").unwrap_or_default(),
                    &pattern::java(
                        it.one("protocols").or_else(|| it.one("protocolsRegex")).unwrap_or("https?|ftps?"),
                    )?,
                );
                self.actions.code.response.push(code);
                self.actions.code.request.push(super::code::HOST.to_owned());
            }
        }
        Ok(Outcome::Done)
    }

    fn argument(&mut self, it: &Definition) -> Read {
        let name = required(it, "name")?.to_owned();
        match relaxed(&it.name).as_str() {
            "addrequestparameter" => {
                let value = self.value(it, "value")?;
                self.actions.arg("add", &name, value.into());
            }
            "removerequestparameter" => self.actions.remove_arg(&name),
            _ => {
                let value = it.one("replacement").unwrap_or_default();
                let value = pattern::value(value, self.variables);
                if value.contains("${") {
                    return Err("The replacement of a parameter must be a fixed string.".to_owned());
                }
                self.actions.code.request.push(super::code::argument(&name, &value.replace("\\$", "$")));
            }
        }
        Ok(Outcome::Done)
    }

    fn redirect(&mut self, it: &Definition) -> Read {
        let status = status(required(it, "status")?).ok_or("The status is unknown.")?;
        let url = required(it, "url")?;
        let target = pattern::value(url, self.variables);
        let appends = it.flag("includeRequestParams") == Some(true);
        self.actions.redirect = Some((status, target, appends));
        Ok(Outcome::Done)
    }
}

fn required<'d>(it: &'d Definition, name: &str) -> Result<&'d str, String> {
    it.one(name).ok_or_else(|| format!("`{}` has no argument `{name}`.", it.name))
}
