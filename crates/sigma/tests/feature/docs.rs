//! The documents and examples: their configurations are valid, and their commands have the described effect. No block
//! of a page is omitted.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use sigma_testkit::{Gateway, Origin, free_port};

use crate::h2::{Node, within};
use crate::reader::{blocks_of, is_followed, pages, read, repository};
use crate::tls::{Authority, der, run, shown};
use crate::{PATIENCE, SIGMA};

/// The blocks of a document in one language.
fn blocks(file: &str, language: &str) -> Vec<String> {
    let found = blocks_of(&read(file)).into_iter();
    let found: Vec<String> = found.filter(|(of, _)| of == language).map(|(_, block)| block).collect();
    assert!(!found.is_empty(), "{file} has no {language}");
    found
}

/// The only block of a document with `word` in it.
pub(crate) fn block(file: &str, language: &str, word: &str) -> String {
    let mut found: Vec<String> = blocks(file, language);
    found.retain(|block| block.contains(word));
    assert_eq!(found.len(), 1, "{word} in {file}");
    found.remove(0)
}

/// Runs commands as they would be pasted, with the program under test as `sigma`. Background processes of the commands end with them.
pub(crate) fn paste(dir: &Path, commands: &str, variables: &[(&str, &str)]) -> Output {
    let bin = Path::new(SIGMA).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let script = format!("set -eo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{commands}");
    Command::new("bash")
        .args(["-c", &script])
        .current_dir(dir)
        .env("PATH", path)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("bash is missing")
}

pub(crate) fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Adds the parts that a document leaves to its reader: the listener of a fragment, certificates for
/// dots and the ssl that another part refers to.
fn completed(fragment: &str, certificate: &str, key: &str) -> String {
    let mut text = String::new();
    for line in fragment.lines() {
        match line.strip_suffix('…') {
            Some(indent) => {
                certificate.lines().skip(1).for_each(|line| text.push_str(&format!("{indent}{line}\n")))
            }
            None => text.push_str(&format!("{line}\n")),
        }
    }
    let indented = |pem: &str| pem.lines().map(|line| format!("      {line}\n")).collect::<String>();
    if !text.contains("listeners:") {
        text.push_str("listeners: [\"127.0.0.1:9080\"]\n");
    }
    if text.contains("client_cert_id: gateway") {
        let (cert, key) = (indented(certificate), indented(key));
        text.push_str(&format!(
            "ssls:\n  - id: gateway\n    type: client\n    cert: |\n{cert}    key: |\n{key}"
        ));
    }
    text
}

/// Pages whose reader first adds a plugin.
const OWN_PLUGIN: &str = "notice";

