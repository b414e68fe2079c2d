//! Opening a file: what it is packed in, what it is, and how much of it was read.

use std::cell::{Cell, RefCell};
#[cfg(feature = "chakra")]
use std::io::BufRead;
use std::io::{self, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

use super::{Format, Import, ImportError, Limits, Options, Position, Reason};

const BUFFER: usize = 64 << 10;
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Where a tar header says that it is one, and what it says.
const TAR: (usize, &[u8]) = (257, b"ustar");

/// What programs on Windows put before text in UTF-8.
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
/// How often a file may be packed.
const LAYERS: u32 = 4;
/// How many files of an archive that turn out to be no traces are opened.
const TRIED: u64 = 16;

/// Unpacks as often as it is packed (gzip, tar), finds the format out and reads it.
pub(super) fn read<'r>(reader: Box<dyn Read + 'r>, name: &str, options: &Options) -> Result<Import, ImportError> {
    unpack(Peeked::new(reader)?, LAYERS, name, options)
}

/// A file in at most so many layers.
fn unpack(reader: Peeked<'_>, layers: u32, name: &str, options: &Options) -> Result<Import, ImportError> {
    let is_gzip = reader.start().starts_with(&GZIP);
    let is_tar = reader.start().get(TAR.0..TAR.0 + TAR.1.len()) == Some(TAR.1);
    if !is_gzip && !is_tar {
        return read_plain(reader, name, options);
    }
    let Some(layers) = layers.checked_sub(1) else {
        return Err(unknown("a file that is packed more than four times"));
    };
    if is_gzip {
        let unzipped = MultiGzDecoder::new(BufReader::with_capacity(BUFFER, reader));
        return unpack(Peeked::new(Box::new(unzipped))?, layers, name, options);
    }
    let failed = |source| ImportError::Read { position: Position::default(), source };
    let mut archive = tar::Archive::new(reader);
    let (mut import, mut other, mut left) = (None::<Import>, None, options.limits.total_bytes);
    let mut others = 0;
    // Raw entries: the names of others would be read into memory whole.
    for entry in archive.entries().map_err(failed)?.raw(true) {
        // What is broken behind the trace is none of its business.
        let entry = match entry {
            Err(_) if import.is_some() => break,
            entry => entry.map_err(failed)?,
        };
        let hidden = entry.path_bytes().rsplit(|&byte| byte == b'/').next().is_some_and(|file| file.starts_with(b"."));
        if !entry.header().entry_type().is_file() || hidden || entry.size() == 0 {
            continue;
        }
        match left.checked_sub(entry.size()) {
            Some(fewer) => left = fewer,
            None if import.is_some() => break,
            None => {
                let (position, what, most) = (Position::default(), "bytes in the file", options.limits.total_bytes);
                return Err(ImportError::Limit { position, what, most, limit: "total_bytes" });
            }
        }
        if import.is_some() {
            others += 1;
            continue;
        }
        let file = Peeked::new(Box::new(entry))?;
        if is_prose(file.start()) {
            others += 1;
            other = Some(Box::new(unknown("text that is no JSON object or array of objects")));
            continue;
        }
        match unpack(file, layers, name, options) {
            Ok(found) => import = Some(found),
            Err(error @ ImportError::UnknownFormat { .. }) if others < TRIED => {
                others += 1;
                other = Some(Box::new(error));
            }
            Err(error) => return Err(error),
        }
    }
    match (import, other) {
        (Some(mut import), _) => {
            if others > 0 {
                *import.account.dropped.entry(Reason::OtherFile).or_default() += others;
            }
            Ok(import)
        }
        (None, Some(error)) => Err(*error),
        (None, None) => Err(unknown("an archive without files")),
    }
}

fn unknown(found: &'static str) -> ImportError {
    ImportError::UnknownFormat { position: Position::default(), found }
}

/// Text that is no JSON, as an archive may have beside its traces.
fn is_prose(start: &[u8]) -> bool {
    let text = start.strip_prefix(&BYTE_ORDER_MARK).unwrap_or(start);
    is_text(text) && !is_json(text)
}

fn read_plain(mut reader: Peeked<'_>, name: &str, options: &Options) -> Result<Import, ImportError> {
    let start = reader.start();
    if start.is_empty() {
        return Err(unknown("nothing"));
    }
    if start.iter().all(|&byte| byte == 0) {
        return Err(unknown("zeros, as a device, an archive without files or a file that was never written has"));
    }
    let text = start.strip_prefix(&BYTE_ORDER_MARK).unwrap_or(start);
    let json = match options.format {
        None => is_json(text),
        Some(format) => format != Format::Chakra,
    };
    if options.format.is_none() && !json && is_text(text) {
        return Err(unknown("text that is no JSON object or array of objects"));
    }
    if json {
        let mark = start.len() - text.len();
        reader.start.set_position(mark as u64);
    }
    let meter = Meter::new(reader, options.limits);
    if json {
        return super::json::read(meter, name, options);
    }
    #[cfg(feature = "chakra")]
    return super::chakra::read(meter, name, options);
    #[cfg(not(feature = "chakra"))]
    Err(ImportError::NotCompiled(Format::Chakra))
}

