//! The roster of the built-in plugins. Their code is in the groups in `plugins/` and `extensions/`, a crate and a
//! feature of the program for each, so that a build can leave out a group. `docs/writing-a-plugin.md` adds a plugin.

use std::sync::{Arc, LazyLock};

use sigma_plugin::{Descriptor, Kind};

#[cfg(test)]
mod explained;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod left_out;
#[cfg(test)]
mod promised;
#[cfg(test)]
#[path = "../../../plugins/testing.rs"]
mod testing;
#[cfg(test)]
mod tests;

pub use left_out::left_out;

/// The built-in plugins of this build, in the order of their names.
#[must_use]
pub fn kinds() -> Vec<Arc<dyn Kind>> {
    let grouped =
        |descriptor: &Descriptor| Descriptor { group: left_out::group_of(descriptor.name), ..*descriptor };
    ROSTER.iter().map(|descriptor| Arc::new(grouped(descriptor)) as Arc<dyn Kind>).collect()
}

/// The plugins that a configuration adds in its section `wasm`.
///
/// # Errors
/// Returns an error message if the section is invalid.
pub fn declared(section: &serde_json::Value) -> Result<Vec<Arc<dyn Kind>>, String> {
    #[cfg(feature = "wasm")]
    let kinds = sigma_wasm::kinds(section)?;
    #[cfg(not(feature = "wasm"))]
    let kinds = {
        let names = section.pointer("/plugins").and_then(serde_json::Value::as_array).into_iter().flatten();
        let names = names.filter_map(|plugin| plugin.get("name")?.as_str());
        let absent = |name: &str| left_out::LeftOut { name: name.to_owned().into(), group: "wasm" };
        names.map(|name| Arc::new(absent(name)) as Arc<dyn Kind>).collect()
    };
    Ok(kinds)
}

/// The plugins of all groups, in the order of their names.
static ROSTER: LazyLock<Vec<&Descriptor>> = LazyLock::new(|| {
    let groups: &[&[&Descriptor]] = &[
        #[cfg(feature = "auth")]
        sigma_plugins_auth::ROSTER,
        #[cfg(feature = "ext-proc")]
        sigma_ext_proc::ROSTER,
        #[cfg(feature = "log")]
        sigma_plugins_log::ROSTER,
        #[cfg(feature = "lua")]
        sigma_lua::ROSTER,
        #[cfg(feature = "observe")]
        sigma_plugins_observe::ROSTER,
        #[cfg(feature = "runner")]
        sigma_runner::ROSTER,
        #[cfg(feature = "security")]
        sigma_plugins_security::ROSTER,
        #[cfg(feature = "traffic")]
        sigma_plugins_traffic::ROSTER,
        #[cfg(feature = "transform")]
        sigma_plugins_transform::ROSTER,
        #[cfg(feature = "wasm")]
        sigma_wasm::ROSTER,
    ];
    let mut all = groups.concat();
    all.sort_by_key(|descriptor| descriptor.name);
    all
});