/// Blocks of commands and what runs them, or why nothing does. A block has the word in it.
const COMMANDS: [(&str, &str, &str); 55] = [
    (
        "docs/forward-proxy.md",
        "curl -x http://foo:secret@",
        "its target is on the Internet; forward_proxy:: opens tunnels",
    ),
    (
        "docs/http3.md",
        "curl --http3-only",
        "few builds of curl have HTTP/3; tests of sigma-proxy send such requests",
    ),
    ("CONTRIBUTING.md", ".ci/bare make test", "it makes a machine of its own, as root, and takes an hour"),
    ("docs/testing.md", "make check", "the commands run the tests themselves"),
    ("docs/testing.md", "SIGMA_CASE", "the same"),
    ("docs/testing.md", "SIGMA_SEED", "the same"),
    ("docs/testing.md", "cargo xtask stress open_exchanges", "the same"),
    ("README.md", "make run", "what it builds is what is tested here"),
    ("README.md", "target/first:$PATH", "the same: the tests have their own build in the path"),
    ("README.md", "sigma check sigma.yaml", "the_first_file_of_the_readme"),
    ("README.md", "sigma ctl get routes 1", "changed_while_it_runs"),
    ("README.md", "net.oooops.sigma.Sigma", "seed::the_start_lines_of_sigma_work"),
    ("docs/admin-api.md", "cat data/admin.key", "the_admin_api_as_the_document_says"),
    ("docs/admin-api.md", "sigma ctl put", "the_admin_api_as_the_document_says"),
    ("docs/admin-api.md", "sigma ctl dump", "the_admin_api_as_the_document_says"),
    ("docs/admin-api-security.md", "CN=Operators", "admin_tls::it_is_called_as_the_page_says"),
    ("docs/admin-api-security.md", "--cacert operators.crt", "admin_tls::it_is_called_as_the_page_says"),
    (
        "docs/configuration-centres.md",
        "openssl pkeyutl",
        "config_sources::only_signed_documents_are_in_force",
    ),
    ("docs/running-many-nodes.md", "sigma ctl members", "cluster::gateways_on_one_etcd_list_each_other"),
    ("docs/caching.md", "fwd=uri-miss", "reader::the_page_on_caching_shows_a_hit"),
    ("docs/caching.md", "sigma ctl purge", "purges::every_gateway_of_a_store_forgets"),
    ("docs/tapping.md", "sigma ctl tap", "tap::a_shell_shows_blocks_or_lines"),
    ("docs/certificates.md", "sigma ctl put", "go::acme::the_page_is_true"),
    ("docs/certificates.md", "/v1/acme", "go::acme::the_page_is_true"),
    ("docs/certificates.md", "sigma ctl acme", "go::acme::the_page_is_true"),
    (
        "docs/install.md",
        "apt-get install ./sigma",
        "servers::package::the_package_installs_upgrades_and_goes",
    ),
    ("docs/install.md", "useradd --system", "the same"),
    ("docs/install.md", "--no-default-features", "make features"),
    ("docs/install.md", "docker build", "xtask: an_image_is_built_from_its_folder"),
    ("docs/install.md", "rustup target add", "it installs a compiler"),
    ("docs/install.md", "dpkg --add-architecture", "the same"),
    ("docs/external-processing.md", "127.0.0.1:9080/orders", "the example of docs/plugins/ext-proc.md"),
    ("docs/lua-plugins.md", "sigma lua", "lua_files::a_plugin_as_the_page_says"),
    ("docs/lua-plugins.md", "good morning", "the same"),
    ("docs/runners.md", "x-greeting", "plugins_runner::a_plugin_as_the_page_says"),
    ("docs/routing.md", "sigma routes", "routes_are_explained_as_the_guide_says"),
    (
        "docs/quarantine.md",
        "sigma ctl quarantine",
        "quarantine::a_plugin_that_is_not_enabled_closes_what_names_it",
    ),
    ("docs/history.md", "sigma ctl rollback", "history::the_history_is_read_and_gone_back_in_from_a_shell"),
    ("docs/profiling.md", "--features profiles", "make features"),
    ("docs/profiling.md", "/v1/profile/cpu", "profiles::a_profile_shows_the_functions_of_a_worker"),
    (
        "docs/profiling.md",
        "/v1/profile/heap?seconds",
        "profiles::a_profile_of_the_heap_shows_who_keeps_memory",
    ),
    ("docs/troubleshooting.md", "sigma explain", "failures::a_reason_is_explained"),
    ("docs/running-many-nodes.md", "etcd --data-dir", "a_node_with_etcd_as_the_document_says"),
    ("docs/running-many-nodes.md", "X-API-KEY", "a_node_with_etcd_as_the_document_says"),
    ("docs/running-many-nodes.md", "/v1/revision", "a_node_with_etcd_as_the_document_says"),
    ("docs/streams.md", "redis-cli", "streams::a_database_as_the_page_says"),
    ("docs/databases.md", "psql", "servers::postgres::postgres_as_the_page_says"),
    ("docs/udp.md", "dig", "datagrams::names_as_the_page_says"),
    ("docs/udp.md", "logger", "datagrams::logs_as_the_page_says"),
    ("docs/tls.md", "examples/https.yaml", "https_in_one_minute"),
    ("docs/wasm.md", "GOOS=wasip1", "make test-wasm: real::the_example_in_go_runs"),
    ("docs/wasm.md", "X-Name: guest", "the same"),
    ("docs/plugins/wasm.md", "x-greeting", "the same"),
    ("docs/wasm-http.md", "GOOS=wasip1", "make test-wasm: real::"),
    ("docs/wasm-http.md", "x-greeting", "the same"),
];

