//! GGUF files, versions 2 and 3 (ggml-org/ggml, docs/gguf.md).
//!
//! A file is a header with counts, metadata as typed key-value pairs, the names, shapes, types and
//! offsets of tensors, and the tensors' bytes, each on a boundary of `general.alignment`. All of it
//! but the tensors' bytes is read and checked when a file is opened: nothing that a file says is
//! believed before there are the bytes for it, so a hostile one is refused in time and memory
//! proportional to its size. Texts and arrays stay in the file and are found there when asked for.

mod cursor;
mod value;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use slicescheduler_gmg::dtype::DType;

use super::map::FileBytes;
use super::{CheckpointError, StoredTensor, TensorFile};
use cursor::Cursor;
use value::Stored;
pub use value::{GgufArray, GgufValue};

const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
/// Dimensions of a tensor at most.
const MAX_DIMS: u32 = 4;
/// The fewest bytes that a key with its value takes, and a tensor's entry.
const LEAST_PAIR: u64 = 8 + 4 + 1;
const LEAST_TENSOR: u64 = 8 + 4 + 4 + 8;

/// Why a file is not one of GGUF, or lacks what is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The first bytes are others.
    #[error("it begins with {found:02x?}, GGUF files with {MAGIC:02x?}")]
    Magic {
        /// What it begins with.
        found: [u8; 4],
    },
    /// Another version, or another byte order.
    #[error("it is of version {found}; versions 2 and 3 in little-endian order are supported")]
    Version {
        /// What it says.
        found: u32,
    },
    /// It ends within something.
    #[error("{what} at byte {at} needs {wanted} bytes, {left} are left")]
    Truncated {
        /// Within what.
        what: &'static str,
        /// Where that begins.
        at: u64,
        /// How long that is.
        wanted: u64,
        /// How many bytes there are from there.
        left: u64,
    },
    /// It says to have more of something than there are bytes for.
    #[error("it says to have {count} {what}, for which {left} bytes do not suffice")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many.
        count: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// A text is not UTF-8.
    #[error("the text at byte {at} is not UTF-8")]
    Text {
        /// Where it begins.
        at: u64,
    },
    /// A value of a kind that does not exist, or an array of arrays.
    #[error("key {key:?} has a value of kind {kind}; 0 to 12 are known, and arrays of anything but arrays")]
    Kind {
        /// The key.
        key: String,
        /// The number that was found.
        kind: u32,
    },
    /// Two keys or two tensors have one name.
    #[error("{name:?} is there twice")]
    Twice {
        /// The name.
        name: String,
    },
    /// The boundary of tensors is none.
    #[error("general.alignment is {found}; a power of two is wanted")]
    Alignment {
        /// What it says.
        found: u64,
    },
    /// A tensor that can not be.
    #[error("tensor {name:?} {reason}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something that is needed is not there.
    #[error("it has no key {key:?}")]
    Missing {
        /// The key.
        key: String,
    },
    /// A value is not what it should be.
    #[error("key {key:?} is {found}; {expected} is wanted")]
    Value {
        /// The key.
        key: String,
        /// The value, in words.
        found: String,
        /// What would be right.
        expected: &'static str,
    },
}

/// A tensor's entry; its bytes are there.
#[derive(Debug)]
struct Entry {
    /// `None` for one of ggml's types that no kernel here can work on.
    dtype: Option<DType>,
    /// Outermost first.
    shape: Vec<usize>,
    bytes: Range<usize>,
}

/// A GGUF file.
///
/// ```no_run
/// use slicescheduler_executor::checkpoint::{GgufFile, TensorFile};
///
/// let file = GgufFile::open("model.gguf".as_ref())?;
/// println!("{} with {} layers", file.text("general.name")?, file.number("llama.block_count")?);
/// println!("{:?}", file.tensor("token_embd.weight").map(|tensor| tensor.shape));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct GgufFile {
    bytes: FileBytes,
    pairs: BTreeMap<String, Stored>,
    tensors: BTreeMap<String, Entry>,
}

