//! All plugins, in the order of their names.

use sigma_plugin::Descriptor;

/// The built-in plugins.
pub static ROSTER: &[&Descriptor] = &[
    &crate::traffic::api_breaker::API_BREAKER,
    &crate::auth::BASIC_AUTH,
    &crate::auth::CONSUMER_RESTRICTION,
    &crate::security::CORS,
    &crate::traffic::fault_injection::FAULT_INJECTION,
    &crate::log::FILE_LOGGER,
    &crate::rewrite::forwarded_fields::FORWARDED_FIELDS,
    &crate::rewrite::gzip::GZIP,
    &crate::auth::HMAC_AUTH,
    &crate::log::HTTP_LOGGER,
    &crate::security::IP_RESTRICTION,
    &crate::auth::JWT_AUTH,
    &crate::auth::KEY_AUTH,
    &crate::limit::conn::LIMIT_CONN,
    &crate::limit::count::LIMIT_COUNT,
    &crate::limit::req::LIMIT_REQ,
    &crate::traffic::mocking::MOCKING,
    &crate::metrics::PROMETHEUS,
    &crate::rewrite::proxy_rewrite::PROXY_REWRITE,
    &crate::rewrite::public_api::PUBLIC_API,
    &crate::rewrite::real_ip::REAL_IP,
    &crate::rewrite::redirect::REDIRECT,
    &crate::rewrite::request_id::REQUEST_ID,
    &crate::rewrite::response_rewrite::RESPONSE_REWRITE,
    &crate::rewrite::security_headers::SECURITY_HEADERS,
    &crate::rewrite::static_files::STATIC_FILES,
    &crate::traffic::traffic_split::TRAFFIC_SPLIT,
    &crate::security::UA_RESTRICTION,
    &crate::security::URI_BLOCKER,
];

#[cfg(test)]
mod tests {
    use super::*;
    use sigma_plugin::Roster;

    #[test]
    fn names_are_sorted_and_schemas_compile() {
        let names: Vec<&str> = ROSTER.iter().map(|descriptor| descriptor.name).collect();
        assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "{names:?}");
        Roster::new(ROSTER, None).make_schemas();
    }

    #[test]
    fn every_plugin_says_what_it_does() {
        for descriptor in ROSTER {
            assert!(!descriptor.doc.trim().is_empty(), "{}", descriptor.name);
            let schema = (descriptor.schema)();
            let fields = schema.get("properties").and_then(serde_json::Value::as_object);
            for (field, about) in fields.into_iter().flatten() {
                assert!(about.get("description").is_some(), "{}.{field} has no description", descriptor.name);
            }
        }
    }
}
