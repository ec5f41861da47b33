//! Certificates over time: warnings about their expiry.

use std::process::Command;

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use sigma_testkit::{Gateway, Operator, Origin, until};

use crate::docs::{block, paste, text_of};
use crate::tls::{Authority, Issued, config, der, run, shown, to_origin};
use crate::{PATIENCE, SIGMA};

/// A certificate that `authority` has issued for the years from `begins` to `ends`.
fn issued_for(authority: &Authority, name: &str, begins: i32, ends: i32) -> Issued {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.not_before = rcgen::date_time_ymd(begins, 1, 1);
    params.not_after = rcgen::date_time_ymd(ends, 1, 1);
    let cert = params.signed_by(&key, &authority.issuer).unwrap();
    Issued { cert: cert.pem(), key: key.serialize_pem() }
}

fn by_resource<'l>(list: &'l Value, resource: &str) -> &'l Value {
    let found = list.as_array().unwrap().iter().find(|one| one["resource"] == resource);
    found.unwrap_or_else(|| panic!("{resource} is not in {list}"))
}

#[test]
fn it_is_seen_everywhere_that_certificates_expire() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let old = issued_for(&root, "old.test", 2001, 2002);
    let good = issued_for(&root, "good.test", 2001, 2090);
    let tls = json!({ "certificates": [good.files(dir.path(), "own")] });
    let client = good.ssl(json!({ "id": "to-nodes", "type": "client" }));
    let rest = json!({
        "ssls": [old.ssl(json!({ "id": "old", "sni": "old.test" })), client],
        "upstreams": [{
            "id": "shows", "nodes": { "127.0.0.1:1": 1 }, "scheme": "https",
            "tls": { "client_cert_id": "to-nodes" },
        }],
        "status": { "address": "{status}" },
        "control": { "address": "{control}" },
        // All warnings are logged.
        "tls": { "expiry_warning_days": [3650, 30] },
    });
    let gateway = Gateway::start(SIGMA, &config(tls, to_origin(&origin), rest)).unwrap();
    let list = Operator::new(gateway.control_address()).get("/v1/certificates").unwrap();
    assert_eq!(list.as_array().unwrap().len(), 3, "{list}");
    let expired = by_resource(&list, "ssls/old");
    assert_eq!(expired["status"], "expired");
    assert_eq!(expired["validity_end"], 1_009_843_200);
    assert_eq!(expired["names"], json!(["old.test"]));
    assert_eq!(expired["subject"], "CN=old.test");
    assert_eq!(expired["issuer"], "CN=Root");
    let (own, to_nodes) =
        (format!("listeners/{}", gateway.address()), by_resource(&list, "ssls/to-nodes").clone());
    assert_eq!(by_resource(&list, &own)["status"], "valid");
    assert_eq!((&to_nodes["type"], &to_nodes["status"]), (&json!("client"), &json!("valid")));
    let status = Operator::new(gateway.status_address());
    let page = status.call("GET", "/status/counters", None).unwrap();
    let page = String::from_utf8_lossy(&page.body).into_owned();
    let serial = expired["serial"].as_str().unwrap();
    let series = format!(
        "sigma_ssl_certificate_expires_timestamp_seconds{{resource=\"ssls/old\",type=\"server\",serial=\"{serial}\"}} 1009843200"
    );
    assert!(page.lines().any(|line| line == series), "{series}\n{page}");
    // The log says it once, and of the others nothing.
    gateway.await_log("has expired and peers refuse it");
    let log = gateway.stderr();
    assert!(log.contains(serial) && log.matches("has expired and peers refuse it").count() == 1, "{log}");
    // It is shown all the same, and the gateway is as ready as ever.
    run(async {
        let refused = shown(&gateway, &root, "old.test").await.unwrap_err();
        assert!(refused.contains("xpired"), "{refused}");
        assert_eq!(shown(&gateway, &root, "good.test").await, Ok(der(&good)));
    });
    assert_eq!(status.call("GET", "/status/ready", None).unwrap().status(), 200);
    told_on_a_terminal(&gateway);
}

/// As the page says.
fn told_on_a_terminal(gateway: &Gateway) {
    let commands = block("docs/tls-certificates.md", "sh", "sigma ctl certificates");
    let control = gateway.control_address().to_string();
    let output = paste(gateway.dir(), &commands.replace("127.0.0.1:9090", &control), &[]);
    let told = text_of(&output);
    assert_eq!(output.status.code(), Some(3), "{told}");
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].starts_with("NODE ") && lines[0].ends_with(" STATUS"), "{told}");
    // The first to expire is the first.
    assert!(lines[1].contains("ssls/old") && lines[1].ends_with("2002-01-01  expired"), "{told}");
    assert_eq!(lines.len(), 4, "{told}");
}