impl GgufFile {
    /// Maps a file and reads all but its tensors.
    ///
    /// # Errors
    /// When it can not be mapped, or is no GGUF file.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let bytes = FileBytes::map(path)?;
        Self::parse(bytes).map_err(|error| CheckpointError::Format { path: path.to_owned(), source: Box::new(error) })
    }

    /// A file whose bytes are in memory.
    ///
    /// # Errors
    /// When it is no GGUF file.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::parse(FileBytes::Owned(bytes))
    }

    fn parse(bytes: FileBytes) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(&bytes);
        let magic = cursor.take("the header", 4)?;
        if magic != MAGIC {
            return Err(GgufError::Magic { found: [magic[0], magic[1], magic[2], magic[3]] });
        }
        let version = cursor.u32("the version")?;
        if !(2..=3).contains(&version) {
            return Err(GgufError::Version { found: version });
        }
        let tensor_count = cursor.u64("the number of tensors")?;
        let pair_count = cursor.u64("the number of keys")?;
        cursor.room_for("keys", pair_count, LEAST_PAIR)?;
        let mut pairs = BTreeMap::new();
        for _ in 0..pair_count {
            let key = cursor.text("a key")?.to_owned();
            let value = Stored::read(&mut cursor, &key)?;
            if pairs.insert(key.clone(), value).is_some() {
                return Err(GgufError::Twice { name: key });
            }
        }
        let alignment = match pairs.get("general.alignment").map(|stored| stored.value(&bytes)) {
            None => DEFAULT_ALIGNMENT,
            Some(GgufValue::Unsigned(alignment)) if alignment.is_power_of_two() => alignment,
            Some(GgufValue::Unsigned(found)) => return Err(GgufError::Alignment { found }),
            Some(_) => return Err(GgufError::Alignment { found: 0 }),
        };
        cursor.room_for("tensors", tensor_count, LEAST_TENSOR)?;
        let mut entries = Vec::new();
        for _ in 0..tensor_count {
            entries.push(RawEntry::read(&mut cursor)?);
        }
        let start = cursor.position().checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
        let data = Data { start, len: (bytes.len() as u64).saturating_sub(start), alignment };
        let mut tensors = BTreeMap::new();
        for entry in entries {
            let (name, entry) = entry.place(&data)?;
            if tensors.insert(name.clone(), entry).is_some() {
                return Err(GgufError::Twice { name });
            }
        }
        refuse_overlaps(&tensors)?;
        Ok(Self { bytes, pairs, tensors })
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<GgufValue<'_>> {
        Some(self.pairs.get(key)?.value(&self.bytes))
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.pairs.keys().map(String::as_str)
    }

    /// The names of the tensors, in order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A text.
    ///
    /// # Errors
    /// When there is no such key, or it is not a text.
    pub fn text(&self, key: &str) -> Result<&str, GgufError> {
        match self.needed(key)? {
            GgufValue::Text(text) => Ok(text),
            other => Err(other.refused(key, "a text")),
        }
    }

    /// A whole number that is not negative.
    ///
    /// # Errors
    /// When there is no such key, or it is something else.
    pub fn number(&self, key: &str) -> Result<u64, GgufError> {
        let value = self.needed(key)?;
        value.as_u64().ok_or_else(|| value.refused(key, "a whole number that is not negative"))
    }

    /// A number.
    ///
    /// # Errors
    /// When there is no such key, or it is no number.
    pub fn float(&self, key: &str) -> Result<f64, GgufError> {
        match self.needed(key)? {
            GgufValue::Float(value) => Ok(value),
            other => Err(other.refused(key, "a floating-point number")),
        }
    }

    /// The texts of an array.
    ///
    /// # Errors
    /// When there is no such key, it is not an array of texts, or one of them is not UTF-8.
    pub fn texts(&self, key: &str) -> Result<Vec<&str>, GgufError> {
        match self.needed(key)? {
            GgufValue::Array(array) => array.texts().ok_or_else(|| GgufValue::Array(array).refused(key, "texts")),
            other => Err(other.refused(key, "an array of texts")),
        }
    }

    /// The whole numbers of an array.
    ///
    /// # Errors
    /// When there is no such key, or it is not an array of whole numbers that are not negative.
    pub fn numbers(&self, key: &str) -> Result<Vec<u64>, GgufError> {
        match self.needed(key)? {
            GgufValue::Array(array) => {
                array.numbers().ok_or_else(|| GgufValue::Array(array).refused(key, "whole numbers"))
            }
            other => Err(other.refused(key, "an array of whole numbers")),
        }
    }

    fn needed(&self, key: &str) -> Result<GgufValue<'_>, GgufError> {
        self.value(key).ok_or_else(|| GgufError::Missing { key: key.to_owned() })
    }
}

