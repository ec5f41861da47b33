//! Users whom a real LDAP directory knows: `ldap-auth` and `ldap-auth-advanced` against slapd.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sigma_testkit::{Gateway, Message, Origin, Slapd};

use crate::tls_material::with_environment;
use crate::{PATIENCE, SIGMA, nodes};

/// People with a name that is an attack, two with one mail address, and groups.
const ENTRIES: &str = "\
dn: dc=test
objectClass: dcObject
objectClass: organization
o: test
dc: test

dn: ou=people,dc=test
objectClass: organizationalUnit
ou: people

dn: ou=groups,dc=test
objectClass: organizationalUnit
ou: groups

dn: cn=searcher,dc=test
objectClass: person
cn: searcher
sn: s
userPassword: searchers-password

dn: cn=jack,ou=people,dc=test
objectClass: inetOrgPerson
cn: jack
sn: j
mail: jack@test
userPassword: jacks:password

dn: cn=jill\\,dc\\=evil,ou=people,dc=test
objectClass: inetOrgPerson
cn: jill,dc=evil
sn: j
mail: jill@test
mail: both@test
userPassword: jills-password

dn: cn=joe,ou=people,dc=test
objectClass: inetOrgPerson
cn: joe
sn: j
mail: joe@test
mail: both@test
userPassword: joes-password

dn: cn=admins,ou=groups,dc=test
objectClass: groupOfNames
cn: admins
member: cn=jack,ou=people,dc=test

dn: cn=staff,ou=groups,dc=test
objectClass: groupOfNames
cn: staff
member: cn=jack,ou=people,dc=test
member: cn=joe,ou=people,dc=test
";

const CONSUMERS: &str = r#"
consumers:
  - { username: jack, plugins: { ldap-auth: { user_dn: "cn=jack,ou=people,dc=test" }, ldap-auth-advanced: { user_dn: "cn=jack,ou=people,dc=test" } } }
  - { username: jill, plugins: { ldap-auth: { user_dn: "cn=jill\\,dc\\=evil,ou=people,dc=test" } } }
"#;

/// A certificate for 127.0.0.1, which signs itself, and its key.
fn certificate() -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let cert = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
    (cert.pem(), key.serialize_pem())
}

fn document(origin: &Origin, routes: &[(&str, String)]) -> String {
    let route = |(path, plugins): &(&str, String)| {
        let id = path.trim_start_matches('/');
        format!(
            "  - {{ id: {id}, uri: {path}, plugins: {plugins}, upstream: {{ nodes: {} }} }}\n",
            nodes(&[origin])
        )
    };
    let routes: String = routes.iter().map(route).collect();
    format!("workers: 2\nlisteners:\n  - address: \"{{listen}}\"\nroutes:\n{routes}{CONSUMERS}")
}

fn ask(gateway: &Gateway, path: &str, field: &str, word: &str, who: &str) -> Message {
    let credentials = STANDARD.encode(who);
    let lies = "X-Consumer-Username: liar\r\nX-Authenticated-Groups: liars\r\n";
    let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\n{lies}{field}: {word} {credentials}\r\n\r\n");
    gateway.connect().unwrap().with_deadline(PATIENCE).ask(request).unwrap()
}

/// The user and the groups that the node got; the status without a request to it.
fn told(answer: &Message) -> String {
    if answer.status() != 200 {
        return answer.status().to_string();
    }
    let json = answer.json().unwrap();
    let fields = json["headers"].as_array().unwrap();
    let value = |name: &str| {
        let found = fields.iter().find(|pair| pair[0].as_str().unwrap().eq_ignore_ascii_case(name));
        found.map_or("-", |pair| pair[1].as_str().unwrap()).to_owned()
    };
    format!("{} ({})", value("x-consumer-username"), value("x-authenticated-groups"))
}