#[test]
fn a_check_warns_of_it() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let old = issued_for(&root, "a.test", 2001, 2002).files(dir.path(), "old");
    let text = config(json!({ "certificates": [old] }), to_origin(&origin), json!({}));
    let file = dir.path().join("sigma.yaml");
    std::fs::write(&file, text.replace("{listen}", "127.0.0.1:9443")).unwrap();
    let output = Command::new(SIGMA).arg("check").arg(&file).output().unwrap();
    let told = text_of(&output);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("warning: listeners/127.0.0.1:9443: a certificate has expired"), "{told}");
}

#[test]
fn a_check_warns_of_certificates_in_files() {
    let (root, origin, dir) =
        (Authority::new("Root"), Origin::echo("a").unwrap(), tempfile::tempdir().unwrap());
    let ssl = |id: &str, issued: Issued| {
        let files = issued.files(dir.path(), id);
        json!({ "id": id, "sni": format!("{id}.test"), "cert_file": files["cert"], "key_file": files["key"] })
    };
    let ssls = [
        ssl("good", issued_for(&root, "good.test", 2001, 2090)),
        ssl("late", issued_for(&root, "late.test", 2080, 2090)),
        ssl("old", issued_for(&root, "old.test", 2001, 2002)),
        ssl("other", issued_for(&root, "good.test", 2001, 2090)),
    ];
    let text = config(json!({}), to_origin(&origin), json!({ "ssls": ssls }));
    let file = dir.path().join("sigma.yaml");
    std::fs::write(&file, text.replace("{listen}", "127.0.0.1:9443")).unwrap();
    let output = Command::new(SIGMA).arg("check").arg(&file).output().unwrap();
    let told = text_of(&output);
    assert!(output.status.success(), "{told}");
    let warned = |place: &str, message: &str, file: &str| {
        let is_it = |line: &&str| line.contains(place) && line.contains(message) && line.contains(file);
        assert_eq!(told.lines().filter(is_it).count(), 1, "{place}: {told}");
    };
    warned("ssls/late", "not valid yet", "late.crt");
    warned("ssls/old", "a certificate has expired", "old.crt");
    warned("ssls/other", "the certificate is not for other.test", "other.crt");
    assert_eq!(told.matches("warning: ssls/").count(), 3, "{told}");
}

/// certbot keeps links in one folder to files in another, and moves one link after the other.
#[test]
fn a_renewed_certificate_is_taken_over_when_its_key_fits() {
    let (root, origin) = (Authority::new("Root"), Origin::echo("a").unwrap());
    let [first, second] = [root.issue("a.test"), root.issue("a.test")];
    let dir = tempfile::tempdir().unwrap();
    let put = |folder: &str, issued: &Issued, number: u32| {
        let archive = dir.path().join("archive").join(folder);
        std::fs::create_dir_all(&archive).unwrap();
        std::fs::write(archive.join(format!("fullchain{number}.pem")), &issued.cert).unwrap();
        std::fs::write(archive.join(format!("privkey{number}.pem")), &issued.key).unwrap();
    };
    let link = |name: &str, number: u32| {
        let live = dir.path().join("live");
        std::fs::create_dir_all(&live).unwrap();
        std::os::unix::fs::symlink(format!("../archive/a/{name}{number}.pem"), live.join("new")).unwrap();
        std::fs::rename(live.join("new"), live.join(format!("{name}.pem"))).unwrap();
    };
    put("a", &first, 1);
    ["fullchain", "privkey"].into_iter().for_each(|name| link(name, 1));
    let live = |name: &str| dir.path().join("live").join(name);
    let rest = json!({
        "ssls": [
            { "id": "a", "sni": "a.test", "cert_file": live("fullchain.pem"), "key_file": live("privkey.pem") },
        ],
        "process": { "sandbox": "landlock" },
    });
    let text = config(json!(true), to_origin(&origin), rest);
    let gateway = Gateway::start(SIGMA, &text).unwrap();
    let shown = || run(shown(&gateway, &root, "a.test"));
    assert_eq!(shown(), Ok(der(&first)));
    put("a", &second, 2);
    link("fullchain", 2);
    let told = |text: &str| until(PATIENCE, || gateway.stderr().contains(text));
    assert!(told("the last valid pair stays"), "{}", gateway.stderr());
    let log = gateway.stderr();
    assert!(log.contains("the key does not belong") && log.contains("live/privkey.pem"), "{log}");
    assert_eq!(shown(), Ok(der(&first)));
    gateway.reload().unwrap();
    assert!(told("configuration reloaded"), "{}", gateway.stderr());
    assert_eq!(shown(), Ok(der(&first)), "a reload keeps the last good pair too");
    link("privkey", 2);
    assert!(until(PATIENCE, || shown() == Ok(der(&second))), "{}", gateway.stderr());
    assert_eq!(gateway.stderr().matches("the last valid pair stays").count(), 1, "{}", gateway.stderr());
}
