//! What a host implements to bring a model.

mod bert;
#[cfg(any(feature = "gguf", feature = "safetensors"))]
mod figures;
#[cfg(feature = "safetensors")]
mod folder;
mod llama;
mod mixture;

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use slicescheduler_executor::ExecutorError;
use slicescheduler_executor::checkpoint::CheckpointError;
use slicescheduler_executor::model::CpuModel;
use slicescheduler_gmg::graph::{GraphError, OpGraph};
use slicescheduler_gmg::units::Bytes;

pub use bert::Bert;
pub use llama::Llama;
pub use mixture::MixtureOfExperts;
pub use slicescheduler_executor::model::ModelKind;

/// A model that a tenant serves: its operators, its sizes, and its kernels and weights on a backend.
///
/// # Contract
/// Figures never change, and `template` gives an equal graph on every call. Building a scheduler
/// asks for one template per tenant, sizes the memory of the devices by it and by the figures, and
/// only then binds the model, giving back the very template that it got; so a model that does not
/// fit is refused before its weights are read.
///
/// A wrapper that gives a model another name, here for logs:
///
/// ```
/// use std::sync::Arc;
///
/// use slicescheduler::executor::model::CpuModel;
/// use slicescheduler::gmg::{graph::OpGraph, units::Bytes};
/// use slicescheduler::{Llama, Model, ModelError};
///
/// #[derive(Debug)]
/// struct Named(&'static str, Llama);
///
/// impl Model for Named {
///     fn name(&self) -> &str {
///         self.0
///     }
///     fn template(&self) -> Result<Arc<OpGraph>, ModelError> {
///         self.1.template()
///     }
///     fn kv_bytes_per_token(&self) -> Bytes {
///         self.1.kv_bytes_per_token()
///     }
///     fn max_context(&self) -> u32 {
///         self.1.max_context()
///     }
///     fn vocabulary(&self) -> u32 {
///         self.1.vocabulary()
///     }
///     fn on_cpu(&self, template: Arc<OpGraph>) -> Result<CpuModel, ModelError> {
///         self.1.on_cpu(template)
///     }
/// }
///
/// let model = Named("support-bot", Llama::tiny(7));
/// let template = model.template()?;
/// assert_eq!(model.on_cpu(template.clone())?.slot_bytes(), model.weight_bytes(&template)?);
/// # Ok::<(), ModelError>(())
/// ```
pub trait Model: Debug + Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// The operators of one iteration. They also say what the model [is](ModelKind): what
    /// [`dense`](slicescheduler_gmg::templates::dense) and [`moe`](slicescheduler_gmg::templates::moe) give are
    /// decoders, what [`encoder`](slicescheduler_gmg::templates::encoder) gives is an encoder.
    ///
    /// # Errors
    /// When the model's figures do not make a graph.
    fn template(&self) -> Result<Arc<OpGraph>, ModelError>;

    /// Bytes of KV cache of one token, over all layers; none of an encoder.
    fn kv_bytes_per_token(&self) -> Bytes;

    /// The longest sequence, prompt and answer, in tokens.
    fn max_context(&self) -> u32;

    /// Tokens are below this.
    fn vocabulary(&self) -> u32;

    /// The token that ends an answer, where a request does not name another.
    fn end_of_sequence(&self) -> Option<u32> {
        None
    }

    /// Bytes of its weights as they lie on a device. Unless overridden, those of the packed weights
    /// of a [`CpuModel`].
    ///
    /// # Errors
    /// When no backend here can hold a weight of the template.
    fn weight_bytes(&self, template: &OpGraph) -> Result<Bytes, ModelError> {
        Ok(CpuModel::slot_bytes_for(template)?)
    }

    /// The model for the CPU backend, its weights read. `template` is what
    /// [`template`](Self::template) gave, and has to be the one of the result.
    ///
    /// # Errors
    /// When weights cannot be read, or no kernel here can work on them.
    fn on_cpu(&self, template: Arc<OpGraph>) -> Result<CpuModel, ModelError>;
}

impl<M: Model + ?Sized> Model for Box<M> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn template(&self) -> Result<Arc<OpGraph>, ModelError> {
        (**self).template()
    }

    fn kv_bytes_per_token(&self) -> Bytes {
        (**self).kv_bytes_per_token()
    }

    fn max_context(&self) -> u32 {
        (**self).max_context()
    }

    fn vocabulary(&self) -> u32 {
        (**self).vocabulary()
    }

    fn end_of_sequence(&self) -> Option<u32> {
        (**self).end_of_sequence()
    }

    fn weight_bytes(&self, template: &OpGraph) -> Result<Bytes, ModelError> {
        (**self).weight_bytes(template)
    }

    fn on_cpu(&self, template: Arc<OpGraph>) -> Result<CpuModel, ModelError> {
        (**self).on_cpu(template)
    }
}

/// Why a model cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Its figures do not make a graph.
    #[error(transparent)]
    Template(#[from] GraphError),
    /// The CPU backend cannot run it.
    #[error(transparent)]
    Cpu(#[from] ExecutorError),
    /// Its file cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Its file is of a model that cannot be run.
    #[error("{} cannot be run: {reason}", path.display())]
    Unsupported {
        /// The file, or the folder.
        path: PathBuf,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// The implementation has another template than the one that it was given.
    #[error("`on_cpu` gave a model of another template than it was given; make it from the same Arc")]
    OtherTemplate,
    /// Its weights take more than was said.
    #[error("its packed weights take {needed}, `weight_bytes` says {said}; give what a CpuModel has as slot_bytes")]
    WeightBytes {
        /// What the model said.
        said: Bytes,
        /// What they take.
        needed: Bytes,
    },
    /// Its KV cache takes more than was said.
    #[error(
        "{tokens} tokens take {needed} of KV cache, `kv_bytes_per_token` says {said} for each; give what the cache takes"
    )]
    KvBytes {
        /// Tokens of a KV block.
        tokens: u32,
        /// What the model said, of one token.
        said: Bytes,
        /// What they take.
        needed: Bytes,
    },
    /// An error of the host's own.
    #[error("{message}")]
    Other {
        /// What went wrong, where, and what would be right.
        message: String,
        /// The error behind it.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}
