//! `fastcgi_pass` with its parameters.

use std::rc::Rc;

use serde_json::{Map, Value};

use super::super::decision::Target;
use super::access::Guarded;
use super::converter::Converter;
use super::level::Level;
use super::parse::Directive;
use super::proxying::hidden;
use super::state::State;
use super::upstreams::UpstreamSpec;

/// Parameters that the gateway sends itself with the same value.
const OWN_PARAMETERS: &[(&str, &str)] = &[
    ("QUERY_STRING", "$query_string"),
    ("QUERY_STRING", "$args"),
    ("REQUEST_METHOD", "$request_method"),
    ("CONTENT_TYPE", "$content_type"),
    ("CONTENT_LENGTH", "$content_length"),
    ("SCRIPT_NAME", "$fastcgi_script_name"),
    ("DOCUMENT_URI", "$document_uri"),
    ("DOCUMENT_ROOT", "$document_root"),
    ("DOCUMENT_ROOT", "$realpath_root"),
    ("SERVER_PROTOCOL", "$server_protocol"),
    ("REQUEST_SCHEME", "$scheme"),
    ("HTTPS", "$https"),
    ("GATEWAY_INTERFACE", "CGI/1.1"),
    ("REMOTE_ADDR", "$remote_addr"),
    ("REMOTE_PORT", "$remote_port"),
    ("REMOTE_USER", "$remote_user"),
    ("SERVER_ADDR", "$server_addr"),
    ("SERVER_PORT", "$server_port"),
    ("REDIRECT_STATUS", "200"),
    ("PATH_INFO", "$fastcgi_path_info"),
];

impl<'a> Converter<'a> {
    /// `fastcgi_pass`.
    pub(super) fn fastcgi(
        &mut self,
        handler: &'a Directive,
        level: &Rc<Level<'a>>,
        state: &State<'a>,
        guarded: Guarded,
        files: Option<Map<String, Value>>,
    ) {
        let authority = self.text(handler, handler.arg(0), state, level);
        if authority.contains('$') {
            return self.unknown_target(handler, level, state);
        }
        let mut fields = Map::new();
        fields.insert("fastcgi".to_owned(), self.parameters(level, state));
        let wanted = UpstreamSpec { scheme: "fcgi", authority: &authority, family: "fastcgi", fields };
        let id = self.upstream(wanted, level);
        let mut decision = state.decision(handler.place, Target::Upstream(id));
        decision.plugins = guarded.plugins;
        let rewrite = self.target_path(None, false, state);
        if !rewrite.is_empty() {
            decision.plugins.insert("proxy-rewrite".to_owned(), Value::Object(rewrite));
        }
        if let Some(files) = files {
            decision.plugins.insert("static-files".to_owned(), Value::Object(files));
        }
        if let Some(timeouts) = Self::timeouts(level, "fastcgi") {
            decision.fields.insert("timeout".to_owned(), timeouts);
        }
        let mut hidden = hidden(level, "fastcgi");
        if let Some(cache) = self.cache(level, state, "fastcgi") {
            decision.fields.insert("cache".to_owned(), cache);
            hidden.push("Age".to_owned());
        }
        self.around(level, state, &mut decision, &hidden);
        self.emit(state, level, decision);
    }

    /// The field `fastcgi` of an upstream.
    fn parameters(&mut self, level: &Rc<Level<'a>>, state: &State<'a>) -> Value {
        let mut config = Map::new();
        let mut params = Map::new();
        let root = level.last("root").map(|line| self.text(line, line.arg(0), state, level));
        if let Some(root) = root.filter(|root| root.starts_with('/') && !root.contains('$')) {
            config.insert("root".to_owned(), root.into());
        }
        for directive in level.all(&["fastcgi_param"]) {
            let (name, source) = (directive.arg(0), directive.arg(1));
            let is_own = OWN_PARAMETERS.iter().any(|(own, value)| *own == name && *value == source);
            if is_own || name == "CONTENT_LENGTH" || name == "HTTP_PROXY" || source.starts_with("nginx/$") {
                continue;
            }
            let value = self.text(directive, source, state, level);
            if name == "SCRIPT_FILENAME" {
                let value = match source {
                    "$document_root$fastcgi_script_name" | "$realpath_root$fastcgi_script_name"
                        if config.contains_key("root") =>
                    {
                        continue;
                    }
                    _ => value,
                };
                config.insert("script_filename".to_owned(), value.into());
            } else {
                params.insert(name.to_owned(), value.into());
            }
        }
        // nginx sends this field of the request twice.
        params.insert("HTTP_CONTENT_TYPE".to_owned(), "${content_type}".into());
        if let Some(index) = level.text("fastcgi_index") {
            config.insert("index".to_owned(), index.into());
        }
        let pattern =
            level.text("fastcgi_split_path_info").map(|text| super::pattern::Pattern::new(text, false));
        let split = match pattern {
            // A path that does not match is the name of the script there.
            Some(Ok(pattern)) => match pattern
                .text
                .strip_suffix(")$")
                .filter(|it| it.ends_with("(/.*") || it.ends_with("(/.+"))
            {
                Some(start) => format!("{start})?$"),
                None => pattern.text,
            },
            // The whole path is the name of the script.
            _ => "^(.*)()$".to_owned(),
        };
        config.insert("split_path_info".to_owned(), split.into());
        if level.is_on("fastcgi_keep_conn") {
            config.insert("keep_conn".to_owned(), true.into());
        }
        if !params.is_empty() {
            config.insert("params".to_owned(), Value::Object(params));
        }
        Value::Object(config)
    }
}
