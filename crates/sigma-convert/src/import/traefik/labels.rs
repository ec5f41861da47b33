//! Labels of containers in compose files, and Traefik's own flags there.

use super::super::source::SourceLine;
use super::super::tree::{Content, Member, Tree};
use super::fields::{at, field, text};
use super::model::{Located, Model, split_lists};

/// Maximum index in a key such as `domains[0]`.
const MAX_INDEX: usize = 1000;

/// A label or flag: its key, value and line.
struct Pair {
    key: String,
    value: String,
    line: u32,
}

/// Returns whether a file is a compose file.
pub(super) fn is_compose(tree: &Tree) -> bool {
    let services = tree.get("services").map(Tree::members).unwrap_or_default();
    let words = ["image", "build", "labels", "command", "deploy", "container_name", "environment"];
    services.iter().any(|service| words.iter().any(|word| service.value.get(word).is_some()))
}

/// Returns the static settings in the command and the environment of Traefik's own container.
pub(super) fn statics(model: &mut Model<'_>, file: u16, compose: &Tree) {
    for service in compose.get("services").map(Tree::members).unwrap_or_default() {
        let image = service.value.get("image").and_then(Tree::text).unwrap_or_default();
        let name = image.rsplit('/').next().unwrap_or_default();
        let (name, tag) = name.split_once(':').unwrap_or((name, ""));
        if name != "traefik" {
            continue;
        }
        model.is_old |= tag.trim_start_matches('v').starts_with('2');
        let mut tree = Tree::map(service.line);
        for word in ["command", "entrypoint"] {
            for argument in service.value.get(word).map(Tree::items).unwrap_or_default() {
                let line = argument.line;
                for flag in argument.text().unwrap_or_default().split_whitespace() {
                    let Some(flag) = flag.strip_prefix("--") else { continue };
                    let (key, value) = flag.split_once('=').unwrap_or((flag, "true"));
                    let value = substituted(model, value.trim_matches(['"', '\'']));
                    set(&mut tree, key, &value, line);
                }
            }
        }
        for Pair { key, value, line } in pairs(model, service.value.get("environment")) {
            if let Some(key) = key.strip_prefix("TRAEFIK_") {
                set(&mut tree, &key.to_ascii_lowercase().replace('_', "."), &value, line);
            }
        }
        split_lists(&mut tree);
        if !tree.members().is_empty() {
            model.statics.push(Located { file, tree });
        }
    }
}

/// Takes the labels of all containers as a dynamic configuration.
pub(super) fn dynamic(model: &mut Model<'_>, file: u16, compose: &Tree) {
    let setting = |path: &[&str]| {
        let found = model.statics.iter().find_map(|located| at(&located.tree, path));
        found.and_then(|tree| tree.text().map(str::to_owned))
    };
    let docker = |name: &str| {
        setting(&["providers", "docker", name]).or_else(|| setting(&["providers", "swarm", name]))
    };
    let exposes = docker("exposedbydefault").is_none_or(|value| !value.eq_ignore_ascii_case("false"));
    let rule = docker("defaultrule").unwrap_or_else(|| "Host(`{{ normalize .Name }}`)".to_owned());
    let mut all = Tree::map(1);
    for service in compose.get("services").map(Tree::members).unwrap_or_default() {
        let mut found = pairs(model, service.value.get("labels"));
        found.extend(pairs(model, service.value.get("deploy").and_then(|deploy| deploy.get("labels"))));
        found.retain(|pair| pair.key.to_ascii_lowercase().starts_with("traefik."));
        if found.is_empty() {
            continue;
        }
        let enabled = found.iter().find(|pair| pair.key.eq_ignore_ascii_case("traefik.enable"));
        let enabled = enabled.map_or(exposes, |pair| pair.value.eq_ignore_ascii_case("true"));
        if !enabled {
            for pair in &found {
                let text = "Traefik ignores this container, because `traefik.enable` is not true.";
                model.remarks.no_effect(SourceLine { file, line: pair.line }, text);
            }
            continue;
        }
        container(model, file, service, &found, &rule, &mut all);
    }
    split_lists(&mut all);
    model.dynamic(file, "docker", all);
}

