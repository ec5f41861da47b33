//! Requests for FastCGI applications: the script, and the variables of CGI (RFC 3875 §4.1).
//!
//! The path alone never decides which script runs. PHP looks for a file in each folder of a path
//! (`cgi.fix_pathinfo`), so that `/avatar.jpg/x.php` would run an uploaded picture.

use regex::bytes::Regex;
use sigma_config::resources::{self, FastCgiHttps};
use sigma_http::fcgi::Params;
use sigma_http::{Fault, FaultKind, HeaderId};
use sigma_plugin::Context;
use sigma_schema::expr::{VarName, VarValue, Variables};
use sigma_schema::template::Template;
use sigma_wire::fcgi::Terms;

use crate::route::normalize::normalize_path;

/// The rules of an upstream, compiled.
#[derive(Debug)]
pub(crate) struct FastCgi {
    /// Without a slash at the end; empty by default.
    root: Box<str>,
    file: Option<Template>,
    /// With a slash in front.
    index: String,
    split: Option<Regex>,
    params: Box<[(Box<str>, Template)]>,
    https: FastCgiHttps,
    keep: bool,
    unsized_body_bytes: usize,
}

/// A script in a path, and the rest of the path.
#[derive(Debug, PartialEq, Eq)]
struct ScriptPath {
    name: Vec<u8>,
    info: Vec<u8>,
}

/// The variables of a request and of its script.
struct ScriptVariables<'t> {
    request: &'t Context,
    root: &'t str,
    found: &'t ScriptPath,
}

impl Variables for ScriptVariables<'_> {
    fn get(&self, name: &VarName) -> Option<VarValue<'_>> {
        match name {
            VarName::Other(name) if name == "document_root" => Some(VarValue::text(self.root)),
            VarName::Other(name) if name == "fastcgi_script_name" => Some(VarValue::text(&self.found.name)),
            VarName::Other(name) if name == "fastcgi_path_info" => Some(VarValue::text(&self.found.info)),
            name => self.request.get(name),
        }
    }
}

impl FastCgi {
    pub(crate) fn new(config: &resources::FastCgi) -> FastCgi {
        let root = config.root.as_deref();
        FastCgi {
            // The root directory has no name of its own.
            root: root.map(|root| root.trim_end_matches('/')).unwrap_or_default().into(),
            file: match (&config.script_filename, root) {
                (Some(text), _) => Some(Template::parse(text)),
                (None, Some(_)) => Some(Template::parse("$document_root$fastcgi_script_name")),
                (None, None) => None,
            },
            index: format!("/{}", config.index),
            // The check of the configuration has compiled it.
            split: config.split_path_info.as_deref().and_then(|pattern| Regex::new(pattern).ok()),
            params: config.params.iter().map(|(name, text)| (name.clone(), Template::parse(text))).collect(),
            https: config.https,
            keep: config.keep_conn,
            unsized_body_bytes: config.unsized_body_bytes as usize,
        }
    }

    /// Returns the variables of a request.
    ///
    /// # Errors
    /// Returns an error if the request names no script that may run.
    pub(crate) fn terms(&self, ctx: &Context) -> Result<Terms, Fault> {
        let target = if ctx.target.is_empty() { ctx.request.path_and_query() } else { &ctx.target };
        let mut path = Vec::new();
        if target == b"*" {
            path.push(b'/');
        } else {
            normalize_path(target, &mut path)
                .map_err(|error| Fault::new(FaultKind::BadRequest, error.reason()))?;
        }
        let mut params = Params::default();
        let mut found = self.find(path)?;
        if let Some(file) = &self.file {
            let file = file.rendered(&ScriptVariables { request: ctx, root: &self.root, found: &found });
            if file.is_empty() || leads_astray(&file) {
                return Err(no_script());
            }
            if self.split.is_none() {
                found.name = self.name_of(&file);
            }
            params.set(b"SCRIPT_FILENAME", &file);
        }
        self.tell(ctx, &found, &mut params);
        let told = ScriptVariables { request: ctx, root: &self.root, found: &found };
        for (name, text) in &self.params {
            let value = text.rendered(&told);
            if value.contains(&0) {
                // Programs would read only a part of it.
                return Err(Fault::new(FaultKind::BadRequest, "a FastCGI parameter contains a zero byte"));
            }
            match value.is_empty() {
                true => params.hide(name.as_bytes()),
                false => params.set(name.as_bytes(), &value),
            }
        }
        Ok(Terms { params, keep: self.keep, unsized_body_bytes: self.unsized_body_bytes })
    }

