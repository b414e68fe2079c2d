//! Weights in files: found by name, read where they lie.
//!
//! A [`TensorFile`] is mapped into memory and gives the bytes of its tensors; a [`Naming`] says which
//! of them make up a weight of a template, which fuses what files keep apart (queries, keys and
//! values). Together they are a [`WeightSource`]: [`CheckpointWeights`].
//!
//! | format | reader | feature |
//! |---|---|---|
//! | GGUF | [`GgufFile`] | `gguf` |
//! | safetensors | [`SafetensorsFile`] | `safetensors` |

#[cfg(any(feature = "gguf", feature = "safetensors"))]
mod map;
mod naming;

#[cfg(feature = "gguf")]
mod gguf;
#[cfg(feature = "safetensors")]
mod safetensors;

use std::borrow::Cow;
use std::fmt::Debug;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use slicescheduler_gmg::dtype::DType;

#[cfg(feature = "gguf")]
pub use gguf::{GgufArray, GgufError, GgufFile, GgufValue};
pub use naming::{ExpertNames, GgufLlama, GgufQwen, HfBert, HfLlama, Naming, Part, RowOrder, WithExperts};
#[cfg(feature = "safetensors")]
pub use safetensors::SafetensorsFile;

use crate::error::{ExecutorError, Result};
use crate::kernels::{HalfFormat, QuantFormat, dequantize};
use crate::model::{Shard, WeightSource, round_to};

/// Why a file of weights can not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// It can not be opened or mapped.
    #[error("{} can not be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It is not what it should be.
    #[error("{} is damaged, or of another format", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The bytes of a tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor<'a> {
    /// The type of its elements.
    pub dtype: DType,
    /// Its dimensions, outermost first.
    pub shape: Cow<'a, [usize]>,
    /// Row-major and little-endian, numbers or whole blocks of them.
    pub bytes: &'a [u8],
}

/// A file with named tensors.
///
/// # Contract
/// `tensor` gives as many bytes as the shape and the element type ask for, and the same ones on every
/// call.
pub trait TensorFile: Debug + Send + Sync {
    /// The tensor called `name`, if there is one of an element type that is known here.
    fn tensor(&self, name: &str) -> Option<StoredTensor<'_>>;
}

impl<T: TensorFile + ?Sized> TensorFile for Arc<T> {
    fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        (**self).tensor(name)
    }
}

/// The weights of a file, under the names of a template.
///
/// A weight that is asked for in the type of the file is copied; else it is widened exactly, or
/// rounded.
#[derive(Debug)]
pub struct CheckpointWeights<F, N> {
    file: F,
    naming: N,
}

impl<F: TensorFile, N: Naming> CheckpointWeights<F, N> {
    /// The weights of `file`, found by `naming`.
    pub fn new(file: F, naming: N) -> Self {
        Self { file, naming }
    }

    /// The file.
    pub fn file(&self) -> &F {
        &self.file
    }

    /// Calls `with` on the rows of the parts of a weight, in order: their element type, the elements of
    /// the weight that they become, and their bytes. A part of a vector is one row.
    fn rows(&self, shard: Shard<'_>, mut with: impl FnMut(DType, Range<usize>, &[u8]) -> Result<()>) -> Result<()> {
        let wanted: usize = shard.shape.iter().product();
        let refused = |reason: String| ExecutorError::Weight { weight: shard.name.to_owned(), reason };
        let parts = self.naming.parts(shard.name);
        let parts = parts.ok_or_else(|| refused("checkpoints of this kind have no such weight".to_owned()))?;
        let mut first = 0;
        for Part { tensor, order, matrix } in parts {
            let found = self.file.tensor(&tensor);
            let found = found.ok_or_else(|| refused(format!("the file has no tensor {tensor:?} that can be read")))?;
            let unfit = || {
                refused(format!("tensor {tensor:?} is {} {:?}; {:?} is wanted", found.dtype, found.shape, shard.shape))
            };
            // How many matrices, and which of them.
            let (count, index, rows, columns) = match (&*found.shape, shard.shape, matrix) {
                (&[length], [_], None) => (1, 0, 1, length),
                (&[rows, width], &[_, columns], None) if width == columns => (1, 0, rows, columns),
                (&[count, rows, width], &[_, columns], Some(index)) if width == columns && index < count => {
                    (count, index, rows, columns)
                }
                _ => return Err(unfit()),
            };
            let row_bytes = usize::try_from(found.dtype.bytes(columns as u64).get()).unwrap_or(usize::MAX);
            let whole = (columns as u64).is_multiple_of(found.dtype.block_elements());
            let fits = rows.checked_mul(columns).is_some_and(|elements| elements <= wanted - first);
            let matrix_bytes = rows.saturating_mul(row_bytes);
            if !fits || !whole || found.bytes.len() != matrix_bytes.saturating_mul(count) {
                return Err(unfit());
            }
            let of_matrix = &found.bytes[index * matrix_bytes..][..matrix_bytes];
            for row in 0..rows {
                let from = order.stored_row(row, rows).ok_or_else(unfit)?;
                let bytes = &of_matrix[from * row_bytes..(from + 1) * row_bytes];
                with(found.dtype, first..first + columns, bytes)?;
                first += columns;
            }
        }
        if first == wanted {
            return Ok(());
        }
        Err(refused(format!("its parts have {first} elements, {wanted} are wanted")))
    }
}

impl<F: TensorFile, N: Naming> WeightSource for CheckpointWeights<F, N> {
    fn fill(&self, shard: Shard<'_>, into: &mut [f32]) -> Result<()> {
        self.rows(shard, |dtype, elements, bytes| widen(shard, dtype, bytes, &mut into[elements]))
    }

    fn fill_stored(&self, shard: Shard<'_>, dtype: DType, into: &mut [u8]) -> Result<()> {
        let bytes_before = |elements: usize| usize::try_from(dtype.bytes(elements as u64).get()).unwrap_or(usize::MAX);
        let mut plain = Vec::new();
        self.rows(shard, |found, elements, bytes| {
            let into = &mut into[bytes_before(elements.start)..bytes_before(elements.end)];
            if found == dtype {
                into.copy_from_slice(bytes);
                return Ok(());
            }
            plain.resize(elements.len(), 0.0);
            widen(shard, found, bytes, &mut plain)?;
            round_to(shard, &plain, dtype, into)
        })
    }
}

/// The elements of a stored row.
fn widen(shard: Shard<'_>, dtype: DType, bytes: &[u8], into: &mut [f32]) -> Result<()> {
    if let Some(format) = QuantFormat::of(dtype) {
        return dequantize(format, bytes, into);
    }
    if let Some(format) = HalfFormat::of(dtype) {
        for (value, &bytes) in into.iter_mut().zip(bytes.as_chunks::<2>().0) {
            format.widen(&[u16::from_le_bytes(bytes)], std::slice::from_mut(value));
        }
        return Ok(());
    }
    if dtype != DType::F32 {
        let reason = format!("elements of type {dtype} have no reader");
        return Err(ExecutorError::Weight { weight: shard.name.to_owned(), reason });
    }
    for (value, &bytes) in into.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *value = f32::from_le_bytes(bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
