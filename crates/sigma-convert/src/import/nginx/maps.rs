//! Variables of the whole configuration: `map`, `geo`, `split_clients`, and the names that `set` writes.

use serde_json::{Map, Value, json};

use super::super::report::Verdict;
use super::converter::Converter;
use super::level::Level;
use super::parse::Directive;
use super::pattern::Pattern;
use super::texts::{self, Piece, matched, pieces};

impl<'a> Converter<'a> {
    /// Collects the names of variables before any text is read.
    pub(super) fn collect_names(&mut self, directives: &[Directive]) {
        for directive in directives {
            match (directive.name.as_str(), directive.block.is_some()) {
                ("map" | "geo" | "split_clients", true) => {
                    let name = directive.args.last().map_or("", |name| name.trim_start_matches('$'));
                    self.variables.defined.insert(name.to_owned(), ());
                    self.read_globally(directive);
                }
                ("set", false) => {
                    self.variables.written.push(directive.arg(0).trim_start_matches('$').to_owned());
                }
                ("auth_request_set", false) => {
                    if let Some(field) = directive.arg(1).strip_prefix("$upstream_http_") {
                        let name = directive.arg(0).trim_start_matches('$').to_owned();
                        self.variables.answers.insert(name, super::access::field_name(field));
                    }
                }
                ("log_format" | "limit_req_zone" | "limit_conn_zone", _) => self.read_globally(directive),
                ("error_page" | "auth_request" | "mirror" | "try_files" | "index", _) => {
                    let paths = directive.args.iter().filter(|arg| arg.starts_with('/'));
                    self.internal_paths.extend(paths.cloned());
                }
                ("server_name" | "location" | "rewrite" | "if", _) => {
                    let groups = directive.args.iter().flat_map(|arg| super::pattern::group_names(arg));
                    self.variables.groups.extend(groups.map(str::to_owned));
                    if directive.name == "rewrite" {
                        self.internal_paths.push(directive.arg(1).to_owned());
                    }
                }
                _ => {}
            }
            self.collect_names(directive.children());
        }
    }

    /// Remembers the variables that a text outside of locations reads.
    fn read_globally(&mut self, directive: &Directive) {
        let words =
            directive.args.iter().chain(directive.children().iter().flat_map(|child| child.args.iter()));
        for word in words {
            for piece in pieces(word) {
                if let Piece::Variable(name) = piece {
                    self.variables.read_globally.push(name.to_owned());
                }
            }
        }
    }

    /// Returns a text outside of locations.
    pub(super) fn global_text(&mut self, directive: &Directive, source: &str) -> String {
        let mut text = String::new();
        for piece in pieces(source) {
            match piece {
                Piece::Text(part) => text.push_str(part),
                Piece::Variable(name) if name.bytes().all(|byte| byte.is_ascii_digit()) => {
                    text.push_str(&format!("${{{name}}}"));
                }
                Piece::Variable(name) => match texts::global(&self.variables, name) {
                    Some(found) => text.push_str(&found),
                    None if self.variables.written.iter().any(|written| written == name) => {
                        text.push_str(&format!("${{var_{name}}}"));
                    }
                    None => {
                        let message = format!("the variable ${name} has no counterpart and is empty");
                        self.remark(directive, Verdict::NotPossible, message);
                    }
                },
            }
        }
        text
    }

    /// Remembers the variables that depend on others without a counterpart, through any number of maps.
    pub(super) fn spread_doubt(&mut self, http: &Level<'a>) {
        let blocks = http.own_all(&["map", "geo"]);
        loop {
            let before = self.variables.doubtful.len();
            for block in &blocks {
                let name = block.args.last().map_or("", |name| name.trim_start_matches('$'));
                self.doubt(name, block);
            }
            if self.variables.doubtful.len() == before {
                return;
            }
        }
    }

    fn doubt(&mut self, name: &str, block: &Directive) {
        // The last argument is the variable itself.
        let sources = block.args.iter().rev().skip(1);
        let has_groups = |entry: &&Directive| entry.name.contains("?<") || entry.name.contains("?P<");
        let values = block.children().iter().filter(|entry| !has_groups(entry)).flat_map(|entry| &entry.args);
        let named = |piece| if let Piece::Variable(name) = piece { Some(name) } else { None };
        let mut read = sources.chain(values).flat_map(|word| pieces(word).into_iter().filter_map(named));
        let is_known = |name: &str| {
            !texts::is_doubtful(&self.variables, name)
                && (texts::global(&self.variables, name).is_some()
                    // Groups of an expression, and variables that `set` writes.
                    || name.bytes().all(|byte| byte.is_ascii_digit())
                    || self.variables.written.iter().any(|written| written == name))
        };
        if read.any(|name| !is_known(name)) {
            self.variables.doubtful.insert(name.to_owned());
        }
    }

