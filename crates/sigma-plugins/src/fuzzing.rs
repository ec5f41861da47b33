//! What must hold of everything that is read here, whatever it is: a function for each target in `fuzz/`, which
//! panics where it does not.

pub use crate::auth::fuzzing::{authorization, structured_fields, tokens};
pub use crate::ldap::fuzzing::ldap;
pub use crate::t1k::fuzzing::t1k;

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Holds for the seeds of a target, for their beginnings, and where a byte of them is another.
    fn check(target: &str, holds: fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
        let mut seeds = 0;
        for entry in folder.read_dir().expect("every target has seeds") {
            let seed = std::fs::read(entry.expect("a file").path()).expect("a file can be read");
            holds(&seed);
            for at in 0..seed.len() {
                holds(&seed[..at]);
                let mut other = seed.clone();
                other[at] ^= 1 << (at % 8);
                holds(&other);
            }
            seeds += 1;
        }
        assert!(seeds > 0, "{target} has no seeds");
    }

    #[test]
    fn it_holds_for_the_seeds() {
        check("authorization", super::authorization);
        check("ldap", super::ldap);
        check("structured_fields", super::structured_fields);
        check("t1k", super::t1k);
        check("tokens", super::tokens);
    }
}
