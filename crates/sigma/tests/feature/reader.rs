//! A reader who follows a page: saves its configuration, starts the gateway, types the commands and compares
//! the output with the page.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use sigma_testkit::{DubboProvider, EtcdServer, GeoDatabase, Origin, free_port, hessian_map, until};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::h2::Node;
use crate::h2_grpc::serving;
use crate::{PATIENCE, SIGMA};

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

pub(crate) fn read(file: &str) -> String {
    fs::read_to_string(repository().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Every page, by its name in the repository.
pub(crate) fn pages() -> Vec<String> {
    let mut found = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    for folder in ["docs", "docs/plugins", "docs/decisions"] {
        for entry in fs::read_dir(repository().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                found.push(format!("{folder}/{name}"));
            }
        }
    }
    found.sort();
    found
}

/// The blocks of a text with their languages; an empty language for a block that is only shown.
pub(crate) fn blocks_of(text: &str) -> Vec<(String, String)> {
    let (mut found, mut open) = (Vec::new(), false);
    for line in text.lines() {
        match (line.strip_prefix("```"), open) {
            (Some(language), false) => found.push((language.to_owned(), String::new())),
            (Some(_), true) => {}
            (None, true) => found.last_mut().unwrap().1.push_str(&format!("{line}\n")),
            (None, false) => continue,
        }
        open ^= line.starts_with("```");
    }
    found
}

/// The references of the plugins.
fn plugin_pages() -> Vec<String> {
    // `make test-wasm` runs the example of `wasm`, which the default build lacks.
    let is_other = |page: &String| page.ends_with("README.md") || page.ends_with("/wasm.md");
    let of_plugin = |page: &String| page.starts_with("docs/plugins/") && !is_other(page);
    pages().into_iter().filter(of_plugin).collect()
}

const RECIPES: &str = "docs/recipes.md";

const TUTORIAL: &str = "docs/tutorial.md";

const POLICIES: &str = "docs/policies.md";

const BLOCK_CLIENTS: &str = "docs/block-clients.md";

const LOGINS: &str = "docs/logins.md";

const TOKENS: &str = "docs/tokens.md";

const TRACING: &str = "docs/tracing.md";

const CACHING: &str = "docs/caching.md";

const EXPLAIN: &str = "docs/explain.md";

const LUA: &str = "docs/lua.md";

const LUA_RECIPES: &str = "docs/lua-recipes.md";

/// Whether a test of this file types the commands of a page.
pub(crate) fn is_followed(page: &str) -> bool {
    [BLOCK_CLIENTS, EXPLAIN, LOGINS, LUA, LUA_RECIPES, POLICIES, RECIPES, TOKENS, TRACING, TUTORIAL]
        .contains(&page)
        || plugin_pages().iter().any(|known| known == page)
}

/// Pages that are followed at the same time.
const AT_ONCE: usize = 4;

/// A part of a page that a reader can follow by itself.
struct Section {
    name: String,
    text: String,
    /// The command that starts the gateway.
    start: String,
}

impl Section {
    /// A part of `page`. It says itself how the gateway is started, or the page says it for all of them.
    fn of(page: &str, name: &str, text: &str) -> Section {
        let start_in = |text: &str| {
            let mut codes = text.split('`').map(str::trim);
            codes.find(|code| code.starts_with("sigma run")).map(str::to_owned)
        };
        let start = start_in(text).or_else(|| start_in(page));
        Section {
            name: name.to_owned(),
            text: text.to_owned(),
            start: start.expect("a page says `sigma run`"),
        }
    }
}

/// Follows sections, some at the same time.
fn follow_all(sections: &[Section]) {
    std::thread::scope(|scope| {
        for share in 0..AT_ONCE {
            let own = sections.iter().skip(share).step_by(AT_ONCE);
            scope.spawn(move || own.for_each(Reader::follow));
        }
    });
}

#[test]
fn every_plugin_does_what_its_example_shows() {
    let sections = plugin_pages().into_iter().map(|page| {
        let text = read(&page);
        let languages: Vec<String> = blocks_of(&text).into_iter().map(|(language, _)| language).collect();
        assert_eq!(
            languages.join(" "),
            "yaml console",
            "{page}: the descriptor's `example` is a configuration and what it does"
        );
        Section::of(&text, &page, &text)
    });
    follow_all(&sections.collect::<Vec<_>>());
}

/// The page is one configuration, and commands that add resources to it.
#[test]
fn the_steps_of_the_tutorial_run() {
    // With one worker, the first response by a change shows that all later requests meet it.
    let page = read(TUTORIAL).replace("profile: edge ", "workers: 1\nprofile: edge ");
    assert!(page.contains("workers: 1"), "the settings begin with the profile");
    Reader::follow(&Section::of(&page, TUTORIAL, &page));
}

#[test]
fn every_recipe_works_as_shown() {
    follow_sections_of(RECIPES);
}

#[test]
fn every_policy_works_as_shown() {
    follow_sections_of(POLICIES);
}

#[test]
fn every_filter_of_clients_works_as_shown() {
    follow_sections_of(BLOCK_CLIENTS);
}

#[test]
fn every_login_works_as_shown() {
    follow_sections_of(LOGINS);
}

#[test]
fn every_token_works_as_shown() {
    follow_sections_of(TOKENS);
}

/// The page is one configuration, and its output for a request.
#[test]
fn the_way_of_a_request_is_seen() {
    let page = read(TRACING);
    Reader::follow(&Section::of(&page, TRACING, &page));
}

#[test]
fn a_request_is_explained_as_the_page_shows() {
    let page = read(EXPLAIN);
    Reader::follow(&Section::of(&page, EXPLAIN, &page));
}

/// The page begins with a function and two requests.
#[test]
fn a_lua_function_answers_as_the_page_shows() {
    let page = read(LUA);
    let first = page.split("\n## ").next().unwrap_or_default();
    Reader::follow(&Section::of(first, LUA, first));
}

#[test]
fn every_lua_recipe_works_as_shown() {
    follow_sections_of(LUA_RECIPES);
}

/// The page begins with a configuration and two requests, of which the second one is a hit.
#[test]
fn the_page_on_caching_shows_a_hit() {
    let page = read(CACHING);
    let first = page.split("\n## ").next().unwrap_or_default();
    Reader::follow(&Section::of(first, CACHING, first));
}

/// Follows the sections of a page, each of which is a whole configuration with commands.
fn follow_sections_of(page: &str) {
    let page = read(page);
    let sections: Vec<Section> = page
        .split("\n## ")
        .skip(1)
        .map(|text| Section::of(&page, text.lines().next().unwrap_or_default(), text))
        .collect();
    for Section { name, text, .. } in &sections {
        let blocks = blocks_of(text);
        let has = |language: &str| blocks.iter().any(|(of, _)| of == language);
        assert!(has("yaml") && has("console"), "`{name}` has no configuration or no command");
        let anchor =
            name.to_lowercase().replace(|sign: char| !sign.is_alphanumeric() && !"-_ ".contains(sign), "");
        let anchor = anchor.replace(' ', "-");
        assert!(page.contains(&format!("](#{anchor})")), "the table of the page does not name `{name}`");
    }
    follow_all(&sections);
}

/// Ports that pages name. Each becomes one that is free.
const PORTS: [&str; 14] = [
    "20880", "9080", "9081", "9443", "9091", "9180", "9181", "9000", "9001", "9002", "9003", "9999", "50051",
    "2379",
];

/// The ports among them that the gateway itself opens.
const OWN_PORTS: [&str; 5] = ["9080", "9081", "9443", "9091", "9180"];

/// Commands that change resources of a running gateway.
const WRITES: [&str; 4] = ["sigma ctl put", "sigma ctl patch", "sigma ctl delete", "sigma ctl undo"];

/// A server that a page expects to be there.
enum Server {
    Etcd(EtcdServer),
    Grpc(Node, Runtime),
    WebSocket(Origin),
    Dubbo(DubboProvider),
}

impl Server {
    /// Starts the server that pages have on `port`.
    fn on(port: &str) -> Option<Server> {
        match port {
            "2379" => Some(Server::Etcd(EtcdServer::start().unwrap())),
            "50051" => {
                let runtime = Runtime::new().unwrap();
                let node = runtime.block_on(Node::start(h2::server::Builder::new(), serving));
                Some(Server::Grpc(node, runtime))
            }
            "9002" => Some(Server::WebSocket(
                Origin::serve(|mut client| {
                    if client.read_head().is_ok() {
                        // The response to the key of RFC 6455 §1.3, and `hello` in a frame of text.
                        let _ = client.send(
                            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n\x81\x05hello",
                        );
                    }
                })
                .unwrap(),
            )),
            // It adds, and greets.
            "20880" => Some(Server::Dubbo(
                DubboProvider::start(|call| match call.flags & 0x1f {
                    6 => {
                        let numbers = call.lines();
                        let sum: i64 = numbers[5..7].iter().filter_map(|line| line.parse::<i64>().ok()).sum();
                        call.answered(20, format!("1\n{sum}\n"))
                    }
                    _ => {
                        let greeted = if call.has(b"A\0\x05world") { "hello world\n" } else { "hello\n" };
                        call.answered(20, hessian_map(1, &[("body", greeted)]))
                    }
                })
                .unwrap(),
            )),
            _ => None,
        }
    }

    fn port(&self) -> u16 {
        match self {
            Server::Etcd(server) => server.port(),
            Server::Grpc(node, _runtime) => node.port(),
            Server::WebSocket(origin) => origin.port(),
            Server::Dubbo(provider) => provider.port(),
        }
    }
}

/// One who follows a section.
struct Reader {
    name: String,
    ports: Vec<(&'static str, String)>,
    shell: Shell,
    dir: TempDir,
}

/// A text with other numbers. Whole ones alone: `9001` is no part of `19001`.
fn renumbered<'n>(text: &str, other: impl Fn(&str) -> Option<&'n str>) -> String {
    let is_digit = |c: char| c.is_ascii_digit();
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let (before, after) = rest.split_at(rest.find(is_digit).unwrap_or(rest.len()));
        let (number, after) = after.split_at(after.find(|c| !is_digit(c)).unwrap_or(after.len()));
        out.push_str(before);
        out.push_str(other(number).unwrap_or(number));
        rest = after;
    }
    out
}

