//! Reading from the front, never beyond the end.

use super::GgufError;

#[derive(Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn position(&self) -> u64 {
        self.at as u64
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `wanted` bytes.
    pub(super) fn take(&mut self, what: &'static str, wanted: u64) -> Result<&'a [u8], GgufError> {
        let (at, left) = (self.position(), self.left());
        let truncated = GgufError::Truncated { what, at, wanted, left };
        let length = usize::try_from(wanted).ok().filter(|_| wanted <= left).ok_or(truncated)?;
        let taken = &self.bytes[self.at..self.at + length];
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let taken = self.take(what, N as u64)?;
        let mut array = [0; N];
        array.copy_from_slice(taken);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A text: its length, then as many bytes.
    pub(super) fn text(&mut self, what: &'static str) -> Result<&'a str, GgufError> {
        let length = self.u64(what)?;
        let at = self.position();
        std::str::from_utf8(self.take(what, length)?).map_err(|_| GgufError::Text { at })
    }

    /// Refuses a count for which there can not be the bytes.
    pub(super) fn room_for(&self, what: &'static str, count: u64, least: u64) -> Result<(), GgufError> {
        let left = self.left();
        if count.checked_mul(least).is_some_and(|bytes| bytes <= left) {
            return Ok(());
        }
        Err(GgufError::Count { what, count, left })
    }
}