/// A JSON document of an object or array. A length-delimited message may begin with the same byte,
/// but what follows is then a field number and no quote or bracket.
fn is_json(start: &[u8]) -> bool {
    let mut letters = start.iter().filter(|letter| !letter.is_ascii_whitespace());
    match letters.next() {
        Some(b'{') => matches!(letters.next(), None | Some(b'"' | b'}')),
        Some(b'[') => matches!(letters.next(), None | Some(b'{' | b']')),
        _ => false,
    }
}

/// Text of any encoding that has a byte per letter. A message has the numbers of its fields among its first
/// bytes, which are no letters.
fn is_text(start: &[u8]) -> bool {
    start.iter().all(|&byte| byte >= b' ' && byte != 0x7f || byte.is_ascii_whitespace())
}

/// A reader whose first bytes are known.
struct Peeked<'r> {
    start: io::Cursor<Vec<u8>>,
    rest: Box<dyn Read + 'r>,
}

impl<'r> Peeked<'r> {
    fn new(mut rest: Box<dyn Read + 'r>) -> Result<Self, ImportError> {
        let mut start = Vec::new();
        let read = rest.by_ref().take(512).read_to_end(&mut start);
        read.map_err(|source| ImportError::Read { position: Position::default(), source })?;
        Ok(Self { start: io::Cursor::new(start), rest })
    }

    fn start(&self) -> &[u8] {
        self.start.get_ref()
    }
}

impl Read for Peeked<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.start.read(into)? {
            0 => self.rest.read(into),
            read => Ok(read),
        }
    }
}

/// What a reader and those who use it both see.
#[derive(Debug)]
pub(super) struct Progress {
    limits: Limits,
    byte: Cell<u64>,
    /// Where the record began that is being read.
    began: Cell<u64>,
    record: Cell<Option<u64>>,
    /// The error behind one that had to pass through somebody else's types.
    failed: RefCell<Option<ImportError>>,
}

impl Progress {
    /// A record begins here.
    pub(super) fn next_record(&self, record: Option<u64>) {
        self.began.set(self.byte.get());
        self.record.set(record);
    }

    /// Where the record began.
    pub(super) fn position(&self) -> Position {
        Position { byte: self.began.get(), record: self.record.get() }
    }

    /// Where reading is.
    pub(super) fn here(&self) -> Position {
        Position { byte: self.byte.get(), record: self.record.get() }
    }

    /// Keeps `error` while another one is passed up in its place.
    pub(super) fn fail(&self, error: ImportError) {
        self.failed.borrow_mut().get_or_insert(error);
    }

    pub(super) fn failure(&self) -> Option<ImportError> {
        self.failed.borrow_mut().take()
    }
}

/// Counts what is read, and ends it at the limits.
pub(super) struct Meter<'r> {
    reader: BufReader<Peeked<'r>>,
    progress: Rc<Progress>,
}

impl<'r> Meter<'r> {
    fn new(reader: Peeked<'r>, limits: Limits) -> Self {
        let progress = Progress {
            limits,
            byte: Cell::new(0),
            began: Cell::new(0),
            record: Cell::new(None),
            failed: RefCell::new(None),
        };
        Self { reader: BufReader::with_capacity(BUFFER, reader), progress: Rc::new(progress) }
    }

    pub(super) fn progress(&self) -> Rc<Progress> {
        Rc::clone(&self.progress)
    }

    /// True at the end of the file.
    #[cfg(feature = "chakra")]
    pub(super) fn is_at_end(&mut self) -> Result<bool, ImportError> {
        let left = self.reader.fill_buf().map(<[u8]>::is_empty);
        left.map_err(|source| ImportError::Read { position: self.progress.here(), source })
    }
}

impl Read for Meter<'_> {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Progress { limits, byte, began, .. } = &*self.progress;
        let read = self.reader.read(into)? as u64;
        let now = byte.get().saturating_add(read);
        byte.set(now);
        if now - began.get() > limits.record_bytes || now > limits.total_bytes {
            let (what, most, limit) = match now > limits.total_bytes {
                true => ("bytes in the file", limits.total_bytes, "total_bytes"),
                false => ("bytes in one record", limits.record_bytes, "record_bytes"),
            };
            self.progress.fail(ImportError::Limit { position: self.progress.position(), what, most, limit });
            return Err(io::Error::other(what));
        }
        Ok(read as usize)
    }
}