/// Adds the labels of one container, with the service that Traefik makes for it.
fn container(model: &mut Model<'_>, file: u16, service: &Member, pairs: &[Pair], rule: &str, all: &mut Tree) {
    let mut own = Tree::map(service.line);
    for pair in pairs {
        let key = pair.key["traefik.".len()..].to_owned();
        match key.split('.').next().unwrap_or_default().to_ascii_lowercase().as_str() {
            "http" | "tcp" | "udp" | "tls" => set(&mut own, &key, &pair.value, pair.line),
            "enable" => model.remarks.done(SourceLine { file, line: pair.line }),
            "docker" | "swarm" => {
                let text =
                    "The name of the compose service is the node's address; both need a common network.";
                model.remarks.no_effect(SourceLine { file, line: pair.line }, text);
            }
            _ => model
                .remarks
                .gap(SourceLine { file, line: pair.line }, "The importer does not know this label."),
        }
    }
    for section in ["http", "tcp", "udp"] {
        let has_routers = at(&own, &[section, "routers"]).is_some();
        let services = at(&own, &[section, "services"]).map(Tree::members).unwrap_or_default();
        let names: Vec<String> = services.iter().map(|member| member.key.clone()).collect();
        if !has_routers
            && names.is_empty()
            && (section != "http" || at(&own, &["tcp"]).is_some() || at(&own, &["udp"]).is_some())
        {
            continue;
        }
        let default = if names.is_empty() { vec![service.key.clone()] } else { names };
        for name in &default {
            servers(model, file, service, section, name, &mut own);
        }
        if section == "http" && !has_routers {
            let rule = default_rule(rule, &service.key);
            let place = SourceLine { file, line: service.line };
            model
                .remarks
                .differs(place, format!("Its rule is {rule}; Traefik adds the name of the project."));
            set(&mut own, &format!("http.routers.{}.rule", service.key), &rule, service.line);
        }
        own_services(section, &default, &mut own);
    }
    merge(all, own);
}

/// Names the service of routers that name none, if there is one.
fn own_services(section: &str, services: &[String], own: &mut Tree) {
    let [service] = services else { return };
    let names: Vec<(String, u32)> = at(own, &[section, "routers"])
        .map(Tree::members)
        .unwrap_or_default()
        .iter()
        .filter(|router| text(&router.value, "service").is_none())
        .map(|router| (router.key.clone(), router.line))
        .collect();
    for (name, line) in names {
        let Some(section) = entry(own, section) else { continue };
        let Some(routers) = entry(section, "routers") else { continue };
        routers.entry(&name, line).entry("service", line).content =
            Content::Scalar { text: service.clone(), quoted: true };
    }
}

fn entry<'t>(tree: &'t mut Tree, name: &str) -> Option<&'t mut Tree> {
    let Content::Map(members) = &mut tree.content else { return None };
    members.iter_mut().find(|member| member.key.eq_ignore_ascii_case(name)).map(|member| &mut member.value)
}

/// Gives a service of labels its server: the container.
fn servers(model: &mut Model<'_>, file: u16, service: &Member, section: &str, name: &str, own: &mut Tree) {
    let key = format!("{section}.services.{name}.loadbalancer");
    let conf = at(own, &[section, "services", name, "loadbalancer"])
        .cloned()
        .unwrap_or_else(|| Tree::map(service.line));
    let server = field(&conf, "server").cloned().unwrap_or_else(|| Tree::map(service.line));
    let line = server.line;
    if section == "http"
        && let Some(url) = text(&server, "url")
    {
        set(own, &format!("{key}.servers[0].url"), url, line);
        return;
    }
    let port = text(&server, "port").map(str::to_owned).or_else(|| exposed(&service.value));
    let port = port.unwrap_or_else(|| {
        let text = "No port is set: Traefik uses the lowest exposed port of the image; the importer uses 80.";
        model.remarks.differs(SourceLine { file, line }, text);
        "80".to_owned()
    });
    if section == "http" {
        let scheme = text(&server, "scheme").unwrap_or("http");
        set(own, &format!("{key}.servers[0].url"), &format!("{scheme}://{}:{port}", service.key), line);
    } else {
        set(own, &format!("{key}.servers[0].address"), &format!("{}:{port}", service.key), line);
    }
}

/// The port of the container that a compose file names.
fn exposed(service: &Tree) -> Option<String> {
    let first = |name: &str| service.get(name).and_then(|list| list.items().first());
    if let Some(port) = first("expose").and_then(Tree::text) {
        return Some(port.to_owned());
    }
    let port = first("ports")?;
    match port.text() {
        Some(text) => text.rsplit(':').next().map(|port| port.split('/').next().unwrap_or(port).to_owned()),
        None => port.get("target").and_then(Tree::text).map(str::to_owned),
    }
}

