//! Deltas and whole versions as bytes, deltas also as JSON, for logs and for other machines. Feature `serde`.
//!
//! The form is *versioned*: every record names the version it was written in, and a reader refuses one
//! that it does not know ([`WireError::Version`]). What version 1 looks like is held by files under
//! `tests/golden`: a change of it is a change of [`VERSION`].
//!
//! | form | record |
//! |---|---|
//! | binary | version, then the delta in the [postcard](https://postcard.jamesmunns.com/wire-format) format |
//! | JSON | `{"version": 1, "delta": ...}` |
//! | log | length, checksum (XXH3, 64 bits), binary record; lengths and checksums little-endian |
//! | snapshot | version, checksum, the tables; see [`save`] |
//!
//! Templates are not written: a model carries the name and the [fingerprint](OpGraph::fingerprint) of
//! its template, and whoever reads it brings the template ([`Templates`]), as it brings the kernels.
//!
//! Input may be hostile. A reader allocates no more than a small multiple of what it was given, checks
//! what it reads before it acts, and leaves it to [`Gmg::apply`](crate::Gmg::apply) to refuse what is
//! well formed and wrong.

mod log;
pub(crate) mod snapshot;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use log::{LogReader, append};
pub use snapshot::{restore, save};

use crate::delta::{Delta, Intent};
use crate::graph::OpGraph;
use crate::id::{ContainerId, TenantId};
use crate::plan::Event;
use crate::tenant::{Container, Model};
use crate::units::Bytes;

/// The version that is written, and the only one that is read.
pub const VERSION: u16 = 1;

/// Who has the templates of models that are read.
pub trait Templates {
    /// The template called `name` whose [fingerprint](OpGraph::fingerprint) is `fingerprint`, if this
    /// has it. The caller checks both.
    fn template(&self, name: &str, fingerprint: u64) -> Option<Arc<OpGraph>>;
}

impl Templates for [Arc<OpGraph>] {
    fn template(&self, name: &str, fingerprint: u64) -> Option<Arc<OpGraph>> {
        self.iter().find(|graph| graph.name() == name && graph.fingerprint() == fingerprint).cloned()
    }
}

/// Why something is not a delta.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// It was written in another version.
    #[error("the record is of version {found}; this reads version {VERSION}")]
    Version {
        /// The version that it names.
        found: u64,
    },
    /// The bytes are not a record.
    #[error("the record is malformed")]
    Binary(#[source] postcard::Error),
    /// The text is not a record.
    #[error("the record is malformed")]
    Json(#[from] serde_json::Error),
    /// There is more after the end.
    #[error("{0} bytes follow the end of the record")]
    Trailing(usize),
    /// Nobody has the template of a model.
    #[error("model {model:?} runs template {name:?} with fingerprint {fingerprint:016x}, which is not here")]
    Template {
        /// The model.
        model: String,
        /// The template's name.
        name: String,
        /// Its fingerprint.
        fingerprint: u64,
    },
    /// The bytes end within a record.
    #[error("the bytes end at {len}, within the record at byte {at}")]
    Truncated {
        /// Where the record begins.
        at: usize,
        /// How many bytes there are.
        len: usize,
    },
    /// Something was changed after it was written.
    #[error("what begins at byte {at} does not match its checksum")]
    Checksum {
        /// Where a record of a log, or the content of a snapshot, begins.
        at: usize,
    },
    /// The bytes are something else than a snapshot.
    #[error("the bytes do not begin as a snapshot does, with \"GMGS\"")]
    NotASnapshot,
    /// A record of a snapshot is malformed.
    #[error("the {what} at byte {at} of the snapshot is malformed")]
    Record {
        /// Where it begins.
        at: usize,
        /// What it was to be.
        what: &'static str,
        /// What is wrong.
        source: postcard::Error,
    },
    /// A record of a snapshot says what the rest of it cannot be.
    #[error("the snapshot contradicts itself at byte {at}: {what}")]
    Contradiction {
        /// Where the record begins.
        at: usize,
        /// What it says.
        what: &'static str,
    },
    /// The snapshot is of another cluster.
    #[error("the snapshot is of a cluster with fingerprint {expected:016x}, this one has {found:016x}")]
    Resources {
        /// The fingerprint of the cluster that was given.
        found: u64,
        /// That of the cluster that it was on.
        expected: u64,
    },
}

impl From<postcard::Error> for WireError {
    fn from(error: postcard::Error) -> Self {
        Self::Binary(error)
    }
}

/// A model without its template.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ModelForm {
    name: String,
    template: String,
    fingerprint: u64,
    weights: Bytes,
    kv_bytes_per_token: Bytes,
}

impl ModelForm {
    pub(crate) fn of(model: &Model) -> Self {
        Self {
            name: model.name.to_string(),
            template: model.template.name().to_owned(),
            fingerprint: model.template.fingerprint(),
            weights: model.weights,
            kv_bytes_per_token: model.kv_bytes_per_token,
        }
    }