/// The same for the pages that have a test per block.
const PAGES_OF_COMMANDS: [&str; 3] = ["docs/tls.md", "docs/tls-certificates.md", "docs/http2-and-grpc.md"];

#[test]
fn no_block_is_left_out() {
    for file in pages() {
        for (language, block) in blocks_of(&read(&file)) {
            match &*language {
                // Checked by `configurations_in_the_documents_are_valid` and by `reader`, the second by the plugins' tests.
                "yaml" | "rust" | "" => {}
                // `plugins_runner::a_plugin_as_the_page_says` runs it.
                "python" if file == "docs/runners.md" => {}
                // `make test-wasm` builds and runs it.
                "go" if matches!(&*file, "docs/wasm.md" | "docs/wasm-http.md") => {}
                // The tests of sigma-convert convert the files of these pages.
                "nginx" | "caddyfile" | "yml" if file.starts_with("docs/from-") => {}
                // A Compose file, whose labels the tests of sigma-discovery read.
                "yml" if file == "docs/service-discovery.md" => {}
                "sh" | "console" if file.starts_with("docs/from-") && block.contains("sigma import") => {}
                // `lua_files::a_plugin_as_the_page_says` runs it.
                "lua" if file == "docs/lua-plugins.md" => {}
                "sh" | "console" if PAGES_OF_COMMANDS.contains(&&*file) || is_followed(&file) => {}
                "sh" | "console" => {
                    let known =
                        COMMANDS.iter().filter(|(page, word, _)| *page == file && block.contains(word));
                    assert!(known.count() >= 1, "{file}: nothing runs\n{block}");
                }
                _ => panic!("{file}: nothing checks a block of {language}:\n{block}"),
            }
        }
    }
    for (file, word, _) in COMMANDS {
        assert!(
            blocks_of(&read(file)).iter().any(|(_, block)| block.contains(word)),
            "{file} has no `{word}`"
        );
    }
}

/// Asks `url` until something listens there; the response goes into a file.
fn asked_until_it_answers(file: &str, url: &str) -> String {
    format!("for _ in {{1..600}}; do curl -s -o {file} http://{url} && break; sleep 0.1; done")
}

/// The commands of a block: the lines behind `$`.
fn typed(console: &str) -> String {
    let mut commands = String::new();
    let mut goes_on = false;
    for line in console.lines() {
        if let Some(command) = line.strip_prefix("$ ").or(goes_on.then_some(line)) {
            commands.push_str(&format!("{command}\n"));
            goes_on = command.ends_with('\\');
        }
    }
    commands
}

#[test]
fn the_first_file_of_the_readme() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port().to_string();
    let config = block("README.md", "yaml", "upstream: http://127.0.0.1:9000").replace("9080", &port);
    fs::write(dir.path().join("sigma.yaml"), config).unwrap();
    let commands = typed(&block("README.md", "console", "sigma check sigma.yaml"));
    let run = "sigma run sigma.yaml";
    assert!(commands.contains(run), "{commands}");
    let waits = format!("{run} & {} #", asked_until_it_answers("answer", &format!("127.0.0.1:{port}/")));
    let output = paste(dir.path(), &commands.replace(run, &waits), &[]);
    assert!(
        output.status.success() && text_of(&output).contains("serves this request"),
        "{}",
        text_of(&output)
    );
    // No node is there: the gateway says so.
    assert!(fs::read_to_string(dir.path().join("answer")).unwrap().contains("502"));
}

/// A gateway on a document's configuration with an Admin API, in its own folder.
fn with_admin(config: &str) -> Gateway {
    let config = config.replace("127.0.0.1:9080", ":9080").replace(":9080", "{listen}");
    let gateway = Gateway::start(SIGMA, &config.replace("127.0.0.1:9180", "{admin}")).unwrap();
    admin_is_there(&gateway);
    gateway
}

