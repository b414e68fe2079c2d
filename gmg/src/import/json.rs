//! Traces in JSON, record by record.
//!
//! The document is walked once: fields that no reader asks for are skipped without being kept, and
//! of the array of records only one is in memory at a time.

mod finite;

use std::fmt;
use std::rc::Rc;

use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::error::shortened;
use super::source::{Meter, Progress};
use super::{Format, Import, ImportError, Options, Position};
use finite::Finite;

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
    let mut document = Document { options, progress: &progress, sink: None, records: 0 };
    let mut deserializer = serde_json::Deserializer::from_reader(Finite::new(meter));
    let read = (&mut document).deserialize(&mut deserializer).and_then(|()| deserializer.end());
    let Document { sink, records, .. } = document;
    if let Some(failure) = progress.failure() {
        return Err(failure);
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
            let found = "a JSON document without \"traceEvents\", \"nodes\" or \"workload_graph\"";
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
    records: u64,
}

impl Document<'_> {
    /// Makes the reader of `format`, unless there is one already or another format is wanted.
    fn begins(&mut self, format: Format) -> Result<bool, ImportError> {
        let wanted = self.options.format.is_none_or(|wanted| wanted == format);
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

    fn elements<'de, A: SeqAccess<'de>>(&mut self, mut elements: A) -> Result<(), A::Error> {
        let (progress, records) = (self.progress, &mut self.records);
        match &mut self.sink {
            #[cfg(feature = "chakra")]
            Some(Sink::Chakra(reader)) => each(reader, &mut elements, progress, records),
            #[cfg(feature = "kineto")]
            Some(Sink::Kineto(reader)) => each(reader, &mut elements, progress, records),
            #[cfg(feature = "pytorch")]
            Some(Sink::PyTorch(reader)) => each(reader, &mut elements, progress, records),
            None => Ok(()),
        }
    }
}

fn each<'de, R: Records, A: SeqAccess<'de>>(
    reader: &mut R,
    elements: &mut A,
    progress: &Progress,
    records: &mut u64,
) -> Result<(), A::Error> {
    loop {
        progress.next_record(Some(*records));
        let Some(record) = elements.next_element::<R::Record>()? else { break };
        reader.record(record, progress.position()).map_err(|error| {
            progress.fail(error);
            A::Error::custom("refused")
        })?;
        *records += 1;
    }
    progress.next_record(None);
    Ok(())
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
        while let Some(key) = map.next_key::<String>()? {
            let format = match key.as_str() {
                "traceEvents" => Some(Format::Kineto),
                "nodes" => Some(Format::PyTorch),
                "workload_graph" => Some(Format::ChakraJson),
                _ => None,
            };
            let begins = format.map_or(Ok(false), |format| self.begins(format)).map_err(|error| {
                self.progress.fail(error);
                A::Error::custom("refused")
            })?;
            if begins {
                map.next_value_seed(Elements(&mut *self))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
            self.progress.next_record(None);
        }
        Ok(())
    }

    /// The array form of a Chrome trace.
    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<(), A::Error> {
        let begins = self.begins(Format::Kineto).map_err(|error| {
            self.progress.fail(error);
            A::Error::custom("refused")
        })?;
        if begins { self.elements(elements) } else { Err(A::Error::custom("expected an object")) }
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
        self.0.elements(elements)
    }
}

/// A value where traces disagree about the type: numbers as strings, identifiers as numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Scalar {
    /// Absent, null, or neither number nor string.
    #[default]
    Nothing,
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(Box<str>),
}

impl Scalar {
    /// The value as a whole number; a float only if it is whole and exact.
    pub(super) fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(*value),
            Self::Float(value) => {
                let whole = value.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(value);
                whole.then_some(*value as u64)
            }
            Self::Text(text) => text.parse().ok(),
            Self::Nothing | Self::Signed(_) => None,
        }
    }

    /// The value as a float.
    pub(super) fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Unsigned(value) => Some(*value as f64),
            Self::Signed(value) => Some(*value as f64),
            Self::Float(value) => Some(*value),
            Self::Text(text) => text.parse().ok().filter(|value: &f64| value.is_finite()),
            Self::Nothing => None,
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn is_nothing(&self) -> bool {
        *self == Self::Nothing
    }

    /// The value as a whole number, or an error about `field` of `node`.
    pub(super) fn require_u64(
        &self,
        field: &'static str,
        node: Option<u64>,
        position: Position,
    ) -> Result<u64, ImportError> {
        let expected = "a whole number from 0 to 2^64 - 1";
        self.as_u64().ok_or_else(|| ImportError::Field { position, node, field, found: shortened(self), expected })
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("missing"),
            Self::Unsigned(value) => value.fmt(f),
            Self::Signed(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyScalar;

        impl<'de> Visitor<'de> for AnyScalar {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar::Unsigned(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(u64::try_from(value).map_or(Scalar::Signed(value), Scalar::Unsigned))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar::Float(value))
            }

            fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(value.into()))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Scalar, E> {
                Ok(Scalar::Nothing)
            }

            fn visit_unit<E>(self) -> Result<Scalar, E> {
                Ok(Scalar::Nothing)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Scalar, A::Error> {
                while elements.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar::Nothing)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar::Nothing)
            }
        }

        deserializer.deserialize_any(AnyScalar)
    }
}
