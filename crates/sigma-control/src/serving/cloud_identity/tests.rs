//! Identities from servers that act as the services of the clouds.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::Mutex;

use serde_json::{Value, json};
use sigma_plugin::cloud::{AwsKeys, Cloud as Kind, NoIdentity, Recipient};
use sigma_schema::Confidential;
use sigma_testkit::{Message, Origin};

use super::*;

/// A server that records requests, and responds by their path.
struct Cloud {
    origin: Origin,
    asked: Arc<Mutex<Vec<Message>>>,
}

impl Cloud {
    fn start(answers: &[(&str, String)]) -> Cloud {
        let asked = Arc::<Mutex<Vec<Message>>>::default();
        let seen = Arc::clone(&asked);
        let answers: HashMap<String, String> =
            answers.iter().map(|(path, body)| ((*path).to_owned(), body.clone())).collect();
        let origin = Origin::answer(move |request| {
            let (_, target) = request.head.request_line().unwrap();
            let path = target.split('?').next().unwrap().to_owned();
            seen.lock().unwrap().push(request.clone());
            let (status, body) = match answers.get(&path) {
                Some(body) => ("200 OK", body.as_str()),
                None => ("403 Forbidden", "hush"),
            };
            let length = body.len();
            format!("HTTP/1.1 {status}\r\nMetadata-Flavor: Google\r\nContent-Length: {length}\r\n\r\n{body}")
                .into_bytes()
        });
        Cloud { origin: origin.unwrap(), asked }
    }

    fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.origin.port())
    }

    fn line(&self, at: usize) -> String {
        self.asked.lock().unwrap()[at].head.line.clone()
    }

    fn field(&self, at: usize, name: &str) -> Option<String> {
        self.asked.lock().unwrap()[at].head.get(name).map(str::to_owned)
    }

    fn form(&self, at: usize) -> HashMap<String, String> {
        let body = self.asked.lock().unwrap()[at].body.clone();
        form_urlencoded::parse(&body).into_owned().collect()
    }
}

fn environment(variables: &[(&str, &str)]) -> Environment {
    let known: HashMap<String, String> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Arc::new(move |name: &str| known.get(name).cloned())
}

/// The time at the given number of seconds from now, as RFC 3339 has it.
fn later(seconds: u64) -> String {
    let date = sigma_plugin_kit::utc::compact(unix_now() + seconds);
    let part = |from: usize, to: usize| &date[from..to];
    format!("{}-{}-{}T{}:{}:{}Z", part(0, 4), part(4, 6), part(6, 8), part(9, 11), part(11, 13), part(13, 15))
}

fn keys(id: &str) -> String {
    json!({
        "Code": "Success", "AccessKeyId": id, "SecretAccessKey": "hush", "Token": "t", "Expiration": later(3600)
    })
    .to_string()
}

fn aws(cloud: &Cloud, more: Value, variables: &[(&str, &str)]) -> aws::Aws {
    let base = cloud.address();
    let mut settings = json!({
        "hosts": ["api.test"], "sts_endpoint": base, "container_endpoint": base, "instance_endpoint": base
    });
    settings.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
    let settings: sigma_config::cloud_identity::AwsIdentity = serde_json::from_value(settings).unwrap();
    let caller = Caller::new(settings.timeout_ms);
    aws::Aws { settings, caller, environment: environment(variables) }
}

async fn id_of(service: &aws::Aws) -> Result<String, String> {
    let Credential { value: AwsKeys { access_key_id, session_token, .. }, end_s } = service.fetch().await?;
    let token = session_token.as_ref().map(Confidential::reveal).unwrap_or_default();
    let life = end_s.map_or(0, |end_s| end_s.saturating_sub(unix_now()));
    assert!(life == 0 || (3500..=3600).contains(&life), "{life}");
    Ok(format!("{} {token}", access_key_id.reveal()))
}

