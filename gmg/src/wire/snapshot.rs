//! A whole version as bytes: what a log can be replayed on.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `GMGS` |
//! | 2 | [`VERSION`], little-endian |
//! | 8 | checksum (XXH3, 64 bits) of all that follows, little-endian |
//! | the rest | [postcard](https://postcard.jamesmunns.com/wire-format) records, lists preceded by their length |
//!
//! Neither templates nor the cluster are written. Whoever reads brings both; their fingerprints are in the
//! bytes, as are the links that had failed.
//!
//! What follows from something else is not written either, but made again: gaps between regions, counts
//! of bytes, holders of blocks. So bytes that contradict themselves are refused where they do.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{Templates, VERSION, WireError};
use crate::cluster::Cluster;
use crate::gmg::Gmg;
use crate::state::State;

const MAGIC: [u8; 4] = *b"GMGS";

/// Magic, version, checksum.
const HEADER: usize = 14;

/// A version as bytes, such that [`restore`] gives a graph that cannot be told from it: equal in content,
/// places, ids to come and high-water marks. O(content).
///
/// ```
/// use slicescheduler_gmg::cluster::{Cluster, DeviceSpec};
/// use slicescheduler_gmg::graph::OpGraph;
/// use slicescheduler_gmg::{Gmg, GmgView, Tenant, wire};
///
/// let cluster = Cluster::builder().node("a", |node| node.devices(2, DeviceSpec::h100_sxm())).build()?;
/// let mut gmg = Gmg::new(cluster.clone());
/// gmg.add_tenant(Tenant::best_effort("batch"))?;
/// let bytes = wire::save(gmg.publish().state())?;
/// let templates: &[std::sync::Arc<OpGraph>] = &[];
/// let restored = wire::restore(&bytes, cluster, templates)?;
/// assert_eq!(restored.state().content_hash(), gmg.state().content_hash());
/// assert_eq!(restored.version(), gmg.version());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// None that a graph can cause; the signature leaves room for later ones.
pub fn save(state: &State) -> Result<Vec<u8>, WireError> {
    let mut writer = Writer(vec![0; HEADER]);
    state.save(&mut writer)?;
    let mut bytes = writer.0;
    let checksum = xxh3_64(&bytes[HEADER..]);
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..HEADER].copy_from_slice(&checksum.to_le_bytes());
    Ok(bytes)
}

/// The graph that [`save`] made bytes of, on the `cluster` that it was on. What was applied since can be
/// replayed from a log. O(content); memory in proportion to what the bytes describe.
///
/// # Errors
/// When `bytes` are not a snapshot of [`VERSION`], were damaged or contradict themselves, with the place;
/// when the cluster is another one or a template is missing.
pub fn restore<T: Templates + ?Sized>(bytes: &[u8], cluster: Cluster, templates: &T) -> Result<Gmg, WireError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Err(WireError::Truncated { at: 0, len: bytes.len() });
    };
    let [m0, m1, m2, m3, v0, v1, checksum @ ..] = *header;
    if [m0, m1, m2, m3] != MAGIC {
        return Err(WireError::NotASnapshot);
    }
    let found = u16::from_le_bytes([v0, v1]);
    if found != VERSION {
        return Err(WireError::Version { found: found.into() });
    }
    if xxh3_64(rest) != u64::from_le_bytes(checksum) {
        return Err(WireError::Checksum { at: HEADER });
    }
    let mut reader = Reader { bytes, at: HEADER, record: HEADER };
    let state = State::restored(&mut reader, cluster, templates)?;
    match bytes.len() - reader.at {
        0 => Ok(Gmg::of(state)),
        more => Err(WireError::Trailing(more)),
    }
}

/// Takes records, one after the other.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn put(&mut self, record: &impl Serialize) -> Result<(), WireError> {
        self.0 = postcard::to_extend(record, std::mem::take(&mut self.0))?;
        Ok(())
    }

    pub(crate) fn put_all<T: Serialize>(&mut self, records: impl ExactSizeIterator<Item = T>) -> Result<(), WireError> {
        self.put(&records.len())?;
        records.into_iter().try_for_each(|record| self.put(&record))
    }
}

/// Gives records back, and says of each where it began.
pub(crate) struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    record: usize,
}

impl<'b> Reader<'b> {
    pub(crate) fn get<T: Deserialize<'b>>(&mut self, what: &'static str) -> Result<T, WireError> {
        self.record = self.at;
        let malformed = |source| WireError::Record { at: self.record, what, source };
        let (record, rest) = postcard::take_from_bytes(&self.bytes[self.at..]).map_err(malformed)?;
        self.at = self.bytes.len() - rest.len();
        Ok(record)
    }

    /// A list, of which each record is looked at before the next one is read.
    pub(crate) fn get_all<T: Deserialize<'b>, U>(
        &mut self,
        what: &'static str,
        mut of: impl FnMut(T) -> Result<U, Refusal>,
    ) -> Result<Vec<U>, WireError> {
        let count: usize = self.get(what)?;
        // No record is empty, so a count that lies ends with the bytes.
        let mut all = Vec::new();
        for _ in 0..count {
            let record = self.get(what)?;
            all.push(of(record).map_err(|refusal| self.refuse(refusal))?);
        }
        Ok(all)
    }

    /// The error for the record that was read last.
    pub(crate) fn refuse(&self, refusal: impl Into<Refusal>) -> WireError {
        match refusal.into() {
            Refusal::Contradiction(what) => WireError::Contradiction { at: self.record, what },
            Refusal::Wire(error) => *error,
        }
    }
}

/// Why a record that is well formed is not taken.
#[derive(Debug)]
pub(crate) enum Refusal {
    Contradiction(&'static str),
    Wire(Box<WireError>),
}

impl From<&'static str> for Refusal {
    fn from(what: &'static str) -> Self {
        Self::Contradiction(what)
    }
}

impl From<WireError> for Refusal {
    fn from(error: WireError) -> Self {
        Self::Wire(Box::new(error))
    }
}
