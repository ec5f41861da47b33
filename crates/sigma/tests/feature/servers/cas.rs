//! A real CAS server, at which users log in and out: `make test-servers`.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use sigma_testkit::{Address, Gateway, Message, Origin, free_port, until};

use super::{Cookies, ask, built, try_ask};
use crate::managed::{EMBEDDED, admin, start};
use crate::{PATIENCE, SIGMA};

const VERSION: &str = "6.6.12";

/// It starts for half a minute on an idle machine.
const START: std::time::Duration = std::time::Duration::from_secs(420);

struct Cas {
    port: u16,
    process: Child,
    _dir: tempfile::TempDir,
}

impl Cas {
    /// A server at this port that knows `casuser`, and a service that gets the end of sessions at this
    /// address.
    fn start(port: u16, told: &str) -> Cas {
        let folder = built("cas", &format!("cas-{VERSION}"), |_, draft| fetch(draft));
        let dir = tempfile::tempdir().unwrap();
        // It looks for services next to its classes.
        let services = dir.path().join("services");
        std::fs::create_dir(&services).unwrap();
        let service = json!({
            "@class": "org.apereo.cas.services.RegexRegisteredService", "serviceId": "^http://shop\\.example/.*",
            "name": "shop", "id": 1, "logoutType": "BACK_CHANNEL", "logoutUrl": told,
        });
        std::fs::write(services.join("shop-1.json"), service.to_string()).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let (own, web) = (dir.path().display(), folder.join("WEB-INF"));
        let mut command = Command::new("java");
        command
            .args(["-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp"])
            .arg(format!("{own}:{web}/classes:{web}/lib/*", web = web.display()))
            .args(["org.apereo.cas.web.CasWebApplication", "--server.address=127.0.0.1"])
            .args([format!("--server.port={port}"), "--server.ssl.enabled=false".to_owned()])
            .args([
                format!("--cas.server.name=http://127.0.0.1:{port}"),
                format!("--cas.server.prefix=http://127.0.0.1:{port}/cas"),
                format!("--cas.standalone.configuration-directory={own}"),
            ])
            .args(["--cas.authn.accept.users=casuser::Mellon", "--cas.tgc.secure=false"])
            .arg("--cas.service-registry.core.init-from-json=true")
            // Where it is writes its own log.
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let cas = Cas { port, process: command.spawn().unwrap(), _dir: dir };
        let is_there =
            || try_ask(port, "GET /cas/login", "", "").is_some_and(|answer| answer.status() == 200);
        assert!(until(START, is_there), "CAS does not start");
        cas
    }

    /// Returns its response to a login for a service.
    fn log_in(&self, target: &str, password: &str, there: &mut Cookies) -> Message {
        // It binds its own cookie to the browser's name.
        let browser = "User-Agent: test\r\n";
        let page = ask(self.port, &format!("GET {target}"), &format!("{browser}{}", there.field()), "");
        there.take(&page);
        let text = page.text();
        let execution = text.split("name=\"execution\" value=\"").nth(1).expect("a form");
        let execution = execution.split('"').next().unwrap().replace('+', "%2B").replace('/', "%2F");
        let form = format!(
            "username=casuser&password={password}&_eventId=submit&execution={}",
            execution.replace('=', "%3D")
        );
        let fields = format!("{browser}Content-Type: application/x-www-form-urlencoded\r\n{}", there.field());
        let answer = ask(self.port, &format!("POST {target}"), &fields, &form);
        there.take(&answer);
        answer
    }
}

impl Drop for Cas {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn fetch(draft: &Path) {
    let folder = draft.with_extension("folder");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("web")).unwrap();
    let done = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?} failed");
    done(
        Command::new("mvn")
            .args(["-q", "-B", "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"])
            .arg(format!("-Dartifact=org.apereo.cas:cas-server-webapp-tomcat:{VERSION}:war"))
            .arg(format!("-DoutputDirectory={}", folder.display())),
    );
    let archive = folder.join(format!("cas-server-webapp-tomcat-{VERSION}.war"));
    done(Command::new("jar").current_dir(folder.join("web")).arg("xf").arg(archive));
    std::fs::rename(folder.join("web"), draft).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