/// Runs a document's commands in the folder of `gateway`, with its ports and the node's for 9080, 9180, 9000.
fn paste_for(gateway: &Gateway, origin: &Origin, commands: &str) -> String {
    let (listen, admin) = (gateway.address().port().unwrap(), gateway.admin_address().port().unwrap());
    let commands = commands.replace(":9080", &format!(":{listen}")).replace(":9180", &format!(":{admin}"));
    let commands = commands.replace(":9000", &format!(":{}", origin.port()));
    let output = paste(gateway.dir(), &commands, &[("SIGMA_ADMIN", &format!("http://127.0.0.1:{admin}"))]);
    assert!(output.status.success(), "{commands}\n{}", text_of(&output));
    text_of(&output)
}

fn is_served(gateway: &Gateway, path: &str) {
    let served =
        || gateway.connect().is_ok_and(|mut client| client.get(path).is_ok_and(|a| a.status() == 200));
    assert!(sigma_testkit::until(PATIENCE, served), "{path} is not served: {}", gateway.stderr());
}

#[test]
fn changed_while_it_runs() {
    let origin = Origin::echo("a").unwrap();
    let gateway = with_admin(&block("README.md", "yaml", "admin:"));
    let commands = typed(&block("README.md", "console", "sigma ctl get routes 1"));
    let told = paste_for(&gateway, &origin, &commands);
    assert!(told.contains("/apisix/routes/1"), "{told}");
    is_served(&gateway, "/anything");
}

#[test]
fn the_admin_api_as_the_document_says() {
    let (file, origin) = ("docs/admin-api.md", Origin::echo("a").unwrap());
    let gateway = with_admin(&block(file, "yaml", "store: { kind: embedded"));
    let words = ["cat data/admin.key", "sigma ctl put", "sigma ctl dump"];
    let commands = words.map(|word| block(file, "sh", word)).concat();
    let told = paste_for(&gateway, &origin, &commands);
    assert!(told.contains("201 Created"), "{told}");
    is_served(&gateway, "/hello");
}

#[test]
fn routes_are_explained_as_the_guide_says() {
    let (file, dir) = ("docs/routing.md", tempfile::tempdir().unwrap());
    fs::write(dir.path().join("sigma.yaml"), block(file, "yaml", "id: canary")).unwrap();
    let console = block(file, "console", "sigma routes");
    let output = paste(dir.path(), &typed(&console), &[]);
    let shown: String =
        console.lines().filter(|line| !line.starts_with("$ ")).map(|line| format!("{line}\n")).collect();
    assert_eq!(text_of(&output), shown);
}

#[test]
fn a_node_with_etcd_as_the_document_says() {
    let (file, dir) = ("docs/running-many-nodes.md", tempfile::tempdir().unwrap());
    let origin = Origin::echo("a").unwrap();
    let ports = ["9080", "9180", "9090", "2379", "2380"].map(|port| (port, free_port().to_string()));
    let replaced = |text: &str| {
        ports.iter().fold(text.to_owned(), |text, (port, free)| {
            text.replace(&format!(":{port}"), &format!(":{free}"))
        })
    };
    fs::write(dir.path().join("sigma.yaml"), replaced(&block(file, "yaml", "kind: etcd"))).unwrap();
    let start = block(file, "sh", "etcd --data-dir");
    let own_ports = replaced(
        "--listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 --log-level error",
    );
    let start = start.replace("etcd --data-dir", &format!("etcd {own_ports} --data-dir"));
    let listens = asked_until_it_answers("first", "127.0.0.1:9080/hello");
    let rest = ["X-API-KEY", "/v1/revision"].map(|word| block(file, "sh", word)).concat();
    let rest = rest.replace(":9000", &format!(":{}", origin.port()));
    let output = paste(dir.path(), &replaced(&format!("{start}{listens}\n{rest}")), &[]);
    let told = text_of(&output);
    assert!(
        output.status.success() && told.contains("201 Created") && told.contains("\"revision\""),
        "{told}"
    );
}

