//! What the ends of a link say to each other, as bytes.
//!
//! A frame is a header of 48 bytes, all little-endian: magic number, kind (4 bytes each), id, offset, size,
//! checksum of what follows, checksum of the header before it (8 each), then, if it is data, `size` bytes.
//! Checksums are XXH3. The header has one of its own because a length that is wrong would have its reader
//! wait for bytes that nobody sends.

use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a header.
pub(super) const HEADER: usize = 48;
const MAGIC: u32 = u32::from_le_bytes(*b"SSL2");
/// Where the checksums lie.
const PAYLOAD_SUM: usize = 32;
const HEADER_SUM: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first frame of a connection. Id: of the sender's life; offset: the longest chunk that it takes.
    Hello,
    /// I have `size` bytes under this id, and have sent those before `offset` at some time.
    Offer,
    /// I have room for `size` bytes under this id, and have those before `offset`.
    Grant,
    /// The bytes of the id at `offset`.
    Data,
    /// I have all bytes of the id.
    Done,
    /// I can not go on with the id; offset: [`FROM_SOURCE`] or [`FROM_DESTINATION`].
    Fail,
    /// I end.
    Bye,
    /// Are you there?
    Ask,
    /// I am here.
    Alive,
}

pub(super) const FROM_SOURCE: u64 = 0;
pub(super) const FROM_DESTINATION: u64 = 1;

pub(super) const KINDS: [Kind; 9] =
    [Kind::Hello, Kind::Offer, Kind::Grant, Kind::Data, Kind::Done, Kind::Fail, Kind::Bye, Kind::Ask, Kind::Alive];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) id: u64,
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// Why bytes are not what the other end would say. Nothing behind them can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    NoFrame,
    TooLong,
    Checksum,
    NoHello,
}

impl Frame {
    pub(super) const fn new(kind: Kind, id: u64, offset: u64, size: u64) -> Self {
        Self { kind, id, offset, size }
    }

    /// Bytes behind the header.
    pub(super) const fn payload(&self) -> u64 {
        if matches!(self.kind, Kind::Data) { self.size } else { 0 }
    }

    /// Writes the header over the first bytes of `frame`, whose payload is in place.
    pub(super) fn seal(&self, frame: &mut [u8]) {
        let Some((header, payload)) = frame.split_first_chunk_mut::<HEADER>() else { return };
        let kind = KINDS.iter().position(|&kind| kind == self.kind).unwrap_or_default() as u32;
        header[..4].copy_from_slice(&MAGIC.to_le_bytes());
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[8..16].copy_from_slice(&self.id.to_le_bytes());
        header[16..24].copy_from_slice(&self.offset.to_le_bytes());
        header[24..32].copy_from_slice(&self.size.to_le_bytes());
        header[PAYLOAD_SUM..HEADER_SUM].copy_from_slice(&xxh3_64(payload).to_le_bytes());
        let sum = xxh3_64(&header[..HEADER_SUM]);
        header[HEADER_SUM..].copy_from_slice(&sum.to_le_bytes());
    }

    /// What a header says, if it is one. Its payload is not to be believed before [`check`](Self::check).
    pub(super) fn parse(header: &[u8; HEADER], most: usize) -> Result<Self, Broken> {
        let word = |at| word(header, at);
        if word(HEADER_SUM) != xxh3_64(&header[..HEADER_SUM]) {
            return Err(Broken::Checksum);
        }
        let (magic, kind) = (word(0) as u32, (word(0) >> 32) as usize);
        let kind = *KINDS.get(kind).filter(|_| magic == MAGIC).ok_or(Broken::NoFrame)?;
        let frame = Self::new(kind, word(8), word(16), word(24));
        if frame.payload() > most as u64 { Err(Broken::TooLong) } else { Ok(frame) }
    }

    /// Checks the payload of a whole frame, whose header was [parsed](Self::parse).
    pub(super) fn check(frame: &[u8]) -> Result<(), Broken> {
        let (header, payload) = frame.split_first_chunk::<HEADER>().ok_or(Broken::NoFrame)?;
        if word(header, PAYLOAD_SUM) == xxh3_64(payload) { Ok(()) } else { Err(Broken::Checksum) }
    }
}

fn word(header: &[u8; HEADER], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]))
}
