//! The real RocketMQ accepts entries of `rocketmq-logger`, from authorised senders.

use super::*;

const VERSION: &str = "5.4.0";

/// The folder with its jars, which Maven fetches.
fn jars() -> PathBuf {
    built("rocketmq", &format!("rocketmq-{VERSION}"), |project, draft| {
        let target = format!("-DoutputDirectory={}", draft.display());
        let mut fetch = Command::new("mvn");
        fetch.current_dir(project).args(["-q", "-B", "dependency:copy-dependencies", &target]);
        assert!(
            fetch.status().expect("Maven is there").success(),
            "`mvn dependency:copy-dependencies` failed"
        );
    })
}

/// A class of it, with its home and all that it writes in `dir`.
fn class(name: &str, dir: &Path) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xms64m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:MaxDirectMemorySize=256m"]);
    for (kind, package) in [
        ("exports", "java.base/jdk.internal.ref"),
        ("opens", "java.base/sun.nio.ch"),
        ("opens", "java.base/java.nio"),
    ] {
        command.arg(format!("--add-{kind}={package}=ALL-UNNAMED"));
    }
    command.arg(format!("-Duser.home={}", dir.display())).env("ROCKETMQ_HOME", dir);
    command.args(["-cp", &format!("{}/*", jars().display()), &format!("org.apache.rocketmq.{name}")]);
    command
}

/// A server with these settings.
fn start(name: &str, dir: &Path, settings: &str) -> Running {
    let [file, log] = ["conf", "log"].map(|kind| dir.join(format!("{name}.{kind}")));
    std::fs::write(&file, settings).unwrap();
    Running::start(class(name, dir).arg("-c").arg(&file), &log)
}

/// Returns the content of the topic.
fn messages(dir: &Path, names: u16) -> String {
    let mut tool = class("tools.command.MQAdminStartup", dir);
    let output =
        tool.args(["printMsg", "-n", &format!("127.0.0.1:{names}"), "-t", "requests"]).output().unwrap();
    [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()
}

#[test]
fn rocketmq_logger_makes_a_topic_and_fills_it() {
    let (dir, origin) = (tempfile::tempdir().unwrap(), Origin::echo("a").unwrap());
    // For the tools, which ask for an account, too.
    std::fs::create_dir(dir.path().join("conf")).unwrap();
    let account = "accessKey: logger\nsecretKey: s3cret-of-logger\n";
    std::fs::write(dir.path().join("conf/tools.yml"), account).unwrap();
    let [names, broker, copies] = [(); 3].map(|()| free_port());
    let _names =
        start("namesrv.NamesrvStartup", dir.path(), &format!("listenPort={names}\nbindAddress=127.0.0.1\n"));
    let place = dir.path().display();
    let settings = format!(
        "listenPort={broker}\nhaListenPort={copies}\nbindAddress=127.0.0.1\nbrokerIP1=127.0.0.1\nnamesrvAddr=127.0.0.1:{names}\n\
         storePathRootDir={place}/store\nstorePathCommitLog={place}/store/commitlog\nmappedFileSizeCommitLog=16777216\n\
         authenticationEnabled=true\nauthenticationProvider=org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider\n\
         initAuthenticationUser={{\"username\":\"logger\",\"password\":\"s3cret-of-logger\"}}\n\
         innerClientAuthenticationCredentials={{\"accessKey\":\"logger\",\"secretKey\":\"s3cret-of-logger\"}}\n\
         authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider\n"
    );
    let _broker = start("broker.BrokerStartup", dir.path(), &settings);
    let route = |id: &str, secret: &str, retries: u32| {
        json!({
            "id": id, "uri": format!("/{id}"), "upstream": {"nodes": {origin.address().to_string(): 1}},
            "plugins": {"rocketmq-logger": {
                "nameserver_list": [format!("127.0.0.1:{names}")], "topic": "requests", "key": "orders", "tag": "edge",
                "access_key": "logger", "secret_key": secret, "log_format": {"uri": "$uri"}, "batch_max_size": 1,
                // Java needs its time.
                "max_retry_count": retries
            }}
        })
    };
    let routes = [route("known", "s3cret-of-logger", 1000), route("unknown", "another-secret", 0)];
    let config = json!({"listeners": [{"address": "{listen}"}], "routes": routes});
    let gateway = Gateway::start(SIGMA, &config.to_string()).unwrap();
    gateway.connect().unwrap().get("/known").unwrap();
    let logs = || {
        let files = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path());
        let logs = files.filter(|path| path.extension().is_some_and(|kind| kind == "log"));
        logs.map(|path| std::fs::read_to_string(path).unwrap_or_default()).collect::<String>()
    };
    let has_come = || messages(dir.path(), names).contains(r#"{"uri":"/known","route_id":"known"}"#);
    assert!(until(START, has_come), "{}\n{}\n{}", messages(dir.path(), names), gateway.stderr(), logs());
    let shown = messages(dir.path(), names);
    assert!(shown.contains("KEYS=orders") && shown.contains("TAGS=edge"), "{shown}");
    // A client that signs with another secret is refused.
    gateway.connect().unwrap().get("/unknown").unwrap();
    let is_refused = || {
        gateway.stderr().contains("failed to send data to rocketmq topic:")
            && gateway.stderr().contains("exceeded the max_retry_count[0]")
    };
    assert!(until(PATIENCE, is_refused), "{}", gateway.stderr());
    assert!(!messages(dir.path(), names).contains("/unknown"));
}

/// Java needs its time.
const START: std::time::Duration = std::time::Duration::from_secs(180);