fn default_rule(template: &str, name: &str) -> String {
    let mut rule = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (_, tail) = after.split_once("}}").unwrap_or((after, ""));
        rule.push_str(before);
        rule.push_str(name);
        rest = tail;
    }
    rule.push_str(rest);
    rule
}

/// Returns pairs of a list `- key=value` or of a mapping.
fn pairs(model: &Model<'_>, tree: Option<&Tree>) -> Vec<Pair> {
    let Some(tree) = tree else { return Vec::new() };
    let mut found = Vec::new();
    match &tree.content {
        Content::Map(members) => {
            for Member { key, line, value } in members {
                let value = substituted(model, value.text().unwrap_or_default());
                found.push(Pair { key: key.clone(), value, line: *line });
            }
        }
        _ => {
            for item in tree.items() {
                let text = item.text().unwrap_or_default();
                let (key, value) = text.split_once('=').unwrap_or((text, ""));
                let value = substituted(model, value);
                found.push(Pair { key: key.trim().to_owned(), value, line: item.line });
            }
        }
    }
    found
}

/// Inserts environment variables as compose does: `$$`, `${NAME}`, `${NAME:-default}`.
fn substituted(model: &Model<'_>, text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((inner, after)) = rest.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            let (name, default) =
                inner.split_once(":-").or_else(|| inner.split_once('-')).unwrap_or((inner, ""));
            let name = name.split([':', '?']).next().unwrap_or(name);
            out.push_str(&model.access.variable(name).unwrap_or_else(|| default.to_owned()));
            rest = after;
        } else {
            let end =
                rest.find(|char: char| !(char.is_ascii_alphanumeric() || char == '_')).unwrap_or(rest.len());
            let name = &rest[..end];
            match name.is_empty() || name.starts_with(|char: char| char.is_ascii_digit()) {
                true => out.push('$'),
                false => {
                    out.push_str(&model.access.variable(name).unwrap_or_default());
                    rest = &rest[end..];
                }
            }
        }
    }
    out.push_str(rest);
    out
}

/// Sets the value at a key such as `http.routers.a.tls.domains[0].main`.
fn set(tree: &mut Tree, key: &str, value: &str, line: u32) {
    let mut target = tree;
    for segment in key.split('.') {
        let (name, index) = match segment.strip_suffix(']').and_then(|segment| segment.split_once('[')) {
            Some((name, index)) => (name, index.parse::<usize>().ok().filter(|index| *index <= MAX_INDEX)),
            None => (segment, None),
        };
        target = member(target, name, line);
        if let Some(index) = index {
            if !matches!(target.content, Content::List(_)) {
                target.content = Content::List(Vec::new());
            }
            let Content::List(items) = &mut target.content else { return };
            while items.len() <= index {
                items.push(Tree { line, content: Content::Null });
            }
            target = &mut items[index];
        }
    }
    // `tls=true` besides `tls.certresolver` says nothing more.
    if matches!(target.content, Content::Null | Content::Scalar { .. }) {
        *target = Tree { line, content: Content::Scalar { text: value.to_owned(), quoted: false } };
    }
}

/// The member of a name in any case; a scalar becomes a mapping.
fn member<'t>(tree: &'t mut Tree, name: &str, line: u32) -> &'t mut Tree {
    let known = tree.members().iter().find(|member| member.key.eq_ignore_ascii_case(name));
    let key = known.map_or_else(|| name.to_owned(), |member| member.key.clone());
    tree.entry(&key, line)
}

/// Adds the members of `other`, mapping by mapping.
fn merge(tree: &mut Tree, other: Tree) {
    let Content::Map(members) = other.content else { return };
    for Member { key, line, value } in members {
        let target = member(tree, &key, line);
        match (&target.content, &value.content) {
            (Content::Map(_), Content::Map(_)) => merge(target, value),
            (Content::Null, _) => *target = value,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_places_in_trees() {
        let mut tree = Tree::map(1);
        set(&mut tree, "http.routers.a.tls", "true", 2);
        set(&mut tree, "http.routers.a.tls.domains[0].main", "x", 3);
        set(&mut tree, "HTTP.routers.a.rule", "Path(`/`)", 4);
        let expected = serde_json::json!({"http": {"routers": {"a": {
            "tls": {"domains": [{"main": "x"}]}, "rule": "Path(`/`)"}}}});
        assert_eq!(tree.to_json(), expected);
    }

    #[test]
    fn names_in_default_rules() {
        assert_eq!(default_rule("Host(`{{ normalize .Name }}.a.test`)", "web"), "Host(`web.a.test`)");
    }
}
