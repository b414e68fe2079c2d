//! Tensors of an operator graph.

use std::fmt;

use crate::dtype::DType;
use crate::shape::polynomial::Monomial;
use crate::shape::{Binding, Shape};
use crate::units::Bytes;

/// What a tensor is to the graph, which says where its bytes live and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Given by the host before the job starts: token ids, positions, row numbers.
    Input,
    /// Produced and consumed within the job.
    Activation,
    /// A weight. Its qualified name is the name of the shard that holds it; it outlives the job.
    Weight,
    /// The KV cache of one layer, in blocks that outlive the job. Operators update it in place.
    KvCache,
    /// Produced for the host: sampled ids, embeddings.
    Output,
}

impl Role {
    pub(crate) const fn in_words(self) -> &'static str {
        match self {
            Self::Input => "an input of the graph",
            Self::Activation => "an activation",
            Self::Weight => "a weight",
            Self::KvCache => "a KV cache",
            Self::Output => "an output of the graph",
        }
    }

    /// True for what lives in the activation arena of a device.
    pub const fn is_transient(self) -> bool {
        matches!(self, Self::Input | Self::Activation | Self::Output)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.in_words())
    }
}

/// A stored tensor, shared by all repetitions of its block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name within the block.
    pub name: Box<str>,
    /// The type of its elements.
    pub dtype: DType,
    /// Its dimensions, outermost first.
    pub shape: Shape,
    /// What it is to the graph.
    pub role: Role,
}

impl Tensor {
    /// Its size under `binding`, saturating.
    pub fn bytes(&self, binding: &Binding) -> Bytes {
        Bytes(self.bytes_formula().eval(binding))
    }

    /// Its size; the last dimension is a whole number of blocks, so the division is exact.
    pub(crate) fn bytes_formula(&self) -> Monomial {
        self.dtype_bytes(Monomial::elements(&self.shape))
    }

    /// The bytes of as many elements of this tensor's type.
    pub(crate) fn dtype_bytes(&self, elements: Monomial) -> Monomial {
        elements.divided_by(self.dtype.block_elements()).times(self.dtype.block_bytes().get())
    }
}
