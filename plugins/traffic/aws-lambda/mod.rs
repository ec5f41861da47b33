//! `aws-lambda`: functions of AWS.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::HeaderId;
use sigma_plugin::cloud::Cloud;
use sigma_plugin::credentials::Credential;
use sigma_plugin::outbound::Call;
use sigma_plugin::{Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, Step};
use sigma_schema::Confidential;

use crate::shared::platform::{Called, Credentials, Function, MachineIdentity};
use sigma_plugin_kit::service::warnings;
use sigma_plugin_kit::sigv4::{self, Account, Paths, Request};
use sigma_plugin_kit::utc;

/// The plugin.
pub(crate) static AWS_LAMBDA: Descriptor = Descriptor {
    name: "aws-lambda",
    priority: -1899,
    example: include_str!("example.md"),
    credentials: Some(|_| vec![Credential::field(API_KEY)]),
    phases: PhaseSet::of(&[Phase::Access]),
    upstreams: Some(Function::upstreams),
    owned_fields: Some(|_| [API_KEY, DATE, TOKEN, "Authorization"].map(OwnedField::shared).into()),
    warnings: Some(|_, conf| warnings(conf, &["function_uri"], "the function")),
    build: |build| {
        let Config { function, authorization } = build.config()?;
        let Authorization { apikey, iam, machine_identity } = authorization.unwrap_or_default();
        let signer = match (machine_identity, iam) {
            (Some(place), _) => {
                Some(Signer::Machine(place, MachineIdentity::new(Cloud::Aws, &function, build)?))
            }
            (None, iam) => iam.map(Signer::Iam),
        };
        Ok(Arc::new(AwsLambda(function.with(Caller { apikey, signer }, build))))
    },
    ..Descriptor::of::<Config>()
};

/// Forwards requests to an AWS Lambda function.
///
/// The function gets method, arguments, fields and body of the client. If the route's path ends in `*`, the matched
/// part is appended to the path of `function_uri`. A request without `X-Api-Key` gets `apikey`, if it is set. Other
/// requests without `Authorization` are signed with `iam` or `machine_identity` (Signature Version 4). The signature covers the whole
/// request; arguments are sent in the signed order. The client gets 503 without a response, for a response that is
/// too large, and after `timeout`. A request that is too large gets 400.
#[derive(Deserialize, JsonSchema)]
struct Config {
    #[serde(flatten)]
    function: Function,
    /// The credentials for the function.
    authorization: Option<Authorization>,
}

impl Configuration for Config {}

#[derive(Default, Deserialize, JsonSchema)]
struct Authorization {
    /// The key for API Gateway.
    apikey: Option<Confidential>,
    /// The identity that signs requests.
    iam: Option<Iam>,
    /// Requests are signed with the identity of the gateway's machine, before `iam`. `cloud_identity.aws` in the
    /// settings of the gateway must name the host of the function. Without valid keys the client gets 503.
    #[schemars(extend("own_default" = true))]
    machine_identity: Option<ServicePlace>,
}

/// The address of a called service.
#[derive(Deserialize, JsonSchema)]
struct ServicePlace {
    /// The region of the function.
    #[schemars(extend("default" = "us-east-1"))]
    aws_region: String,
    /// The called service: `execute-api`, or `lambda` for the URL of a function.
    #[schemars(extend("default" = "execute-api"))]
    service: String,
}

/// The credentials as they are used.
struct Caller {
    apikey: Option<Confidential>,
    signer: Option<Signer>,
}

/// The keys that sign requests.
enum Signer {
    Iam(Iam),
    Machine(ServicePlace, MachineIdentity),
}

#[derive(Deserialize, JsonSchema)]
struct Iam {
    /// The id of the access key.
    accesskey: Confidential,
    /// The secret of the access key.
    secretkey: Confidential,
    /// The region of the function.
    #[schemars(extend("default" = "us-east-1"))]
    aws_region: String,
    /// The called service: `execute-api`, or `lambda` for the URL of a function.
    #[schemars(extend("default" = "execute-api"))]
    service: String,
}

const API_KEY: &str = "x-api-key";
const DATE: &str = "x-amz-date";
const TOKEN: &str = "x-amz-security-token";