impl Reader {
    /// Follows a section, in its order: a block of `yaml` is saved and started, of `console` typed.
    fn follow(Section { name, text, start }: &Section) {
        let dir = tempfile::tempdir().unwrap();
        // A terminal would show no progress here either.
        fs::write(dir.path().join(".curlrc"), "silent\n").unwrap();
        let database = GeoDatabase::new("Country").city("127.0.0.0/8", ["EU", "DE", "Germany", "", "", ""]);
        fs::write(dir.path().join("country.mmdb"), database.content()).unwrap();
        let (mut ports, mut servers) = (Vec::new(), Vec::new());
        for port in PORTS.into_iter().filter(|port| text.contains(port) || start.contains(port)) {
            let server = Server::on(port);
            ports.push((port, server.as_ref().map_or_else(free_port, Server::port).to_string()));
            servers.extend(server);
        }
        let shell = Shell::open(dir.path());
        let mut reader = Reader { name: name.clone(), ports, shell, dir };
        for (language, block) in blocks_of(text) {
            match &*language {
                "yaml" => reader.start(start, &block),
                "console" => reader.type_in(&block),
                other => panic!("{name}: a reader cannot do anything with a block of {other}"),
            }
        }
    }

    fn with_free_ports(&self, text: &str) -> String {
        renumbered(text, |number| {
            self.ports.iter().find(|(port, _)| *port == number).map(|(_, free)| &**free)
        })
    }

