//! Invariants of all input of this crate: a function for each target in `fuzz/`, which panics where one is
//! broken.

use sigma_plugin::body_fields::BodyFields;
use sigma_schema::expr::VarName;

pub use sigma_plugin_kit::kafka::fuzzing::kafka_fetch;
pub use sigma_plugin_kit::ldap::fuzzing::ldap;
pub use sigma_plugins_auth::fuzzing::{authorization, saml, saml_signed, structured_fields, tokens};
pub use sigma_plugins_observe::fuzzing::trace_headers;
pub use sigma_plugins_security::fuzzing::oas_validator;
pub use sigma_plugins_security::fuzzing::t1k;
pub use sigma_plugins_traffic::fuzzing::graphql;
pub use sigma_plugins_transform::fuzzing::{body_formats, grpc_transcode, templates};
pub use sigma_runner::fuzzing::runner_messages;

/// A type and a body, with a zero byte between them. No body panics, one of another type has no
/// fields, and the same body has the same.
pub fn body_fields(input: &[u8]) {
    let mut parts = input.splitn(2, |b| *b == 0);
    let (content_type, body) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let names =
        ["post_arg_a", "post_arg.a", "post_arg.a.b", "post_arg.a[*].b", "post_arg...b"].map(VarName::parse);
    let Some(fields) = BodyFields::of(content_type, body) else { return };
    let found: Vec<_> = names.iter().map(|name| fields.get(name)).collect();
    assert!(BodyFields::are_in(content_type) || found.iter().all(Option::is_none));
    let again = BodyFields::of(content_type, body);
    let again = again.as_ref().map(|fields| names.iter().map(|name| fields.get(name)).collect::<Vec<_>>());
    assert_eq!(again, Some(found));
}

#[cfg(test)]
mod tests {
    use sigma_testkit::for_inputs_of as check;

    #[test]
    fn it_holds_for_the_seeds() {
        check("authorization", super::authorization);
        check("body_fields", super::body_fields);
        check("body_formats", super::body_formats);
        check("graphql", super::graphql);
        check("grpc_transcode", super::grpc_transcode);
        check("kafka_fetch", super::kafka_fetch);
        check("ldap", super::ldap);
        check("oas_validator", super::oas_validator);
        check("runner_messages", super::runner_messages);
        check("saml", super::saml);
        check("saml_signed", super::saml_signed);
        check("structured_fields", super::structured_fields);
        check("t1k", super::t1k);
        check("templates", super::templates);
        check("tokens", super::tokens);
        check("trace_headers", super::trace_headers);
    }
}
