//! Layering: each crate depends on lower layers only, and keeps out the dependencies that it exists to keep
//! out.

use super::source::{Source, words};
use super::{Finding, Repository, read};

const RULE: &str = "layering";

/// A crate's place in the house.
struct Member {
    name: &'static str,
    layer: u8,
    /// Other packages that must not be among its dependencies.
    without: &'static [&'static str],
    /// Paths that must not be named in its code.
    unnamed: &'static [&'static str],
    /// The sentence that the crate exists for.
    forbids: &'static str,
}

/// The table of `ARCHITECTURE.md`, as far as a tool can check it.
const MEMBERS: &[Member] = &[
    Member {
        name: "sigma-buffer",
        layer: 0,
        without: &["tokio", "bytes", "http", "serde", "rustix", "socket2", "mio", "tracing"],
        unnamed: &["std::fs", "std::net", "std::io", "std::thread", "Instant::now", "SystemTime::now"],
        forbids: "it forbids the memory of bytes to know the source or the meaning of the bytes",
    },
    Member {
        name: "sigma-http",
        layer: 1,
        without: &["tokio", "serde", "serde_json", "rustix", "socket2", "mio", "tracing"],
        unnamed: &[
            "std::fs",
            "std::net::Tcp",
            "std::io::Read",
            "std::thread",
            "Instant::now",
            "SystemTime::now",
        ],
        forbids: "it forbids I/O, clocks, async and serde below the message model",
    },
    Member {
        name: "sigma-net",
        layer: 1,
        without: &["httparse", "http", "h2", "hyper"],
        unnamed: &[],
        forbids: "it forbids sockets to know HTTP",
    },
    Member {
        name: "sigma-schema",
        layer: 1,
        without: &["tokio", "rustix", "socket2", "mio"],
        unnamed: &["std::fs", "std::net::Tcp", "std::net::Udp", "std::process", "std::thread"],
        forbids: "it forbids the schema language to know a setting or a resource",
    },
    Member {
        name: "sigma-config",
        layer: 2,
        without: &["sigma-net", "sigma-http", "tokio", "rustix", "socket2", "mio"],
        unnamed: &["std::fs", "std::net::Tcp", "std::net::Udp", "std::process", "std::thread"],
        forbids: "it forbids I/O and runtime state in the configuration types",
    },
    Member {
        name: "sigma-observe",
        layer: 1,
        without: &[],
        unnamed: &["thread::sleep"],
        forbids: "it forbids a worker to wait for its own measurements",
    },
    Member {
        name: "sigma-plugin",
        layer: 2,
        without: &["sigma-config", "tokio", "socket2", "rustix"],
        unnamed: &["std::net::Tcp"],
        forbids: "it forbids sockets in the contract of an extension",
    },
    Member {
        name: "sigma-wire",
        layer: 2,
        without: &["sigma-config", "sigma-observe", "serde", "serde_json", "socket2", "rustix"],
        unnamed: &["std::fs", "std::net::Tcp", "Instant::now", "SystemTime::now"],
        forbids: "it forbids routes, endpoints, plugins and configuration below the codec",
    },
    Member {
        name: "sigma-convert",
        layer: 3,
        without: &["sigma-config", "tokio", "rustix", "socket2", "mio"],
        unnamed: &["std::fs", "std::net::Tcp", "std::net::Udp", "std::process", "std::thread"],
        forbids: "it forbids a converter to reach the check: it makes a document, which is checked like any other",
    },
    Member {
        name: "sigma-upstream",
        layer: 3,
        without: &[],
        unnamed: &["std::fs"],
        forbids: "it forbids the choice of an endpoint to know routes and clients",
    },
    Member {
        name: "sigma-cache",
        layer: 3,
        without: &["sigma-upstream", "sigma-config", "serde", "serde_json", "socket2", "rustix"],
        unnamed: &["std::fs", "std::net", "std::thread", "Instant::now", "SystemTime::now"],
        forbids: "it forbids the reuse of answers to know routes, nodes, clocks and the disk",
    },
    Member {
        name: "sigma-plugin-kit",
        layer: 3,
        without: &["sigma-upstream"],
        unnamed: &["thread::sleep"],
        forbids: "it forbids parts that plugins share to know a plugin",
    },
    Member {
        name: "sigma-plugins-auth",
        layer: 4,
        without: &["sigma-upstream", "sigma-proxy"],
        unnamed: &["thread::sleep"],
        forbids: "it forbids a plugin to reach past its contract, and to name another one",
    },
    Member {
        name: "sigma-plugins-log",
        layer: 4,
        without: &["sigma-upstream", "sigma-proxy"],
        unnamed: &["thread::sleep"],
        forbids: "it forbids a plugin to reach past its contract, and to name another one",
    },
    Member {
        name: "sigma-plugins-observe",
        layer: 4,
        without: &["sigma-upstream", "sigma-proxy"],
        unnamed: &["thread::sleep"],
        forbids: "it forbids a plugin to reach past its contract, and to name another one",
    },
    Member {
        name: "sigma-plugins-security",
        layer: 4,
        without: &["sigma-upstream", "sigma-proxy"],
        unnamed: &["thread::sleep"],
        forbids: "it forbids a plugin to reach past its contract, and to name another one",
    },
    Member {
        name: "sigma-plugins-traffic",
        layer: 4,
        without: &["sigma-upstream", "sigma-proxy"],
        unnamed: &["thread::sleep"],
        forbids: "it forbids a plugin to reach past its contract, and to name another one",
    },
    Member {
        name: "sigma-plugins-transform",
        layer: 4,
        without: &["sigma-upstream", "sigma-proxy"],
        unnamed: &["thread::sleep"],
        forbids: "it forbids a plugin to reach past its contract, and to name another one",
    },
    Member {
        name: "sigma-ext-proc",
        layer: 4,
        without: &["sigma-upstream", "sigma-proxy"],
        unnamed: &["thread::sleep"],
        forbids: "it forbids a plugin to reach past its contract, and to name another one",
    },
    Member {
        name: "sigma-runner",
        layer: 4,
        without: &["sigma-upstream", "sigma-proxy"],
        unnamed: &["thread::sleep"],
        forbids: "it forbids a plugin to reach past its contract, and to name another one",
    },
    Member {
        name: "sigma-wasm",
        layer: 4,
        without: &["sigma-upstream", "sigma-proxy"],
        unnamed: &["thread::sleep"],
        forbids: "it forbids modules of users to reach past a plugin's contract",
    },
    Member {
        name: "sigma-plugins",
        layer: 5,
        without: &["sigma-upstream", "sigma-proxy", "sigma-control"],
        unnamed: &["thread::sleep"],
        forbids: "it forbids the roster to do more than list plugins",
    },
    Member {
        name: "sigma-lua",
        layer: 4,
        without: &["sigma-upstream", "sigma-proxy"],
        unnamed: &["thread::sleep"],
        forbids: "it forbids a script engine to reach past a plugin's contract",
    },
    Member {
        name: "sigma-discovery",
        layer: 3,
        without: &["sigma-upstream", "sigma-plugin"],
        unnamed: &[],
        forbids: "it forbids a registry to touch the data plane: it yields endpoint lists only",
    },
    Member {
        name: "sigma-proxy",
        layer: 4,
        without: &[
            "sigma-plugins",
            "sigma-ext-proc",
            "sigma-lua",
            "sigma-runner",
            "sigma-wasm",
            "sigma-discovery",
        ],
        unnamed: &["std::fs"],
        forbids: "it forbids the data plane to read files or name a built-in extension",
    },
    Member {
        name: "sigma-control",
        layer: 5,
        without: &[],
        unnamed: &[],
        forbids: "it forbids the control plane to touch a request",
    },
    Member {
        name: "sigma",
        layer: 6,
        without: &[],
        unnamed: &[],
        forbids: "it forbids wiring anywhere else",
    },
];

