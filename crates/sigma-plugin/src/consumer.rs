//! Who a request is from: consumers, their credentials, and the index that finds them.

use std::any::Any;
use std::sync::Arc;

use sigma_config::resources;

use crate::descriptor::inline_upstream_key;
use crate::index::Index;
use crate::{Context, Entry};

/// A consumer, compiled.
#[derive(Debug, Default)]
pub struct Consumer {
    /// Its name.
    pub name: Box<str>,
    /// The consumer group that it names.
    pub group_id: Option<Box<str>>,
    /// The group does not exist; its requests are answered 503.
    pub group_missing: bool,
    /// It, or its group, cannot be served as it was written; its requests are answered 503.
    pub closed: bool,
    /// Its label `custom_id`.
    pub custom_id: Option<Box<str>>,
    /// Its labels.
    pub labels: Vec<(Box<str>, Box<str>)>,
    /// The resource as it was written; shared with the configuration.
    pub resource: Option<Arc<resources::Consumer>>,
    /// Plugins of its group and its own, those that only identify it left out.
    pub entries: Box<[Arc<Entry>]>,
}

/// One way to be recognised as a consumer: by its own data, or by a credential.
#[derive(Clone)]
pub struct Identity {
    /// Who it is.
    pub consumer: Arc<Consumer>,
    /// The credential, if it is one.
    pub credential: Option<Box<str>>,
    /// What [`crate::Auth::parse`] made of its configuration.
    pub data: Arc<dyn Any + Send + Sync>,
}

/// Stands in place of data for everybody who is not known.
struct Anonymous;

impl Identity {
    /// That of everybody who is not known.
    pub fn anonymous(consumer: Arc<Consumer>) -> Identity {
        Identity { consumer, credential: None, data: Arc::new(Anonymous) }
    }

    /// Whether it is everybody's who is not known: nobody has proved anything.
    pub fn is_anonymous(&self) -> bool {
        self.data.is::<Anonymous>()
    }

    /// The data that the plugin parsed. None if it is another plugin's.
    pub fn data<T: Any>(&self) -> Option<&T> {
        self.data.downcast_ref()
    }

    /// The key of an upstream that stands inside the configuration of `plugin` it is recognised by; see
    /// [`crate::Auth::upstreams`].
    pub fn upstream_key(&self, plugin: &str, upstream: &str) -> String {
        let consumer = &self.consumer.name;
        let resource = match &self.credential {
            Some(id) => format!("/apisix/consumers/{consumer}/credentials/{id}"),
            None => format!("/apisix/consumers/{consumer}"),
        };
        inline_upstream_key(&resource, plugin, upstream)
    }
}

impl std::fmt::Debug for Identity {
    /// Without the data, which may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Identity");
        out.field("consumer", &self.consumer.name)
            .field("credential", &self.credential)
            .finish_non_exhaustive()
    }
}

/// Names of the fields that tell a node who the request is from.
pub(crate) const CONSUMER_FIELDS: [&str; 3] =
    ["X-Consumer-Username", "X-Credential-Identifier", "X-Consumer-Custom-ID"];

impl Context {
    /// Binds the request to a consumer and tells the node. What the client claimed is removed.
    pub fn attach(&mut self, identity: &Arc<Identity>) {
        let consumer = Arc::clone(&identity.consumer);
        let values = [Some(&*consumer.name), identity.credential.as_deref(), consumer.custom_id.as_deref()];
        self.tell_consumer(values);
        self.identity = Some(Arc::clone(identity));
    }

    /// Binds the request to the consumer that stands for everybody who is not known.
    pub fn attach_anonymous(&mut self, consumer: &Arc<Consumer>) {
        self.tell_consumer([Some(&*consumer.name), None, None]);
        self.identity = Some(Arc::new(Identity::anonymous(Arc::clone(consumer))));
    }

    fn tell_consumer(&mut self, values: [Option<&str>; 3]) {
        for (name, value) in CONSUMER_FIELDS.into_iter().zip(values) {
            self.request.headers.remove_name(name.as_bytes());
            if let Some(value) = value {
                self.request.headers.append(name, value.as_bytes());
            }
        }
    }
}

/// All consumers of a configuration. A copy costs little and shares what did not change.
#[derive(Debug, Clone, Default)]
pub struct Consumers {
    by_name: Index<Arc<Consumer>>,
    /// By plugin, of which there are few, then by the attribute that identifies.
    identities: Vec<(Box<str>, Index<Arc<Identity>>)>,
}

impl Consumers {
    /// The consumer with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Consumer>> {
        self.by_name.get(name)
    }

    /// Who has `key` as the identifying attribute of `plugin`.
    pub fn find(&self, plugin: &str, key: &str) -> Option<&Arc<Identity>> {
        self.of(plugin)?.get(key)
    }

    /// Whether anybody can be recognised by `plugin`.
    pub fn has_any(&self, plugin: &str) -> bool {
        self.of(plugin).is_some_and(|index| !index.is_empty())
    }

    /// All who can be recognised by `plugin`, in no order.
    pub fn all(&self, plugin: &str) -> impl Iterator<Item = &Arc<Identity>> {
        self.of(plugin).into_iter().flat_map(|index| index.values())
    }

    /// Puts a consumer in.
    pub fn put(&mut self, consumer: Arc<Consumer>) {
        let name = consumer.name.clone();
        self.by_name.insert(&name, consumer);
    }

    /// Takes a consumer out; its identities are to be taken out one by one.
    pub fn remove(&mut self, name: &str) {
        self.by_name.remove(name);
    }

    /// Puts an identity in. One with the same key is replaced: the last one loaded counts.
    pub fn put_identity(&mut self, plugin: &str, key: &str, identity: Arc<Identity>) {
        let at = self.identities.iter().position(|(known, _)| **known == *plugin).unwrap_or_else(|| {
            self.identities.push((plugin.into(), Index::default()));
            self.identities.len() - 1
        });
        self.identities[at].1.insert(key, identity);
    }

    /// Takes an identity out, if it still is that of `consumer`.
    pub fn remove_identity(&mut self, plugin: &str, key: &str, consumer: &str) {
        if let Some((_, index)) = self.identities.iter_mut().find(|(known, _)| **known == *plugin)
            && index.get(key).is_some_and(|identity| *identity.consumer.name == *consumer)
        {
            index.remove(key);
        }
    }

    fn of(&self, plugin: &str) -> Option<&Index<Arc<Identity>>> {
        self.identities.iter().find(|(known, _)| **known == *plugin).map(|(_, index)| index)
    }
}
