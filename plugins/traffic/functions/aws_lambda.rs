//! `aws-lambda`: functions of AWS.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::HeaderId;
use sigma_plugin::credentials::Credential;
use sigma_plugin::outbound::Call;
use sigma_plugin::{Configuration, Context, Descriptor, Env, OwnedField, Phase, PhaseSet, Plugin, Step};
use sigma_schema::Confidential;

use super::platform::{Called, Credentials, Function};
use sigma_plugin_kit::service::warnings;
use sigma_plugin_kit::sigv4::{self, Account, Paths, Request};
use sigma_plugin_kit::utc;

/// The plugin.
pub(crate) static AWS_LAMBDA: Descriptor = Descriptor {
    name: "aws-lambda",
    priority: -1899,
    example: EXAMPLE,
    credentials: Some(|_| vec![Credential::field(API_KEY)]),
    phases: PhaseSet::of(&[Phase::Access]),
    upstreams: Some(Function::upstreams),
    owned_fields: Some(|_| [API_KEY, DATE, "Authorization"].map(OwnedField::shared).into()),
    warnings: Some(|_, conf| warnings(conf, &["function_uri"], "the function")),
    build: |build| {
        let Config { function, authorization } = build.config()?;
        Ok(Arc::new(AwsLambda(function.with(authorization.unwrap_or_default(), build))))
    },
    ..Descriptor::of::<Config>()
};

const EXAMPLE: &str = r#"Here the function is a route of the gateway itself, which knows one key.

```yaml
listeners: ["127.0.0.1:9080"]
routes:
  - uri: /default/hello*
    plugins:
      fault-injection:
        abort: { http_status: 403, body: "{\"message\":\"Forbidden\"}\n", vars: [[["http_x_api_key", "~=", "heron"]]] }
      mocking: { response_status: 201, response_example: "hello from the function\n" }
  - uri: /*
    plugins:
      aws-lambda:
        function_uri: http://127.0.0.1:9080/default/hello
        authorization: { apikey: heron }
```

```console
$ curl -s -w '%{http_code}\n' http://127.0.0.1:9080/orders
hello from the function
201
$ curl -s -w '%{http_code}\n' -H 'X-Api-Key: wrong' http://127.0.0.1:9080/orders
{"message":"Forbidden"}
403
```
"#;

/// Forwards requests to an AWS Lambda function.
///
/// The function gets method, arguments, fields and body of the client. If the route's path ends in `*`, the matched
/// part is appended to the path of `function_uri`. A request without `X-Api-Key` gets `apikey`, if it is set. Other
/// requests without `Authorization` are signed with `iam` (Signature Version 4). The signature covers the whole
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

impl Credentials for Authorization {
    fn add(&self, call: &mut Call, env: &Env<'_>) {
        if let (Some(key), None) = (&self.apikey, call.headers.find(API_KEY.as_bytes())) {
            call.headers.append(API_KEY, key.reveal().as_bytes());
        } else if let (Some(iam), false) = (&self.iam, call.headers.has(HeaderId::Authorization)) {
            iam.sign(call, &utc::compact(env.unix_time().as_secs()));
        }
    }
}

impl Iam {
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
            access_key_id: self.accesskey.reveal(),
            secret_access_key: &self.secretkey,
            region: &self.aws_region,
            service: &self.service,
        };
        let value = account.authorization(&request, time);
        call.headers.append("authorization", value.as_bytes());
    }
}

struct AwsLambda(Arc<Called<Authorization>>);

impl Plugin for AwsLambda {
    fn access(&self, _: &mut Context, _: &Env<'_>) -> Step {
        self.0.respond()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sigma_http::{Headers, Method};

    use super::*;

    /// The vector `get-vanilla-query-order-key-case` of AWS.
    #[test]
    fn a_call_is_signed_as_it_is_sent() {
        let iam: Iam = serde_json::from_value(json!({
            "accesskey": "AKIDEXAMPLE", "secretkey": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
            "aws_region": "us-east-1", "service": "service",
        }))
        .unwrap();
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
        iam.sign(&mut call, "20150830T123600Z");
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
