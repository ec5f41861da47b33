//! Nothing.
/// None.
pub static ROSTER: &[&sigma_plugin::Descriptor] = &[];