/// Tools of the developer: never a normal dependency, and free to use every layer.
const TOOLS: &[&str] = &["sigma-testkit", "xtask"];

/// Folders where no HTTP version may be named: versions are converted at the edge.
const VERSIONLESS: &[&str] = &[
    "crates/sigma-proxy/src/exchange",
    "crates/sigma-proxy/src/route",
    "crates/sigma-plugin/",
    "crates/sigma-plugin-kit/",
    "extensions/",
    "plugins/",
];

/// Checks all manifests and the words that each crate keeps out.
pub(super) fn check(repository: &Repository) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for path in &repository.paths {
        let package = package(path).filter(|_| path.ends_with("/Cargo.toml"));
        if let Some(name) = package.filter(|name| !TOOLS.contains(&name.as_str())) {
            findings.extend(manifest(&name, path, &read(&repository.root, path)?));
        }
    }
    for source in &repository.sources {
        findings.extend(forbidden_paths(source));
        findings.extend(versions(source));
    }
    Ok(findings)
}

/// The package that a file belongs to.
fn package(path: &str) -> Option<String> {
    let (folder, rest) = path.split_once('/')?;
    let name = rest.split_once('/')?.0;
    match folder {
        "crates" => Some(name.to_owned()),
        "plugins" => Some(format!("sigma-plugins-{name}")),
        "extensions" => Some(format!("sigma-{name}")),
        _ => None,
    }
}

