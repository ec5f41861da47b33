//! The keyring that everybody knows: below all that has to tell it from one that protects something.

/// The keys of APISIX when none are configured: public knowledge, so no protection by themselves.
pub const DEFAULT_KEYRING: [&str; 2] = ["qeddd145sfvddff3", "edd1c9f0985e76a2"];