    /// `map`.
    pub(super) fn map(&mut self, block: &'a Directive) {
        let name = block.arg(1).trim_start_matches('$').to_owned();
        let mut variable = Map::new();
        variable.insert("map".to_owned(), self.global_text(block, block.arg(0)).into());
        let has_hosts = block.children().iter().any(|child| child.name == "hostnames");
        let (mut exact, mut hosts, mut regexes) = (Map::new(), Map::new(), Vec::new());
        let mut default = String::new();
        let mut values = Vec::new();
        for entry in block.children() {
            match entry.name.as_str() {
                "hostnames" | "volatile" => continue,
                // Its entries follow.
                "include" if entry.raw.is_some() => continue,
                "include" => {
                    self.variables.doubtful.insert(name.clone());
                    let text = "cannot read the file; its entries are missing";
                    self.remark(entry, Verdict::NotPossible, text);
                    continue;
                }
                _ => {}
            }
            let pattern = entry.name.as_str();
            let expression = pattern
                .strip_prefix("~*")
                .map(|text| (text, true))
                .or_else(|| pattern.strip_prefix('~').map(|text| (text, false)));
            let value = match expression {
                Some((text, ignore_case)) => match Pattern::new(text, ignore_case) {
                    Ok(pattern) => {
                        let value = self.map_value(entry, &pattern);
                        regexes.push(matched(&pattern, &value));
                        value
                    }
                    Err(reason) => {
                        self.variables.doubtful.insert(name.clone());
                        self.remark(
                            entry,
                            Verdict::NotPossible,
                            format!("{reason}; the entry was not converted"),
                        );
                        continue;
                    }
                },
                None => {
                    let value = self.global_text(entry, entry.arg(0));
                    match pattern {
                        "default" => default.clone_from(&value),
                        pattern if has_hosts && (pattern.contains('*') || pattern.starts_with('.')) => {
                            hosts.insert(pattern.to_owned(), value.clone().into());
                        }
                        pattern => {
                            let pattern = pattern.strip_prefix('\\').unwrap_or(pattern);
                            exact.insert(pattern.to_owned(), value.clone().into());
                        }
                    }
                    value
                }
            };
            values.push(value);
        }
        values.push(default.clone());
        for (key, entries) in [("exact", exact), ("hosts", hosts)] {
            if !entries.is_empty() {
                variable.insert(key.to_owned(), Value::Object(entries));
            }
        }
        if !regexes.is_empty() {
            variable.insert("regex".to_owned(), json!(regexes));
        }
        variable.insert("default".to_owned(), default.into());
        self.defined(name, variable, values);
    }

    /// A value with groups of its expression: numbers stay, names become numbers.
    fn map_value(&mut self, entry: &Directive, pattern: &Pattern) -> String {
        let mut source = String::new();
        for piece in pieces(entry.arg(0)) {
            match piece {
                Piece::Text(text) => source.push_str(text),
                Piece::Variable(name) => {
                    let number = pattern.group(name).map_or(name.to_owned(), |number| number.to_string());
                    source.push_str(&format!("${{{number}}}"));
                }
            }
        }
        self.global_text(entry, &source)
    }

    fn defined(&mut self, name: String, variable: Map<String, Value>, mut values: Vec<String>) {
        values.sort_unstable();
        values.dedup();
        if values.iter().all(|value| !value.contains('$')) {
            self.blocks.map_values.insert(name.clone(), values);
        }
        self.variables.setting.insert(name, Value::Object(variable));
    }

    /// `geo`: networks as expressions are not possible; whole octets are.
    pub(super) fn geo(&mut self, block: &'a Directive) {
        let (source, name) = match block.args.as_slice() {
            [source, name] => (source.as_str(), name.as_str()),
            [name] => ("$remote_addr", name.as_str()),
            _ => return,
        };
        let name = name.trim_start_matches('$').to_owned();
        let mut variable = Map::new();
        variable.insert("map".to_owned(), self.global_text(block, source).into());
        let (mut networks, mut values, mut default) = (Map::new(), Vec::new(), String::new());
        for entry in block.children() {
            let value = entry.arg(0).to_owned();
            match entry.name.as_str() {
                "default" => default.clone_from(&value),
                "ranges" => continue,
                // Its entries follow.
                "include" if entry.raw.is_some() => continue,
                "delete" | "proxy" | "proxy_recursive" | "include" => {
                    self.variables.doubtful.insert(name.clone());
                    self.remark(entry, Verdict::NotPossible, "write the networks one by one");
                    continue;
                }
                network if is_network(network) => {
                    _ = networks.insert(network.to_owned(), value.clone().into())
                }
                range => match super::addresses::of_range(range) {
                    Some(list) => {
                        networks.extend(list.into_iter().map(|network| (network, value.clone().into())));
                    }
                    None => {
                        self.variables.doubtful.insert(name.clone());
                        self.remark(entry, Verdict::NotPossible, "write a network such as 10.0.0.0/8");
                        continue;
                    }
                },
            }
            values.push(value);
        }
        values.push(default.clone());
        if !networks.is_empty() {
            variable.insert("networks".to_owned(), Value::Object(networks));
        }
        variable.insert("default".to_owned(), default.into());
        self.defined(name, variable, values);
    }

    /// `split_clients`.
    pub(super) fn split_clients(&mut self, block: &'a Directive) {
        let name = block.arg(1).trim_start_matches('$').to_owned();
        let mut variable = Map::new();
        variable.insert("map".to_owned(), self.global_text(block, block.arg(0)).into());
        let (mut shares, mut values, mut default) = (Vec::new(), Vec::new(), String::new());
        for entry in block.children() {
            let value = entry.arg(0).to_owned();
            match entry.name.strip_suffix('%').and_then(|percent| percent.parse::<f64>().ok()) {
                Some(percent) => shares.push(json!({"percent": percent, "value": value})),
                None => default.clone_from(&value),
            }
            values.push(value);
        }
        variable.insert("shares".to_owned(), json!(shares));
        variable.insert("default".to_owned(), default.into());
        self.defined(name, variable, values);
    }
}

/// Returns whether a text is an address or a network.
fn is_network(text: &str) -> bool {
    text.parse::<sigma_schema::cidr::Cidr>().is_ok()
}
