//! Traces in JSON, record by record.
//!
//! The document is walked once: fields that no reader asks for are skipped without being kept, and
//! of the array of records only one is in memory at a time. Chakra's own tools write nodes without an
//! array around them, one object behind the other; that is read as one document, too.

mod finite;
mod scalar;

use std::fmt;
use std::io::Read;
use std::rc::Rc;

use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::Value;
use serde_json::de::IoRead;

use super::source::{Meter, Progress};
use super::{Format, Import, ImportError, Options, Position};
use crate::export::TIMELINE;
use finite::Finite;
pub(super) use scalar::Scalar;

type Deserialized<R> = serde_json::Deserializer<IoRead<R>>;

/// Takes the records of one format.
pub(super) trait Records {
    /// One of them.
    type Record: DeserializeOwned;

    fn record(&mut self, record: Self::Record, position: Position) -> Result<(), ImportError>;
}

/// The reader of whichever format the document turns out to have.
enum Sink {
    #[cfg(feature = "chakra")]
    Chakra(super::chakra::json::Reader),
    #[cfg(feature = "kineto")]
    Kineto(super::kineto::Reader),
    #[cfg(feature = "pytorch")]
    PyTorch(super::pytorch::Reader),
}

pub(super) fn read(meter: Meter<'_>, name: &str, options: &Options) -> Result<Import, ImportError> {
    let progress = meter.progress();
    let mut document =
        Document { options, progress: &progress, sink: None, other: None, records: 0, is_metadata: false };
    let read = document.read(&mut serde_json::Deserializer::from_reader(Finite::new(meter)));
    let Document { sink, records, other, .. } = document;
    if let Some(failure) = progress.failure() {
        // Records that are not wanted are one large field.
        return Err(match (failure, other, options.format) {
            (ImportError::Limit { position, .. }, Some(found), Some(wanted)) if sink.is_none() => {
                ImportError::OtherFormat { position, found, wanted }
            }
            (failure, ..) => failure,
        });
    }
    read.map_err(|error| {
        let position = progress.here();
        if error.is_io() { ImportError::Read { position, source: error.into() } } else { syntax(&error, position) }
    })?;
    match sink {
        #[cfg(feature = "chakra")]
        Some(Sink::Chakra(reader)) => reader.finish(name, records),
        #[cfg(feature = "kineto")]
        Some(Sink::Kineto(reader)) => reader.finish(name, records),
        #[cfg(feature = "pytorch")]
        Some(Sink::PyTorch(reader)) => reader.finish(name, records),
        None => {
            if let (Some(found), Some(wanted)) = (other, options.format) {
                return Err(ImportError::OtherFormat { position: progress.here(), found, wanted });
            }
            let found =
                "a JSON document without \"traceEvents\", \"nodes\" or \"workload_graph\", and no stream of nodes";
            Err(ImportError::UnknownFormat { position: progress.here(), found })
        }
    }
}

fn syntax(error: &serde_json::Error, position: Position) -> ImportError {
    ImportError::Syntax { position, reason: error.to_string() }
}

struct Document<'d> {
    options: &'d Options,
    progress: &'d Rc<Progress>,
    sink: Option<Sink>,
    /// A format of which there are records, but that is not wanted.
    other: Option<Format>,
    records: u64,
    /// True if the object that was read can be the metadata that a stream of Chakra nodes begins with.
    is_metadata: bool,
}

impl Document<'_> {
    /// Reads the document, and the nodes behind it if it is metadata.
    fn read<R: Read>(&mut self, deserializer: &mut Deserialized<R>) -> Result<(), serde_json::Error> {
        (&mut *self).deserialize(&mut *deserializer)?;
        let streams = self.is_metadata && self.sink.is_none();
        loop {
            match deserializer.end() {
                Err(error) if streams && !error.is_io() => self.next_node(deserializer)?,
                ended => return ended,
            }
        }
    }

    fn next_node<R: Read>(&mut self, deserializer: &mut Deserialized<R>) -> Result<(), serde_json::Error> {
        self.begin(Format::ChakraJson)?;
        match &mut self.sink {
            #[cfg(feature = "chakra")]
            Some(Sink::Chakra(reader)) => {
                let (progress, records) = (self.progress, &mut self.records);
                progress.next_record(Some(*records));
                take(reader, Deserialize::deserialize(&mut *deserializer)?, progress, records)?;
                progress.next_record(None);
                Ok(())
            }
            _ => deserializer.end(),
        }
    }

    /// Makes the reader of `format`, unless there is one already or another format is wanted.
    fn begins(&mut self, format: Format) -> Result<bool, ImportError> {
        let wanted = self.options.format.is_none_or(|wanted| wanted == format);
        if !wanted {
            self.other = Some(format);
        }
        if !wanted || self.sink.is_some() {
            return Ok(false);
        }
        self.sink = match format {
            #[cfg(feature = "chakra")]
            Format::ChakraJson => Some(Sink::Chakra(super::chakra::json::Reader::new(self.options))),
            #[cfg(feature = "kineto")]
            Format::Kineto => Some(Sink::Kineto(super::kineto::Reader::new(self.options))),
            #[cfg(feature = "pytorch")]
            Format::PyTorch => Some(Sink::PyTorch(super::pytorch::Reader::new(self.options))),
            other => return Err(ImportError::NotCompiled(other)),
        };
        Ok(true)
    }

    /// [`Self::begins`] inside of a deserializer.
    fn begin<E: serde::de::Error>(&mut self, format: Format) -> Result<bool, E> {
        let progress = self.progress;
        self.begins(format).map_err(|error| refused(progress, error))
    }

    /// Reads `first`, then the `elements` that are left.
    fn elements<'de, A: SeqAccess<'de>>(&mut self, first: Option<Value>, mut elements: A) -> Result<(), A::Error> {
        let (progress, records) = (self.progress, &mut self.records);
        match &mut self.sink {
            #[cfg(feature = "chakra")]
            Some(Sink::Chakra(reader)) => each(reader, first, &mut elements, progress, records),
            #[cfg(feature = "kineto")]
            Some(Sink::Kineto(reader)) => each(reader, first, &mut elements, progress, records),
            #[cfg(feature = "pytorch")]
            Some(Sink::PyTorch(reader)) => each(reader, first, &mut elements, progress, records),
            None => Ok(()),
        }
    }
}