#[tokio::test]
async fn sources_of_aws_are_asked_in_their_order() {
    let roles = "/latest/meta-data/iam/security-credentials/";
    let cloud = Cloud::start(&[
        ("/latest/api/token", "imds-token".to_owned()),
        (roles, "gateway\n".to_owned()),
        (&format!("{roles}gateway"), keys("of-instance")),
        ("/task", keys("of-task")),
        (
            "/",
            format!(
                "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>of-role</AccessKeyId><SecretAccessKey>hush</SecretAccessKey><SessionToken>t</SessionToken><Expiration>{}</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
                later(3600)
            ),
        ),
    ]);
    assert_eq!(id_of(&aws(&cloud, json!({}), &[])).await.unwrap(), "of-instance t");
    assert_eq!(cloud.line(0), "PUT /latest/api/token HTTP/1.1");
    assert_eq!(cloud.field(0, "x-aws-ec2-metadata-token-ttl-seconds").as_deref(), Some("300"));
    assert_eq!(cloud.field(1, "x-aws-ec2-metadata-token").as_deref(), Some("imds-token"));
    assert_eq!(cloud.line(2), format!("GET {roles}gateway HTTP/1.1"));

    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "of-pod").unwrap();
    let path = file.path().to_str().unwrap();
    let of_task = [
        ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/task"),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", path),
    ];
    assert_eq!(id_of(&aws(&cloud, json!({}), &of_task)).await.unwrap(), "of-task t");
    assert_eq!(cloud.field(3, "authorization").as_deref(), Some("of-pod"));
    let whole = format!("{}/task", cloud.address());
    let of_task =
        [("AWS_CONTAINER_CREDENTIALS_FULL_URI", whole.as_str()), ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "x")];
    assert_eq!(id_of(&aws(&cloud, json!({}), &of_task)).await.unwrap(), "of-task t");
    assert_eq!(cloud.field(4, "authorization").as_deref(), Some("x"));

    let of_role =
        [("AWS_WEB_IDENTITY_TOKEN_FILE", path), ("AWS_ROLE_ARN", "arn:aws:iam::1:role/g"), of_task[0]];
    assert_eq!(id_of(&aws(&cloud, json!({}), &of_role)).await.unwrap(), "of-role t");
    let form = cloud.form(5);
    let part = |name: &str| form[name].as_str();
    assert_eq!((part("Action"), part("RoleArn")), ("AssumeRoleWithWebIdentity", "arn:aws:iam::1:role/g"));
    assert_eq!((part("WebIdentityToken"), part("RoleSessionName")), ("of-pod", "sigma"));

    let of_keys =
        [("AWS_ACCESS_KEY_ID", "of-environment"), ("AWS_SECRET_ACCESS_KEY", "hush"), of_role[0], of_role[1]];
    assert_eq!(id_of(&aws(&cloud, json!({}), &of_keys)).await.unwrap(), "of-environment ");
    let only = json!({ "sources": ["container"] });
    assert_eq!(
        id_of(&aws(&cloud, only.clone(), &[of_keys[0], of_keys[1], of_task[0]])).await.unwrap(),
        "of-task t"
    );
    assert!(id_of(&aws(&cloud, only, &of_keys)).await.unwrap_err().contains("no source"));
}

#[tokio::test]
async fn a_source_that_fails_is_not_replaced_by_another() {
    let cloud = Cloud::start(&[("/empty", "{}".to_owned()), ("/latest/api/token", "t".to_owned())]);
    let check = async |variables: &[(&str, &str)], want: &str| {
        let error = id_of(&aws(&cloud, json!({}), variables)).await.unwrap_err();
        assert!(error.contains(want) && !error.contains("hush"), "{variables:?}: {error}");
    };
    check(&[("AWS_ACCESS_KEY_ID", "a")], "`AWS_SECRET_ACCESS_KEY` is not").await;
    check(&[("AWS_WEB_IDENTITY_TOKEN_FILE", "/nowhere")], "`AWS_ROLE_ARN` is not").await;
    check(&[("AWS_WEB_IDENTITY_TOKEN_FILE", "/nowhere"), ("AWS_ROLE_ARN", "r")], "cannot read /nowhere")
        .await;
    let relative = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
    check(&[(relative, "/other")], "responded with status 403").await;
    check(&[(relative, "/empty")], "returned no credentials").await;
    check(&[(relative, "@evil.test/x")], "does not begin with `/`").await;
    // Credentials are not asked for, nor sent, in cleartext outside the machine.
    check(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://evil.test/x")], "is not https").await;
    check(&[], "responded with status 403").await;
}

#[tokio::test]
async fn tokens_of_google_come_from_the_metadata_server_or_by_federation() {
    let path = "/computeMetadata/v1/instance/service-accounts/default/token";
    let token =
        |text: &str| json!({ "access_token": text, "expires_in": 3600, "token_type": "Bearer" }).to_string();
    let impersonated = json!({ "accessToken": "of-account", "expireTime": later(1000) }).to_string();
    let cloud =
        Cloud::start(&[(path, token("of-machine")), ("/sts", token("of-sts")), ("/account", impersonated)]);
    let service = |more: Value| {
        let mut settings = json!({ "metadata_endpoint": cloud.address(), "scopes": ["s1", "s2"] });
        settings.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        gcp::Gcp { settings: serde_json::from_value(settings).unwrap(), caller: Caller::new(2_000) }
    };
    let found = service(json!({})).fetch().await.unwrap();
    assert_eq!(found.value.reveal(), "of-machine");
    assert!(found.end_s.is_some_and(|end_s| end_s > unix_now() + 3500));
    assert_eq!(cloud.line(0), format!("GET {path}?scopes=s1%2Cs2 HTTP/1.1"));
    assert_eq!(cloud.field(0, "metadata-flavor").as_deref(), Some("Google"));

    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name)
    };
    let subject = write("subject", r#"{ "token": "of-pod" }"#);
    let mut file = json!({
        "type": "external_account", "audience": "//iam.googleapis.com/p", "token_url": format!("{}/sts", cloud.address()),
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "credential_source": {
            "file": subject, "format": { "type": "json", "subject_token_field_name": "token" }
        },
    });
    let fetched = async |file: &Value| {
        let path = write("federation.json", &file.to_string());
        let found = service(json!({ "credentials_file": path })).fetch().await;
        found.map(|found| found.value.reveal().to_owned())
    };
    assert_eq!(fetched(&file).await.unwrap(), "of-sts");
    let form = cloud.form(1);
    let part = |name: &str| form[name].as_str();
    assert_eq!((part("subject_token"), part("audience")), ("of-pod", "//iam.googleapis.com/p"));
    assert_eq!(part("scope"), "s1 s2");
    file["service_account_impersonation_url"] = format!("{}/account", cloud.address()).into();
    assert_eq!(fetched(&file).await.unwrap(), "of-account");
    assert_eq!(cloud.field(3, "authorization").as_deref(), Some("Bearer of-sts"));
    file["type"] = "service_account".into();
    assert!(fetched(&file).await.unwrap_err().contains("is not `external_account`"));
    file["type"] = "external_account".into();
    file["token_url"] = "http://evil.test/sts".into();
    assert!(fetched(&file).await.unwrap_err().contains("is not https"));
    file["credential_source"] = json!({ "url": "http://127.0.0.1/" });
    assert!(fetched(&file).await.unwrap_err().contains("`credential_source.file` is missing"));
}

