//! The configuration of a module, and the parts of the gateway that it uses.

use std::collections::BTreeMap;
use std::sync::Arc;

use sigma_plugin::Node;
use sigma_plugin_kit::tallies::register;

use crate::metrics::{Metrics, pages};
use crate::settings::Settings;
use crate::shared_data::{Queues, SharedData, Table};

/// The data of a module that functions of the host use.
pub(crate) struct VmData {
    /// Its name in logs and metrics.
    pub(crate) name: Box<str>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) parts: VmParts,
    /// The name of its shared data: the `vm_id`, or the digest of a module without one. Modules of different authors must
    /// not meet by accident.
    pub(crate) scope: Box<str>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) table: Arc<Table>,
    pub(crate) queues: Arc<Queues>,
}

/// The configuration of a module.
#[derive(Debug, Clone, Default)]
pub(crate) struct VmParts {
    pub(crate) vm_id: Box<str>,
    pub(crate) root_id: Box<str>,
    pub(crate) configuration: Box<[u8]>,
    pub(crate) vm_configuration: Box<[u8]>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) services: Vec<Service>,
}

/// A service that a module may call.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    /// Its name in the module.
    pub(crate) name: Box<str>,
    /// The key of its upstream.
    pub(crate) upstream: Box<str>,
    pub(crate) host: Box<str>,
    pub(crate) is_grpc: bool,
}

impl std::ops::Deref for VmData {
    type Target = VmParts;

    fn deref(&self) -> &VmParts {
        &self.parts
    }
}

impl VmData {
    /// Returns the data of a module with this digest.
    pub(crate) fn new(
        name: &str,
        settings: &Arc<Settings>,
        parts: VmParts,
        digest: &[u8],
        node: &Node,
    ) -> VmData {
        let metrics = node.part(Metrics::default);
        register(node, pages(&metrics));
        let scope: Box<str> = match &*parts.vm_id {
            // No `vm_id` contains a NUL.
            "" => format!("\0{digest:x?}").into(),
            vm_id => vm_id.into(),
        };
        VmData {
            name: name.into(),
            settings: Arc::clone(settings),
            metrics,
            table: node.part(SharedData::default).table(&scope),
            scope,
            queues: node.part(Queues::default),
            parts,
        }
    }

    /// Returns the service that a module calls by this name.
    pub(crate) fn service(&self, name: &[u8], is_grpc: bool) -> Option<&Service> {
        self.services.iter().find(|known| known.name.as_bytes() == name && known.is_grpc == is_grpc)
    }
}