fn each<'de, R: Records, A: SeqAccess<'de>>(
    reader: &mut R,
    first: Option<Value>,
    elements: &mut A,
    progress: &Progress,
    records: &mut u64,
) -> Result<(), A::Error> {
    if let Some(first) = first {
        take(reader, R::Record::deserialize(first).map_err(A::Error::custom)?, progress, records)?;
    }
    loop {
        progress.next_record(Some(*records));
        let Some(record) = elements.next_element::<R::Record>()? else { break };
        take(reader, record, progress, records)?;
    }
    progress.next_record(None);
    Ok(())
}

/// Gives `reader` the record that began last.
fn take<R: Records, E: serde::de::Error>(
    reader: &mut R,
    record: R::Record,
    progress: &Progress,
    records: &mut u64,
) -> Result<(), E> {
    reader.record(record, progress.position()).map_err(|error| refused(progress, error))?;
    *records += 1;
    Ok(())
}

/// What a deserializer passes up while `error` waits for it.
fn refused<E: serde::de::Error>(progress: &Progress, error: ImportError) -> E {
    progress.fail(error);
    E::custom("refused")
}

/// True if Chakra's metadata has a field of that name.
fn is_of_metadata(field: &str) -> bool {
    matches!(field, "version" | "attr")
}

fn is_metadata(value: &Value) -> bool {
    value.as_object().is_some_and(|fields| fields.keys().all(|field| is_of_metadata(field)))
}

/// True if an array that begins with `first` has Chakra's metadata and nodes, not events: those have a phase.
fn is_chakra(first: &Value) -> bool {
    let has = |field| first.get(field).is_some();
    !has("ph") && (has("version") || has("attr") || has("type"))
}

impl<'de> DeserializeSeed<'de> for &mut Document<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Document<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with \"traceEvents\", \"nodes\" or \"workload_graph\", or an array of events")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.is_metadata = true;
        let mut begun = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            self.is_metadata &= is_of_metadata(&key);
            if key == TIMELINE.0 {
                let exporter = map.next_value::<Value>()?;
                if exporter.get(TIMELINE.1).and_then(Value::as_str) == Some(TIMELINE.2) {
                    let position = self.progress.here();
                    return Err(refused(self.progress, ImportError::Timeline { position }));
                }
                self.progress.next_record(None);
                continue;
            }
            let format = match key.as_str() {
                "traceEvents" => Some(Format::Kineto),
                "nodes" => Some(Format::PyTorch),
                "workload_graph" => Some(Format::ChakraJson),
                _ => None,
            };
            if let Some(format) = format {
                if begun.contains(&format) {
                    return Err(A::Error::custom(format_args!("\"{key}\" is there twice: expected it once")));
                }
                begun.push(format);
            }
            if format.map_or(Ok(false), |format| self.begin(format))? {
                map.next_value_seed(Elements(&mut *self))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
            self.progress.next_record(None);
        }
        Ok(())
    }

    /// The array form of a Chrome trace, or of a stream of Chakra nodes.
    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let (mut first, mut format) = (None, Format::Kineto);
        if self.options.format.is_none_or(|wanted| wanted == Format::ChakraJson) {
            self.progress.next_record(Some(0));
            first = elements.next_element::<Value>()?;
            if self.options.format.is_some() || first.as_ref().is_some_and(is_chakra) {
                format = Format::ChakraJson;
                first = first.filter(|first| !is_metadata(first));
            }
        }
        if self.begin(format)? { self.elements(first, elements) } else { Err(A::Error::custom("expected an object")) }
    }
}

struct Elements<'e, 'd>(&'e mut Document<'d>);

impl<'de> DeserializeSeed<'de> for Elements<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Elements<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of records")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<(), A::Error> {
        self.0.elements(None, elements)
    }
}