fn member(name: &str) -> Option<&'static Member> {
    MEMBERS.iter().find(|member| member.name == name)
}

/// Checks the normal dependencies in one crate's manifest.
fn manifest(name: &str, path: &str, text: &str) -> Vec<Finding> {
    let Some(own) = member(name) else {
        let remedy = "this crate has no layer: add it to MEMBERS with a sentence that starts with \"it forbids\", \
                      or make it a module of an existing crate";
        return vec![Finding::new(RULE, path, remedy)];
    };
    let mut findings = Vec::new();
    for (line, dependency) in dependencies(text) {
        let layer = member(&dependency).map(|member| member.layer);
        let remedy = if TOOLS.contains(&dependency.as_str()) {
            format!("{dependency} is a developer's tool: move it to [dev-dependencies]")
        } else if own.without.contains(&dependency.as_str()) {
            format!(
                "{name} may not depend on {dependency} ({}): move that code to a higher layer",
                own.forbids
            )
        } else if layer.is_some_and(|layer| layer >= own.layer) {
            format!(
                "{name} is of layer {} and may depend on lower layers only, never on a sibling such as {dependency}: \
                 pass what it needs as an argument or move the shared type down",
                own.layer
            )
        } else {
            continue;
        };
        findings.push(Finding::at(RULE, path, line, remedy));
    }
    findings
}

/// The names under `[dependencies]`, and under `[target.….dependencies]`, with their lines.
fn dependencies(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (number, line) in text.lines().map(str::trim).enumerate() {
        if let Some(table) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            inside =
                table == "dependencies" || (table.starts_with("target.") && table.ends_with(".dependencies"));
            // The long form: [dependencies.name]
            found.extend(table.strip_prefix("dependencies.").map(|name| (number, name.to_owned())));
        } else if inside && !line.starts_with('#') {
            let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
            found.extend((!name.is_empty()).then(|| (number, name.trim_matches('"').to_owned())));
        }
    }
    found
}

fn forbidden_paths(source: &Source) -> Vec<Finding> {
    let is_library = source.path.starts_with("plugins/")
        || source.path.starts_with("extensions/")
        || source.path.contains("/src/");
    let Some(own) = package(&source.path).and_then(|name| member(&name)).filter(|_| is_library) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for (number, line) in source.code.iter().enumerate().filter(|&(number, _)| source.ships(number)) {
        for path in own.unnamed.iter().filter(|path| line.contains(**path) && !is_exempt(source, path)) {
            let remedy =
                format!("{} may not use {path} ({}): take the result as an argument", own.name, own.forbids);
            findings.push(Finding::at(RULE, &source.path, number, remedy));
        }
    }
    findings
}