#[test]
fn a_directory_binds_users() {
    let (cert, key) = certificate();
    let mut directory = Slapd::start(ENTRIES, &cert, &key).unwrap();
    let origin = Origin::echo("a").unwrap();
    let place = format!("ldap_uri: \"127.0.0.1:{}\", base_dn: \"ou=people,dc=test\"", directory.port());
    let gateway = document(&origin, &[("/a", format!("{{ ldap-auth: {{ {place} }} }}"))]);
    let gateway = Gateway::start(SIGMA, &gateway).unwrap();
    let check = |who: &str, expected: &str| {
        let answer = ask(&gateway, "/a", "Authorization", "Basic", who);
        assert_eq!(told(&answer), expected, "{who}: {}", answer.text());
    };
    // As in APISIX text after the second colon is lost.
    check("jack:jacks:password", "401");
    check("joe:joes-password", "401");
    check("jill,dc=evil:jills-password", "jill (liars)");
    for attack in [
        "jill:jills-password",
        "jill\\,dc\\=evil:jills-password",
        "*:jills-password",
        "jill,dc=evil:",
        "jill,dc=evil: ",
        "jill,dc=evil:wrong",
        ":jills-password",
        "jack,ou=people,dc=test+cn=x:jills-password",
        "admin,dc=test:admins-password",
    ] {
        check(attack, "401");
    }
    // Connections that were bound as one user serve the next one, and those that are lost are replaced.
    for _ in 0..20 {
        check("jill,dc=evil:jills-password", "jill (liars)");
        check("jill,dc=evil:wrong", "401");
    }
    directory.kill().unwrap();
    check("jill,dc=evil:jills-password", "401");
    directory.start_again().unwrap();
    check("jill,dc=evil:jills-password", "jill (liars)");
    let logs = gateway.stderr();
    assert!(!logs.contains("jills-password") && !logs.contains("wrong"), "{logs}");
}

#[test]
fn a_directory_finds_users_and_groups() {
    let (cert, key) = certificate();
    let mut directory = Slapd::start(ENTRIES, &cert, &key).unwrap();
    let origin = Origin::echo("a").unwrap();
    let place =
        format!("ldap_uri: \"127.0.0.1:{}\", base_dn: \"dc=test\", attribute: mail", directory.port());
    let searcher = "bind_dn: \"cn=searcher,dc=test\", ldap_password: searchers-password";
    let groups = "consumer_required: false, group_base_dn: \"ou=groups,dc=test\"";
    let plugin = |more: &str| format!("{{ ldap-auth-advanced: {{ {place}, {more} }} }}");
    let routes = [
        ("/plain", plugin(searcher)),
        ("/anonymous", plugin("consumer_required: false")),
        ("/groups", plugin(&format!("{searcher}, {groups}"))),
        ("/admins", plugin(&format!("{searcher}, {groups}, groups_required: [admins]"))),
        ("/basic", plugin("header_type: basic")),
        ("/wrong", plugin("bind_dn: \"cn=searcher,dc=test\", ldap_password: other")),
        ("/nowhere", plugin("consumer_required: false").replace("\"dc=test\"", "\"dc=elsewhere\"")),
    ];
    let gateway = Gateway::start(SIGMA, &document(&origin, &routes)).unwrap();
    let check = |path: &str, who: &str, expected: &str| {
        let answer = ask(&gateway, path, "Authorization", "ldap", who);
        assert_eq!(told(&answer), expected, "{path} {who}: {}", answer.text());
    };
    check("/plain", "jack@test:jacks:password", "jack (-)");
    check("/plain", "joe@test:joes-password", "401");
    check("/anonymous", "joe@test:joes-password", "- (-)");
    check("/groups", "joe@test:joes-password", "- (staff)");
    check("/groups", "jill@test:jills-password", "- (-)");
    check("/groups", "jack@test:jacks:password", "jack (admins, staff)");
    check("/admins", "jack@test:jacks:password", "jack (admins, staff)");
    check("/admins", "joe@test:joes-password", "403");
    check("/admins", "joe@test:wrong", "401");
    check("/wrong", "jack@test:jacks:password", "500");
    check("/nowhere", "jack@test:jacks:password", "500");
    for attack in
        ["*", "jack@test)(mail=*", "*)(objectClass=*", "jack*", "both@test", "nobody", "jack@test\\2a", ""]
    {
        check("/anonymous", &format!("{attack}:jacks:password"), "401");
    }
    for password in ["", "wrong", "jacks", "joes-password"] {
        check("/anonymous", &format!("jack@test:{password}"), "401");
    }
    let answer = ask(&gateway, "/basic", "Authorization", "Basic", "jack@test:no");
    assert_eq!(answer.head.get("www-authenticate"), Some("Basic realm=\"ldap\""));
    let answer = ask(&gateway, "/basic", "Proxy-Authorization", "Basic", "jack@test:jacks:password");
    assert_eq!(told(&answer), "jack (-)");
    directory.kill().unwrap();
    check("/plain", "jack@test:jacks:password", "500");
    directory.start_again().unwrap();
    check("/plain", "jack@test:jacks:password", "jack (-)");
    let logs = gateway.stderr();
    assert!(!["jacks:password", "searchers-password"].iter().any(|secret| logs.contains(secret)), "{logs}");
}

