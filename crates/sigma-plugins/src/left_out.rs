//! Plugins of groups that a build has left out: their names are known, so that a configuration that names one is refused
//! with that reason.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;
use sigma_plugin::{Build, Kind, PhaseSet, Plugin};
use sigma_schema::plugins::PluginScope;

/// A group of plugins, built or not.
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) is_built: bool,
    pub(crate) plugins: &'static [&'static str],
}

/// All groups of this version.
pub(crate) const GROUPS: &[Group] = &[
    Group {
        name: "auth",
        is_built: cfg!(feature = "auth"),
        plugins: &[
            "acl",
            "attach-consumer-label",
            "authz-casbin",
            "authz-casdoor",
            "authz-keycloak",
            "basic-auth",
            "cas-auth",
            "consumer-restriction",
            "digest-auth",
            "dingtalk-auth",
            "feishu-auth",
            "hmac-auth",
            "jwe-decrypt",
            "jwt-auth",
            "key-auth",
            "ldap-auth",
            "ldap-auth-advanced",
            "login-guard",
            "multi-auth",
            "oauth2-login",
            "openid-connect",
            "saml-auth",
            "upstream-auth",
            "wolf-rbac",
        ],
    },
    Group { name: "ext-proc", is_built: cfg!(feature = "ext-proc"), plugins: &["ext-proc"] },
    Group {
        name: "log",
        is_built: cfg!(feature = "log"),
        plugins: &[
            "clickhouse-logger",
            "data-mask",
            "elasticsearch-logger",
            "error-log-logger",
            "file-logger",
            "google-cloud-logging",
            "http-logger",
            "influxdb-logger",
            "kafka-logger",
            "lago",
            "log-rotate",
            "loggly",
            "loki-logger",
            "otlp-logger",
            "rocketmq-logger",
            "skywalking-logger",
            "sls-logger",
            "splunk-hec-logging",
            "syslog",
            "tcp-logger",
            "tencent-cloud-cls",
            "udp-logger",
        ],
    },
    Group {
        name: "lua",
        is_built: cfg!(feature = "lua"),
        plugins: &["exit-transformer", "serverless-post-function", "serverless-pre-function"],
    },
    Group {
        name: "observe",
        is_built: cfg!(feature = "observe"),
        plugins: &[
            "datadog",
            "node-status",
            "opentelemetry",
            "prometheus",
            "server-info",
            "skywalking",
            "statsd",
            "zipkin",
        ],
    },
    Group {
        name: "runner",
        is_built: cfg!(feature = "runner"),
        plugins: &["ext-plugin-post-req", "ext-plugin-post-resp", "ext-plugin-pre-req"],
    },
    Group {
        name: "security",
        is_built: cfg!(feature = "security"),
        plugins: &[
            "chaitin-waf",
            "cors",
            "csrf",
            "ext-authz",
            "forward-auth",
            "ip-restriction",
            "oas-validator",
            "opa",
            "rbac",
            "referer-restriction",
            "request-validation",
            "ua-restriction",
            "uri-blocker",
        ],
    },
    Group {
        name: "traffic",
        is_built: cfg!(feature = "traffic"),
        plugins: &[
            "api-breaker",
            "aws-lambda",
            "azure-functions",
            "batch-requests",
            "client-control",
            "compose",
            "dubbo-proxy",
            "fault-injection",
            "forward-proxy",
            "graphql-limit-count",
            "graphql-proxy-cache",
            "http-dubbo",
            "kafka-proxy",
            "limit-bandwidth",
            "limit-conn",
            "limit-count",
            "limit-req",
            "mocking",
            "mqtt-proxy",
            "openfunction",
            "openwhisk",
            "proxy-buffering",
            "proxy-cache",
            "proxy-control",
            "proxy-mirror",
            "realtime",
            "realtime-publish",
            "traffic-split",
            "workflow",
        ],
    },
    Group {
        name: "transform",
        is_built: cfg!(feature = "transform"),
        plugins: &[
            "body-transformer",
            "brotli",
            "decompress",
            "degraphql",
            "echo",
            "error-page",
            "forward-client-cert",
            "forwarded-fields",
            "grpc-transcode",
            "grpc-web",
            "gzip",
            "proxy-rewrite",
            "public-api",
            "real-ip",
            "redirect",
            "request-id",
            "respond",
            "response-rewrite",
            "response-shaping",
            "security-headers",
            "static-files",
            "traffic-label",
            "zstd",
        ],
    },
    Group { name: "wasm", is_built: cfg!(feature = "wasm"), plugins: &["wasm"] },
];

/// A plugin without code.
pub(crate) struct LeftOut {
    pub(crate) name: Cow<'static, str>,
    pub(crate) group: &'static str,
}

/// The name of the group of a plugin; empty if no group has it.
pub(crate) fn group_of(plugin: &str) -> &'static str {
    let group = GROUPS.iter().find(|group| group.plugins.contains(&plugin));
    group.map_or("", |group| group.name)
}

/// The plugins of the groups that this build does not have.
#[must_use]
pub fn left_out() -> Vec<Arc<dyn Kind>> {
    let groups = GROUPS.iter().filter(|group| !group.is_built);
    let all = groups.flat_map(|group| {
        group.plugins.iter().map(|name| LeftOut { name: Cow::Borrowed(*name), group: group.name })
    });
    all.map(|plugin| Arc::new(plugin) as Arc<dyn Kind>).collect()
}

impl Kind for LeftOut {
    fn name(&self) -> &str {
        &self.name
    }

    fn left_out(&self) -> Option<&str> {
        Some(self.group)
    }

    fn priority(&self) -> i32 {
        0
    }

    fn phases(&self) -> PhaseSet {
        PhaseSet::of(&[])
    }

    fn documentation(&self) -> Cow<'_, str> {
        Cow::Borrowed("This build lacks the plugin.")
    }

    fn schema(&self, _: PluginScope) -> Option<Value> {
        None
    }

    fn build(&self, _: &Build<'_>) -> Result<Arc<dyn Plugin>, String> {
        Err(format!("this build lacks the group `{}`", self.group))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sigma_config::ParseOptions;
    use sigma_plugin::Roster;

    use super::*;

    /// A route whose guard is not part of the build is refused, with the reason; it is never served without the guard.
    #[test]
    fn configurations_with_plugins_that_were_left_out_are_refused() {
        let absent: Arc<dyn Kind> = Arc::new(LeftOut { name: "key-auth".into(), group: "auth" });
        let roster = Roster::new([absent], None);
        let check = |config: Value, expected: &str| {
            let options = ParseOptions { plugins: &roster, ..ParseOptions::default() };
            let problems = sigma_config::parse(&config.to_string(), &options).unwrap_err();
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            assert!(lines.iter().any(|line| line.contains(expected)), "{lines:?}");
        };
        let reason = "plugin [key-auth] belongs to the group `auth`, which this build lacks";
        let route = |plugins: Value| json!({"routes": [{"uri": "/*", "plugins": plugins}]});
        check(route(json!({"key-auth": {}})), reason);
        check(json!({"consumers": [{"username": "jack", "plugins": {"key-auth": {"key": "k"}}}]}), reason);
        check(json!({"plugins": [{"name": "key-auth"}]}), reason);
        check(route(json!({"kei-auth": {}})), "unknown plugin [kei-auth]");
    }
}
