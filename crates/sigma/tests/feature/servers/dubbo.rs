//! Apache Dubbo's own providers: `make test-servers` has Maven fetch them.

use super::*;

/// A version with the serialization `fastjson`, which later ones have not, and a late one.
const VERSIONS: [&str; 2] = ["2.7.23", "3.2.16"];

/// The folder with the jars of a version, and the provider's classes.
fn folder(version: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers/dubbo");
    built("dubbo", &format!("dubbo-{version}-{:x}", fingerprint(&source)), |project, draft| {
        let folder = draft.display();
        let mut fetch = Command::new("mvn");
        fetch.current_dir(project).args(["-q", "-B", &format!("-Ddubbo.version={version}")]);
        fetch.args(["dependency:copy-dependencies", &format!("-DoutputDirectory={folder}")]);
        assert!(
            fetch.status().expect("Maven is there").success(),
            "`mvn dependency:copy-dependencies` failed"
        );
        let mut compile = Command::new("javac");
        compile.current_dir(project).args([
            "-d",
            &folder.to_string(),
            "-cp",
            &format!("{folder}/*"),
            "Provider.java",
        ]);
        assert!(compile.status().expect("a JDK is there").success(), "`javac` failed");
    })
}

struct Provider {
    dir: tempfile::TempDir,
    port: u16,
    command: Command,
    process: Option<Running>,
}

impl Provider {
    fn start(version: &str, serialization: &str) -> Provider {
        let (dir, port, jars) = (tempfile::tempdir().unwrap(), free_port(), folder(version));
        let mut command = Command::new("java");
        // It listens on all addresses: Dubbo refuses to be bound to the loopback.
        command.args(["-Xmx128m", "-XX:TieredStopAtLevel=1"]);
        for package in ["java.base/java.lang", "java.base/java.math"] {
            command.arg("--add-opens").arg(format!("{package}=ALL-UNNAMED"));
        }
        command.arg(format!("-Duser.home={}", dir.path().display())).current_dir(dir.path());
        let (jars, port_text) = (jars.display(), port.to_string());
        command.args(["-cp", &format!("{jars}:{jars}/*"), "sigma.test.Provider", &port_text, serialization]);
        let mut provider = Provider { dir, port, command, process: None };
        provider.run();
        provider
    }

    fn run(&mut self) {
        let log = self.dir.path().join("log");
        self.process = Some(Running::start(&mut self.command, &log));
        let at = Address::Tcp(([127, 0, 0, 1], self.port).into());
        let is_up = until(PATIENCE * 4, || Peer::connect(&at).is_ok());
        assert!(is_up, "{}", std::fs::read_to_string(&log).unwrap());
    }

    /// A gateway with a route for each method, which is the last segment of its path.
    fn gateway(&self, routes: &[(&str, Value)]) -> Gateway {
        let routes: Vec<Value> = routes
            .iter()
            .map(|(path, plugins)| {
                json!({ "id": path.trim_matches('/').replace(['/', '*'], "-"), "uri": path, "plugins": plugins,
                    "upstream": { "nodes": { format!("127.0.0.1:{}", self.port): 1 } } })
            })
            .collect();
        let config = json!({ "workers": 1, "listeners": ["{listen}"], "routes": routes });
        Gateway::start(SIGMA, &config.to_string()).unwrap()
    }
}

fn post(gateway: &Gateway, target: &str, fields: &str, body: &[u8]) -> Message {
    let mut peer = gateway.connect().unwrap().with_deadline(PATIENCE);
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let head = format!("POST {target} HTTP/1.1\r\nHost: a.test\r\n{length}{fields}\r\n");
    peer.ask([head.as_bytes(), body].concat()).unwrap()
}