impl Credentials for Caller {
    fn add(&self, call: &mut Call, env: &Env<'_>) -> Result<(), String> {
        if let (Some(key), None) = (&self.apikey, call.headers.find(API_KEY.as_bytes())) {
            call.headers.append(API_KEY, key.reveal().as_bytes());
        } else if let (Some(signer), false) = (&self.signer, call.headers.has(HeaderId::Authorization)) {
            signer.sign(call, env.unix_time().as_secs())?;
        }
        Ok(())
    }
}

impl Signer {
    fn sign(&self, call: &mut Call, now_s: u64) -> Result<(), String> {
        let time = utc::compact(now_s);
        match self {
            Signer::Iam(Iam { accesskey, secretkey, aws_region, service }) => {
                Key { id: accesskey.reveal(), secret: secretkey, region: aws_region, service }
                    .sign(call, &time);
            }
            Signer::Machine(ServicePlace { aws_region, service }, machine) => {
                let keys = machine.identities.aws(machine.recipient(), now_s);
                let keys = keys.map_err(|error| error.to_string())?;
                if let Some(token) = &keys.session_token {
                    call.headers.replace(TOKEN, token.reveal().as_bytes());
                }
                let (id, secret) = (keys.access_key_id.reveal(), &keys.secret_access_key);
                Key { id, secret, region: aws_region, service }.sign(call, &time);
            }
        }
        Ok(())
    }
}

/// A key, and its use.
struct Key<'k> {
    id: &'k str,
    secret: &'k Confidential,
    region: &'k str,
    service: &'k str,
}

impl Key<'_> {
    /// Signs a call in its present form.
    fn sign(&self, call: &mut Call, time: &str) {
        call.headers.replace(DATE, time.as_bytes());
        let mark = call.target.iter().position(|byte| *byte == b'?');
        if let Some(at) = mark {
            let query = sigv4::canonical_query(&call.target[at + 1..]);
            call.target.truncate(at + 1);
            call.target.extend_from_slice(query.as_bytes());
        }
        let sent = call.headers.iter();
        let sent =
            sent.map(|(name, value)| (String::from_utf8_lossy(name).to_ascii_lowercase(), value.to_vec()));
        let mut fields: Vec<(String, Vec<u8>)> = sent.collect();
        fields.push(("host".to_owned(), call.host.as_bytes().to_vec()));
        let payload = sigv4::sha256(call.body.as_deref().unwrap_or_default());
        let request = Request {
            method: call.method.as_str().as_bytes(),
            target: &call.target,
            paths: if self.service == "s3" { Paths::AsTheyAre } else { Paths::Normal },
            fields,
            payload: &payload,
        };
        let account = Account {
            access_key_id: self.id,
            secret_access_key: self.secret,
            region: self.region,
            service: self.service,
        };
        let value = account.authorization(&request, time);
        call.headers.append("authorization", value.as_bytes());
    }
}

struct AwsLambda(Arc<Called<Caller>>);

impl Plugin for AwsLambda {
    fn access(&self, _: &mut Context, _: &Env<'_>) -> Step {
        self.0.respond()
    }
}

#[cfg(test)]
mod tests {
    use sigma_http::{Headers, Method};

    use super::*;

    /// The vector `get-vanilla-query-order-key-case` of AWS.
    #[test]
    fn a_call_is_signed_as_it_is_sent() {
        let secret = Confidential::from("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY");
        let key = Key { id: "AKIDEXAMPLE", secret: &secret, region: "us-east-1", service: "service" };
        let mut call = Call {
            upstream: "".into(),
            method: Method::Get,
            target: b"/?Param2=value2&Param1=value1".to_vec(),
            host: "example.amazonaws.com".into(),
            headers: Headers::default(),
            passes: Vec::new(),
            body: None,
            timeout_ms: 1,
            limit: 1,
        };
        key.sign(&mut call, "20150830T123600Z");
        assert_eq!(call.target, b"/?Param1=value1&Param2=value2");
        let value = call.headers.find(b"authorization").unwrap();
        assert_eq!(
            String::from_utf8_lossy(value),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
             SignedHeaders=host;x-amz-date, \
             Signature=b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"
        );
    }
}