#[test]
fn configurations_in_the_documents_are_valid() {
    let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
    let issued = root.issue("internal.example.com");
    for name in ["rsa", "ecdsa", "admin", "operators", "db"] {
        issued.files(dir.path(), name);
    }
    fs::write(dir.path().join("ecdsa.ocsp"), [0x30, 0]).unwrap();
    // The pair that the page on HTTP/3 makes.
    fs::write(dir.path().join("cert.pem"), &issued.cert).unwrap();
    fs::write(dir.path().join("key.pem"), &issued.key).unwrap();
    fs::create_dir_all(dir.path().join("lua/apisix/plugins")).unwrap();
    let greet = block("docs/lua-plugins.md", "lua", "priority = 1000");
    fs::write(dir.path().join("lua/apisix/plugins/greet.lua"), greet).unwrap();
    let mut variables = vec![
        ("INTERNAL_KEY", issued.key.as_str()),
        ("ADMIN_KEY", "0123456789abcdef0123456789abcdef"),
        ("SIGMA_KEYRING", "0123456789abcdef"),
    ];
    variables.extend([("MQTT_CERT", issued.cert.as_str()), ("MQTT_KEY", issued.key.as_str())]);
    let secrets = [
        "ACME_KEY",
        "ACME_TSIG",
        "CLOUDFLARE_TOKEN",
        "CONSUL_TOKEN",
        "KEY_PASSPHRASE",
        "MAIL_PASSWORD",
        "NACOS_PASSWORD",
        "NACOS_SECRET",
        "NOMAD_TOKEN",
    ];
    variables.extend(secrets.map(|name| (name, "hush")));
    let is_valid = |text: &str| {
        let text = text.replace("/etc/sigma/", &format!("{}/", dir.path().display()));
        fs::write(dir.path().join("block.yaml"), text).unwrap();
        let output = paste(dir.path(), "sigma check block.yaml", &variables);
        (output.status.success(), text_of(&output))
    };
    // `reader` starts the configurations of the other pages.
    for file in pages().into_iter().filter(|page| !is_followed(page)) {
        for (_, block) in blocks_of(&read(&file)).into_iter().filter(|(language, _)| language == "yaml") {
            let whole = completed(&block, &issued.cert, &issued.key);
            let (valid, said) = is_valid(&whole);
            // The default build lacks WebAssembly.
            let lacks_group = said.contains("belongs to the group `wasm`");
            let lacks_plugin =
                (lacks_group || said.contains(&format!("[{OWN_PLUGIN}]"))) && said.lines().count() == 1;
            assert!(valid || lacks_plugin, "{file}:\n{whole}\n{said}");
            let (valid, _) = is_valid(&format!("{whole}nonsense: 1\n"));
            assert!(!valid, "the check passes anything:\n{whole}");
        }
    }
    for example in fs::read_dir(repository().join("examples")).unwrap() {
        let path = example.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "yaml") {
            // Certificates are for the reader to make, as its first lines say.
            for name in ["server.crt", "server.key"] {
                let made = if name.ends_with("crt") { &issued.cert } else { &issued.key };
                fs::write(dir.path().join(name), made).unwrap();
            }
            let (valid, said) = is_valid(&fs::read_to_string(&path).unwrap());
            assert!(valid, "{}:\n{said}", path.display());
        }
    }
}