#[test]
fn a_directory_is_asked_over_tls() {
    let ((cert, key), dir) = (certificate(), tempfile::tempdir().unwrap());
    let directory = Slapd::start(ENTRIES, &cert, &key).unwrap();
    let (origin, trusted) = (Origin::echo("a").unwrap(), dir.path().join("trusted.pem"));
    std::fs::write(&trusted, &cert).unwrap();
    let (port, tls_port) = (directory.port(), directory.tls_port());
    let plugin = |place: &str, more: &str| {
        let people = "base_dn: \"ou=people,dc=test\", attribute: mail, consumer_required: false";
        format!("{{ ldap-auth-advanced: {{ ldap_uri: \"{place}\", {people}, {more} }} }}")
    };
    let simple = format!("ldap_uri: \"127.0.0.1:{tls_port}\", base_dn: \"ou=people,dc=test\", use_tls: true");
    let routes = [
        ("/ldaps", plugin(&format!("127.0.0.1:{tls_port}"), "use_ldaps: true")),
        ("/starttls", plugin(&format!("127.0.0.1:{port}"), "use_starttls: true")),
        ("/unverified", plugin(&format!("127.0.0.1:{port}"), "use_starttls: true, ssl_verify: false")),
        ("/othername", plugin(&format!("localhost:{port}"), "use_starttls: true")),
        ("/mistaken", plugin(&format!("127.0.0.1:{port}"), "use_ldaps: true, timeout: 2000")),
        ("/simple", format!("{{ ldap-auth: {{ {simple}, tls_verify: true }} }}")),
        ("/unverifiedsimple", format!("{{ ldap-auth: {{ {simple} }} }}")),
    ];
    let text = document(&origin, &routes);
    let sees = |gateway: &Gateway, expected: &[(&str, &str)]| {
        for (path, expected) in expected {
            let (word, who) = match path.ends_with("simple") {
                true => ("Basic", "jill,dc=evil:jills-password"),
                false => ("ldap", "joe@test:joes-password"),
            };
            let answer = ask(gateway, path, "Authorization", word, who);
            assert_eq!(answer.status().to_string(), *expected, "{path}: {}", gateway.stderr());
        }
    };
    let trusting = with_environment(dir.path(), &[("SSL_CERT_FILE", trusted.to_str().unwrap())]);
    let gateway = Gateway::start(trusting.to_str().unwrap(), &text).unwrap();
    sees(
        &gateway,
        &[
            ("/ldaps", "200"),
            ("/starttls", "200"),
            ("/unverified", "200"),
            ("/othername", "500"),
            ("/mistaken", "500"),
            ("/simple", "200"),
            ("/unverifiedsimple", "200"),
        ],
    );
    drop(gateway);
    // The authorities of the system have never heard of this certificate.
    let gateway = Gateway::start(SIGMA, &text).unwrap();
    sees(
        &gateway,
        &[
            ("/ldaps", "500"),
            ("/starttls", "500"),
            ("/unverified", "200"),
            ("/simple", "401"),
            ("/unverifiedsimple", "200"),
        ],
    );
    gateway.await_log("no TLS session");
}