    /// Finds the script in a normal path.
    fn find(&self, mut path: Vec<u8>) -> Result<ScriptPath, Fault> {
        if self.file.is_none() {
            return Ok(ScriptPath { name: Vec::new(), info: path });
        }
        let index = || ScriptPath { name: self.index.clone().into_bytes(), info: Vec::new() };
        let Some(split) = &self.split else { return Ok(index()) };
        // The path after a script may end with a slash; the one of a folder gets the index.
        let is_folder =
            |name: Option<regex::bytes::Match<'_>>| name.is_none_or(|name| name.as_bytes().ends_with(b"/"));
        if path.ends_with(b"/") && split.captures(&path).is_none_or(|groups| is_folder(groups.get(1))) {
            path.extend_from_slice(&self.index.as_bytes()[1..]);
        }
        let Some(groups) = split.captures(&path) else { return Ok(index()) };
        let group = |number| groups.get(number).map_or(&b""[..], |group| group.as_bytes());
        let name = group(1);
        if name.is_empty() {
            return Ok(index());
        }
        if !name.starts_with(b"/") || is_in_file(name) {
            return Err(no_script());
        }
        Ok(ScriptPath { name: name.to_vec(), info: group(2).to_vec() })
    }

    /// Returns the name of a file that does not depend on the path: its part below the root, or its last segment.
    fn name_of(&self, file: &[u8]) -> Vec<u8> {
        let below = file.strip_prefix(self.root.as_bytes()).filter(|below| below.starts_with(b"/"));
        match below {
            Some(below) if !self.root.is_empty() => below.to_vec(),
            _ => {
                let last = file.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                [b"/", last].concat()
            }
        }
    }

    fn tell(&self, ctx: &Context, found: &ScriptPath, params: &mut Params) {
        params.set(b"SCRIPT_NAME", &found.name);
        if !found.info.is_empty() {
            params.set(b"PATH_INFO", &found.info);
        }
        params.set(b"DOCUMENT_URI", &[&found.name[..], &found.info].concat());
        if !self.root.is_empty() {
            params.set(b"DOCUMENT_ROOT", self.root.as_bytes());
        }
        let encrypted = match self.https {
            FastCgiHttps::On => true,
            FastCgiHttps::Off => false,
            FastCgiHttps::Auto => ctx.request.headers.get(HeaderId::XForwardedProto) == Some(&b"https"[..]),
        };
        params.set(b"REQUEST_SCHEME", if encrypted { &b"https"[..] } else { b"http" });
        if encrypted {
            params.set(b"HTTPS", b"on");
        }
        params.set(b"SERVER_SOFTWARE", b"sigma");
        params.set(b"SERVER_NAME", &ctx.host_name());
        for (name, variable) in [
            ("SERVER_ADDR", VarName::ServerAddr),
            ("SERVER_PORT", VarName::ServerPort),
            ("REMOTE_ADDR", VarName::RemoteAddr),
            ("REMOTE_PORT", VarName::RemotePort),
            // The consumer that the gateway has authenticated, and not the one that the request claims.
            ("REMOTE_USER", VarName::ConsumerName),
        ] {
            match ctx.get(&variable) {
                Some(VarValue::Text(text)) => params.set(name.as_bytes(), &text),
                _ => params.hide(name.as_bytes()),
            }
        }
        // PHP that is built for CGI refuses requests without it.
        params.set(b"REDIRECT_STATUS", b"200");
    }
}