/// Commands and the example that they run, on ports that are free.
struct Ports(Vec<(&'static str, String)>);

impl Ports {
    fn instead_of(ports: &[&'static str]) -> Ports {
        Ports(ports.iter().map(|port| (*port, free_port().to_string())).collect())
    }

    fn put_into(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (port, free)| {
            assert!(text.contains(port), "{port} is not in\n{text}");
            text.replace(port, free)
        })
    }
}

#[test]
fn https_in_one_minute() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("examples")).unwrap();
    let example = read("examples/https.yaml");
    let ports = Ports::instead_of(&[":9080", ":9443", ":9000"].map(|port| &port[1..]));
    fs::write(dir.path().join("examples/https.yaml"), ports.put_into(&example)).unwrap();
    let commands = block("docs/tls.md", "sh", "examples/https.yaml");
    let commands = ports.0.iter().fold(commands, |text, (port, free)| text.replace(port, free));
    let output = paste(dir.path(), &commands, &[]);
    assert!(output.status.success(), "{}", text_of(&output));
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        told.contains("hello from the demo origin") && told.contains("\"x-forwarded-proto\": \"https\""),
        "{told}"
    );
    // The example says by itself how to make its certificate.
    let made = dir.path().join("again");
    fs::create_dir(&made).unwrap();
    let comment: String = example
        .lines()
        .filter_map(|line| line.strip_prefix("#   "))
        .map(|line| format!("{line}\n"))
        .collect();
    let output = paste(&made, &comment, &[]);
    assert!(output.status.success() && made.join("server.crt").exists(), "{comment}\n{}", text_of(&output));
}

#[test]
fn a_certificate_put_as_the_document_says() {
    let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
    let issued = root.issue("example.com");
    fs::write(dir.path().join("server.crt"), &issued.cert).unwrap();
    fs::write(dir.path().join("server.key"), &issued.key).unwrap();
    let gateway = Gateway::start(
        SIGMA,
        "listeners: [{ address: \"{listen}\", tls: true }]\n\
         admin: { address: \"{admin}\", keys: [{ key: secret-of-the-test }] }\n\
         store: { kind: embedded, path: \"{dir}/data\" }\n",
    )
    .unwrap();
    // It listens a little later than the data plane.
    admin_is_there(&gateway);
    let commands = block("docs/tls-certificates.md", "sh", "/apisix/admin/ssls/1");
    let commands = commands.replace("9180", &gateway.admin_address().port().unwrap().to_string());
    let output = paste(dir.path(), &commands, &[("KEY", "secret-of-the-test")]);
    let hint = "jq is missing? `apt-get install jq` brings it, and `make test` does so";
    assert!(
        output.status.success() && text_of(&output).contains("example.com"),
        "{hint}: {}",
        text_of(&output)
    );
    run(async { while shown(&gateway, &root, "example.com").await != Ok(der(&issued)) {} });
}

fn admin_is_there(gateway: &Gateway) {
    let listens = || sigma_testkit::Peer::connect(&gateway.admin_address()).is_ok();
    assert!(sigma_testkit::until(PATIENCE, listens), "{}", gateway.stderr());
}

/// A gateway on a document's configuration, with its own port and the node's.
fn on_block(config: &str, node: (&str, u16)) -> Gateway {
    assert!(config.contains("127.0.0.1:9080") && config.contains(node.0), "{config}");
    let config = config.replace("127.0.0.1:9080", "{listen}").replace(node.0, &node.1.to_string());
    Gateway::start(SIGMA, &config).unwrap()
}

#[test]
fn http2_as_the_document_says() {
    let (file, dir) = ("docs/http2-and-grpc.md", tempfile::tempdir().unwrap());
    let origin = Origin::echo("a").unwrap();
    let command = block(file, "sh", "--http2-prior-knowledge http");
    let config = blocks(file, "yaml").into_iter().find(|block| block.contains("127.0.0.1:8080")).unwrap();
    let gateway = on_block(&config, ("8080", origin.port()));
    let command = command.replace("9080", &gateway.address().port().unwrap().to_string());
    let output = paste(dir.path(), &command, &[]);
    assert!(output.status.success() && text_of(&output).contains("\"target\""), "{}", text_of(&output));
}

#[test]
fn a_grpc_call_as_the_document_says() {
    let (file, dir) = ("docs/http2-and-grpc.md", tempfile::tempdir().unwrap());
    within(async {
        let node = Node::start(h2::server::Builder::new(), crate::h2_grpc::serving).await;
        let gateway = on_block(&block(file, "yaml", "50051"), ("50051", node.port()));
        let command = block(file, "sh", "grpc.health.v1.Health/Check");
        let command = command.replace("9080", &gateway.address().port().unwrap().to_string());
        let output = tokio::task::spawn_blocking(move || paste(dir.path(), &command, &[])).await.unwrap();
        let told = text_of(&output);
        assert!(
            output.status.success() && told.contains("HTTP/2 200") && told.contains("grpc-status: 0"),
            "{told}"
        );
    });
}