#[test]
fn methods_take_parameters_in_json() {
    let mut provider = Provider::start(VERSIONS[0], "fastjson");
    let conf = |method: &str, types: &str| {
        json!({ "http-dubbo": { "service_name": "sigma.test.Provider$Calculator", "service_version": "1.0.0",
            "method": method, "params_type_desc": types, "serialization_header_key": "X-Done" } })
    };
    let gateway = provider.gateway(&[
        ("/sum", conf("sum", "Ljava/lang/Long;I")),
        ("/join", conf("join", "Ljava/util/List;Ljava/util/Map;")),
        ("/nothing", conf("nothing", "")),
        ("/fail", conf("fail", "Ljava/lang/String;")),
        ("/none", conf("none", "")),
    ]);
    let check = |target: &str, fields: &str, body: &str, expected: (u16, &str)| {
        let answer = post(&gateway, target, fields, body.as_bytes());
        assert_eq!((answer.status(), answer.text()), (expected.0, expected.1.to_owned()), "{target} {body}");
    };
    check("/sum", "", "[40, 2]", (200, "42"));
    check("/sum", "", "{\"a\": -9007199254740993, \"b\": 0}", (200, "-9007199254740993"));
    check("/sum", "X-Done: true\r\n", "1\n2", (200, "3"));
    check("/join", "", "[ [\"a\\n\", \"\u{1f600}\"],\n{ \"x\" : 1 } ]", (200, "\"a\\n\\n\u{1f600}{x=1}\""));
    check("/nothing", "", "", (200, ""));
    check("/fail", "", "[\"a reason\"]", (500, ""));
    check("/none", "", "", (500, ""));
    let no_call = post(&gateway, "/sum", "", b"[1, 2, {\"path\": \"other\"}]");
    assert!(
        no_call.status() == 400 && no_call.text().contains("the number of parameters"),
        "{}",
        no_call.text()
    );
    let logged =
        || gateway.stderr().contains("a provider reports an error") && gateway.stderr().contains("a reason");
    assert!(until(PATIENCE, logged), "{}", gateway.stderr());
    provider.process = None;
    check("/sum", "", "[1, 2]", (502, ""));
    provider.run();
    check("/sum", "", "[1, 2]", (200, "3"));
}

#[test]
fn methods_take_requests_as_maps() {
    for version in VERSIONS {
        let mut provider = Provider::start(version, "hessian2");
        let conf = json!({ "service_name": "sigma.test.Provider$Greetings", "service_version": "1.0.0" });
        let gateway = provider.gateway(&[("/*", json!({ "dubbo-proxy": conf }))]);
        let answer = post(&gateway, "/greet", "X-Name: \u{e9}\u{1f600}\r\nBody: forged\r\n", b"hello \xff");
        assert_eq!((answer.status(), answer.head.get("x-length")), (201, Some("7")), "{}", answer.text());
        assert_eq!(answer.body, b"hello \xff");
        // Fields are read byte by byte here.
        let name: String = "\u{e9}\u{1f600}".bytes().map(char::from).collect();
        assert_eq!(answer.head.get("x-name"), Some(&*name));
        assert_eq!(answer.head.all("x-keys").collect::<Vec<_>>(), ["a", "b"]);
        let nobody = post(&gateway, "/greet", "Body: forged\r\n", b"");
        assert_eq!((nobody.text().as_str(), nobody.head.get("x-length")), ("nobody \u{1f600}", Some("-1")));
        let long: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        assert!(post(&gateway, "/greet", "", &long).body == long, "the body is another one");
        assert_eq!(post(&gateway, "/large", "", b"").text(), "\u{e9}".repeat(1_000_000));
        for (target, expected) in [("/fail", 500), ("/nothing", 502), ("/none", 502), ("/$echo", 404)] {
            assert_eq!(post(&gateway, target, "", b"").status(), expected, "{version} {target}");
        }
        let logged = || {
            gateway.stderr().contains(
                "a provider reports an error: java.lang.IllegalStateException: thrown by the method",
            )
        };
        assert!(until(PATIENCE, logged), "{}", gateway.stderr());
        provider.process = None;
        assert_eq!(post(&gateway, "/greet", "", b"").status(), 502);
        provider.run();
        assert_eq!(post(&gateway, "/greet", "", b"").status(), 201);
    }
}