    fn with_named_ports(&self, text: &str) -> String {
        renumbered(text, |number| self.ports.iter().find(|(_, free)| *free == number).map(|(port, _)| *port))
    }

    /// Starts the gateway from the shell, so that it has the exported variables.
    fn start(&mut self, command: &str, config: &str) {
        fs::write(self.dir.path().join("sigma.yaml"), self.with_free_ports(config)).unwrap();
        let command = self.with_free_ports(command);
        self.shell.type_in(&format!("{command} >stdout 2>stderr &"));
        let own = self.ports.iter().filter(|(port, _)| OWN_PORTS.contains(port) && config.contains(port));
        for (_, free) in own {
            let listens = || TcpStream::connect(format!("127.0.0.1:{free}")).is_ok();
            assert!(until(PATIENCE, listens), "{}: nothing listens: {}", self.name, self.stderr());
        }
    }

    fn type_in(&mut self, console: &str) {
        let mut follows_write = false;
        for (command, shown) in typed_and_shown(console) {
            let to_type = self.with_free_ports(&command);
            let mut told = String::new();
            // Logs and counters follow a little after the response, and a change after its write.
            let only_reads = follows_write || command.starts_with("cat ") || command.contains("/metrics");
            follows_write = WRITES.iter().any(|write| command.contains(write));
            until(PATIENCE, || {
                let came = self.shell.type_in(&to_type);
                told = self.with_named_ports(&without_line_ends(&came));
                is_shown(&shown, &told) || !only_reads
            });
            assert!(
                is_shown(&shown, &told),
                "{}: $ {command}\n--- the page shows\n{shown}\n--- this came\n{told}\n--- the error log\n{}",
                self.name,
                self.stderr()
            );
        }
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.dir.path().join("stderr")).unwrap_or_default()
    }
}

