//! What must hold of everything that is read here, whatever it is: a function for each target in `fuzz/`, which
//! panics where it does not.

pub use crate::auth::fuzzing::{authorization, saml, structured_fields, tokens};
pub use crate::ldap::fuzzing::ldap;
pub use crate::t1k::fuzzing::t1k;
pub use crate::trace::fuzzing::trace_headers;

#[cfg(test)]
mod tests {
    use sigma_testkit::for_inputs_of as check;

    #[test]
    fn it_holds_for_the_seeds() {
        check("authorization", super::authorization);
        check("ldap", super::ldap);
        check("saml", super::saml);
        check("structured_fields", super::structured_fields);
        check("t1k", super::t1k);
        check("tokens", super::tokens);
        check("trace_headers", super::trace_headers);
    }
}
