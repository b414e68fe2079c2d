//! Safetensors files, by the `safetensors` crate, which checks a file's header against its length.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use safetensors::{Dtype, SafeTensorError, SafeTensors};
use slicescheduler_gmg::dtype::DType;

use super::map::FileBytes;
use super::{CheckpointError, StoredTensor, TensorFile};

/// A safetensors file.
///
/// ```no_run
/// use slicescheduler_executor::checkpoint::{SafetensorsFile, TensorFile};
///
/// let file = SafetensorsFile::open("model.safetensors".as_ref())?;
/// println!("{:?}", file.tensor("embeddings.word_embeddings.weight").map(|tensor| tensor.shape));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SafetensorsFile {
    bytes: FileBytes,
    tensors: HashMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// `None` for a type that no kernel here can work on.
    dtype: Option<DType>,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

impl SafetensorsFile {
    /// Maps a file and reads its header.
    ///
    /// # Errors
    /// When it can not be mapped, or is no safetensors file.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let bytes = FileBytes::map(path)?;
        Self::parse(bytes).map_err(|error| CheckpointError::Format { path: path.to_owned(), source: Box::new(error) })
    }

    /// A file whose bytes are in memory.
    ///
    /// # Errors
    /// When it is no safetensors file.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, SafeTensorError> {
        Self::parse(FileBytes::Owned(bytes))
    }

    fn parse(bytes: FileBytes) -> Result<Self, SafeTensorError> {
        /// Bytes before the header: its length.
        const PREFIX: usize = 8;
        let (header, metadata) = SafeTensors::read_metadata(&bytes)?;
        let start = header + PREFIX;
        let tensors = metadata.tensors().into_iter().map(|(name, info)| {
            let (begin, end) = info.data_offsets;
            let dtype = element_type(info.dtype);
            (name, Entry { dtype, shape: info.shape.clone(), bytes: start + begin..start + end })
        });
        let tensors = tensors.collect();
        Ok(Self { bytes, tensors })
    }

    /// The names of the tensors, in no order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }
}

impl TensorFile for SafetensorsFile {
    fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        let entry = self.tensors.get(name)?;
        let bytes = self.bytes.get(entry.bytes.clone())?;
        Some(StoredTensor { dtype: entry.dtype?, shape: entry.shape.as_slice().into(), bytes })
    }
}

fn element_type(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I32 => DType::I32,
        Dtype::U32 => DType::U32,
        Dtype::I8 => DType::I8,
        Dtype::U8 => DType::U8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend((0..data).map(|i| i as u8));
        bytes
    }

    const HEADER: &str = r#"{"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]}}"#;

    #[test]
    fn a_file_gives_back_what_was_put_into_it() {
        let file = SafetensorsFile::from_bytes(file(HEADER, 14)).unwrap();
        let a = file.tensor("a").unwrap();
        assert_eq!((a.dtype, &*a.shape, a.bytes), (DType::F32, &[1, 2][..], &[0, 1, 2, 3, 4, 5, 6, 7][..]));
        let b = file.tensor("b").unwrap();
        assert_eq!((b.dtype, &*b.shape, b.bytes), (DType::BF16, &[3][..], &[8, 9, 10, 11, 12, 13][..]));
        assert_eq!(file.tensor("c"), None);
    }

    proptest! {
        #[test]
        fn a_damaged_file_is_read_or_refused_and_what_is_read_is_within_it(
            damage in prop::collection::vec((0usize..1000, any::<u8>()), 1..4), cut in 0usize..1000,
        ) {
            let mut bytes = file(HEADER, 14);
            for (at, byte) in damage {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            bytes.truncate(bytes.len() - cut % 20);
            if let Ok(file) = SafetensorsFile::from_bytes(bytes) {
                for tensor in file.tensor_names().filter_map(|name| file.tensor(name)) {
                    let elements: usize = tensor.shape.iter().product();
                    prop_assert_eq!(tensor.bytes.len() as u64, tensor.dtype.bytes(elements as u64).get());
                }
            }
        }
    }
}
