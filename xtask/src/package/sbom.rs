//! The list of the crates that are linked into the program, as CycloneDX 1.6 has it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use serde_json::{Value, json};

/// Makes the document of what `cargo metadata` and `Cargo.lock` say.
///
/// # Errors
/// Returns an error if the metadata has not the form that cargo gives it.
pub(super) fn document(metadata: &Value, lock: &str, version: &str, epoch: u64) -> anyhow::Result<Vec<u8>> {
    let packages: BTreeMap<&str, &Value> =
        list(metadata, "packages")?.filter_map(|one| Some((id(one)?, one))).collect();
    let nodes: BTreeMap<&str, &Value> =
        list(&metadata["resolve"], "nodes")?.filter_map(|one| Some((id(one)?, one))).collect();
    let program =
        packages.iter().find(|(_, package)| package["name"] == "sigma").context("there is no crate sigma")?.0;
    let linked = linked(program, &nodes);
    let hashes = hashes(lock);
    let reference = |id: &str| packages.get(id).map(|package| purl(package));
    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    for id in &linked {
        let package = packages.get(id).with_context(|| format!("{id} has no package"))?;
        if id != program {
            components.push(component(package, &hashes));
        }
        let mut needs: Vec<String> = needs(id, &nodes).into_iter().filter_map(reference).collect();
        needs.sort();
        dependencies.push(json!({ "ref": purl(package), "dependsOn": needs }));
    }
    components.sort_by_key(|one| one["bom-ref"].to_string());
    dependencies.sort_by_key(|one| one["ref"].to_string());
    let mut own = component(packages[program], &hashes);
    (own["type"], own["version"]) = ("application".into(), version.into());
    let document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": timestamp(epoch)?,
            "lifecycles": [{ "phase": "build" }],
            "component": own,
        },
        "components": components,
        "dependencies": dependencies,
    });
    Ok(format!("{document:#}\n").into_bytes())
}

fn list<'m>(value: &'m Value, name: &str) -> anyhow::Result<impl Iterator<Item = &'m Value>> {
    Ok(value[name].as_array().with_context(|| format!("`cargo metadata` says nothing of `{name}`"))?.iter())
}

fn id(value: &Value) -> Option<&str> {
    value["id"].as_str()
}

/// The packages that are linked into the program, itself included, as `cargo metadata` describes them.
///
/// # Errors
/// Returns an error if the metadata has not the form that cargo gives it.
pub(super) fn linked_packages(metadata: &Value) -> anyhow::Result<Vec<&Value>> {
    let packages: Vec<&Value> = list(metadata, "packages")?.collect();
    let nodes = list(&metadata["resolve"], "nodes")?.filter_map(|one| Some((id(one)?, one))).collect();
    let program = packages.iter().find(|package| package["name"] == "sigma").and_then(|package| id(package));
    let linked = linked(program.context("there is no crate sigma")?, &nodes);
    Ok(packages.into_iter().filter(|package| id(package).is_some_and(|id| linked.contains(id))).collect())
}

/// Returns the linked dependencies of a crate: neither build nor test dependencies.
fn needs<'m>(id: &str, nodes: &BTreeMap<&'m str, &'m Value>) -> Vec<&'m str> {
    let deps = nodes.get(id).and_then(|node| node["deps"].as_array());
    let is_linked = |dep: &&Value| {
        let kinds = dep["dep_kinds"].as_array();
        kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
    };
    deps.into_iter().flatten().filter(is_linked).filter_map(|dep| dep["pkg"].as_str()).collect()
}

fn linked<'m>(program: &'m str, nodes: &BTreeMap<&'m str, &'m Value>) -> BTreeSet<&'m str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![program]);
    while let Some(id) = open.pop() {
        if found.insert(id) {
            open.extend(needs(id, nodes));
        }
    }
    found
}

/// The checksums of `Cargo.lock`, by name and version.
fn hashes(lock: &str) -> BTreeMap<(&str, &str), &str> {
    let field = |block: &'_ str, name: &str| -> Option<(usize, usize)> {
        let start = block.find(&format!("\n{name} = \""))? + name.len() + 5;
        Some((start, start + block[start..].find('"')?))
    };
    let of = |block| {
        let part = |name| field(block, name).map(|(start, end)| &block[start..end]);
        Some(((part("name")?, part("version")?), part("checksum")?))
    };
    lock.split("[[package]]").filter_map(of).collect()
}

/// The name of a package everywhere (package-url). The project's own are on no registry.
fn purl(package: &Value) -> String {
    let [name, version] = ["name", "version"].map(|field| package[field].as_str().unwrap_or_default());
    match package["source"].is_null() {
        true => format!("pkg:cargo/{name}@{version}?download_url=file://."),
        false => format!("pkg:cargo/{name}@{version}"),
    }
}

fn component(package: &Value, hashes: &BTreeMap<(&str, &str), &str>) -> Value {
    let text = |field: &str| package[field].as_str();
    let (name, version) = (text("name").unwrap_or_default(), text("version").unwrap_or_default());
    let mut out = json!({
        "type": "library", "bom-ref": purl(package), "name": name, "version": version, "purl": purl(package),
    });
    if let Some(about) = text("description") {
        out["description"] = about.split_whitespace().collect::<Vec<_>>().join(" ").into();
    }
    if let Some(licence) = text("license") {
        // The old way to write a choice.
        out["licenses"] = json!([{ "expression": licence.replace(" / ", "/").replace('/', " OR ") }]);
    }
    if let Some(hash) = hashes.get(&(name, version)) {
        out["hashes"] = json!([{ "alg": "SHA-256", "content": hash }]);
    }
    if let Some(url) = text("repository").filter(|url| url.starts_with("http")) {
        out["externalReferences"] = json!([{ "type": "vcs", "url": url }]);
    }
    out
}

fn timestamp(epoch: u64) -> anyhow::Result<String> {
    let date = format!("@{epoch}");
    super::text(std::process::Command::new("date").args(["--utc", "--date", &date, "+%Y-%m-%dT%H:%M:%SZ"]))
}
