//! sigma
fn main() {}