    pub(crate) fn with<T: Templates + ?Sized>(self, templates: &T) -> Result<Arc<Model>, WireError> {
        let Self { name, template, fingerprint, weights, kv_bytes_per_token } = self;
        let found = templates
            .template(&template, fingerprint)
            .filter(|graph| graph.name() == template && graph.fingerprint() == fingerprint);
        match found {
            Some(graph) => {
                let mut model = Model::new(&name, graph).kv_bytes_per_token(kv_bytes_per_token);
                model.weights = weights;
                Ok(Arc::new(model))
            }
            None => Err(WireError::Template { model: name, name: template, fingerprint }),
        }
    }
}

/// A delta whose models have no templates. The order of the variants is part of the form.
#[derive(Serialize, Deserialize)]
enum Form {
    Intent(Intent),
    Observed(Event),
    AddModel { tenant: TenantId, model: ModelForm, container: Container },
    AddPipeline { tenant: TenantId, stages: Vec<ModelForm>, container: Container },
    ShareContainer { tenant: TenantId, model: ModelForm, container: ContainerId },
}

impl Form {
    fn of(delta: &Delta) -> Self {
        match delta {
            Delta::Intent(Intent::AddModel { tenant, model, container }) => {
                Self::AddModel { tenant: *tenant, model: ModelForm::of(model), container: Container::clone(container) }
            }
            Delta::Intent(Intent::AddPipeline { tenant, stages, container }) => Self::AddPipeline {
                tenant: *tenant,
                stages: stages.iter().map(|stage| ModelForm::of(stage)).collect(),
                container: Container::clone(container),
            },
            Delta::Intent(Intent::ShareContainer { tenant, model, container }) => {
                Self::ShareContainer { tenant: *tenant, model: ModelForm::of(model), container: *container }
            }
            Delta::Intent(intent) => Self::Intent(intent.clone()),
            Delta::Observed(event) => Self::Observed(event.clone()),
        }
    }

    fn with<T: Templates + ?Sized>(self, templates: &T) -> Result<Delta, WireError> {
        Ok(match self {
            Self::Intent(intent) => intent.into(),
            Self::Observed(event) => event.into(),
            Self::AddModel { tenant, model, container } => {
                Intent::AddModel { tenant, model: model.with(templates)?, container: Arc::new(container) }.into()
            }
            Self::AddPipeline { tenant, stages, container } => {
                let stages: Result<Vec<_>, _> = stages.into_iter().map(|stage| stage.with(templates)).collect();
                Intent::AddPipeline { tenant, stages: stages?.into(), container: Arc::new(container) }.into()
            }
            Self::ShareContainer { tenant, model, container } => {
                Intent::ShareContainer { tenant, model: model.with(templates)?, container }.into()
            }
        })
    }
}

/// A delta as a binary record. O(size).
///
/// # Errors
/// None that a delta of this version can cause; the signature leaves room for later ones.
pub fn to_bytes(delta: &Delta) -> Result<Vec<u8>, WireError> {
    Ok(postcard::to_allocvec(&(VERSION, Form::of(delta)))?)
}

/// The delta that a binary record holds. O(size).
///
/// # Errors
/// When `bytes` is not one record of [`VERSION`], or a template is missing.
pub fn from_bytes<T: Templates + ?Sized>(bytes: &[u8], templates: &T) -> Result<Delta, WireError> {
    let (found, rest) = postcard::take_from_bytes::<u16>(bytes)?;
    if found != VERSION {
        return Err(WireError::Version { found: found.into() });
    }
    let (form, rest) = postcard::take_from_bytes::<Form>(rest)?;
    if !rest.is_empty() {
        return Err(WireError::Trailing(rest.len()));
    }
    form.with(templates)
}

#[derive(Serialize, Deserialize)]
struct JsonRecord<D> {
    version: u64,
    delta: D,
}

/// A delta as JSON, on one line.
///
/// # Errors
/// As [`to_bytes`].
pub fn to_json(delta: &Delta) -> Result<String, WireError> {
    Ok(serde_json::to_string(&JsonRecord { version: VERSION.into(), delta: Form::of(delta) })?)
}

/// The delta that a JSON record holds.
///
/// # Errors
/// As [`from_bytes`].
pub fn from_json<T: Templates + ?Sized>(text: &str, templates: &T) -> Result<Delta, WireError> {
    let JsonRecord { version, .. } = serde_json::from_str::<JsonRecord<serde::de::IgnoredAny>>(text)?;
    if version != u64::from(VERSION) {
        return Err(WireError::Version { found: version });
    }
    serde_json::from_str::<JsonRecord<Form>>(text)?.delta.with(templates)
}

/// Short lists, read element by element: a length that lies about itself reserves nothing.
pub(crate) mod list {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use smallvec::SmallVec;

    pub(crate) fn serialize<T: Serialize, const N: usize, S: Serializer>(
        list: &SmallVec<[T; N]>,
        serializer: S,
    ) -> Result<S::Ok, S::Error>
    where
        [T; N]: smallvec::Array<Item = T>,
    {
        serializer.collect_seq(list)
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, const N: usize, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<SmallVec<[T; N]>, D::Error>
    where
        [T; N]: smallvec::Array<Item = T>,
    {
        Vec::deserialize(deserializer).map(SmallVec::from_vec)
    }
}
