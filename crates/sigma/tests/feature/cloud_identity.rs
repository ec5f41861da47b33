//! The identity of the machine at clouds: metadata services, functions and log services of the test.

use std::sync::{Arc, Mutex};

use serde_json::json;
use sigma_testkit::{Gateway, Message, Origin, until};

use crate::{PATIENCE, SIGMA};

/// A metadata service of AWS, Google Cloud and Azure at once.
fn metadata() -> Origin {
    let answer = |request: &Message| {
        let (_, target) = request.head.request_line().unwrap();
        let roles = "/latest/meta-data/iam/security-credentials/";
        let keys = json!({
            "AccessKeyId": "AKIDMACHINE", "SecretAccessKey": "hush-key", "Token": "hush-session",
            "Expiration": "2999-01-01T00:00:00Z"
        });
        let token = json!({ "access_token": "hush-token", "expires_in": 3600 });
        let body = match target.split('?').next().unwrap() {
            "/latest/api/token" => "imds".to_owned(),
            path if path == roles => "gateway".to_owned(),
            path if path.starts_with(roles) => keys.to_string(),
            "/metadata/identity/oauth2/token" => token.to_string(),
            path if path.starts_with("/computeMetadata/v1/") => token.to_string(),
            path => panic!("{path}"),
        };
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: {length}\r\n\r\n{body}")
            .into_bytes()
    };
    Origin::answer(answer).unwrap()
}

/// A service that records the requests it gets.
fn service(body: &'static str) -> (Origin, Arc<Mutex<Vec<Message>>>) {
    let asked = Arc::<Mutex<Vec<Message>>>::default();
    let seen = Arc::clone(&asked);
    let origin = Origin::answer(move |request| {
        seen.lock().unwrap().push(request.clone());
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    });
    (origin.unwrap(), asked)
}

/// Settings that allow each cloud for one host.
fn allowed(metadata: &Origin, host: &str) -> String {
    let base = format!("http://127.0.0.1:{}", metadata.port());
    format!(
        "cloud_identity:\n  aws: {{ hosts: [\"{host}\"], sources: [instance], instance_endpoint: \"{base}\" }}\n  gcp: {{ hosts: [\"{host}\"], metadata_endpoint: \"{base}\" }}\n  azure: {{ tokens: [{{ resource: \"api://f\", hosts: [\"{host}\"] }}], client_id: c, metadata_endpoint: \"{base}\" }}\n"
    )
}

fn config(more: &str, port: u16) -> String {
    let url = format!("http://127.0.0.1:{port}");
    format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\n{more}routes:\n  - uri: /lambda\n    plugins:\n      aws-lambda: {{ function_uri: \"{url}/f\", authorization: {{ machine_identity: {{ aws_region: eu-west-1, service: lambda }} }} }}\n  - uri: /azure\n    plugins:\n      azure-functions: {{ function_uri: \"{url}/f\", authorization: {{ machine_identity: true }} }}\n  - uri: /log\n    plugins:\n      google-cloud-logging: {{ machine_identity: {{ project_id: p, entries_uri: \"{url}/entries\" }}, batch_max_size: 1 }}\n    upstream: \"{url}\"\n"
    )
}

#[test]
fn plugins_call_clouds_as_the_machine() {
    let (metadata, (function, asked)) = (metadata(), service("hello"));
    let gateway = Gateway::start(SIGMA, &config(&allowed(&metadata, "127.0.0.1"), function.port())).unwrap();
    let field = |path: &str, name: &str| {
        let asked = asked.lock().unwrap();
        let request = asked.iter().rfind(|request| request.head.line.contains(path));
        request.and_then(|request| request.head.get(name).map(str::to_owned)).unwrap_or_default()
    };
    let mut client = gateway.connect().unwrap();
    assert_eq!(client.get("/lambda").unwrap().text(), "hello");
    let signed = field("/f", "authorization");
    assert!(signed.starts_with("AWS4-HMAC-SHA256 Credential=AKIDMACHINE/"), "{signed}");
    assert!(
        signed.contains("/eu-west-1/lambda/aws4_request") && signed.contains(";x-amz-security-token"),
        "{signed}"
    );
    assert_eq!(field("/f", "x-amz-security-token"), "hush-session");
    // The client cannot add a token of its own.
    let forged = "GET /azure HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer forged\r\n\r\n";
    assert_eq!(client.ask(forged).unwrap().text(), "hello");
    assert_eq!(field("/f", "authorization"), "Bearer hush-token");
    assert_eq!(client.get("/log").unwrap().text(), "hello");
    assert!(
        until(PATIENCE, || field("/entries", "authorization") == "Bearer hush-token"),
        "{}",
        gateway.stderr()
    );
    assert!(!gateway.stderr().contains("hush"), "{}", gateway.stderr());
}

#[test]
fn resources_get_no_identity_that_the_settings_do_not_allow() {
    let (metadata, (function, asked)) = (metadata(), service("hello"));
    for settings in [String::new(), allowed(&metadata, "api.test")] {
        let error = Gateway::start(SIGMA, &config(&settings, function.port())).map(drop).unwrap_err();
        let shown = format!("{error:#}");
        assert!(shown.contains("`127.0.0.1` may not get the identity of this machine"), "{shown}");
    }
    assert!(asked.lock().unwrap().is_empty());
    let refused = |settings: &str, want: &str| {
        let error = Gateway::start(SIGMA, &config(settings, 1)).map(drop).unwrap_err();
        let shown = format!("{error:#}");
        assert!(shown.contains(want), "{shown}");
    };
    refused("cloud_identity: { aws: { hosts: [] } }\n", "cloud_identity.aws.hosts");
    refused("cloud_identity: { gcp: { hosts: [\"*.com\"] } }\n", "cloud_identity.gcp.hosts");
    refused("cloud_identity: { gcp: { hosts: [\"*\"] } }\n", "cloud_identity.gcp.hosts");
    refused("cloud_identity: { gpc: {} }\n", "did you mean `gcp`?");
}

#[test]
fn secrets_are_read_as_the_machine() {
    let metadata = metadata();
    let (manager, asked) = service(r#"{"SecretString": "heron"}"#);
    let node = Origin::echo("a").unwrap();
    let text = format!(
        "workers: 1\nlisteners:\n  - address: \"{{listen}}\"\n{}secrets:\n  - {{ id: aws/1, machine_identity: true, region: eu-west-1, endpoint_url: \"http://127.0.0.1:{}\" }}\nconsumers:\n  - {{ username: jack, plugins: {{ key-auth: {{ key: \"$secret://aws/1/jack\" }} }} }}\nroutes:\n  - {{ uri: \"/*\", plugins: {{ key-auth: {{}} }}, upstream: \"http://127.0.0.1:{}\" }}\n",
        allowed(&metadata, "127.0.0.1"),
        manager.port(),
        node.port()
    );
    let gateway = Gateway::start(SIGMA, &text).unwrap();
    let ask = |key: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\napikey: {key}\r\n\r\n");
        gateway.connect().unwrap().ask(request).unwrap().status()
    };
    assert_eq!((ask("heron"), ask("other")), (200, 401), "{}", gateway.stderr());
    let asked = asked.lock().unwrap();
    let field = |name: &str| asked[0].head.get(name).unwrap_or_default().to_owned();
    assert!(field("authorization").contains("Credential=AKIDMACHINE/"), "{}", field("authorization"));
    assert_eq!(field("x-amz-security-token"), "hush-session");
}