impl TensorFile for GgufFile {
    fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        let entry = self.tensors.get(name)?;
        let bytes = self.bytes.get(entry.bytes.clone())?;
        Some(StoredTensor { dtype: entry.dtype?, shape: entry.shape.as_slice().into(), bytes })
    }
}

/// Where tensors' bytes may be.
struct Data {
    start: u64,
    len: u64,
    alignment: u64,
}

/// A tensor's entry as it is written.
struct RawEntry {
    name: String,
    /// Innermost first.
    dims: Vec<u64>,
    kind: u32,
    offset: u64,
}

impl RawEntry {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, GgufError> {
        let name = cursor.text("a tensor's name")?.to_owned();
        let count = cursor.u32("the number of dimensions")?;
        if count == 0 || count > MAX_DIMS {
            let reason = format!("has {count} dimensions; 1 to {MAX_DIMS} are possible");
            return Err(GgufError::Tensor { name, reason });
        }
        let dims = (0..count).map(|_| cursor.u64("a dimension")).collect::<Result<_, _>>()?;
        Ok(Self { name, dims, kind: cursor.u32("a tensor's type")?, offset: cursor.u64("a tensor's offset")? })
    }

    fn place(self, data: &Data) -> Result<(String, Entry), GgufError> {
        let Self { name, dims, kind, offset } = self;
        let refused = |reason: String| GgufError::Tensor { name: name.clone(), reason };
        let Some((dtype, block, bytes)) = ggml_type(kind) else {
            return Err(refused(format!("is of type {kind}, which ggml does not have")));
        };
        let too_large = || refused(format!("of {dims:?} elements is larger than the file"));
        let elements = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim)).ok_or_else(too_large)?;
        if dims.first().is_some_and(|row| row % block != 0) {
            return Err(refused(format!("has rows of {:?} elements, not made of blocks of {block}", dims.first())));
        }
        let size = (elements / block).checked_mul(bytes).ok_or_else(too_large)?;
        if !offset.is_multiple_of(data.alignment) {
            return Err(refused(format!("begins at {offset}, not on a boundary of {}", data.alignment)));
        }
        if offset.checked_add(size).is_none_or(|end| end > data.len) {
            return Err(refused(format!("at {offset} of {size} bytes ends beyond the {} that there are", data.len)));
        }
        let shape = dims.iter().rev().map(|&dim| usize::try_from(dim).ok()).collect::<Option<_>>();
        let shape = shape.ok_or_else(too_large)?;
        // Within the file, thus within memory.
        let start = (data.start + offset) as usize;
        Ok((name, Entry { dtype, shape, bytes: start..start + size as usize }))
    }
}

fn refuse_overlaps(tensors: &BTreeMap<String, Entry>) -> Result<(), GgufError> {
    let mut places: Vec<_> = tensors.iter().filter(|(_, entry)| !entry.bytes.is_empty()).collect();
    places.sort_by_key(|(_, entry)| entry.bytes.start);
    let overlap = places.windows(2).find(|pair| pair[0].1.bytes.end > pair[1].1.bytes.start);
    match overlap {
        Some(pair) => {
            let reason = format!("shares bytes with tensor {:?}", pair[0].0);
            Err(GgufError::Tensor { name: pair[1].0.clone(), reason })
        }
        None => Ok(()),
    }
}

/// A ggml type: the element type if it is known here, elements and bytes of a block (`ggml.h`,
/// `ggml-common.h`).
fn ggml_type(kind: u32) -> Option<(Option<DType>, u64, u64)> {
    Some(match kind {
        0 => (Some(DType::F32), 1, 4),
        1 => (Some(DType::F16), 1, 2),
        2 => (Some(DType::Q4_0), 32, 18),
        3 => (Some(DType::Q4_1), 32, 20),
        6 => (None, 32, 22),
        7 => (None, 32, 24),
        8 => (Some(DType::Q8_0), 32, 34),
        10 => (None, 256, 84),
        11 => (None, 256, 110),
        12 => (None, 256, 144),
        13 => (None, 256, 176),
        14 => (None, 256, 210),
        24 => (Some(DType::I8), 1, 1),
        25 => (None, 1, 2),
        26 => (Some(DType::I32), 1, 4),
        27 | 28 => (None, 1, 8),
        30 => (Some(DType::BF16), 1, 2),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