/// The commands of a console, behind `$`, each with the output that is shown for it. A command continues in the next
/// line after `\`, `|`, `&&` or `{`.
fn typed_and_shown(console: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut goes_on = false;
    for line in console.lines() {
        match (line.strip_prefix("$ "), found.last_mut()) {
            (Some(command), _) => found.push((command.to_owned(), String::new())),
            (None, Some((command, _))) if goes_on => command.push_str(&format!("\n{line}")),
            (None, Some((_, shown))) => {
                shown.push_str(&format!("{line}\n"));
                continue;
            }
            (None, None) => panic!("output before the first command:\n{console}"),
        }
        goes_on = ["\\", "|", "&&", "{"].iter().any(|end| line.ends_with(end));
    }
    found
}

/// A text without the white space at the ends of its lines, which is invisible.
fn without_line_ends(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Whether the output matches a page's, where `…` matches any text.
fn is_shown(shown: &str, told: &str) -> bool {
    let (told, shown) = (told.trim_end(), shown.trim_end());
    let mut pieces = shown.split('…');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = told.strip_prefix(first) else { return false };
    let mut last = "";
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
        last = piece;
    }
    // Behind the last piece nothing follows, unless that is omitted; it may stand there once more.
    rest.is_empty() || (shown.contains('…') && (last.is_empty() || rest.ends_with(last)))
}

#[test]
fn a_page_is_compared_with_the_output() {
    for (shown, told, same) in [
        ("a\n", "a\n", true),
        ("a", "ab", false),
        ("a\n…\nd\n", "a\nb\nc\nd\n", true),
        ("a\n…\nd\n", "a\nb\nc\nd\ne\n", false),
        ("a\n…\nd\n", "a\nb\nd\nc\nd\n", true),
        ("…b", "ab", true),
        ("a…", "ab", true),
        ("", "a", false),
        ("a…c", "ab", false),
    ] {
        assert_eq!(is_shown(shown, told), same, "{shown:?} {told:?}");
    }
    let console = "$ a \\\n  b\nc\n$ d |\n  e\n";
    let expected = [("a \\\n  b", "c\n"), ("d |\n  e", "")];
    assert_eq!(typed_and_shown(console), expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
}

/// Ends the output of a command; no output has it.
const END: u8 = 0x1e;

/// A shell that commands are typed into one after the other.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: Receiver<String>,
}

impl Shell {
    fn open(dir: &Path) -> Shell {
        let bin = Path::new(SIGMA).parent().unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut child = Command::new("bash")
            .args(["--norc", "-s"])
            .current_dir(dir)
            .env("PATH", path)
            .env("HOME", dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash is missing");
        let mut input = child.stdin.take().unwrap();
        writeln!(input, "exec 2>&1").unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            while stdout.read_until(END, &mut bytes).is_ok_and(|count| count > 0) {
                bytes.pop();
                if sender.send(String::from_utf8_lossy(&bytes).into_owned()).is_err() {
                    return;
                }
                bytes.clear();
            }
        });
        Shell { child, input, output }
    }

    /// Returns the output of a command.
    fn type_in(&mut self, command: &str) -> String {
        writeln!(self.input, "{{ {command}\n}} </dev/null; printf '\\036'").unwrap();
        self.output.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no end of\n{command}"))
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Background processes end with it; they may have ended by themselves.
        let _ = writeln!(self.input, "kill $(jobs -p) 2>/dev/null; exit");
        let _ = self.child.wait();
    }
}