/// The code of a line of text, between single backquotes.
fn code_of(line: &str) -> Vec<String> {
    // Two backquotes stand around code that has one in it.
    let parts = line.split("``").step_by(2).flat_map(|text| text.split('`').skip(1).step_by(2));
    parts.map(str::to_owned).collect()
}

/// The pages with the words of other gateways.
const WORDS: [&str; 5] = [
    "docs/from-nginx-directives.md",
    "docs/from-nginx-plugins.md",
    "docs/from-traefik.md",
    "docs/from-traefik-services.md",
    "docs/from-apisix.md",
];

#[test]
fn every_line_next_to_the_words_of_others_is_a_configuration() {
    let (root, dir) = (Authority::new("Root"), tempfile::tempdir().unwrap());
    let issued = root.issue("shop.example");
    for name in ["rsa", "admin", "operators"] {
        issued.files(dir.path(), name);
    }
    // The folder with plugins in files.
    fs::create_dir(dir.path().join("lua")).unwrap();
    let reference = read("docs/configuration.md");
    let top = reference.split("\n## ").nth(1).unwrap();
    let keys: Vec<&str> =
        top.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    for page in WORDS {
        let text = read(page);
        let codes = text.lines().filter(|line| line.starts_with('|')).flat_map(code_of);
        let lines: Vec<String> =
            codes.filter(|code| code.split_once(": ").is_some_and(|(key, _)| keys.contains(&key))).collect();
        assert!(lines.len() > 20, "{page} has few configurations: {lines:?}");
        for (at, line) in lines.iter().enumerate() {
            let line = line.replace("/etc/sigma/", &format!("{}/", dir.path().display()));
            fs::write(dir.path().join(format!("{at:03}.yaml")), format!("{line}\n")).unwrap();
        }
        let check =
            "for file in [0-9]*.yaml; do sigma check $file || { cat $file; exit 1; }; done; rm [0-9]*.yaml";
        let output = paste(dir.path(), check, &[("CERT", &issued.cert), ("KEY", &issued.key)]);
        assert!(output.status.success(), "{page}:\n{}", text_of(&output));
    }
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let (contents, plugins) = (read("docs/README.md"), read("docs/plugins/README.md"));
    for page in pages() {
        let named = match page.strip_prefix("docs/") {
            Some("README.md") => true,
            Some(page) => match page.strip_prefix("plugins/") {
                Some(page) if page != "README.md" => plugins.contains(&format!("]({page})")),
                _ => contents.contains(&format!("]({page})")),
            },
            None => contents.contains(&format!("](../{page})")),
        };
        assert!(named, "docs/README.md does not name {page}");
    }
}

#[test]
fn the_words_of_the_glossary_are_in_the_code() {
    let glossary = read("docs/glossary.md");
    // The first column has the term and, as code, its type.
    let terms = glossary.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    let types: Vec<String> = terms.flat_map(code_of).collect();
    assert!(types.len() >= 40, "{types:?}");
    let mut all = Vec::new();
    for entry in fs::read_dir(repository().join("crates")).unwrap() {
        all.extend(sources(&entry.unwrap().path().join("src")));
    }
    for name in types {
        assert!(all.iter().any(|text| defines(text, &name)), "the glossary: no crate defines {name}");
    }
}

/// Whether a source file defines a type or a module of this name.
fn defines(text: &str, name: &str) -> bool {
    let kinds = ["struct", "enum", "trait", "mod"];
    text.lines().any(|line| {
        let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        words.windows(2).any(|pair| kinds.contains(&pair[0]) && pair[1] == name)
    })
}

/// The source files below a folder.
fn sources(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            found.push(fs::read_to_string(path).unwrap());
        }
    }
    found
}
