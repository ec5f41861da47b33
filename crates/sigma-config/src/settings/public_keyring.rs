//! The public default keyring, for all code that must distinguish it from a secret one.

/// APISIX's default keys. They are public, so they protect nothing.
pub const DEFAULT_KEYRING: [&str; 2] = ["qeddd145sfvddff3", "edd1c9f0985e76a2"];