#[tokio::test]
async fn tokens_of_azure_are_for_one_resource() {
    // The metadata service writes the seconds as text.
    let token = |text: &str| json!({ "access_token": text, "expires_in": "3599" }).to_string();
    let path = "/metadata/identity/oauth2/token";
    let cloud = Cloud::start(&[(path, token("managed")), ("/tenant/oauth2/v2.0/token", token("federated"))]);
    let fetched = async |variables: &[(&str, &str)]| {
        let settings =
            json!({ "tokens": [], "metadata_endpoint": cloud.address(), "authority": cloud.address() });
        let settings = serde_json::from_value(settings).unwrap();
        let (resource, caller) = ("api://f".to_owned(), Caller::new(2_000));
        let service = azure::Azure { settings, resource, caller, environment: environment(variables) };
        service.fetch().await.map(|found| found.value.reveal().to_owned())
    };
    assert_eq!(fetched(&[]).await.unwrap(), "managed");
    assert_eq!(cloud.line(0), format!("GET {path}?api-version=2018-02-01&resource=api%3A%2F%2Ff HTTP/1.1"));
    assert_eq!(cloud.field(0, "metadata").as_deref(), Some("true"));
    assert_eq!(fetched(&[("AZURE_CLIENT_ID", "c")]).await.unwrap(), "managed");
    assert!(cloud.line(1).contains("&client_id=c "), "{}", cloud.line(1));

    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "of-pod").unwrap();
    let path = ("AZURE_FEDERATED_TOKEN_FILE", file.path().to_str().unwrap());
    let (tenant, client) = (("AZURE_TENANT_ID", "tenant"), ("AZURE_CLIENT_ID", "c"));
    assert_eq!(fetched(&[path, tenant, client]).await.unwrap(), "federated");
    let form = cloud.form(2);
    let part = |name: &str| form[name].as_str();
    assert_eq!(
        (part("client_assertion"), part("scope"), part("client_id")),
        ("of-pod", "api://f/.default", "c")
    );
    for wrong in [&[path, client][..], &[path, tenant], &[path, client, ("AZURE_TENANT_ID", "../x")]] {
        assert!(fetched(wrong).await.is_err(), "{wrong:?}");
    }
}

#[tokio::test]
async fn the_start_publishes_credentials_for_the_named_hosts_only() {
    let path = "/computeMetadata/v1/instance/service-accounts/default/token";
    let token = json!({ "access_token": "of-machine", "expires_in": 3600 }).to_string();
    let cloud = Cloud::start(&[(path, token)]);
    let settings = json!({
        "gcp": { "hosts": ["127.0.0.1"], "metadata_endpoint": cloud.address() },
        "azure": { "tokens": [{ "resource": "r", "hosts": ["vault.test"] }], "metadata_endpoint": cloud.address() },
    });
    let settings: CloudIdentity = serde_json::from_value(settings).unwrap();
    let identities = CloudIdentities::default();
    begin_in(Some(&settings), &identities, environment(&[])).await;
    let token = |cloud, host| identities.token(cloud, Recipient { host, is_verified: true }, unix_now());
    assert_eq!(token(Kind::Gcp, "127.0.0.1").unwrap().reveal(), "of-machine");
    assert!(matches!(token(Kind::Gcp, "evil.test"), Err(NoIdentity::Refused(_))));
    // The metadata service refuses: the host is allowed, but there is no token.
    assert!(matches!(token(Kind::Azure, "vault.test"), Err(NoIdentity::Unavailable(_))));
    assert!(identities.aws(Recipient { host: "127.0.0.1", is_verified: true }, 0).is_err());
}

#[test]
fn credentials_are_renewed_ahead_of_their_end() {
    let seconds = |life_s| until_renewal(life_s).as_secs();
    assert_eq!([3600, 600, 100, 5, 0].map(seconds), [3300, 300, 50, 10, 10]);
    assert_eq!(until_renewal(u64::MAX), Duration::from_secs(u64::MAX) - AHEAD);
}