fn port(gateway: &Gateway) -> u16 {
    let Address::Tcp(listening) = gateway.address() else { panic!("the gateway listens on TCP") };
    listening.port()
}

#[test]
fn users_of_a_cas_server() {
    let (origin, cas_port) = (Origin::echo("a").unwrap(), free_port());
    let nodes: Value = json!({format!("127.0.0.1:{}", origin.port()): 1});
    let plugins = json!({"cas-auth": {
        "idp_uri": format!("http://127.0.0.1:{cas_port}/cas"), "cas_callback_uri": "http://shop.example/callback",
        "logout_uri": "/logout", "cookie": {"secret": "a-secret-of-the-gateway-for-cookies", "secure": false},
    }});
    let gateway = start(EMBEDDED);
    let route = json!({"uri": "/*", "plugins": plugins, "upstream": {"type": "roundrobin", "nodes": nodes}});
    admin(&gateway).put("routes/shop", &route).unwrap();
    let shop = |target: &str, cookies: &mut Cookies| {
        let fields = format!("Host: shop.example\r\n{}", cookies.field());
        let answer = ask(port(&gateway), &format!("GET {target}"), &fields, "");
        cookies.take(&answer);
        answer
    };
    assert!(
        until(PATIENCE, || shop("/", &mut Cookies::default()).status() == 302),
        "{SIGMA} serves no route"
    );
    let cas = Cas::start(cas_port, &format!("http://127.0.0.1:{}/callback", port(&gateway)));
    let (mut own, mut there) = (Cookies::default(), Cookies::default());
    let sent = shop("/orders?a=1", &mut own);
    let location = sent.head.get("location").unwrap();
    let target = location.strip_prefix(&format!("http://127.0.0.1:{cas_port}")).unwrap().to_owned();
    assert_eq!(cas.log_in(&target, "wrong", &mut Cookies::default()).status(), 401);
    let agreed = cas.log_in(&target, "Mellon", &mut there);
    assert_eq!(agreed.status(), 302, "{}", agreed.text());
    let back = agreed.head.get("location").unwrap().strip_prefix("http://shop.example").unwrap().to_owned();
    // The ticket is no other browser's.
    assert_eq!(shop(&back, &mut Cookies::default()).status(), 401);
    let returned = shop(&back, &mut own);
    assert_eq!((returned.status(), returned.head.get("location")), (302, Some("/orders?a=1")));
    assert_eq!(shop("/orders?a=1", &mut own).status(), 200);
    // A thief with the ticket comes too late.
    let mut thief = Cookies::default();
    shop("/orders", &mut thief);
    assert_eq!(shop(&back, &mut thief).status(), 401);
    // The server ends the session: it tells the gateway.
    let left = ask(cas_port, "GET /cas/logout", &format!("User-Agent: test\r\n{}", there.field()), "");
    assert!(left.status() < 400, "{}", left.text());
    let is_over = || shop("/orders", &mut Cookies(own.0.clone())).status() == 302;
    assert!(until(PATIENCE, is_over), "{}", gateway.stderr());
    // Another ticket, when the server is gone.
    let mut other = Cookies::default();
    let sent = shop("/orders", &mut other);
    let target = sent.head.get("location").unwrap().split_once(&format!(":{cas_port}")).unwrap().1.to_owned();
    let agreed = cas.log_in(&target, "Mellon", &mut Cookies::default());
    let back = agreed.head.get("location").unwrap().strip_prefix("http://shop.example").unwrap().to_owned();
    drop(cas);
    assert_eq!(shop(&back, &mut other).status(), 401);
    assert_eq!(shop("/orders", &mut other).status(), 302);
    let log = gateway.stderr();
    assert!(
        !log.contains("a-secret-of-the-gateway-for-cookies") && !log.contains("Mellon"),
        "a secret is in the log"
    );
}