/// Returns true if a name is a possible file name.
fn is_in_file(name: &[u8]) -> bool {
    let folders = name.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |at| &name[..at]);
    folders.contains(&b'.')
}

/// Returns true if a file has a segment that leads out of its folder, or a byte that ends its name.
fn leads_astray(file: &[u8]) -> bool {
    file.iter().any(u8::is_ascii_control) || file.split(|byte| *byte == b'/').any(|segment| segment == b"..")
}

fn no_script() -> Fault {
    Fault::new(FaultKind::NoRoute, "the path names no script that is allowed to run")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sigma_http::h1::{HeadLimits, Tolerance, parse_request};

    use super::*;

    const LIMITS: HeadLimits =
        HeadLimits { line_bytes: 1000, head_bytes: 2000, fields: 20, tolerance: Tolerance::NONE };

    fn context(target: &str) -> Context {
        let mut ctx = Context::default();
        ctx.begin();
        let text = format!("GET {target} HTTP/1.1\r\nHost: a.com:81\r\nX-Forwarded-Proto: https\r\n\r\n");
        parse_request(text.as_bytes(), &LIMITS, &mut ctx.request).expect("a request").expect("a whole one");
        normalize_path(ctx.request.raw_path(), &mut ctx.uri).expect("a path");
        ctx
    }

    fn told(config: Value, ctx: &Context) -> Result<Params, FaultKind> {
        let config: resources::FastCgi = serde_json::from_value(config).expect("a configuration");
        FastCgi::new(&config).terms(ctx).map(|terms| terms.params).map_err(|fault| fault.kind)
    }

    /// Checks the file, the name of the script, and the rest of the path.
    fn check(config: &Value, target: &str, expected: Option<(&str, &str, &str)>) {
        let found = told(config.clone(), &context(target));
        let text = |params: &Params, name: &str| {
            String::from_utf8_lossy(params.get(name.as_bytes()).unwrap_or_default()).into_owned()
        };
        let found = found
            .map(|params| ["SCRIPT_FILENAME", "SCRIPT_NAME", "PATH_INFO"].map(|name| text(&params, name)));
        let expected = expected.map(|(a, b, c)| [a, b, c].map(str::to_owned)).ok_or(FaultKind::NoRoute);
        assert_eq!(found, expected, "{config} {target}");
    }

    #[test]
    fn without_a_script_the_path_is_for_the_application() {
        check(&json!({}), "/a%20b/../c/x.php?q", Some(("", "", "/c/x.php")));
    }

    #[test]
    fn without_a_pattern_the_script_is_the_same_for_all() {
        let config = json!({ "root": "/srv/" });
        for path in ["/", "/a", "/upload.jpg/x.php", "/other.php"] {
            check(&config, path, Some(("/srv/index.php", "/index.php", "")));
        }
        let config = json!({ "root": "/", "index": "app.php" });
        check(&config, "/a", Some(("/app.php", "/app.php", "")));
        let config = json!({ "script_filename": "/srv/web/front.php" });
        check(&config, "/a", Some(("/srv/web/front.php", "/front.php", "")));
        let config = json!({ "root": "/srv", "script_filename": "/srv/web/front.php" });
        check(&config, "/a", Some(("/srv/web/front.php", "/web/front.php", "")));
        let config = json!({ "root": "/srv", "script_filename": "/srvother/front.php" });
        check(&config, "/a", Some(("/srvother/front.php", "/front.php", "")));
    }

    #[test]
    fn a_pattern_finds_scripts() {
        let config = json!({ "root": "/srv", "split_path_info": "^(.+?\\.php)(/.*)?$" });
        check(&config, "/a/b.php", Some(("/srv/a/b.php", "/a/b.php", "")));
        check(&config, "/b.php/c/d.php?e", Some(("/srv/b.php", "/b.php", "/c/d.php")));
        check(&config, "/b.php/", Some(("/srv/b.php", "/b.php", "/")));
        let all = json!({ "root": "/srv", "split_path_info": "^(.*)()$" });
        check(&all, "/dir/", Some(("/srv/dir/index.php", "/dir/index.php", "")));
        check(&config, "/b.php/dav/", Some(("/srv/b.php", "/b.php", "/dav/")));
        check(&config, "/", Some(("/srv/index.php", "/index.php", "")));
        check(&config, "/admin/", Some(("/srv/admin/index.php", "/admin/index.php", "")));
        check(&config, "/style.css", Some(("/srv/index.php", "/index.php", "")));
        check(&config, "/x/%2e%2e/b.php", Some(("/srv/b.php", "/b.php", "")));
        // An uploaded file.
        check(&config, "/upload.jpg/x.php", None);
        check(&config, "/upload.jpg%2Fx.php", None);
        check(&config, "/a.d/upload/x.php/y", None);
        // A line break that a pattern does not see as part of a path.
        check(&config, "/a%0a.php", Some(("/srv/index.php", "/index.php", "")));
        let greedy = json!({ "root": "/srv", "split_path_info": "^(.+\\.php)(.*)$" });
        check(&greedy, "/a.php/upload/x.php", None);
        let loose = json!({ "root": "/srv", "split_path_info": "(a.php)(.*)" });
        check(&loose, "/a.php", None);
        check(&loose, "/b", Some(("/srv/index.php", "/index.php", "")));
    }

    #[test]
    fn a_rule_of_its_own_for_the_file() {
        let config = json!({ "root": "/srv", "script_filename": "/sites/$host$fastcgi_script_name" });
        check(&config, "/a", Some(("/sites/a.com/index.php", "/index.php", "")));
        let config = json!({ "script_filename": "/srv$uri" });
        check(&config, "/v1.2/a.php", Some(("/srv/v1.2/a.php", "/a.php", "")));
        check(&config, "/a%0a.php", None);
        check(&json!({ "script_filename": "/srv/$arg_dir/a.php" }), "/?dir=..", None);
        check(&json!({ "script_filename": "$arg_none" }), "/", None);
    }

    #[test]
    fn variables_describe_the_request() {
        let config = json!({
            "root": "/srv",
            "params": { "SERVER_SOFTWARE": "", "APP_ENV": "prod", "REQUEST_URI": "$uri", "NONE": "$arg_none",
                "INFO": "$document_root|$fastcgi_path_info" },
        });
        let params = told(config.clone(), &context("/a?b")).expect("a script");
        let check = |params: &Params, name: &str, expected: Option<&str>| {
            assert_eq!(params.get(name.as_bytes()), expected.map(str::as_bytes), "{name}");
        };
        check(&params, "SERVER_SOFTWARE", None);
        check(&params, "APP_ENV", Some("prod"));
        check(&params, "REQUEST_URI", Some("/a"));
        check(&params, "NONE", None);
        check(&params, "INFO", Some("/srv|"));
        check(&params, "SERVER_NAME", Some("a.com"));
        check(&params, "DOCUMENT_ROOT", Some("/srv"));
        check(&params, "HTTPS", Some("on"));
        check(&params, "REMOTE_USER", None);
        let params = told(json!({ "https": "off" }), &context("/a")).expect("no script");
        check(&params, "HTTPS", None);
        check(&params, "REQUEST_SCHEME", Some("http"));
        check(&params, "DOCUMENT_URI", Some("/a"));
    }

    #[test]
    fn a_rewritten_target_counts() {
        let mut ctx = context("/a");
        ctx.target = b"/b%2Fc?d".to_vec();
        let params = told(json!({}), &ctx).expect("no script");
        assert_eq!(params.get(b"PATH_INFO"), Some(&b"/b/c"[..]));
        ctx.target = b"/%00".to_vec();
        assert_eq!(told(json!({}), &ctx).map(|_| ()), Err(FaultKind::BadRequest));
    }
}