/// Whether a file may use a path that its crate may not use otherwise.
fn is_exempt(source: &Source, path: &str) -> bool {
    // The files that a foreign configuration includes are read while it is converted, for the command line alone.
    path == "std::fs" && source.path == "crates/sigma-convert/src/import/source.rs"
}

fn versions(source: &Source) -> Vec<Finding> {
    // The command `sigma lua` reads the request of its arguments.
    let is_command = source.path == "extensions/lua/trial.rs";
    if is_command || !VERSIONLESS.iter().any(|folder| source.path.starts_with(folder)) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, line) in source.code.iter().enumerate().filter(|&(number, _)| source.ships(number)) {
        for (_, word) in words(line).filter(|(_, word)| names_version(word)) {
            let remedy = format!(
                "{word} names an HTTP version where none may be known: convert in sigma-wire and pass frames"
            );
            findings.push(Finding::at("convert at the edge", &source.path, number, remedy));
        }
    }
    findings
}

/// Whether an identifier such as `h1`, `is_http2` or `Http3Stream` names an HTTP version.
fn names_version(word: &str) -> bool {
    word.split('_').any(|part| {
        let part = part.to_ascii_lowercase();
        let rest = part.strip_prefix("http").or_else(|| part.strip_prefix('h')).unwrap_or_default();
        // A digit right after it would be a number such as h10, and h1 to h3 are all there are.
        rest.starts_with(['1', '2', '3']) && !rest[1..].starts_with(|next: char| next.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_point_down() {
        let check = |name: &str, manifest_text: &str, expected: usize| {
            let findings = manifest(name, "crates/x/Cargo.toml", manifest_text);
            assert_eq!(findings.len(), expected, "{manifest_text:?}: {findings:?}");
        };
        check("sigma-proxy", "[dependencies]\nsigma-http.workspace = true\n", 0);
        check("sigma-proxy", "[dependencies]\nsigma-plugins = { path = \"../x\" }\n", 1);
        check("sigma-config", "[dependencies]\nsigma-net.workspace = true\n", 1);
        check("sigma-config", "[dependencies]\nsigma-schema.workspace = true\n", 0);
        check("sigma-plugin", "[dependencies]\nsigma-config.workspace = true\n", 1);
        check("sigma-convert", "[dependencies]\nsigma-config.workspace = true\n", 1);
        check("sigma-net", "[dependencies]\nsigma-buffer.workspace = true\n", 0);
        check("sigma-net", "[dependencies]\nsigma-http.workspace = true\n", 1);
        check("sigma-wire", "[dependencies]\nsigma-upstream.workspace = true\n", 1);
        check("sigma-wire", "[dependencies]\nsigma-config.workspace = true\n", 1);
        check("sigma-upstream", "[dependencies]\nsigma-wire.workspace = true\n", 0);
        check("sigma-http", "[dependencies.tokio]\nversion = \"1\"\n", 1);
        check("sigma-http", "[dev-dependencies]\ntokio = \"1\"\n", 0);
        check("sigma-proxy", "[dependencies]\nsigma-testkit.workspace = true\n", 1);
        check("sigma-new", "", 1);
    }

    #[test]
    fn version_names_are_seen_in_identifiers() {
        let check = |word: &str, expected: bool| assert_eq!(names_version(word), expected, "{word}");
        for word in ["h1", "h2", "H3", "http1", "is_http2", "Http1Stream", "h2_stream"] {
            check(word, true);
        }
        for word in ["http", "hash1", "h", "h10", "path2", "sha1"] {
            check(word, false);
        }
    }
}
