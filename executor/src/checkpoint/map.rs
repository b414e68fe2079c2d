//! The bytes of a file.

/// Bytes that stay as they are: mapped from a file, or owned.
#[derive(Debug)]
pub(super) enum FileBytes {
    Mapped(memmap2::Mmap),
    Owned(Vec<u8>),
}

impl FileBytes {
    pub(super) fn map(path: &std::path::Path) -> Result<Self, super::CheckpointError> {
        let failed = |source| super::CheckpointError::Io { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(failed)?;
        // SAFETY: a file that somebody truncates or writes while it is mapped is not ours to prevent.
        // What is read of it is plain bytes, checked against bounds that do not change, so such a
        // writer can make weights wrong or end the process, as with any program that maps its input.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(failed)?;
        Ok(Self::Mapped(map))
    }
}

impl std::ops::Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}
